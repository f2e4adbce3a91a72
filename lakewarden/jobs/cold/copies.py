"""Copies in the cold tier: finds the existing ones and makes the missing ones, in Spark tasks.

A copy is recorded only after it was read back. The work is done in batches, so that little is lost if the process stops: the
next run uses the recorded copies, and recognises unrecorded ones by their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.errors import LakewardenError, Refused
from lakewarden.jobs.run_context import RunContext
from lakewarden.model.location import same
from lakewarden.model.table import TableView
from lakewarden.rate_limit import Pace
from lakewarden.rewrite.copy.copy import Copied, CopyTask, copy, placed
from lakewarden.rewrite.copy.relocate_manifests import Outside, rehomed_list, rehomed_manifest
from lakewarden.rewrite.read.store import Store
from lakewarden.spark.tasks import fan_out, parallelism
from lakewarden.state.cold import ColdFile, ColdFiles
from lakewarden.state.database import State
from lakewarden.storage.archive import ObjectArchive, StoredObject
from lakewarden.storage.objects import Objects
from lakewarden.storage.s3_copy import on_s3
from lakewarden.tables.interface import ColdHome, ColdTier, Copying

# Kinds of files that are rewritten with new paths, on the driver.
_REHOMED = {"manifest": rehomed_manifest, "manifest-list": rehomed_list}
# Files and bytes of a batch: at most this much is copied again if the process stops.
_PORTION_BYTES, _PORTION_FILES = 1 << 30, 2_000
_THREADS = 8


def present(
    state: State, tier: ColdTier, view: TableView, home: ColdHome | None, step: Copying
) -> dict[str, ColdFile]:
    """The recorded copies of the step's files in exactly this cold table.

    Copies from before a rename of the table, or in another catalog, do not count. If a file's size differs from the one that
    was copied, it is a new file with the old name.
    """
    if home is None:
        return {}
    move = tier.rehome(view, home)
    records = ColdFiles(state).among(view.uuid, step.files["path"].to_pylist())
    columns = (step.files[name].to_pylist() for name in ("path", "size"))
    kept = {
        path: records[path]
        for path, size in zip(*columns, strict=True)
        if path in records
        and same(records[path].cold_path, move(path))
        and (step.change != "none" or size is None or size == records[path].size)
    }
    # A cold table without snapshots is new, or was dropped together with its files and created again.
    return kept if home.snapshots else _still_there(home, kept)


def _still_there(home: ColdHome, copies: Mapping[str, ColdFile]) -> dict[str, ColdFile]:
    sizes = Objects(home.io).look([copy.cold_path for copy in copies.values()])["size"].to_pylist()
    pairs = zip(copies.items(), sizes, strict=True)
    return {path: each for (path, each), size in pairs if size == each.size}


def without(files: pa.Table, paths: Collection[str]) -> pa.Table:
    return files.filter(pc.invert(pc.is_in(files["path"], pa.array(list(paths), pa.string()))))


def place(move: Callable[[str], str], path: str) -> str | None:
    """The file's path in the cold tier; None for a file outside of the table's folder."""
    try:
        return move(path)
    except Refused:
        return None


def record(state: State, view: TableView, home: ColdHome, copied: Sequence[Copied], run_id: str) -> None:
    """Record the complete copies. A copy that existed before has just been read and compared."""
    now, known = clock.now(), _stored(home, [each.target for each in copied if not each.written])

    def told(each: Copied) -> ColdFile:
        cold_file = ColdFile(each.source, each.target, each.bytes, each.checksum, each.storage_class)
        had = known.get(each.target)
        if had is None:
            return cold_file
        return replace(cold_file, storage_class=had.storage_class, etag=had.etag, proven_at=now)

    ColdFiles(state).add(view.uuid, map(told, copied), run_id, now)


def _stored(home: ColdHome, paths: Sequence[str]) -> dict[str, StoredObject]:
    there = [path for path in paths if on_s3(path)]
    states = ObjectArchive(home.io).look(there) if there else []
    return {state.path: state for state in states if state is not None}


class Copier:
    """Copies the files of one hand-off run."""

    def __init__(
        self,
        view: TableView,
        home: ColdHome,
        state: State,
        context: RunContext,
        storage_class: str | None,
    ) -> None:
        self.view, self.home, self.context, self.storage_class = view, home, context, storage_class
        self.state, self.tier = state, context.format.cold_tier()
        self.move = self.tier.rehome(view, home)
        self.counters = {"files_copied": 0, "files_present": 0, "bytes_copied": 0}

    def copy(self, files: pa.Table) -> None:
        for step in self.tier.order(files):
            if step.change in _REHOMED:
                self._rehome(step)
                continue
            for portion in _portions(self._missing(step)):
                self.context.stop.check()
                self._record(self._fanned_out(portion, step))

    def _missing(self, step: Copying) -> pa.Table:
        have = present(self.state, self.tier, self.view, self.home, step)
        self.counters["files_present"] += len(have)
        return without(step.files, have)

    def _fanned_out(self, portion: pa.Table, step: Copying) -> list[Copied]:
        return in_tasks(self.context, [self._task(path, step) for path in portion["path"].to_pylist()], copy)

    def _task(self, path: str, step: Copying) -> CopyTask:
        return CopyTask(
            path,
            self.move(path),
            self.view.io,
            self.home.io,
            rehome=(self.view.location, self.home.location) if step.change == "deletes" else None,
            storage_class=None if step.instant else self.storage_class,
        )

    def _rehome(self, step: Copying) -> None:
        """Rewrites the files with new paths. On the driver, because they are small and few."""
        missing, sizes = self._missing(step), self._sizes(step.sized)
        source, change = Store(self.view.io), _REHOMED[step.change]

        def one(path: str) -> Copied:
            with source.open(path) as file:
                content = file.read()
            try:
                rewritten = change(content, lambda each: place(self.move, each), sizes)
            except Outside as error:
                self.move(error.path)  # raises the error that says what to do
                raise
            return placed(path, self.move(path), rewritten, self.home.io)

        with ThreadPoolExecutor(_THREADS) as pool:
            for portion in _portions(missing):
                self.context.stop.check()
                self._record(list(pool.map(one, portion["path"].to_pylist())))

    def _sizes(self, paths: Sequence[str]) -> Mapping[str, int]:
        """The sizes of copies in this cold table. Earlier steps have made all of them."""
        return {path: each.size for path, each in ColdFiles(self.state).among(self.view.uuid, paths).items()}

    def _record(self, copied: Sequence[Copied]) -> None:
        """Record the complete copies, even if another file of the batch failed."""
        whole = [each for each in copied if not each.trouble]
        record(self.state, self.view, self.home, whole, self.context.run_id)
        self.counters["files_copied"] += sum(each.written for each in whole)
        self.counters["files_present"] += sum(not each.written for each in whole)
        self.counters["bytes_copied"] += sum(each.bytes for each in whole if each.written)
        self.context.progress.advance(sum(each.bytes for each in whole))
        failed = [each for each in copied if each.trouble]
        if failed:
            raise LakewardenError(
                reason=f"copy {failed[0].source} to {failed[0].target}: {failed[0].trouble}"
                + (f", and {len(failed) - 1} more" if len(failed) > 1 else ""),
                hint="the live table was not changed; run handoff again, it continues where it stopped",
            )


def in_tasks(
    context: RunContext, tasks: Sequence[CopyTask], kernel: Callable[[CopyTask], Copied]
) -> list[Copied]:
    """Copy in Spark tasks of several files, because a task costs more than a small file. A rate limit is divided among the tasks."""
    if not tasks:
        return []
    spark, what = context.spark, "lakewarden copies"
    parts = _parts(tasks, parallelism(spark) * 4)
    if context.slots is None:
        results = fan_out(spark, _Each(kernel), parts, context.run_id, what)
    else:

        def alone(part: list[CopyTask], share: Pace) -> list[Copied]:
            paced = [replace(each, pace=share) for each in part]
            return fan_out(spark, _Each(kernel), [paced], context.run_id, what)[0]

        with context.slots.work(len(parts)) as work:
            results = work.run(alone, parts)
    return [each for part in results for each in part]


def _parts(tasks: Sequence[CopyTask], most: int) -> list[list[CopyTask]]:
    return [list(tasks[start::most]) for start in range(min(len(tasks), most))]


class _Each:
    def __init__(self, kernel: Callable[[CopyTask], Copied]) -> None:
        self.kernel = kernel

    def __call__(self, tasks: list[CopyTask]) -> list[Copied]:
        return [self.kernel(task) for task in tasks]


def _portions(files: pa.Table) -> Iterator[pa.Table]:
    start = total = 0
    for place_, size in enumerate(files["size"].to_pylist()):
        if place_ > start and (total + (size or 0) > _PORTION_BYTES or place_ - start >= _PORTION_FILES):
            yield files.slice(start, place_ - start)
            start, total = place_, 0
        total += size or 0
    if start < files.num_rows:
        yield files.slice(start)
