"""What every table format offers. Small enough to hold in the head; each method says what it promises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import pyarrow as pa

from lakewarden.model.actions import MergeBuckets, RewriteGroup
from lakewarden.model.files import Bucket, DeleteFile, FileSet, LivePartition, Manifest
from lakewarden.model.plan import Bounds
from lakewarden.model.table import Counters, Ref, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.metadata_walk import Survey
from lakewarden.tables.reachability import Reached


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A data file that was written and closed, but that no snapshot names yet."""

    path: str
    bytes: int
    rows: int
    partition_id: int
    split_offsets: tuple[int, ...] = ()
    sort_order_id: int = 0
    nan_counts: Mapping[int, int] = field(default_factory=dict)  # by field id, of floats
    copied_from: tuple[str, ...] = ()  # sources whose pages were copied: their counts add up
    # Which rows of which sources it holds, [from, to), where they kept their order.
    parts: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What one atomic commit does: these files leave, these come; the rows are the same.

    `deletes` are delete files that were applied: each leaves too if no other data file needs it. The outputs have the
    columns of schema `schema_id`.
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
class Arrived:
    """A delete file that came while its data files were being rewritten, and which of those it applies to."""

    file: DeleteFile
    applies_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file as one snapshot has it. `deletes` are places in the list of delete files beside it."""

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
class Files:
    """Some data files of one snapshot, and every delete file that applies to one of them there."""

    files: tuple[DataFile, ...]
    deletes: tuple[DeleteFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Replaced:
    """What one snapshot exchanged: files it removed, as its parent had them, for files it added, as it has them itself.

    `missing` says why the first cannot be known any more; then they lack their deletes. `schema_json` is the snapshot's.
    """

    schema_json: str
    removed: Files
    added: Files
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Adoption:
    """Files of others that were looked at and may become part of the table. `handle` is the format's own view of them."""

    paths: tuple[str, ...]
    rows: int
    bytes: int
    partitions: tuple[str, ...]
    handle: Any = None


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Every partition of one snapshot. `matching` are the ids of those a filter lets through, None without a filter.

    `handle` is the format's own view of their files, which the drop needs.
    """

    snapshot_id: int | None
    partitions: tuple[LivePartition, ...]
    matching: frozenset[int] | None = None
    handle: Any = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """What really left with some partitions, in one snapshot."""

    snapshot_id: int
    files: int
    rows: int
    bytes: int


class Incorporate(Protocol):
    """How a rewrite takes in deletes that arrive before it commits. `used` are the delete files of the newest attempt."""

    used: list[str]

    def positions(self, arrived: Sequence[Arrived]) -> Mapping[str, Any]:
        """For each output they strike: positions (sorted int64). Raises CommitLost where they cannot be carried over."""

    def place(self, output: str, format_: str) -> str:
        """Where a delete file for this output goes; the name is journaled before the file exists."""


class NoSense(Exception):
    """What a file of a table's metadata holds cannot be what was written: the cause of the error that names the file."""


class HeldByRef(Exception):
    """A ref that is to stay names snapshots that were to expire: nothing was changed."""

    def __init__(self, held: Sequence[tuple[str, int]]) -> None:
        super().__init__(f"held by {', '.join(name for name, _ in held)}")
        self.held = tuple(held)


class MovedOn(Exception):
    """The table is no longer as it was judged: nothing was changed. Judge it again as it is now."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of one snapshot. `unfit` is why this table's cannot be merged; `hidden`: readers do not see fresh files."""

    buckets: tuple[Bucket, ...]
    hidden: bool = False
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class Merged:
    """Buckets that were merged and are not committed yet. `paths` are the files that were written for it.

    Without a handle there is nothing to commit: nothing was there to merge.
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
        """Every bucket of the snapshot. Complete, or raises; never partial."""

    def merge(self, view: TableView, merges: Sequence[MergeBuckets], keep_runs: int) -> Merged:
        """Each bucket in a Spark task. A full merge leaves one sorted run, a minor one at most `keep_runs`. Nothing is committed."""


@dataclass(frozen=True, slots=True)
class ColdHome:
    """The table of the colder tier: where it lies, how its files are reached, and which snapshots it has."""

    ref: TableRef
    location: str
    snapshots: frozenset[int]
    io: Mapping[str, str] = field(default_factory=dict, repr=False)


# What of a file is written anew: of position deletes and deletion vectors the paths of the data files they are about, of
# manifests and their lists those they name.
Change = Literal["none", "deletes", "manifest", "manifest-list"]


@dataclass(frozen=True, slots=True)
class Copying:
    """Files (path, kind, size) that are copied together, once those before them are there.

    `sized` are files whose size in the colder tier the copies tell. `instant`: needed to plan a query, so always at hand.
    """

    files: pa.Table
    change: Change = "none"
    sized: tuple[str, ...] = ()
    instant: bool = False


class ColdTier(Protocol):
    """How a format keeps snapshots that were handed off: in another table, of another catalog."""

    @property
    def stays_because(self) -> str:
        """Why no snapshot can leave a cold table of this format again; empty where they can."""

    def find(self, view: TableView, catalog: str) -> ColdHome | None:
        """None where there is none yet. Refused where the name is taken by something else."""

    def closure(self, view: TableView, snapshot_ids: Collection[int]) -> pa.Table:
        """Every file these snapshots need, the table's own metadata apart: path, kind, size. Complete, or raises."""

    def check(self, view: TableView, files: pa.Table) -> None:
        """Refused where one of these files of a closure could not be read there. Asked when a hand-off is planned."""

    def order(self, files: pa.Table) -> Sequence[Copying]:
        """How the files of a closure, of either table, are copied: what names others after those."""

    def may_name(self, path: str) -> bool:
        """Whether it may be a delete file that names data files, so that its copy is not the same bytes. By its name only."""

    def rehome(self, view: TableView, home: ColdHome) -> Callable[[str], str]:
        """Where a file of the table lies in the colder tier. Refused for one outside the table's folder."""


class CommitGuard(Protocol):
    """Asked right before each commit whether it may happen. A writer cannot be had without one."""

    def check(self, table: TableRef, summary: Mapping[str, str] | None) -> None:
        """CommitLost where the run is no longer ours, CommitRefused where lineage is missing: then nothing was changed.

        `summary` is what the new snapshot will say. None: the change makes no snapshot.
        """


class TableReader(Protocol):
    """How a table is read. Nothing here changes one."""

    def tables(self, catalog: str) -> list[TableRef]:
        """Every table the catalog lists now."""

    def view(self, table: TableRef) -> TableView:
        """The table from its newest metadata. NoSuchTable, or Unreachable, when it cannot be read."""

    def version(self, table: TableRef) -> str:
        """What differs whenever the table's newest metadata does, as `state_version` of its view. Cheaper than a view where that can be."""

    def files(
        self, table: TableRef, snapshot_id: int, where: str | None, bounds_of: Sequence[str] = ()
    ) -> FileSet:
        """Every live data file of the snapshot that can match `where`. Complete, or raises; never partial.

        `bounds_of` are columns whose clustering will be asked for.
        """

    def counters(self, view: TableView) -> Counters:
        """The current snapshot in numbers, all of them: a view has those only that need no more than its own metadata."""

    def manifests(self, table: TableRef, snapshot_id: int) -> list[Manifest]:
        """Every manifest of the snapshot."""

    def replaced(self, table: TableRef, snapshot_id: int) -> Replaced:
        """The data files a snapshot that the table still has removed and added. Complete, or raises; never partial."""

    def additions(self, view: TableView, snapshot_id: int | None, name: str = "") -> pa.Table:
        """Which snapshot added each data file: path, snapshot_id, removed. Of those whose path ends with `name`.

        Of one snapshot its live files; of all (None) every addition and, with `removed`, every removal that manifests still
        tell, each maybe several times. Complete, or raises; UsageError where the format's metadata does not say it.
        """

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> Reached:
        """Every file these snapshots (all, when not said) and the table itself need. Complete, or raises; never partial."""

    def unreached(
        self,
        view: TableView,
        removed: Collection[int],
        refs: Collection[str] = (),
        changelogs: Collection[int] = (),
    ) -> pa.Table:
        """Files reachable now that would not be without these snapshots, refs and changelogs: path, kind, size (null where not told)."""

    def named_paths(self, view: TableView, numbers: Any) -> Iterator[pa.Array]:
        """As the metadata spells them, the files whose path hashes (lakewarden/model/location.py) are among these sorted numbers."""

    def survey(self, view: TableView) -> Survey:
        """What all snapshots name, read from the store and not from memory. Goes on after what is broken, and says what was."""

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        """How files are reached from outside the format's library: endpoint, region, credentials."""

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        """The snapshot whose summary carries all these values, from fresh metadata."""

    def partitions(self, view: TableView, where: str | None = None) -> PartitionSet:
        """Every partition of the current snapshot, its files added up. Complete, or raises; never partial."""


class RewriteSupport(Protocol):
    """What a rewrite needs beside reading and committing: which files it may rewrite, how they are written, and where."""

    def left_alone(self, view: TableView) -> str | None:
        """Why files of this table must not be rewritten in groups at all, by whichever engine; None where they may."""

    def unfit(self, view: TableView) -> str | None:
        """Why the Arrow kernel cannot write this table, if it cannot: then the format's own writer does."""

    def parquet_properties(self, view: TableView) -> Mapping[str, str]:
        """How the table wants its Parquet files written, in the words of Iceberg's `write.parquet.` properties."""

    def arrow_schema(self, view: TableView) -> bytes:
        """The table's schema as a serialized Arrow schema with field ids at every level."""

    def clustering(
        self, table: TableRef, files: FileSet, columns: Sequence[str]
    ) -> Mapping[int, Mapping[str, float]]:
        """By partition and column: the share of the partition's files that a query for one value opens."""

    def clustering_of_outputs(
        self, table: TableRef, files: FileSet, paths: Sequence[str], columns: Sequence[str]
    ) -> Mapping[str, float]:
        """The same over outputs that were described and make up one partition's new files."""

    def dangling(self, table: TableRef, files: FileSet, branch: str) -> list[str]:
        """Keys of delete files at the branch's head that apply to no data file."""

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        """Let go of the format's own view of all files but these."""

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        """Where new data files of these partitions and names belong."""

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        """The group rewritten by the format's own engine, not committed."""

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        """Check and describe the outputs, so that what is wrong with one shows before a commit is begun."""

    def bucket_engine(self) -> BucketEngine:
        """For tables whose view says `keyed`."""


class LoadSupport(Protocol):
    """What staged loads need beside reading and committing."""

    def check_adoption(self, table: TableRef, paths: Sequence[str]) -> Adoption:
        """Read the files' footers. Refused names the first that is missing, unreadable, unfit, or live already."""

    def find_adoption(self, table: TableRef, load_id: str) -> int | None:
        """The snapshot that appended a staged load, by `lineage.load` in its summary, from fresh metadata."""

    def live_among(self, table: TableRef, paths: Sequence[str]) -> list[str]:
        """Which of the paths the current snapshot names as data files. Complete, or raises; never partial."""


class ColdWriter(Protocol):
    """Changes to cold tables. Each method asks the guard first."""

    def make(self, view: TableView, catalog: str) -> ColdHome:
        """The cold table of this table, made empty where there was none."""

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        """Afterwards the cold table has these snapshots too, each whole or not at all, their files being there.

        CommitLost: nothing changed. CommitUnknown: some of them may be there.
        """

    def release(self, view: TableView, home: ColdHome, snapshot_ids: Collection[int]) -> None:
        """One commit after which the cold table has these no longer, nor a name for them. No file is touched.

        CommitLost, CommitUnknown; Refused where the format has a reason that they stay.
        """


class TableWriter(Protocol):
    """Every change to a table. Each method asks the guard first; CommitLost and CommitRefused then mean that nothing changed."""

    def commit_rewrite(self, rewrite: Rewrite, incorporate: Incorporate | None = None) -> int | None:
        """One atomic snapshot; its id. CommitLost: nothing changed. CommitUnknown: read the table before acting.

        None only for a rewrite that just drops delete files, when all of them turn out to be needed.
        """

    def commit_merge(self, view: TableView, merged: Merged, summary: Mapping[str, str]) -> int:
        """Merged buckets in one atomic snapshot; its id. CommitLost, CommitUnknown as above."""

    def merge_deletes(
        self, table: TableRef, where: str | None, min_files: int, summary: Mapping[str, str]
    ) -> int | None:
        """Small position-delete files folded in one atomic snapshot; its id, or None where nothing changed."""

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        """Manifests of one spec folded in one atomic snapshot; its id, or None where nothing changed."""

    def drop_partitions(
        self, table: TableRef, found: PartitionSet, ids: Sequence[int], summary: Mapping[str, str]
    ) -> Dropped:
        """The files these partitions had in `found` leave, in one atomic snapshot; what came since then stays.

        No file is deleted. CommitLost: one of them had left already, and nothing changed. CommitUnknown as above.
        """

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        """These snapshots, refs and changelogs leave the metadata; no other file is touched. CommitLost, CommitUnknown.

        HeldByRef: a ref that is to stay names one of the snapshots now, and nothing was changed. MovedOn: others committed
        since `view` was read, where the format has commits that can be told apart, and nothing was changed.
        """

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        """All of them appended in one atomic snapshot; its id. No file twice. CommitLost, CommitUnknown as above."""

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        """A tag that keeps the snapshot until then, or for ever. UsageError where the name is taken or the snapshot unknown."""

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        """Move a tag's end. UsageError where there is no such tag."""

    def drop_tag(self, table: TableRef, name: str) -> None:
        """Take a tag away; its snapshot stays until it expires. UsageError where there is no such tag."""

    def cold(self) -> ColdWriter:
        """The writer of the cold tables, behind the same guard."""


class TableFormat(TableReader, Protocol):
    """A table format. It reads by itself; it writes only through a writer that has a guard."""

    def rewrites(self) -> RewriteSupport: ...

    def loads(self) -> LoadSupport: ...

    def cold_tier(self) -> ColdTier:
        """Refused for a format that has none."""

    def writer(self, guard: CommitGuard) -> TableWriter:
        """The only way to change a table."""
