"""What a planner decides: frozen values that say what would be done, what is spared, and why.

Making a plan changes nothing. An engine gets the plan with its bounds and may do less than it says, never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakewarden.model import Doomed, Job, Spared, TableRef


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an engine must stay inside, whichever engine it is.

    Engines rewrite; none may expire, sweep or delete anything the table names.
    """

    base_snapshot_id: int | None
    branch: str
    max_output_bytes: int
    commit_attempts: int = 16


@dataclass(frozen=True, slots=True)
class Source:
    """A data file, or the rows [from_row, to_row) of one."""

    path: str
    bytes: int
    records: int
    from_row: int
    to_row: int
    sequence_number: int
    first_row_id: int | None

    @property
    def whole(self) -> bool:
        return self.from_row == 0 and self.to_row == self.records

    @property
    def rows(self) -> int:
        return self.to_row - self.from_row


@dataclass(frozen=True, slots=True)
class Bin:
    """The sources of one output file, in order."""

    sources: tuple[Source, ...]

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    @property
    def bytes(self) -> int:
        return sum(source.bytes * source.rows // max(source.records, 1) for source in self.sources)


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """One unit of rewriting and of commit: files of one partition that become fewer, or better sized, files."""

    number: int
    partition_id: int
    partition: str
    spec_id: int
    output_spec_id: int
    bins: tuple[Bin, ...]
    reason: str
    engine: str = "arrow"
    engine_reason: str = ""

    def paths(self) -> tuple[str, ...]:
        """Every source file, once."""
        return tuple(dict.fromkeys(source.path for bin_ in self.bins for source in bin_.sources))

    @property
    def files(self) -> int:
        return len(self.paths())

    @property
    def rows(self) -> int:
        return sum(bin_.rows for bin_ in self.bins)

    @property
    def bytes(self) -> int:
        return sum(bin_.bytes for bin_ in self.bins)

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "rewrite-files",
            "group": self.number,
            "partition": self.partition,
            "input_files": self.files,
            "input_bytes": self.bytes,
            "rows": self.rows,
            "output_files": len(self.bins),
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ManifestRewrite:
    """The manifests of one partition spec, folded into fewer, clustered by partition."""

    spec_id: int
    manifests: int
    bytes: int
    expected: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "rewrite-manifests",
            "spec_id": self.spec_id,
            "input_manifests": self.manifests,
            "input_bytes": self.bytes,
            "output_manifests": self.expected,
            "reason": self.reason,
        }


Action = RewriteGroup | ManifestRewrite


@dataclass(frozen=True, slots=True)
class Plan:
    """One job on one table: planned and spared together are everything the planner looked at."""

    job: Job
    table: TableRef
    made_at: datetime
    bounds: Bounds
    policy_hash: str
    reason: str
    actions: tuple[Action, ...] = ()
    spared: tuple[Spared, ...] = ()
    doomed: tuple[Doomed, ...] = ()
    strategy: str = ""
    columns: tuple[str, ...] = ()
    target_bytes: int = 0
    cut_short: str = ""  # the limit that left work for the next run, if one did

    @property
    def empty(self) -> bool:
        return not self.actions

    def groups(self) -> list[RewriteGroup]:
        return [action for action in self.actions if isinstance(action, RewriteGroup)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": str(self.job),
            "table": str(self.table),
            "made_at": self.made_at.isoformat(),
            "base_snapshot_id": self.bounds.base_snapshot_id,
            "branch": self.bounds.branch,
            "empty": self.empty,
            "reason": self.reason,
            "strategy": self.strategy,
            "target_bytes": self.target_bytes,
            "cut_short": self.cut_short,
            "policy_hash": self.policy_hash,
            "actions": [action.to_dict() for action in self.actions],
            "spared": [_spared(each) for each in self.spared],
            "doomed": [{"path": d.path, "size": d.size, "reason": d.reason} for d in self.doomed],
        }


def _spared(each: Spared) -> dict[str, Any]:
    return {"what": each.what, "count": each.count, "bytes": each.bytes, "reason": each.reason}


def count_spared(spared: Sequence[tuple[str, int, int, str]]) -> tuple[Spared, ...]:
    """Alike reasons added up, in the order they were first met."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for what, count, size, reason in spared:
        had_count, had_size = totals.get((what, reason), (0, 0))
        totals[what, reason] = (had_count + count, had_size + size)
    return tuple(
        Spared(what, count, size, reason) for (what, reason), (count, size) in totals.items() if count
    )
