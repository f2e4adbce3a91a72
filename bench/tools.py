"""The two tools, called the way their users call them, asked for the same outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakewarden import Lakewarden
from lakewarden.clock import now
from lakewarden.model import Run, RunState, Step


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of both: the size outputs aim at, and how few files are worth it."""

    target_bytes: int
    min_input_files: int = 5


def iceberg(spark: Any, table: str, goal: Goal, groups_at_once: int) -> None:
    """Iceberg's procedure. `groups_at_once` is how many partitions it rewrites together."""
    catalog, _, name = table.partition(".")
    options = {
        "target-file-size-bytes": goal.target_bytes,
        "min-input-files": goal.min_input_files,
        "max-concurrent-file-group-rewrites": groups_at_once,
        # What a safe caller passes: the default brings rows back that an equality delete removed meanwhile.
        "use-starting-sequence-number": "false",
    }
    flat = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{name}', strategy => 'binpack', options => map({flat}))"
    ).collect()


def lakewarden(warden: Lakewarden, table: str, goal: Goal, encodings: str) -> Run:
    """`encodings` is the policy key rewrite_encodings; for a table of format version 2, `auto` means classic."""
    policy = {
        "rewrite_strategy": "binpack",
        "rewrite_target_bytes": goal.target_bytes,
        "rewrite_min_input_files": goal.min_input_files,
        "rewrite_encodings": encodings,
    }
    run = warden.run("compact", table, policy=policy, trigger={"type": "manual", "operator": "bench"})
    if run.state is not RunState.DONE:
        raise RuntimeError(f"the run ended as {run.state}: {run.reason}")
    return run


@dataclass(frozen=True, slots=True)
class Phases:
    """Where a run's time went, in seconds, from its journal; `task_cpu` is what the kernels used while `writing`."""

    planning: float
    preparing: float
    writing: float
    last_commit: float
    task_cpu: float
    commits: int


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """A Lakewarden run with the moment of its call, which the journal does not know."""

    called: datetime
    run: Run

    @classmethod
    def time(cls, warden: Lakewarden, table: str, goal: Goal, encodings: str) -> Stopwatch:
        called = now()
        return cls(called, lakewarden(warden, table, goal, encodings))

    def phases(self, steps: Sequence[Step]) -> Phases:
        """The journal opens once the plan is made; writing ends when the last group is ready to be committed."""
        writing = _at(steps, "writing")[0]
        ready = _at(steps, "committing")[-1]
        ended = self.run.ended_at
        assert ended is not None  # a run that is done has ended
        return Phases(
            planning=_seconds(self.called, self.run.started_at),
            preparing=_seconds(self.run.started_at, writing),
            writing=_seconds(writing, ready),
            last_commit=_seconds(ready, ended),
            task_cpu=float(self.run.counters["task_cpu_seconds"]),
            commits=int(self.run.counters["commits"]),
        )


def _at(steps: Sequence[Step], name: str) -> list[datetime]:
    return [step.at for step in steps if step.name == name]


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()
