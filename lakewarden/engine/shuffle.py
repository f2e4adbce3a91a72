"""An ordered group that does not fit one task: rows travel from task to task as Arrow blobs, never one by one.

On a cluster they go through Spark's shuffle. Where every task runs on this machine they stay in files: through the shuffle
a row costs as much again as ordering it does (20 M rows: 37 CPU seconds instead of 24), most of it copies between Python and
Java.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lakewarden.engine.kernels.blobs import stored
from lakewarden.engine.kernels.collecting import collect
from lakewarden.engine.kernels.exchange import Exchange, Record, Told, chunks, prepare, proof
from lakewarden.engine.kernels.project import Unfit
from lakewarden.engine.kernels.sources import RowsDiffer, Slice
from lakewarden.engine.kernels.spreading import spread_out
from lakewarden.engine.kernels.storage import MissingSource
from lakewarden.engine.kernels.task import RewriteTask, Rewritten, stored_bytes
from lakewarden.engine.names import attempt_path
from lakewarden.engine.spark import Meter, fan_out, light_worker, on_one_machine, parallelism

Found = TypeVar("Found")


def shuffled(spark: Any, task: RewriteTask, run_id: str, what: str, meter: Meter) -> list[Rewritten]:
    """One result per output, in order; the first carries what the spreading tasks read."""
    exchange, row_bytes = _checked(fan_out(spark, _prepare, [task], run_id, f"{what}, sampling"))[0]
    parts = chunks(task, row_bytes, at_least=2 * parallelism(spark))
    job = _Job(spark, exchange, run_id, what, meter.accumulator)
    if not on_one_machine(spark):
        return _proven(task, _checked(job.through_shuffle(parts)))
    with _folder(spark) as folder:
        return _proven(task, _checked(job.through_files(parts, folder)))


Collected = tuple[Rewritten, list[Told]] | Exception


@dataclass(frozen=True, slots=True)
class _Job:
    """Both ways from the spreading tasks to the collecting ones."""

    spark: Any
    exchange: Exchange
    run_id: str
    what: str
    done: Any

    @property
    def outputs(self) -> int:
        return len(self.exchange.task.outputs)

    def through_files(self, parts: list[tuple[Slice, ...]], folder: str) -> list[Collected]:
        """Blobs stay where they were written; the driver tells the collecting tasks where that is."""
        exchange, done = self.exchange, self.done

        def spread(part: tuple[Slice, ...]) -> list[Record]:
            sent = list(stored(spread_out(exchange, part), folder))
            done.add(stored_bytes(part))
            return sent

        def gather(item: tuple[int, list[Record]]) -> Collected:
            return _collect(exchange, *item)

        arrived: list[list[Record]] = [[] for _ in range(self.outputs)]
        for sent in fan_out(self.spark, spread, parts, self.run_id, f"{self.what}, spreading"):
            for number, blob in sent:
                arrived[exchange.output_of(number)].append((number, blob))
        return fan_out(self.spark, gather, list(enumerate(arrived)), self.run_id, self.what)

    def through_shuffle(self, parts: list[tuple[Slice, ...]]) -> list[Collected]:
        """Blobs travel through Spark's shuffle, keyed by their range."""
        shared, done = self.spark.sparkContext.broadcast(self.exchange), self.done

        def spread(part: tuple[Slice, ...]) -> Iterator[Record]:
            with light_worker():
                yield from spread_out(shared.value, part)
            done.add(stored_bytes(part))

        def gather(output: int, records: Iterator[Record]) -> Iterator[Collected]:
            with light_worker():
                yield _collect(shared.value, output, records)

        try:
            self.spark.sparkContext.setJobGroup(self.run_id, self.what, interruptOnCancel=True)
            sent = self.spark.sparkContext.parallelize(parts, len(parts)).flatMap(spread)
            ranged = sent.partitionBy(self.outputs, self.exchange.output_of)
            found: list[Collected] = ranged.mapPartitionsWithIndex(gather).collect()
            return found
        finally:
            shared.unpersist()


@contextmanager
def _folder(spark: Any) -> Iterator[str]:
    """A folder for as long as the body runs.

    It is beside Spark's own shuffle files: on the disk that was given to it for such, and removed with them if we cannot.
    """
    beside = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirs()[0]
    folder = tempfile.mkdtemp(prefix="lakewarden-", dir=str(beside))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# These come back as values: raising in a task would make Spark try it again, with the same end.
FILE_AT_FAULT = (Unfit, MissingSource, RowsDiffer)


def _prepare(task: RewriteTask) -> tuple[Exchange, float] | Exception:
    try:
        return prepare(task)
    except FILE_AT_FAULT as error:
        return error


def _collect(exchange: Exchange, output: int, records: Iterable[Record]) -> Collected:
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


def _proven(task: RewriteTask, results: list[tuple[Rewritten, list[Told]]]) -> list[Rewritten]:
    """The outputs' rows are as many as were sent, and those as many as the sources have."""
    told = [each for _, list_ in results for each in list_]
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
