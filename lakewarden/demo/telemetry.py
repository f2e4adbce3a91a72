"""The demo's table: telemetry by day, written in many small files as a badly tuned stream writes it, and a
query on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakewarden import clock

COMMITS = 4
DAYS = 6
FILES_PER_DAY = 15  # files per day and commit: one per writing task
ROWS_PER_COMMIT = 240_000
ASKED_DAYS = ("2026-03-02", "2026-03-03")

_CREATE = """
create table {table} (
    device string, metric string, at timestamp, day date, value double, quality int
) using iceberg partitioned by (day)
tblproperties ('write.distribution-mode' = 'none', 'write.spark.fanout.enabled' = 'true', 'write.object-storage.enabled' = 'false')
"""

_ROWS = """
select
    concat('device-', lpad(cast(id % 500 as string), 4, '0')) as device,
    element_at(array('temperature', 'voltage', 'pressure', 'current'), cast(id % 4 as int) + 1) as metric,
    timestampadd(SECOND, cast((id * 7919 + {commit}) % 86400 as int), cast(date_add(date'2026-03-01', cast(id % {days} as int)) as timestamp)) as at,
    date_add(date'2026-03-01', cast(id % {days} as int)) as day,
    round(20 + 5 * sin(id / 1000.0) + (xxhash64(id, {commit}) % 1000) / 500.0, 3) as value,
    cast(id % 3 as int) as quality
from range({first}, {end}, 1, {tasks})
"""

_QUESTION = "select device, avg(value), max(value) from {table} where day in ({days}) group by device"


@dataclass(frozen=True, slots=True)
class Content:
    """A checksum of a snapshot's rows in two numbers: equal rows have equal numbers."""

    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Telemetry:
    spark: Any
    table: str

    def create(self) -> None:
        self.spark.sql(f"create namespace if not exists {self.table.rsplit('.', 1)[0]}")
        self.spark.sql(_CREATE.format(table=self.table))

    def append(self, commit: int) -> None:
        """One commit of many small files: every task writes a file for every day."""
        rows = _ROWS.format(
            commit=commit,
            days=DAYS,
            first=commit * ROWS_PER_COMMIT,
            end=(commit + 1) * ROWS_PER_COMMIT,
            tasks=FILES_PER_DAY,
        )
        self.spark.sql(rows).writeTo(self.table).append()

    def content(self, snapshot_id: int | None = None) -> Content:
        at = "" if snapshot_id is None else f" version as of {snapshot_id}"
        row = self.spark.sql(
            f"select count(*), bit_xor(xxhash64(*)), sum(crc32(cast(xxhash64(*) as string))) from {self.table}{at}"
        ).first()
        return Content(int(row[0]), f"{row[1] & 0xFFFFFFFFFFFFFFFF:016x}-{row[2]:x}")

    def query_seconds(self, times: int = 3) -> float:
        """The fastest of several queries, after a first one that only warms up."""
        query = _QUESTION.format(table=self.table, days=self._asked())
        return min([self._timed(query) for _ in range(times + 1)][1:])

    def _timed(self, query: str) -> float:
        began = clock.monotonic()
        self.spark.sql(query).collect()
        return clock.monotonic() - began

    def files_opened(self) -> int:
        """How many files the query has to read."""
        row = self.spark.sql(
            f"select count(*) from {self.table}.files where partition.day in ({self._asked()})"
        ).first()
        return int(row[0])

    def _asked(self) -> str:
        return ", ".join(f"date'{day}'" for day in ASKED_DAYS)
