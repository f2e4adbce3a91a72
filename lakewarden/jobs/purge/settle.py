"""Settles runs of jobs that mark and delete, if their process stopped before the run ended.

The deletion batch, the table and the store show what such a run did: snapshots that are gone did expire, files that
were being deleted are looked at, and a batch that never was in force is void.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from lakewarden import clock
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.expire import execute as expire
from lakewarden.jobs.recovery import IN_FLIGHT, RunResult
from lakewarden.jobs.sweep import execute
from lakewarden.model.run import Job, Run, RunState
from lakewarden.model.table import TableRef, TableView
from lakewarden.state.holds import Loads, LoadState
from lakewarden.state.runs import Journal
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import CLAIMED, FAILED_LOAD, BatchState, TrashBatch
from lakewarden.storage.objects import Objects
from lakewarden.tables.interface import TableFormat


def settle_run(deps: JobDeps, format_: TableFormat, table: TableRef, run: Run) -> RunResult | None:
    """How the run really ended; None while that is not known yet."""
    if run.job == Job.PURGE:
        return _purged(deps, format_, table, run)
    batch = TrashedFiles(deps.state).batch(run.id)
    if batch is None or batch.state is BatchState.VOID:
        return RunResult(RunState.FAILED, "nothing had been in the trash")
    if batch.state is BatchState.ACTIVE:
        return RunResult(RunState.DONE, "its files had been in the trash")
    if run.job == Job.SWEEP:
        TrashedFiles(deps.state).void(batch.id)
        return RunResult(RunState.FAILED, "nothing had been in the trash")
    return _expired(deps, format_, table, run, batch)


def settle_batches(deps: JobDeps, format_: TableFormat, table: TableRef, journal: Journal) -> None:
    """Settle the pending batches of ended runs by the state of the table. Without it they never were in force."""
    for batch in TrashedFiles(deps.state).pending(str(table)):
        if batch.cause == FAILED_LOAD:
            _settle_load(deps, batch)
            continue
        if batch.cause == CLAIMED and clock.now() - batch.made_at >= IN_FLIGHT:
            TrashedFiles(deps.state).void(
                batch.id
            )  # the process that claimed them stopped before the claim was in force
        run = journal.get(batch.id)
        if run is None or run.ended_at is None:
            continue
        if batch.cause == execute.CAUSE:
            TrashedFiles(deps.state).void(batch.id)
        elif batch.cause == expire.CAUSE and (
            run.state is not RunState.UNKNOWN or clock.now() - run.ended_at >= IN_FLIGHT
        ):
            expire.settle(deps, batch, format_.view(table))


def _settle_load(deps: JobDeps, batch: TrashBatch) -> None:
    """The files of a failed load are trashed; an adopted load keeps its files."""
    load = Loads(deps.state).get(batch.id)
    if load is not None and load.state is LoadState.FAILED:
        TrashedFiles(deps.state).enforce(batch.id, clock.now())
    elif load is not None and load.state is LoadState.ADOPTED:
        TrashedFiles(deps.state).void(batch.id)


def settle_erasing(deps: JobDeps, format_: TableFormat, view: TableView) -> None:
    """Files that runs were deleting when they stopped: a missing file gets its receipt, an existing one is in the trash again.

    Before that they can be neither restored nor deleted, because it is not known which of them exist.
    """
    journal = Journal(deps.state)
    for run_id, left in TrashedFiles(deps.state).erasing(view.uuid).items():
        run = journal.get(run_id)
        if run is None or run.ended_at is not None:
            _look_at(deps, format_, view.ref, run_id, left)


def _look_at(
    deps: JobDeps, format_: TableFormat, table: TableRef, run_id: str, left: Mapping[int, str]
) -> None:
    found = Objects(format_.write_properties(table)).stat(list(left.values()))
    there = {row: stat is not None for row, stat in zip(left, found, strict=True)}
    TrashedFiles(deps.state).finish_erasing(
        run_id,
        clock.now(),
        missing=[row for row in left if not there[row]],
        failed={row: f"run {run_id} stopped before that" for row in left if there[row]},
    )


def _purged(deps: JobDeps, format_: TableFormat, table: TableRef, run: Run) -> RunResult:
    files = TrashedFiles(deps.state)
    left = files.erasing_by(run.id)
    if left:
        _look_at(deps, format_, table, run.id, left)
    gone = files.receipts_of(run.id)
    if gone:
        count = "1 file" if gone == 1 else f"{gone:,} files"
        return RunResult(RunState.PARTIAL, f"{count} had been erased; the rest waits for the next run")
    return RunResult(RunState.FAILED, "no file had been erased")


def _expired(
    deps: JobDeps, format_: TableFormat, table: TableRef, run: Run, batch: TrashBatch
) -> RunResult | None:
    view = format_.view(table)
    there = expire.remaining(batch, view)
    waited = clock.now() - run.ended_at if run.ended_at is not None else timedelta.max
    if there and run.state is RunState.UNKNOWN and waited < IN_FLIGHT:
        return None
    if expire.settle(deps, batch, view):
        return RunResult(RunState.DONE, "its snapshots are gone, and its files are in the trash")
    return RunResult(RunState.FAILED, "no snapshot had expired")
