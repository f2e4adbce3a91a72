"""The data of a table's page, so that the page does not read the table: built when its health is collected,
stored with the numbers.

Limited in size: the newest snapshots, the first entries of every other list, and long texts cut. Omitted
entries are counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from lakewarden.model.plain import Plain

SNAPSHOTS, REFS, HOLDS, COLUMNS, PARTITIONS = 200, 100, 50, 200, 10
WORDS = 160  # of texts by others: names, purposes, comments

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
    inputs: str = ""  # the snapshots it was made from, by its summary: `input.snapshot_ids`


@dataclass(frozen=True, slots=True)
class RefLine:
    """A branch, tag or consumer, and its snapshot. `ends_at` None: forever, or until it is removed."""

    name: str
    kind: str
    snapshot_id: int
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HoldLine:
    """Something that must stay, and who requested it. `bytes` are kept only because of it; None if unknown."""

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
    """What one job would do, in a sentence. `exact`: planned from metadata; otherwise estimated from the numbers."""

    job: str
    due: bool
    reason: str
    exact: bool = False
    error: bool = False
    off: bool = False  # the policy switches the job off


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """One key's value in readable form, and the layer it came from: `default` and others."""

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
    """A partition that needs work. `path` is empty for a table without partitions."""

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
class TableDetails(Plain):
    """A table at its last look. Lists hold the first entries of their kind; `…_total` is how many exist."""

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
    partitions: tuple[PartitionLine, ...] = ()  # the greatest need first
    partitions_total: int = 0
    score_parts: tuple[PartLine, ...] = ()
    debt_reason: str = ""
    painted_at: datetime | None = None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> TableDetails | None:
        """A stored portrait, of this version or an earlier one; None if there is none yet."""
        return _read(cls, stored) if stored.get("format") else None


def short(text: str) -> str:
    """The text, cut: a text from another writer may have any length."""
    return text if len(text) <= WORDS else f"{text[: WORDS - 1]}…"


def _read(kind: type[T], stored: Mapping[str, Any]) -> T:
    """Ignore fields that another version added; missing fields get their defaults."""
    known: Any = kind
    hints = _hints(known)
    return kind(**{name: _typed(hints[name], value) for name, value in stored.items() if name in hints})


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    """Cached: one portrait has hundreds of lines, and computing the hints each time takes most of the reading."""
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
