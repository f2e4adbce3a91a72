"""Actions of operators. The REST API and the pages share them, and each action is recorded in the audit log:
who, from where, what, on what, and the outcome. Secrets are never recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.console.answers import log, one_line
from lakewarden.console.auth import Identity
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.model.run import Run, Trigger
from lakewarden.model.table import printed
from lakewarden.redact import redact_text
from lakewarden.state.audit_log import OperatorAction, OperatorActions

if TYPE_CHECKING:
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.holds import Pin
    from lakewarden.state.requests import PassRequest
    from lakewarden.state.schedule import Suspension
    from lakewarden.state.trash_batches import RestoreResult

# `begun` remains if the process stopped, or the database was lost, before the outcome was stored.
BEGUN, DONE, REFUSED, FAILED = "begun", "done", "refused", "failed"


def request_pass(warden: Lakewarden, who: Identity, table: str, ticket: str | None = None) -> PassRequest:
    """Request a whole pass from the worker."""
    with _audited(warden, who, "request", table, ticket=ticket) as said:
        made = warden.schedule.request(table, Trigger("manual", who.name, ticket))
        said["request"] = made.id
        return made


def cancel(warden: Lakewarden, who: Identity, run_id: str) -> Run:
    """Ask the run's process to stop it cleanly."""
    with _audited(warden, who, "cancel", run_id) as said:
        run = warden.schedule.cancel(run_id, who.name)
        said.update(table=run.table, job=run.job)
        return run


def pin(
    warden: Lakewarden,
    who: Identity,
    table: str,
    snapshot_id: int | None = None,
    *,
    holder: str | None = None,
    purpose: str = "",
    ttl: str | None = None,
) -> Pin:
    """Pin a snapshot. Reads the table: needs Spark. The holder is the operator, unless another one is given."""
    with _audited(warden, who, "pin", table, snapshot=snapshot_id, holder=holder, ttl=ttl) as said:
        made = warden.pin(table, snapshot_id, holder=holder or who.name, purpose=purpose, ttl=ttl).pin
        said.update(pin=made.id, snapshot=made.snapshot_id)
        return made


def unpin(warden: Lakewarden, who: Identity, pin_id: str) -> Pin:
    """Remove a pin. Needs no Spark, unless a tag mirrors it."""
    with _audited(warden, who, "unpin", pin_id) as said:
        gone = warden.holds.unpin(pin_id)
        said.update(table=gone.table, snapshot=gone.snapshot_id, holder=gone.holder)
        return gone


def restore(
    warden: Lakewarden,
    who: Identity,
    table: str,
    *,
    path: str | None = None,
    run: str | None = None,
    everything: bool = False,
) -> RestoreResult:
    """Restore trashed files: one, those of a run, or all."""
    with _audited(warden, who, "restore", table, path=path, run=run, everything=everything) as said:
        found = warden.restore(table, path, run=run, everything=everything, operator=who.name)
        said["files"] = found.files
        return found


def set_policy(
    warden: Lakewarden,
    who: Identity,
    table: str,
    values: Mapping[str, object] | None = None,
    *,
    unset: Sequence[str] = (),
    reset: bool = False,
) -> tuple[Policy, Policy]:
    """Change the policy values stored for the table. Returns the policy before and after."""
    with _audited(
        warden, who, "policy", table, set=dict(values or {}), unset=list(unset), reset=reset or None
    ):
        if not values and not unset and not reset:
            raise UsageError(
                reason=f"cannot change the policy of {table}: the request has nothing to set, unset or reset"
            )
        before = warden.policy(table)
        after = warden.set_policy(table, values, unset=tuple(unset), reset=reset, operator=who.name)
        return before, after


def suspend(warden: Lakewarden, who: Identity, table: str, reason: str) -> Suspension:
    """Remove the table from the schedule until it is resumed."""
    with _audited(warden, who, "suspend", table, reason=reason):
        if not reason.strip():
            raise UsageError(
                reason=f"cannot suspend {table}: no reason was given",
                hint="give a reason; it is shown wherever the table is listed",
            )
        return warden.schedule.suspend(table, reason.strip(), who.name)


def resume(warden: Lakewarden, who: Identity, table: str) -> bool:
    """Put the table back into the schedule. Returns whether it was suspended."""
    with _audited(warden, who, "resume", table) as said:
        was = warden.schedule.resume(table)
        said["was_suspended"] = was
        return was


# ------------------------------------------------------------ written down


@contextmanager
def _audited(
    warden: Lakewarden, who: Identity, action: str, target: str, **detail: Any
) -> Iterator[dict[str, Any]]:
    """Record the action before it is done, and its outcome afterwards, so that no action is missing from the
    audit log.

    What the body adds to the detail is recorded too.
    """
    target = printed(target)
    said = {name: value for name, value in detail.items() if value not in (None, {}, [], False)}
    row = record(warden, who, action, target, BEGUN, said)
    try:
        yield said
    except LakewardenError as error:
        _ended(warden, row, who, action, target, REFUSED, {**said, "reason": error.message})
        raise
    except Exception as error:
        _ended(warden, row, who, action, target, FAILED, {**said, "reason": type(error).__name__})
        raise
    _ended(warden, row, who, action, target, DONE, said)


def _ended(
    warden: Lakewarden,
    row: int,
    who: Identity,
    action: str,
    target: str,
    outcome: str,
    detail: dict[str, Any],
) -> None:
    told = _told(who, action, target, outcome, detail)
    try:
        OperatorActions(warden.state).end(row, outcome, told.detail)
    except LakewardenError as error:
        # The action itself is over. Its row says that it began, and the log has its outcome.
        log.error("cannot store the outcome of %s on %s: %s", action, told.target, error.message)


def record(
    warden: Lakewarden, who: Identity, action: str, target: str, outcome: str, detail: Mapping[str, Any]
) -> int:
    """Write the action to the database and the log; returns the number of its row."""
    return OperatorActions(warden.state).add(_told(who, action, target, outcome, detail))


def _told(who: Identity, action: str, target: str, outcome: str, detail: Mapping[str, Any]) -> OperatorAction:
    """Log the action, and return it with printable text only: some databases reject control characters, and a
    line break would split a log line."""
    clean = {one_line(name): _storable(value) for name, value in detail.items()}
    told = OperatorAction(
        clock.now(), who.name, who.role, action, one_line(target)[:_LONGEST], outcome, clean, who.address
    )
    log.log(
        20 if outcome in (BEGUN, DONE) else 30,
        "%s by %s (%s) from %s on %s: %s %s",
        action, who.name, who.role, who.address, told.target, outcome, clean,
    )  # fmt: skip
    return told


def _storable(value: Any) -> Any:
    match value:
        case str():
            return one_line(redact_text(value))
        case Mapping():
            return {one_line(str(name)): _storable(each) for name, each in value.items()}
        case list() | tuple():
            return [_storable(each) for each in value]
        case float() if not isfinite(value):
            return str(value)
        case _:
            return value


_LONGEST = 500
