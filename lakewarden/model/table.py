"""A table as its metadata shows it: snapshots, refs, partitions, schema order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakewarden.model.table_name import TableRef

if TYPE_CHECKING:  # the nouns stay light to import: commands that touch no table never load Arrow
    pass


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int
    parent_id: int | None
    sequence_number: int
    committed_at: datetime
    operation: str
    summary: Mapping[str, str]
    manifest_list: str = ""  # empty where the first format version named its manifests in the metadata itself


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag: a name that keeps a snapshot; a branch keeps the history it says as well. None: the table's rule.

    A consumer keeps the snapshot it reads next, and all after it. `has_copy`: what it keeps stays when the snapshot leaves
    the table's own history.
    """

    name: str
    kind: str
    snapshot_id: int
    max_age_ms: int | None = None
    min_snapshots: int | None = None
    max_snapshot_age_ms: int | None = None
    has_copy: bool = False
    ends_at: datetime | None = None  # where the format tells the moment itself, and not an age


@dataclass(frozen=True, slots=True)
class PartitionField:
    source_id: int
    field_id: int
    name: str
    transform: str


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    id: int
    fields: tuple[PartitionField, ...]


@dataclass(frozen=True, slots=True)
class SortField:
    source_id: int
    transform: str
    direction: str
    null_order: str


@dataclass(frozen=True, slots=True)
class SortOrder:
    id: int
    fields: tuple[SortField, ...]


@dataclass(frozen=True, slots=True)
class Counters:
    """The current snapshot in numbers, from metadata alone."""

    data_files: int = 0
    delete_files: int = 0
    records: int = 0
    bytes: int = 0
    manifests: int = 0
    snapshots: int = 0


@dataclass(frozen=True, slots=True)
class Changelogs:
    """Records of what single snapshots changed, which outlive these by the table's own options: by id, when each was committed.

    `decoupled`: a snapshot that expires leaves one. Between `at_least` and `at_most` ids, counted from the newest snapshot, it
    is their age that decides; `at_once` is how many may go in one run.
    """

    made_at: Mapping[int, datetime]
    decoupled: bool
    retention: timedelta
    at_least: int
    at_most: int
    at_once: int


# Properties of a table that is another's colder tier: which one's, by name and by uuid.
COLD_SOURCE = "cold-tier.source"
COLD_SOURCE_UUID = "cold-tier.source-uuid"


def cold_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: properties[name] for name in (COLD_SOURCE, COLD_SOURCE_UUID) if name in properties}


def cold_source(properties: Mapping[str, str]) -> str:
    """The table whose colder tier one with these properties is; empty for a table of its own."""
    found = cold_properties(properties)
    return found.get(COLD_SOURCE) or found.get(COLD_SOURCE_UUID, "")


@dataclass(frozen=True, slots=True)
class TableView:
    """A table as its metadata describes it at one moment. Always read fresh, never kept for later."""

    ref: TableRef
    format: str
    format_version: int
    uuid: str
    location: str
    metadata_location: str
    current_snapshot_id: int | None
    snapshots: tuple[Snapshot, ...]
    refs: tuple[Ref, ...]
    schema_id: int
    schema_json: str
    specs: tuple[PartitionSpec, ...]
    current_spec_id: int
    sort_orders: tuple[SortOrder, ...]
    current_sort_order_id: int
    properties: Mapping[str, str]
    counters: Counters
    # Files of metadata that no snapshot's manifest list leads to: earlier metadata files, statistics by snapshot.
    metadata_log: tuple[str, ...] = ()
    log_since_ms: int | None = (
        None  # when the oldest file of the log was written: since then every ancestor is known
    )
    # How new the metadata file is, for formats that have one: when it was written, and the newest sequence number it knows.
    updated_ms: int = 0
    sequence_number: int = 0
    statistics: tuple[tuple[int, str], ...] = ()
    changelogs: Changelogs | None = None  # for formats that have them
    in_order: bool = False  # snapshots leave from the oldest on, without gaps
    keyed: bool = False  # rows have primary keys and are merged by them, in buckets
    version: str = ""  # differs whenever the state does, for formats whose metadata is more than one file
    handle: Any = None  # the format's own view of the same metadata; nobody else looks inside
    # How its files are reached from outside the format's library, with credentials as fresh as the view.
    io: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def state_version(self) -> str:
        """What differs whenever the table's metadata does. A Hadoop catalog names the files of a table that was dropped and
        created again as before, so the uuid is part of it."""
        return f"{self.uuid} {self.version or self.metadata_location}"

    def head(self, branch: str = "main") -> int | None:
        """The snapshot a branch points at; None for an empty table or an unknown branch."""
        for ref in self.refs:
            if ref.kind == "branch" and ref.name == branch:
                return ref.snapshot_id
        return self.current_snapshot_id if branch == "main" else None

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        return next((each for each in self.snapshots if each.id == snapshot_id), None)
