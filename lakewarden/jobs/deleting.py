"""Settling runs of jobs that mark and delete, when their process stopped before the run was over.

What such a run did is told by its verdict and by the table, never guessed: snapshots that are gone did expire, files that
were being erased are proven and erased again, and a verdict that never came into force is void.
"""

from __future__ import annotations

from datetime import timedelta

from lakewarden import clock
from lakewarden.formats.seam import TableFormat
from lakewarden.jobs import expiring
from lakewarden.jobs.context import DeletingStep
from lakewarden.jobs.grounds import Grounds
from lakewarden.jobs.recover import IN_FLIGHT, Settled
from lakewarden.model import Job, Run, RunState, TableRef
from lakewarden.state.doomed import DoomedFiles
from lakewarden.state.runs import Journal
from lakewarden.state.verdicts import Verdict, VerdictState

DELETING = (Job.EXPIRE, Job.REAP, Job.SWEEP)


def settle_run(grounds: Grounds, format_: TableFormat, table: TableRef, run: Run) -> Settled | None:
    """How the run really ended; None while that cannot be told yet."""
    if run.job == Job.REAP:
        return _reaped(grounds, run)
    verdict = DoomedFiles(grounds.state).verdict(run.id)
    if verdict is None or verdict.state is VerdictState.VOID:
        return Settled(RunState.FAILED, "nothing had been doomed")
    if verdict.state is VerdictState.ACTIVE:
        return Settled(RunState.DONE, "its files had been doomed")
    if run.job == Job.SWEEP:
        DoomedFiles(grounds.state).void(verdict.id)
        return Settled(RunState.FAILED, "nothing had been doomed")
    return _expired(grounds, format_, table, run, verdict)


def settle_verdicts(grounds: Grounds, format_: TableFormat, table: TableRef, journal: Journal) -> None:
    """Pending verdicts of runs that are over: what the table says counts."""
    for verdict in DoomedFiles(grounds.state).pending(str(table)):
        run = journal.get(verdict.id)
        if verdict.cause != expiring.CAUSE or run is None or run.ended_at is None:
            continue
        if run.state is not RunState.UNKNOWN or clock.now() - run.ended_at >= IN_FLIGHT:
            expiring.settle(grounds, verdict, format_.view(table))


def _reaped(grounds: Grounds, run: Run) -> Settled:
    done = sum(
        int(step.detail.get("files", 0))
        for step in Journal(grounds.state).steps(run.id)
        if step.name == DeletingStep.ERASED
    )
    if done:
        return Settled(RunState.PARTIAL, f"{done} files had been erased; the rest waits for the next run")
    return Settled(RunState.FAILED, "what it was erasing is proven and erased again by the next run")


def _expired(
    grounds: Grounds, format_: TableFormat, table: TableRef, run: Run, verdict: Verdict
) -> Settled | None:
    view = format_.view(table)
    there = {each.id for each in view.snapshots}.intersection(verdict.detail["snapshot_ids"])
    waited = clock.now() - run.ended_at if run.ended_at is not None else timedelta.max
    if there and run.state is RunState.UNKNOWN and waited < IN_FLIGHT:
        return None
    if expiring.settle(grounds, verdict, view):
        return Settled(RunState.DONE, "its commit had happened, and its files are doomed")
    return Settled(RunState.FAILED, "no snapshot had expired")
