"""An ordered group that does not fit one task: rows travel from task to task as Arrow blobs, never one by one.

On a cluster they go through Spark's shuffle. Where every task runs on this machine they stay in files: through the shuffle
a row costs as much again as ordering it does (20 M rows: 37 CPU seconds instead of 24), most of it copies between Python and
Java.
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

from lakewarden.engine.kernels.blobs import TELL, Record, stored
from lakewarden.engine.kernels.collecting import collect
from lakewarden.engine.kernels.exchange import Exchange, Sampled, Told, chunks, prepare, proof
from lakewarden.engine.kernels.project import Unfit
from lakewarden.engine.kernels.sources import RowsDiffer, Slice
from lakewarden.engine.kernels.spreading import spread_out
from lakewarden.engine.kernels.storage import MissingSource
from lakewarden.engine.kernels.task import RewriteTask, Rewritten, stored_bytes
from lakewarden.engine.lanes import Stopped
from lakewarden.engine.names import attempt_path
from lakewarden.engine.spark import Meter, fan_out, light_worker, on_one_machine, parallelism

Item = TypeVar("Item")
Found = TypeVar("Found")
Collected = tuple[Rewritten, list[Told]]

# These come back as values: raising in a task would make Spark try it again, with the same end.
FILE_AT_FAULT = (Unfit, MissingSource, RowsDiffer)

# Groups whose rows are in files at once: two keep the cores busy, and all at once would need the disk for all of them.
_in_files = threading.BoundedSemaphore(2)
# Blobs whose places the driver keeps; more go through Spark's shuffle, which needs no such list.
_MOST_BLOBS = 100_000


def shuffled(
    spark: Any, task: RewriteTask, run_id: str, what: str, meter: Meter, stopped: threading.Event
) -> list[Rewritten]:
    """One result per output, in order; the first carries what the other tasks read. Stopped, if asked to between two jobs."""
    job = _Job(spark, run_id, what, meter.accumulator, stopped)
    exchange, row_bytes, sampling = job.sample(task)
    parts = chunks(task, row_bytes, at_least=2 * parallelism(spark))
    if not on_one_machine(spark) or len(parts) * exchange.ranges > _MOST_BLOBS:
        return _proven(task, sampling, job.through_shuffle(exchange, parts))
    with _in_files, _folder(spark) as folder:
        return _proven(task, sampling, job.through_files(exchange, parts, folder))


@dataclass(frozen=True, slots=True)
class _Job:
    """A group's sampling, and both ways from the spreading tasks to the collecting ones."""

    spark: Any
    run_id: str
    what: str
    done: Any
    stopped: threading.Event

    def sample(self, task: RewriteTask) -> Sampled:
        at_once = parallelism(self.spark)

        def look(task: RewriteTask) -> Sampled | Exception:
            try:
                return prepare(task, at_once)
            except FILE_AT_FAULT as error:
                return error

        return self._run(look, [task], "sampling")[0]

    def through_files(
        self, exchange: Exchange, parts: list[tuple[Slice, ...]], folder: str
    ) -> list[Collected]:
        """Blobs stay where they were written; the driver tells the collecting tasks where that is."""
        done = self.done

        def spread(part: tuple[Slice, ...]) -> list[Record] | Exception:
            try:
                sent = list(stored(spread_out(exchange, part), folder))
            except FILE_AT_FAULT as error:
                return error
            done.add(stored_bytes(part))
            return sent

        def gather(item: tuple[int, list[Record]]) -> Collected | Exception:
            return _collect(exchange, *item)

        told: list[Told] = []
        arrived: list[list[Record]] = [[] for _ in exchange.task.outputs]
        for sent in self._run(spread, parts, "spreading"):
            for number, blob in sent:
                if number == TELL:
                    told.append(Told.of(blob))
                else:
                    arrived[exchange.output_of(number)].append((number, blob))
        written = [each for each, _ in self._run(gather, list(enumerate(arrived)), "collecting")]
        return [(each, [] if place else told) for place, each in enumerate(written)]

    def through_shuffle(self, exchange: Exchange, parts: list[tuple[Slice, ...]]) -> list[Collected]:
        """Blobs travel through Spark's shuffle, keyed by their range."""
        shared, done = self.spark.sparkContext.broadcast(exchange), self.done

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

        self._check()
        try:
            self.spark.sparkContext.setJobGroup(self.run_id, self.what, interruptOnCancel=True)
            sent = self.spark.sparkContext.parallelize(parts, len(parts)).flatMap(spread)
            ranged = sent.partitionBy(len(exchange.task.outputs), exchange.output_of)
            return _checked(ranged.mapPartitionsWithIndex(gather).collect())
        finally:
            shared.unpersist()

    def _run(
        self, kernel: Callable[[Item], Found | Exception], items: Sequence[Item], what: str
    ) -> list[Found]:
        self._check()
        return _checked(fan_out(self.spark, kernel, items, self.run_id, f"{self.what}, {what}"))

    def _check(self) -> None:
        """Cancelling ends jobs that run; one that is yet to be handed in has to be held back."""
        if self.stopped.is_set():
            raise Stopped


@contextmanager
def _folder(spark: Any) -> Iterator[str]:
    """A folder for as long as the body runs.

    It is beside Spark's own shuffle files: on a disk that was given to it for such, and removed with them if we cannot.
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


def _checked(found: Sequence[Found | Exception]) -> list[Found]:
    """What the tasks gave, or the first exception among it, raised here."""
    for each in found:
        if isinstance(each, Exception):
            raise each
    return [each for each in found if not isinstance(each, Exception)]


def _attempt(exchange: Exchange) -> Exchange:
    """A task that Spark runs twice writes two names: one never overwrites what the other has closed."""
    names = tuple(attempt_path(prefix) for prefix in exchange.task.outputs)
    return replace(exchange, task=replace(exchange.task, outputs=names))


def _proven(task: RewriteTask, sampling: Told, results: list[Collected]) -> list[Rewritten]:
    """The outputs' rows are as many as were sent, and those as many as the sources have."""
    told = [sampling, *(each for _, list_ in results for each in list_)]
    read, sent, erased = proof(told)
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
        bytes_read=sum(each.bytes_read for each in told),
        cpu_seconds=first.cpu_seconds + sum(each.cpu_seconds for each in told),
        waited=first.waited + sum(each.waited for each in told),
        fetched=sum(each.fetched for each in told),
        peak_rss=max(first.peak_rss, *(each.peak_rss for each in told)),
    )
    # The sources' digest is on the first result; the others add nothing to it.
    return [first, *(replace(each, read=_nothing(task)) for each in rest)]


def _nothing(task: RewriteTask) -> Any:
    from lakewarden.engine.kernels.digest import Digest

    return Digest() if task.digest else None
