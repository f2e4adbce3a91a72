"""Settles runs of jobs that mark and delete, if their process stopped before the run ended.

The deletion batch, the table and the store show what such a run did: snapshots that are gone did expire, files that
were being deleted are looked at, and a batch that never was in force is void.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from lakewarden import clock
from lakewarden.jobs.deps import Grounds
from lakewarden.jobs.expire import execute as expiring
from lakewarden.jobs.recovery import IN_FLIGHT, Settled
from lakewarden.jobs.sweep import execute as sweeping
from lakewarden.model.run import Job, Run, RunState
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.state.holds import Loads, LoadState
from lakewarden.state.runs import Journal
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import CLAIMED, FAILED_LOAD, Verdict, VerdictState
from lakewarden.storage.objects import Objects
from lakewarden.tables.interface import TableFormat


def settle_run(grounds: Grounds, format_: TableFormat, table: TableRef, run: Run) -> Settled | None:
    """How the run really ended; None while that is not known yet."""
    if run.job == Job.PURGE:
        return _purged(grounds, format_, table, run)
    verdict = TrashedFiles(grounds.state).verdict(run.id)
    if verdict is None or verdict.state is VerdictState.VOID:
        return Settled(RunState.FAILED, "nothing had been in the trash")
    if verdict.state is VerdictState.ACTIVE:
        return Settled(RunState.DONE, "its files had been in the trash")
    if run.job == Job.SWEEP:
        TrashedFiles(grounds.state).void(verdict.id)
        return Settled(RunState.FAILED, "nothing had been in the trash")
    return _expired(grounds, format_, table, run, verdict)


def settle_verdicts(grounds: Grounds, format_: TableFormat, table: TableRef, journal: Journal) -> None:
    """Settle the pending batches of ended runs by the state of the table. Without it they never were in force."""
    for verdict in TrashedFiles(grounds.state).pending(str(table)):
        if verdict.cause == FAILED_LOAD:
            _settle_load(grounds, verdict)
            continue
        if verdict.cause == CLAIMED and clock.now() - verdict.made_at >= IN_FLIGHT:
            TrashedFiles(grounds.state).void(
                verdict.id
            )  # the process that claimed them stopped before the claim was in force
        run = journal.get(verdict.id)
        if run is None or run.ended_at is None:
            continue
        if verdict.cause == sweeping.CAUSE:
            TrashedFiles(grounds.state).void(verdict.id)
        elif verdict.cause == expiring.CAUSE and (
            run.state is not RunState.UNKNOWN or clock.now() - run.ended_at >= IN_FLIGHT
        ):
            expiring.settle(grounds, verdict, format_.view(table))


def _settle_load(grounds: Grounds, verdict: Verdict) -> None:
    """The files of a failed load are trashed; an adopted load keeps its files."""
    load = Loads(grounds.state).get(verdict.id)
    if load is not None and load.state is LoadState.FAILED:
        TrashedFiles(grounds.state).enforce(verdict.id, clock.now())
    elif load is not None and load.state is LoadState.ADOPTED:
        TrashedFiles(grounds.state).void(verdict.id)


def settle_erasing(grounds: Grounds, format_: TableFormat, view: TableView) -> None:
    """Files that runs were deleting when they stopped: a missing file gets its receipt, an existing one is in the trash again.

    Before that they can be neither restored nor deleted, because it is not known which of them exist.
    """
    journal = Journal(grounds.state)
    for run_id, left in TrashedFiles(grounds.state).erasing(view.uuid).items():
        run = journal.get(run_id)
        if run is None or run.ended_at is not None:
            _look_at(grounds, format_, view.ref, run_id, left)


def _look_at(
    grounds: Grounds, format_: TableFormat, table: TableRef, run_id: str, left: Mapping[int, str]
) -> None:
    found = Objects(format_.write_properties(table)).stat(list(left.values()))
    there = {row: stat is not None for row, stat in zip(left, found, strict=True)}
    TrashedFiles(grounds.state).finish_erasing(
        run_id,
        clock.now(),
        missing=[row for row in left if not there[row]],
        failed={row: f"run {run_id} stopped before that" for row in left if there[row]},
    )


def _purged(grounds: Grounds, format_: TableFormat, table: TableRef, run: Run) -> Settled:
    files = TrashedFiles(grounds.state)
    left = files.erasing_by(run.id)
    if left:
        _look_at(grounds, format_, table, run.id, left)
    gone = files.receipts_of(run.id)
    if gone:
        count = "1 file" if gone == 1 else f"{gone:,} files"
        return Settled(RunState.PARTIAL, f"{count} had been erased; the rest waits for the next run")
    return Settled(RunState.FAILED, "no file had been erased")


def _expired(
    grounds: Grounds, format_: TableFormat, table: TableRef, run: Run, verdict: Verdict
) -> Settled | None:
    view = format_.view(table)
    there = expiring.remaining(verdict, view)
    waited = clock.now() - run.ended_at if run.ended_at is not None else timedelta.max
    if there and run.state is RunState.UNKNOWN and waited < IN_FLIGHT:
        return None
    if expiring.settle(grounds, verdict, view):
        return Settled(RunState.DONE, "its snapshots are gone, and its files are in the trash")
    return Settled(RunState.FAILED, "no snapshot had expired")
