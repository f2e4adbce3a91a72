"""Who leads, what was asked for, and what a leader whose term is over can no longer write: the same on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from lakewarden import clock
from lakewarden.errors import RunTaken, Unreachable
from lakewarden.model.run import Owner, Run, RunState, Trigger
from lakewarden.state.database import State
from lakewarden.state.locks import Lease, Leases
from lakewarden.state.requests import Requests, RequestState
from lakewarden.state.runs import Journal, ProgressPoint, RunProgress, fence, new_run_id
from lakewarden.state.schedule import PASS, SEEN, Suspension, TableSchedule, TableSchedules
from lakewarden.state.schema import leases
from lakewarden.worker.leader import Leadership
from tests.support.ports import wait_until
from tests.support.postgres import Database

pytestmark = [pytest.mark.services, pytest.mark.main]

TTL = timedelta(seconds=30)
TABLE = "lake.db.events"
ANA = Trigger("manual", "ana")


def owner(number: int) -> Owner:
    return Owner(f"host-{number}", number, float(number), f"token-{number}")


def now() -> datetime:
    return clock.now()


def run_out(state: State) -> None:
    """As if the lease's time had gone by."""
    with state.write() as connection:
        connection.execute(update(leases).values(until=clock.now() - timedelta(seconds=60)))


def lead(state: State, number: int = 1, ttl: timedelta = TTL) -> Lease:
    taken = Leases(state).take(owner(number), ttl)
    assert taken is not None
    return taken


# ------------------------------------------------------------ the lease


def test_of_many_who_try_at_once_one_leads(state: State) -> None:
    start = threading.Barrier(8)

    def try_(number: int) -> Lease | None:
        start.wait()
        return Leases(state).take(owner(number), TTL)

    with ThreadPoolExecutor(8) as pool:
        taken = [each for each in pool.map(try_, range(8)) if each is not None]
    assert len(taken) == 1 and taken[0].term == 1 and taken[0].live
    run_out(state)
    with ThreadPoolExecutor(8) as pool:
        again = [each for each in pool.map(try_, range(8)) if each is not None]
    assert len(again) == 1 and again[0].term == 2


def test_a_lease_is_renewed_by_its_holder_only_and_not_after_its_time(state: State) -> None:
    first = lead(state)
    assert Leases(state).renew(first, TTL)
    run_out(state)
    assert not Leases(state).renew(first, TTL), "its time was over, even if nobody took it"
    second = lead(state, 2)
    assert second.term == 2 and not Leases(state).renew(first, TTL)
    Leases(state).release(first)
    current = Leases(state).current()
    assert current is not None and current.live and current.holder == "host-2 pid 2"
    Leases(state).release(second)
    assert lead(state, 3).term == 3


def test_a_standby_takes_over_when_the_leader_is_gone_or_lets_go(state: State) -> None:
    first, second = (Leadership(Leases(state), owner(number), 1.0) for number in (1, 2))
    with second.kept(), first.kept():
        wait_until(lambda: (first.term, second.term) != (None, None), "one leads")
        leader, standby = (first, second) if first.term else (second, first)
        stop = leader.stop
        leader.release()
        wait_until(lambda: standby.term == 2, "the standby leads")
        assert leader.term is None
    assert not stop.asked, "letting go stops no run: the worker has none by then"


def test_a_leader_that_cannot_renew_stops_its_runs_before_its_lease_is_over(state: State) -> None:
    class Silent(Leases):
        def renew(self, *arguments: object, **named: object) -> bool:
            threading.Event().wait(30)  # as a database behind a broken network: no answer at all
            return False

    leading = Leadership(Silent(state), owner(1), 3.0)
    with leading.kept():
        wait_until(lambda: leading.term == 1, "it leads")
        stop = leading.stop
        wait_until(lambda: stop.asked, "its runs are told to stop", 10)
        current = Leases(state).current()
        assert current is not None and current.live, "while nobody else can lead yet"
        assert leading.term is None and "leads no more" in stop.reason


def test_a_leader_whose_lease_was_taken_hears_it(state: State) -> None:
    leading = Leadership(Leases(state), owner(1), 3.0)
    with leading.kept():
        wait_until(lambda: leading.term == 1, "it leads")
        stop = leading.stop
        run_out(state)
        lead(state, 2)
        wait_until(lambda: stop.asked, "it hears", 10)


# ------------------------------------------------------------ runs under a term


def started(state: State, number: int, term: int | None, job: str = "compact") -> tuple[Run, Owner]:
    mine = owner(number)
    run = Journal(state).start(
        run_id=new_run_id(now()),
        table=TABLE,
        job=job,
        owner=mine,
        trigger=Trigger("schedule"),
        plan={},
        policy={},
        now=now(),
        lease_term=term,
    )
    return run, mine


def test_what_runs_under_an_older_term_writes_nothing_more(state: State) -> None:
    journal, first = Journal(state), lead(state)
    run, mine = started(state, 1, first.term)
    journal.step(run.id, mine, "writing", {}, now())
    assert journal.beat(run.id, now(), mine) and 0 < journal.right(run.id, mine, now()) <= 30
    run_out(state)
    journal.step(run.id, mine, "writing", {}, now())  # over, and nobody else leads: it may go on
    lead(state, 2)
    with pytest.raises(RunTaken, match=r"another worker took over \(term 2, this run has term 1\)"):
        journal.step(run.id, mine, "committing", {}, now())
    assert not journal.beat(run.id, now(), mine) and journal.right(run.id, mine, now()) == 0
    with pytest.raises(RunTaken):
        journal.finish(run.id, RunState.DONE, "", {}, (), now(), mine)
    with pytest.raises(RunTaken), state.write() as connection:
        fence(connection, run.id, mine, now())
    with pytest.raises(RunTaken, match="this run has term 1"):
        started(state, 1, first.term, "expire")
    assert [step.name for step in journal.steps(run.id)] == ["writing", "writing"]
    assert journal.outlived(journal.get(run.id))  # type: ignore[arg-type]


def test_a_run_by_hand_is_nobodys_term(state: State) -> None:
    journal = Journal(state)
    run, mine = started(state, 1, None)
    lead(state)
    run_out(state)
    lead(state, 2)
    journal.step(run.id, mine, "committing", {}, now())
    assert journal.right(run.id, mine, now()) == 30
    assert not journal.outlived(run)
    assert journal.finish(run.id, RunState.DONE, "", {}, (), now(), mine).state is RunState.DONE


def test_who_takes_a_run_over_brings_its_own_term(state: State) -> None:
    journal, first = Journal(state), lead(state)
    run, _ = started(state, 1, first.term)
    run_out(state)
    second = lead(state, 2)
    assert journal.take_over(run, owner(2), now(), second.term)
    journal.step(run.id, owner(2), "recovered", {}, now())
    taken = journal.get(run.id)
    assert taken is not None and taken.lease_term == 2 and not journal.outlived(taken)


def test_the_right_to_act_ends_with_the_lease(state: State) -> None:
    first = lead(state, ttl=timedelta(seconds=5))
    run, mine = started(state, 1, first.term)
    assert 0 < Journal(state).right(run.id, mine, now()) <= 5
    run_out(state)
    assert Journal(state).right(run.id, mine, now()) < 0


def test_a_takeover_waits_for_a_write_under_the_fence(state: State) -> None:
    """Between the look at the term and what is written by it nobody begins to lead."""
    first = lead(state, ttl=timedelta(seconds=0.2))
    run, mine = started(state, 1, first.term)
    inside, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with state.write() as connection:
            fence(connection, run.id, mine, now())
            inside.set()
            go_on.wait(10)

    taken: list[Lease | None] = []
    writer = threading.Thread(target=write)
    writer.start()
    assert inside.wait(10)
    run_time = threading.Event()
    run_time.wait(0.4)  # the lease's own time
    taker = threading.Thread(target=lambda: taken.append(Leases(state).take(owner(2), TTL)))
    taker.start()
    taker.join(0.5)
    assert taker.is_alive() and not taken
    go_on.set()
    for each in (writer, taker):
        each.join(10)
    assert taken[0] is not None and taken[0].term == 2


def test_a_host_that_fell_silent_in_a_transaction_keeps_nobody_from_leading(
    pg_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open on the server: nothing tells that it is gone. What it had locked is let go all the same."""
    monkeypatch.setattr("lakewarden.state.database.IDLE_SECONDS", 1)
    url = pg_database.url.replace("postgresql+psycopg://", "postgresql://")
    silent, other = State.open(url), State.open(url)
    try:
        first = lead(silent, ttl=timedelta(seconds=0.2))
        run, mine = started(silent, 1, first.term)
        with pytest.raises(Unreachable), silent.write() as connection:
            fence(connection, run.id, mine, now())
            wait_until(lambda: Leases(other).take(owner(2), TTL) is not None, "another leads", 30)
            connection.execute(update(leases).values(term=7))
        current = Leases(other).current()
        assert current is not None and current.term == 2
        parameters = _parameters(other)
        assert parameters["tcp_user_timeout"] == "20000" and parameters["keepalives_idle"] == "10"
    finally:
        silent.close()
        other.close()


def _parameters(state: State) -> dict[str, str]:
    with state.read() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        found: dict[str, str] = driver.info.get_parameters()  # type: ignore[attr-defined]
    return found


# ------------------------------------------------------------ requests, standings, progress


def test_a_request_is_one_per_table_and_survives_its_leader(state: State) -> None:
    requests = Requests(state)
    with ThreadPoolExecutor(6) as pool:
        filed = set(pool.map(lambda _: requests.file(TABLE, ANA, now()).id, range(6)))
    (id_,) = filed
    assert requests.claim(id_, 1, now())
    later = requests.file(TABLE, Trigger("manual", "bo"), now())
    assert later.id != id_, "what is being done is not what is asked for now"
    assert [each.id for each in requests.waiting(1)] == [id_, later.id], "what it claimed and left is its own"
    assert [each.id for each in requests.waiting(2)] == [id_, later.id]
    assert requests.claim(id_, 2, now()) and not requests.claim(id_, 1, now())
    assert [each.id for each in requests.waiting(1)] == [later.id], "a newer leader has it"
    assert not requests.end(id_, 1, RequestState.DONE, ["r"], "", now()), (
        "the first leader's word counts no more"
    )
    assert requests.end(id_, 2, RequestState.FAILED, ["r1", "r2"], "no", now())
    ended = requests.get(id_)
    assert ended is not None and ended.ended and ended.run_ids == ("r1", "r2")


def test_standings_are_the_newest_leaders_alone(state: State) -> None:
    book = TableSchedules(state)
    first = lead(state)
    row = TableSchedule(TABLE, PASS, now(), None, "running", "r", 2, now(), ("x",))
    assert book.put_all([row, TableSchedule(TABLE, SEEN, now())], first.term)
    run_out(state)
    lead(state, 2)
    assert not book.put_all([TableSchedule(TABLE, PASS, state="done")], first.term)
    assert {each.slot: each.state for each in book.of(TABLE)} == {PASS: "running", SEEN: ""}
    book.suspend(Suspension(TABLE, now(), "why", "ana"))
    assert book.resume(TABLE) and not book.resume(TABLE)
    found = book.by_table()[TABLE][PASS]
    assert found.failures == 0 and found.retry_at is not None and found.retry_at <= now()


def test_a_resume_waits_for_a_change_of_the_table_and_is_not_lost(state: State) -> None:
    book, first = TableSchedules(state), lead(state)
    book.put(TableSchedule(TABLE, PASS, now(), None, "running", failures=9))
    inside = threading.Event()

    def failed(last: TableSchedule | None) -> list[TableSchedule]:
        inside.set()
        resuming.join(0.3)
        assert last is not None and resuming.is_alive(), "nobody changes it meanwhile"
        return [replace(last, state="failed", failures=last.failures + 1)]

    resuming = threading.Thread(target=lambda: (inside.wait(10), book.resume(TABLE)))
    resuming.start()
    changed = book.change(TABLE, failed, first.term)
    resuming.join(30)
    assert changed is not None and changed[0].failures == 10
    assert [each.failures for each in book.of(TABLE)] == [0]
    run_out(state)
    lead(state, 2)
    assert book.change(TABLE, lambda last: [TableSchedule(TABLE, PASS)], first.term) is None


def test_progress_and_a_cancel(state: State) -> None:
    run, _ = started(state, 1, None)
    told = RunProgress(state)
    assert told.get(run.id) is None and told.cancelled(run.id) is None
    told.put(run.id, ProgressPoint("compact", 1, 10, "", now()))
    told.put(run.id, ProgressPoint("compact", 7, 10, "half", now()))
    told.cancel(run.id, "ana", now())
    moment, wish = told.get(run.id), told.cancelled(run.id)
    assert moment is not None and moment.done_bytes == 7 and wish is not None and wish.by == "ana"
