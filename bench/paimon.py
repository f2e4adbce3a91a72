"""Expire and sweep on Paimon tables with a long history, compared to Paimon's own tools in the same JVM."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.deleting import _forget
from bench.findings import Check, Found, Turn
from bench.lab import Lab
from bench.meter import measure
from bench.report import line
from bench.telemetry import Totals
from bench.tools import OURS
from lakewarden import Lakewarden
from lakewarden.model.location import normal
from lakewarden.storage.generation_file import WITNESS
from lakewarden.tables.jvm import bridge

PEER = "Paimon"
SECOND_OURS = f"{OURS}, again"
_CATALOG = "pm"
_FILES_PER_COMMIT = 50
_OLD = 1_700_000_000.0
_KEPT = 10


@dataclass(frozen=True, slots=True)
class LongPaimon:
    """A table that is built once and restored by hard links before each turn. `warehouse` has no other table."""

    maker: Any
    name: str
    warehouse: Path
    master: Path

    @property
    def folder(self) -> Path:
        return self.warehouse / "db.db" / self.name

    @property
    def full_name(self) -> str:
        return f"{_CATALOG}.db.{self.name}"

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.master, self.folder, copy_function=_link)

    def load(self) -> Any:
        return self.maker.load(str(self.warehouse), self.name)

    def on_disk(self) -> set[str]:
        return {f"{where}/{name}" for where, _, names in os.walk(self.folder) for name in names}


def _link(source: str, target: str) -> None:
    """Hint files are overwritten in place, so they are copied: a hard link would change the master."""
    copy = shutil.copy2 if source.endswith(("EARLIEST", "LATEST")) else os.link
    copy(source, target)


_MAKER = (Path(__file__).with_name("LongPaimon.java"), "bench.LongPaimon")


def table_of(
    lab: Lab, name: str, build: Callable[[Any, Any], None], source: tuple[Path, str] = _MAKER
) -> LongPaimon:
    """The table, built by the Java class of `source` unless an earlier run built it."""
    maker = bridge(lab.spark, *source)
    warehouse, master = lab.folder / "paimon" / name, lab.folder / "paimon-master" / name
    table = LongPaimon(maker, name, warehouse, master)
    if not master.exists():
        shutil.rmtree(warehouse, ignore_errors=True)
        build(maker, maker.create(str(warehouse), name))
        master.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(table.folder, master)
    table.reset()
    lab.say(f"{name}: {len(table.on_disk()):,} files on disk")
    return table


def config_of(table: LongPaimon) -> dict[str, Any]:
    return {"catalogs": {_CATALOG: {"format": "paimon", "warehouse": str(table.warehouse)}}}


def expire_case(lab: Lab) -> Found:
    """Twice the usual number of snapshots, all but ten expire: the size at which Paimon's tool was measured
    first."""
    snapshots = 2 * lab.scale.commits
    table = table_of(
        lab, f"expire_{snapshots}", lambda maker, made: maker.append(made, snapshots, 1, 0, True)
    )
    start = Totals(len(table.on_disk()), 0, 0)
    turns: list[Turn] = []
    left: dict[str, set[str]] = {}
    ours: tuple[str, Callable[[Lakewarden], object]] = (OURS, partial(_our_expire, table))
    theirs: tuple[str, Callable[[Lakewarden], object]] = (
        PEER,
        lambda _: table.maker.ownExpire(table.load(), _KEPT),
    )
    for number in range(1, lab.scale.rounds + 1):
        for name, work in (ours, theirs) if number % 2 else (theirs, ours):
            table.reset()
            _forget()
            with lab.warden(config_of(table)) as warden:
                _, cost = measure(lab.spark, partial(work, warden), lab.scale.patience)
            left[name] = {
                path for path in table.on_disk() if not path.endswith(("EARLIEST", "LATEST", WITNESS))
            }
            turns.append(Turn(name, number, cost, Totals(len(left[name]), 0, 0)))
            lab.say(line(turns[-1]))
        if left[OURS] != left[PEER]:
            raise RuntimeError(f"different files are left, such as {sorted(left[OURS] ^ left[PEER])[:3]}")
    ratio = median_wall(turns, PEER) / median_wall(turns, OURS)
    check = Check("expire and purge: times as fast as newExpireSnapshots", ratio, least=1)
    return Found(start, tuple(turns), (check,))


def _our_expire(table: LongPaimon, warden: Lakewarden) -> None:
    name = f"{_CATALOG}.db.{table.name}"
    for run in (
        warden.run("expire", name, {"snapshot_retention_hours": 0, "snapshot_min_retained": _KEPT}),
        warden.run("purge", name, {"delete_grace_hours": 0}),
    ):
        if run.state != "done":
            raise RuntimeError(f"{run.job} ended {run.state}: {run.reason}")


def sweep_case(lab: Lab) -> Found:
    commits = lab.scale.commits
    table = table_of(
        lab, f"sweep_{commits}", lambda maker, made: maker.append(made, commits, _FILES_PER_COMMIT, 0, False)
    )
    _plant(table, max(1, commits // 2))
    start = Totals(len(table.on_disk()), 0, 0)
    turns: list[Turn] = []
    for number in range(1, lab.scale.rounds + 1):
        _forget()
        found: dict[str, set[str]] = {}
        with lab.warden(config_of(table)) as warden:
            works: tuple[tuple[str, Callable[[], set[str]]], ...] = (
                (OURS, partial(_our_orphans, table, warden)),
                (SECOND_OURS, partial(_our_orphans, table, warden)),
                (PEER, partial(_own_orphans, table)),
            )
            for name, work in works:
                found[name], cost = measure(lab.spark, work, lab.scale.patience)
                turns.append(Turn(name, number, cost, start))
                lab.say(line(turns[-1]))
        if not found[OURS] == found[SECOND_OURS] == found[PEER]:
            raise RuntimeError(f"different orphans: {[len(each) for each in found.values()]}")
    peer = median_wall(turns, PEER)
    checks = (
        Check("sweep, dry: times as fast as LocalOrphanFilesClean", peer / median_wall(turns, OURS), least=2),
        Check("again: times as fast", peer / median_wall(turns, SECOND_OURS), least=5),
    )
    return Found(start, tuple(turns), checks)


def _our_orphans(table: LongPaimon, warden: Lakewarden) -> set[str]:
    return {normal(each.path) for each in warden.plan("sweep", f"{_CATALOG}.db.{table.name}").trash}


def _own_orphans(table: LongPaimon) -> set[str]:
    found = table.maker.ownOrphans(table.load(), int(time.time() * 1000) - 7 * 86_400_000)
    return {normal(each) for each in found.splitlines()}


def _plant(table: LongPaimon, orphans: int) -> None:
    """Add files that no metadata refers to, old enough to be swept."""
    for number in range(orphans):
        folder = table.folder / f"dt=day-{number % 50}" / "bucket-0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"data-{uuid.UUID(int=number)}-0.parquet").write_bytes(b"orphan")
    for where, _, names in os.walk(table.folder):
        for name in names:
            os.utime(f"{where}/{name}", (_OLD, _OLD))


def median_wall(turns: list[Turn], tool: str) -> float:
    mine = [turn.cost.wall for turn in turns if turn.tool == tool]
    return median(mine[1:] or mine)
