"""Jobs, runs and their steps, who drives them and what they were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lakewarden.model.plain import Plain

if TYPE_CHECKING:  # the nouns stay light to import: commands that touch no table never load Arrow
    pass


class Job(StrEnum):
    """What can be done to a table; the values are the CLI's names, the order is that of a whole pass."""

    EXPIRE_PARTITIONS = "expire-partitions"  # first, so that nothing is compacted which is about to go
    COMPACT_DELETES = "compact-deletes"
    COMPACT = "compact"
    REWRITE_MANIFESTS = "rewrite-manifests"
    HANDOFF = "handoff"
    EXPIRE = "expire"
    PURGE = "purge"
    SWEEP = "sweep"
    COMPACT_HISTORY = "compact-history"  # last: what expired in this pass is written down by then


class RunState(StrEnum):
    """How a run stands. `running` is the only one that is not final."""

    RUNNING = "running"
    DONE = "done"
    NOTHING_TO_DO = "nothing-to-do"
    PARTIAL = "partial"
    LOST_RACE = "lost-race"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    RunState.RUNNING: 0,
    RunState.DONE: 0,
    RunState.NOTHING_TO_DO: 0,
    RunState.FAILED: 1,
    RunState.PARTIAL: 3,
    RunState.REFUSED: 12,
    RunState.LOST_RACE: 13,
    RunState.UNKNOWN: 14,
    RunState.INTERRUPTED: 130,
}


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a run happens and who asked."""

    type: str = "manual"
    operator: str | None = None
    ticket: str | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Who drives a run: the process, enough to tell whether it is still there, and a token no other driver has.

    The token is what fences: when a run is taken over, even inside one process, whoever drove it before cannot go on.
    """

    host: str
    pid: int
    started: float
    token: str = ""

    def same_process(self, other: Owner) -> bool:
        return (self.host, self.pid, self.started) == (other.host, other.pid, other.started)

    def __str__(self) -> str:
        return f"{self.host} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Step:
    """One journaled moment of a run."""

    run_id: str
    seq: int
    name: str
    at: datetime
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run(Plain):
    """One execution of one plan, as the journal tells it."""

    id: str
    table: str
    job: str
    state: RunState
    reason: str
    started_at: datetime
    ended_at: datetime | None
    owner: Owner
    trigger: Trigger
    plan: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)
    snapshot_ids: tuple[int, ...] = ()
    beat_at: datetime | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    lease_term: int | None = None  # of the worker's lease it runs under; None where somebody runs it by hand

    JSON_KEYS = "id table job state reason started_at ended_at owner trigger counters snapshot_ids plan"
