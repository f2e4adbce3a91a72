"""The tools, called as their users call them, asked for the same outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from lakewarden import Lakewarden
from lakewarden.clock import now
from lakewarden.model.run import Run, RunState, Step

PEER, OURS, MODERN = "iceberg", "lakewarden", "modern"


@dataclass(frozen=True, slots=True)
class Goal:
    """What every tool is asked for: the target size of outputs, and the fewest files worth a rewrite.

    `groups_at_once` is how many partitions Iceberg rewrites at the same time; Lakewarden decides that itself.
    """

    target_bytes: int
    min_input_files: int = 5
    groups_at_once: int = 1


@dataclass(frozen=True, slots=True)
class Site:
    """The session, table and Lakewarden that a tool works with."""

    spark: Any
    warden: Lakewarden
    table: str
    goal: Goal


@dataclass(frozen=True, slots=True)
class Phases:
    """The time of a run's phases in seconds, from its journal; `task_cpu` is the CPU time of tasks during
    `writing`."""

    planning: float
    preparing: float
    writing: float
    last_commit: float
    task_cpu: float
    commits: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a Lakewarden run reports about itself."""

    phases: Phases
    counters: Mapping[str, Any]


class Tool(Protocol):
    """`once`: too slow for every round, so it only takes part in the last one."""

    @property
    def name(self) -> str: ...
    @property
    def once(self) -> bool: ...
    def work(self, site: Site) -> Any:
        """The measured part."""

    def tell(self, site: Site, result: Any) -> Told | None:
        """After the measurement: what the tool reports about its work."""


@dataclass(frozen=True, slots=True)
class Iceberg:
    """Its `rewrite_data_files`, with these arguments and options in addition to the goal's."""

    arguments: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    once: bool = False
    name: str = PEER

    def work(self, site: Site) -> None:
        catalog, _, table = site.table.partition(".")
        arguments = {"table": table, **self.arguments}
        named = ", ".join(f"{key} => '{value}'" for key, value in arguments.items())
        options = ", ".join(f"'{key}', '{value}'" for key, value in self._options(site.goal).items())
        site.spark.sql(
            f"CALL {catalog}.system.rewrite_data_files({named}, options => map({options}))"
        ).collect()

    def _options(self, goal: Goal) -> dict[str, object]:
        return {
            "target-file-size-bytes": goal.target_bytes,
            "min-input-files": goal.min_input_files,
            "max-concurrent-file-group-rewrites": goal.groups_at_once,
            # What a careful caller passes: the default restores rows that a concurrent equality delete removed.
            "use-starting-sequence-number": "false",
            **self.options,
        }

    def tell(self, site: Site, result: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Timed:
    """A run with the time of its call, which is not in the journal."""

    called: datetime
    run: Run


@dataclass(frozen=True, slots=True)
class Ours:
    """A job of Lakewarden with a policy. On tables of format version 2, `rewrite_encodings` defaults to
    classic here."""

    policy: Mapping[str, object]
    job: str = "compact"
    once: bool = False
    name: str = OURS

    def work(self, site: Site) -> Timed:
        policy = {
            "rewrite_target_bytes": site.goal.target_bytes,
            "rewrite_min_input_files": site.goal.min_input_files,
            **self.policy,
        }
        called = now()
        trigger = {"type": "manual", "operator": "bench"}
        run = site.warden.run(self.job, site.table, policy=policy, trigger=trigger)
        if run.state is not RunState.DONE:
            raise RuntimeError(f"the run of {site.table} ended as {run.state}: {run.reason}")
        return Timed(called, run)

    def tell(self, site: Site, result: Timed) -> Told:
        steps = site.warden.run_by_id(result.run.id)[1]
        return Told(_phases(result, steps), dict(result.run.counters))


def _phases(timed: Timed, steps: Sequence[Step]) -> Phases:
    """The journal opens after planning; writing ends when the last group is ready for commit."""
    writing, ready, run = _at(steps, "writing")[0], _at(steps, "committing")[-1], timed.run
    assert run.ended_at is not None  # a run that is done has ended
    return Phases(
        planning=_seconds(timed.called, run.started_at),
        preparing=_seconds(run.started_at, writing),
        writing=_seconds(writing, ready),
        last_commit=_seconds(ready, run.ended_at),
        task_cpu=float(run.counters["task_cpu_seconds"]),
        commits=int(run.counters["commits"]),
    )


def _at(steps: Sequence[Step], name: str) -> list[datetime]:
    return [step.at for step in steps if step.name == name]


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()
