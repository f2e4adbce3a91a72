"""The default engine: the Arrow kernel, one Spark task per bin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from lakewarden.model.actions import Bin, RewriteGroup
from lakewarden.model.files import DeleteFile
from lakewarden.model.table import TableView
from lakewarden.rate_limit import Pace
from lakewarden.rewrite import shuffle
from lakewarden.rewrite.deletes.deleted_rows import RemapTask
from lakewarden.rewrite.digest import Digest
from lakewarden.rewrite.interface import GroupResult, Order, RewriteProblem
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.order.cluster import TooLarge, looks_too_large
from lakewarden.rewrite.pages.chunks import PagesDiffer
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.sources import RowsDiffer, Slice
from lakewarden.rewrite.read.store import DamagedSource, MissingSource
from lakewarden.rewrite.task import RewriteTask, SlicePart, TaskResult
from lakewarden.rewrite.write.encoding import WriteOptions
from lakewarden.rewrite.write.output import attempt_path
from lakewarden.spark.task_slots import RunSlots
from lakewarden.spark.tasks import Meter, cancel, fan_out
from lakewarden.tables.interface import OutputFile


class ArrowEngine:
    name = "arrow"

    def __init__(
        self,
        spark: Any,
        run_id: str,
        io: Mapping[str, str],
        task_memory: int,
        meter: Meter,
        work: RunSlots | None = None,
        gate: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._run_id = run_id
        self._io = io
        self._task_memory = task_memory
        self._meter = meter
        self._work, self._gate = work, gate
        self._stopped = threading.Event()

    def write(self, order: Order) -> Sequence[GroupResult]:
        tasks = {group.number: self._tasks(order, group) for group in order.groups}
        every = [task for each in tasks.values() for task in each if not looks_too_large(task)]
        results = iter(self._run(every, _what(order)))
        written = []
        for group in order.groups:
            of_group = tasks[group.number]
            outcomes = [None if looks_too_large(task) else next(results) for task in of_group]
            # An ordered group is one bin. If it does not fit one task's memory, several tasks share it.
            alone = [outcome for outcome in outcomes if isinstance(outcome, TaskResult | RewriteProblem)]
            fits = len(alone) == len(of_group)
            done = alone if fits else self._shuffled(order, of_group[0])
            self._meter.fetch(sum(each.fetched for each in done if isinstance(each, TaskResult)))
            written.append(replace(_gather(order, group, done), exchanged=not fits))
        return written

    def _run(self, tasks: Sequence[RewriteTask], what: str) -> list[Outcome]:
        """One Spark job for all tasks. Under a limit, one job per task, each in its own slot and with its share of the rate."""
        if not tasks:
            return []
        kernel = _kernel(self._meter)
        if self._work is None:
            return fan_out(self._spark, kernel, tasks, self._run_id, what)

        def alone(task: RewriteTask, pace: Pace) -> Outcome:
            return fan_out(self._spark, kernel, [replace(task, pace=pace)], self._run_id, what)[0]

        return self._work.run(alone, tasks)

    def _shuffled(self, order: Order, task: RewriteTask) -> list[Outcome]:
        caller = shuffle.Caller(self._spark, self._run_id, self._meter, self._work, self._stopped, self._gate)
        try:
            return [*shuffle.shuffled(caller, task, _what(order))]
        except shuffle.FILE_AT_FAULT as error:
            return [_trouble(error)]

    def cancel(self) -> None:
        self._stopped.set()
        cancel(self._spark, self._run_id)

    def _tasks(self, order: Order, group: RewriteGroup) -> list[RewriteTask]:
        options = WriteOptions.from_properties(order.properties, encodings=order.encodings)
        names = iter(order.prefixes[group.number])
        return [
            self._task(order, group, bin_, tuple(islice(names, bin_.outputs)), options) for bin_ in group.bins
        ]

    def _task(
        self, order: Order, group: RewriteGroup, bin_: Bin, outputs: tuple[str, ...], options: WriteOptions
    ) -> RewriteTask:
        slices, deletes = _slices(bin_, order.files.deletes)
        return RewriteTask(
            outputs=outputs,
            slices=slices,
            schema=order.schema,
            iceberg_schema_json=order.view.schema_json if order.view.format == "iceberg" else "",
            options=options,
            io=self._io,
            row_lineage=order.view.format_version >= 3,
            partition_ids=identity_columns(order.view, group.spec_id),
            memory_budget=self._task_memory,
            deletes=deletes,
            ordering=order.ordering if group.ordered else None,
            digest=order.digest,
            copy_pages=order.copy_pages,
            nan_in_bounds=order.view.format == "paimon",
        )

    def remap_task(
        self, order: Order, group: RewriteGroup, path: str, parts: tuple[SlicePart, ...]
    ) -> RemapTask:
        """The task that maps newly arrived deletes to positions in one output."""
        options = WriteOptions.from_properties(order.properties, encodings=order.encodings)
        rewrite = self._task(order, group, Bin(()), (), options)
        return RemapTask(path, parts, replace(rewrite, ordering=None, digest=False))


def identity_columns(view: TableView, spec_id: int) -> frozenset[int]:
    spec = next(spec for spec in view.specs if spec.id == spec_id)
    return frozenset(field.source_id for field in spec.fields if field.transform == "identity")


def _slices(bin_: Bin, known: Sequence[DeleteFile]) -> tuple[tuple[Slice, ...], tuple[DeleteFile, ...]]:
    """The bin's sources and the delete files that apply to them: each task is sent only its own."""
    places = sorted({place for source in bin_.sources for place in source.deletes})
    number = {place: n for n, place in enumerate(places)}
    slices = tuple(
        Slice(
            s.path,
            s.bytes,
            s.records,
            s.from_row,
            s.to_row,
            s.sequence_number,
            s.first_row_id,
            tuple(number[place] for place in s.deletes),
        )
        for s in bin_.sources
    )
    return slices, tuple(known[place] for place in places)


def _what(order: Order) -> str:
    bins = sum(group.outputs for group in order.groups)
    return f"lakewarden {order.plan.job} {order.view.ref}: {bins} outputs"


_ADVICE = "`lakewarden fsck TABLE --deep` names every damaged file"

Outcome = TaskResult | RewriteProblem | TooLarge


def _kernel(meter: Meter) -> Callable[[RewriteTask], Outcome]:
    """The function that each task runs. A faulty file is returned as a value: an exception would make Spark retry the task."""
    done = meter.accumulator

    def run(task: RewriteTask) -> Outcome:
        try:
            # A task that Spark runs twice writes two names: one run never overwrites a file that the other has closed.
            names = tuple(attempt_path(prefix) for prefix in task.outputs)
            written = rewrite(replace(task, outputs=names))
        except (Unfit, MissingSource, RowsDiffer, PagesDiffer) as error:
            return _trouble(error)
        except TooLarge as error:
            return error
        done.add(written.bytes_read)
        return written

    return run


def _trouble(error: Unfit | MissingSource | RowsDiffer | PagesDiffer) -> RewriteProblem:
    match error:
        case Unfit():
            return RewriteProblem(True, error.path, error.reason)
        case DamagedSource():
            return RewriteProblem(False, error.path, f"{error.reason}; {_ADVICE}")
        case MissingSource():
            # If the kernel cannot open a store, the format's own engine may still open it. A missing file is
            # missing for both.
            return RewriteProblem(not error.gone, error.path, error.reason)
        case PagesDiffer():
            return RewriteProblem(False, error.path, f"{error}; {_ADVICE}")
        case _:
            return RewriteProblem(False, error.path, str(error))


def _gather(order: Order, group: RewriteGroup, results: Sequence[Outcome]) -> GroupResult:
    done = [result for result in results if isinstance(result, TaskResult)]
    order_id = order.sort_order_id if group.ordered or group.clustering else 0
    return GroupResult(
        group=group,
        outputs=tuple(
            OutputFile(
                f.path,
                f.size,
                f.rows,
                group.partition_id,
                f.split_offsets,
                order_id,
                f.nan_counts,
                tuple(part.slice.path for part in each.parts) if each.copied else (),
                tuple((p.slice.path, p.slice.from_row, p.slice.to_row) for p in each.parts),
            )
            for each in done
            for f in each.files
        ),
        # Report damage first: the group must not go to another engine because something else in it is unfit.
        trouble=min(
            (result for result in results if isinstance(result, RewriteProblem)), key=_is_unfit, default=None
        ),
        cpu_seconds=sum(f.cpu_seconds for f in done),
        peak_rss=max((f.peak_rss for f in done), default=0),
        erased=sum(f.erased for f in done),
        read=_total(each.read for each in done),
        written=_total(each.written for each in done),
        parts={each.files[0].path: each.parts for each in done if each.parts and each.files},
        waited=sum(f.waited for f in done),
        copied=any(each.copied for each in done),
    )


def _is_unfit(trouble: RewriteProblem) -> bool:
    return trouble.unfit


def _total(digests: Iterable[Digest | None]) -> Digest | None:
    """The sum of the digests; None if nothing was hashed."""
    known = [digest for digest in digests if digest is not None]
    return sum(known, Digest()) if known else None
