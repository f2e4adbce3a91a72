"""The nouns. Frozen values that every layer passes around; nothing here does I/O or asks the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lakewarden.naming import TableRef as TableRef

if TYPE_CHECKING:  # the nouns stay light to import: commands that touch no table never load Arrow
    import pyarrow as pa


class Job(StrEnum):
    """What can be done to a table; the values are the CLI's names, the order is that of a whole pass."""

    EXPIRE_PARTITIONS = "expire-partitions"  # first, so that nothing is compacted which is about to go
    COMPACT_DELETES = "compact-deletes"
    COMPACT = "compact"
    REWRITE_MANIFESTS = "rewrite-manifests"
    HANDOFF = "handoff"
    EXPIRE = "expire"
    REAP = "reap"
    SWEEP = "sweep"
    COMPACT_HISTORY = "compact-history"  # last: what expired in this pass is written down by then


class RunState(StrEnum):
    """How a run stands. `running` is the only one that is not final."""

    RUNNING = "running"
    DONE = "done"
    NOTHING_TO_DO = "nothing-to-do"
    PARTIAL = "partial"
    LOST_RACE = "lost-race"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    RunState.RUNNING: 0,
    RunState.DONE: 0,
    RunState.NOTHING_TO_DO: 0,
    RunState.FAILED: 1,
    RunState.PARTIAL: 3,
    RunState.REFUSED: 12,
    RunState.LOST_RACE: 13,
    RunState.UNKNOWN: 14,
    RunState.INTERRUPTED: 130,
}


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
    """A file (or, of a deletion vector, a part of one) that marks rows of data files as deleted. `key` names it."""

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


@dataclass(frozen=True, slots=True)
class Spared:
    """Something a plan looked at and leaves alone, and why. Alike ones are counted together."""

    what: str
    count: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Doomed:
    """A file marked for deletion: still on disk until its grace is over. A size of -1 is not known."""

    path: str
    size: int
    reason: str


class HoldKind(StrEnum):
    """Why something must stay. The first five keep snapshots, the last two keep files no snapshot names yet."""

    PIN = "pin"
    TAG = "tag"
    BRANCH = "branch"
    STREAM = "stream"
    CONSUMER = "consumer"
    WRITER = "writer"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason something must stay, and who gave it. `until` None: for ever, or until it is taken away."""

    kind: HoldKind
    name: str
    holder: str
    purpose: str = ""
    snapshot_id: int | None = None
    paths: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    chain: tuple[int, ...] = ()  # snapshots that lead from a branch's head to it
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a run happens and who asked."""

    type: str = "manual"
    operator: str | None = None
    ticket: str | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Who drives a run: the process, enough to tell whether it is still there, and a token no other driver has.

    The token is what fences: when a run is taken over, even inside one process, whoever drove it before cannot go on.
    """

    host: str
    pid: int
    started: float
    token: str = ""

    def same_process(self, other: Owner) -> bool:
        return (self.host, self.pid, self.started) == (other.host, other.pid, other.started)

    def __str__(self) -> str:
        return f"{self.host} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Step:
    """One journaled moment of a run."""

    run_id: str
    seq: int
    name: str
    at: datetime
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of one plan, as the journal tells it."""

    id: str
    table: str
    job: str
    state: RunState
    reason: str
    started_at: datetime
    ended_at: datetime | None
    owner: Owner
    trigger: Trigger
    plan: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)
    snapshot_ids: tuple[int, ...] = ()
    beat_at: datetime | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    lease_term: int | None = None  # of the worker's lease it runs under; None where somebody runs it by hand

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "table": self.table,
            "job": self.job,
            "state": str(self.state),
            "reason": self.reason,
            "started_at": self.started_at.isoformat(),
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "owner": str(self.owner),
            "trigger": {
                "type": self.trigger.type,
                "operator": self.trigger.operator,
                "ticket": self.trigger.ticket,
            },
            "counters": dict(self.counters),
            "snapshot_ids": list(self.snapshot_ids),
            "plan": dict(self.plan),
        }
