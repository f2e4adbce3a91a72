"""What can be pressed. Each form does one action of `actions`, which writes it down, and leads back to where it was pressed."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Form, Request
from starlette.responses import RedirectResponse, Response

from lakewarden.client import Lakewarden
from lakewarden.console import actions
from lakewarden.console.answers import status_of
from lakewarden.console.auth import Identity, operator, warden_of
from lakewarden.console.limits import Heavy, with_policy
from lakewarden.console.pages.table_view import read_table, show_table
from lakewarden.console.queries import snapshot_id
from lakewarden.errors import LakewardenError, PolicyError, UsageError
from lakewarden.formatting import counted, size

router = APIRouter()
Operator = Annotated[Identity, Depends(operator)]
Text = Annotated[str, Form(max_length=2000)]


@router.post("/do/request")
def request_pass(request: Request, who: Operator, table: Text, ticket: Text = "") -> Response:
    made = actions.request_pass(warden_of(request), who, table, ticket.strip() or None)
    leader = warden_of(request).schedule.leader()
    when = (
        "the worker takes it up within seconds"
        if leader and leader.live
        else "no worker leads: it waits for one"
    )
    return _to_table(request, table, f"A pass was asked for (request {made.id}): {when}.")


@router.post("/do/cancel")
def cancel(request: Request, who: Operator, run: Text) -> Response:
    actions.cancel(warden_of(request), who, run)
    return _back(request, f"/runs/{quote(run, safe='')}", "Asked to stop: it ends cleanly within seconds.")


@router.post("/do/policy")
def policy(
    request: Request,
    who: Operator,
    table: Text,
    key: Text = "",
    value: Text = "",
    do: Text = "set",
) -> Response:
    warden = warden_of(request)
    return with_policy(
        request, table, lambda: _policy(request, warden, who, table, key, value, do), acts=True
    )


def _policy(
    request: Request, warden: Lakewarden, who: Identity, table: str, key: str, value: str, do: str
) -> Response:
    try:
        match do:
            case "unset":
                actions.set_policy(warden, who, table, unset=(key,))
                told = f"{key} is no longer set for this table."
            case "reset":
                actions.set_policy(warden, who, table, reset=True)
                told = "Nothing is set for this table any more."
            case _:
                actions.set_policy(warden, who, table, {key: value})
                told = f"{key} is set for this table."
    except PolicyError as error:
        found = read_table(request, table)
        return show_table(request, found, status_of(error), key=key, typed=value, wrong=error.message)
    return _to_table(request, table, told, "policy")


@router.post("/do/pin")
def pin(
    request: Request,
    who: Operator,
    table: Text,
    snapshot: Text = "",
    purpose: Text = "",
    ttl: Text = "",
) -> Response:
    """Reads the table, so that a pin that was granted holds: the first one may wait for Spark to start."""
    number = snapshot_id(snapshot.strip()) if snapshot.strip() else None
    heavy: Heavy = request.app.state.heavy
    made = heavy.act(
        lambda: actions.pin(
            warden_of(request), who, table, number, purpose=purpose.strip(), ttl=ttl.strip() or None
        )
    )
    return _to_table(request, table, f"Snapshot {made.snapshot_id} is pinned.", "holds")


@router.post("/do/unpin")
def unpin(request: Request, who: Operator, pin: Text, back: Text = "") -> Response:
    gone = actions.unpin(warden_of(request), who, pin)
    told = f"The pin of {gone.holder} is gone; its snapshot may expire when its time comes."
    return (
        _back(request, "/holds", told) if back == "holds" else _to_table(request, gone.table, told, "holds")
    )


@router.post("/do/restore")
def restore(request: Request, who: Operator, table: Text, path: Text = "", run: Text = "") -> Response:
    everything = not path and not run
    done = actions.restore(
        warden_of(request), who, table, path=path or None, run=run or None, everything=everything
    )
    told = f"{counted(done.files, 'file')} ({size(done.bytes)}) restored: no run deletes them."
    return _to_table(request, table, told, "trashed")


@router.post("/do/suspend")
def suspend(request: Request, who: Operator, table: Text, reason: Text = "") -> Response:
    try:
        actions.suspend(warden_of(request), who, table, reason)
    except UsageError as error:
        found = read_table(request, table)
        return show_table(request, found, status_of(error), suspend_wrong=_told(error))
    return _to_table(request, table, "Suspended: the schedule leaves it alone until somebody resumes it.")


@router.post("/do/resume")
def resume(request: Request, who: Operator, table: Text) -> Response:
    was = actions.resume(warden_of(request), who, table)
    return _to_table(
        request, table, "Resumed: its failures are forgotten." if was else "It was not suspended."
    )


def _told(error: LakewardenError) -> str:
    return f"{error.message}. {error.hint}" if error.hint else error.message


def _to_table(request: Request, table: str, told: str, part: str = "") -> Response:
    return _back(request, f"/tables/{quote(table, safe='')}", told, part)


def _back(request: Request, path: str, told: str, part: str = "") -> Response:
    """By GET, so that loading the page again does nothing twice."""
    said = urlencode({"done": told, "proof": request.app.state.auth.sessions.vouch(told)})
    return RedirectResponse(f"{path}?{said}" + (f"#{part}" if part else ""), 303)
