"""Runs kernels as Spark tasks: one task per item, results as they are, progress while they run."""

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
# Spark's message for a worker that ended without an exception. Spark has already retried the task as often as allowed.
_DIED = "Python worker exited unexpectedly"
_ONE_AT_A_TIME = threading.Lock()


def fan_out(
    spark: Any, kernel: Callable[[Item], Result], items: Sequence[Item], run_id: str, what: str
) -> list[Result]:
    """Run `kernel` on every item, one Spark task each. Any thread may call this; `cancel` stops it."""
    context = spark.sparkContext
    context.setJobGroup(run_id, what, interruptOnCancel=True)
    results: list[Result] = context.parallelize(items, len(items)).map(_light(kernel)).collect()
    return results


def _light(kernel: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """The kernel, with its worker made lighter afterwards."""

    def run(item: Item) -> Result:
        with light_worker():
            return kernel(item)

    return run


@contextmanager
def light_worker() -> Iterator[None]:
    """Prepare the worker so that its next task starts sooner.

    Before every task, pyspark's worker drops Python's import caches, and each zip on its path (pyspark's own is
    one) is read again: 0.1 s of CPU per task, a fifth of a 1 M-row rewrite. Dropped importers are created again
    when needed.

    After every task it runs garbage collection over all objects, including those of Arrow, numpy and Spark: 10
    ms, 90 % of the cost of an empty task. Objects that exist after the first task stay, so they are excluded.
    """
    try:
        yield
    finally:
        archives = [
            path for path, importer in sys.path_importer_cache.items() if isinstance(importer, zipimporter)
        ]
        for path in archives:
            del sys.path_importer_cache[path]
        _set_aside_what_stays()


@cache
def _set_aside_what_stays() -> None:
    """Exclude all existing objects from garbage collection, once in a worker's life."""
    gc.collect()
    gc.freeze()


def cancel(spark: Any, run_id: str) -> None:
    spark.sparkContext.cancelJobGroup(run_id)


def wait_until_idle(spark: Any, seconds: float = 10.0) -> None:
    """Wait until the tasks of cancelled jobs have ended, so that none writes after the clean-up. They end
    shortly after their jobs.

    Best effort: other jobs of a shared session may keep it busy, and a file written late is only an orphan.
    """
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = clock.monotonic() + seconds
    while clock.monotonic() < deadline:
        if not any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
            return
        clock.sleep(0.05)


def kill_timeout(spark: Any) -> float:
    """Seconds that a cancelled task's Python worker may still live, with a small margin."""
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
        _, separator, trace = message.partition("Traceback (most recent call last):")
        lines = [line for line in trace.splitlines() if line and not line.startswith((" ", "\t"))]
        if separator and lines:
            return redact_text(lines[0])
    return java_reason(error)


def parallelism(spark: Any) -> int:
    return max(1, int(spark.sparkContext.defaultParallelism))


class Meter:
    """Bytes of finished source files over all tasks, added up on the driver as tasks finish, for progress.

    `fetched` counts all bytes read for the groups written, including delete files and bytes that were read
    twice.
    """

    def __init__(self, spark: Any) -> None:
        self.accumulator = _accumulator(spark.sparkContext, self)
        self._before = int(self.accumulator.value)
        self.fetched = 0
        self._lock = threading.Lock()

    def fetch(self, nbytes: int) -> None:
        """Add bytes that were read. Called by the driver's threads."""
        with self._lock:
            self.fetched += nbytes

    @property
    def value(self) -> int:
        return int(self.accumulator.value) - self._before


def _accumulator(context: Any, meter: Meter) -> Any:
    """An accumulator that belongs to this meter while the meter exists. A later meter reuses it.

    PySpark keeps every accumulator until the process ends, so one per run would be a memory leak. Removing
    them is not possible: a task that ends late would name an unknown accumulator, which ends the thread that
    receives the results of all tasks. So accumulators are reused. If a task of a cancelled run ends late, it
    only moves another run's progress a little.
    """
    at_rest: list[Any] = context.__dict__.setdefault(_AT_REST, [])
    with _ONE_AT_A_TIME:  # PySpark numbers its accumulators without a lock: two may get one number, and then one receives nothing
        accumulator = at_rest.pop() if at_rest else context.accumulator(0)
    weakref.finalize(meter, at_rest.append, accumulator)
    return accumulator


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
    """Send this package to executors on other machines, once per session; in local mode they import the driver's package."""
    context = spark.sparkContext
    if on_one_machine(spark):
        return
    if getattr(context, _SHIPPED, False):
        return
    context.addPyFile(str(_archive(cache)))
    setattr(context, _SHIPPED, True)


def _archive(cache: Path) -> Path:
    """This package as a zip named by its content. It stays in the cache, because later executors load it again."""
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
