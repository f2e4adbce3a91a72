"""Verifies a past rewrite: the added files must have the same rows as the removed files.

Both sides are read with their deletes: the removed files with the deletes at the parent snapshot, the added files with the
deletes at the snapshot itself. Deletes that arrived during the rewrite and were carried over are thus applied on both sides.
Rows are compared by a digest that does not depend on their order. If the commit stored a digest of all written rows, that is
compared too. The rewrite of any writer can be verified while its inputs exist.

The files are divided into parts, and the parts into tasks that read them again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from lakewarden import clock
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.jobs.compact.binpack import KERNEL_STORES
from lakewarden.jobs.verify.result import (
    DIGEST_KEY,
    RewriteSide,
    Verification,
    VerifyEvidence,
    judge,
    stored_digest,
)
from lakewarden.model.files import DeleteFile
from lakewarden.model.location import scheme_of
from lakewarden.model.run import Progress, Silent
from lakewarden.model.table import Snapshot, TableView
from lakewarden.rate_limit import Pace
from lakewarden.rewrite.arrow import identity_columns
from lakewarden.rewrite.digest import Digest
from lakewarden.rewrite.interface import RewriteProblem
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.sources import RowsDiffer, Slice
from lakewarden.rewrite.read.store import MissingSource, Store
from lakewarden.rewrite.task import RewriteTask
from lakewarden.rewrite.verify import FileContent, Miscounted, look, writers_schema
from lakewarden.rewrite.write.encoding import WriteOptions
from lakewarden.spark.task_slots import TaskSlots
from lakewarden.spark.tasks import Meter, cancel, fan_out, parallelism, task_reason, ticking
from lakewarden.state.runs import new_run_id
from lakewarden.tables.interface import DataFile, FilesWithDeletes, ReplacedFiles, TableFormat
from lakewarden.tables.jvm import JavaError

_LISTED = 5
# The operation names in Iceberg and Paimon of commits that keep all rows.
_REWRITES = ("replace", "compact")

# The parts that are read. Added files with deletes are read twice if the commit stored a digest, because it covers all rows.
REMOVED, UNTOUCHED, STRUCK, WHOLE = "removed", "added", "added, with deletes", "added, all rows"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of reading, by part. `trouble` is the first problem that made a part incomplete."""

    parts: Mapping[str, FileContent]
    trouble: RewriteProblem | None = None
    miscounted: tuple[Miscounted, ...] = ()

    def total(self, *names: str) -> FileContent | None:
        if not all(name in self.parts for name in names):
            return None
        return sum((self.parts[name] for name in names), FileContent())


@dataclass(frozen=True, slots=True)
class Verifier:
    """Runs a verification (`lakewarden verify`). It changes nothing, so nothing is journaled."""

    spark: Any
    format: TableFormat
    task_memory: int
    progress: Progress = field(default_factory=Silent)
    slots: TaskSlots | None = None

    def verify(self, view: TableView, snapshot_id: int) -> Verification:
        began = clock.monotonic()
        snapshot = chosen(view, snapshot_id)
        replaced = self.format.replaced(view.ref, snapshot.id)
        if not replaced.removed.files and not replaced.added.files:
            raise _not_a_rewrite(view, snapshot, "it changed only manifests or delete files")
        evidence = self._gather(replace(view, schema_json=replaced.schema_json), snapshot, replaced)
        state, reason, file = judge(evidence)
        return Verification(
            table=view.ref,
            snapshot=snapshot,
            state=state,
            reason=reason,
            removed=RewriteSide.of(replaced.removed, evidence.removed),
            added=RewriteSide.of(replaced.added, evidence.added),
            file=file,
            stored_digest=snapshot.summary.get(DIGEST_KEY),
            stored_agrees=evidence.stored_agrees,
            seconds=round(clock.monotonic() - began, 2),
        )

    def _gather(self, view: TableView, snapshot: Snapshot, replaced: ReplacedFiles) -> VerifyEvidence:
        stored, what = stored_digest(snapshot), f"verify {view.ref} snapshot {snapshot.id}"
        parts, trouble = parts_to_read(replaced, self.format.rewrites().unfit(view), stored is not None)
        looked = self._look(view, parts, what)
        added, all_rows = looked.total(UNTOUCHED, STRUCK), looked.total(UNTOUCHED, WHOLE)
        written = None if stored is None or all_rows is None else all_rows.rows
        if written is not None and written != stored:
            written = self._as_written(view, parts, what) or written
        return VerifyEvidence(
            looked.total(REMOVED), added, written, stored, trouble or looked.trouble, looked.miscounted
        )

    def _as_written(self, view: TableView, parts: Mapping[str, FilesWithDeletes], what: str) -> Digest | None:
        """The digest in the schema that the files were written with: a column may have been dropped before the commit."""
        files = [*parts[UNTOUCHED].files, *parts[WHOLE].files]
        store = Store(self.format.write_properties(view.ref))
        schema = writers_schema(files[0].path, store) if files else ""
        older = replace(view, schema_json=schema)
        if (
            not schema
            or field_ids(schema) == field_ids(view.schema_json)
            or self.format.rewrites().unfit(older)
        ):
            return None
        again = {name: parts[name] for name in (UNTOUCHED, WHOLE)}
        seen = self._look(older, again, f"{what} again, in the schema its files were written with")
        total = seen.total(UNTOUCHED, WHOLE)
        return None if total is None else total.rows

    def _look(self, view: TableView, parts: Mapping[str, FilesWithDeletes], what: str) -> ReadResult:
        if not parts:
            return ReadResult({})
        tasks = self._tasks(view, parts)
        meter = Meter(self.spark)
        self.progress.begin(what, sum(each.bytes for files in parts.values() for each in files.files))
        try:
            with ticking(meter, self.progress.advance):
                results = self._run([task for _, task in tasks], _kernel(meter), what)
        except JavaError as error:
            raise LakewardenError(reason=f"{what}: {task_reason(error)}") from error
        finally:
            self.progress.end()
        return added_up(list(parts), list(zip((name for name, _ in tasks), results, strict=True)))

    def _tasks(self, view: TableView, parts: Mapping[str, FilesWithDeletes]) -> list[tuple[str, RewriteTask]]:
        schema, io = self.format.rewrites().arrow_schema(view), self.format.write_properties(view.ref)
        means = VerifyInputs(schema, io, self.task_memory, parallelism(self.spark))
        return [(name, task) for name, files in parts.items() for task in tasks_for(view, files, means)]

    def _run(
        self,
        tasks: Sequence[RewriteTask],
        kernel: Callable[[RewriteTask], FileContent | RewriteProblem],
        what: str,
    ) -> list[FileContent | RewriteProblem]:
        """Runs all tasks in one Spark job. With a rate limit, one job per task, each with its share of the rate."""
        if not tasks:
            return []
        group, stop = f"verify-{new_run_id(clock.now())}", threading.Event()

        def alone(task: RewriteTask, pace: Pace) -> FileContent | RewriteProblem:
            return fan_out(self.spark, kernel, [replace(task, pace=pace)], group, what)[0]

        try:
            if self.slots is None:
                return fan_out(self.spark, kernel, tasks, group, what)
            with self.slots.work(len(tasks), stop=stop) as work:
                return work.run(alone, tasks)
        except KeyboardInterrupt:
            stop.set()
            cancel(self.spark, group)
            raise


# ------------------------------------------------------------ which snapshot


def chosen(view: TableView, snapshot_id: int) -> Snapshot:
    """The snapshot with this id. Raises if its operation is not a rewrite."""
    snapshot = view.snapshot(snapshot_id)
    if snapshot is None:
        raise UsageError(
            reason=f"verify snapshot {snapshot_id} of {view.ref}: the table has no such snapshot, or no longer",
            hint=_newest(view),
        )
    if snapshot.operation not in _REWRITES:
        operation = (
            f"its operation is {snapshot.operation}" if snapshot.operation else "it names no operation"
        )
        raise _not_a_rewrite(view, snapshot, f"{operation}, which may change rows")
    return snapshot


def _not_a_rewrite(view: TableView, snapshot: Snapshot, why: str) -> UsageError:
    return UsageError(
        reason=f"verify snapshot {snapshot.id} of {view.ref}: {why}, so there is no rewrite to prove",
        hint=_newest(view),
    )


def _newest(view: TableView) -> str:
    rewrites = [
        snapshot
        for snapshot in view.snapshots
        if snapshot.operation == "compact"
        or (snapshot.operation == "replace" and snapshot.summary.get("deleted-data-files", "0") != "0")
    ]
    if not rewrites:
        return f"none of the table's snapshots rewrote data files; see `lakewarden show {view.ref}`"
    newest = sorted(rewrites, key=lambda each: each.committed_at, reverse=True)[:_LISTED]
    return f"its newest compactions are {', '.join(str(each.id) for each in newest)}"


# ------------------------------------------------------------ in the tasks


def _kernel(meter: Meter) -> Callable[[RewriteTask], FileContent | RewriteProblem]:
    """The function of each task. A damaged file is returned as a value, because Spark would retry after an exception."""
    done = meter.accumulator

    def run(task: RewriteTask) -> FileContent | RewriteProblem:
        try:
            seen = look(task)
        except Unfit as error:
            return RewriteProblem(True, error.path, error.reason)
        except MissingSource as error:
            return RewriteProblem(False, error.path, error.reason)
        except RowsDiffer as error:
            reason = f"it has {error.found} rows, its footer states {error.expected}"
            return RewriteProblem(False, error.path, reason)
        done.add(seen.bytes_read)
        return seen

    return run


def added_up(names: Sequence[str], results: Sequence[tuple[str, FileContent | RewriteProblem]]) -> ReadResult:
    """The sums of all completely read parts."""
    totals: dict[str, FileContent] = {name: FileContent() for name in names}
    troubles: list[RewriteProblem] = []
    for name, each in results:
        if isinstance(each, RewriteProblem):
            troubles.append(each)
            totals.pop(name, None)
        elif name in totals:
            totals[name] += each
    seen = [each for _, each in results if isinstance(each, FileContent)]
    miscounted = sum(seen, FileContent()).miscounted
    return ReadResult(totals, troubles[0] if troubles else None, miscounted)


def field_ids(schema_json: str) -> frozenset[int]:
    """All field ids of a schema, including nested fields."""

    def walk(node: Any) -> Iterator[int]:
        if isinstance(node, dict):
            for name, value in node.items():
                if name in ("id", "element-id", "key-id", "value-id"):
                    yield int(value)
                else:
                    yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    return frozenset(walk(json.loads(schema_json)))


_MIB = 1 << 20
# Bytes of one task. Less is not worth a task; with more, the last task runs alone and progress is rarely reported.
_LEAST_BYTES, _MOST_BYTES = 16 * _MIB, 256 * _MIB
# The maximum number of files in a task: it keeps their footers in memory, which are large for wide tables.
_MOST_FILES = 256


def parts_to_read(
    replaced: ReplacedFiles, unfit: str | None, stored: bool
) -> tuple[dict[str, FilesWithDeletes], RewriteProblem | None]:
    """The parts that can be read and are useful, and why the others cannot be read."""
    inputs = RewriteProblem(False, "", replaced.missing) if replaced.missing else unreadable(replaced.removed)
    outputs = RewriteProblem(True, "", unfit) if unfit else unreadable(replaced.added)
    parts: dict[str, FilesWithDeletes] = {}
    if outputs is None and (inputs is None or stored):
        added = replaced.added
        struck = [file for file in added.files if file.deletes]
        parts[UNTOUCHED] = FilesWithDeletes(tuple(file for file in added.files if not file.deletes))
        parts[STRUCK] = FilesWithDeletes(tuple(struck), added.deletes)
        if stored:
            parts[WHOLE] = FilesWithDeletes(tuple(replace(each, deletes=()) for each in struck))
    if inputs is None and outputs is None:
        parts[REMOVED] = replaced.removed
    return parts, inputs or outputs


def unreadable(side: FilesWithDeletes) -> RewriteProblem | None:
    """The first file that the kernel cannot read. Checked before anything is read."""
    used = {place for each in side.files for place in each.deletes}
    deletes = [side.deletes[place] for place in sorted(used)]
    for file in side.files:
        if file.format != "parquet":
            return RewriteProblem(True, file.path, f"an {file.format} file cannot be read here")
    files: list[DataFile | DeleteFile] = [*side.files, *deletes]
    for each in files:
        if each.encrypted:
            return RewriteProblem(True, each.path, "the file is encrypted")
        if scheme_of(each.path) not in KERNEL_STORES:
            return RewriteProblem(True, each.path, f"files on {scheme_of(each.path)} cannot be read here")
    return None


def task_bytes(files: FilesWithDeletes, cores: int) -> int:
    """The bytes per task: a few tasks per core, but each larger than the deletes, which every task may read again."""
    even = sum(file.bytes for file in files.files) // (4 * cores)
    deletes = sum(delete.bytes for delete in files.deletes if delete.kind != "vector")
    return min(max(even, deletes, _LEAST_BYTES), _MOST_BYTES)


def chunks(files: Sequence[DataFile], size: int) -> Iterator[list[Slice]]:
    """The files in order, split and grouped into chunks of about `size`. Every row is in exactly one slice."""
    held: list[Slice] = []
    taken = 0
    for piece in (piece for each in files for piece in _cut(each, size)):
        weight = piece.size * piece.wanted // max(1, piece.rows)
        if held and (taken + weight > size or len(held) == _MOST_FILES):
            yield held
            held, taken = [], 0
        held.append(piece)
        taken += weight
    if held:
        yield held


def _cut(file: DataFile, size: int) -> Iterator[Slice]:
    """Slices of a large file, at most one per row group: a row group is always decoded completely."""
    parts = max(1, min(file.row_groups, -(-file.bytes // size)))
    for number in range(parts):
        start, end = file.records * number // parts, file.records * (number + 1) // parts
        yield Slice(file.path, file.bytes, file.records, start, end, file.sequence_number, None, file.deletes)


@dataclass(frozen=True, slots=True)
class VerifyInputs:
    """Settings of every task: file access, the memory limit, and the number of parallel tasks."""

    schema: bytes
    io: Mapping[str, str]
    task_memory: int
    cores: int


def tasks_for(view: TableView, files: FilesWithDeletes, means: VerifyInputs) -> Iterator[RewriteTask]:
    """Tasks for all files. Files with the same delete files are in the same task, which reads these only once."""
    size = task_bytes(files, means.cores)
    ordered = sorted(files.files, key=lambda each: (each.spec_id, each.deletes))
    for spec_id, of_spec in groupby(ordered, key=lambda each: each.spec_id):
        for chunk in chunks(list(of_spec), size):
            places = sorted({place for piece in chunk for place in piece.deletes})
            number = {place: n for n, place in enumerate(places)}
            yield RewriteTask(
                outputs=(),
                slices=tuple(
                    replace(piece, deletes=tuple(number[place] for place in piece.deletes)) for piece in chunk
                ),
                schema=means.schema,
                iceberg_schema_json=view.schema_json,
                options=WriteOptions.from_properties({}),
                io=means.io,
                partition_ids=identity_columns(view, spec_id),
                memory_budget=means.task_memory,
                deletes=tuple(files.deletes[place] for place in places),
            )
