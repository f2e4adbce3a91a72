"""The frames of jobs: a commit is journaled before and after, lost outputs are removed, unknown ones stay; units end together."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.errors import CommitDeclined, CommitLost, CommitUnknown, LakewardenError, Stopped
from lakewarden.jobs import units
from lakewarden.jobs.journaled_commit import CleanupResult, CommitResult, intent_of, journaled_commit
from lakewarden.jobs.run_context import StepName, Stop
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
