"""Who is due and why: intervals, cron lines, windows, back-off; and that nobody starves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewarden.config.schema import BudgetsConfig, ScheduleConfig, WorkerConfig
from lakewarden.model.run import Job
from lakewarden.state.schedule import PASS, Suspension, TableSchedule
from lakewarden.worker.schedule import (
    Decision,
    DueTable,
    ScheduleRules,
    ScheduleSnapshot,
    TrackedTable,
    WaitingTable,
    WaitReason,
    backoff,
    decide,
)
from lakewarden.worker.tables import is_tracked

NOW = datetime(2026, 11, 17, 12, 0, 0, tzinfo=UTC)  # a Tuesday
LONG_AGO = NOW - timedelta(days=60)
HOUR = timedelta(hours=1)
PLAIN = tuple(job for job in Job if job not in (Job.EXPIRE_PARTITIONS, Job.HANDOFF, Job.SWEEP))
CRON, HOURLY = ScheduleRules(ScheduleConfig(mode="cron")), ScheduleRules()
Slots = Mapping[str, Mapping[str, TableSchedule]]


def tracked(
    table: str = "lake.db.a", jobs: tuple[Job, ...] = PLAIN, since: datetime = LONG_AGO
) -> TrackedTable:
    return TrackedTable(table, since, jobs)


def stood(table: str, began: datetime, jobs: tuple[Job, ...] = PLAIN, **changed: TableSchedule) -> Slots:
    """Every job of the table last begun then."""
    slots = {name: TableSchedule(table, name, began, began, "done") for name in (PASS, *map(str, jobs))}
    return {table: {**slots, **changed}}


def one(
    charge_: TrackedTable, book: ScheduleSnapshot, rules: ScheduleRules = HOURLY, now: datetime = NOW
) -> DueTable | WaitingTable:
    found = decide([charge_], book, rules, now).of(charge_.table)
    assert found is not None
    return found


# ------------------------------------------------------------ the interval


def test_a_new_table_is_due_at_once_with_all_its_jobs_in_order() -> None:
    found = one(tracked(), ScheduleSnapshot())
    assert isinstance(found, DueTable) and found.jobs == PLAIN
    assert found.reason == "never maintained by a worker"


def test_it_is_due_again_an_interval_after_its_last_turn() -> None:
    book = ScheduleSnapshot(stood("lake.db.a", NOW - timedelta(minutes=59)))
    early = one(tracked(), book)
    assert isinstance(early, WaitingTable) and early.why is WaitReason.LATER
    assert early.next_at == NOW + timedelta(minutes=1)
    assert (early.reason, early.jobs) == ("next: a whole pass", PLAIN)
    late = one(tracked(), book, now=NOW + timedelta(minutes=2))
    assert isinstance(late, DueTable) and late.jobs == PLAIN and late.since == NOW + timedelta(minutes=1)


def test_a_turn_takes_along_what_is_due_soon() -> None:
    """Jobs that a window put off come back together with the others."""
    early = TableSchedule("lake.db.a", "compact", NOW - timedelta(minutes=40), NOW, "done")
    book = ScheduleSnapshot(stood("lake.db.a", NOW - HOUR, compact=early))
    found = one(tracked(), book)
    assert isinstance(found, DueTable) and Job.COMPACT in found.jobs
    fresh = replace(early, began_at=NOW - timedelta(minutes=10))
    found = one(tracked(), ScheduleSnapshot(stood("lake.db.a", NOW - HOUR, compact=fresh)))
    assert isinstance(found, DueTable) and Job.COMPACT not in found.jobs


def test_what_comes_next_is_a_whole_pass_or_the_jobs_it_has() -> None:
    """Jobs of one pass begin one after the other: the first alone is not what comes."""
    began = NOW - timedelta(minutes=30)
    stands = {
        job: TableSchedule("lake.db.a", job, began + place * timedelta(minutes=1))
        for place, job in enumerate(map(str, PLAIN))
    }
    found = one(tracked(), ScheduleSnapshot({"lake.db.a": stands}))
    assert isinstance(found, WaitingTable) and found.whole and found.reason == "next: a whole pass"
    late = {**stands, "compact": TableSchedule("lake.db.a", "compact", NOW, retry_at=NOW + 3 * HOUR)}
    found = one(tracked(), ScheduleSnapshot({"lake.db.a": late}))
    assert isinstance(found, WaitingTable) and not found.whole
    assert Job.COMPACT not in found.jobs and found.reason == f"next: {', '.join(found.jobs)}"


def test_quiet_windows_leave_their_jobs_out_and_tell_when_they_open() -> None:
    budgets = BudgetsConfig(pause_compaction=("09:00-17:00",))
    found = one(tracked(), ScheduleSnapshot(), ScheduleRules(budgets=budgets))
    assert isinstance(found, DueTable)
    assert not {Job.COMPACT, Job.COMPACT_DELETES} & set(found.jobs) and Job.EXPIRE in found.jobs
    assert found.left_out[1] == "compact: paused 09:00–17:00 UTC ([budgets] pause_compaction)"
    only = one(tracked(jobs=(Job.COMPACT,)), ScheduleSnapshot(), ScheduleRules(budgets=budgets))
    assert isinstance(only, WaitingTable) and only.why is WaitReason.WINDOW
    assert only.next_at == NOW.replace(hour=17)
    both = ScheduleRules(budgets=BudgetsConfig(pause_expiry=("Tue 11:00-13:00",)))
    found = one(tracked(), ScheduleSnapshot(), both)
    assert isinstance(found, DueTable) and found.jobs == (
        Job.COMPACT_DELETES,
        Job.COMPACT,
        Job.REWRITE_MANIFESTS,
        Job.COMPACT_HISTORY,
    )
    assert "pause_expiry" in found.left_out[0]


def test_who_is_left_alone_is_told_why() -> None:
    table = "lake.db.a"
    held = Suspension(table, NOW - HOUR, "it failed ten times", "worker")
    found = one(tracked(), ScheduleSnapshot(suspended={table: held}))
    assert isinstance(found, WaitingTable) and found.why is WaitReason.SUSPENDED and found.next_at is None
    assert "it failed ten times" in found.reason and f"`lakewarden resume {table}`" in found.reason
    off = one(
        TrackedTable(table, LONG_AGO, (), "switched off: maintenance_enabled=false (table)"),
        ScheduleSnapshot(),
    )
    assert isinstance(off, WaitingTable) and off.why is WaitReason.OFF and "maintenance_enabled" in off.reason
    busy = one(tracked(), ScheduleSnapshot(at_work={table: NOW}))
    assert isinstance(busy, WaitingTable) and busy.why is WaitReason.AT_WORK


def test_after_a_failure_the_table_waits_and_then_only_what_failed_is_owed() -> None:
    table, began = "lake.db.a", NOW - timedelta(minutes=1)
    retry = NOW + timedelta(seconds=30)
    failed = TableSchedule(table, "compact", began, NOW, "failed", "the disk says no", 0, retry)
    whole = TableSchedule(table, PASS, began, NOW, "failed", "compact: the disk says no", 2, retry)
    book = ScheduleSnapshot(stood(table, began, compact=failed, **{PASS: whole}))
    found = one(tracked(), book)
    assert isinstance(found, WaitingTable) and found.why is WaitReason.BACKING_OFF and found.next_at == retry
    assert found.reason == "failed 2 times in a row: compact: the disk says no"
    found = one(tracked(), book, now=retry)
    assert isinstance(found, DueTable) and found.jobs == (Job.COMPACT,)


def test_back_off_doubles_up_to_its_longest() -> None:
    config = WorkerConfig(retry_seconds=60, retry_max_seconds=3600)
    waits = [backoff(failures, config).total_seconds() for failures in (1, 2, 3, 7, 10, 5000)]
    assert waits == [60, 120, 240, 3600, 3600, 3600]


# ------------------------------------------------------------ cron


def test_the_preset_has_each_job_at_its_own_time() -> None:
    midnight = NOW.replace(hour=0)
    since = midnight - timedelta(hours=1)
    jobs = (*PLAIN, Job.SWEEP)
    slots = stood("lake.db.a", since, jobs)

    def due(hour: int, minute: int = 0) -> tuple[Job, ...]:
        found = one(
            tracked(jobs=jobs), ScheduleSnapshot(slots), CRON, midnight.replace(hour=hour, minute=minute)
        )
        assert isinstance(found, DueTable)
        return found.jobs

    # Compaction is continuous: every interval.
    assert due(0) == (Job.COMPACT_DELETES, Job.COMPACT, Job.EXPIRE)
    assert due(3, 59) == (Job.COMPACT_DELETES, Job.COMPACT, Job.EXPIRE)
    # What is late is before what is due by now: a stage waits for the one before it.
    assert due(4) == (Job.COMPACT_DELETES, Job.COMPACT, Job.EXPIRE, Job.PURGE)
    assert due(6) == (Job.COMPACT_DELETES, Job.COMPACT, Job.EXPIRE, Job.PURGE, Job.SWEEP)


def test_what_was_missed_counts_once() -> None:
    slots = stood("lake.db.a", NOW - timedelta(days=30), (Job.EXPIRE,))
    found = one(tracked(jobs=(Job.EXPIRE,)), ScheduleSnapshot(slots), CRON)
    assert isinstance(found, DueTable) and found.jobs == (Job.EXPIRE,)
    assert found.since == (NOW - timedelta(days=29)).replace(hour=0), "the first that was missed"
    after = one(tracked(jobs=(Job.EXPIRE,)), ScheduleSnapshot(stood("lake.db.a", NOW, (Job.EXPIRE,))), CRON)
    assert isinstance(after, WaitingTable) and after.next_at == (NOW + timedelta(days=1)).replace(hour=0)


def test_a_table_that_is_new_waits_for_the_next_time() -> None:
    found = one(tracked(jobs=(Job.EXPIRE,), since=NOW), ScheduleSnapshot(), CRON)
    assert isinstance(found, WaitingTable) and found.next_at == (NOW + timedelta(days=1)).replace(hour=0)


def test_where_the_policy_hands_off_snapshots_expire_right_after_it() -> None:
    jobs = (Job.HANDOFF, Job.EXPIRE, Job.PURGE)
    midnight = NOW.replace(hour=0)
    slots = stood("lake.db.a", midnight - HOUR, jobs)
    early = one(tracked(jobs=jobs), ScheduleSnapshot(slots), CRON, midnight.replace(hour=1))
    assert isinstance(early, WaitingTable) and early.next_at == midnight.replace(hour=2)
    assert early.jobs == (Job.HANDOFF, Job.EXPIRE)
    found = one(tracked(jobs=jobs), ScheduleSnapshot(slots), CRON, midnight.replace(hour=2))
    assert isinstance(found, DueTable) and found.jobs == (Job.HANDOFF, Job.EXPIRE)


def test_never_is_never() -> None:
    rules = ScheduleRules(ScheduleConfig(mode="cron", expire="never"))
    found = one(tracked(jobs=(Job.EXPIRE,)), ScheduleSnapshot(), rules)
    assert isinstance(found, WaitingTable) and found.why is WaitReason.OFF


# ------------------------------------------------------------ in which order


def test_debt_goes_first_and_age_beats_it_in_the_end() -> None:
    tables = [tracked("lake.db.clean"), tracked("lake.db.messy")]
    slots = {**stood("lake.db.clean", NOW - 2 * HOUR), **stood("lake.db.messy", NOW - 2 * HOUR)}
    found = decide(tables, ScheduleSnapshot(slots, debts={"lake.db.messy": 80.0}), ScheduleRules(), NOW)
    assert [each.table for each in found.due] == ["lake.db.messy", "lake.db.clean"]
    slots = {**slots, **stood("lake.db.clean", NOW - 3 * HOUR)}
    found = decide(tables, ScheduleSnapshot(slots, debts={"lake.db.messy": 80.0}), ScheduleRules(), NOW)
    assert [each.table for each in found.due] == ["lake.db.clean", "lake.db.messy"]
    assert found.to_dict()["due"][0]["reason"] == "due for 2 h"


NAMES = [f"lake.db.t{number}" for number in range(6)]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[TrackedTable], ScheduleSnapshot, ScheduleRules]:
    tracked_tables, slots, debts = [], {}, {}
    suspended, at_work = {}, {}
    for name in NAMES:
        jobs = tuple(draw(st.lists(st.sampled_from(list(Job)), unique=True).map(sorted_jobs)))
        tracked_tables.append(TrackedTable(name, LONG_AGO, jobs))
        ago = timedelta(minutes=draw(st.integers(0, 4000)))
        if draw(st.booleans()):
            slots.update(stood(name, NOW - ago, jobs))
        debts[name] = draw(st.floats(-5, 500))
        match draw(st.integers(0, 5)):
            case 0:
                suspended[name] = Suspension(name, NOW, "r", "x")
            case 1:
                at_work[name] = NOW
    mode = draw(st.sampled_from(["interval", "cron"]))
    windows = draw(st.sampled_from([(), ("11:00-13:00",)]))
    budgets = BudgetsConfig(pause_compaction=windows, pause_expiry=windows)
    return (
        tracked_tables,
        ScheduleSnapshot(slots, suspended, debts, at_work),
        ScheduleRules(ScheduleConfig(mode=mode), budgets=budgets),
    )


def sorted_jobs(jobs: list[Job]) -> list[Job]:
    order = list(Job)
    return sorted(jobs, key=order.index)


@given(worlds())
def test_everybody_is_told_once_and_nobody_is_due_who_must_not_be(
    world: tuple[list[TrackedTable], ScheduleSnapshot, ScheduleRules],
) -> None:
    tracked_tables, book, rules = world
    found = decide(tracked_tables, book, rules, NOW)
    told = [each.table for each in (*found.due, *found.waiting)]
    assert sorted(told) == sorted(NAMES)
    due = {each.table for each in found.due}
    assert not due & set(book.suspended) and not due & set(book.at_work)
    for each in found.due:
        assert each.jobs and list(each.jobs) == sorted_jobs(list(each.jobs))
        assert set(each.jobs) <= set(next(c.jobs for c in tracked_tables if c.table == each.table))
    assert all(each.reason for each in (*found.due, *found.waiting))
    assert decide(list(reversed(tracked_tables)), book, rules, NOW) == found
    assert [each.next_at is None for each in found.waiting] == sorted(
        each.next_at is None for each in found.waiting
    )


class World:
    """A worker with one lane, for as long as wanted: turns take time, debts are what they are."""

    def __init__(self, debts: list[float], interval: int, turn: int, failing: set[int]) -> None:
        self.debts = dict(zip(NAMES, debts, strict=True))
        self.rules = ScheduleRules(ScheduleConfig(mode="interval", interval_seconds=interval))
        self.turn, self.failing, self.now = timedelta(seconds=turn), failing, NOW
        self.slots: dict[str, dict[str, TableSchedule]] = {}
        self.history: list[tuple[str, datetime, Decision]] = []

    def step(self) -> None:
        tracked_tables = [TrackedTable(name, NOW, (Job.COMPACT,)) for name in NAMES]
        decision = decide(
            tracked_tables, ScheduleSnapshot(self.slots, debts=self.debts), self.rules, self.now
        )
        if not decision.due:
            self.now += timedelta(seconds=30)
            return
        name = decision.due[0].table
        self.history.append((name, self.now, decision))
        began, self.now = self.now, self.now + self.turn
        bad = NAMES.index(name) in self.failing
        before = self.slots.get(name, {}).get(PASS)
        failures = (before.failures if before else 0) + 1 if bad else 0
        retry = self.now + backoff(failures, self.rules.worker) if bad else None
        whole = TableSchedule(name, PASS, began, self.now, "failed" if bad else "done", "", failures, retry)
        job = TableSchedule(name, "compact", began, self.now, whole.state, "", 0, retry)
        self.slots[name] = {PASS: whole, "compact": job}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 200), min_size=6, max_size=6),
    st.integers(60, 4000),
    st.integers(1, 2000),
    st.sets(st.integers(0, 5), max_size=3),
)
def test_nobody_starves_and_nobody_has_two_turns_before_one_who_was_due_before_the_first(
    debts: list[float], interval: int, turn: int, failing: set[int]
) -> None:
    world = World(debts, interval, turn, failing)
    for _ in range(80):
        world.step()
    turns: dict[str, int] = {}
    for place, (name, _, decision) in enumerate(world.history):
        waiting = {each.table for each in decision.due} - {name}
        for other in waiting:
            served = [each for each, _, _ in world.history[place + 1 :]]
            until = served.index(other) if other in served else len(served)
            assert name not in served[:until], f"{name} came twice while {other} was waiting"
        turns[name] = turns.get(name, 0) + 1
    if len(world.history) >= 2 * len(NAMES):
        assert set(turns) == set(NAMES)


@pytest.mark.parametrize(
    ("patterns", "table", "expected"),
    [
        (("*",), "lake.db.t", True),
        (("lake.db.*",), "lake.other.t", False),
        (("!lake.tmp.*",), "lake.db.t", True),
        (("!lake.tmp.*",), "lake.tmp.t", False),
        (("lake.*", "!*.scratch"), "lake.db.scratch", False),
    ],
)
def test_patterns_of_tables(patterns: tuple[str, ...], table: str, expected: bool) -> None:
    assert is_tracked(table, patterns) is expected


def test_a_decision_over_thousands_of_tables_takes_a_moment() -> None:
    """Measured: 60 to 80 ms of CPU for 5,000 tables. The bound is for machines that are busy with other things."""
    import time

    tables = [f"lake.db.t{number}" for number in range(5000)]
    jobs = PLAIN
    slots: dict[str, Mapping[str, TableSchedule]] = {}
    for number, name in enumerate(tables):
        slots.update(stood(name, NOW - timedelta(seconds=number), jobs))
    tracked_tables = [TrackedTable(name, LONG_AGO, jobs) for name in tables]
    began = time.process_time()
    found = decide(
        tracked_tables, ScheduleSnapshot(slots, debts=dict.fromkeys(tables, 3.0)), ScheduleRules(), NOW
    )
    took = time.process_time() - began
    print(f"decision over {len(tables):,} tables: {took * 1000:.0f} ms of CPU, {len(found.due):,} due")
    assert len(found.due) == 1400 and took < 1.0
