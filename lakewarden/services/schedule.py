"""`lw.schedule`: passes over a table, requests for them, the leading worker, and runs that should stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from lakewarden import clock
from lakewarden.errors import Refused, Stopped, UsageError, message_of
from lakewarden.model.job_facts import JOBS
from lakewarden.model.run import Job, Run, RunState, Trigger
from lakewarden.model.table import TableRef
from lakewarden.policy.fleet import pass_jobs
from lakewarden.services.deps import ServiceDeps, read_trigger

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.jobs.run_context import Stop
    from lakewarden.model.run import Progress
    from lakewarden.state.locks import Lease
    from lakewarden.state.requests import PassRequest
    from lakewarden.state.runs import Cancel, ProgressPoint
    from lakewarden.state.schedule import Suspension, TableSchedule

_ENDS_THE_PASS = (RunState.UNKNOWN, RunState.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class JobEnded:
    """One job of a pass: its run, or the error that kept it from having one; both where the run ended with it.

    `began` is when the job was begun. `skipped` says why it was not begun at all.
    """

    job: Job
    began: datetime
    run: Run | None = None
    error: Exception | None = None
    skipped: str = ""

    @property
    def state(self) -> RunState:
        """As of a run; a job that had none, because of an error, failed."""
        if isinstance(self.error, Stopped):
            return RunState.INTERRUPTED
        if self.run is None:
            return RunState.REFUSED if isinstance(self.error, Refused) else RunState.FAILED
        # A run that is open after an error has begun a commit: the next one reads from the table what became of it.
        return RunState.UNKNOWN if self.run.state is RunState.RUNNING else self.run.state

    @property
    def reason(self) -> str:
        if self.skipped:
            return self.skipped
        if self.run is not None and self.run.reason:
            return self.run.reason
        return "" if self.error is None else message_of(self.error)


class RunJob(Protocol):
    """`Lakewarden.run`, as a pass calls it."""

    def __call__(
        self,
        job: str | Job,
        table: str | TableRef,
        policy: Mapping[str, object] | None = None,
        trigger: Trigger | Mapping[str, str] | None = None,
        progress: Progress | None = None,
        *,
        stop: Stop | None = None,
        lease_term: int | None = None,
        quiet: bool = False,
        run_id: str | None = None,
    ) -> Run: ...


@dataclass(frozen=True, slots=True)
class _HowToRun:
    """What every run of one pass is given."""

    trigger: Trigger | Mapping[str, str] | None
    progress: Progress | None
    stop: Stop | None
    lease_term: int | None
    quiet: bool


class ScheduleService:
    """Passes over tables, requests for them, the leading worker, and runs that should stop."""

    def __init__(
        self, deps: ServiceDeps, run_job: RunJob, trashed_cold: Callable[[TableRef], TableRef | None]
    ) -> None:
        self._deps, self._run_job, self._trashed_cold = deps, run_job, trashed_cold

    # ------------------------------------------------------------ a whole pass

    def jobs_of(self, table: TableRef) -> tuple[Job, ...]:
        """The jobs of the table's whole pass, in order. UsageError where its policy switches maintenance off."""
        policy = self._deps.policy(table, refresh=True)
        found = pass_jobs(policy, requested=True)
        if found.off:
            raise UsageError(
                reason=f"maintain {table}: switched off by {policy.explain('maintenance_enabled')}",
                hint=f"switch it on with `lakewarden policy {table} --set maintenance_enabled=true`, or run one job",
            )
        return found.jobs

    def pass_over(
        self,
        table: TableRef,
        jobs: Sequence[Job],
        trigger: Trigger | Mapping[str, str] | None = None,
        progress: Progress | None = None,
        *,
        stop: Stop | None = None,
        lease_term: int | None = None,
        quiet: bool = False,
        staged: bool = False,
        kept_out: Callable[[Job], str] | None = None,
    ) -> Iterator[JobEnded]:
        """Run these jobs one after the other and yield each as it ends. Every pass goes through here.

        After a failed job the others go on, unless the outcome is unknown or the run was stopped. With `staged`, a job that
        deletes is skipped after an earlier such job failed: see `JobFacts.stage`. `kept_out` is asked before each job begins, because earlier jobs may take
        hours: it returns why the job must not begin now, or nothing.
        """
        how = _HowToRun(trigger, progress, stop, lease_term, quiet)
        broken: Job | None = None
        for job in jobs:
            if kept_out is not None and (why := kept_out(job)):
                yield JobEnded(job, clock.now(), skipped=why)
                broken = job if JOBS[job].stage else broken
                continue
            if staged and broken is not None and JOBS[job].stage:
                yield JobEnded(job, clock.now(), skipped=f"waits for {broken}, which has not ended well")
                continue
            ended = self._one(job, table, how)
            yield ended
            if JOBS[job].on_cold_tables and ended.state not in _ENDS_THE_PASS:
                # The cold table has no pass of its own, but the end of its retention may have trashed files of it.
                yield from self._in_the_cold(job, table, kept_out, how)
            if ended.state in _ENDS_THE_PASS:
                return
            if JOBS[job].stage and ended.state is RunState.FAILED:
                broken = job

    def _one(self, job: Job, table: TableRef, how: _HowToRun) -> JobEnded:
        from lakewarden.state.runs import new_run_id

        began = clock.now()
        # Named here, so that after an error this run is not confused with one that another process began at the same time.
        run_id = new_run_id(began)
        try:
            run = self._run_job(
                job,
                table,
                None,
                how.trigger,
                how.progress,
                stop=how.stop,
                lease_term=how.lease_term,
                quiet=how.quiet,
                run_id=run_id,
            )
            return JobEnded(job, began, run)
        except Exception as error:  # part of the job's outcome; the caller of the pass decides what follows
            # The journal has no run where the error came before the run began.
            return JobEnded(job, began, self._deps.connections.journal.get(run_id), error)

    def _in_the_cold(
        self, job: Job, table: TableRef, kept_out: Callable[[Job], str] | None, how: _HowToRun
    ) -> Iterator[JobEnded]:
        began = clock.now()
        try:
            cold = self._trashed_cold(table)
        except Exception as error:  # as with any job, part of its outcome
            yield JobEnded(job, began, None, error)
            return
        if cold is None:
            return
        why = "" if kept_out is None else kept_out(job)
        yield JobEnded(job, began, skipped=why) if why else self._one(job, cold, how)

    # ------------------------------------------------------------ requests

    def request(
        self, table: str | TableRef, trigger: Trigger | Mapping[str, str] | None = None
    ) -> PassRequest:
        """Ask the worker for a whole pass of the table. A table has one pending request; asking again updates it."""
        from lakewarden.state.requests import Requests

        return Requests(self._deps.connections.state).file(
            str(self._deps.names.checked(table)), read_trigger(trigger), clock.now()
        )

    def requests(self, table: str | TableRef | None = None, limit: int = 50) -> tuple[PassRequest, ...]:
        """Requests and their outcomes, the newest first."""
        from lakewarden.state.requests import Requests

        return Requests(self._deps.connections.state).list(
            None if table is None else str(self._deps.names.checked(table)), limit
        )

    def pending(self) -> tuple[PassRequest, ...]:
        """Requests that no worker has started yet, the oldest first."""
        from lakewarden.state.requests import Requests

        return Requests(self._deps.connections.state).waiting(0)

    def request_by_id(self, request_id: str) -> PassRequest:
        """One request. UsageError where there is none."""
        from lakewarden.state.requests import Requests

        found = Requests(self._deps.connections.state).get(request_id)
        if found is None:
            raise UsageError(
                reason=f"find request {request_id!r}: there is none", hint="see `lakewarden requests`"
            )
        return found

    # ------------------------------------------------------------ the worker

    def leader(self) -> Lease | None:
        """The newest lease, also one that is over. None where no worker ever led."""
        from lakewarden.state.locks import Leases

        return Leases(self._deps.connections.state).current()

    def standings(self, table: str | TableRef | None = None) -> tuple[TableSchedule, ...]:
        """What the schedule knows of all tables or of one."""
        from lakewarden.state.schedule import TableSchedules

        found = TableSchedules(self._deps.connections.state)
        return (
            tuple(found.all().values()) if table is None else found.of(str(self._deps.names.checked(table)))
        )

    def suspended(self) -> Mapping[str, Suspension]:
        """Suspended tables by name, with the reason."""
        from lakewarden.state.schedule import TableSchedules

        return TableSchedules(self._deps.connections.state).suspended()

    def suspend(self, table: str | TableRef, reason: str, operator: str) -> Suspension:
        """Take the table out of the schedule until it is resumed. Requests and manual runs still work."""
        from lakewarden.state.schedule import Suspension, TableSchedules

        ref = self._deps.names.known(table)  # a mistyped name would leave the intended table in the schedule
        made = Suspension(str(ref), clock.now(), reason, operator)
        TableSchedules(self._deps.connections.state).suspend(made)
        return made

    def resume(self, table: str | TableRef) -> bool:
        """Put the table back into the schedule and forget its failures. Returns whether it was suspended."""
        from lakewarden.state.schedule import TableSchedules

        ref, book = self._deps.names.checked(table), TableSchedules(self._deps.connections.state)
        if not book.of(str(ref)):  # there may be failures to forget under a name that was only asked for
            self._deps.names.known(ref)
        return book.resume(str(ref))

    # ------------------------------------------------------------ runs from outside

    def progress_of(self, run_id: str) -> ProgressPoint | None:
        """How far a run is. None where it has not reported progress."""
        from lakewarden.state.runs import RunProgress

        return RunProgress(self._deps.connections.state).get(run_id)

    def cancel(self, run_id: str, operator: str) -> Run:
        """Ask the process that runs it to stop it cleanly. It ends as `interrupted` within seconds."""
        from lakewarden.state.runs import RunProgress

        run = self._deps.run(run_id)
        if run.ended_at is not None:
            raise UsageError(
                reason=f"cancel run {run_id}: it ended as {run.state} at {run.ended_at:%Y-%m-%d %H:%M:%S} UTC"
            )
        RunProgress(self._deps.connections.state).cancel(run_id, operator, clock.now())
        return run

    def cancelled(self, run_id: str) -> Cancel | None:
        """Who asked the run to stop, and when. None where no one did."""
        from lakewarden.state.runs import RunProgress

        return RunProgress(self._deps.connections.state).cancelled(run_id)
