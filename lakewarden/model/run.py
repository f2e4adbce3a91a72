"""Jobs, runs and their steps, the processes that drive them, their triggers, and the progress of long work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from lakewarden.model.plain import Plain


class Job(StrEnum):
    """The jobs on a table. The values are the CLI's names, in the order of a pass."""

    EXPIRE_PARTITIONS = "expire-partitions"  # first: partitions that go are not compacted before
    COMPACT_DELETES = "compact-deletes"
    COMPACT = "compact"
    REWRITE_MANIFESTS = "rewrite-manifests"
    HANDOFF = "handoff"
    EXPIRE = "expire"
    PURGE = "purge"
    SWEEP = "sweep"
    COMPACT_HISTORY = "compact-history"  # last: the snapshots this pass expired are archived by then


class RunState(StrEnum):
    """The state of a run. Only `running` is not final."""

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
    """Why a run happens and who requested it."""

    type: str = "manual"
    operator: str | None = None
    ticket: str | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that drives a run, with enough to check whether it is alive, and a token that no other driver has.

    The token fences: when a run is taken over, even inside one process, the previous driver cannot continue.
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
    """One journaled step of a run."""

    run_id: str
    seq: int
    name: str
    at: datetime
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run(Plain):
    """One execution of one plan, as in the journal."""

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
    lease_term: int | None = None  # the term of the worker's lease; None for a run started by hand

    JSON_KEYS = "id table job state reason started_at ended_at owner trigger counters snapshot_ids plan"


class Progress(Protocol):
    def begin(self, what: str, total_bytes: int) -> None:
        """Work of this size starts."""

    def advance(self, done_bytes: int) -> None:
        """This much more is done."""

    def note(self, text: str) -> None:
        """An event that deserves a line: a commit, a skipped group."""

    def end(self) -> None:
        """The work has ended, with or without success."""


class Silent:
    def begin(self, what: str, total_bytes: int) -> None: ...

    def advance(self, done_bytes: int) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...
