"""Budgets: a task keeps to its pace, and the shares of all tasks never add up to more than the whole."""

from __future__ import annotations

import heapq
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewarden.config.schema import BudgetsConfig
from lakewarden.rate_limit import Pace, Throttle
from lakewarden.spark.task_slots import Shares, TaskSlots, TaskStopped, slots_for

MB = 1_000_000
PATIENCE = 10.0


@dataclass
class Clock:
    """Time that passes only when it is slept, or spent; a sleep may last too long, as real ones do."""

    late: float = 0.0
    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late

    def throttle(self, pace: Pace | None) -> Throttle:
        return Throttle(pace, self, self.sleep)


# ------------------------------------------------------------ one task

sizes = st.integers(1, 40 * MB)
rates = st.floats(0.1 * MB, 200 * MB)


@given(st.lists(sizes, min_size=1, max_size=60), rates, st.floats(0, 0.002))
def test_the_rate_holds_whatever_the_size_of_a_call(calls: list[int], rate: float, late: float) -> None:
    clock = Clock(late)
    throttle = clock.throttle(Pace(read_bytes=rate))
    for nbytes in calls:
        throttle.read(nbytes)
    throttle.settle()
    needed = sum(calls) / rate
    assert needed * 0.999_99 - 1e-5 <= clock.now - 100 <= needed + late + 1e-5
    assert throttle.waited == pytest.approx(clock.now - 100)


@given(
    st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 3), st.floats(0, 3)), max_size=60), rates, rates
)
def test_no_budget_is_passed_over_the_whole_task(
    calls: list[tuple[bool, int, int, float]], reading: float, writing: float
) -> None:
    """Reads, writes, requests and the kernel's own time, in any order."""
    clock = Clock()
    throttle = clock.throttle(Pace(reading, writing, 2.0))
    for is_read, nbytes, requests, busy in calls:
        (throttle.read if is_read else throttle.wrote)(nbytes, requests)
        clock.now += busy
    throttle.settle()
    taken = (clock.now - 100) * 1.000_01 + 1e-4
    assert sum(n for is_read, n, _, _ in calls if is_read) <= reading * taken
    assert sum(n for is_read, n, _, _ in calls if not is_read) <= writing * taken
    assert sum(requests for _, _, requests, _ in calls) <= 2.0 * taken


@pytest.mark.parametrize("busy", [0.0, 0.5, 1.0, 1.4])
def test_the_kernels_own_time_pays_too(busy: float) -> None:
    """30 MB at 30 MB/s every round: a round lasts a second, or as long as the kernel is busy with it."""
    clock = Clock()
    throttle = clock.throttle(Pace(read_bytes=30 * MB))
    for _ in range(100):
        throttle.read(30 * MB)
        clock.now += busy
    throttle.settle()
    assert clock.now - 100 == pytest.approx(100 * max(1.0, busy), rel=0.001)


def test_idle_time_pays_for_one_call_and_a_quarter_of_a_second() -> None:
    clock = Clock()
    throttle = clock.throttle(Pace(read_bytes=MB))
    clock.now += 3600
    throttle.read(50 * MB)
    throttle.read(MB)
    assert clock.slept == []
    throttle.settle()
    assert clock.slept == [pytest.approx(0.75)]


def test_a_file_of_one_row_group_is_written_at_no_extra_cost() -> None:
    """Five seconds of reading, then one write of what five seconds allow."""
    clock = Clock()
    throttle = clock.throttle(Pace(read_bytes=20 * MB, write_bytes=20 * MB))
    for _ in range(10):
        throttle.read(10 * MB)
    throttle.wrote(90 * MB)
    throttle.settle()
    assert clock.now - 100 == pytest.approx(5.0)


@given(st.lists(st.tuples(sizes, st.floats(0, 20)), min_size=2, max_size=40), rates)
def test_between_any_two_calls_no_more_than_the_rate_and_a_burst(
    calls: list[tuple[int, float]], rate: float
) -> None:
    clock = Clock()
    throttle = clock.throttle(Pace(read_bytes=rate))
    let_through: list[tuple[float, int]] = []
    for nbytes, busy in calls:
        throttle.read(nbytes)
        let_through.append((clock.now, nbytes))
        clock.now += busy
    for first in range(len(calls)):
        for last in range(first + 1, len(calls)):
            between = sum(nbytes for _, nbytes in let_through[first + 1 : last])
            took = let_through[last][0] - let_through[first][0]
            assert between <= rate * (took + 0.25) * 1.000_01 + 100


def test_a_task_starts_without_credit() -> None:
    clock = Clock()
    throttle = clock.throttle(Pace(write_bytes=MB))
    throttle.wrote(MB)
    assert clock.slept == []  # let through, and owed
    throttle.wrote(1)
    assert clock.slept == [pytest.approx(1.0)]


def test_reading_does_not_wait_for_what_was_written() -> None:
    clock = Clock()
    throttle = clock.throttle(Pace(read_bytes=MB, write_bytes=MB))
    throttle.wrote(50 * MB)
    throttle.read(1)
    assert clock.slept == []


def test_requests_of_both_kinds_come_from_one_budget() -> None:
    clock = Clock()
    throttle = clock.throttle(Pace(requests=10))
    for _ in range(50):
        throttle.read(10**12, requests=3)
        throttle.wrote(10**12, requests=1)
    throttle.settle()
    assert clock.now - 100 == pytest.approx(20.0)


@pytest.mark.parametrize("pace", [None, Pace()])
def test_without_limits_nothing_is_waited_for(pace: Pace | None) -> None:
    clock = Clock()
    throttle = clock.throttle(pace)
    for _ in range(100):
        throttle.read(10**12, 10**6)
        throttle.wrote(10**12, 10**6)
    throttle.settle()
    assert (clock.slept, throttle.waited) == ([], 0.0)


def test_the_real_clock() -> None:
    began = time.monotonic()
    throttle = Throttle(Pace(read_bytes=100 * MB))
    for _ in range(25):
        throttle.read(2 * MB)
    throttle.settle()
    took = time.monotonic() - began
    assert 0.5 <= took < 1.0
    assert 0.45 <= throttle.waited <= took


def test_a_pace_travels_and_is_split() -> None:
    pace = Pace(read_bytes=100.0, requests=8.0)
    assert pickle.loads(pickle.dumps(pace)) == pace
    assert pace.part(0.25) == Pace(25.0, None, 2.0)
    assert pace.limits and not Pace().limits


# ------------------------------------------------------------ shares


def started(shares: Shares, waiting: int) -> Iterator[int]:
    """Shares of the tasks that can start now, of so many that wait."""
    while waiting and (share := shares.take(waiting)) is not None:
        waiting -= 1
        yield share


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 30), st.randoms(use_true_random=False))))
def test_shares_never_add_up_to_more_than_the_whole(at_once: int, moments: list[tuple[int, object]]) -> None:
    """Tasks arrive in any number, and any of those in flight ends."""
    shares, flying, waiting = Shares(at_once), [], 0
    for arriving, random in moments:
        waiting += arriving
        new = list(started(shares, waiting))
        waiting -= len(new)
        flying += new
        assert sum(flying) + shares.free == shares.whole
        assert shares.free >= 0 and len(flying) <= at_once
        assert all(share * at_once >= shares.whole for share in flying), "each is at least one lane's"
        assert not waiting or sum(flying) == shares.whole, "all of it is used while a task waits"
        if flying:
            shares.give_back(flying.pop(random.randrange(len(flying))))  # type: ignore[attr-defined]


def makespan(tasks: int, at_once: int, *, together: bool) -> float:
    """Seconds for equal tasks of a second each at the whole budget; equal ones end together, or one just after another."""
    shares, now, waiting = Shares(at_once), 0.0, tasks
    flying: list[tuple[float, int]] = []
    while waiting or flying:
        for share in started(shares, waiting):
            heapq.heappush(flying, (now + shares.whole / share, share))
            waiting -= 1
        now, share = heapq.heappop(flying)
        shares.give_back(share)
        while together and flying and flying[0][0] <= now * 1.000_001:
            shares.give_back(heapq.heappop(flying)[1])
    return now


@given(st.integers(1, 200), st.integers(1, 16))
def test_equal_tasks_use_the_whole_budget_to_the_end(tasks: int, at_once: int) -> None:
    """The last ones too: fewer than the slots, they share what the others gave back."""
    assert makespan(tasks, at_once, together=True) == pytest.approx(tasks, rel=1e-4)


@given(st.integers(1, 200), st.integers(1, 16))
def test_the_last_round_is_nearly_full(tasks: int, at_once: int) -> None:
    """A task that starts a moment before the others end has a small share to the end; rounds are made even for that."""
    rounds = -(-tasks // at_once)
    assert tasks * 0.999 <= makespan(tasks, at_once, together=False) <= (tasks + rounds - 1) * 1.001


def test_a_task_that_comes_later_waits_for_a_share() -> None:
    shares = Shares(4)
    alone = shares.take(1)
    assert alone == shares.whole
    assert shares.take(3) is None
    shares.give_back(alone)
    assert [shares.take(3 - n) for n in range(3)] == [pytest.approx(shares.whole / 3, abs=1)] * 3


# ------------------------------------------------------------ slots

BUDGET = Pace(read_bytes=100.0, write_bytes=10.0)


@pytest.fixture
def four() -> Iterator[TaskSlots]:
    slots = TaskSlots(4, BUDGET)
    yield slots
    slots.close()


@dataclass
class Flights:
    """Watches tasks in flight: how many at most, and what their shares came to."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    now: dict[int, float] = field(default_factory=dict)
    most: int = 0
    largest: float = 0.0
    started: list[int] = field(default_factory=list)

    def fly(self, item: int, pace: Pace) -> int:
        with self.lock:
            self.now[item] = pace.read_bytes or 0.0
            self.started.append(item)
            self.most = max(self.most, len(self.now))
            self.largest = max(self.largest, sum(self.now.values()))
        time.sleep(0.001)  # long enough for tasks to meet
        with self.lock:
            del self.now[item]
        return item * 2


def in_thread(do: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def test_results_come_in_order_and_callers_share_the_lanes(four: TaskSlots) -> None:
    flights = Flights()
    units = [range(start, start + 15) for start in range(0, 90, 15)]
    with four.work(90) as work, ThreadPoolExecutor(6) as callers:
        results = list(callers.map(lambda unit: work.run(flights.fly, unit), units))
    assert results == [[2 * item for item in unit] for unit in units]
    assert flights.most == 4
    assert flights.largest == pytest.approx(100.0) and flights.largest <= 100.000_1


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 40))
def test_any_units_any_announcement(at_once: int, units: list[int], announced: int) -> None:
    flights, slots = Flights(), TaskSlots(at_once, BUDGET)
    firsts = [sum(units[:number]) for number in range(len(units))]
    spans = [range(first, first + size) for first, size in zip(firsts, units, strict=True)]
    with slots.work(announced) as work, ThreadPoolExecutor(len(units)) as callers:
        results = list(callers.map(lambda span: work.run(flights.fly, span), spans))
    assert results == [[2 * item for item in span] for span in spans]
    assert flights.most <= at_once and flights.largest <= 100.000_1
    assert (slots._waiting, slots._shares.free) == (0, slots._shares.whole)
    slots.close()


def test_few_tasks_get_larger_shares(four: TaskSlots) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def fly(_: int, pace: Pace) -> Pace:
        both.wait()
        return pace

    assert four.run(fly, [1, 2]) == [Pace(50.0, 5.0)] * 2
    assert four.run(lambda _, pace: pace, ["alone"]) == [BUDGET]
    assert four.run(lambda _, pace: pace, []) == []


def test_a_run_that_will_have_more_tasks_keeps_shares_for_them(four: TaskSlots) -> None:
    with four.work(3) as work:
        assert work.run(lambda _, pace: pace.read_bytes, ["first"]) == [pytest.approx(100 / 3)]
        assert work.run(lambda _, pace: pace.read_bytes, ["second"]) == [pytest.approx(50)]
    assert four.run(lambda _, pace: pace, ["after"]) == [BUDGET]


def test_a_run_that_stopped_early_leaves_nothing_behind(four: TaskSlots) -> None:
    with four.work(50):
        pass
    assert four.run(lambda _, pace: pace, ["after"]) == [BUDGET]


def test_units_are_served_in_the_order_they_came() -> None:
    slots, flights, go = TaskSlots(1, BUDGET), Flights(), threading.Event()
    blocker = in_thread(lambda: slots.run(lambda _, pace: go.wait(PATIENCE), [0]))
    until(lambda: slots._shares.free == 0)
    threads = []
    for start in (10, 20, 30):
        before = slots._waiting
        threads.append(in_thread(lambda start=start: slots.run(flights.fly, range(start, start + 3))))
        until(lambda before=before: slots._threads._work_queue.qsize() == before + 3)
    go.set()
    for thread in (blocker, *threads):
        thread.join(PATIENCE)
    assert flights.started == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    slots.close()


def test_the_first_exception_is_raised_when_those_in_flight_are_over(four: TaskSlots) -> None:
    begun: list[int] = []
    ended: list[int] = []
    failed = threading.Event()

    def fly(item: int, pace: Pace) -> None:
        begun.append(item)
        if item == 2:
            until(lambda: len(begun) == 4)
            failed.set()
            raise OSError("the disk is full")
        failed.wait(PATIENCE)
        until(lambda: four._threads._work_queue.empty() or len(begun) > 4)
        ended.append(item)

    with pytest.raises(OSError, match="the disk is full"):
        four.run(fly, range(100))
    assert sorted(begun) == [0, 1, 2, 3]
    assert sorted(ended) == [0, 1, 3]
    assert four.run(lambda _, pace: pace, ["after"]) == [BUDGET]


def test_one_units_failure_is_its_own(four: TaskSlots) -> None:
    flights = Flights()

    def fail(item: int, pace: Pace) -> int:
        raise ValueError("no")

    with four.work(60) as work, ThreadPoolExecutor(2) as callers:
        bad, good = (
            callers.submit(work.run, fail, range(30)),
            callers.submit(work.run, flights.fly, range(30)),
        )
        assert isinstance(bad.exception(PATIENCE), ValueError)
        assert good.result(PATIENCE) == [2 * item for item in range(30)]


def test_after_a_stop_nothing_starts(four: TaskSlots) -> None:
    stop, begun = threading.Event(), threading.Barrier(5, timeout=PATIENCE)
    flown: list[int] = []

    def fly(item: int, pace: Pace) -> None:
        flown.append(item)
        begun.wait()
        stop.wait(PATIENCE)

    with four.work(20, stop=stop) as work, ThreadPoolExecutor(2) as callers:
        units = [callers.submit(work.run, fly, range(start, start + 10)) for start in (0, 10)]
        begun.wait()
        stop.set()
        assert all(isinstance(unit.exception(PATIENCE), TaskStopped) for unit in units)
    assert len(flown) == 4
    with pytest.raises(TaskStopped), four.work(1, stop=stop) as work:
        work.run(fly, [99])
    assert four.run(lambda _, pace: pace, ["another run"]) == [BUDGET]


def test_a_stopped_run_does_not_wait_for_another_runs_lanes() -> None:
    slots, go, stop = TaskSlots(1, BUDGET), threading.Event(), threading.Event()
    other = in_thread(lambda: slots.run(lambda _, pace: go.wait(PATIENCE), [0]))
    until(lambda: slots._shares.free == 0)
    stop.set()
    with pytest.raises(TaskStopped), slots.work(3, stop=stop) as work:
        work.run(lambda _, pace: None, [1, 2, 3])
    assert not go.is_set()
    go.set()
    other.join(PATIENCE)
    slots.close()


def test_a_run_stopped_while_a_task_is_held_does_not_start_it(four: TaskSlots) -> None:
    stop, flights = threading.Event(), Flights()
    with pytest.raises(TaskStopped), four.work(1, stop=stop, hold=stop.set) as work:
        work.run(flights.fly, [1])
    assert flights.started == []


class Closed(Exception):
    pass


def test_the_gate_is_asked_once_a_unit_when_its_first_task_starts(four: TaskSlots) -> None:
    asked: list[int] = []
    flights = Flights()

    def gate() -> None:
        asked.append(len(flights.started))
        if len(asked) == 2:
            raise Closed("paused")

    with four.work(30, gate=gate) as work:
        assert len(work.run(flights.fly, range(10))) == 10
        with pytest.raises(Closed):
            work.run(flights.fly, range(10, 20))
        assert len(work.run(flights.fly, range(20, 30))) == 10
    assert asked == [0, 10, 10]
    assert sorted(flights.started) == [*range(10), *range(20, 30)]


def test_every_task_is_held_until_it_may_start(four: TaskSlots) -> None:
    held = threading.Semaphore(0)
    flights = Flights()
    with four.work(6, hold=lambda: held.release()) as work:
        work.run(flights.fly, range(6))
    assert sum(held.acquire(blocking=False) for _ in range(10)) == 6


def test_where_only_tasks_are_counted_no_task_takes_anothers_lane() -> None:
    slots, together = TaskSlots(3, Pace()), threading.Barrier(3, timeout=PATIENCE)

    def fly(_: int, pace: Pace) -> Pace:
        together.wait()
        return pace

    with ThreadPoolExecutor(3) as callers:
        runs = [callers.submit(slots.run, fly, [number]) for number in range(3)]
        assert [run.result(PATIENCE) for run in runs] == [[Pace()]] * 3
    slots.close()


def test_the_budget_holds_over_units_and_lanes() -> None:
    """Real throttles in real threads: 30 tasks of 1 MB in 3 units, under 60 MB/s."""
    slots = TaskSlots(4, Pace(read_bytes=60 * MB))

    def read(_: int, pace: Pace) -> None:
        throttle = Throttle(pace)
        for _ in range(10):
            throttle.read(MB // 10)
        throttle.settle()

    began = time.monotonic()
    with slots.work(30) as work, ThreadPoolExecutor(3) as callers:
        for unit in [callers.submit(work.run, read, range(10)) for _ in range(3)]:
            unit.result(PATIENCE)
    took = time.monotonic() - began
    assert 0.499 <= took < 1.5
    slots.close()


# ------------------------------------------------------------ from the settings


@pytest.mark.parametrize(
    ("budgets", "cores", "slots"),
    [
        (BudgetsConfig(), 4, None),
        (BudgetsConfig(), 2, None),
        (BudgetsConfig(), 64, (4, Pace())),
        (BudgetsConfig(max_tasks=None), 64, None),
        (BudgetsConfig(max_tasks=1), 2, (1, Pace())),
        (BudgetsConfig(read_mb_per_s=1.5), 2, (2, Pace(read_bytes=1_500_000))),
        (BudgetsConfig(write_mb_per_s=30, requests_per_s=7), 8, (4, Pace(None, 30_000_000, 7))),
        (BudgetsConfig(max_tasks=None, requests_per_s=7), 8, (8, Pace(None, None, 7))),
        (BudgetsConfig(backoff_url="http://p", backoff_query="q", backoff_above=1), 2, (2, Pace())),
    ],
)
def test_lanes_for_settings(budgets: BudgetsConfig, cores: int, slots: tuple[int, Pace] | None) -> None:
    made = slots_for(budgets, cores)
    assert (None if made is None else (made.at_once, made.budget)) == slots
