"""Bin-packing a Paimon append table, compared to Paimon's own compaction in the same JVM."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.findings import Check, Found, Turn
from bench.lab import Lab
from bench.meter import measure
from bench.paimon import PEER, LongPaimon, config_of, median_wall, table_of
from bench.report import line
from bench.scale import DAYS
from bench.telemetry import Totals
from bench.tools import OURS
from lakewarden import Lakewarden

_TIMES_AS_FAST = 4


def binpack_case(lab: Lab) -> Found:
    """Paimon's tasks run in the driver, on as many threads as the session has cores."""
    scale = lab.scale
    table = table_of(
        lab,
        f"binpack_{scale.rows}_{scale.files}",
        lambda maker, made: maker.build(made, scale.files, scale.rows_per_file, DAYS, lab.cores),
        (Path(__file__).with_name("CompactPaimon.java"), "bench.CompactPaimon"),
    )
    start, rows = _totals(table), _rows(table, lab)
    target = -(-start.bytes // scale.outputs)
    turns: list[Turn] = []
    ours: tuple[str, Callable[[Lakewarden], Any]] = (OURS, partial(_our_compact, table, target))
    theirs: tuple[str, Callable[[Lakewarden], Any]] = (
        PEER,
        lambda _: table.maker.ownCompact(table.load(), target, lab.cores),
    )
    for number in range(1, scale.rounds + 1):
        for name, work in (ours, theirs) if number % 2 else (theirs, ours):
            table.reset()
            with lab.warden(config_of(table)) as warden:
                _, cost = measure(lab.spark, partial(work, warden), scale.patience)
            turns.append(Turn(name, number, cost, _totals(table)))
            lab.say(line(turns[-1]))
            if _rows(table, lab) != rows:
                raise RuntimeError(f"{name} changed the rows")
    ratio = median_wall(turns, PEER) / median_wall(turns, OURS)
    check = Check("compact: times as fast as AppendCompactTask", ratio, least=_TIMES_AS_FAST)
    return Found(start, tuple(turns), (check,))


def _our_compact(table: LongPaimon, target: int, warden: Lakewarden) -> None:
    run = warden.run(
        "compact", table.full_name, {"rewrite_target_bytes": target, "rewrite_min_input_files": 2}
    )
    if run.state != "done":
        raise RuntimeError(f"compact ended {run.state}: {run.reason}")


def _totals(table: LongPaimon) -> Totals:
    files, size = table.maker.totals(table.load()).split()
    return Totals(int(files), int(size), 0)


def _rows(table: LongPaimon, lab: Lab) -> str:
    return str(table.maker.fingerprint(table.load(), lab.cores))
