"""Settling a run whose process is gone: what it committed stands, what it only wrote is removed, and the journal says so.

Each journaled step leaves one question open. After WRITING: outputs may lie under the journaled prefixes, and no commit
can have happened; they are removed. After COMMITTING: the table knows, by run id and group. If it has the snapshot the
commit happened; if not, the outputs are left for the sweep, because a commit on its way to a slow catalog may still come.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakewarden import clock
from lakewarden.errors import Busy
from lakewarden.formats.seam import TableFormat
from lakewarden.jobs.context import StepName
from lakewarden.jobs.discard import discard_planned
from lakewarden.model import Owner, Run, RunState, Step, TableRef
from lakewarden.state.runs import Journal, is_gone

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Commit:
    groups: tuple[int, ...]
    summary: Mapping[str, str]


def recover(
    journal: Journal,
    format_: TableFormat,
    table: TableRef,
    job: str,
    owner: Owner,
    driven: frozenset[str] = frozenset(),
) -> Run | None:
    """The abandoned run of this table and job, settled and closed; None when there is none. Busy while one is alive.

    `driven` are the runs this process is at: one of its own that is open but not driven was left when the journal failed.
    """
    run = journal.open_run(str(table), job)
    if run is None:
        return None
    left = run.owner == owner and run.id not in driven
    gone = left or is_gone(run, clock.now())
    if not gone or not journal.take_over(run, owner, clock.now()):
        since = f"{run.started_at:%Y-%m-%d %H:%M:%S} UTC"
        raise Busy(job=run.job, table=run.table, run_id=run.id, owner=str(run.owner), since=since)
    return _settle(journal, format_, table, run, owner)


def _settle(journal: Journal, format_: TableFormat, table: TableRef, run: Run, owner: Owner) -> Run:
    steps = journal.steps(run.id)
    committed = {
        tuple(s.detail["groups"]): int(s.detail["snapshot_id"]) for s in steps if s.name == StepName.COMMITTED
    }
    missing: list[_Commit] = []
    for commit in _tried(steps):
        if commit.groups in committed:
            continue
        snapshot_id = format_.find_commit(table, commit.summary)
        if snapshot_id is None:
            missing.append(commit)
        else:
            committed[commit.groups] = snapshot_id
    removed = _remove_unwritten(format_, table, run, steps)
    reason = _reason(run, len(committed), len(missing), removed)
    journal.step(run.id, owner, StepName.RECOVERED, {"reason": reason}, clock.now())
    state = _state(steps, committed, missing)
    counters = {
        "commits": len(committed),
        "groups_done": sum(len(groups) for groups in committed),
        "recovered": True,
    }
    snapshots = tuple(dict.fromkeys(committed.values()))
    return journal.finish(run.id, state, reason, counters, snapshots, clock.now(), owner)


def _tried(steps: Sequence[Step]) -> list[_Commit]:
    return [
        _Commit(tuple(s.detail["groups"]), s.detail["summary"])
        for s in steps
        if s.name == StepName.COMMITTING
    ]


def _remove_unwritten(format_: TableFormat, table: TableRef, run: Run, steps: Sequence[Step]) -> int:
    """Outputs of groups whose commit was never tried; how many groups. Gone already is fine."""
    planned: dict[str, Any] = next((s.detail["outputs"] for s in steps if s.name == StepName.WRITING), {})
    tried = {number for commit in _tried(steps) for number in commit.groups}
    prefixes = {number: paths for number, paths in planned.items() if int(number) not in tried}
    try:
        for paths in prefixes.values():
            discard_planned(format_, table, run.id, paths, commit_tried=False, commit_lost=False)
    except OSError as error:
        log.warning("outputs of run %s are left for the sweep: %s", run.id, error)
    return len(prefixes)


def _state(
    steps: Sequence[Step], committed: Mapping[tuple[int, ...], int], missing: Sequence[_Commit]
) -> RunState:
    planned: Mapping[str, Any] = next((s.detail["outputs"] for s in steps if s.name == StepName.WRITING), {})
    done = sum(len(groups) for groups in committed)
    if not done:
        return RunState.FAILED
    return RunState.DONE if not missing and done >= len(planned) else RunState.PARTIAL


def _reason(run: Run, committed: int, missing: int, removed: int) -> str:
    parts = [f"its process ({run.owner}) stopped before the run was over"]
    if committed:
        parts.append(f"{committed} commit{'s' if committed != 1 else ''} had happened and stand")
    if missing:
        parts.append(f"{missing} had begun and did not happen; their files are left for the sweep")
    if removed:
        parts.append(f"files of {removed} uncommitted group{'s' if removed != 1 else ''} were removed")
    return "; ".join(parts)
