"""Old rows go without keeping the leader from its lease, and only those that nobody asks for: the same on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import event, func, select

from lakewarden.state import slices
from lakewarden.state.database import State
from lakewarden.state.health import HealthRecords, Numbers
from lakewarden.state.schema import health_history

pytestmark = pytest.mark.services

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TABLE = "lake.db.events"


@contextmanager
def told(state: State) -> Iterator[list[str]]:
    """What the database is told meanwhile: each statement's first word, and where transactions end."""
    said: list[str] = []

    def statement(_connection: Any, _cursor: Any, words: str, *_rest: Any) -> None:
        said.append(words.split()[0])

    def commit(_connection: Any) -> None:
        said.append("COMMIT")

    event.listen(state.engine, "before_cursor_execute", statement)
    event.listen(state.engine, "commit", commit)
    try:
        yield said
    finally:
        event.remove(state.engine, "before_cursor_execute", statement)
        event.remove(state.engine, "commit", commit)


def transactions(said: list[str]) -> list[list[str]]:
    return [list(words) for end, words in groupby(said, key=lambda each: each == "COMMIT") if not end]


def point(state: State, table: str, *moments: datetime) -> None:
    numbers = Numbers(files=1).to_dict()
    rows = [{"table_name": table, "at": at, "score": 1, "numbers": numbers} for at in moments]
    with state.write() as connection:
        connection.execute(health_history.insert(), rows)


def moments(state: State, table: str) -> list[datetime]:
    wanted = select(health_history.c.at).where(health_history.c.table_name == table)
    with state.read() as connection:
        return list(connection.execute(wanted.order_by(health_history.c.at)).scalars())


# ------------------------------------------------------------ thinning


def test_history_that_is_thin_already_is_read_and_not_written(state: State) -> None:
    point(state, TABLE, *(NOW - number * HOUR for number in range(100)))
    with state.write(), told(state) as said:  # SQLite has one writer: another would wait for this one
        assert HealthRecords(state).thin([(NOW, HOUR)]) == 0
    assert "SELECT" in said and "DELETE" not in said


def test_history_is_thinned_in_slices_chosen_before_they_are_written(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE", 20)
    for name in ("a", "b", "c"):
        point(state, f"lake.db.{name}", *(NOW - number * timedelta(minutes=15) for number in range(1, 97)))
    with told(state) as said:
        gone = HealthRecords(state).thin([(NOW, HOUR), (NOW - 12 * HOUR, 6 * HOUR)])
    assert gone == 3 * (96 - 12 - 2)
    writes = [each for each in transactions(said) if "DELETE" in each]
    assert len(writes) == -(-gone // 20), "each slice is a transaction of its own"
    assert not any("SELECT" in each for each in writes), "nothing is chosen while others wait"
    left = moments(state, "lake.db.b")
    assert left == moments(state, "lake.db.a") == moments(state, "lake.db.c")
    assert left == [
        NOW - 18 * HOUR - timedelta(minutes=15), NOW - 12 * HOUR - timedelta(minutes=15),
        *(NOW - number * HOUR - timedelta(minutes=15) for number in range(11, -1, -1)),
    ]  # fmt: skip


def test_at_most_so_many_go_at_once_and_the_next_call_goes_on(state: State) -> None:
    point(state, TABLE, *(NOW - number * timedelta(minutes=1) for number in range(1, 121)))
    records = HealthRecords(state)
    assert [records.thin([(NOW, HOUR)], most=100) for _ in range(3)] == [100, 18, 0]
    with state.read() as connection:
        assert connection.execute(select(func.count()).select_from(health_history)).scalar_one() == 2
