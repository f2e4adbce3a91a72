"""The acting part of the REST API. Each route calls a function of `actions`, which records who did it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from lakewarden import clock
from lakewarden.console import actions
from lakewarden.console.answers import API, named
from lakewarden.console.api import Named, Warden
from lakewarden.console.auth import Identity, operator
from lakewarden.console.limits import Heavy, with_policy
from lakewarden.report.holds import PinReport
from lakewarden.report.policy import PolicyReport
from lakewarden.report.run import RunReport
from lakewarden.report.trash import RestoreReport

Operator = Annotated[Identity, Depends(operator)]
_TEXT = 2000

router = APIRouter(
    prefix=API,
    tags=["acting"],
    dependencies=[Depends(operator), Security(HTTPBearer(auto_error=False, scheme_name="token"))],
)


class _Body(BaseModel):
    """The base of request bodies. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class MaintainBody(_Body):
    ticket: str | None = Field(None, max_length=_TEXT, description="what the pass is for")


class PinBody(_Body):
    snapshot: int | None = Field(
        None, ge=0, lt=1 << 63, description="the snapshot to pin; default: the current one"
    )
    holder: str | None = Field(None, max_length=_TEXT, description="who needs it; default: the operator")
    purpose: str = Field("", max_length=_TEXT)
    ttl: str | None = Field(None, description="how long, such as 30m, 2h, 7d; default: forever")


class PolicyBody(_Body):
    set: dict[str, Any] = Field(default_factory=dict, description="policy keys and their new values")
    unset: list[str] = Field(default_factory=list, description="keys to remove")
    reset: bool = Field(False, description="first remove all values stored for the table")


class RestoreBody(_Body):
    path: str | None = Field(None, description="restore this file")
    run: str | None = Field(None, description="restore the files that this run trashed")
    everything: bool = Field(False, description="restore all trashed files")


class SuspendBody(_Body):
    reason: str = Field(max_length=_TEXT)


@router.post("/tables/{table}/requests", status_code=202)
def request_pass(
    warden: Warden, who: Operator, table: Named, body: MaintainBody | None = None
) -> JSONResponse:
    """Request a whole pass from the worker. A table has one pending request: asking again refreshes it."""
    made = actions.request_pass(warden, who, table, body.ticket if body else None)
    return JSONResponse(made.to_dict(), 202)


@router.post("/runs/{run_id}/cancel", status_code=202)
def cancel(warden: Warden, who: Operator, run_id: str) -> JSONResponse:
    """Ask the run's process to stop it cleanly; it ends as interrupted within seconds. 409 if it has ended."""
    with named(404 if warden.journal.get(run_id) is None else 409):
        return JSONResponse(RunReport(actions.cancel(warden, who, run_id)).to_dict(), 202)


@router.post("/tables/{table}/pins", status_code=201)
def pin(request: Request, warden: Warden, who: Operator, table: Named, body: PinBody) -> JSONResponse:
    """Pin a snapshot, so that it stays readable. Reads the table: needs Spark."""
    heavy: Heavy = request.app.state.heavy
    made = heavy.act(
        lambda: actions.pin(
            warden, who, table, body.snapshot, holder=body.holder, purpose=body.purpose, ttl=body.ttl
        )
    )
    return JSONResponse(PinReport(made, clock.now()).to_dict(), 201)


@router.api_route("/pins/{pin_id}", methods=["DELETE"])
def unpin(warden: Warden, who: Operator, pin_id: str) -> JSONResponse:
    """Remove a pin; its snapshot stays until it expires."""
    with named():
        gone = actions.unpin(warden, who, pin_id)
    return JSONResponse(PinReport(gone, clock.now(), removed=True).to_dict())


@router.patch("/tables/{table}/policy")
def set_policy(
    request: Request, warden: Warden, who: Operator, table: Named, body: PolicyBody
) -> JSONResponse:
    """Change the policy values stored for the table. If one value is wrong, none is changed."""
    before, after = with_policy(
        request,
        table,
        lambda: actions.set_policy(warden, who, table, body.set, unset=tuple(body.unset), reset=body.reset),
        acts=True,
    )
    return JSONResponse(PolicyReport(after, before).to_dict())


@router.post("/tables/{table}/restore")
def restore(warden: Warden, who: Operator, table: Named, body: RestoreBody) -> JSONResponse:
    """Restore trashed files permanently: one, those of a run, or all."""
    found = actions.restore(warden, who, table, path=body.path, run=body.run, everything=body.everything)
    return JSONResponse(RestoreReport(table, found).to_dict())


@router.post("/tables/{table}/suspend")
def suspend(warden: Warden, who: Operator, table: Named, body: SuspendBody) -> JSONResponse:
    """Remove the table from the schedule until it is resumed. Requests and manual runs still work."""
    return JSONResponse(actions.suspend(warden, who, table, body.reason).to_dict())


@router.post("/tables/{table}/resume")
def resume(warden: Warden, who: Operator, table: Named) -> JSONResponse:
    """Put the table back into the schedule and reset its failure count."""
    return JSONResponse({"table": table, "was_suspended": actions.resume(warden, who, table)})
