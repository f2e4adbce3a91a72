"""`lakewarden plan`, `lakewarden run` and `lakewarden maintain`: show what a job would do, or do it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewarden import clock
from lakewarden.cli import options
from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import (
    Branch,
    JobName,
    JsonFlag,
    Operator,
    Settings,
    TableName,
    Ticket,
    TriggerOption,
)
from lakewarden.cli.screen import Interrupted, Screen
from lakewarden.errors import NoWorker

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.model.run import Progress, Run, Trigger
    from lakewarden.model.table import TableRef
    from lakewarden.state.requests import PassRequest


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)
    app.command("run")(run)
    app.command("maintain")(maintain)


def plan(
    ctx: typer.Context,
    job: JobName,
    table: TableName,
    sets: Settings = None,
    branch: Branch = None,
    as_json: JsonFlag = False,
) -> int:
    """Show what a job would do to a table now, and what it would skip, with reasons.

    Never changes anything: not the table, not the journal.

    The jobs: compact merges small files; compact-deletes applies delete files; rewrite-manifests rewrites
    metadata; expire removes old snapshots; expire-partitions drops old partitions; handoff copies expiring
    snapshots to a colder tier; sweep moves orphan files to the trash; purge deletes files in the trash whose
    grace period is over; compact-history folds the lineage of expired snapshots.

    Example: `lakewarden plan compact lake.db.events --set rewrite_min_input_files=2`
    """
    from lakewarden.report.plan import PlanReport

    screen, call = Screen(as_json), invocation(ctx)
    ref, settings = options.table_ref(table), options.settings(sets, branch)
    with call.open(screen, spark=True) as lakewarden, screen.waiting(f"planning {job} {ref}"):
        made = lakewarden.plan(job, ref, settings)
    screen.show(PlanReport(made, call.command("run", job, str(ref), settings=settings)))
    return 0


def run(
    ctx: typer.Context,
    job: JobName,
    table: TableName,
    sets: Settings = None,
    branch: Branch = None,
    operator: Operator = None,
    ticket: Ticket = None,
    trigger: TriggerOption = "manual",
    as_json: JsonFlag = False,
) -> int:
    """Plan a job on a table and run it now. Every step is journaled.

    Never loses a row that the policy keeps, and never deletes a file that any snapshot uses. Ctrl-C stops it
    cleanly.

    Example: `lakewarden run compact lake.db.events --operator ana --ticket OPS-12`
    """
    from lakewarden.report.run import RunReport

    screen = Screen(as_json)
    ref, settings = options.table_ref(table), options.settings(sets, branch)
    why = options.trigger(trigger, operator, ticket)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        ended = lakewarden.run(job, ref, settings, why, screen.progress())
    screen.show(RunReport(ended))
    return ended.state.exit_code


def maintain(
    ctx: typer.Context,
    table: TableName,
    operator: Operator = None,
    ticket: Ticket = None,
    trigger: TriggerOption = "manual",
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="File a request for the worker, and return at once.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Run every job that is due on a table, in order: through the worker if one is running, else in this
    process.

    Never runs a job that the policy switches off, and never runs at the same time as a scheduled pass of the
    table. It stops at a run whose outcome is unknown. A request to the worker stays filed if you stop waiting
    for it.

    Example: `lakewarden maintain lake.db.events`
    """
    from lakewarden.cli.schedule import RequestReport
    from lakewarden.report.run import PassReport

    screen, ref = Screen(as_json), options.table_ref(table)
    why = options.trigger(trigger, operator, ticket)
    called = invocation(ctx)
    with called.open(screen, spark=False) as lakewarden:
        leader = lakewarden.schedule.leader()
        if no_wait:
            if not lakewarden.names.knows(ref):
                screen.nothing_of(ref)
            screen.show(RequestReport(lakewarden.schedule.request(ref, why), leader))
            return 0
        if leader is not None and leader.live:
            return _by_the_worker(screen, lakewarden, ref, why)
        with called.started(screen, lakewarden):
            report = PassReport(str(ref), lakewarden.maintain(ref, why, screen.progress()))
        screen.show(report)
        return report.exit_code


def _by_the_worker(screen: Screen, lakewarden: Lakewarden, ref: TableRef, why: Trigger) -> int:
    from lakewarden.errors import LakewardenError
    from lakewarden.report.run import PassReport
    from lakewarden.state.requests import RequestState

    filed = lakewarden.schedule.request(ref, why)
    try:
        ended = follow(lakewarden, filed, screen.progress())
    except KeyboardInterrupt:
        hint = f"request {filed.id} stays filed, and the worker will run it: see `lakewarden requests {ref}`"
        raise Interrupted(hint=hint) from None
    failed = ended.state is RequestState.FAILED
    if failed and not ended.run_ids:
        raise LakewardenError(reason=ended.reason, hint=f"see `lakewarden requests {ref}`")
    report = PassReport(str(ref), runs_of(lakewarden, ended))
    screen.show(report)
    return report.exit_code or int(failed)


POLL_SECONDS = 0.5
_LEASES = 3  # a standby takes over within this time


def follow(lakewarden: Lakewarden, request: PassRequest, progress: Progress) -> PassRequest:
    """Wait until the request is done or failed. If the caller stops waiting, the request stays filed. Raises
    NoWorker if no worker leads for too long."""
    shown, led_at = _Shown(progress), clock.monotonic()
    patience = _LEASES * lakewarden.config.worker.lease_seconds
    while not request.ended:
        shown.tell(lakewarden, request)
        leader = lakewarden.schedule.leader()
        if leader is not None and leader.live:
            led_at = clock.monotonic()
        elif clock.monotonic() - led_at > patience:
            shown.end()
            raise NoWorker(request=request.id, seconds=int(patience), table=request.table)
        clock.sleep(POLL_SECONDS)
        request = lakewarden.schedule.request_by_id(request.id)
    shown.end()
    return request


def runs_of(lakewarden: Lakewarden, request: PassRequest) -> tuple[Run, ...]:
    return tuple(lakewarden.run_by_id(each)[0] for each in request.run_ids)


class _Shown:
    def __init__(self, progress: Progress) -> None:
        self._progress, self._what, self._done, self._said = progress, "", 0, ""

    def tell(self, lakewarden: Lakewarden, request: PassRequest) -> None:
        self._note(_waits(lakewarden, request))
        for run in lakewarden.runs(request.table, 5):
            moment = lakewarden.schedule.progress_of(run.id) if run.ended_at is None else None
            if moment is None:
                continue
            if moment.what != self._what:
                self.end()
                self._progress.begin(moment.what, moment.total_bytes)
                self._what, self._done = moment.what, 0
            self._progress.advance(max(0, moment.done_bytes - self._done))
            self._done = max(self._done, moment.done_bytes)

    def _note(self, text: str) -> None:
        if text != self._said:
            self._progress.note(text)
        self._said = text

    def end(self) -> None:
        if self._what:
            self._progress.end()
        self._what = ""


def _waits(lakewarden: Lakewarden, request: PassRequest) -> str:
    leader = lakewarden.schedule.leader()
    if leader is None or not leader.live:
        return f"request {request.id} waits: no worker is running"
    if request.claimed_at is None:
        return f"request {request.id} is filed; the worker is {leader.holder}"
    return f"request {request.id} is in progress on {leader.holder}"
