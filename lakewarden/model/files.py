"""Files of a table, and the partitions and buckets that they lie in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the nouns stay light to import: commands that touch no table never load Arrow
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition tuple under one spec. `path` is how people write it: `day=2024-03-11`, empty when unpartitioned."""

    id: int
    spec_id: int
    path: str
    values: tuple[Any, ...]


class KeyKind(StrEnum):
    """What the value of a partition column is. The first four are counted from 1970 on, a moment in microseconds."""

    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    MOMENT = "moment"
    NUMBER = "number"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One part of a partition: `name` as its path writes it, `column` the table's column it is made from."""

    name: str
    column: str
    kind: KeyKind
    value: int | str | None


@dataclass(frozen=True, slots=True)
class LivePartition:
    """One partition of one snapshot, its live data files added up. `rows` are those of the files, deleted ones too.

    `changed_at` is when a file of it last came, or a later moment where only that is known; None where nothing is.
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
    first_row_id, position_deletes, equality_deletes, encrypted, row_groups, sort_order_id, deletes (places in the tuple
    `deletes`). `handle` is the format's own view of the same files, which its commit needs; nobody else looks inside.
    `ordered`: rows of a partition are read in the order of its files, by sequence number, which count them without gaps.
    """

    snapshot_id: int
    partitions: tuple[Partition, ...]
    files: pa.Table
    handle: Any = None
    deletes: tuple[DeleteFile, ...] = ()
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of a partition whose rows are merged by their primary keys when they are read: the more sorted runs, the dearer.

    `key` is the format's own name of the partition. `fresh` counts the files that no merge has seen yet, `settled_bytes` what
    lies in the lowest level, where everything ends up.
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
