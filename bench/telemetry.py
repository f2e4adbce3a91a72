"""The tables of the compaction benchmarks: telemetry as a stream writes it, many small files in each day's
partition.

Iceberg's own writer creates the files, so they look like real input: zstd, and dictionaries where they save
space. Every value is a hash of the row's number, so a scale always gives the same table. The tag `start`
marks the state that every turn starts from; if that state has deletes, the tag `full` marks the state before
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from bench.equality import add_equality_deletes, load
from bench.rows import Fingerprint, fingerprint
from bench.scale import DAYS, Scale

CATALOG = "bench_lake"
START, FULL = "start", "full"
FIRST_DAY = "2024-03-11"
_SMALL_FILE_ROWS = 2_000  # about 60 KB
_KEY_FILES_A_DAY = 3
_KEY_FILES = _KEY_FILES_A_DAY * DAYS
# 3 % of the rows, spread over the whole table.
_DELETED = "pmod(xxhash64(sequence, 13), 100) < 3"

_COLUMNS = """
    device_id string, day date, event_time timestamp, received_at timestamp, sequence bigint, error_code int,
    temperature double, humidity double, voltage double, status string, session string
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table at its start, and the rows that every reader must find."""

    name: str
    rows: Fingerprint


@dataclass(frozen=True, slots=True)
class Totals:
    """Data files, their bytes, and delete files of a snapshot, from metadata."""

    files: int
    bytes: int
    deletes: int


def telemetry(spark: Any, scale: Scale) -> Prepared:
    """The table of this scale, without deletes."""
    return plain(spark, f"telemetry_{scale.rows}_{scale.files}", scale.rows, scale.files, DAYS)


def small_telemetry(spark: Any, scale: Scale) -> Prepared:
    """Five files of about 60 KB in one partition."""
    return plain(spark, "telemetry_small", 5 * _SMALL_FILE_ROWS, 5, 1)


def with_position_deletes(spark: Any, scale: Scale) -> Prepared:
    """The same rows, after Spark deleted 3 % of them without rewriting a file."""

    def delete(table: str) -> None:
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
        spark.sql(f"DELETE FROM {table} WHERE {_DELETED}")

    return _with_deletes(spark, "positions", scale, delete)


def with_equality_deletes(spark: Any, scale: Scale) -> Prepared:
    """The same rows with 3 % of them deleted by key, in delete files that apply to the whole table.

    Every delete file has keys of all days, as upserts write them: no bounds tell a reader that a data file
    does not need it. They belong to the table's first spec, which has no partitions.
    """

    def delete(table: str) -> None:
        keys = spark.sql(
            f"SELECT sequence, pmod(xxhash64(sequence, 17), {_KEY_FILES}) AS file FROM {table} WHERE {_DELETED}"
        ).toArrow()
        parts = [keys.filter(pc.field("file") == number).select(["sequence"]) for number in range(_KEY_FILES)]
        add_equality_deletes(spark, table, parts, spec_id=0)

    return _with_deletes(spark, "global_keys", scale, delete, unpartitioned_first=True)


def with_daily_equality_deletes(spark: Any, scale: Scale) -> Prepared:
    """The same rows with 3 % of them deleted by key, in delete files that apply to one day each."""

    def delete(table: str) -> None:
        for (day,) in spark.sql(f"SELECT DISTINCT day FROM {table} ORDER BY day").collect():
            where = f"day = DATE '{day}' AND {_DELETED}"
            keys = spark.sql(f"SELECT sequence FROM {table} WHERE {where}").toArrow()
            length = -(-keys.num_rows // _KEY_FILES_A_DAY)
            parts = [keys.slice(number * length, length) for number in range(_KEY_FILES_A_DAY)]
            add_equality_deletes(spark, table, parts, f"day={day}")

    return _with_deletes(spark, "keys", scale, delete)


def plain(spark: Any, name: str, rows: int, files: int, days: int) -> Prepared:
    table = f"{CATALOG}.bench.{name}"
    ensure_table(spark, table, lambda: build(spark, table, rows, files, days))
    return Prepared(table, fingerprint(spark, table))


def _with_deletes(
    spark: Any,
    kind: str,
    scale: Scale,
    delete: Callable[[str], None],
    unpartitioned_first: bool = False,
) -> Prepared:
    table = f"{CATALOG}.bench.{kind}_{scale.rows}_{scale.files}"

    def make() -> None:
        build(spark, table, scale.rows, scale.files, DAYS, unpartitioned_first)
        tag(spark, table, FULL)
        delete(table)

    ensure_table(spark, table, make)
    return Prepared(table, before_deletes(spark, table, f"NOT ({_DELETED})"))


def before_deletes(spark: Any, table: str, where: str) -> Fingerprint:
    """The rows that must be left, read from the state without deletes, so that no deletes have to be applied."""
    return fingerprint(spark, f"{table}.tag_{FULL}", where)


def ensure_table(spark: Any, table: str, make: Callable[[], None]) -> None:
    """Create the table unless an earlier run finished it, and reset it to its start."""
    if not _finished(spark, table):
        spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")
        make()
        tag(spark, table, START)
    reset(spark, table)


def tag(spark: Any, table: str, name: str) -> None:
    spark.sql(f"ALTER TABLE {table} CREATE TAG {name}")


def reset(spark: Any, table: str) -> None:
    """Reset the table to its start and delete the files written since. Uses the library: the SQL procedure
    takes ten Spark jobs."""
    loaded = load(spark, table)
    refs = loaded.refs()
    loaded.manageSnapshots().setCurrentSnapshot(refs[START].snapshotId()).commit()
    kept = {ref.snapshotId() for name, ref in refs.items() if name != "main"}
    expire = loaded.expireSnapshots()
    for snapshot in loaded.snapshots():
        if snapshot.snapshotId() not in kept:
            expire = expire.expireSnapshotId(snapshot.snapshotId())
    expire.commit()


def totals(spark: Any, table: str, where: str = "true") -> Totals:
    row = spark.sql(
        "SELECT count_if(content = 0), sum(if(content = 0, file_size_in_bytes, 0)), count_if(content <> 0)"
        f" FROM {table}.files WHERE {where}"
    ).first()
    return Totals(int(row[0]), int(row[1]), int(row[2]))


def _finished(spark: Any, table: str) -> bool:
    if not spark.catalog.tableExists(table):
        return False
    return spark.sql(f"SELECT 1 FROM {table}.refs WHERE name = '{START}'").first() is not None


def build(
    spark: Any, table: str, rows: int, files: int, days: int, unpartitioned_first: bool = False
) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}")
    by_day = "" if unpartitioned_first else " PARTITIONED BY (day)"
    spark.sql(
        f"CREATE TABLE {table} ({_COLUMNS}) USING iceberg{by_day}"
        # One task writes one file of one day: no shuffle and no sort is needed for that.
        " TBLPROPERTIES ('format-version' = '2', 'write.distribution-mode' = 'none')"
    )
    if unpartitioned_first:
        spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD day")
    made = spark.range(0, rows, 1, files).selectExpr(*_expressions(rows // files, files, days))
    made.writeTo(table).option("fanout-enabled", "true").append()


def _expressions(per_file: int, files: int, days: int) -> list[str]:
    """Each file has a slice of its day's time, as streams write it. `h` is 64 random bits of the row and a
    salt."""

    def h(salt: int, of: str = "id") -> str:
        return f"xxhash64({of}, {salt})"

    def below(limit: int, salt: int, of: str = "id") -> str:
        return f"pmod({h(salt, of)}, {limit})"

    file = f"(id div {per_file})"
    slice_micros = 86_400_000_000 * days // files
    day = f"date_add(DATE '{FIRST_DAY}', CAST(pmod({file}, {days}) AS int))"
    # Evenly through the slice, with up to two seconds of network delay.
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
        # A session has about two messages, mixed with those of other sessions.
        f"lpad(lower(hex({below(1 << 48, 11, f'(id div 1000) * 500 + {below(500, 12)}')})), 12, '0') AS session",
    ]
