"""The table both tools compact: telemetry as a stream leaves it, many small files in each day's partition.

Iceberg's own writer makes the files, so they are what a compactor meets: zstd, dictionaries where they paid. Every value
follows from the row's number by a hash, so a scale always gives the same table. A tag marks the state to start from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.scale import DAYS, Scale

START = "start"
_FIRST_DAY = "2024-03-11"
_SMALL_FILE_ROWS = 2_000  # about 60 KB

_COLUMNS = """
    device_id string, day date, event_time timestamp, received_at timestamp, sequence bigint, error_code int,
    temperature double, humidity double, voltage double, status string, session string
"""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a snapshot holds, from metadata."""

    files: int
    bytes: int


def ensure_table(spark: Any, table: str, rows: int, files: int, days: int) -> None:
    """Make the table unless an earlier run finished it, and put it at its start."""
    if not _finished(spark, table):
        spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")
        _build(spark, table, rows, files, days)
    reset(spark, table)


def telemetry(spark: Any, catalog: str, scale: Scale) -> str:
    """The large table of this scale; its full name."""
    table = f"{catalog}.bench.telemetry_{scale.rows}_{scale.files}"
    ensure_table(spark, table, scale.rows, scale.files, DAYS)
    return table


def small_telemetry(spark: Any, catalog: str) -> str:
    """Five files of about 60 KB in one partition."""
    table = f"{catalog}.bench.telemetry_small"
    ensure_table(spark, table, 5 * _SMALL_FILE_ROWS, 5, 1)
    return table


def reset(spark: Any, table: str) -> None:
    """Back to the start, and the outputs of what ran since removed."""
    catalog, _, name = table.partition(".")
    spark.sql(f"CALL {catalog}.system.set_current_snapshot(table => '{name}', ref => '{START}')")
    start = _start_id(spark, table)
    later = spark.sql(f"SELECT snapshot_id FROM {table}.snapshots WHERE snapshot_id <> {start}").collect()
    if later:
        ids = ", ".join(str(row[0]) for row in later)
        spark.sql(f"CALL {catalog}.system.expire_snapshots(table => '{name}', snapshot_ids => ARRAY({ids}))")


def totals(spark: Any, table: str) -> Totals:
    row = spark.sql(f"SELECT count(*), sum(file_size_in_bytes) FROM {table}.files").first()
    return Totals(int(row[0]), int(row[1]))


def _finished(spark: Any, table: str) -> bool:
    return bool(spark.catalog.tableExists(table)) and _start_id(spark, table) is not None


def _start_id(spark: Any, table: str) -> int | None:
    row = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = '{START}'").first()
    return None if row is None else int(row[0])


def _build(spark: Any, table: str, rows: int, files: int, days: int) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}")
    spark.sql(
        f"CREATE TABLE {table} ({_COLUMNS}) USING iceberg PARTITIONED BY (day)"
        # One task writes one file of one day: no shuffle and no sort is needed for that.
        " TBLPROPERTIES ('format-version' = '2', 'write.distribution-mode' = 'none')"
    )
    made = spark.range(0, rows, 1, files).selectExpr(*_expressions(rows // files, files, days))
    made.writeTo(table).option("fanout-enabled", "true").append()
    spark.sql(f"ALTER TABLE {table} CREATE TAG {START}")


def _expressions(per_file: int, files: int, days: int) -> list[str]:
    """Each file is a slice of its day's time, as streams write them. `h` is 64 random bits of the row and a salt."""

    def h(salt: int, of: str = "id") -> str:
        return f"xxhash64({of}, {salt})"

    def below(limit: int, salt: int, of: str = "id") -> str:
        return f"pmod({h(salt, of)}, {limit})"

    file = f"(id div {per_file})"
    slice_micros = 86_400_000_000 * days // files
    day = f"date_add(DATE '{_FIRST_DAY}', CAST(pmod({file}, {days}) AS int))"
    # Evenly through the slice, give or take two seconds of network.
    since = f"({file} div {days}) * {slice_micros} + (id % {per_file}) * {slice_micros // per_file} + {below(2_000_000, 1)}"
    event = f"(unix_micros(CAST({day} AS timestamp)) + {since})"
    lag = f"(20000 + {below(400_000, 2)})"
    failing = f"{below(100, 3)} >= 96"
    noise = f"({below(1_000_000, 4)} / 1e6 - 0.5)"
    return [
        f"concat('device-', lpad(CAST({below(2_000, 5)} AS string), 6, '0')) AS device_id",
        f"{day} AS day",
        f"timestamp_micros({event}) AS event_time",
        f"timestamp_micros({event} + {lag}) AS received_at",
        "id AS sequence",
        f"CASE WHEN {failing} THEN CAST(1000 + {below(40, 6)} AS int) END AS error_code",
        f"21.5 + 6 * sin({since} / 13750987083.1) + 3 * {noise} AS temperature",
        f"CASE WHEN {below(100, 7)} > 0 THEN round(40 + {below(300, 8)} / 10, 1) END AS humidity",
        f"3.3 + 0.05 * ({below(1 << 50, 9)} / {1 << 50} - 0.5) AS voltage",
        f"CASE WHEN {failing} THEN element_at(array('warn', 'fail', 'offline'), CAST(1 + {below(3, 10)} AS int)) ELSE 'ok' END AS status",
        # A session has two messages or so, which arrive among those of others.
        f"lpad(lower(hex({below(1 << 48, 11, f'(id div 1000) * 500 + {below(500, 12)}')})), 12, '0') AS session",
    ]
