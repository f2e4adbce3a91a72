"""A table as its metadata describes it: snapshots, refs, partition specs, sort orders. Its name is one text
for people and for keys of the state database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lakewarden.errors import UsageError


@dataclass(frozen=True, slots=True, order=True)
class TableRef:
    """A table by catalog, namespace and name; prints as `lake.db.events`. A table of no namespace prints as `lake.events`.

    A part that contains a dot or a back-quote is printed between back-quotes. So no two tables have the same text, which is
    the table's key in the state database.
    """

    catalog: str
    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> TableRef:
        """Any part may be between back-quotes; a back-quote inside is written twice."""
        parts = _PART.findall(text)
        if _NAME.fullmatch(text) is None or len(parts) < 2:
            raise UsageError(
                reason=f"read table name {text!r}: it needs a catalog and a name",
                hint="write it as CATALOG.NAMESPACE.TABLE, for example lake.db.events; "
                "a part that holds a dot goes between back-quotes: lake.`my.db`.events",
            )
        plain = [quoted.replace("``", "`") if quoted else bare for quoted, bare in parts]
        return cls(plain[0], tuple(plain[1:-1]), plain[-1])

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.catalog, *self.namespace, self.name)

    @property
    def short(self) -> str:
        """Without the catalog, for engines whose current catalog is set."""
        return joined(self.parts[1:])

    def __str__(self) -> str:
        return joined(self.parts)


# One part: between back-quotes, or without any back-quote and dot.
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def joined(parts: Sequence[str]) -> str:
    """The parts of a name, joined by dots. A part that is empty or contains a dot or back-quote is back-quoted."""
    return ".".join(
        "`" + part.replace("`", "``") + "`" if "." in part or "`" in part or not part else part
        for part in parts
    )


def printed(text: str) -> str:
    """A table name in its printed form; other text stays unchanged."""
    try:
        return str(TableRef.parse(text))
    except UsageError:
        return text


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int
    parent_id: int | None
    sequence_number: int
    committed_at: datetime
    operation: str
    summary: Mapping[str, str]
    manifest_list: str = ""  # empty if the metadata file itself names the manifests (format version 1)


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag: a name that keeps a snapshot. A branch also keeps its history. None: the table's rule applies.

    A consumer keeps the snapshot it reads next and all later ones. `has_copy`: the files it keeps stay even when the
    snapshot leaves the table's history.
    """

    name: str
    kind: str
    snapshot_id: int
    max_age_ms: int | None = None
    min_snapshots: int | None = None
    max_snapshot_age_ms: int | None = None
    has_copy: bool = False
    ends_at: datetime | None = None  # for formats that store the time itself instead of an age


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
    """The current snapshot in numbers, from metadata only."""

    data_files: int = 0
    delete_files: int = 0
    records: int = 0
    bytes: int = 0
    manifests: int = 0
    snapshots: int = 0


@dataclass(frozen=True, slots=True)
class Changelogs:
    """Records of what single snapshots changed. The table's options may keep them longer than the snapshots.

    `made_at`: when each was committed, by id. `decoupled`: an expired snapshot leaves a changelog. Between `at_least` and
    `at_most` ids, counted from the newest snapshot, their age decides. `at_once`: how many may expire in one run.
    """

    made_at: Mapping[int, datetime]
    decoupled: bool
    retention: timedelta
    at_least: int
    at_most: int
    at_once: int


# Properties of a cold table: the name and uuid of the table whose colder tier it is.
COLD_SOURCE = "cold-tier.source"
COLD_SOURCE_UUID = "cold-tier.source-uuid"


def cold_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: properties[name] for name in (COLD_SOURCE, COLD_SOURCE_UUID) if name in properties}


def cold_source(properties: Mapping[str, str]) -> str:
    """The table whose colder tier this is, by these properties; empty for any other table."""
    found = cold_properties(properties)
    return found.get(COLD_SOURCE) or found.get(COLD_SOURCE_UUID, "")


@dataclass(frozen=True, slots=True)
class TableView:
    """A table as its metadata describes it at one moment. Always read fresh, never cached."""

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
    # Metadata files that no manifest list names: earlier metadata files, statistics by snapshot.
    metadata_log: tuple[str, ...] = ()
    log_since_ms: int | None = (
        None  # when the oldest file of the log was written: since then every ancestor is known
    )
    # When the metadata file was written and its newest sequence number, for formats that have one.
    updated_ms: int = 0
    sequence_number: int = 0
    statistics: tuple[tuple[int, str], ...] = ()
    changelogs: Changelogs | None = None  # for formats that have them
    in_order: bool = False  # snapshots expire from the oldest on, without gaps
    keyed: bool = False  # rows have primary keys and are merged by key, in buckets
    version: str = ""  # changes with the state, for formats whose metadata is more than one file
    handle: Any = None  # the format's own view of the same metadata; no other code reads it
    # How to reach its files without the format's library. The credentials are as fresh as the view.
    io: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def state_version(self) -> str:
        """Changes whenever the table's metadata changes. It includes the uuid: in a Hadoop catalog, a table that was dropped
        and created again has the same file names."""
        return f"{self.uuid} {self.version or self.metadata_location}"

    def head(self, branch: str = "main") -> int | None:
        """The snapshot of a branch; None for an empty table or an unknown branch."""
        for ref in self.refs:
            if ref.kind == "branch" and ref.name == branch:
                return ref.snapshot_id
        return self.current_snapshot_id if branch == "main" else None

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        return next((each for each in self.snapshots if each.id == snapshot_id), None)
