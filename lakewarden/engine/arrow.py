"""The default engine: the Arrow kernel, one Spark task per output file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lakewarden.engine.kernels.rewrite import (
    MissingSource,
    RewriteTask,
    Rewritten,
    RowsDiffer,
    Slice,
    Unfit,
    WriteOptions,
    rewrite,
)
from lakewarden.engine.seam import Order, Trouble, Written
from lakewarden.engine.spark import Meter, cancel, fan_out
from lakewarden.formats.seam import OutputFile
from lakewarden.model import TableView
from lakewarden.plan import Bin, RewriteGroup


class ArrowEngine:
    name = "arrow"

    def __init__(
        self, spark: Any, run_id: str, io: Mapping[str, str], task_memory: int, meter: Meter
    ) -> None:
        self._spark = spark
        self._run_id = run_id
        self._io = io
        self._task_memory = task_memory
        self._meter = meter

    def write(self, order: Order) -> Sequence[Written]:
        tasks = [task for group in order.groups for task in self._tasks(order, group)]
        results = fan_out(self._spark, _kernel(self._meter), tasks, self._run_id, _what(order))
        remaining = iter(results)
        return [_gather(group, [next(remaining) for _ in group.bins]) for group in order.groups]

    def cancel(self) -> None:
        cancel(self._spark, self._run_id)

    def _tasks(self, order: Order, group: RewriteGroup) -> list[RewriteTask]:
        options = WriteOptions.from_properties(order.view.properties, encodings=order.encodings)
        return [
            RewriteTask(
                outputs=(prefix,),
                slices=_slices(bin_),
                schema=order.schema,
                iceberg_schema_json=order.view.schema_json,
                options=options,
                io=self._io,
                row_lineage=order.view.format_version >= 3,
                partition_ids=_identity_columns(order.view, group.spec_id),
                memory_budget=self._task_memory,
            )
            for prefix, bin_ in zip(order.prefixes[group.number], group.bins, strict=True)
        ]


def _identity_columns(view: TableView, spec_id: int) -> frozenset[int]:
    spec = next(each for each in view.specs if each.id == spec_id)
    return frozenset(field.source_id for field in spec.fields if field.transform == "identity")


def _slices(bin_: Bin) -> tuple[Slice, ...]:
    return tuple(
        Slice(s.path, s.bytes, s.records, s.from_row, s.to_row, s.sequence_number, s.first_row_id)
        for s in bin_.sources
    )


def _what(order: Order) -> str:
    bins = sum(len(group.bins) for group in order.groups)
    return f"lakewarden {order.plan.job} {order.view.ref}: {bins} outputs"


def _kernel(meter: Meter) -> Callable[[RewriteTask], Rewritten | Trouble]:
    """The function each task runs. A file at fault comes back as a value: raising would make Spark try it again."""
    done = meter.accumulator

    def run(task: RewriteTask) -> Rewritten | Trouble:
        from dataclasses import replace

        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        try:
            # A task that Spark runs twice writes two names: one never overwrites what the other has closed.
            names = tuple(attempt_path(prefix, attempt) for prefix in task.outputs)
            written = rewrite(replace(task, outputs=names))
        except Unfit as error:
            return Trouble(True, error.path, error.reason)
        except MissingSource as error:
            # A store the kernel cannot open may still open for the format's own engine; a file that is gone is gone.
            return Trouble(not error.gone, error.path, error.reason)
        except RowsDiffer as error:
            return Trouble(False, error.path, str(error))
        done.add(written.bytes_read)
        return written

    return run


# Names a task may have written under: Spark runs it again after a failure, or twice at once when it speculates.
ATTEMPTS = 8


def attempt_path(prefix: str, attempt: int) -> str:
    return f"{prefix}{attempt}.parquet"


def _gather(group: RewriteGroup, results: Sequence[Rewritten | Trouble]) -> Written:
    done = [each for each in results if isinstance(each, Rewritten)]
    return Written(
        group=group,
        outputs=tuple(
            OutputFile(f.path, f.size, f.rows, group.partition_id, f.split_offsets)
            for each in done
            for f in each.files
        ),
        trouble=next((each for each in results if isinstance(each, Trouble)), None),
        cpu_seconds=sum(f.cpu_seconds for f in done),
        peak_rss=max((f.peak_rss for f in done), default=0),
    )
