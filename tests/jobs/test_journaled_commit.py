"""The frames of jobs: a commit is journaled before and after, lost outputs are removed, unknown ones stay; units end together."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.errors import CommitDeclined, CommitLost, CommitUnknown, LakewardenError, Stopped
from lakewarden.jobs import units
from lakewarden.jobs.cold import handoff
from lakewarden.jobs.compact import execute as compact
from lakewarden.jobs.journaled_commit import CleanupResult, CommitResult, intent_of, journaled_commit
from lakewarden.jobs.run_context import StepName, Stop
from lakewarden.model.actions import HandOff
from lakewarden.model.run import RunState
from tests.support.tables import TABLE

INTENT = intent_of([0], ["a.parquet"], {"lineage.run_id": "r", "lineage.group": "0"})


class Context:
    """The part of a run's surroundings that the frames use. Everything that happens is in `events`."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.stop = Stop()
        self.spark = None
        self.progress = SimpleNamespace(
            begin=lambda title, total: self.events.append(f"begin {title} {total}"),
            end=lambda: self.events.append("end"),
        )

    def step(self, name: StepName, detail: Mapping[str, Any]) -> None:
        self.events.append(f"{name} {detail.get('snapshot_id', '-')}")


def run(
    context: Any, error: LakewardenError | None = None, fate: CleanupResult = CleanupResult.GONE, **more: Any
) -> CommitResult[int]:
    def commit() -> int:
        context.events.append("commit")
        if error is not None:
            raise error
        return 7

    def discard(error: CommitLost) -> CleanupResult:
        context.events.append("discard")
        return fate

    return journaled_commit(
        context, INTENT, commit, lambda id_: {**INTENT, "snapshot_id": id_}, discard=discard, **more
    )


def test_the_intent_is_journaled_first_and_the_outcome_last() -> None:
    context = Context()
    result = run(context)
    assert result.done and result.value == 7
    assert context.events == ["committing -", "commit", "committed 7"]


def test_outputs_of_a_lost_commit_are_removed() -> None:
    context = Context()
    result = run(context, CommitLost(table=TABLE, reason="others came first"))
    assert result.state is RunState.LOST_RACE and "others came first" in result.reason
    assert context.events == ["committing -", "commit", "discard"]


def test_a_commit_reported_lost_is_done_if_the_table_names_its_outputs() -> None:
    context = Context()
    result = run(context, CommitLost(table=TABLE, reason="a wrong answer"), CleanupResult.COMMITTED)
    assert result.done and result.value is None
    assert context.events == ["committing -", "commit", "discard", "committed None"]


def test_a_lost_commit_is_unknown_if_the_table_cannot_be_asked() -> None:
    result = run(Context(), CommitLost(table=TABLE, reason="?"), CleanupResult.UNTOLD)
    assert result.state is RunState.UNKNOWN


@pytest.mark.parametrize("error", [CommitUnknown, CommitDeclined])
def test_outputs_of_a_commit_that_may_still_arrive_stay(error: type[LakewardenError]) -> None:
    context = Context()
    result = run(context, error(table=TABLE, reason="no answer"))
    assert result.state is (RunState.UNKNOWN if error is CommitUnknown else RunState.FAILED)
    assert context.events == ["committing -", "commit"]


def test_a_declined_rewrite_without_outputs_is_not_told_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its rows were deleted. Its commit may still arrive, as one with outputs may."""
    context: Any = Context()
    context.progress.note = lambda text: None

    def decline(*rewrite: object) -> int:
        raise CommitDeclined(table=TABLE, reason="403")

    context.writer = SimpleNamespace(commit_rewrite=decline)
    rewriting: Any = object.__new__(compact._Rewriting)
    rewriting.context, rewriting.stop, rewriting.committing = context, threading.Event(), threading.Lock()
    rewriting._rewrite = lambda written: SimpleNamespace(
        added=(), summary={"lineage.run_id": "r", "lineage.group": "0"}
    )
    rewriting._arrivals = lambda written: None
    rewriting._discard = lambda *what: pytest.fail("files of a declined commit were removed")
    (result,) = rewriting._commit([SimpleNamespace(group=SimpleNamespace(number=0, partition="p"))])
    assert result.state is RunState.FAILED
    assert context.events == ["committing -", "skipped -"]


def test_a_hand_off_that_another_process_took_over_before_its_first_step_has_lost() -> None:
    def make(*what: object) -> None:
        raise CommitLost(table=TABLE, reason="taken over")

    context: Any = Context()
    context.writer = SimpleNamespace(cold=lambda: SimpleNamespace(make=make))
    plan = SimpleNamespace(actions=(HandOff((1,), "cold", 1, 1, 0, "old"),))
    prepared: Any = SimpleNamespace(plan=plan, view=SimpleNamespace(ref=TABLE), more=None)
    deps: Any = SimpleNamespace(state=None)
    ended = handoff.execute(prepared, deps, context)
    assert ended.state is RunState.LOST_RACE
    assert [event for event in context.events if not event.startswith(("begin", "end"))] == []


def test_nothing_is_journaled_after_a_stop() -> None:
    context = Context()
    assert run(context, alone=threading.Lock(), stopped=lambda: True).state is RunState.INTERRUPTED
    assert not context.events


def test_other_errors_pass_and_remove_nothing() -> None:
    context = Context()
    with pytest.raises(Stopped):
        run(context, Stopped(reason="asked"))
    assert context.events == ["committing -", "commit"]


def test_units_in_order_end_at_the_last_one_and_at_a_stop() -> None:
    context: Any = Context()
    assert units.run_units(context, "t", [1, 2, 3], lambda each: each, last=lambda each: each == 2) == [1, 2]
    context.stop.ask("asked")
    with pytest.raises(Stopped):
        units.run_units(context, "t", [1], lambda each: each, total=5)
    assert context.events == ["begin t 0", "end", "begin t 5", "end"]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "parallelism", lambda spark: 2)


def test_a_unit_that_raises_stops_the_others(cores: None) -> None:
    context: Any = Context()
    cancelled = []

    def work(unit: int) -> int:
        if unit == 1:
            raise ValueError("broken")
        assert context.stop.event.wait(30)
        return unit

    with pytest.raises(ValueError, match="broken"):
        units.run_units_at_once(context, [0, 1], work, lambda: cancelled.append(True))
    assert cancelled == [True]


def test_after_an_error_units_of_many_jobs_are_cancelled_again_and_again(cores: None) -> None:
    context: Any = Context()
    third = threading.Event()
    cancelled: list[bool] = []

    def cancel() -> None:
        cancelled.append(True)
        if len(cancelled) == 3:
            third.set()

    def work(unit: int) -> None:
        if unit == 1:
            raise ValueError("broken")
        assert third.wait(10), "only the first of its jobs was cancelled"

    with pytest.raises(ValueError, match="broken"):
        units.run_units_at_once(context, [1, 0], work, cancel, repeat=True)
    assert len(cancelled) >= 3


def test_a_cancel_stops_all_units(cores: None) -> None:
    context: Any = Context()
    seen = threading.Event()

    def work(unit: int) -> int:
        if unit == 1:
            context.stop.ask("cancelled")
        assert seen.wait(30)
        return unit

    results, interrupted = units.run_units_at_once(context, [0, 1], work, seen.set)
    assert results == [0, 1] and interrupted
