"""PostgreSQL that takes no change for some seconds, as during a failover: an outage, and not the end of any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest

from lakewarden.errors import CommitLost, Unreachable
from lakewarden.model.run import Owner
from lakewarden.model.table import TableRef
from lakewarden.state.database import State
from lakewarden.state.locks import Leases, Lock, Locks
from lakewarden.worker.leader import Leadership
from tests.support.ports import wait_until
from tests.support.postgres import Database, Postgres

pytestmark = pytest.mark.services

TABLE = TableRef("pm", ("db",), "events")
ME, OTHER = Owner("here", 1, 1.0), Owner("there", 2, 1.0)


@pytest.fixture
def state(pg_database: Database) -> Iterator[State]:
    opened = State.open(pg_database.url)
    yield opened
    opened.close()


def locked(state: State, owner: Owner, ttl: float, wait: float = 60) -> AbstractContextManager[Lock]:
    return Locks(state, owner, timedelta(seconds=ttl), timedelta(seconds=wait)).held(TABLE, "/lake")


def renewing(before: set[threading.Thread]) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "lakewarden-lock" and each not in before]


def test_a_database_that_is_read_only_is_away(
    postgres: Postgres, pg_database: Database, state: State
) -> None:
    with postgres.read_only(pg_database):
        assert Leases(state).current() is None, "it can be read"
        with pytest.raises(Unreachable, match="read-only transaction"):
            Leases(state).take(ME, timedelta(seconds=30))
    assert Leases(state).take(ME, timedelta(seconds=30)) is not None


def test_a_lock_outlives_a_failover_that_is_shorter_than_its_time(
    postgres: Postgres, pg_database: Database, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    with locked(state, ME, ttl=9) as lock:
        with postgres.read_only(pg_database):
            wait_until(lambda: "cannot renew the lock" in caplog.text, "a renewal has failed", 20)
        began = lock.until
        wait_until(lambda: lock.until > began, "it is renewed again", 20)
        assert len(renewing(before)) == 1 and lock.lasts()
        lock.check()
        with pytest.raises(CommitLost), locked(state, OTHER, ttl=9, wait=0.2):
            pytest.fail("two have it")


def test_a_lock_whose_renewal_stopped_is_not_believed_by_its_holder(
    postgres: Postgres, pg_database: Database, state: State
) -> None:
    with locked(state, ME, ttl=1.5) as lock:
        with postgres.read_only(pg_database):
            wait_until(lambda: not lock.lasts(), "its time is over", 20)
            with pytest.raises(CommitLost, match="expired before the commit began"):
                lock.check()  # without an answer from the database
        with locked(state, OTHER, ttl=30) as taken:
            taken.check()
            assert not lock.lasts()
            with pytest.raises(CommitLost, match="expired before the commit began"):
                lock.check()


def test_a_leader_leads_again_after_a_failover(
    postgres: Postgres, pg_database: Database, state: State
) -> None:
    lead = Leadership(Leases(state), ME, 3.0)
    with lead.kept():
        wait_until(lambda: lead.term == 1, "it leads", 20)
        with postgres.read_only(pg_database):
            wait_until(lambda: lead.term is None, "it leads no more", 20)
        wait_until(lambda: lead.term is not None, "it leads again", 20)
