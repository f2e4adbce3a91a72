"""The frame of every job that works in units: with progress, ended early by a cancel or by Ctrl-C, and with the
state and the reason of the run summed up from those of its units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from lakewarden.jobs.run_context import RunContext
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState
from lakewarden.spark.tasks import parallelism

U = TypeVar("U")
R = TypeVar("R")

# Units in work at once: enough that the cores never wait while one unit commits.
_AT_ONCE = 8
# The longest time until the waiting thread notices a cancel.
_LOOK_SECONDS = 0.3


@contextmanager
def progress_of(context: RunContext, title: str, total: int = 0) -> Iterator[None]:
    """Begins the progress of the body, and ends it also after an error."""
    context.progress.begin(title, total)
    try:
        yield
    finally:
        context.progress.end()


def run_units(
    context: RunContext,
    title: str,
    units: Iterable[U],
    work: Callable[[U], R],
    *,
    total: int = 0,
    last: Callable[[R], bool] = lambda result: False,
) -> list[R]:
    """Work on one unit after the other. Stop after a result for which `last` is true. A cancel is seen between two
    units, where nothing is half done: then Stopped is raised. `work` advances the progress towards `total`.
    """
    results: list[R] = []
    with progress_of(context, title, total):
        for unit in units:
            context.stop.check()
            results.append(work(unit))
            if last(results[-1]):
                break
    return results


def run_units_at_once(
    context: RunContext,
    units: Sequence[U],
    work: Callable[[U], R],
    cancel: Callable[[], None],
    *,
    repeat: bool = False,
) -> tuple[list[R], bool]:
    """Many units at a time, on threads. Returns all results, and whether a cancel or Ctrl-C cut the work short.

    `work` asks `context.stop.event` before it starts something and before it commits. `cancel` ends the Spark jobs of the
    run; with `repeat` again and again, for units that start one job after another. If a unit raises, the others are
    stopped, and the error is raised when all have ended.
    """
    workers = min(max(1, len(units)), max(_AT_ONCE, parallelism(context.spark)))
    interrupted = False
    with ThreadPoolExecutor(workers, thread_name_prefix="lakewarden-units") as pool:
        futures = [pool.submit(work, unit) for unit in units]

        def stop() -> None:
            context.stop.event.set()
            cancel()

        while not all(future.done() for future in futures):
            try:
                wait(futures, _LOOK_SECONDS, return_when=FIRST_EXCEPTION)
                if any(map(_raised, futures)):
                    stop()
                    wait(futures, _LOOK_SECONDS if repeat else None)
                elif context.stop.asked and not interrupted:
                    interrupted = True
                    stop()
                elif repeat and context.stop.event.is_set():
                    cancel()
            except KeyboardInterrupt:
                # However often it is pressed: a commit that has begun is completed, which takes seconds.
                interrupted = True
                stop()
    return [future.result() for future in futures], interrupted


def _raised(future: Future[R]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


def state_of(plan: Plan, states: Iterable[RunState], interrupted: bool) -> RunState:
    """The state of a run from those of its units. One unknown commit makes the run unknown."""
    found = set(states)
    if RunState.UNKNOWN in found:
        return RunState.UNKNOWN
    if interrupted:
        return RunState.INTERRUPTED
    if found == {RunState.DONE}:
        return RunState.PARTIAL if plan.cut_short else RunState.DONE
    return found.pop() if len(found) == 1 else RunState.PARTIAL


def reasons_of(plan: Plan, skipped: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Every different reason once, with the first few of the partitions that it is about."""
    partitions: dict[str, list[str]] = {}
    for reason, names in skipped:
        partitions.setdefault(reason, []).extend(name or "the table" for name in names)
    parts = [f"{_some(names)}: {reason}" for reason, names in partitions.items()]
    return "; ".join([*parts, plan.cut_short] if plan.cut_short else parts)


def _some(names: Sequence[str], show: int = 3) -> str:
    return ", ".join(names[:show]) + (f" and {len(names) - show} more" if len(names) > show else "")
