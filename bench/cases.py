"""All cases: what each measures, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench import paimon
from bench.budget import budget
from bench.clustering import ONE_DAY, files_opened, spans_of_one_day
from bench.compare import Comparison
from bench.deleting import expire_case, history_growth, reach_memory, sweep_case
from bench.findings import Check, Found, Machine, Report, Turn, warm
from bench.fixed_memory import fixed_memory
from bench.growth import Growth
from bench.handoff import handoff, handoff_copy
from bench.health import health
from bench.lab import Lab
from bench.lineage import lineage
from bench.paimon_binpack import binpack_case
from bench.purge_s3 import purge_s3
from bench.report import line
from bench.scale import DAYS, Scale
from bench.stage import Stage
from bench.telemetry import (
    small_telemetry,
    telemetry,
    totals,
    with_daily_equality_deletes,
    with_equality_deletes,
    with_position_deletes,
)
from bench.tools import MODERN, Goal, Iceberg, Ours
from lakewarden.spark.jars import Group

BINPACK = Ours({"rewrite_strategy": "binpack", "rewrite_encodings": "classic"})
SORT = Ours({"rewrite_strategy": "sort", "rewrite_sort_columns": ["device_id", "event_time"]})
ZORDER = Ours({"rewrite_strategy": "zorder", "rewrite_zorder_columns": ["device_id", "temperature"]})
DELETES = Ours({"delete_compaction_min_deletes": 1}, job="compact-deletes")

PEER_BINPACK = Iceberg({"strategy": "binpack"})
PEER_SORT = Iceberg(
    {"strategy": "sort", "sort_order": "device_id ASC NULLS FIRST, event_time ASC NULLS FIRST"}
)
PEER_ZORDER = Iceberg({"strategy": "sort", "sort_order": "zorder(device_id, temperature)"})
PEER_DELETES = Iceberg({"strategy": "binpack"}, {"delete-file-threshold": "1"})

_SMALL_TARGET = 128 << 20
_GRID = 16  # outputs of one day: a z-order of two columns can cut each into four
_WIDEST = 0.30
_MOST_OVER_BINPACK = {"sort": 1.15, "zorder": 1.20}


def too_little_memory(scale: Scale) -> Mapping[str, Any]:
    """A day's rows take about 85 bytes each in memory; a task gets a third of that."""
    return {"engine": {"task_memory_mb": min(128, max(1, scale.rows // DAYS // 31_250))}}


def grid_of_one_day(stage: Stage) -> tuple[Sequence[Turn], Sequence[Check]]:
    """One day in sixteen files: the average share of each column's range that a file covers."""
    day = totals(stage.site.spark, stage.site.table, f"partition.{ONE_DAY}")
    goal = replace(stage.site.goal, target_bytes=-(-day.bytes // _GRID))
    found: dict[str, float] = {}

    def look(spark: Any, table: str) -> Mapping[str, float]:
        files, spans = spans_of_one_day(spark, table)
        found.update(spans, files=files)
        return found

    one_day = replace(stage, site=replace(stage.site, goal=goal), watch=look)
    tool = replace(ZORDER, policy={**ZORDER.policy, "rewrite_where": ONE_DAY}, name=f"one day into {_GRID}")
    turn = one_day.turn(tool, 1)
    stage.lab.say(line(turn))
    spans = [
        Check(
            f"{column}: share of its range in a file of one day, on the average", found[column], most=_WIDEST
        )
        for column in ("device_id", "temperature")
    ]
    return (turn,), (Check("files of that day", found["files"], least=_GRID), *spans)


def overhead(lab: Lab) -> Found:
    """Lakewarden's own strategies compared to each other in CPU seconds, which other load disturbs least."""
    tools = {
        name: replace(tool, name=name)
        for name, tool in (("binpack", BINPACK), ("sort", SORT), ("zorder", ZORDER))
    }
    found = Comparison(telemetry, tuple(tools.values()))(lab)
    base = warm(found.turns, "binpack").cpu
    checks = tuple(
        Check(f"{name}: CPU time over bin-packing", warm(found.turns, name).cpu / base, most=most)
        for name, most in _MOST_OVER_BINPACK.items()
    )
    return replace(found, checks=(*found.checks, *checks))


@dataclass(frozen=True, slots=True)
class Case:
    """`compares`: it compares with another tool and runs if no case is named. Each case has its own session,
    on this master."""

    name: str
    sentence: str
    goal: str
    measure: Callable[[Lab], Found]
    compares: bool = True
    master: str = "local[*]"
    jars: tuple[Group, ...] = ("base", "jdbc")

    def run(self, lab: Lab) -> Report:
        lab.say(f"{self.name}: {self.sentence}")
        found = self.measure(lab)
        return Report(self.name, self.sentence, self.goal, Machine.here(lab.spark), lab.scale, found)


_NO_SLOWER = "no slower than Iceberg's procedure"

CASES: tuple[Case, ...] = (
    Case(
        "binpack",
        "small files become large ones, in the order they came",
        _NO_SLOWER,
        Comparison(
            telemetry,
            (
                PEER_BINPACK,
                BINPACK,
                replace(BINPACK, policy={**BINPACK.policy, "rewrite_encodings": "modern"}, name=MODERN),
            ),
        ),
    ),
    Case(
        "small",
        "five files of 60 KB become one: what a call costs at least",
        "none: fixed costs, shown as they are",
        Comparison(
            small_telemetry,
            (PEER_BINPACK, BINPACK),
            goal=Goal(_SMALL_TARGET, 5),
            rounds=lambda scale: scale.small_repeats,
            least_ratio=None,
        ),
    ),
    Case(
        "sort",
        "rows sorted by device_id and event_time, a partition in one task",
        _NO_SLOWER,
        Comparison(telemetry, (PEER_SORT, SORT), watch=files_opened),
    ),
    Case(
        "zorder",
        "rows clustered by device_id and temperature, a partition in one task",
        f"{_NO_SLOWER}; a file of one day in sixteen covers under 30 % of either column's range",
        Comparison(telemetry, (PEER_ZORDER, ZORDER), watch=files_opened, epilogue=grid_of_one_day),
    ),
    Case(
        "sort-shuffle",
        "the same sort where a partition does not fit a task's memory",
        _NO_SLOWER,
        Comparison(
            telemetry, (PEER_SORT, SORT), config=too_little_memory, watch=files_opened, exchanges=True
        ),
    ),
    Case(
        "zorder-shuffle",
        "the same clustering where a partition does not fit a task's memory",
        f"{_NO_SLOWER}; a file of one day in sixteen covers under 30 % of either column's range",
        Comparison(
            telemetry,
            (PEER_ZORDER, ZORDER),
            config=too_little_memory,
            watch=files_opened,
            epilogue=grid_of_one_day,
            exchanges=True,
        ),
    ),
    Case(
        "position-deletes",
        "three rows of a hundred are deleted by position; files are rewritten without them",
        _NO_SLOWER,
        Comparison(with_position_deletes, (PEER_DELETES, DELETES)),
    ),
    Case(
        "equality-deletes",
        "three rows of a hundred are deleted by key, in 15 delete files that each reach the whole table",
        f"{_NO_SLOWER} (which takes minutes, so it has one turn)",
        Comparison(with_equality_deletes, (replace(PEER_DELETES, once=True), DELETES)),
    ),
    Case(
        "daily-equality-deletes",
        "three rows of a hundred are deleted by key, in 3 delete files for each day",
        _NO_SLOWER,
        Comparison(with_daily_equality_deletes, (PEER_DELETES, DELETES)),
    ),
    Case(
        "expire",
        "a thousand snapshots and 100,000 files, half of them compacted away: all but the newest snapshot expire",
        "4 times as fast as expire_snapshots, 15 times after ten more commits; the same files deleted",
        expire_case,
    ),
    Case(
        "sweep",
        "5,000 orphans beside 100,000 files and a thousand snapshots: finding them",
        "5 times as fast as remove_orphan_files, 12 times the second time; the same files found",
        sweep_case,
    ),
    Case(
        "history-growth",
        "a quarter, half, all and twice the snapshots: how the time of expire and purge grows",
        "seconds per snapshot grow by at most 10 %",
        history_growth,
        compares=False,
    ),
    Case(
        "purge-s3",
        "50,000 trashed objects on S3: deleted at once, under a limit, and by a process that is killed half way",
        "a limit of 500 a second is kept within 5 %; after kill -9 every object has one receipt",
        purge_s3,
        compares=False,
        jars=("base", "jdbc", "s3"),
    ),
    Case(
        "paimon-binpack",
        "small files of a Paimon append table become large ones",
        "4 times as fast as Paimon's own AppendCompactTask; rows equal by Paimon's reader",
        binpack_case,
        jars=("base", "jdbc", "paimon"),
    ),
    Case(
        "paimon-expire",
        "2,000 snapshots of a Paimon table, every eleventh a compaction: all but ten expire",
        "no slower than newExpireSnapshots; the same files deleted",
        paimon.expire_case,
        jars=("base", "jdbc", "paimon"),
    ),
    Case(
        "paimon-sweep",
        "500 orphans beside 50,000 files and a thousand snapshots of a Paimon table: finding them",
        "2 times as fast as LocalOrphanFilesClean, 5 times the second time; the same files found",
        paimon.sweep_case,
        jars=("base", "jdbc", "paimon"),
    ),
    Case(
        "reach-memory",
        "a quarter, half and a whole million of file entries: the driver's memory while it learns what a table needs",
        "none: shown as it is",
        reach_memory,
        compares=False,
    ),
    Case(
        "lineage",
        "2,000 snapshots over two years, expired and folded month by month: the audit's questions for every one of them",
        "no wrong answer; 1,000 snapshots read in less than a second; a blast radius over 10,000 in less than 2",
        lineage,
        compares=False,
    ),
    Case(
        "handoff",
        "sixty days of hourly commits, compactions and deletes, format 2 and 3: the older thirty are handed off, expire and are deleted",
        "every snapshot handed off reads as it was written after the live folder is gone; a second run copies nothing",
        handoff,
        compares=False,
    ),
    Case(
        "handoff-copy",
        "four files of a gigabyte handed off, at once and under a limit",
        "within 10 % of the system's tools doing the same, and of the limit; no worker grows with the file",
        handoff_copy,
        compares=False,
    ),
    Case(
        "health",
        "5,000 tables: the first health collection of all of them, later ones, and /metrics",
        "5,000 unchanged tables are collected within a minute, and /metrics answers within 10 s",
        health,
        compares=False,
    ),
    Case(
        "growth",
        "one, two and four times the rows: how Lakewarden's time grows",
        "seconds per row grow by at most 10 %",
        Growth(
            {
                "binpack": (telemetry, BINPACK),
                "sort": (telemetry, SORT),
                "zorder": (telemetry, ZORDER),
                "position-deletes": (with_position_deletes, DELETES),
                "equality-deletes": (with_equality_deletes, DELETES),
            }
        ),
        compares=False,
    ),
    Case(
        "overhead",
        "what Lakewarden's ordering costs over its bin-packing",
        "CPU time of a sort at most 15 % over bin-packing, of a z-order 20 %",
        overhead,
        compares=False,
    ),
    Case(
        "fixed-memory",
        "3 GB of equality deletes applied by tasks of 1 GB",
        "no Python worker above the task's memory and what it takes idle",
        fixed_memory,
        compares=False,
    ),
    Case(
        "budget",
        "a limit of 20 MB/s, read or written, with one task and with four",
        "the measured rate is within 5 % of the limit",
        budget,
        compares=False,
        master="local[4]",
    ),
)
