"""What a table's page shows without touching the table: painted when its health is looked at, kept beside the numbers.

Bounded: the newest snapshots, the first of everything else, and long words cut. What was left out is counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

SNAPSHOTS, REFS, HOLDS, COLUMNS, PARTITIONS = 200, 100, 50, 200, 10
WORDS = 160  # of what others wrote: names, purposes, comments

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SnapshotLine:
    """One commit. `kept` is why it stays, empty where the next expire run drops it, and `kept_kind` the kind of that reason,
    a `ReasonKind`, by which code decides. `expires_at` is when its window ends,
    None where only an event frees it (a tag that goes, a commit after it) or nothing keeps it any more."""

    id: int
    at: datetime
    operation: str
    origin: str  # who made it and why, a sentence
    run_id: str = ""  # of Lakewarden's own commits
    added_files: int = 0
    removed_files: int = 0
    added_rows: int = 0
    removed_rows: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0
    current: bool = False
    kept: str = ""
    kept_kind: str = ""
    expires_at: datetime | None = None
    inputs: str = ""  # what it was made from, as its summary says: `input.snapshot_ids`


@dataclass(frozen=True, slots=True)
class RefLine:
    """A branch, tag or consumer, and what it points at. `ends_at` None: for ever, or until it is taken away."""

    name: str
    kind: str
    snapshot_id: int
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HoldLine:
    """Something that must stay, and who asked for it. `bytes` stay only because of it; None where that is not known."""

    kind: str
    name: str
    holder: str
    purpose: str = ""
    snapshot_id: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    bytes: int | None = None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> HoldLine:
        return _read(cls, stored)


@dataclass(frozen=True, slots=True)
class DueLine:
    """What one job would do, in a sentence. `exact`: planned from metadata; else told from the numbers alone."""

    job: str
    due: bool
    reason: str
    exact: bool = False
    error: bool = False
    off: bool = False  # the policy switches the job off


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """One key's value as people write it, and the layer it came from: `default` and others."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class ColumnLine:
    name: str
    type: str
    required: bool = False
    doc: str = ""
    key: bool = False  # part of the primary key


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """A partition in need. `path` is empty for a table without partitions."""

    path: str
    files: int
    small_files: int
    delete_files: int
    bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class PartLine:
    """One part of the score: `cost` of at most `weight` points, and the sentence that says why."""

    name: str
    weight: int
    cost: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Portrait:
    """A table as it was last looked at. Lists hold the first of their kind; `…_total` say how many there are."""

    format: str
    format_version: int
    location: str
    metadata_location: str
    current_snapshot_id: int | None
    schema_id: int
    partition_by: tuple[str, ...] = ()  # `day(ts)`
    sort_by: tuple[str, ...] = ()  # `ts desc nulls last`
    primary_keys: tuple[str, ...] = ()
    columns: tuple[ColumnLine, ...] = ()
    columns_total: int = 0
    snapshots: tuple[SnapshotLine, ...] = ()  # the newest first
    snapshots_total: int = 0
    refs: tuple[RefLine, ...] = ()
    refs_total: int = 0
    holds: tuple[HoldLine, ...] = ()
    holds_total: int = 0
    due: tuple[DueLine, ...] = ()
    policy: tuple[PolicyLine, ...] = ()
    partitions: tuple[PartitionLine, ...] = ()  # most in need first
    partitions_total: int = 0
    score_parts: tuple[PartLine, ...] = ()
    debt_reason: str = ""
    painted_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; moments as ISO text."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Portrait | None:
        """As it was stored, by this version or an earlier one; None where there is none yet."""
        return _read(cls, stored) if stored.get("format") else None


def short(text: str) -> str:
    """What somebody else wrote may be of any length; a page is not."""
    return text if len(text) <= WORDS else f"{text[: WORDS - 1]}…"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _read(kind: type[T], stored: Mapping[str, Any]) -> T:
    """What another version added is passed over, what it lacked is as if it were not there."""
    known: Any = kind
    hints = _hints(known)
    return kind(**{name: _typed(hints[name], value) for name, value in stored.items() if name in hints})


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    """Kept: one portrait has hundreds of lines, and working them out each time takes most of the reading."""
    return get_type_hints(kind)


def _typed(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    kinds = get_args(hint)
    if get_origin(hint) is tuple:
        return tuple(_typed(kinds[0], each) for each in value)
    if hint is datetime or datetime in kinds:
        return datetime.fromisoformat(value)
    return _read(hint, value) if is_dataclass(hint) and isinstance(hint, type) else value
