"""`python -m bench.soak`: a writer that never stops and fifty queries a minute, with and without the worker
beside them.

Each turn has its own table that starts with the same small files. Turns with and without the worker
alternate. The worker is a separate process, as an operator would run it beside other work: with low priority
and one task at a time. The benchmark compares how long queries take, and checks that the number of small
files stays bounded and that the worker's memory does not grow.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.findings import Check
from bench.workers import Worker, lake_folder, leading, settings, tell
from lakewarden import Lakewarden, clock
from lakewarden.spark.jars import ensure_jars
from lakewarden.spark.session import close_session, open_session
from tests.support.spark import add_catalog

_CATALOG = "lake"
_MESS = 60  # commits a table begins with
_FILES, _ROWS = 4, 4_000  # files of a commit, and rows
_QUERIES_PER_MINUTE = 50
# A worker loads the code of a job on its first run, so its memory grows until every job ran once. Measured: 145 MB
# when it starts to lead, 240 MB after the first expiry, and constant from then on.
_WARM = {"compact", "expire"}


@dataclass
class Turn:
    """What was measured during the turn."""

    worker: bool
    seconds: list[float] = field(default_factory=list)
    small_files: list[int] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    python_rss: list[int] = field(default_factory=list)
    live_heap: list[int] = field(default_factory=list)  # once warm, then at the end
    commits: int = 0
    passes: int = 0
    troubles: list[str] = field(default_factory=list)


def soak(minutes: float, pairs: int, every: float, folder: Path) -> list[Turn]:
    config = folder / "lakewarden.toml"
    config.write_text(settings(_settings(folder)), encoding="utf-8")
    spark = open_session("local[2]", {"spark.sql.shuffle.partitions": "2"}, ensure_jars(["base", "jdbc"]))
    turns = []
    try:
        add_catalog(spark, {"type": "hadoop", "warehouse": str(folder / "warehouse")}, _CATALOG)
        spark.sql(f"create namespace if not exists {_CATALOG}.db")
        _turn(spark, config, "warmup", False, 0.3, every)  # not counted: the JVM compiles the code of queries
        for number in range(2 * pairs):
            beside = number % 2 == 1
            seconds = 60 * minutes / (2 * pairs)
            turns.append(_turn(spark, config, f"t{number}", beside, seconds / 60, every))
            print(_line(turns[-1]), flush=True)
    finally:
        close_session(spark)
    return turns


def _settings(folder: Path) -> dict[str, Any]:
    policy = {
        "rewrite_min_input_files": 16,
        "snapshot_retention_hours": "1m",
        "snapshot_min_retained": 3,
        "delete_grace_hours": 1,
    }
    return {
        "state": {"url": f"sqlite:///{folder}/state.db"},
        "spark": {"master": "local[1]", "conf": {"spark.driver.memory": "1g"}},
        "budgets": {"max_tasks": 1},
        "schedule": {"interval_seconds": 20},
        "worker": {"parallel_tables": 1, "discover_seconds": 5, "console": False},
        "health": {"stats_interval_seconds": 20},
        "catalogs": {_CATALOG: {"type": "hadoop", "warehouse": str(folder / "warehouse")}},
        "policy": policy,
    }


def _turn(spark: Any, config: Path, name: str, beside: bool, minutes: float, every: float) -> Turn:
    table = f"{_CATALOG}.db.{name}"
    _make(spark, table)
    turn, over = Turn(beside), threading.Event()
    with ExitStack() as ending:
        worker = ending.enter_context(leading(config, name, nice=10)) if beside else None
        threads = [
            threading.Thread(target=_guarded, args=(turn, over, work))
            for work in (
                lambda: _write(spark, table, turn, over, every),
                lambda: _ask(spark, table, turn, over),
                lambda: _watch(spark, table, turn, over, worker, config),
            )
        ]
        for thread in threads:
            thread.start()
        over.wait(60 * minutes)
        over.set()
        for thread in threads:
            thread.join()
    with Lakewarden.open(config) as warden:
        turn.passes = len([each for each in warden.runs(table, 1000) if each.state == "done"])
    spark.sql(f"drop table {table}")
    return turn


def _guarded(turn: Turn, over: threading.Event, work: Any) -> None:
    """An exception on a thread ends the turn and is reported."""
    try:
        work()
    except Exception as error:
        turn.troubles.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        over.set()


def _make(spark: Any, table: str) -> None:
    spark.sql(
        f"create table {table} (id bigint, device int, temperature double, day int) using iceberg partitioned by (day)"
    )
    for number in range(_MESS):
        _append(spark, table, number)


def _append(spark: Any, table: str, number: int) -> None:
    rows = spark.range(number * _ROWS, (number + 1) * _ROWS, 1, _FILES).selectExpr(
        "id", "cast(id % 97 as int) device", "rand(7) temperature", f"{number % 3} day"
    )
    rows.writeTo(table).option("distribution-mode", "none").option("fanout-enabled", "true").append()


def _write(spark: Any, table: str, turn: Turn, over: threading.Event, every: float) -> None:
    while not over.wait(every):
        _append(spark, table, _MESS + turn.commits)
        turn.commits += 1


def _ask(spark: Any, table: str, turn: Turn, over: threading.Event) -> None:
    period, number = 60 / _QUERIES_PER_MINUTE, 0
    due = clock.monotonic()
    while not over.is_set():
        began = clock.monotonic()
        where = f"day = {number % 3} and device = {number % 97}"
        spark.sql(f"select count(*), avg(temperature), max(id) from {table} where {where}").collect()
        turn.seconds.append(clock.monotonic() - began)
        number, due = number + 1, max(due + period, clock.monotonic())
        over.wait(max(0.0, due - clock.monotonic()))


def _watch(
    spark: Any, table: str, turn: Turn, over: threading.Event, worker: Worker | None, config: Path
) -> None:
    with Lakewarden.open(config) as warden:
        while not over.wait(10):
            turn.small_files.append(spark.table(f"{table}.files").count())
            if worker is None or not (turn.rss or _warm(warden, table)):
                continue
            turn.rss.append(worker.rss())
            turn.python_rss.append(worker.python_rss())
            if not turn.live_heap:
                _weigh(turn, worker)
    if worker is not None and turn.rss:
        _weigh(turn, worker)


def _warm(warden: Lakewarden, table: str) -> bool:
    return {str(each.job) for each in warden.runs(table, 1000) if each.state == "done"} >= _WARM


def _weigh(turn: Turn, worker: Worker) -> None:
    """A JVM fills its heap whether it leaks or not, so reachable objects after a garbage collection are
    measured."""
    found = worker.live_heap()
    if found is not None:
        turn.live_heap.append(found)


def checks(turns: Sequence[Turn]) -> tuple[Check, ...]:
    alone = [each for turn in turns if not turn.worker for each in turn.seconds]
    beside = [each for turn in turns if turn.worker for each in turn.seconds]
    grown = [turn for turn in turns if turn.worker and len(turn.rss) > 1]
    return (
        Check("queries without the worker", len(alone)),
        Check("queries with the worker", len(beside)),
        Check("p95 without", 1000 * _at(alone, 95), unit=" ms"),
        Check("p95 with", 1000 * _at(beside, 95), unit=" ms"),
        Check("p95 with over without", _at(beside, 95) / _at(alone, 95), most=1.1),
        Check("p99 without", 1000 * _at(alone, 99), unit=" ms"),
        Check("p99 with", 1000 * _at(beside, 99), unit=" ms"),
        Check("p99 with over without", _at(beside, 99) / _at(alone, 99), most=1.1),
        Check(
            "files at the end, without",
            max(t.small_files[-1] for t in turns if not t.worker and t.small_files),
        ),
        Check("files at the end, with", max(t.small_files[-1] for t in turns if t.worker and t.small_files)),
        Check("runs that did something", sum(turn.passes for turn in turns), least=1),
        Check("turns whose memory was watched", len(grown), least=1),
        *_memory("worker and its Spark", [turn.rss for turn in grown]),
        *_memory("worker without its Spark", [turn.python_rss for turn in grown], most=1.1),
        *_memory("its Spark's live objects", [turn.live_heap for turn in grown], most=1.1),
        Check("troubles", sum(len(turn.troubles) for turn in turns), most=0),
    )


def _memory(what: str, seen: Sequence[Sequence[int]], most: float | None = None) -> Iterator[Check]:
    """The turn in which memory grew most: once warm, at the end, and the ratio."""
    watched = [each for each in seen if len(each) > 1]
    if watched:
        worst = max(watched, key=lambda each: each[-1] / each[0])
        yield Check(f"{what}, once warm", worst[0] / 2**20, unit=" MB")
        yield Check(f"{what}, at the end", worst[-1] / 2**20, unit=" MB")
        yield Check(f"{what}, end over warm", worst[-1] / worst[0], most=most)


def _at(seconds: Sequence[float], percent: int) -> float:
    return quantiles(seconds, n=100, method="inclusive")[percent - 1]


def _line(turn: Turn) -> str:
    files = f"{turn.small_files[0]} to {turn.small_files[-1]} files" if turn.small_files else ""
    beside = "with the worker   " if turn.worker else "without the worker"
    p95 = 1000 * _at(turn.seconds, 95)
    troubles = f", TROUBLES: {turn.troubles}" if turn.troubles else ""
    return f"{beside}  {len(turn.seconds)} queries, p95 {p95:.0f} ms, {turn.commits} commits, {files}, {turn.passes} runs done{troubles}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="in total, over all turns")
    parser.add_argument("--pairs", type=int, default=2, help="turns without and with the worker")
    parser.add_argument("--every", type=float, default=5, help="seconds between two commits of the writer")
    parser.add_argument("--folder", type=Path, help="folder of the lake; it is kept")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args(arguments)
    with lake_folder(options.folder) as folder:
        turns = soak(options.minutes, options.pairs, options.every, folder)
    found = checks(turns)
    for turn in turns:
        for trouble in turn.troubles:
            print(f"trouble: {trouble}")
    tell(found, options.out, {"turns": [asdict(turn) for turn in turns]})
    return 0 if all(each.met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
