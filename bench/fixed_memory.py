"""Gigabytes of equality deletes on a table, with memory that does not grow with them.

The keys have two columns. Nearly all of them match no row; a known few do, and as many almost match: the
right number with a wrong text, or the other way round. The rows that must be left are computed, not read by
applying deletes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bench.equality import add_equality_deletes
from bench.findings import Check, Found
from bench.lab import Lab
from bench.scale import Scale
from bench.stage import on_stage, take_turns
from bench.telemetry import (
    CATALOG,
    FIRST_DAY,
    FULL,
    Prepared,
    before_deletes,
    build,
    ensure_table,
    tag,
)
from bench.tools import Goal, Ours

TASK_MEMORY_MB = 1024
# Memory of a Python worker before its task starts: Python, Arrow and the rewrite modules.
_IDLE_WORKER = 200 << 20
_KEY_FILES = 12
_OUTPUTS = 4
# A bigint and 16 letters of 64 kinds, as zstd leaves them in Parquet.
_BYTES_PER_KEY = 22.5
_EVERY = 50  # one row in this many is deleted
_LETTERS = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_", np.uint8)


def fixed_memory(lab: Lab) -> Found:
    prepared = _prepare(lab.spark, lab.scale)
    tool = Ours({"delete_compaction_min_deletes": 1}, job="compact-deletes")
    config = {"engine": {"task_memory_mb": TASK_MEMORY_MB}}
    with on_stage(lab, prepared, lambda start: Goal(start.bytes // _OUTPUTS + 1), config) as stage:
        (turn,) = take_turns([(stage, tool)], 1, lab.say)
    assert turn.told is not None  # always present for a run of Lakewarden
    most = (TASK_MEMORY_MB << 20) + _IDLE_WORKER
    counted = int(turn.told.counters["task_peak_rss_bytes"])
    checks = (
        Check("largest worker, as the system saw it", turn.cost.worker_rss / 1e6, most=most / 1e6, unit="MB"),
        Check("largest worker, as the run counted", counted / 1e6, most=most / 1e6, unit="MB"),
        Check("delete files", stage.start.deletes, least=_KEY_FILES),
        Check("rows left", prepared.rows.rows),
        Check("delete files left", turn.made.deletes, most=0),
    )
    return Found(stage.start, (turn,), checks)


def _prepare(spark: Any, scale: Scale) -> Prepared:
    """A fifth of the scale's rows in one partition, so that every delete applies to every file."""
    files = max(2 * _OUTPUTS, scale.files // 5)
    rows = files * scale.rows_per_file
    table = f"{CATALOG}.bench.memory_{rows}_{files}_{scale.delete_bytes}"

    def make() -> None:
        build(spark, table, rows, files, 1)
        tag(spark, table, FULL)
        add_equality_deletes(spark, table, _keys(spark, table, rows, scale.delete_bytes), f"day={FIRST_DAY}")

    ensure_table(spark, table, make)
    return Prepared(table, before_deletes(spark, table, f"sequence % {_EVERY} <> 0"))


def _keys(spark: Any, table: str, rows: int, delete_bytes: int) -> Iterator[pa.Table]:
    """Tables of keys, one at a time: all of them together would not fit into memory here either."""
    struck = spark.sql(
        f"SELECT sequence, session FROM {table} WHERE sequence % {_EVERY} = 0 ORDER BY sequence"
    ).toArrow()
    length = -(-struck.num_rows // _KEY_FILES)
    misses = max(1, int(delete_bytes / _KEY_FILES / _BYTES_PER_KEY))
    random = np.random.default_rng(7)
    for number in range(_KEY_FILES):
        real = struck.slice(number * length, length)
        yield _shuffled(
            pa.concat_tables([real, _near(real, rows, random), _random_keys(misses, rows, random)]), random
        )


def _near(real: pa.Table, rows: int, random: np.random.Generator) -> pa.Table:
    """A row's number with another text, and a row's text with another number: neither is the key of any row."""
    texts = pa.table({"sequence": real["sequence"], "session": _texts(real.num_rows, random)})
    numbers = pa.table(
        {"sequence": pa.array(np.arange(rows, rows + real.num_rows)), "session": real["session"]}
    )
    return pa.concat_tables([texts, numbers]).cast(real.schema)


def _random_keys(count: int, rows: int, random: np.random.Generator) -> pa.Table:
    """Numbers that rows have and numbers that they do not; no row has a text of sixteen letters."""
    numbers = random.integers(0, 1 << 62, count)
    numbers[::4] %= rows
    return pa.table({"sequence": pa.array(numbers), "session": _texts(count, random)})


def _texts(count: int, random: np.random.Generator) -> pa.Array:
    letters = _LETTERS[random.integers(0, 64, count * 16, dtype=np.uint8)]
    ends = np.arange(0, (count + 1) * 16, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(letters))


def _shuffled(keys: pa.Table, random: np.random.Generator) -> pa.Table:
    return keys.take(pa.array(random.permutation(keys.num_rows)))
