"""Plans: what would be done, what is skipped, and why. Frozen values.

Making a plan changes nothing. An engine may do less than the plan says, never more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, overload

from lakewarden.model.actions import Action, MergeBuckets, RewriteGroup
from lakewarden.model.plain import Plain, pick
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import TableRef

# The noun, how many, their bytes, and why. Planners collect these rows and then add up equal ones.
SkippedRow = tuple[str, int, int, Reason]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for every engine.

    Engines rewrite. None may expire, sweep or delete anything that the table names.
    """

    base_snapshot_id: int | None
    branch: str
    max_output_bytes: int
    commit_attempts: int = 16


@dataclass(frozen=True, slots=True)
class FileToTrash:
    """A file marked for deletion. It stays on disk until its grace period is over. Size -1: unknown."""

    path: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class ManyTrashed(Sequence[FileToTrash]):
    """Many files to trash for one reason. Each value is created when it is read: a table may have millions."""

    files: Any
    reason: str

    def __len__(self) -> int:
        return int(self.files.num_rows)

    @overload
    def __getitem__(self, place: int) -> FileToTrash: ...

    @overload
    def __getitem__(self, place: slice) -> list[FileToTrash]: ...

    def __getitem__(self, place: int | slice) -> FileToTrash | list[FileToTrash]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        size = self.files["size"][place].as_py()
        return FileToTrash(self.files["path"][place].as_py(), -1 if size is None else size, self.reason)

    def __iter__(self) -> Iterator[FileToTrash]:
        for batch in self.files.select(["path", "size"]).to_batches():
            for path, size in zip(batch[0].to_pylist(), batch[1].to_pylist(), strict=True):
                yield FileToTrash(path, -1 if size is None else size, self.reason)


@dataclass(frozen=True, slots=True)
class ReadCost(Plain):
    """What a full scan reads, and how many files of an average partition a query for one value opens."""

    files: int
    row_groups: int
    delete_files: int
    bytes: int
    point_files: float

    JSON_KEYS = "files row_groups delete_files bytes point_query_files=point_files:2"


@dataclass(frozen=True, slots=True)
class Plan:
    """One job on one table. Planned and skipped together are every candidate."""

    job: Job
    table: TableRef
    made_at: datetime
    bounds: Bounds
    policy_hash: str
    reason: str
    off: bool = False  # the policy switches the job off
    actions: tuple[Action, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    trash: Sequence[FileToTrash] = ()
    strategy: str = ""
    columns: tuple[str, ...] = ()
    target_bytes: int = 0
    cut_short: str = ""  # the limit that left work for the next run, if any
    cost_before: ReadCost | None = None
    cost_after: ReadCost | None = None

    @property
    def empty(self) -> bool:
        return not self.actions

    def groups(self) -> list[RewriteGroup]:
        return [action for action in self.actions if isinstance(action, RewriteGroup)]

    def merges(self) -> list[MergeBuckets]:
        return [action for action in self.actions if isinstance(action, MergeBuckets)]

    def to_dict(self, *, trash: bool = True) -> dict[str, Any]:
        """What `--json` prints. The journal omits the trashed files: it has rows for them."""
        return {
            **pick(self, "job table made_at base_snapshot_id=bounds.base_snapshot_id branch=bounds.branch"),
            **pick(self, "empty reason strategy target_bytes cut_short policy_hash"),
            "read_cost": pick(self, "before=cost_before expected=cost_after"),
            **pick(self, "actions skipped"),
            # By hand, because there may be millions of them.
            "trash": [
                {"path": each.path, "size": each.size, "reason": each.reason}
                for each in (self.trash if trash else ())
            ],
        }


def count_skipped(skipped: Sequence[SkippedRow]) -> tuple[Skipped, ...]:
    """Alike reasons added up, in the order they were first met."""
    totals: dict[tuple[str, Reason], tuple[int, int]] = {}
    for what, count, size, reason in skipped:
        had_count, had_size = totals.get((what, reason), (0, 0))
        totals[what, reason] = (had_count + count, had_size + size)
    return tuple(
        Skipped(what, count, size, reason) for (what, reason), (count, size) in totals.items() if count
    )


@dataclass(frozen=True, slots=True)
class Skipped(Plain):
    """Things that a plan looked at and leaves unchanged, and why. Equal ones are counted together."""

    what: str
    count: int
    bytes: int
    why: Reason

    JSON_KEYS = "what count bytes kind reason"

    @property
    def kind(self) -> ReasonKind:
        return self.why.kind

    @property
    def reason(self) -> str:
        """For people. Code looks at `kind`."""
        return self.why.text

    def row(self) -> SkippedRow:
        return self.what, self.count, self.bytes, self.why
