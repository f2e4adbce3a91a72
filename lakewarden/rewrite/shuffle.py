"""Rewrites an ordered group that does not fit one task: rows are sent from task to task as Arrow blobs, never
one by one.

On a cluster the blobs go through Spark's shuffle. If every task runs on this machine they stay in files:
through the shuffle, a row costs as much again as ordering it (20 M rows: 37 CPU seconds instead of 24), mostly
for copies between Python and Java.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from lakewarden.rate_limit import Pace
from lakewarden.rewrite.exchange.blobs import TELL, Record, stored
from lakewarden.rewrite.exchange.plan import Exchange, Sampled, SendReport, chunks, prepare, proof
from lakewarden.rewrite.exchange.receive import collect
from lakewarden.rewrite.exchange.send import spread_out
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.sources import RowsDiffer, Slice
from lakewarden.rewrite.read.store import MissingSource
from lakewarden.rewrite.task import RewriteTask, TaskResult, stored_bytes
from lakewarden.rewrite.write.output import attempt_path
from lakewarden.spark.task_slots import GLANCE_SECONDS, RunSlots, TaskStopped
from lakewarden.spark.tasks import Meter, fan_out, light_worker, on_one_machine, parallelism

Item = TypeVar("Item")
Found = TypeVar("Found")
Collected = tuple[TaskResult, list[SendReport]]

# Returned as values: an exception in a task would make Spark retry it, with the same result.
FILE_AT_FAULT = (Unfit, MissingSource, RowsDiffer)

# Groups with rows in files at the same time: two keep the cores busy, and all at once would need disk space for all of them.
_in_files = threading.BoundedSemaphore(2)
# The most blobs whose locations the driver keeps; larger groups use Spark's shuffle, which needs no such list.
_MOST_BLOBS = 100_000


@dataclass(frozen=True, slots=True)
class Caller:
    """What the caller of an exchange provides. `gate` raises if no work may begin now; `work` is None without limits."""

    spark: Any
    run_id: str
    meter: Meter
    work: RunSlots | None
    stopped: threading.Event
    gate: Callable[[], None]


def shuffled(caller: Caller, task: RewriteTask, what: str) -> list[TaskResult]:
    """One result per output, in order; the first includes what the other tasks read. Can be cancelled between two jobs."""
    job = _Job(caller, what)
    exchange, row_bytes, sampling = job.sample(task)
    parts = chunks(task, row_bytes, at_least=2 * parallelism(caller.spark))
    if not on_one_machine(caller.spark) or len(parts) * exchange.ranges > _MOST_BLOBS:
        return _proven(task, sampling, job.through_shuffle(exchange, parts))
    with _turn(caller), _folder(caller.spark) as folder:
        return _proven(task, sampling, job.through_files(exchange, parts, folder))


@dataclass(frozen=True, slots=True)
class _Job:
    """A group's sampling, and both ways to send rows. Kernels are closures that do not contain this object."""

    caller: Caller
    what: str

    def sample(self, task: RewriteTask) -> Sampled:
        def look(task: RewriteTask, pace: Pace | None) -> Sampled | Exception:
            try:
                return prepare(replace(task, pace=pace))
            except FILE_AT_FAULT as error:
                return error

        return self._run(look, [task], "sampling", begun=False)[0]

    def through_files(
        self, exchange: Exchange, parts: list[tuple[Slice, ...]], folder: str
    ) -> list[Collected]:
        """Exchange through files: blobs stay where they were written, and the driver sends the collecting tasks
        their locations.
        """
        done = self.caller.meter.accumulator

        def spread(part: tuple[Slice, ...], pace: Pace | None) -> list[Record] | Exception:
            try:
                sent = list(stored(spread_out(exchange.paced(pace), part), folder))
            except FILE_AT_FAULT as error:
                return error
            done.add(stored_bytes(part))
            return sent

        def gather(item: tuple[int, list[Record]], pace: Pace | None) -> Collected | Exception:
            return _collect(exchange.paced(pace), *item)

        reports: list[SendReport] = []
        arrived: list[list[Record]] = [[] for _ in exchange.task.outputs]
        for sent in self._run(spread, parts, "spreading"):
            for number, blob in sent:
                if number == TELL:
                    reports.append(SendReport.of(blob))
                else:
                    arrived[exchange.output_of(number)].append((number, blob))
        written = [each for each, _ in self._run(gather, list(enumerate(arrived)), "collecting")]
        return [(each, [] if place else reports) for place, each in enumerate(written)]

    def through_shuffle(self, exchange: Exchange, parts: list[tuple[Slice, ...]]) -> list[Collected]:
        """Exchange through Spark's shuffle, keyed by range. Under a limit, all of it counts as one task."""
        work, at_once = self.caller.work, parallelism(self.caller.spark)
        if work is None:
            return self._shuffle(exchange, parts)

        def together(exchange: Exchange, pace: Pace) -> list[Collected]:
            return self._shuffle(exchange.paced(pace.part(1 / at_once)), parts)

        return work.run(together, [exchange])[0]

    def _shuffle(self, exchange: Exchange, parts: list[tuple[Slice, ...]]) -> list[Collected]:
        context = self.caller.spark.sparkContext
        shared, done = context.broadcast(exchange), self.caller.meter.accumulator

        def spread(part: tuple[Slice, ...]) -> Iterator[Record]:
            try:
                with light_worker():
                    yield from spread_out(shared.value, part)
            except FILE_AT_FAULT as error:
                yield TELL, pa.py_buffer(pickle.dumps(error))
                return
            done.add(stored_bytes(part))

        def gather(output: int, records: Iterator[Record]) -> Iterator[Collected | Exception]:
            with light_worker():
                yield _collect(shared.value, output, records)

        _check(self.caller)
        try:
            context.setJobGroup(self.caller.run_id, self.what, interruptOnCancel=True)
            sent = context.parallelize(parts, len(parts)).flatMap(spread)
            ranged = sent.partitionBy(len(exchange.task.outputs), exchange.output_of)
            return _checked(ranged.mapPartitionsWithIndex(gather).collect())
        finally:
            shared.destroy()  # also deletes its file on this machine, which unpersist would leave

    def _run(
        self,
        kernel: Callable[[Item, Pace | None], Found | Exception],
        items: Sequence[Item],
        what: str,
        begun: bool = True,
    ) -> list[Found]:
        """One Spark job for all items; under a limit, one job per item, each in its own slot and with its share of the rate."""
        _check(self.caller)
        spark, run_id, described = self.caller.spark, self.caller.run_id, f"{self.what}, {what}"
        if self.caller.work is None:
            return _checked(fan_out(spark, _at(kernel, None), items, run_id, described))

        def alone(item: Item, pace: Pace) -> Found | Exception:
            return fan_out(spark, _at(kernel, pace), [item], run_id, described)[0]

        return _checked(self.caller.work.run(alone, items, begun))


def _at(kernel: Callable[[Item, Pace | None], Found], pace: Pace | None) -> Callable[[Item], Found]:
    return lambda item: kernel(item, pace)


def _check(caller: Caller) -> None:
    """Raise if the run was cancelled. Cancelling ends running jobs; a job that is not submitted yet must be stopped here."""
    if caller.stopped.is_set():
        raise TaskStopped


@contextmanager
def _turn(caller: Caller) -> Iterator[None]:
    """Wait until another group's rows may be in files. This may take hours, so the gate is checked again after it."""
    while not _in_files.acquire(timeout=GLANCE_SECONDS):
        _check(caller)
    try:
        caller.gate()
        yield
    finally:
        _in_files.release()


@contextmanager
def _folder(spark: Any) -> Iterator[str]:
    """A temporary folder that exists while the body runs.

    It is beside Spark's own shuffle files: on a disk intended for such files, and Spark removes it if we
    cannot.
    """
    manager = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()
    roomiest = max((str(each) for each in manager.localDirs()), key=lambda path: shutil.disk_usage(path).free)
    folder = tempfile.mkdtemp(prefix="lakewarden-", dir=roomiest)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _collect(exchange: Exchange, output: int, records: Iterable[Record]) -> Collected | Exception:
    try:
        return collect(_attempt(exchange), output, records)
    except FILE_AT_FAULT as error:
        return error


def _checked(results: Sequence[Found | Exception]) -> list[Found]:
    """The results of the tasks. Raises the first exception among them."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if not isinstance(result, Exception)]


def _attempt(exchange: Exchange) -> Exchange:
    """A task that Spark runs twice writes two names: one run never overwrites a file that the other has closed."""
    names = tuple(attempt_path(prefix) for prefix in exchange.task.outputs)
    return replace(exchange, task=replace(exchange.task, outputs=names))


def _proven(task: RewriteTask, sampling: SendReport, results: list[Collected]) -> list[TaskResult]:
    """Check that the outputs have as many rows as were sent, and that as many were sent as the sources have."""
    reports = [sampling, *(each for _, list_ in results for each in list_)]
    read, sent, erased = proof(reports)
    written = sum(each.rows for each, _ in results)
    if sent + erased != task.rows:
        raise RowsDiffer(task.outputs[0], task.rows, sent + erased)
    if written != sent:
        raise RowsDiffer(task.outputs[0], sent, written)
    first, *rest = [each for each, _ in results]
    first = replace(
        first,
        read=read if task.digest else None,
        erased=erased,
        bytes_read=task.stored_bytes,
        cpu_seconds=first.cpu_seconds + sum(report.cpu_seconds for report in reports),
        waited=first.waited + sum(report.waited for report in reports),
        fetched=sum(report.fetched for report in reports),
        peak_rss=max(first.peak_rss, *(report.peak_rss for report in reports)),
    )
    # The sources' digest is on the first result; the others add nothing to it.
    return [first, *(replace(each, read=_nothing(task)) for each in rest)]


def _nothing(task: RewriteTask) -> Any:
    from lakewarden.rewrite.digest import Digest

    return Digest() if task.digest else None
