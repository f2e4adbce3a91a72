"""Whether a budget in MB/s is kept and used: the same table under a limit, with one task and with four."""

from __future__ import annotations

from collections.abc import Iterator

from bench.findings import Check, Found, Turn
from bench.lab import Lab
from bench.stage import even_outputs, on_stage, take_turns
from bench.telemetry import Totals, telemetry
from bench.tools import Ours

TASKS = (1, 4)
KINDS = ("read", "write")
_WITHIN = 0.05


def budget(lab: Lab) -> Found:
    """Twice the scale's rows: a minute at the limit, so that start and commit hardly matter."""
    scale, rate = lab.scale.twice(), lab.scale.rate_mb
    prepared = telemetry(lab.spark, scale)
    turns: list[Turn] = []
    checks: list[Check] = []
    for kind in KINDS:
        for tasks in TASKS:
            name = f"{kind} {rate:g} MB/s, {tasks} task{'s' if tasks > 1 else ''}"
            config = {"budgets": {"max_tasks": tasks, f"{kind}_mb_per_s": rate}}
            tool = Ours({"rewrite_strategy": "binpack"}, name=name)
            with on_stage(lab, prepared, even_outputs(scale, lab.cores), config) as stage:
                turns += take_turns([(stage, tool)], 1, lab.say)
            checks += _checks(kind, rate, stage.start, turns[-1])
    return Found(stage.start, tuple(turns), tuple(checks))


def _checks(kind: str, rate: float, start: Totals, turn: Turn) -> Iterator[Check]:
    """Bytes moved while rows were written: as the run counts, as the system counts, and by file sizes."""
    assert turn.told is not None  # always present for a run of Lakewarden
    least, most = rate * (1 - _WITHIN), rate * (1 + _WITHIN)
    read = kind == "read"
    seconds = turn.told.phases.writing * 1e6
    counted = float(turn.told.counters[f"{kind}_mb_per_s"])
    system = turn.cost.workers_read if read else turn.cost.workers_written
    files = start.bytes if read else turn.made.bytes
    yield Check(f"{turn.tool}: as the run counts", counted, least, most, "MB/s")
    yield Check(f"{turn.tool}: as the system saw it", system / seconds, least, most, "MB/s")
    # No goal: the system also counts what is read again to prove the outputs.
    yield Check(f"{turn.tool}: bytes of the files", files / seconds, unit="MB/s")
