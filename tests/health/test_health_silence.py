"""Catalogs and tables that do not answer: what is asked of them, what is said, and that the others are looked at all the same."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lakewarden import clock
from lakewarden.config.schema import HealthConfig, PolicyConfig
from lakewarden.health import collect
from lakewarden.health.collect import Collector
from lakewarden.model.table import TableRef
from lakewarden.state.database import State
from lakewarden.state.health import HealthRecords, Numbers, TableHealth

DEAD = ("dead.db.a", "dead.db.b", "dead.db.c")
SLOW = "slow.db.a"


class Silence:
    """A catalog that can be listed or not, and whose tables never answer. Each question takes its time on the test's clock."""

    def __init__(self, catalog: str, tables: tuple[str, ...], time: Time) -> None:
        self.catalog, self.names, self.time = catalog, tables, time
        self.trouble: Exception | None = None
        self.seconds = 0.0
        self.asked: Counter[str] = Counter()

    def tables(self, catalog: str) -> list[TableRef]:
        self.asked["tables"] += 1
        if self.trouble is not None:
            self.time.now += self.seconds
            raise self.trouble
        return [TableRef.parse(each) for each in self.names]

    def version(self, ref: TableRef) -> str:
        self.asked[str(ref)] += 1
        self.time.now += self.seconds
        raise TimeoutError("no answer")


class Time:
    def __init__(self) -> None:
        self.now = 1000.0


class Lake:
    def __init__(self, *silences: Silence) -> None:
        self.all: dict[str, Any] = {each.catalog: each for each in silences}

    def catalogs(self) -> list[str]:
        return list(self.all)

    def format_of(self, catalog: str) -> Any:
        return self.all[catalog]

    def format_for(self, table: TableRef) -> Any:
        return self.all[table.catalog]


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(clock, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State.open(f"sqlite:///{tmp_path}/state.db")


def collector(state: State, *silences: Silence) -> Collector:
    return Collector(state, Lake(*silences), PolicyConfig(), HealthConfig(), threads=1)


def know(state: State, *tables: str) -> None:
    HealthRecords(state).put(
        [TableHealth(each, "u", clock.now(), "v", 90, 1.0, Numbers(files=1)) for each in tables]
    )


def kinds(state: State) -> dict[str, list[str]]:
    return {table: sorted(found) for table, found in HealthRecords(state).open_kinds().items()}


@pytest.mark.parametrize("trouble", [TimeoutError("no answer"), ValueError("nonsense")])
def test_of_a_catalog_that_cannot_be_listed_no_table_is_asked(
    state: State, time: Time, caplog: pytest.LogCaptureFixture, trouble: Exception
) -> None:
    dead, slow = Silence("dead", DEAD, time), Silence("slow", (SLOW,), time)
    dead.trouble = trouble
    know(state, *DEAD)
    looks = collector(state, dead, slow)
    with caplog.at_level(logging.INFO, collect.__name__):
        sweeps = [looks.sweep() for _ in range(3)]
        dead.trouble = None
        looks.sweep()
    assert [(each.tables, each.failed, each.forgotten) for each in sweeps] == [(4, 4, 0)] * 3
    assert slow.asked[SLOW] == 4, "the others are looked at in every sweep"
    assert dead.asked == {"tables": 4, **dict.fromkeys(DEAD, 1)}, "its tables are asked once it can be listed"
    assert [each.getMessage() for each in caplog.records if each.name == collect.__name__] == [
        f"the tables of catalog dead cannot be listed: {type(trouble).__name__}: {trouble}",
        "the tables of catalog dead can be listed again",
    ]
    assert kinds(state) == {each: ["unreadable"] for each in (*DEAD, SLOW)}
    [found, *_] = HealthRecords(state).all()
    assert found.numbers.files == 1, "what was known of it stays"


def test_a_catalog_that_lets_us_wait_is_asked_less_often(state: State, time: Time) -> None:
    dead = Silence("dead", DEAD, time)
    dead.trouble, dead.seconds = TimeoutError("no answer"), 30.0
    know(state, *DEAD)
    looks = collector(state, dead)
    for _ in range(10):
        assert looks.sweep().failed == 3
        time.now += 60
    assert dead.asked == {"tables": 2}, "every five minutes, where each answer takes half of one"


def test_a_table_that_takes_long_to_fail_is_asked_less_often_once_it_was_told(
    state: State, time: Time
) -> None:
    slow = Silence("slow", (SLOW,), time)
    slow.seconds = 30.0
    looks = collector(state, slow)
    assert [looks.sweep().tables for _ in range(4)] == [1, 1, 0, 0]
    assert kinds(state) == {SLOW: ["unreadable"]}, "the second one in a row"
    assert [each.error for each in HealthRecords(state).all()] == ["TimeoutError: no answer"]
    time.now += 30 / 0.02
    assert looks.sweep().tables == 1 and slow.asked[SLOW] == 3
    assert looks.sweep([TableRef.parse(SLOW)]).tables == 1, "who asks for it is answered"
