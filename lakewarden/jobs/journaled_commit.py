"""The frame of every commit of a run: check again, journal the intent, commit, journal the outcome.

A commit has three outcomes. Committed: the table has it. Lost: nothing changed, and what was written for it is
removed, but only after the table was asked whether it names those files. Unknown: nothing is removed, and the
next run asks the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from lakewarden.errors import CommitDeclined, CommitLost, CommitNotSent, CommitRefused, CommitUnknown
from lakewarden.jobs.run_context import ColdStep, DeletingStep, HistoryStep, RunContext, StepName
from lakewarden.model.run import RunState

T = TypeVar("T")
Step = StepName | DeletingStep | ColdStep | HistoryStep

_KEYS = ("lineage.run_id", "lineage.group")


class CleanupResult(Enum):
    """What happened to outputs that were to be removed."""

    GONE = "gone"
    COMMITTED = "committed"  # the table names at least one of them: all of them stay
    UNTOLD = "untold"  # the table cannot be read: all of them stay


@dataclass(frozen=True, slots=True)
class CommitResult(Generic[T]):
    """How one commit ended. `value` is what the format's library returned; None if the commit was reported lost
    but the table has it.
    """

    state: RunState
    reason: str = ""
    value: T | None = None
    error: CommitLost | CommitUnknown | None = None

    @property
    def done(self) -> bool:
        return self.state is RunState.DONE


def intent_of(groups: list[int], outputs: list[str], summary: Mapping[str, str]) -> dict[str, Any]:
    """The detail of COMMITTING: with the keys of the summary, the next run finds the snapshot in the table."""
    return {"groups": groups, "outputs": outputs, "summary": {key: summary[key] for key in _KEYS}}


def nothing_written(error: CommitLost) -> CleanupResult:
    """For commits that write no files of their own."""
    return CleanupResult.GONE


def journaled_commit(
    context: RunContext,
    intent: Mapping[str, Any],
    commit: Callable[[], T],
    outcome: Callable[[T | None], Mapping[str, Any]],
    *,
    discard: Callable[[CommitLost], CleanupResult] = nothing_written,
    steps: tuple[Step, Step] = (StepName.COMMITTING, StepName.COMMITTED),
    alone: AbstractContextManager[Any] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> CommitResult[T]:
    """Commit once. Other errors pass through. Code that catches them must not remove files that the commit may
    have added.

    `outcome` does what must follow the commit at once and returns the detail to journal. `discard` removes what
    was written for a lost commit. `alone` is a lock around intent and commit: a process that stops leaves at most
    one commit whose outcome only the table knows. `stopped` is asked inside the lock.
    """
    try:
        with alone or nullcontext():
            if stopped():
                return CommitResult(RunState.INTERRUPTED, "stopped before its commit")
            context.step(steps[0], intent)
            value = commit()
    except CommitLost as error:
        if isinstance(error, CommitDeclined) and intent.get("outputs"):
            # Nothing is removed: a proxy may have sent the request twice, and the first copy may still arrive.
            reason = f"{error.message}; what was written stays until a sweep"
            return CommitResult(RunState.FAILED, reason, error=error)
        fate = discard(error)
        if (
            fate is CleanupResult.COMMITTED
        ):  # the table names the outputs; the snapshot may have expired already
            context.step(steps[1], outcome(None))
            return CommitResult(RunState.DONE)
        return CommitResult(ending(error, fate), error.message, error=error)
    except CommitUnknown as error:
        # Nothing is removed: the table may name the outputs. The next run asks it.
        return CommitResult(RunState.UNKNOWN, error.message, error=error)
    context.step(steps[1], outcome(value))
    return CommitResult(RunState.DONE, value=value)


def ending(error: CommitLost, fate: CleanupResult = CleanupResult.GONE) -> RunState:
    """How a run ends whose commit was reported lost. Unknown is only for commits that were really sent."""
    if isinstance(error, CommitNotSent):
        return RunState.FAILED
    if fate is CleanupResult.UNTOLD:
        return RunState.UNKNOWN
    return RunState.FAILED if isinstance(error, CommitRefused) else RunState.LOST_RACE
