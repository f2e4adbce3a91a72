"""Kernels fanned out over Spark tasks: one task per item, results as they are, progress while they run."""

from __future__ import annotations

import gc
import hashlib
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZipFile
from zipimport import zipimporter

from lakewarden import clock
from lakewarden.redact import redact_text
from lakewarden.tables.jvm import java_causes, java_reason

Item = TypeVar("Item")
Result = TypeVar("Result")

_SHIPPED = "spark.lakewarden.shipped"
_AT_REST = "spark.lakewarden.accumulators"
# What Spark says of a worker that ended without an exception; it has tried the task again by then, as often as it may.
_DIED = "Python worker exited unexpectedly"
_ONE_AT_A_TIME = threading.Lock()


def fan_out(
    spark: Any, kernel: Callable[[Item], Result], items: Sequence[Item], run_id: str, what: str
) -> list[Result]:
    """`kernel` on every item, one Spark task each. The call may come from any thread; `cancel` stops it."""
    context = spark.sparkContext
    context.setJobGroup(run_id, what, interruptOnCancel=True)
    results: list[Result] = context.parallelize(items, len(items)).map(_light(kernel)).collect()
    return results


def _light(kernel: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """The kernel, and then a lighter worker."""

    def run(item: Item) -> Result:
        with light_worker():
            return kernel(item)

    return run


@contextmanager
def light_worker() -> Iterator[None]:
    """Leave a worker that starts its next task sooner.

    Before every task pyspark's worker drops Python's import caches, and each zip on its path (pyspark's own is one) is
    read again: 0.1 s of CPU a task, a fifth of a 1 M-row rewrite. Importers that are forgotten are made anew when needed.

    After every task it looks for garbage among all objects there are, those of Arrow, numpy and Spark too: 10 ms, nine
    tenths of what an empty task costs. What is there after the first task stays, so it is not looked at again.
    """
    try:
        yield
    finally:
        archives = [path for path, found in sys.path_importer_cache.items() if isinstance(found, zipimporter)]
        for path in archives:
            del sys.path_importer_cache[path]
        _set_aside_what_stays()


@cache
def _set_aside_what_stays() -> None:
    """Once in a worker's life."""
    gc.collect()
    gc.freeze()


def cancel(spark: Any, run_id: str) -> None:
    spark.sparkContext.cancelJobGroup(run_id)


def wait_until_idle(spark: Any, seconds: float = 10.0) -> None:
    """Cancelled jobs end at once, their tasks a moment later; wait for those, so that none writes after we clean up.

    Best effort: other jobs of a shared session may keep it busy, and a file written late is only an orphan.
    """
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = clock.monotonic() + seconds
    while clock.monotonic() < deadline:
        if not any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
            return
        clock.sleep(0.05)


def kill_timeout(spark: Any) -> float:
    """Seconds a cancelled task's Python worker may live on, with a little to spare."""
    conf = spark.sparkContext._jsc.sc().getConf()
    return float(conf.getTimeAsMs("spark.python.task.killTimeout", "2s")) / 1000 + 0.5


def task_reason(error: BaseException) -> str:
    """Why a job failed, in one line: the last line of the Python traceback inside Spark's long message, if there is one."""
    for _, message in java_causes(error):
        if _DIED in message:
            return (
                "the Python worker died while it read these files: a damaged footer can end Arrow's process, and so can too "
                "little memory; `lakewarden fsck TABLE --deep` names every damaged file"
            )
        _, found, trace = message.partition("Traceback (most recent call last):")
        lines = [line for line in trace.splitlines() if line and not line.startswith((" ", "\t"))]
        if found and lines:
            return redact_text(lines[0])
    return java_reason(error)


def parallelism(spark: Any) -> int:
    return max(1, int(spark.sparkContext.defaultParallelism))


class Meter:
    """Bytes of sources finished by tasks anywhere, added up on the driver as they finish, for progress.

    `fetched` is all that was read for groups that were written, delete files too, and what was read twice.
    """

    def __init__(self, spark: Any) -> None:
        self.accumulator = _accumulator(spark.sparkContext, self)
        self._before = int(self.accumulator.value)
        self.fetched = 0
        self._lock = threading.Lock()

    def fetch(self, nbytes: int) -> None:
        """So much was read. Called by the driver's threads."""
        with self._lock:
            self.fetched += nbytes

    @property
    def value(self) -> int:
        return int(self.accumulator.value) - self._before


def _accumulator(context: Any, meter: Meter) -> Any:
    """One for this meter alone, until it is gone; then the next one has it.

    PySpark forgets no accumulator as long as the process lives: one for every run adds up over months. It cannot be made to,
    either: a task that ends late would name one it does not know, and that ends the thread which hears from all tasks. So they
    are used again; a task of a cancelled run that ends late then moves another run's progress a little, and nothing else.
    """
    at_rest: list[Any] = context.__dict__.setdefault(_AT_REST, [])
    with (
        _ONE_AT_A_TIME
    ):  # PySpark counts its accumulators without a lock: two may get one number, and then one hears nothing
        found = at_rest.pop() if at_rest else context.accumulator(0)
    weakref.finalize(meter, at_rest.append, found)
    return found


@contextmanager
def ticking(meter: Meter, advance: Callable[[int], None], every: float = 0.3) -> Iterator[None]:
    """Report the meter's growth while the body runs, and the rest when it ends."""
    seen = 0

    def report() -> None:
        nonlocal seen
        now = meter.value
        if now > seen:
            advance(now - seen)
            seen = now

    try:
        with clock.repeating(report, every, "lakewarden-progress"):
            yield
    finally:
        report()


def on_one_machine(spark: Any) -> bool:
    """Whether every task runs here, beside the driver."""
    master = str(spark.sparkContext.master)
    return master.startswith("local") and not master.startswith("local-cluster")


def ship_kernels(spark: Any, cache: Path) -> None:
    """Executors on other machines get this package once per session; in local mode they import what the driver does."""
    context = spark.sparkContext
    if on_one_machine(spark):
        return
    if getattr(context, _SHIPPED, False):
        return
    context.addPyFile(str(_archive(cache)))
    setattr(context, _SHIPPED, True)


def _archive(cache: Path) -> Path:
    """This package as a zip named by its content. It stays in the cache: executors that start later fetch it again."""
    package = Path(__file__).resolve().parent.parent
    sources = {path.relative_to(package.parent): path.read_bytes() for path in sorted(package.rglob("*.py"))}
    digest = hashlib.sha256(
        b"".join(str(name).encode() + text for name, text in sources.items())
    ).hexdigest()[:12]
    archive = cache / f"lakewarden-{digest}.zip"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkstemp(dir=cache, suffix=".part")[1])
        with ZipFile(part, "w") as bundle:
            for name, text in sources.items():
                bundle.writestr(str(name), text)
        part.replace(archive)
    return archive
