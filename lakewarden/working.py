"""The part of `Lakewarden` about upkeep: a whole pass, requests for one, who leads, how tables stand, runs that should stop."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.errors import LakewardenError, NoSuchTable, Refused, Stopped, UsageError
from lakewarden.model.run import Job, Run, RunState, Step, Trigger
from lakewarden.model.table_name import TableRef
from lakewarden.policy.asked import WHERE_ASKED as WHERE_ASKED

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.jobs.cancel import Stop
    from lakewarden.model.progress import Progress
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.database import State
    from lakewarden.state.leases import Lease
    from lakewarden.state.requests import Request
    from lakewarden.state.runs import Cancel, Journal, Moment
    from lakewarden.state.schedule import Standing, Suspension

# Each needs that the one before it has ended well, where the schedule says so.
STAGES = (Job.HANDOFF, Job.EXPIRE, Job.PURGE, Job.SWEEP)
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
        if isinstance(self.error, LakewardenError):
            return self.error.message
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error}"


def current_user() -> str:
    """Who runs this process: the operator of a manual run that names nobody else."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"  # a container's user often has no name


class Working:
    """Calls about upkeep. What they stand on, `Lakewarden` itself has."""

    if TYPE_CHECKING:

        @property
        def state(self) -> State: ...

        @property
        def journal(self) -> Journal: ...

        def run(
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

        def run_by_id(self, run_id: str) -> tuple[Run, tuple[Step, ...]]: ...

        def _trashed_cold(self, ref: TableRef) -> TableRef | None: ...

        def policy(
            self,
            table: str | TableRef,
            call: Mapping[str, object] | None = None,
            *,
            refresh: bool = False,
        ) -> Policy: ...

        def _named(self, table: str | TableRef) -> TableRef: ...

        def _remembered(self, ref: TableRef) -> bool: ...

        def _trigger(self, trigger: Trigger | Mapping[str, str] | None) -> Trigger: ...

    # ------------------------------------------------------------ a whole pass

    def maintain(
        self,
        table: str | TableRef,
        trigger: Trigger | Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> tuple[Run, ...]:
        """A whole pass: compact-deletes, compact, rewrite-manifests, expire, purge, compact-history; expire-partitions before
        and sweep after purge where the policy asks for it.

        A job that fails or that safety refuses is told as such, and the pass goes on; it ends at a run whose outcome is unknown.
        The first error that no run tells of is raised at the end.
        """
        ref = table if isinstance(table, TableRef) else TableRef.parse(table)
        ended = list(self.pass_over(ref, self.jobs_of(ref), trigger, progress))
        lost = next((each.error for each in ended if each.run is None and each.error is not None), None)
        if lost is not None:
            raise lost
        return tuple(each.run for each in ended if each.run is not None)

    def jobs_of(self, table: TableRef) -> tuple[Job, ...]:
        """The jobs of the table's whole pass, in order. UsageError where its policy switches maintenance off."""
        policy = self.policy(table, refresh=True)
        if not policy.bool("maintenance_enabled"):
            raise UsageError(
                reason=f"maintain {table}: switched off by {policy.explain('maintenance_enabled')}",
                hint=f"switch it on with `lakewarden policy {table} --set maintenance_enabled=true`, or run one job",
            )
        return tuple(job for job in Job if job not in WHERE_ASKED or policy.bool(WHERE_ASKED[job]))

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
        """These jobs, one after the other, each told as it ends. The only loop over a pass there is.

        A failure is the job's own: the others go on, unless the outcome is unknown or the run was stopped. With `staged`, jobs of
        STAGES wait for the one before them: where that failed they are not begun. `kept_out` is asked before each job begins,
        for the ones before it may have taken hours: why it must not begin now, or nothing.
        """
        broken: Job | None = None
        for job in jobs:
            if kept_out is not None and (why := kept_out(job)):
                yield JobEnded(job, clock.now(), skipped=why)
                broken = job if job in STAGES else broken
                continue
            if staged and broken is not None and job in STAGES:
                yield JobEnded(job, clock.now(), skipped=f"waits for {broken}, which has not ended well")
                continue
            ended = self._one(job, table, trigger, progress, stop, lease_term, quiet)
            yield ended
            if job is Job.PURGE and ended.state not in _ENDS_THE_PASS:
                # What the end of its retention trashed lies in another table, and has no pass of its own.
                yield from self._in_the_cold(table, kept_out, trigger, progress, stop, lease_term, quiet)
            if ended.state in _ENDS_THE_PASS:
                return
            if job in STAGES and ended.state is RunState.FAILED:
                broken = job

    def _one(
        self,
        job: Job,
        table: TableRef,
        trigger: Trigger | Mapping[str, str] | None,
        progress: Progress | None,
        stop: Stop | None,
        lease_term: int | None,
        quiet: bool,
    ) -> JobEnded:
        from lakewarden.state.runs import new_run_id

        began = clock.now()
        # Named here, so that after an error it is told from a run that somebody else began meanwhile.
        run_id = new_run_id(began)
        try:
            run = self.run(
                job,
                table,
                None,
                trigger,
                progress,
                stop=stop,
                lease_term=lease_term,
                quiet=quiet,
                run_id=run_id,
            )
            return JobEnded(job, began, run)
        except (
            Exception
        ) as error:  # told in the job's outcome; who asked for the pass decides what follows from it
            # Without a run where it did not come that far.
            return JobEnded(job, began, self.journal.get(run_id), error)

    def _in_the_cold(
        self, table: TableRef, kept_out: Callable[[Job], str] | None, *how: Any
    ) -> Iterator[JobEnded]:
        began = clock.now()
        try:
            cold = self._trashed_cold(table)
        except Exception as error:  # as with any job: told in its outcome
            yield JobEnded(Job.PURGE, began, None, error)
            return
        if cold is None:
            return
        why = "" if kept_out is None else kept_out(Job.PURGE)
        yield JobEnded(Job.PURGE, began, skipped=why) if why else self._one(Job.PURGE, cold, *how)

    # ------------------------------------------------------------ requests

    def request(self, table: str | TableRef, trigger: Trigger | Mapping[str, str] | None = None) -> Request:
        """Ask the worker for a whole pass of the table, as soon as it can. One is pending per table: asking again refreshes it."""
        from lakewarden.state.requests import Requests

        return Requests(self.state).file(str(self._named(table)), self._trigger(trigger), clock.now())

    def requests(self, table: str | TableRef | None = None, limit: int = 50) -> tuple[Request, ...]:
        """What was asked for and what became of it, the newest first."""
        from lakewarden.state.requests import Requests

        return Requests(self.state).list(None if table is None else str(self._named(table)), limit)

    def pending_requests(self) -> tuple[Request, ...]:
        """Every one that nobody has taken up yet, the oldest first."""
        from lakewarden.state.requests import Requests

        return Requests(self.state).waiting(0)

    def request_by_id(self, request_id: str) -> Request:
        """A request as it stands."""
        from lakewarden.state.requests import Requests

        found = Requests(self.state).get(request_id)
        if found is None:
            raise UsageError(
                reason=f"find request {request_id!r}: there is none", hint="see `lakewarden requests`"
            )
        return found

    # ------------------------------------------------------------ the worker

    def leader(self) -> Lease | None:
        """The newest lease, over or not; None where no worker ever led."""
        from lakewarden.state.leases import Leases

        return Leases(self.state).current()

    def standings(self, table: str | TableRef | None = None) -> tuple[Standing, ...]:
        """How tables, or this one, stand with the schedule."""
        from lakewarden.state.schedule import Standings

        found = Standings(self.state)
        return tuple(found.all().values()) if table is None else found.of(str(self._named(table)))

    def suspended(self) -> Mapping[str, Suspension]:
        """Tables that the schedule leaves alone, by name, with the reason."""
        from lakewarden.state.schedule import Standings

        return Standings(self.state).suspended()

    def suspend(self, table: str | TableRef, reason: str, operator: str) -> Suspension:
        """Leave the table out of the schedule until it is resumed. Requests and runs by hand still work."""
        from lakewarden.state.schedule import Standings, Suspension

        ref = self._known(
            table
        )  # a mistyped name would leave the table that was meant in the schedule, unseen
        made = Suspension(str(ref), clock.now(), reason, operator)
        Standings(self.state).suspend(made)
        return made

    def _known(self, table: str | TableRef) -> TableRef:
        """For what is done to a table by its name alone: done to one that nobody knows, it would do nothing and say nothing."""
        ref = self._named(table)
        if not self.knows(ref):
            raise NoSuchTable(table=ref, reason="nobody has read a table of that name yet")
        return ref

    def knows(self, table: str | TableRef) -> bool:
        """Whether the database has ever heard of the table: no catalog is asked."""
        from lakewarden.state.health import HealthRecords
        from lakewarden.state.schedule import SEEN, Standings

        ref = self._named(table)
        # That a pass was asked for says nothing: whoever asked may have mistyped it.
        seen = any(each.slot == SEEN for each in Standings(self.state).of(str(ref)))
        heard = seen or self._remembered(ref) or str(ref) in self.suspended()
        return heard or HealthRecords(self.state).get(str(ref)) is not None

    def resume(self, table: str | TableRef) -> bool:
        """Back into the schedule, its failures forgotten; whether it was suspended."""
        from lakewarden.state.schedule import Standings

        ref, book = self._named(table), Standings(self.state)
        if not book.of(str(ref)):  # there may be failures to forget under a name that was only asked for
            self._known(ref)
        return book.resume(str(ref))

    # ------------------------------------------------------------ runs from outside

    def progress_of(self, run_id: str) -> Moment | None:
        """How far a run is; None where it has not said so."""
        from lakewarden.state.runs import RunProgress

        return RunProgress(self.state).get(run_id)

    def cancel(self, run_id: str, operator: str) -> Run:
        """Ask whoever drives the run to stop it cleanly; it ends as `interrupted` within seconds."""
        from lakewarden.state.runs import RunProgress

        run, _ = self.run_by_id(run_id)
        if run.ended_at is not None:
            raise UsageError(
                reason=f"cancel run {run_id}: it ended as {run.state} at {run.ended_at:%Y-%m-%d %H:%M:%S} UTC"
            )
        RunProgress(self.state).cancel(run_id, operator, clock.now())
        return run

    def cancelled(self, run_id: str) -> Cancel | None:
        """Who asked the run to stop, and when; None where nobody did."""
        from lakewarden.state.runs import RunProgress

        return RunProgress(self.state).cancelled(run_id)

    def operator_actions(self, target: str | None = None, limit: int = 100) -> tuple[Any, ...]:
        """What operators did through the console and the REST API, the newest first."""
        from lakewarden.state.audit_log import OperatorActions

        return OperatorActions(self.state).list(target, limit)
