"""Hand-off: months of hourly commits that stay readable after the live files are deleted, and how fast files
are copied."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.findings import Check, Found, Turn
from bench.lab import Lab
from bench.meter import measure
from bench.telemetry import CATALOG, Totals
from lakewarden import Lakewarden, clock
from lakewarden.model.run import RunState
from lakewarden.rewrite.read.store import Store
from tests.support.hourly import Hourly, digest

COLD = "bench_cold"
_FILES = 4
_WITHIN = 0.10
# Memory of a Python worker before its task starts: Python, Arrow and the rewrite modules.
_IDLE_WORKER = 200 << 20
_OLD = 1_700_000_000.0  # older than every grace period


def handoff(lab: Lab) -> Found:
    """Both versions of the format, with position deletes, equality deletes and deletion vectors; the older
    half is handed off."""
    turns: list[Turn] = []
    checks: list[Check] = []
    for version in (2, 3):
        made, told = _handed_off(lab, version)
        turns += made
        checks += told
    return Found(turns[0].made, tuple(turns), tuple(checks))


def _handed_off(lab: Lab, version: int) -> tuple[list[Turn], list[Check]]:
    hours = lab.scale.commits * 36 // 25  # sixty days of hourly commits at full scale
    hourly, folder = _table(lab, version, hours)
    cold = _add_cold(lab)
    policy = {
        "snapshot_retention_hours": hours // 2,
        "snapshot_min_retained": 1,
        "delete_grace_hours": 0,
        "handoff_enabled": True,
        "handoff_catalog": COLD,
    }
    turns: list[Turn] = []
    name = f"v{version}"
    with lab.warden({}) as warden:
        first = _turn(lab, warden, hourly.table, "handoff", policy, name, turns)
        second = warden.run("handoff", hourly.table, policy)
        assert second.state is RunState.NOTHING_TO_DO, second.reason
        _turn(lab, warden, hourly.table, "expire", policy, name, turns)
        for path in folder.rglob("*"):
            os.utime(path, (_OLD, _OLD))
        purged = _turn(lab, warden, hourly.table, "purge", policy, name, turns)
    frozen = hourly.table.replace(CATALOG, COLD, 1)
    kept = {
        row.snapshot_id
        for row in lab.spark.sql(f"select snapshot_id from {hourly.table}.snapshots").collect()
    }
    handed = {
        row.snapshot_id for row in lab.spark.sql(f"select snapshot_id from {frozen}.snapshots").collect()
    }
    live_wrong = _wrong(hourly, hourly.table, kept)
    with _away(folder):
        began = time.monotonic()
        wrong = _wrong(hourly, frozen, handed)
        lab.say(
            f"{name}: {len(handed):,} snapshots of the cold table read in {time.monotonic() - began:.0f} s"
        )
        by_spark = sorted(handed)[:: max(1, len(handed) // 30)]
        spark_wrong = sum(_by_spark(lab.spark, frozen, each) != hourly.told[each] for each in by_spark)
    shutil.rmtree(cold)
    return turns, [
        Check(f"{name}: commits", len(hourly.told), least=hours),
        Check(f"{name}: snapshots handed off", len(handed), least=hours // 2 - 1),
        Check(f"{name}: snapshots in neither", len(set(hourly.told) - handed - kept), most=0),
        Check(f"{name}: handed off, read wrong without the live folder", wrong, most=0),
        Check(f"{name}: of {len(by_spark)} read by Spark, wrong", spark_wrong, most=0),
        Check(f"{name}: live snapshots, read wrong", live_wrong, most=0),
        Check(f"{name}: files copied", first["files_copied"]),
        Check(f"{name}: files copied by a second run", second.counters.get("files_copied", 0), most=0),
        Check(f"{name}: live files deleted", purged["files_erased"], least=1),
        Check(f"{name}: live files held", purged["files_held"], most=0),
    ]


def _table(lab: Lab, version: int, hours: int) -> tuple[Hourly, Path]:
    table = f"{CATALOG}.handoff.hourly_v{version}"
    lab.spark.sql(f"create namespace if not exists {CATALOG}.handoff")
    lab.spark.sql(f"drop table if exists {table}")
    hourly = Hourly(lab.spark, table, version)
    hourly.create()
    began = time.monotonic()
    hourly.write(hours, clock.now() - timedelta(minutes=10))
    lab.say(f"v{version}: {hours:,} commits made in {time.monotonic() - began:.0f} s")
    return hourly, Path(hourly.java().location().removeprefix("file:"))


def _add_cold(lab: Lab) -> Path:
    folder = lab.folder / "cold"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(folder),
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        lab.spark.conf.set(f"spark.sql.catalog.{COLD}{key}", value)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _turn(
    lab: Lab, warden: Lakewarden, table: str, job: str, policy: dict[str, Any], name: str, turns: list[Turn]
) -> dict[str, Any]:
    run, cost = measure(lab.spark, lambda: warden.run(job, table, policy), lab.scale.patience)
    assert run.state is RunState.DONE, f"{run.state}: {run.reason}"
    counters = dict(run.counters)
    done = next(each for each in ("copied", "erased", "trashed") if f"files_{each}" in counters)
    files, size = int(counters[f"files_{done}"]), int(counters[f"bytes_{done}"])
    turns.append(Turn(f"{name} {job}", 1, cost, Totals(files, size, 0)))
    lab.say(f"{name} {job}: {cost.wall:.1f} s, {counters}")
    return counters


def _wrong(hourly: Hourly, table: str, ids: set[int]) -> int:
    """Snapshots for which Iceberg's own reader returns other rows than were written, or none."""
    java, reads = hourly.java(table), hourly.writer()
    return sum(reads.digest(java, each) != hourly.told[each] for each in ids)


def _by_spark(spark: Any, table: str, snapshot: int) -> str:
    return digest(
        [
            tuple(row)
            for row in spark.sql(f"select id, s, day from {table} version as of {snapshot}").collect()
        ]
    )


@contextmanager
def _away(folder: Path) -> Iterator[None]:
    """Moves the live table's folder away for a while."""
    elsewhere = folder.with_name(f"{folder.name}-away")
    folder.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(folder)


def handoff_copy(lab: Lab) -> Found:
    """Files of a gigabyte, with and without a rate limit, compared to system tools on the same files."""
    size = lab.scale.delete_bytes // 3
    table, files = _large_files(lab, size)
    rate = lab.scale.rate_mb * 2.5
    plain = _by_tools(lab, files)
    turns: list[Turn] = []
    for name, budgets in (
        ("at once", {}),
        (f"write {rate:g} MB/s", {"write_mb_per_s": rate}),
        (f"read {2 * rate:g} MB/s", {"read_mb_per_s": 2 * rate}),
    ):
        _forget(files)
        cold = _add_cold(lab)
        policy = {
            "snapshot_retention_hours": 0,
            "snapshot_min_retained": 1,
            "handoff_enabled": True,
            "handoff_catalog": COLD,
        }
        with lab.warden({"budgets": budgets}) as warden:
            _turn(lab, warden, table, "handoff", policy, name, turns)
        shutil.rmtree(cold)
    again = _by_tools(lab, files)
    for path in files:
        path.unlink()
    rates = [turn.made.bytes / turn.cost.wall / 1e6 for turn in turns]
    tools = 2 * len(files) * size / (plain + again) / 1e6
    most = (_IDLE_WORKER + (64 << 20)) / 1e6
    return Found(
        turns[0].made,
        tuple(turns),
        (
            Check("by cat, tee, sha256sum and sync, then sha256sum of the copy", tools, unit="MB/s"),
            Check("handed off at once", rates[0], least=tools * (1 - _WITHIN), unit="MB/s"),
            Check(
                f"under a limit of {rate:g} MB/s written", rates[1], rate * (1 - _WITHIN), rate * 1.01, "MB/s"
            ),
            # Each byte is read twice: from the file, and from its copy.
            Check(
                f"under a limit of {2 * rate:g} MB/s read",
                rates[2],
                rate * (1 - _WITHIN),
                rate * 1.01,
                "MB/s",
            ),
            Check("largest worker", max(turn.cost.worker_rss for turn in turns) / 1e6, most=most, unit="MB"),
        ),
    )


def _large_files(lab: Lab, size: int) -> tuple[str, list[Path]]:
    """A table whose first snapshot has the files and whose second has none of them. Their content does not
    matter."""
    table = f"{CATALOG}.handoff.large"
    lab.spark.sql(f"create namespace if not exists {CATALOG}.handoff")
    lab.spark.sql(f"drop table if exists {table}")
    lab.spark.sql(f"create table {table} (id bigint) using iceberg")
    jvm = lab.spark._jvm
    java = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    folder = Path(java.location().removeprefix("file:")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    append, files = java.newFastAppend(), list[Path]()
    block = os.urandom(1 << 20)
    for number in range(_FILES):
        path = folder / f"{number}.parquet"
        with path.open("wb") as out:
            for start in range(0, size, len(block)):
                out.write(block[: min(len(block), size - start)])
        files.append(path)
        append.appendFile(
            jvm.org.apache.iceberg.DataFiles.builder(java.spec())
            .withPath(str(path))
            .withFileSizeInBytes(size)
            .withRecordCount(1)
            .withFormat("parquet")
            .build()
        )
    append.commit()
    # By filter: with a path, py4j calls a non-public method of the same name, which deletes the file itself.
    java.newDelete().deleteFromRowFilter(jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()).commit()
    os.sync()
    return table, files


def _by_tools(lab: Lab, files: list[Path]) -> float:
    """Seconds with as many files at a time as there are cores: each is read once, written, synced, and read
    back."""
    target = lab.folder / "by-tools"
    target.mkdir()
    _forget(files)
    script = (
        'cat "$1" | tee "$2" | sha256sum > "$2.read" && sync "$2" && '
        'dd of="$2" oflag=nocache conv=notrunc count=0 status=none && sha256sum < "$2" | cmp - "$2.read"'
    )
    began = time.monotonic()
    running: list[subprocess.Popen[bytes]] = []
    for path in files:
        if len(running) == lab.cores:
            assert running.pop(0).wait() == 0
        running.append(subprocess.Popen(["sh", "-c", script, "sh", str(path), str(target / path.name)]))
    assert all(each.wait() == 0 for each in running)
    took = time.monotonic() - began
    shutil.rmtree(target)
    lab.say(f"by tools: {took:.1f} s, {sum(each.stat().st_size for each in files) / took / 1e6:.0f} MB/s")
    return took


def _forget(files: list[Path]) -> None:
    for path in files:
        Store({}).forget(str(path))
