"""The lock on a table's commits: the same promises on SQLite and PostgreSQL, between threads and between processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from lakewarden import clock
from lakewarden.errors import CommitLost
from lakewarden.model.run import Owner
from lakewarden.model.table import TableRef
from lakewarden.state.database import State
from lakewarden.state.locks import Lock, Locks
from lakewarden.state.schema import commit_locks

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[2]
TABLE = TableRef("pm", ("db",), "events")
PLACE = "/lake/db.db/events"
ME, OTHER = Owner("here", 1, 1.0), Owner("there", 2, 1.0)


def locked(
    state: State, owner: Owner = ME, ttl: float = 30, wait: float = 60, place: str = PLACE
) -> AbstractContextManager[Lock]:
    return Locks(state, owner, timedelta(seconds=ttl), timedelta(seconds=wait)).held(TABLE, place)


def end_now(state: State) -> None:
    """As if its time had gone by without a renewal."""
    with state.write() as connection:
        connection.execute(update(commit_locks).values(until=clock.now() - timedelta(seconds=60)))


def rows(state: State) -> list[str]:
    with state.read() as connection:
        return [row.host for row in connection.execute(select(commit_locks))]


@pytest.mark.main
def test_who_comes_second_hears_who_has_it_and_nothing_is_left_behind(state: State) -> None:
    with locked(state) as lock:
        lock.check()
        with (
            pytest.raises(CommitLost, match=r"commit to pm\.db\.events: another Lakewarden \(here pid 1\)"),
            locked(state, OTHER, wait=0.2),
        ):
            pytest.fail("two have it")
        with locked(state, OTHER, wait=0.2, place="/lake/db.db/other"):
            assert sorted(rows(state)) == ["here", "there"]
    assert rows(state) == []


def test_an_error_under_it_lets_it_go(state: State) -> None:
    with pytest.raises(ZeroDivisionError), locked(state):
        raise ZeroDivisionError
    assert rows(state) == []


def test_it_outlives_its_time_while_it_is_held(state: State) -> None:
    with locked(state, ttl=0.6) as lock:
        with pytest.raises(CommitLost), locked(state, OTHER, wait=1.5):
            pytest.fail("two have it")
        lock.check()


@pytest.mark.main
def test_who_lost_it_does_not_commit_and_does_not_free_the_others(state: State) -> None:
    with locked(state) as lock:
        end_now(state)
        with pytest.raises(CommitLost, match="expired before the commit began"):
            lock.check()
        with locked(state, OTHER) as taken:
            with pytest.raises(CommitLost, match="expired before the commit began"):
                lock.check()
            taken.check()
            assert rows(state) == ["there"]
    assert rows(state) == []


def test_who_lost_it_to_another_leaves_that_ones_row(state: State) -> None:
    first = locked(state)
    first.__enter__()
    end_now(state)
    with locked(state, OTHER):
        first.__exit__(None, None, None)
        assert rows(state) == ["there"]


def test_of_many_threads_one_is_inside(state: State) -> None:
    inside, most, done = [0], [0], []
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        barrier.wait(30)
        for _ in range(3):
            with locked(state, Owner("thread", number, 1.0)) as lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                lock.check()
                time.sleep(0.01)
                inside[0] -= 1
                done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert (most[0], len(done), rows(state)) == (1, 18, [])


COUNTING = """
import sys
from datetime import timedelta
from pathlib import Path
from lakewarden.model.table import TableRef
from lakewarden.state.database import State
from lakewarden.state.locks import Locks
from lakewarden.state.process import current_owner

state, file = State.open(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(10):
    with Locks(state, current_owner()).held(TableRef("pm", ("db",), "events"), "/lake") as lock:
        lock.check()
        file.write_text(str(int(file.read_text()) + 1))
"""

HOLDING = """
import sys, time
from datetime import timedelta
from lakewarden.model.table import TableRef
from lakewarden.state.database import State
from lakewarden.state.locks import Locks
from lakewarden.state.process import current_owner

ttl = timedelta(seconds=1)
with Locks(State.open(sys.argv[1]), current_owner(), ttl).held(TableRef("pm", ("db",), "events"), sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_count_in_one_file_miss_nothing(url: str, tmp_path: Path) -> None:
    State.open(url).close()
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = [child(COUNTING, url, str(counter)) for _ in range(3)]
    for each in children:
        assert each.stdout is not None and each.stdin is not None
        assert each.stdout.readline() == "ready\n"
    for each in children:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    assert [each.wait(120) for each in children] == [0, 0, 0]
    assert counter.read_text() == "30"


def test_a_killed_process_keeps_it_no_longer_than_its_time(url: str, state: State) -> None:
    killed = child(HOLDING, url, PLACE)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "held\n"
    time.sleep(1.5)  # longer than its time: it is renewed while its process lives
    with pytest.raises(CommitLost), locked(state, wait=0.1):
        pytest.fail("two have it")
    killed.kill()
    killed.wait(20)
    began = clock.monotonic()
    with locked(state, wait=20):
        assert clock.monotonic() - began < 10
