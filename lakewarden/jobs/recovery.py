"""Settles a run that an earlier process left open: its commits stay, its uncommitted outputs are removed, and the
journal records both.

Each journaled step leaves one question open. After WRITING: outputs may exist under the journaled prefixes. The
table is asked, because a state database from a backup may lack later steps, and outputs that it does not name are
removed. After COMMITTING: the table knows, by run id and group. If it has the snapshot, the commit happened. If
not, the outputs stay as orphans, because a commit on its way to a slow catalog may still arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lakewarden import clock
from lakewarden.errors import Busy, LakewardenError, Refused
from lakewarden.jobs.compact.cleanup import discard, names_any
from lakewarden.jobs.journaled_commit import CleanupResult
from lakewarden.jobs.run_context import StepName
from lakewarden.model.run import Owner, Run, RunState, Step
from lakewarden.model.table import TableRef
from lakewarden.state.runs import Journal, is_gone
from lakewarden.tables.interface import TableFormat

log = logging.getLogger(__name__)

# How long a catalog may take for a commit whose answer was lost. After that, a missing commit "did not happen".
IN_FLIGHT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run really ended, found out later."""

    state: RunState
    reason: str


# Finds out how a run ended; None while that is not known yet.
Settle = Callable[[Run], RunResult | None]


@dataclass(frozen=True, slots=True)
class _Commit:
    groups: tuple[int, ...]
    summary: Mapping[str, str]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Commits:
    """The outcome of every commit that a run began: the snapshot ids of those in the table, and the missing ones.

    `untold`: commits without a snapshot whose files cannot be searched for, because the table cannot be read.
    """

    made: Mapping[tuple[int, ...], int]
    missing: tuple[_Commit, ...]
    untold: tuple[_Commit, ...] = ()

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(each for each in self.made.values() if each))

    @property
    def groups(self) -> int:
        return sum(len(groups) for groups in self.made)


def recover(
    journal: Journal,
    format_: TableFormat,
    table: TableRef,
    job: str,
    owner: Owner,
    driven: Set[str] = frozenset(),
    settle: Settle | None = None,
    lease_term: int | None = None,
) -> None:
    """Settle the abandoned run of this table and job, and runs that ended unknown. Raises Busy while one is alive.

    `driven`: the runs that this process executes. Its other open runs were left open when something failed.
    `settle` is for jobs that rewrite nothing: their commits are not found by a snapshot's summary.
    """
    for undecided in journal.unknown(str(table), job):
        if settle is None:
            _settle_unknown(journal, format_, table, undecided)
        else:
            _settle_unknown_by(journal, undecided, settle)
    run = journal.open_run(str(table), job)
    if run is None:
        return
    ours = run.owner.same_process(owner)
    # If another worker has the lease now, the process of this run can do nothing more, alive or not.
    fenced = run.id not in driven and journal.outlived(run)
    gone = (ours and run.id not in driven) or fenced or is_gone(run, clock.now())
    if not gone or not journal.take_over(run, owner, clock.now(), lease_term):
        since = f"{run.started_at:%Y-%m-%d %H:%M:%S} UTC"
        raise Busy(job=run.job, table=run.table, run_id=run.id, owner=str(run.owner), since=since)
    if settle is None:
        _settle_abandoned(journal, format_, table, run, owner)
    else:
        _settle_abandoned_by(journal, run, owner, settle)


def _settle_unknown_by(journal: Journal, run: Run, settle: Settle) -> None:
    found = settle(run)
    if found is not None:
        reason = f"its outcome was unknown; found out later: {found.reason}"
        journal.settle(run.id, found.state, reason, (), clock.now())


def _settle_abandoned_by(journal: Journal, run: Run, owner: Owner, settle: Settle) -> None:
    found = settle(run) or RunResult(RunState.UNKNOWN, "its outcome is not known yet")
    reason = f"its process ({run.owner}) stopped before the run was over; {found.reason}"
    journal.step(run.id, owner, StepName.RECOVERED, {"reason": reason}, clock.now())
    journal.finish(run.id, found.state, reason, {"recovered": True}, (), clock.now(), owner)


def _settle_unknown(journal: Journal, format_: TableFormat, table: TableRef, run: Run) -> None:
    """A commit that the table shows has happened. A missing one counts as lost only after some time.

    While the table cannot be read, the run stays unknown: the next run of the job asks again.
    """
    steps = journal.steps(run.id)
    commits = _ask_table(format_, table, steps)
    if commits.untold:
        log.warning("the outcome of run %s of %s stays unknown: %s", run.id, table, _told(commits))
        return
    if commits.missing and run.ended_at is not None and clock.now() - run.ended_at < IN_FLIGHT:
        return
    reason = f"its outcome was unknown; read from the table later: {_told(commits)}"
    journal.settle(run.id, _state(run, commits), reason, commits.snapshot_ids, clock.now())


def _settle_abandoned(
    journal: Journal, format_: TableFormat, table: TableRef, run: Run, owner: Owner
) -> None:
    steps = journal.steps(run.id)
    commits = _ask_table(format_, table, steps)
    removed = _remove_uncommitted(format_, table, run, steps)
    parts = [f"its process ({run.owner}) stopped before the run was over", _told(commits)]
    if removed:
        parts.append(f"files of {removed} uncommitted group{'s' if removed != 1 else ''} were removed")
    reason = "; ".join(part for part in parts if part)
    journal.step(run.id, owner, StepName.RECOVERED, {"reason": reason}, clock.now())
    counters = {"commits": len(commits.made), "groups_done": commits.groups, "recovered": True}
    journal.finish(run.id, _state(run, commits), reason, counters, commits.snapshot_ids, clock.now(), owner)


def _ask_table(format_: TableFormat, table: TableRef, steps: Sequence[Step]) -> _Commits:
    made = {
        tuple(s.detail["groups"]): s.detail["snapshot_id"] or 0 for s in steps if s.name == StepName.COMMITTED
    }
    missing: list[_Commit] = []
    untold: list[_Commit] = []
    for commit in _tried(steps):
        if commit.groups in made:
            continue
        snapshot_id = format_.find_commit(table, commit.summary)
        if snapshot_id is not None:
            made[commit.groups] = snapshot_id
            continue
        match _has_files(format_, table, commit.outputs):
            case True:
                made[commit.groups] = 0  # its snapshot has expired, and the table has its files
            case False:
                missing.append(commit)
            case None:
                untold.append(commit)
    return _Commits(made, tuple(missing), tuple(untold))


def _has_files(format_: TableFormat, table: TableRef, outputs: Sequence[str]) -> bool | None:
    """Whether the table names files of a commit whose snapshot it does not have; None if that is not known.

    No error is raised: the next run reads the unreadable manifest too, and its error names it.
    """
    try:
        return names_any(format_, table, outputs)
    except LakewardenError as error:
        log.warning("whether %s has outputs of an earlier run cannot be told: %s", table, error)
        return None


def _tried(steps: Sequence[Step]) -> list[_Commit]:
    """Commits that were begun and are not known to be lost."""
    lost = {number for s in steps if s.name == StepName.DISCARDED for number in s.detail["groups"]}
    begun = [
        _Commit(tuple(s.detail["groups"]), s.detail["summary"], tuple(s.detail.get("outputs", ())))
        for s in steps
        if s.name == StepName.COMMITTING
    ]
    return [commit for commit in begun if not lost.intersection(commit.groups)]


def _planned(steps: Sequence[Step]) -> Mapping[str, Any]:
    """The planned places of every group's outputs. Groups that were written again have their own numbers."""
    found: dict[str, Any] = {}
    for step in steps:
        if step.name == StepName.WRITING:
            found.update(step.detail["outputs"])
    return found


def _remove_uncommitted(format_: TableFormat, table: TableRef, run: Run, steps: Sequence[Step]) -> int:
    """Remove outputs of groups whose commit was never tried, as far as the journal knows, and that the table does not
    name. Returns the number of groups. A missing file counts as removed."""
    begun = {number for s in steps if s.name == StepName.COMMITTING for number in s.detail["groups"]}
    uuid = next((str(s.detail.get("table_uuid", "")) for s in steps if s.name == StepName.WRITING), "")
    evidence = {s.detail["group"] for s in steps if s.name == StepName.EVIDENCE}
    stay = begun | evidence
    prefixes = {number: paths for number, paths in _planned(steps).items() if int(number) not in stay}
    removed = 0
    try:
        for number, paths in prefixes.items():
            fate = discard(format_, table, uuid, run.id, None, [int(number)], prefixes=paths)
            removed += fate is CleanupResult.GONE
    except (OSError, Refused) as error:
        # Keeping a file too long cannot damage the table.
        log.warning("outputs of run %s stay as orphans: %s", run.id, error)
    return removed


def _state(run: Run, commits: _Commits) -> RunState:
    if commits.untold:
        return RunState.UNKNOWN
    if not commits.made:
        return RunState.FAILED
    complete = not commits.missing and commits.groups >= len(run.plan.get("actions", ()))
    return RunState.DONE if complete else RunState.PARTIAL


def _told(commits: _Commits) -> str:
    parts = []
    if commits.made:
        parts.append(
            f"{len(commits.made)} commit{'s' if len(commits.made) != 1 else ''} had happened and stand"
        )
    if commits.missing:
        parts.append(
            f"{len(commits.missing)} had begun and the table does not have it; its files stay as orphans"
        )
    if commits.untold:
        parts.append(
            f"commits with unknown outcome: {len(commits.untold)}, because the table cannot be read; their files stay"
        )
    return "; ".join(parts)
