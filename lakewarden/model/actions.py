"""What a plan can hold: a class for each kind of thing that is done to a table. Frozen values that act on nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lakewarden.model.files import Bucket
from lakewarden.model.prices import AgeCost, HandOffCost


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
    deletes: tuple[int, ...] = ()  # places in the file set's delete files

    @property
    def whole(self) -> bool:
        return self.from_row == 0 and self.to_row == self.records

    @property
    def rows(self) -> int:
        return self.to_row - self.from_row


@dataclass(frozen=True, slots=True)
class Bin:
    """The sources of one task, in order, and how many files it makes of them: one, or several of one sorted whole."""

    sources: tuple[Source, ...]
    outputs: int = 1

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
    clustering: str = ""  # the order's short name, which goes into the outputs' names
    ordered: bool = False  # its rows are put in that order, not just packed
    row_groups: int = 0
    # What a query for one value of each cluster column opens, as a share of the group's files: now, and expected after.
    share_before: Mapping[str, float] = field(default_factory=dict)
    share_after: Mapping[str, float] = field(default_factory=dict)

    def paths(self) -> tuple[str, ...]:
        """Every source file, once."""
        return tuple(dict.fromkeys(source.path for bin_ in self.bins for source in bin_.sources))

    @property
    def files(self) -> int:
        return len(self.paths())

    @property
    def outputs(self) -> int:
        return sum(bin_.outputs for bin_ in self.bins)

    def deletes(self) -> frozenset[int]:
        """Every delete file that applies to a source."""
        return frozenset(place for bin_ in self.bins for source in bin_.sources for place in source.deletes)

    @property
    def rows(self) -> int:
        """Rows of the sources, before deletes are applied."""
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
            "output_files": self.outputs,
            "delete_files": len(self.deletes()),
            "clustering": {
                name: {"before": round(share, 4), "expected": round(self.share_after.get(name, share), 4)}
                for name, share in self.share_before.items()
            },
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class MergeBuckets:
    """Buckets of one partition, merged by primary key in the format's own engine: one unit of work and of commit."""

    number: int
    partition: str
    buckets: tuple[Bucket, ...]
    full: bool
    reason: str

    @property
    def files(self) -> int:
        return sum(each.files for each in self.buckets)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.buckets)

    @property
    def rows(self) -> int:
        """Rows of the files: one that was written twice counts twice."""
        return sum(each.rows for each in self.buckets)

    @property
    def runs(self) -> int:
        return sum(each.runs for each in self.buckets)

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "merge-buckets",
            "group": self.number,
            "partition": self.partition,
            "buckets": len(self.buckets),
            "merge": "full" if self.full else "minor",
            "sorted_runs": self.runs,
            "input_files": self.files,
            "input_bytes": self.bytes,
            "rows": self.rows,
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


@dataclass(frozen=True, slots=True)
class DropDeletes:
    """Delete files that apply to no data file any more: they leave the table, no row is touched."""

    keys: tuple[str, ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"action": "drop-deletes", "delete_files": len(self.keys), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class MergeDeletes:
    """Small position-delete files folded into fewer, where rewriting the data is not worth it."""

    delete_files: int
    bytes: int
    reason: str
    where: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "merge-deletes",
            "delete_files": self.delete_files,
            "input_bytes": self.bytes,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """Snapshots that leave the table's metadata, for one reason. What only they need becomes trashed."""

    snapshot_ids: tuple[int, ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "expire-snapshots",
            "snapshots": len(self.snapshot_ids),
            "snapshot_ids": list(self.snapshot_ids),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ExpireRefs:
    """Tags and branches whose own retention (max-ref-age) is over: the names leave the table's metadata."""

    names: tuple[str, ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"action": "expire-refs", "refs": list(self.names), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class ExpireChangelogs:
    """Changelogs that outlived their snapshots, and now their own time. What only they need becomes trashed."""

    ids: tuple[int, ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "expire-changelogs",
            "changelogs": len(self.ids),
            "changelog_ids": list(self.ids),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class DropPartition:
    """A partition that leaves the table with every file it has now. The files stay on disk while a snapshot names them."""

    partition_id: int
    spec_id: int
    partition: str
    files: int
    rows: int
    bytes: int
    at: datetime | None  # the end of the period it names, or its last change
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "drop-partition",
            "partition": self.partition,
            "spec_id": self.spec_id,
            "files": self.files,
            "rows": self.rows,
            "bytes": self.bytes,
            "at": self.at.isoformat() if self.at else None,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class HandOff:
    """Copy what these snapshots need to the table of that name in another catalog. `present` files have a copy already."""

    snapshot_ids: tuple[int, ...]
    catalog: str
    files: int
    bytes: int
    present: int
    reason: str
    cost: HandOffCost | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "hand-off",
            "snapshots": len(self.snapshot_ids),
            "snapshot_ids": list(self.snapshot_ids),
            "catalog": self.catalog,
            "files": self.files,
            "bytes": self.bytes,
            "files_present": self.present,
            "cost": None if self.cost is None else self.cost.to_dict(),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class AgeFiles:
    """Copies in the colder tier that go to a deeper storage class, by the store itself. `unread_bytes` are read before.

    `cost` is in dollars.
    """

    files: int
    bytes: int
    storage_class: str
    unread_bytes: int
    cost: AgeCost
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "age-files",
            "files": self.files,
            "bytes": self.bytes,
            "storage_class": self.storage_class,
            "unread_bytes": self.unread_bytes,
            "cost": self.cost.to_dict(),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ReleaseSnapshots:
    """Snapshots that leave the cold table; what only they need there becomes trashed. `fees`: dollars for leaving early."""

    snapshot_ids: tuple[int, ...]
    files: int
    bytes: int
    fees: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "release-snapshots",
            "snapshots": len(self.snapshot_ids),
            "snapshot_ids": list(self.snapshot_ids),
            "files": self.files,
            "bytes": self.bytes,
            "early_fees": self.fees,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class TrashFiles:
    """Files of one kind that are marked; nothing is deleted by it."""

    kind: str
    files: int
    bytes: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "trash-files",
            "kind": self.kind,
            "files": self.files,
            "bytes": self.bytes,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class EraseFiles:
    """Files in the trash of one verdict whose grace is over: deleted for good, once more proven to be needed by nobody."""

    verdict_id: str
    files: int
    bytes: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "erase-files",
            "verdict": self.verdict_id,
            "files": self.files,
            "bytes": self.bytes,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class FoldHistory:
    """Archived entries of one month that become ranges with a detail. `folded` is what the month's detail has already."""

    month: str
    snapshot_ids: tuple[int, ...]
    folded: int
    reason: str

    @property
    def entries(self) -> int:
        return len(self.snapshot_ids)

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": "fold-history",
            "month": self.month,
            "entries": self.entries,
            "folded_before": self.folded,
            "reason": self.reason,
        }


Action = (
    RewriteGroup
    | MergeBuckets
    | ManifestRewrite
    | DropDeletes
    | MergeDeletes
    | ExpireSnapshots
    | ExpireRefs
    | ExpireChangelogs
    | DropPartition
    | HandOff
    | AgeFiles
    | ReleaseSnapshots
    | TrashFiles
    | EraseFiles
    | FoldHistory
)
