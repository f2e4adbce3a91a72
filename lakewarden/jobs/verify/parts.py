"""Divides the files of a past rewrite into tasks that read them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from lakewarden.jobs.compact.binpack import KERNEL_STORES
from lakewarden.model.files import DeleteFile
from lakewarden.model.location import scheme_of
from lakewarden.model.table import TableView
from lakewarden.rewrite.arrow import identity_columns
from lakewarden.rewrite.interface import RewriteProblem
from lakewarden.rewrite.read.sources import Slice
from lakewarden.rewrite.task import RewriteTask
from lakewarden.rewrite.write.encoding import WriteOptions
from lakewarden.tables.interface import DataFile, FilesWithDeletes, ReplacedFiles

_MIB = 1 << 20
# Bytes of one task. Less is not worth a task; with more, the last task runs alone and progress is rarely reported.
_LEAST_BYTES, _MOST_BYTES = 16 * _MIB, 256 * _MIB
# The maximum number of files in a task: it keeps their footers in memory, which are large for wide tables.
_MOST_FILES = 256

# The parts that are read. Added files with deletes are read twice if the commit stored a digest, because it covers all rows.
REMOVED, UNTOUCHED, STRUCK, WHOLE = "removed", "added", "added, with deletes", "added, all rows"


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
