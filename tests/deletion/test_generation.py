"""The generation of the state database: the same on SQLite and PostgreSQL, and what each of them tells by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import psycopg
import pyarrow as pa
import pytest

from lakewarden import clock
from lakewarden.state.database import State
from lakewarden.state.generation import Generation, Generations
from lakewarden.state.holds import Load, Loads, LoadState, Pin, Pins
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.trash import TrashedFiles
from tests.support.postgres import Database, Postgres

pytestmark = pytest.mark.services

GRACES = {"expire": timedelta(hours=24)}


def trashed(state: State) -> TrashedFiles:
    files = TrashedFiles(state)
    made = pa.table({"path": ["/t/a"], "kind": ["data"], "size": [1], "stamp": ["x"]})
    then = clock.now() - timedelta(days=3)
    files.trash("run", "lake.db.t", "u", "expire", "", made, {}, then)
    files.enforce("run", then)
    return files


def due(files: TrashedFiles) -> int:
    return sum(page.num_rows for page in files.due("u", GRACES, clock.now()))


def pin(name: str) -> Pin:
    return Pin(name, "lake.db.t", "u", 7, "me", "", clock.now(), None)


@pytest.mark.main
def test_it_grows_with_what_protects_and_with_each_deletion(state: State) -> None:
    first = Generations(state).confirm(None, clock.now())
    assert not first.restored
    Pins(state).add(pin("p"))
    trashed(state).restore("lake.db.t", path="/t/a", now=clock.now())
    second = Generations(state).confirm(first.generation.to_json(), clock.now())
    assert not second.restored and second.generation.number == first.generation.number + 3


def test_policies_and_staged_loads_protect_too(state: State) -> None:
    """A longer retention that was set, or files on their way into a table, are forgotten like a pin."""
    before = number(state)
    StoredPolicies(state).set("lake.db.t", {"snapshot_retention_hours": 9000}, "me", clock.now())
    StoredPolicies(state).unset("lake.db.t", ["snapshot_retention_hours"])
    StoredPolicies(state).reset("lake.db.t")
    load = Load("l", "lake.db.t", "u", "me", "", LoadState.OPEN, ("/t/x",), (), clock.now())
    Loads(state).begin(load)
    assert number(state) == before + 5


def number(state: State) -> int:
    return Generations(state).confirm(None, clock.now()).generation.number


def test_a_witness_that_knows_more_starts_every_grace_again(state: State) -> None:
    files = trashed(state)
    assert due(files) == 1
    known = Generations(state).confirm(None, clock.now()).generation
    later = replace(known, number=known.number + 5)
    found = Generations(state).confirm(later.to_json(), clock.now())
    assert "the table's folder has generation" in found.restored
    assert due(files) == 0
    assert found.generation.number > later.number, "it is said once"
    assert not Generations(state).confirm(found.generation.to_json(), clock.now()).restored


@pytest.mark.parametrize(
    "content",
    [
        b'{"generation": 99',
        b'{"generation": 9223372036854775806}',
        b'{"generation": 9223372036854775806, "seal": "00"}',
        Generation("other", 9223372036854775806).to_json(),
    ],
    ids=["cut short", "without a seal", "with a wrong seal", "of another database"],
)
def test_what_a_tables_writer_put_there_says_nothing(state: State, content: bytes) -> None:
    """Else one table's writer would start every grace of the lake again, or hide that a database was restored."""
    files = trashed(state)
    before = number(state)
    found = Generations(state).confirm(content, clock.now())
    assert not found.restored and found.generation.number == before + 1
    assert due(files) == 1
    assert found.generation.database not in found.generation.to_json().decode()


def test_an_operator_may_say_so(state: State) -> None:
    files = trashed(state)
    assert Generations(state).restored(clock.now()) == 1
    assert due(files) == 0


@pytest.mark.parametrize("said", [False, True], ids=["noticed", "said by an operator"])
def test_it_is_noticed_once_and_not_again_for_each_table(state: State, said: bool) -> None:
    known = Generations(state).confirm(None, clock.now()).generation
    first, second = (replace(known, number=known.number + each).to_json() for each in (5, 900))
    if said:
        Generations(state).restored(clock.now())
    else:
        assert Generations(state).confirm(first, clock.now()).restored
    assert not Generations(state).confirm(second, clock.now()).restored


@pytest.fixture
def copied(postgres: Postgres, pg_database: Database) -> Iterator[State]:
    """As `pg_restore` leaves it: the same rows in another database."""
    state = State.open(pg_database.url)
    trashed(state)
    Generations(state).confirm(None, clock.now())
    state.close()
    copy = replace(pg_database, name=f"{pg_database.name}_copy")
    with psycopg.connect(postgres._admin_dsn(), autocommit=True) as connection:
        connection.execute(f'create database "{copy.name}" template "{pg_database.name}"'.encode())
    opened = State.open(copy.url)
    yield opened
    opened.close()


def test_a_copy_of_a_postgresql_tells_that_it_is_one(copied: State) -> None:
    files = TrashedFiles(copied)
    assert due(files) == 1
    assert "timeline" in (why := Generations(copied).confirm(None, clock.now()).restored) and "is at" in why
    assert due(files) == 0
    assert not Generations(copied).confirm(None, clock.now()).restored
