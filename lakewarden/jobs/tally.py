"""How a run of groups ended, added up from how each group ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakewarden.engine.seam import Written
from lakewarden.jobs.context import Outcome
from lakewarden.model import RunState
from lakewarden.plan import Plan, RewriteGroup


@dataclass(frozen=True, slots=True)
class Result:
    """One group's ending. Only DONE ones have a snapshot."""

    group: RewriteGroup
    state: RunState
    reason: str
    snapshot_id: int | None = None
    output_files: int = 0
    output_bytes: int = 0
    cpu_seconds: float = 0.0
    peak_rss: int = 0
    engine: str = ""

    @classmethod
    def done(cls, written: Written, snapshot_id: int) -> Result:
        return cls(
            group=written.group,
            state=RunState.DONE,
            reason=written.group.engine_reason,
            snapshot_id=snapshot_id,
            output_files=len(written.outputs),
            output_bytes=sum(file.bytes for file in written.outputs),
            cpu_seconds=written.cpu_seconds,
            peak_rss=written.peak_rss,
            engine=written.engine,
        )


def outcome(plan: Plan, results: Sequence[Result], interrupted: bool) -> Outcome:
    done = [each for each in results if each.state is RunState.DONE]
    snapshots = tuple(dict.fromkeys(each.snapshot_id for each in done if each.snapshot_id is not None))
    state = _state(plan, results, interrupted)
    return Outcome(state, _reason(plan, results, state), _counters(results), snapshots)


def _state(plan: Plan, results: Sequence[Result], interrupted: bool) -> RunState:
    states = {each.state for each in results}
    if RunState.UNKNOWN in states:
        return RunState.UNKNOWN
    if interrupted:
        return RunState.INTERRUPTED
    if states == {RunState.DONE}:
        return RunState.PARTIAL if plan.cut_short else RunState.DONE
    if len(states) == 1:
        return states.pop()
    return RunState.PARTIAL


def _reason(plan: Plan, results: Sequence[Result], state: RunState) -> str:
    """Every different reason once, with the partitions it struck; the first few by name."""
    if state is RunState.DONE:
        return _engines(results)
    struck: dict[str, list[str]] = {}
    for each in results:
        if each.state is not RunState.DONE:
            struck.setdefault(each.reason, []).append(each.group.partition or "the table")
    parts = [f"{_some(names)}: {reason}" for reason, names in struck.items()]
    if plan.cut_short:
        parts.append(plan.cut_short)
    return "; ".join(parts)


def _engines(results: Sequence[Result]) -> str:
    reasons = dict.fromkeys(each.reason for each in results if each.engine == "iceberg")
    return "; ".join(f"by Iceberg's own writer: {reason}" for reason in reasons)


def _some(names: Sequence[str], show: int = 3) -> str:
    return ", ".join(names[:show]) + (f" and {len(names) - show} more" if len(names) > show else "")


def _counters(results: Sequence[Result]) -> dict[str, Any]:
    done = [each for each in results if each.state is RunState.DONE]
    return {
        "files_compacted": sum(each.group.files for each in done),
        "files_added": sum(each.output_files for each in done),
        "bytes_before": sum(each.group.bytes for each in done),
        "bytes_after": sum(each.output_bytes for each in done),
        "rows": sum(each.group.rows for each in done),
        "groups_done": len(done),
        "groups_spared": len(results) - len(done),
        "commits": len({each.snapshot_id for each in done}),
        "task_cpu_seconds": round(sum(each.cpu_seconds for each in done), 2),
        "task_peak_rss_bytes": max((each.peak_rss for each in done), default=0),
    }
