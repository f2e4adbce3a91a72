"""Files of a table, and the partitions and buckets they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands that use no table do not load Arrow
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition tuple under one spec. `path` is its readable form: `day=2024-03-11`, empty for an unpartitioned table."""

    id: int
    spec_id: int
    path: str
    values: tuple[Any, ...]


class KeyKind(StrEnum):
    """The kind of a partition column's value. YEAR to HOUR: how many since 1970. MOMENT: microseconds since 1970."""

    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    MOMENT = "moment"
    NUMBER = "number"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One part of a partition. `name` is as in its path, `column` is the column of the table that it is derived from."""

    name: str
    column: str
    kind: KeyKind
    value: int | str | None


@dataclass(frozen=True, slots=True)
class LivePartition:
    """The live data files of one partition of one snapshot, added up. `rows` includes deleted rows of these files.

    `changed_at`: when its newest file was added, or a later time if only that is known; None if unknown.
    """

    id: int
    spec_id: int
    path: str
    keys: tuple[PartitionKey, ...]
    files: int
    rows: int
    bytes: int
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file, or one deletion vector inside a Puffin file, that marks rows of data files as deleted. `key` names it.

    Sent to tasks by pickle.
    """

    key: str
    kind: str
    path: str
    format: str
    bytes: int
    records: int
    sequence_number: int
    equality_ids: tuple[int, ...] = ()
    content_offset: int = 0
    content_size: int = 0
    referenced: str = ""
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class FileSet:
    """The live data files of one snapshot, in bulk.

    `files` has a row per file: partition (an id into `partitions`), path, format, bytes, records, sequence_number,
    first_row_id, position_deletes, equality_deletes, encrypted, row_groups, sort_order_id, deletes (indices into
    `deletes`). `handle` is the format's own view of the same files, for its commit; no other code reads it.
    `ordered`: rows of a partition are read in the order of the sequence numbers, which have no gaps.
    """

    snapshot_id: int
    partitions: tuple[Partition, ...]
    files: pa.Table
    handle: Any = None
    deletes: tuple[DeleteFile, ...] = ()
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of a partition whose rows are merged by primary key when they are read. More sorted runs cost more.

    `key` is the format's own name of the partition. `fresh`: files that were never merged. `settled_bytes`: the size of
    the lowest level.
    """

    key: str
    partition: str
    number: int
    files: int
    bytes: int
    rows: int
    runs: int
    fresh: int
    settled_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    path: str
    bytes: int
    spec_id: int
    content: str
