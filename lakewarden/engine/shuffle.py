"""An ordered group that does not fit one task, over Spark's shuffle: rows travel as Arrow blobs, never one by one.

Where every task runs on this machine the blobs stay in files, and the shuffle carries only where they are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from lakewarden.engine.kernels.blobs import stored
from lakewarden.engine.kernels.collecting import collect
from lakewarden.engine.kernels.exchange import Exchange, Record, Told, chunks, prepare, proof
from lakewarden.engine.kernels.project import Unfit
from lakewarden.engine.kernels.sources import RowsDiffer, Slice
from lakewarden.engine.kernels.spreading import spread_out
from lakewarden.engine.kernels.storage import MissingSource
from lakewarden.engine.kernels.task import RewriteTask, Rewritten
from lakewarden.engine.names import attempt_path
from lakewarden.engine.spark import Meter, fan_out, light_worker, on_one_machine, parallelism

Found = TypeVar("Found")


def shuffled(spark: Any, task: RewriteTask, run_id: str, what: str, meter: Meter) -> list[Rewritten]:
    """One result per output, in order; the first carries what the spreading tasks read."""
    exchange, row_bytes = _checked(fan_out(spark, _prepare, [task], run_id, f"{what}, sampling"))[0]
    parts = chunks(task, row_bytes, at_least=2 * parallelism(spark))
    shared = spark.sparkContext.broadcast(exchange)
    done = meter.accumulator

    def spread(piece: tuple[Slice, ...]) -> Iterator[Record]:
        with light_worker():
            sent = spread_out(shared.value, piece)
            yield from sent if folder is None else stored(sent, folder)
        done.add(sum(each.size * each.wanted // max(1, each.rows) for each in piece))

    def gather(output: int, records: Iterator[Record]) -> Iterator[tuple[Rewritten, list[Told]] | Exception]:
        with light_worker():
            try:
                yield collect(_attempt(shared.value), output, records)
            except FILE_AT_FAULT as error:
                yield error

    outputs = len(task.outputs)
    output_of = exchange.output_of
    with _common_folder(spark) as folder:
        spark.sparkContext.setJobGroup(run_id, what, interruptOnCancel=True)
        sent = spark.sparkContext.parallelize(parts, len(parts)).flatMap(spread)
        results = sent.partitionBy(outputs, output_of).mapPartitionsWithIndex(gather).collect()
    shared.unpersist()
    return _proven(task, _checked(results))


@contextmanager
def _common_folder(spark: Any) -> Iterator[str | None]:
    """A folder every task can write and read, for as long as the body runs; None where tasks run on several machines.

    It is beside Spark's own shuffle files: on the disk that was given to it for such, and removed with them if we are not.
    """
    if not on_one_machine(spark):
        yield None
        return
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
        peak_rss=max(first.peak_rss, *(each.peak_rss for each in told)),
    )
    # The sources' digest is on the first result; the others add nothing to it.
    return [first, *(replace(each, read=_nothing(task)) for each in rest)]


def _nothing(task: RewriteTask) -> Any:
    from lakewarden.engine.kernels.digest import Digest

    return Digest() if task.digest else None
