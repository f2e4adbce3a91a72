"""Expire, purge and sweep on a table with a long history, compared to Iceberg's own procedures."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import pyarrow

from bench.findings import Check, Found, Grid, Turn
from bench.history import LongTable, long_table, wide_table
from bench.lab import Lab
from bench.meter import measure
from bench.report import line
from bench.telemetry import CATALOG, Totals
from bench.tools import OURS, PEER
from lakewarden import Lakewarden, clock
from lakewarden.model.location import normal
from lakewarden.model.table import TableRef
from lakewarden.spark.jars import default_cache

SECOND_OURS, SECOND_PEER = f"{OURS}, again", f"{PEER}, again"
NOW = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
AT_ONCE = {"delete_grace_hours": 0}
_ORPHANS_PER_COMMIT = 5
_COMMITS_BETWEEN = 10

Work = Callable[[LongTable, Lakewarden], object]


def peer_expire(table: LongTable, _: Lakewarden) -> object:
    name = table.name.removeprefix(f"{CATALOG}.")
    return table.spark.sql(
        f"call {CATALOG}.system.expire_snapshots(table => '{name}', older_than => current_timestamp(), retain_last => 1)"
    ).collect()


def our_expire(table: LongTable, warden: Lakewarden) -> object:
    runs = (warden.run("expire", table.name, NOW), warden.run("purge", table.name, AT_ONCE))
    for run in runs:
        if run.state not in ("done", "nothing-to-do"):
            raise RuntimeError(f"{run.job} ended {run.state}: {run.reason}")
    return runs


def peer_sweep(table: LongTable, _: Lakewarden) -> set[str]:
    name = table.name.removeprefix(f"{CATALOG}.")
    rows = table.spark.sql(
        f"call {CATALOG}.system.remove_orphan_files(table => '{name}', dry_run => true)"
    ).collect()
    return {normal(row.orphan_file_location) for row in rows}


def our_sweep(table: LongTable, warden: Lakewarden) -> set[str]:
    return {normal(each.path) for each in warden.plan("sweep", table.name).trash}


def _forget() -> None:
    """Clear all caches, as on a first run."""
    shutil.rmtree(_cache(), ignore_errors=True)


def _cache() -> Path:
    return default_cache(os.environ).parent / "reach"


@dataclass(frozen=True, slots=True)
class Deleting:
    """Both tools from the same state, then again after ten more commits. Each must delete the same set of
    files."""

    lab: Lab

    def expire(self, commits: int, rounds: int, peer: bool = True) -> tuple[list[Turn], Totals]:
        turns: list[Turn] = []
        table, start = self._table(commits)
        gone: dict[str, set[str]] = {}
        for number in range(1, rounds + 1):
            tools: list[tuple[str, str, Work]] = [(OURS, SECOND_OURS, our_expire)]
            tools += [(PEER, SECOND_PEER, peer_expire)] if peer else []
            for first, again, work in tools if number % 2 else reversed(tools):
                table.reset()
                _forget()
                with self.lab.warden({}) as warden:
                    gone[first] = self._turn(turns, table, warden, first, number, work)
                    table.commit(_COMMITS_BETWEEN, 10_000 + number)
                    gone[again] = self._turn(turns, table, warden, again, number, work)
            for one, other in ((OURS, PEER), (SECOND_OURS, SECOND_PEER)):
                if peer and _names(gone[one]) != _names(gone[other]):
                    differ = sorted(_names(gone[one]) ^ _names(gone[other]))
                    raise RuntimeError(f"{one} and {other} deleted different files, such as {differ[:3]}")
        return turns, start

    def sweep(self, commits: int, rounds: int) -> tuple[list[Turn], Totals]:
        turns: list[Turn] = []
        table, start = self._table(commits)
        table.plant_orphans(_ORPHANS_PER_COMMIT * commits)
        for number in range(1, rounds + 1):
            _forget()
            found: dict[str, object] = {}
            with self.lab.warden({}) as warden:
                for name, work in ((OURS, our_sweep), (SECOND_OURS, our_sweep), (PEER, peer_sweep)):
                    found[name], cost = measure(
                        table.spark, partial(work, table, warden), self.lab.scale.patience
                    )
                    turns.append(Turn(name, number, cost, start))
                    self.lab.say(line(turns[-1]))
            if not found[OURS] == found[SECOND_OURS] == found[PEER]:
                raise RuntimeError(f"different orphans: {[len(each) for each in found.values()]}")  # type: ignore[arg-type]
        return turns, start

    def _table(self, commits: int) -> tuple[LongTable, Totals]:
        table = long_table(self.lab.spark, self.lab.folder, commits)
        files = table.on_disk()
        self.lab.say(f"{table.name}: {commits + 1} snapshots, {len(files):,} files on disk")
        return table, Totals(len(files), 0, 0)

    def _turn(
        self, turns: list[Turn], table: LongTable, warden: Lakewarden, name: str, number: int, work: Work
    ) -> set[str]:
        before = table.on_disk()
        _, cost = measure(table.spark, partial(work, table, warden), self.lab.scale.patience)
        after = table.on_disk()
        turns.append(Turn(name, number, cost, Totals(len(after), 0, 0)))
        self.lab.say(line(turns[-1]))
        return before - after


def _names(paths: set[str]) -> set[str]:
    """File names without their random parts: metadata lists and manifests are compared by count."""
    return {path for path in paths if path.endswith(".parquet")} | {
        f"{kind} {sum(1 for path in paths if path.endswith('.avro') and ('/snap-' in path) == (kind == 'lists'))}"
        for kind in ("lists", "manifests")
    }


def _wall(turns: list[Turn], tool: str) -> float:
    mine = [turn.cost.wall for turn in turns if turn.tool == tool]
    return median(mine[1:] or mine)


def expire_case(lab: Lab) -> Found:
    turns, start = Deleting(lab).expire(lab.scale.commits, lab.scale.rounds)
    first = _wall(turns, PEER) / _wall(turns, OURS)
    second = _wall(turns, SECOND_PEER) / _wall(turns, SECOND_OURS)
    checks = (
        Check("expire and purge: times as fast as expire_snapshots", first, least=4),
        Check("again after ten commits: times as fast", second, least=15),
    )
    return Found(start, tuple(turns), checks)


def sweep_case(lab: Lab) -> Found:
    turns, start = Deleting(lab).sweep(lab.scale.commits, lab.scale.rounds)
    peer = _wall(turns, PEER)
    checks = (
        Check("sweep, dry: times as fast as remove_orphan_files", peer / _wall(turns, OURS), least=5),
        Check("again: times as fast", peer / _wall(turns, SECOND_OURS), least=12),
    )
    return Found(start, tuple(turns), checks)


def history_growth(lab: Lab) -> Found:
    """A quarter, half, all and twice the commits: the time of expire and purge."""
    sizes = [lab.scale.commits // 4, lab.scale.commits // 2, lab.scale.commits, 2 * lab.scale.commits]
    rows, walls, turns, start = [], {}, [], Totals(0, 0, 0)
    for commits in sizes:
        found, start = Deleting(lab).expire(commits, lab.scale.rounds, peer=False)
        turns += found
        walls[commits] = _wall(found, OURS)
        rows.append(
            (f"{commits:,} snapshots", f"{walls[commits]:.2f} s", f"{_wall(found, SECOND_OURS):.2f} s")
        )
    checks = tuple(
        Check(f"seconds per snapshot at {commits:,}, over {sizes[0]:,}", walls[commits] / commits / (walls[sizes[0]] / sizes[0]), most=1.1)
        for commits in sizes[1:]
    )  # fmt: skip
    return Found(start, tuple(turns), checks, (Grid(("", "expire and purge", "again"), tuple(rows)),))


def reach_memory(lab: Lab) -> Found:
    """A quarter, half and a whole million file entries: growth of the driver's memory while all of them are
    read."""
    rows, grown, turns = [], {}, []
    most = 1_000 * lab.scale.commits
    for entries in (most // 4, most // 2, most):
        name = wide_table(lab.spark, entries, max(1, entries // 100))
        with lab.warden({}) as warden:
            grown[entries], cost = measure(lab.spark, partial(_growth, warden, name), lab.scale.patience)
        turns.append(Turn(f"{entries:,} entries", 1, cost, Totals(entries, 0, 0)))
        rows.append((f"{entries:,} entries", *(f"{each / 1e6:.0f} MB" for each in grown[entries])))
        lab.say("  ".join(rows[-1]))
        lab.spark.sql(f"drop table {name}")
    checks = (
        Check(
            "driver memory at the most entries, reading all that is needed", grown[most][0] / 1e6, unit=" MB"
        ),
    )
    head = ("driver memory, above what it was", "all that is needed", "what expiry frees")
    return Found(Totals(most, 0, 0), tuple(turns), checks, (Grid(head, tuple(rows)),))


def _growth(warden: Lakewarden, name: str) -> tuple[int, int]:
    """With empty caches: the growth of this process's peak memory for each of the two queries."""
    _forget()
    ref = TableRef.parse(name)
    format_ = warden.lake.format_for(ref)
    view = format_.view(ref)
    old = {each.id for each in view.snapshots} - {view.current_snapshot_id}
    return _peak(lambda: format_.reached(view)), _peak(lambda: format_.unreached(view, old))


def _peak(work: Callable[[], object]) -> int:
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    me = psutil.Process()
    began = me.memory_info().rss
    seen = [began]
    with clock.repeating(lambda: seen.append(me.memory_info().rss), 0.02, "bench-memory"):
        work()
    return max(*seen, me.memory_info().rss) - began
