"""One turn of one table: its jobs in order, under the leader's term, and the standings that follow from the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.config.schema import WorkerConfig
from lakewarden.errors import (
    Busy,
    NoSuchTable,
    Outage,
    RunTaken,
    Stopped,
    Unreachable,
    UsageError,
    message_of,
)
from lakewarden.jobs.run_context import Stop
from lakewarden.model.run import Job, RunState, Trigger
from lakewarden.model.table import TableRef
from lakewarden.services.schedule import JobEnded
from lakewarden.state.fleet import BY_WORKER
from lakewarden.state.requests import PassRequest, RequestState
from lakewarden.state.schedule import PASS, Suspension, TableSchedule
from lakewarden.worker import schedule
from lakewarden.worker.schedule import backoff
from lakewarden.worker.tables import RUNNING

_FAILED = (RunState.FAILED, RunState.UNKNOWN)
# How a run ends that a window stopped while it planned, and in the middle.
_LESS_THAN_ALL = (RunState.NOTHING_TO_DO, RunState.PARTIAL)


@dataclass(frozen=True, slots=True)
class Pass:
    """The work of a turn: these jobs of the table or, for a request, its whole pass."""

    table: str
    jobs: tuple[Job, ...] = ()
    request: PassRequest | None = None
    reason: str = ""

    @property
    def trigger(self) -> Trigger:
        return Trigger("schedule") if self.request is None else self.request.trigger


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a turn. `trouble` is the error that ended it. `stopped`: this worker was asked to stop, and the rest is owed.

    `cut` are jobs that did only a part of their work because a quiet window began while they ran.
    """

    turn: Pass
    began: datetime
    at: datetime
    jobs: tuple[JobEnded, ...]
    trouble: Exception | None = None
    stopped: bool = False
    cut: frozenset[Job] = frozenset()

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(each.run.id for each in self.jobs if each.run is not None and each.run.id)

    @property
    def failed(self) -> bool:
        if self.stopped or self._asked_in_vain:
            return False
        return (self.trouble is not None and not _outside(self.trouble)) or any(map(_failed, self.jobs))

    @property
    def unreached(self) -> bool:
        """The only failure is that a catalog or a store did not answer. It is fixed there, not in the table."""
        bad = [each.error for each in self.jobs if _failed(each)]
        causes = bad if self.trouble is None else [*bad, self.trouble]
        return bool(causes) and all(isinstance(each, Unreachable) for each in causes)

    @property
    def _asked_in_vain(self) -> bool:
        """A request for a table that is switched off or does not exist: the table has not failed."""
        return self.turn.request is not None and isinstance(self.trouble, UsageError | NoSuchTable)

    @property
    def waits(self) -> bool:
        """It could not continue, for a reason outside the table."""
        return not self.stopped and (
            _outside(self.trouble) or any(_outside(each.error) for each in self.jobs)
        )

    @property
    def state(self) -> RunState:
        """The worst state of its runs."""
        states = {each.state for each in self.jobs if not each.skipped}
        if self.stopped:
            return RunState.INTERRUPTED
        if self.trouble is not None:
            return RunState.FAILED
        return next((each for each in _WORST_FIRST if each in states), RunState.NOTHING_TO_DO)

    @property
    def reason(self) -> str:
        """What failed or was skipped, job by job; empty if all went well."""
        if self.trouble is not None:
            return message_of(self.trouble)
        bad = [each for each in self.jobs if each.state in _WORST_FIRST[:6] or each.skipped]
        return "; ".join(f"{each.job}: {each.reason}" for each in bad)


_WORST_FIRST = (
    RunState.UNKNOWN,
    RunState.FAILED,
    RunState.INTERRUPTED,
    RunState.REFUSED,
    RunState.LOST_RACE,
    RunState.PARTIAL,
    RunState.DONE,
)


def begin(turn: Pass, last: TableSchedule | None, now: datetime) -> TableSchedule:
    """The standing during the turn. A later leader that finds it knows that the worker stopped in the middle."""
    failures, left_open = (0, 0) if last is None else (last.failures, last.left_open)
    return TableSchedule(turn.table, PASS, now, None, RUNNING, turn.reason, failures, left_open=left_open)


def do(api: Lakewarden, turn: Pass, lease_term: int, stop: Stop, *, staged: bool) -> PassResult:
    """Never raises: an error is part of the result."""
    began, done, cut = clock.now(), list[JobEnded](), set[Job]()
    ref = TableRef.parse(turn.table)
    trouble: Exception | None = None

    def kept_out(job: Job) -> str:
        return schedule.kept_out(job, api.config.budgets, clock.now())

    try:
        asked = turn.request is not None
        jobs = api.schedule.jobs_of(ref) if asked else turn.jobs
        for each in api.schedule.pass_over(
            ref,
            jobs,
            turn.trigger,
            stop=stop,
            lease_term=lease_term,
            quiet=not asked,
            staged=staged,
            kept_out=None if asked else kept_out,
        ):
            done.append(each)  # one by one: what had ended before an error counts
            if not asked and each.state in _LESS_THAN_ALL and kept_out(each.job):
                cut.add(each.job)
    except Exception as error:  # the table could not be read, the database is away, Spark is gone
        trouble = error
    stopped = stop.asked and (trouble is not None or any(_interrupted(each) for each in done))
    return PassResult(turn, began, clock.now(), tuple(done), trouble, stopped, frozenset(cut))


def standings(ended: PassResult, last: TableSchedule | None, config: WorkerConfig) -> list[TableSchedule]:
    """The standings of the table and its jobs after the turn. If they are written already, nothing is counted again."""
    if last is not None and last.ended_at == ended.at:
        return [last]
    failures = _failures(ended, last)
    retry_at = _retry_at(ended, failures, config)
    whole = TableSchedule(
        ended.turn.table,
        PASS,
        ended.began,
        ended.at,
        str(ended.state),
        ended.reason,
        failures,
        retry_at,
        ended.run_ids,
    )
    jobs: dict[str, TableSchedule] = {}
    for each in ended.jobs:
        stands = _job(each, ended, retry_at)
        # Purge runs twice if a cold table has trashed files: if either is incomplete, it stays owed.
        if stands.slot not in jobs or jobs[stands.slot].retry_at is None:
            jobs[stands.slot] = stands
    return [whole, *jobs.values()]


def suspension(ended: PassResult, failures: int, config: WorkerConfig) -> Suspension | None:
    """After so many failures in a row an operator has to look: the schedule skips the table until then.

    Not if a catalog did not answer: after one night without it, every table would wait for an operator to resume it.
    """
    if not ended.failed or ended.unreached or failures < config.max_failures:
        return None
    return _suspension(ended.turn.table, ended.at, failures, ended.reason)


def given_up(last: TableSchedule) -> Suspension:
    """The same for passes that no worker finished."""
    assert last.ended_at is not None, "it was ended by who found it open"
    return _suspension(last.table, last.ended_at, last.left_open, last.reason)


def _suspension(table: str, at: datetime, failures: int, why: str) -> Suspension:
    reason = (
        f"it failed {failures} times in a row, the last time with: {why}; "
        f"mend the cause, then `lakewarden resume {table}`"
    )
    return Suspension(table, at, reason, BY_WORKER)


def answer(ended: PassResult) -> tuple[RequestState, str] | None:
    """The outcome of the request for the turn; None if it continues: the next leader takes it."""
    if ended.stopped or (ended.trouble is not None and _outside(ended.trouble)):
        return None
    bad = ended.trouble is not None or any(
        each.state in (*_FAILED, RunState.INTERRUPTED) for each in ended.jobs
    )
    return (RequestState.FAILED if bad else RequestState.DONE), ended.reason or _nothing(ended.jobs)


def _nothing(jobs: Sequence[JobEnded]) -> str:
    return "" if any(each.state is not RunState.NOTHING_TO_DO for each in jobs) else "there was nothing to do"


def _failures(ended: PassResult, last: TableSchedule | None) -> int:
    before = 0 if last is None else last.failures
    if ended.failed:
        return before + 1
    # A job that was not started has not succeeded: earlier failures still count.
    undone = ended.stopped or ended.waits or any(each.skipped for each in ended.jobs)
    return before if undone or ended.trouble is not None else 0


def _retry_at(ended: PassResult, failures: int, config: WorkerConfig) -> datetime | None:
    if ended.failed:
        return ended.at + backoff(failures, config)
    return ended.at + timedelta(seconds=config.retry_seconds) if ended.waits else None


def _job(each: JobEnded, ended: PassResult, retry_at: datetime | None) -> TableSchedule:
    owed: datetime | None = None
    if each.skipped or _failed(each) or _outside(each.error):
        owed = retry_at or ended.at
    elif each.job in ended.cut or (ended.stopped and _interrupted(each)):
        owed = ended.at
    run_ids = (each.run.id,) if each.run is not None and each.run.id else ()
    return TableSchedule(
        ended.turn.table,
        str(each.job),
        each.began,
        ended.at,
        "skipped" if each.skipped else str(each.state),
        each.reason,
        0,
        owed,
        run_ids,
    )


def _failed(each: JobEnded) -> bool:
    return not each.skipped and each.state in _FAILED and not _outside(each.error)


def _interrupted(each: JobEnded) -> bool:
    return each.state is RunState.INTERRUPTED or isinstance(each.error, Stopped | RunTaken)


def _outside(error: Exception | None) -> bool:
    """Another run has the table, or the state database does not answer: not a failure of the table."""
    away = isinstance(error, Unreachable) and error.kind is Outage.STATE
    return away or isinstance(error, Busy)
