"""The interface of a table format. Each docstring is a promise that both formats keep; the conformance tests check it.
`AllCatalogs` lists and reads the tables of all configured catalogs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import pyarrow as pa

from lakewarden.model.actions import MergeBuckets, RewriteGroup
from lakewarden.model.files import Bucket, DeleteFile, FileSet, LivePartition, Manifest
from lakewarden.model.plan import Bounds
from lakewarden.model.table import Counters, Ref, TableRef, TableView
from lakewarden.tables.metadata_walk import WalkResult
from lakewarden.tables.reachability import ReachableFiles


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A data file that was written and closed, but is not part of a snapshot yet."""

    path: str
    bytes: int
    rows: int
    partition_id: int
    split_offsets: tuple[int, ...] = ()
    sort_order_id: int = 0
    nan_counts: Mapping[int, int] = field(default_factory=dict)  # by field id, of floats
    copied_from: tuple[str, ...] = ()  # sources whose pages were copied: their NaN counts add up
    # The source rows it holds, as ranges [from, to), if the rows kept their order.
    parts: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One atomic commit that replaces data files with others. The rows stay the same.

    `deletes` are the delete files that were applied; each is removed too if no other data file needs it. The outputs
    have the columns of schema `schema_id`.
    """

    table: TableRef
    files: FileSet
    bounds: Bounds
    removed: tuple[str, ...]
    added: tuple[OutputFile, ...]
    summary: Mapping[str, str]
    deletes: tuple[str, ...] = ()
    schema_id: int = 0


@dataclass(frozen=True, slots=True)
class ConcurrentDelete:
    """A delete file that was committed during the rewrite, and the source files it applies to."""

    file: DeleteFile
    applies_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file in one snapshot. `deletes` are indexes into `FilesWithDeletes.deletes`."""

    path: str
    format: str
    bytes: int
    records: int
    sequence_number: int
    spec_id: int
    row_groups: int
    encrypted: bool
    deletes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FilesWithDeletes:
    """Some data files of one snapshot, and all delete files that apply to them."""

    files: tuple[DataFile, ...]
    deletes: tuple[DeleteFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplacedFiles:
    """The data files that one snapshot removed (as they were in its parent) and added.

    `missing` says why the parent cannot be read; then the removed files lack their deletes. `schema_json` is the
    snapshot's schema.
    """

    schema_json: str
    removed: FilesWithDeletes
    added: FilesWithDeletes
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Adoption:
    """Files from another tool that passed the checks and can be appended. `handle` is the format's own object for them."""

    paths: tuple[str, ...]
    rows: int
    bytes: int
    partitions: tuple[str, ...]
    handle: Any = None


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """All partitions of one snapshot. `matching` are the ids that match the filter; None without a filter.

    `handle` is the format's own object for their files; dropping partitions needs it.
    """

    snapshot_id: int | None
    partitions: tuple[LivePartition, ...]
    matching: frozenset[int] | None = None
    handle: Any = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """What one snapshot removed when it dropped partitions."""

    snapshot_id: int
    files: int
    rows: int
    bytes: int


class Incorporate(Protocol):
    """Applies deletes that arrive before a rewrite commits to its outputs. `used`: the delete files of the newest attempt."""

    used: list[str]

    def positions(self, arrived: Sequence[ConcurrentDelete]) -> Mapping[str, Any]:
        """The deleted positions (sorted int64) of each affected output. Raises CommitLost if a delete cannot be carried over."""

    def place(self, output: str, format_: str) -> str:
        """The path for a delete file of this output. The name is journaled before the file is written."""


class InvalidMetadata(Exception):
    """A metadata file has impossible content. This is the cause of the error that names the file."""


class HeldByRef(Exception):
    """A ref that must stay names a snapshot of the expiry. Nothing was changed."""

    def __init__(self, held: Sequence[tuple[str, int]]) -> None:
        super().__init__(f"held by {', '.join(name for name, _ in held)}")
        self.held = tuple(held)


class TableChanged(Exception):
    """The table changed since it was planned. Nothing was changed; plan again with the table's newest state."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of one snapshot. `unfit`: why they cannot be merged; empty if they can. `hidden`: readers skip files of level 0."""

    buckets: tuple[Bucket, ...]
    hidden: bool = False
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class MergedBuckets:
    """Merged buckets that are not committed yet. `paths` are the files that the merge wrote.

    Without a handle there was nothing to merge, so there is nothing to commit.
    """

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows_before: int
    rows_after: int
    paths: tuple[str, ...]
    handle: Any = field(default=None, repr=False)

    @property
    def empty(self) -> bool:
        return self.handle is None


class BucketEngine(Protocol):
    """A format's own merging of rows by their primary keys, bucket by bucket."""

    def buckets(self, view: TableView, snapshot_id: int) -> Buckets:
        """All buckets of the snapshot. Raises instead of returning a partial result."""

    def merge(self, view: TableView, merges: Sequence[MergeBuckets], keep_runs: int) -> MergedBuckets:
        """Merges each bucket in a Spark task: a full merge to one sorted run, a minor one to at most `keep_runs`. Commits nothing."""


@dataclass(frozen=True, slots=True)
class ColdHome:
    """The cold table: its location, how its files are accessed, and the snapshots it has."""

    ref: TableRef
    location: str
    snapshots: frozenset[int]
    io: Mapping[str, str] = field(default_factory=dict, repr=False)


# Paths inside a file that its copy must change: position deletes and deletion vectors name data files; manifest lists
# and manifests name other files.
Change = Literal["none", "deletes", "manifest", "manifest-list"]


@dataclass(frozen=True, slots=True)
class Copying:
    """Files (path, kind, size) that are copied together, after the files of earlier groups.

    `sized`: the files whose size in the cold tier is in these copies. `instant`: needed to plan a query, so never archived.
    """

    files: pa.Table
    change: Change = "none"
    sized: tuple[str, ...] = ()
    instant: bool = False


class ColdTier(Protocol):
    """Snapshots that were handed off live in a cold table in another catalog. This is how a format reads it."""

    @property
    def stays_because(self) -> str:
        """Why snapshots cannot be removed from cold tables of this format; empty if they can."""

    def find(self, view: TableView, catalog: str) -> ColdHome | None:
        """The cold table; None if there is none yet. Raises Refused if something else has its name."""

    def closure(self, view: TableView, snapshot_ids: Collection[int]) -> pa.Table:
        """All files that these snapshots need (path, kind, size), without the table's own metadata. Complete, or raises."""

    def check(self, view: TableView, files: pa.Table) -> None:
        """Raises Refused if a file of this closure could not be read in the cold tier. Called when a hand-off is planned."""

    def order(self, files: pa.Table) -> Sequence[Copying]:
        """The groups in which the files of a closure are copied. A file that names others is copied after them."""

    def may_name(self, path: str) -> bool:
        """Whether this may be a delete file that names data files, judged by its name. Its copy then differs in bytes."""

    def rehome(self, view: TableView, home: ColdHome) -> Callable[[str], str]:
        """Maps the path of a live file to its path in the cold tier. Raises Refused for a file outside the table's folder."""


class CommitGuard(Protocol):
    """Decides right before each commit whether it is allowed. Every writer has a guard."""

    def check(self, table: TableRef, summary: Mapping[str, str] | None) -> None:
        """Raises CommitLost if this process no longer owns the run, CommitRefused if lineage is missing. Nothing was changed then.

        `summary` is the summary of the new snapshot; None for a change without a snapshot.
        """


class TableReader(Protocol):
    """Reads tables. No method changes a table."""

    def tables(self, catalog: str) -> list[TableRef]:
        """All tables that the catalog lists now."""

    def view(self, table: TableRef) -> TableView:
        """The table from its newest metadata. Raises NoSuchTable or Unreachable if it cannot be read."""

    def version(self, table: TableRef) -> str:
        """Equals `TableView.state_version` of the newest metadata: it changes with every commit. Usually cheaper than a view."""

    def files(
        self, table: TableRef, snapshot_id: int, where: str | None, bounds_of: Sequence[str] = ()
    ) -> FileSet:
        """All live data files of the snapshot that can match `where`. Raises instead of returning a partial result.

        `bounds_of` are the columns for a later call of `clustering`.
        """

    def counters(self, view: TableView) -> Counters:
        """All counters of the current snapshot. A view has only those that its own metadata contains."""

    def manifests(self, table: TableRef, snapshot_id: int) -> list[Manifest]:
        """All manifests of the snapshot."""

    def replaced(self, table: TableRef, snapshot_id: int) -> ReplacedFiles:
        """The data files that a snapshot removed and added; the table must still have it. Complete, or raises."""

    def additions(self, view: TableView, snapshot_id: int | None, name: str = "") -> pa.Table:
        """Which snapshot added each data file (path, snapshot_id, removed) whose path ends with `name`.

        With a snapshot id: the live files of that snapshot. With None: every addition and removal (`removed`) that is still
        in a manifest; one may occur several times. Complete, or raises. UsageError if the metadata does not record it.
        """

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        """All files that these snapshots (None: all snapshots) and the table's metadata need. Complete, or raises."""

    def unreached(
        self,
        view: TableView,
        removed: Collection[int],
        refs: Collection[str] = (),
        changelogs: Collection[int] = (),
    ) -> pa.Table:
        """Files that only these snapshots, refs and changelogs need: path, kind, size (null if unknown)."""

    def named_paths(self, view: TableView, numbers: Any) -> Iterator[pa.Array]:
        """The paths whose hashes (lakewarden/model/location.py) are in these sorted numbers, spelled as in the metadata."""

    def survey(self, view: TableView) -> WalkResult:
        """Everything all snapshots name, read from the store without a cache. Broken files are reported and skipped."""

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        """Properties to access the files without the format's library: endpoint, region, credentials."""

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        """The snapshot whose summary has all these values, from fresh metadata; None if there is none."""

    def partitions(self, view: TableView, where: str | None = None) -> PartitionSet:
        """All partitions of the current snapshot with the sums over their files. Complete, or raises."""


class RewriteSupport(Protocol):
    """Which files a rewrite may touch, and how and where it writes new ones."""

    def left_alone(self, view: TableView) -> str | None:
        """Why no engine may rewrite files of this table in groups; None if it is allowed."""

    def unfit(self, view: TableView) -> str | None:
        """Why the Arrow kernel cannot write this table, so that the format's own writer is used; None if it can."""

    def parquet_properties(self, view: TableView) -> Mapping[str, str]:
        """The table's settings for Parquet files, as Iceberg's `write.parquet.` properties."""

    def arrow_schema(self, view: TableView) -> bytes:
        """The table's schema as a serialized Arrow schema with field ids at every level."""

    def clustering(
        self, table: TableRef, files: FileSet, columns: Sequence[str]
    ) -> Mapping[int, Mapping[str, float]]:
        """For each partition and column: the share of the partition's files that a query for one value opens."""

    def clustering_of_outputs(
        self, table: TableRef, files: FileSet, paths: Sequence[str], columns: Sequence[str]
    ) -> Mapping[str, float]:
        """The same for outputs that are all new files of one partition. `prepare_rewrite` must have read them."""

    def dangling(self, table: TableRef, files: FileSet, branch: str) -> list[str]:
        """Keys of delete files at the branch's head that apply to no data file."""

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        """Free the format's own objects for all files except these."""

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        """The full path of each new data file, in order. `names`: (partition id, file name)."""

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        """Rewrites the group with the format's own engine. Commits nothing."""

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        """Read and check the outputs, so that a wrong output is found before a commit starts."""

    def bucket_engine(self) -> BucketEngine:
        """Only for tables with a primary key (`TableView.keyed`)."""


class LoadSupport(Protocol):
    """Checks for staged loads: files of another tool that are adopted into a table."""

    def check_adoption(self, table: TableRef, paths: Sequence[str]) -> Adoption:
        """Read the files' footers. Raises Refused for the first file that is missing, unreadable, unsuitable or already live."""

    def find_adoption(self, table: TableRef, load_id: str) -> int | None:
        """The snapshot that appended a staged load, by `lineage.load` in its summary, from fresh metadata."""

    def live_among(self, table: TableRef, paths: Sequence[str]) -> list[str]:
        """The given paths that are live data files of the current snapshot. Complete, or raises."""


class ColdWriter(Protocol):
    """Changes cold tables. Each method calls the guard first."""

    def make(self, view: TableView, catalog: str) -> ColdHome:
        """The cold table of this table. Creates an empty one if there is none."""

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        """Add these snapshots to the cold table. Their files must have been copied. Each snapshot is added whole or not at all.

        CommitLost: nothing changed. CommitUnknown: some of the snapshots may be registered.
        """

    def release(self, view: TableView, home: ColdHome, snapshot_ids: Collection[int]) -> None:
        """Remove these snapshots and their tags from the cold table, in one commit. No file is deleted.

        CommitLost, CommitUnknown; Refused if snapshots of this format cannot be removed.
        """


class TableWriter(Protocol):
    """Changes a table. Each method calls the guard first. After CommitLost or CommitRefused nothing has changed."""

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        """Commit the rewrite as one atomic snapshot and return its id. CommitUnknown: the caller must read the table to find out.

        None only if the rewrite just removes delete files and all of them turn out to be needed.
        """

    def commit_merge(self, view: TableView, merged: MergedBuckets, summary: Mapping[str, str]) -> int:
        """Commit merged buckets as one atomic snapshot and return its id. CommitLost, CommitUnknown as above."""

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        """Merge small position-delete files in one atomic snapshot. Returns its id, or None if nothing changed."""

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        """Merge the manifests of one partition spec in one atomic snapshot. Returns its id, or None if nothing changed."""

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        """Remove the files that `found` lists for these partitions, in one atomic snapshot. Files added since then stay.

        No file is deleted. CommitLost: a file was already removed, and nothing changed. CommitUnknown as above.
        """

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        """Remove these snapshots, refs and changelogs from the metadata. No other file changes. CommitLost, CommitUnknown.

        HeldByRef: a ref that must stay names one of the snapshots now. TableChanged: another commit came since `view` was read
        (only for formats that can detect this). After both, nothing was changed.
        """

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        """Append all files in one atomic snapshot and return its id. No file is added twice. CommitLost, CommitUnknown as above."""

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        """Create a tag that keeps the snapshot until `until` (None: forever). UsageError if the name exists or the snapshot does not."""

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        """Change when a tag expires. UsageError if there is no such tag."""

    def drop_tag(self, table: TableRef, name: str) -> None:
        """Remove a tag; its snapshot stays until it expires. UsageError if there is no such tag."""

    def cold(self) -> ColdWriter:
        """The writer of the cold tables, with the same guard."""


class TableFormat(TableReader, Protocol):
    """A table format. Reading needs nothing more; writing needs a writer, and a writer needs a guard."""

    def rewrites(self) -> RewriteSupport: ...

    def loads(self) -> LoadSupport: ...

    def cold_tier(self) -> ColdTier:
        """Raises Refused for a format without a cold tier."""

    def writer(self, guard: CommitGuard) -> TableWriter:
        """The only way to change a table."""


class AllCatalogs(Protocol):
    """Lists and reads the tables of all configured catalogs."""

    def catalogs(self) -> list[str]: ...

    def format_of(self, catalog: str) -> TableFormat: ...

    def format_for(self, table: TableRef) -> TableFormat: ...
