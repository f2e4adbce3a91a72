"""Reads and writes a detail of folded history: one month's snapshots as a Parquet file, with ranges of its content. Pure."""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import MAXYEAR, UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewarden.errors import LakewardenError
from lakewarden.model.table import Snapshot
from lakewarden.state.history import ArchivedSnapshot, Detail, Range

_MOMENT = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema(
    [
        pa.field("snapshot_id", pa.int64(), nullable=False),
        pa.field("parent_id", pa.int64()),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("committed_at", _MOMENT, nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("summary", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("archived_at", _MOMENT, nullable=False),
    ]
)
# A question about one snapshot decodes one row group.
_ROW_GROUP = 5_000


def month_of(at: datetime) -> str:
    """`2024-03`, in UTC."""
    moment = at.astimezone(UTC)
    return f"{moment.year:04}-{moment.month:02}"


def month_span(month: str) -> tuple[datetime, datetime]:
    """When the month begins, and when the next one begins; the last possible month ends with the calendar."""
    year, number = (int(part) for part in month.split("-"))
    begin = datetime(year, number, 1, tzinfo=UTC)
    if (year, number) == (MAXYEAR, 12):
        return begin, datetime.max.replace(tzinfo=UTC)
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    return begin, datetime(*following, 1, tzinfo=UTC)


def operation_of(snapshot: Snapshot) -> str:
    """The operation that the commit names, or the format's own operation."""
    return snapshot.summary.get("lineage.operation") or snapshot.operation


def rows_of(summary: Mapping[str, str]) -> int:
    """Rows that a commit added; for Paimon, by how many rows the table grew."""
    return _number(summary.get("added-records") or summary.get("delta-records"))


def bytes_of(summary: Mapping[str, str]) -> int:
    """Bytes that a commit added, if its format states them."""
    return _number(summary.get("added-files-size"))


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:  # other writers may write any text there; this is not an audit question
        return 0


def merged(old: Sequence[ArchivedSnapshot], new: Sequence[ArchivedSnapshot]) -> list[ArchivedSnapshot]:
    """Each commit once, in order. Two commits with one number stay two: a table was rolled back, or copied."""
    by_commit = {(each.snapshot.id, each.snapshot.committed_at): each for each in (*old, *new)}
    return sorted(
        by_commit.values(), key=lambda each: (each.snapshot.committed_at, each.snapshot.sequence_number)
    )


def storable(entry: ArchivedSnapshot) -> ArchivedSnapshot:
    """The entry with every character escaped that UTF-8 or a database cannot store, such as half a surrogate
    pair.

    Any writer can put one into a summary, and it must not prevent the rest of a month from being folded.
    """
    snapshot = entry.snapshot
    summary = {_storable(key): _storable(value) for key, value in snapshot.summary.items()}
    escaped = replace(snapshot, operation=_storable(snapshot.operation), summary=summary)
    return replace(entry, snapshot=escaped)


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def ranges_of(entries: Sequence[ArchivedSnapshot]) -> tuple[Range, ...]:
    """A summary of the entries, in the order of their commits, as ranges."""
    groups: dict[tuple[str, str, str], list[Snapshot]] = defaultdict(list)
    for entry in entries:
        snapshot = entry.snapshot
        writer = snapshot.summary.get("writer.id", "")
        groups[operation_of(snapshot), snapshot.operation, writer].append(snapshot)
    return tuple(_range(key, members) for key, members in groups.items())


def _range(key: tuple[str, str, str], members: Sequence[Snapshot]) -> Range:
    ids = [member.id for member in members]
    return Range(
        *key,
        entries=len(members),
        rows=sum(rows_of(member.summary) for member in members),
        bytes=sum(bytes_of(member.summary) for member in members),
        with_operator=sum(1 for member in members if member.summary.get("trigger.operator")),
        with_inputs=sum(1 for member in members if member.summary.get("input.snapshot_ids")),
        first_id=ids[0],
        last_id=ids[-1],
        min_id=min(ids),
        max_id=max(ids),
        first_at=members[0].committed_at,
        last_at=members[-1].committed_at,
    )


def write(entries: Sequence[ArchivedSnapshot]) -> bytes:
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for entry in entries:
        snapshot = entry.snapshot
        values = (
            snapshot.id,
            snapshot.parent_id,
            snapshot.sequence_number,
            snapshot.committed_at,
            snapshot.operation,
            list(snapshot.summary.items()),
            entry.table,
            entry.run_id,
            entry.archived_at,
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    out = io.BytesIO()
    table = pa.Table.from_pydict(columns, schema=_SCHEMA)
    # A detail is read whole or by a list of ids: statistics and a second copy of the schema would only make it larger.
    pq.write_table(
        table, out, compression="zstd", row_group_size=_ROW_GROUP, write_statistics=False, store_schema=False
    )
    return out.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(detail: Detail, content: bytes, ids: Collection[int] | None = None) -> list[ArchivedSnapshot]:
    """Every snapshot of the detail, or only `ids`. If the bytes are not the ones that were written, raises an error."""
    digest = sha256(content)
    if digest != detail.sha256:
        where = detail.path or "the state database"
        raise LakewardenError(
            reason=f"read the history of {detail.table} in {detail.month}: detail {detail.id} in {where} has "
            f"sha256 {digest}, written was {detail.sha256}",
            hint="restore it from a backup",
        )
    source = pq.ParquetFile(pa.BufferReader(content))
    if ids is None:
        return _archived(source.read())
    # A user may mistype an id as a larger number than any id.
    wanted_ids, entries = pa.array([each for each in ids if abs(each) < 1 << 63], pa.int64()), []
    for number in range(source.num_row_groups):
        among = pc.is_in(source.read_row_group(number, ["snapshot_id"])["snapshot_id"], wanted_ids)
        if pc.any(among).as_py():
            entries += _archived(source.read_row_group(number).filter(among))
    return entries


def _archived(table: pa.Table) -> list[ArchivedSnapshot]:
    columns = [table[name].to_pylist() for name in _SCHEMA.names]
    return [
        ArchivedSnapshot(
            Snapshot(id_, parent, sequence, at, operation, dict(summary)), name, run, archived_at
        )
        for id_, parent, sequence, at, operation, summary, name, run, archived_at in zip(
            *columns, strict=True
        )
    ]
