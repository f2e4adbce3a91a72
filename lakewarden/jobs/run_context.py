"""The surroundings of a run, the names of its journaled steps, its plan and outcome, and how it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from weakref import WeakSet

from lakewarden import clock
from lakewarden.config.schema import BudgetsConfig
from lakewarden.errors import Stopped
from lakewarden.model.files import FileSet
from lakewarden.model.plan import Plan
from lakewarden.model.run import Owner, Progress, Run, RunState, Trigger
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.spark.task_slots import TaskSlots
from lakewarden.state import run_queries
from lakewarden.state.runs import Journal
from lakewarden.tables.interface import TableFormat, TableWriter


class StepName(StrEnum):
    """The journaled steps of a rewrite. A process may stop before or after any of them; `recover` handles each case."""

    WRITING = "writing"  # outputs may exist from here on, under the journaled prefixes
    COMMITTING = "committing"  # the commit may have happened from here on
    CARRYING = (
        "carrying"  # deletes arrived during the rewrite: a delete file for an output may exist from here on
    )
    COMMITTED = "committed"
    DISCARDED = "discarded"  # outputs of a group that was not committed are gone
    EVIDENCE = "evidence"  # the rows written differ from the rows read; the outputs stay
    SKIPPED = "skipped"  # a group was skipped, with the reason
    RECOVERED = "recovered"  # another run settled what this one left open


class DeletingStep(StrEnum):
    """The journaled steps of jobs that mark and delete. A process may stop after any of them."""

    TRASHING = "trashing"  # a deletion batch is in the state database; it is not in force yet
    EXPIRING = run_queries.EXPIRING  # snapshots may be gone from the metadata from here on
    TRASHED = run_queries.TRASHED  # the deletion batch is in force: the grace period has begun
    HANDING = "handing"  # copies of files may exist in the colder tier from here on
    HANDED = "handed"  # the cold table has the snapshots
    ERASING = "erasing"  # files of a batch may be gone from here on
    ERASED = "erased"  # a batch has its receipts
    ADOPTING = "adopting"  # a staged load's files may be part of the table from here on
    ADOPTED = "adopted"


class ColdStep(StrEnum):
    """The journaled steps of handoff inside the colder tier."""

    AGEING = "ageing"  # copies of a portion may be in a deeper class from here on
    AGED = "aged"
    RELEASING = "releasing"  # snapshots may be gone from the cold table from here on
    RELEASED = "released"  # the deletion batch with their files is in force


class HistoryStep(StrEnum):
    """The journaled steps of compact-history, for each month."""

    FOLDING = "folding"  # entries may be in a detail from here on, or a file that nothing names may be left
    FOLDED = "folded"


class Stop:
    """How a run is stopped: by an operator's cancel, or by a worker that shuts down or is no longer the
    leader. Once set, it stays set. The run itself may also set `event` to end its own threads: then there
    is no reason.

    Ctrl-C reaches the main thread only. Runs of a worker are on other threads, so each has a `Stop` that
    any thread may set. The run checks it at moments when no work is half done.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.reason = ""
        self._lock = threading.Lock()
        self._children: WeakSet[Stop] = WeakSet()

    @property
    def asked(self) -> bool:
        return bool(self.reason)

    def ask(self, reason: str) -> None:
        """Set the stop. The first reason stays. Stops made by `child` are set too."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            children = tuple(self._children)
        self.event.set()
        for each in children:
            each.ask(reason)

    def child(self) -> Stop:
        """A stop that can be set alone, and that is set together with this one."""
        made = Stop()
        with self._lock:
            self._children.add(made)
            reason = self.reason
        if reason:
            made.ask(reason)
        return made

    def check(self) -> None:
        """Raises Stopped if the stop is set. Called where no work is half done."""
        if self.reason:
            raise Stopped(reason=self.reason)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The surroundings of one run. All its effects go through here."""

    run_id: str
    owner: Owner
    trigger: Trigger
    spark: Any
    format: TableFormat
    writer: TableWriter  # behind the run's guard
    journal: Journal
    progress: Progress
    task_memory: int
    budgets: BudgetsConfig = field(default_factory=BudgetsConfig)
    slots: TaskSlots | None = None
    stop: Stop = field(default_factory=Stop)
    # Groups whose commit may have happened. Only `step` adds to it, so no journaled commit is forgotten.
    begun: set[int] = field(default_factory=set)

    def step(self, name: StepName | DeletingStep | ColdStep | HistoryStep, detail: Mapping[str, Any]) -> None:
        """Journal the step. Raises RunTaken if another process took the run over: then this one must stop."""
        if name is StepName.COMMITTING:
            self.begun.update(detail["groups"])
        self.journal.step(self.run_id, self.owner, name, detail, clock.now())


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan, its inputs, and the data that its execution needs. Only the job itself knows the type of `more`."""

    plan: Plan
    view: TableView
    policy: Policy
    files: FileSet | None = None
    more: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    state: RunState
    reason: str
    counters: Mapping[str, Any] = field(default_factory=dict)
    snapshot_ids: tuple[int, ...] = ()


def finish(journal: Journal, run: Run, owner: Owner, outcome: Outcome) -> Run:
    now = clock.now()
    counters = {**outcome.counters, "seconds": round((now - run.started_at).total_seconds(), 2)}
    return journal.finish(run.id, outcome.state, outcome.reason, counters, outcome.snapshot_ids, now, owner)
