"""Pins, heartbeats and staged loads in the database: the same promises on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakewarden.state.database import State
from lakewarden.state.holds import Heartbeats, Load, Loads, LoadState, Pin, Pins

pytestmark = [pytest.mark.services, pytest.mark.main]

NOW = datetime(2026, 11, 16, 0, 30, 12, 345678, tzinfo=UTC)
HOUR = timedelta(hours=1)
TABLE = "lake.db.events"
PIN = Pin("p1", TABLE, "u1", 5781947118336215154, "report", "month end", NOW, NOW + HOUR, "lakewarden-pin-p1")
LOAD = Load("l1", TABLE, "u1", "ana", "backfill", LoadState.OPEN, ("/a", "/b"), ("/c/",), NOW, NOW + HOUR)


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def one(index: int) -> None:
        barrier.wait(30)
        results[index] = act(index)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


# ------------------------------------------------------------ pins


def test_a_pin_comes_back_as_it_was(state: State) -> None:
    pins = Pins(state)
    pins.add(PIN)
    forever = replace(PIN, id="p2", table="lake.db.other", expires_at=None, tag=None)
    pins.add(forever)
    assert pins.get("p1") == PIN
    assert pins.list() == (PIN, forever)
    assert pins.list(TABLE) == (PIN,)
    assert pins.get("p3") is None


def test_pins_count_by_uuid_until_they_end(state: State) -> None:
    pins = Pins(state)
    pins.add(PIN)
    pins.add(replace(PIN, id="p2", table_uuid="u2"))
    assert pins.live("u1", NOW) == (PIN,)
    assert pins.live("u1", NOW + HOUR) == ()


def test_a_pin_that_is_over_cannot_be_renewed(state: State) -> None:
    pins = Pins(state)
    pins.add(PIN)
    renewed = pins.renew("p1", NOW + 2 * HOUR, NOW)
    assert renewed == replace(PIN, expires_at=NOW + 2 * HOUR) == pins.get("p1")
    assert pins.renew("p1", None, NOW + 2 * HOUR) is None
    assert pins.renew("nobody", None, NOW) is None
    assert pins.get("p1") == renewed


def test_a_pin_is_removed_once(state: State) -> None:
    pins = Pins(state)
    pins.add(PIN)
    assert sorted(at_once(4, lambda _: pins.remove("p1"))) == [False, False, False, True]
    assert pins.list() == ()


# ------------------------------------------------------------ heartbeats


def test_a_writer_started_when_it_was_first_heard_of(state: State) -> None:
    beats = Heartbeats(state)
    beats.beat(TABLE, "etl", "host", (), HOUR, NOW)
    later = NOW + timedelta(minutes=59)
    beats.beat(TABLE, "etl", "other", ("/a/", "/b/"), HOUR, later)
    (found,) = beats.list(TABLE)
    assert (found.started_at, found.beat_at, found.host) == (NOW, later, "other")
    assert found.prefixes == ("/a/", "/b/") and found.until == later + HOUR


def test_a_writer_that_fell_silent_starts_anew(state: State) -> None:
    beats = Heartbeats(state)
    beats.beat(TABLE, "etl", "host", (), HOUR, NOW)
    assert beats.beat(TABLE, "etl", "host", (), HOUR, NOW + HOUR).started_at == NOW + HOUR
    assert len(beats.list(TABLE)) == 1


def test_writers_are_told_apart_and_stopped(state: State) -> None:
    beats = Heartbeats(state)
    at_once(4, lambda index: beats.beat(TABLE, f"w{index % 2}", "host", (), HOUR, NOW))
    beats.beat("lake.db.other", "w0", "host", (), HOUR, NOW)
    assert [each.writer for each in beats.list(TABLE)] == ["w0", "w1"]
    assert beats.stop(TABLE, "w0") and not beats.stop(TABLE, "w0")
    assert [each.writer for each in beats.list(TABLE)] == ["w1"]
    assert len(beats.list("lake.db.other")) == 1


# ------------------------------------------------------------ staged loads


def test_a_load_comes_back_as_it_was(state: State) -> None:
    loads = Loads(state)
    loads.begin(LOAD)
    assert loads.get("l1") == LOAD
    assert loads.list(TABLE) == loads.list(state=LoadState.OPEN) == (LOAD,)
    assert loads.list(state=LoadState.FAILED) == loads.list("lake.db.other") == ()


def test_a_load_is_held_whichever_table_it_is_for_until_it_ends(state: State) -> None:
    loads = Loads(state)
    loads.begin(LOAD)
    loads.begin(replace(LOAD, id="l2", table_uuid=""))
    loads.begin(replace(LOAD, id="l3", table="lake.db.renamed"))
    loads.begin(replace(LOAD, id="l4", table="lake.db.other", table_uuid="u2"))
    assert [each.id for each in loads.live(NOW)] == ["l1", "l2", "l3", "l4"]
    assert loads.live(NOW + HOUR) == ()


def test_adopting_and_failing_cannot_both_win(state: State) -> None:
    """Each acts on the load as it saw it: whoever comes second finds that it changed."""
    loads = Loads(state)
    for number in range(8):
        seen = replace(LOAD, id=f"l{number}")
        loads.begin(seen)
        acts: list[Callable[[], bool]] = [
            lambda seen=seen: loads.claim(seen, "r1", seen.paths),  # type: ignore[misc]
            lambda seen=seen: loads.end(seen, LoadState.FAILED, NOW),  # type: ignore[misc]
        ]
        assert sorted(at_once(2, lambda index, acts=acts: acts[index]())) == [False, True]


def test_an_ended_load_does_not_change_again(state: State) -> None:
    loads = Loads(state)
    loads.begin(LOAD)
    assert loads.claim(LOAD, "r1", ("/a",))
    claimed = loads.get("l1")
    assert claimed is not None and (claimed.run_id, claimed.paths) == ("r1", ("/a",))
    assert not loads.claim(LOAD, "r2", ("/b",)), "it is another's since"
    assert loads.end(claimed, LoadState.ADOPTED, NOW)
    assert not loads.end(claimed, LoadState.FAILED, NOW)
    ended = loads.get("l1")
    assert ended is not None and (ended.state, ended.ended_at) == (LoadState.ADOPTED, NOW)
