"""A table that was written to every hour: appends, deletes of every kind its version has, a compaction a day.

What each snapshot must read is told by this file's own arithmetic, apart from everyone who reads tables.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.tables.jvm import bridge
from tests.support.past import move

Row = tuple[int, str, int]
_MASK = (1 << 64) - 1
_PATH_COLUMN, _POSITION_COLUMN = 2147483546, 2147483545


def digest(rows: list[Row]) -> str:
    """As HourlyHistory.java tells it of what it reads."""
    total = sum(_term(row) for row in rows) & _MASK
    return f"{len(rows)}:{total - (1 << 64) if total >> 63 else total}"


def _term(row: Row) -> int:
    return zlib.crc32(f"{row[0]}:{row[1]}:{row[2]}".encode()) * (2654435761 * row[0] + 1)


@dataclass
class _File:
    path: str
    size: int
    rows: list[Row | None]
    touched: bool = False


@dataclass
class Hourly:
    """`told` is the digest of every snapshot, oldest first; each is an hour after the one before."""

    spark: Any
    table: str
    version: int
    rows_per_hour: int = 8
    told: dict[int, str] = field(default_factory=dict)
    _days: dict[int, list[_File]] = field(default_factory=dict)

    def create(self) -> None:
        self.spark.sql(
            f"create table {self.table} (id bigint, s string, day int) using iceberg partitioned by (day) "
            f"tblproperties ('format-version'='{self.version}')"
        )

    def write(self, hours: int, end: datetime) -> None:
        """So many commits, the last one at `end`."""
        first, java = len(self.told), self.java()
        writer = self.writer()
        writer.begin(java)
        for hour in range(first, first + hours):
            id_ = self._hour(writer, java.location(), hour)
            self.told[id_] = digest(list(self._alive()))
        writer.commit()
        java.refresh()
        newest = java.operations().current().metadataFileLocation().removeprefix("file:")
        last = len(self.told) - 1
        moments = {id_: end - timedelta(hours=last - place) for place, id_ in enumerate(self.told)}
        move(Path(newest), {id_: round(at.timestamp() * 1000) for id_, at in moments.items()})

    def java(self, table: str | None = None) -> Any:
        spark = self.spark._jvm.org.apache.iceberg.spark.Spark3Util
        return spark.loadIcebergTable(self.spark._jsparkSession, table or self.table)

    def writer(self) -> Any:
        return bridge(self.spark, Path(__file__).with_name("HourlyHistory.java"), "tests.HourlyHistory")

    def _alive(self) -> Iterator[Row]:
        return (
            row for files in self._days.values() for file in files for row in file.rows if row is not None
        )

    def _hour(self, writer: Any, location: str, hour: int) -> int:
        day, files = hour // 24, self._days.setdefault(hour // 24, [])
        folder = f"{location}/data/day={day}"
        if hour % 24 == 23:
            return self._compact(writer, folder, day, files)
        fresh = [each for each in files if not each.touched]
        if hour % 3 == 2 and fresh:
            return self._delete(writer, folder, day, fresh[-1], by_key=hour % 6 == 5)
        rows: list[Row | None] = [
            (hour * 1000 + number, f"row {number} of hour {hour}", day)
            for number in range(self.rows_per_hour)
        ]
        path, size = _written(folder, "data", _data(rows))
        files.append(_File(path, size, rows))
        return int(writer.append(path, size, f"day={day}"))

    def _delete(self, writer: Any, folder: str, day: int, file: _File, by_key: bool) -> int:
        place, file.touched = len(file.rows) // 2, True
        row, file.rows[place] = file.rows[place], None
        assert row is not None
        if by_key:
            keys = pa.table({"id": pa.array([row[0]])}, schema=pa.schema([_numbered("id", pa.int64(), 1)]))
            return int(writer.deleteKeys(*_written(folder, "keys", keys), f"day={day}", 1))
        if self.version >= 3:
            return int(writer.deleteByVector(file.path, f"day={day}", place))
        schema = pa.schema(
            [
                _numbered("file_path", pa.string(), _PATH_COLUMN),
                _numbered("pos", pa.int64(), _POSITION_COLUMN),
            ]
        )
        positions = pa.table({"file_path": [file.path], "pos": [place]}, schema=schema)
        return int(writer.deletePositions(*_written(folder, "positions", positions), f"day={day}"))

    def _compact(self, writer: Any, folder: str, day: int, files: list[_File]) -> int:
        rows: list[Row | None] = [row for file in files for row in file.rows if row is not None]
        path, size = _written(folder, "compacted", _data(rows))
        id_ = writer.compact(
            _java_list(self.spark, [each.path for each in files]),
            _java_list(self.spark, [each.size for each in files]),
            path,
            size,
            f"day={day}",
        )
        self._days[day] = [_File(path, size, rows)]
        return int(id_)


def _java_list(spark: Any, values: list[Any]) -> Any:
    found = spark._jvm.java.util.ArrayList()
    for each in values:
        found.add(each)
    return found


def _numbered(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def _data(rows: list[Row | None]) -> pa.Table:
    schema = pa.schema(
        [_numbered("id", pa.int64(), 1), _numbered("s", pa.string(), 2), _numbered("day", pa.int32(), 3)]
    )
    columns = list(zip(*(row for row in rows if row is not None), strict=True))
    return pa.Table.from_arrays(
        [pa.array(each, kind.type) for each, kind in zip(columns, schema, strict=True)], schema=schema
    )


def _written(folder: str, kind: str, table: pa.Table) -> tuple[str, int]:
    path = f"{folder}/{kind}-{uuid4()}.parquet"
    local = Path(path.removeprefix("file:"))
    local.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, local, store_schema=False)
    return path, local.stat().st_size
