"""Limits how many rewrite tasks run at once in this process, and gives each its share of the budgets.

Without limits, a unit of work is one Spark job of many tasks. Under a limit every task is its own Spark job, and a driver
thread (a lane) holds the task's share until the task ends:

    slots = slots_for(config.budgets, cores)           one for the process, or None without limits
    with slots.work(tasks, stop=…, gate=…) as work:    one run, which knows how many tasks it will submit
        work.run(submit, items)                        one unit of the run; several threads may submit units

A task gets its share when it starts and keeps it until it ends, because a task on another machine cannot receive a new one.
All shares together never exceed the whole budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

from lakewarden.config.schema import BudgetsConfig
from lakewarden.rate_limit import Pace

Item = TypeVar("Item")
Result = TypeVar("Result")

_MB = 1_000_000
# How soon a waiting thread notices that its run was stopped.
GLANCE_SECONDS = 0.2


class TaskStopped(Exception):
    """Before this task began, the run was stopped or its unit failed."""


def slots_for(budgets: BudgetsConfig, cores: int) -> TaskSlots | None:
    """The slots for these settings; None if the settings limit nothing on this many cores."""
    budget = budget_of(budgets)
    # A lane beyond the cores would hold a share while its task waits for a core.
    at_once = min(budgets.max_tasks or cores, cores)
    # Back-off is checked before every task, so every task must be a job.
    limited = budget.limits or at_once < cores or budgets.backoff_url is not None
    return TaskSlots(at_once, budget) if limited else None


def budget_of(budgets: BudgetsConfig) -> Pace:
    """The rate limit of all tasks together."""
    return Pace(_bytes(budgets.read_mb_per_s), _bytes(budgets.write_mb_per_s), budgets.requests_per_s)


def _bytes(megabytes: float | None) -> float | None:
    return None if megabytes is None else megabytes * _MB


class Shares:
    """Which task holds how much of the budget, in whole parts, so that rounding loses or adds nothing.

    No share is smaller than one lane's, so a task that ends gives back enough for another to start. So while a
    task waits, all of the budget is given out, and there are never more shares than slots.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._lane = 1 << 20
        self._given = 0
        self.whole = self._lane * at_once
        self.free = self.whole

    @property
    def free_lanes(self) -> int:
        return self.free // self._lane

    def take(self, waiting: int) -> int | None:
        """One task's share if `waiting` tasks wait to start, including itself; None if too little is free."""
        if self.free_lanes == 0:
            return None
        starting = min(waiting, self.free_lanes, max(1, self._lanes_for(waiting + self._given) - self._given))
        share = self.free // starting
        self.free -= share
        self._given += 1
        return share

    def _lanes_for(self, tasks: int) -> int:
        """The fewest slots that need no more rounds.

        With nine tasks on four slots, the ninth would run last and alone, with a quarter of the budget; on
        three slots all rounds are full. Simulated with equal tasks: 1.33 of the shortest time becomes 1.01; for
        five tasks 1.59 becomes 1.20.
        """
        rounds = -(-tasks // self._at_once)
        return -(-tasks // rounds)

    def give_back(self, share: int) -> None:
        self.free += share
        self._given -= 1


class TaskSlots:
    """Threads that run one task each at a time, first come first served, so that units end one after the other."""

    def __init__(self, at_once: int, budget: Pace) -> None:
        self.at_once, self.budget = at_once, budget
        self._shares = Shares(at_once)
        self._changed = threading.Condition()
        self._waiting = 0  # submitted or announced tasks that have no share yet
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="lakewarden-lane")

    def close(self) -> None:
        self._threads.shutdown()

    def work(
        self,
        tasks: int,
        *,
        stop: threading.Event | None = None,
        gate: Callable[[], None] = lambda: None,
        hold: Callable[[], None] = lambda: None,
    ) -> RunSlots:
        """Start one run of `tasks` tasks.

        `gate` is called when the first task of a unit is about to start: an exception ends the unit before it
        begins. `hold` is called before every task and returns when the task may start.
        """
        return RunSlots(self, tasks, stop or threading.Event(), gate, hold)

    def run(self, submit: Callable[[Item, Pace], Result], items: Sequence[Item]) -> list[Result]:
        """A run of a single unit."""
        with self.work(len(items)) as work:
            return work.run(submit, items)

    def _expect(self, tasks: int) -> None:
        with self._changed:
            self._waiting += tasks

    @contextmanager
    def _share(self, over: Callable[[], bool]) -> Iterator[Pace]:
        """A part of the budget while the body runs; raises Stopped if the task is no longer needed."""
        share = self._take(over)
        try:
            yield self.budget.part(share / self._shares.whole)
        finally:
            with self._changed:
                self._shares.give_back(share)
                self._changed.notify_all()

    def _take(self, over: Callable[[], bool]) -> int:
        with self._changed:
            try:
                while not over():
                    share = self._shares.take(self._rivals())
                    if share is not None:
                        return share
                    self._changed.wait(GLANCE_SECONDS)
                raise TaskStopped
            finally:
                self._waiting -= 1

    def _rivals(self) -> int:
        """How many tasks share the free budget. If only tasks are limited, a share larger than one lane brings nothing."""
        return self._waiting if self.budget.limits else max(1, self._shares.free_lanes)


class RunSlots:
    """One run's access to the slots. Several threads may call `run`."""

    def __init__(
        self,
        slots: TaskSlots,
        tasks: int,
        stop: threading.Event,
        gate: Callable[[], None],
        hold: Callable[[], None],
    ) -> None:
        self._slots, self._stop, self._gate, self._hold = slots, stop, gate, hold
        self._tasks = tasks
        self._lock = threading.Lock()
        self._to_come = 0

    def __enter__(self) -> Self:
        self._to_come = self._tasks
        self._slots._expect(self._tasks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Announced tasks that never came would keep the other tasks' shares small.
        self._slots._expect(-self._announced(self._to_come))

    def run(
        self, submit: Callable[[Item, Pace], Result], items: Sequence[Item], begun: bool = False
    ) -> list[Result]:
        """Results in order. After the first exception no further item starts; it is raised when the running
        items have ended.

        `begun`: the items belong to work that has begun, so the gate is not called again.
        """
        self._slots._expect(len(items) - self._announced(len(items)))
        gate = (lambda: None) if begun else self._gate
        return _Unit(self._slots, submit, self._stop, gate, self._hold).run(items)

    def _announced(self, tasks: int) -> int:
        """How many of these tasks had been announced. They stop counting as announced."""
        with self._lock:
            known = min(tasks, self._to_come)
            self._to_come -= known
        return known


class _Unit(Generic[Item, Result]):
    """Items that are waited for together."""

    def __init__(
        self,
        slots: TaskSlots,
        submit: Callable[[Item, Pace], Result],
        stop: threading.Event,
        gate: Callable[[], None],
        hold: Callable[[], None],
    ) -> None:
        self._slots, self._submit, self._stop, self._gate, self._hold = slots, submit, stop, gate, hold
        self._lock = threading.Lock()
        self._begun = False
        self._left = 0
        self._failure: BaseException | None = None
        self._ended = threading.Event()

    def run(self, items: Sequence[Item]) -> list[Result]:
        self._left = len(items)
        futures = [self._slots._threads.submit(self._carry, item) for item in items]
        try:
            while self._left and not self._stop.is_set() and not self._ended.wait(GLANCE_SECONDS):
                pass
        finally:
            begun = [future for future in futures if not future.cancel()]
            self._slots._expect(len(begun) - len(futures))
        # Also after a failure: the files of the other tasks must be complete before they can be removed.
        wait(begun)
        if self._failure is not None:
            raise self._failure
        if len(begun) < len(futures):
            raise TaskStopped
        return [future.result() for future in futures]

    def _carry(self, item: Item) -> Result:
        try:
            with self._slots._share(self._over) as pace:
                self._hold()
                self._begin()
                return self._submit(item, pace)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._end()

    def _over(self) -> bool:
        return self._stop.is_set() or self._failure is not None

    def _begin(self) -> None:
        """Calls the gate here and not when the unit is submitted: the unit may have waited for hours."""
        with self._lock:
            if self._over():
                raise TaskStopped
            if not self._begun:
                self._gate()
                self._begun = True

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._ended.set()

    def _end(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._ended.set()
