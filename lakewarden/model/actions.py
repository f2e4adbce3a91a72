"""The actions of a plan: one class for each kind of change to a table. Frozen values; they do nothing themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lakewarden.model.files import Bucket
from lakewarden.model.plain import Plain
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
    deletes: tuple[int, ...] = ()  # indices into the file set's delete files

    @property
    def whole(self) -> bool:
        return self.from_row == 0 and self.to_row == self.records

    @property
    def rows(self) -> int:
        return self.to_row - self.from_row


@dataclass(frozen=True, slots=True)
class Bin:
    """The sources of one task, in order. `outputs`: how many files it writes; several files share one sort order."""

    sources: tuple[Source, ...]
    outputs: int = 1

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    @property
    def bytes(self) -> int:
        return sum(source.bytes * source.rows // max(source.records, 1) for source in self.sources)


@dataclass(frozen=True, slots=True)
class RewriteGroup(Plain):
    """Files of one partition that are rewritten into fewer or better sized files, in one commit."""

    number: int
    partition_id: int
    partition: str
    spec_id: int
    output_spec_id: int
    bins: tuple[Bin, ...]
    reason: str
    engine: str = "arrow"
    engine_reason: str = ""
    clustering: str = ""  # the order's short name, part of the outputs' names
    ordered: bool = False  # its rows are sorted in that order, not only packed
    row_groups: int = 0
    # The share of the group's files that a query for one value of each cluster column opens: now, and expected afterwards.
    share_before: Mapping[str, float] = field(default_factory=dict)
    share_after: Mapping[str, float] = field(default_factory=dict)

    action = "rewrite-files"
    JSON_KEYS = (
        "action group=number partition input_files=files input_bytes=bytes rows output_files=outputs "
        "delete_files=len(deletes) clustering=shares engine engine_reason reason"
    )

    def paths(self) -> tuple[str, ...]:
        """Every source file, once."""
        return tuple(dict.fromkeys(source.path for bin_ in self.bins for source in bin_.sources))

    @property
    def files(self) -> int:
        return len(self.paths())

    @property
    def outputs(self) -> int:
        return sum(bin_.outputs for bin_ in self.bins)

    @property
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

    @property
    def shares(self) -> Mapping[str, Mapping[str, float]]:
        return {
            name: {"before": round(share, 4), "expected": round(self.share_after.get(name, share), 4)}
            for name, share in self.share_before.items()
        }


@dataclass(frozen=True, slots=True)
class MergeBuckets(Plain):
    """Buckets of one partition that the format's own engine merges by primary key, in one commit."""

    number: int
    partition: str
    buckets: tuple[Bucket, ...]
    full: bool
    reason: str

    action = "merge-buckets"
    JSON_KEYS = (
        "action group=number partition buckets=len(buckets) merge sorted_runs=runs input_files=files "
        "input_bytes=bytes rows reason"
    )

    @property
    def files(self) -> int:
        return sum(each.files for each in self.buckets)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.buckets)

    @property
    def rows(self) -> int:
        """Rows of the files. A row that was written twice counts twice."""
        return sum(each.rows for each in self.buckets)

    @property
    def runs(self) -> int:
        return sum(each.runs for each in self.buckets)

    @property
    def merge(self) -> str:
        return "full" if self.full else "minor"


@dataclass(frozen=True, slots=True)
class ManifestRewrite(Plain):
    """The manifests of one partition spec, rewritten into fewer manifests that are clustered by partition."""

    spec_id: int
    manifests: int
    bytes: int
    expected: int
    reason: str

    action = "rewrite-manifests"
    JSON_KEYS = "action spec_id input_manifests=manifests input_bytes=bytes output_manifests=expected reason"


@dataclass(frozen=True, slots=True)
class DropDeletes(Plain):
    """Delete files that no longer apply to any data file. They leave the table; no row changes."""

    keys: tuple[str, ...]
    reason: str

    action = "drop-deletes"
    JSON_KEYS = "action delete_files=len(keys) reason"


@dataclass(frozen=True, slots=True)
class MergeDeletes(Plain):
    """Small position-delete files that are merged into fewer, where rewriting the data is not worth the work."""

    delete_files: int
    bytes: int
    reason: str
    where: str | None = None

    action = "merge-deletes"
    JSON_KEYS = "action delete_files input_bytes=bytes reason"


@dataclass(frozen=True, slots=True)
class ExpireSnapshots(Plain):
    """Snapshots that leave the table's metadata for one reason. Files that only they need go to the trash."""

    snapshot_ids: tuple[int, ...]
    reason: str

    action = "expire-snapshots"
    JSON_KEYS = "action snapshots=len(snapshot_ids) snapshot_ids reason"


@dataclass(frozen=True, slots=True)
class ExpireRefs(Plain):
    """Tags and branches whose own retention (max-ref-age) is over. The names leave the table's metadata."""

    names: tuple[str, ...]
    reason: str

    action = "expire-refs"
    JSON_KEYS = "action refs=names reason"


@dataclass(frozen=True, slots=True)
class ExpireChangelogs(Plain):
    """Changelogs whose snapshots have expired and whose own retention is over. Files that only they need go to the trash."""

    ids: tuple[int, ...]
    reason: str

    action = "expire-changelogs"
    JSON_KEYS = "action changelogs=len(ids) changelog_ids=ids reason"


@dataclass(frozen=True, slots=True)
class DropPartition(Plain):
    """A partition that leaves the table with all its current files. The files stay on disk while a snapshot names them."""

    partition_id: int
    spec_id: int
    partition: str
    files: int
    rows: int
    bytes: int
    at: datetime | None  # the end of the period in its name, or its last change
    reason: str

    action = "drop-partition"
    JSON_KEYS = "action partition spec_id files rows bytes at reason"


@dataclass(frozen=True, slots=True)
class HandOff(Plain):
    """Copy the files that these snapshots need to the table of the same name in another catalog.

    `present` files already have a copy.
    """

    snapshot_ids: tuple[int, ...]
    catalog: str
    files: int
    bytes: int
    present: int
    reason: str
    cost: HandOffCost | None = None

    action = "hand-off"
    JSON_KEYS = (
        "action snapshots=len(snapshot_ids) snapshot_ids catalog files bytes files_present=present cost "
        "reason"
    )


@dataclass(frozen=True, slots=True)
class AgeFiles(Plain):
    """Copies in the colder tier that the store moves to a deeper storage class. `unread_bytes` have to be read first.

    `cost` is in dollars.
    """

    files: int
    bytes: int
    storage_class: str
    unread_bytes: int
    cost: AgeCost
    reason: str

    action = "age-files"
    JSON_KEYS = "action files bytes storage_class unread_bytes cost reason"


@dataclass(frozen=True, slots=True)
class ReleaseSnapshots(Plain):
    """Snapshots that leave the cold table. Files that only they need there go to the trash.

    `fees`: dollars for deleting before the minimum storage time is over.
    """

    snapshot_ids: tuple[int, ...]
    files: int
    bytes: int
    fees: float
    reason: str

    action = "release-snapshots"
    JSON_KEYS = "action snapshots=len(snapshot_ids) snapshot_ids files bytes early_fees=fees reason"


@dataclass(frozen=True, slots=True)
class TrashFiles(Plain):
    """Files of one kind that go to the trash. Nothing is deleted."""

    kind: str
    files: int
    bytes: int
    reason: str

    action = "trash-files"
    JSON_KEYS = "action kind files bytes reason"


@dataclass(frozen=True, slots=True)
class EraseFiles(Plain):
    """Trashed files of one deletion batch whose grace period is over. They are deleted after a new proof that nothing needs them."""

    batch_id: str
    files: int
    bytes: int
    reason: str

    action = "erase-files"
    JSON_KEYS = "action batch=batch_id files bytes reason"


@dataclass(frozen=True, slots=True)
class FoldHistory(Plain):
    """Archived entries of one month that are folded into ranges with a detail.

    `folded`: how many entries the month's detail already has.
    """

    month: str
    snapshot_ids: tuple[int, ...]
    folded: int
    reason: str

    action = "fold-history"
    JSON_KEYS = "action month entries folded_before=folded reason"

    @property
    def entries(self) -> int:
        return len(self.snapshot_ids)


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
