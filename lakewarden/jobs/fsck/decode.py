"""fsck --deep: reads every live Parquet file of the current snapshot completely, including delete files, in Spark tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from lakewarden import clock
from lakewarden.errors import LakewardenError
from lakewarden.jobs.fsck.findings import NAMED, Fault, Finding, Severity
from lakewarden.jobs.fsck.manifests import not_checked
from lakewarden.jobs.fsck.repairs import BACKUP
from lakewarden.model.files import FileSet
from lakewarden.model.location import normal
from lakewarden.model.run import Progress
from lakewarden.model.table import TableView
from lakewarden.rewrite.deletes.deletes import READABLE
from lakewarden.rewrite.read.decode import Footer, FooterTask, WrongFooter, check_footers
from lakewarden.spark.tasks import Meter, cancel, fan_out, parallelism, task_reason, ticking
from lakewarden.state.runs import new_run_id
from lakewarden.tables.interface import TableFormat
from lakewarden.tables.jvm import JavaError

# Files and bytes of a task. Opening a file takes a few ms, starting a task about 10 ms, decoding a task's bytes a few seconds.
_PER_TASK = 500
_TASK_BYTES = 256 << 20


def check_rows(
    spark: Any, format_: TableFormat, view: TableView, files: FileSet, gone: set[str], progress: Progress
) -> tuple[int, list[Finding]]:
    """The number of decoded files (with delete files), and the findings. `gone` are paths in normal form of files that are
    already known to be missing."""
    footers, others = data_footers(files, gone)
    deletes, other_deletes = delete_footers(files, gone)
    footers += deletes
    io = format_.write_properties(view.ref)
    wrong = _check(spark, footers, io, f"fsck {view.ref}", progress)
    problems = list(findings(view, [each for each in wrong if not each.unknown]))
    for kind, delete, left in (("data", False, others), ("delete", True, other_deletes)):
        unknown = [each for each in wrong if each.unknown and each.delete == delete]
        if unknown:
            what = f"the rows of {len(unknown):,} {kind} files that Arrow cannot decode: {unknown[0].reason}"
            problems.append(not_checked(what, "nothing to do"))
        if left:
            what = f"the rows of {left:,} {kind} files that are encrypted or not Parquet"
            problems.append(not_checked(what, "nothing to do"))
    return len({footer.path for footer in footers}), problems  # several deletion vectors may be in one file


def findings(view: TableView, wrong: Sequence[WrongFooter]) -> Iterator[Finding]:
    """One finding for each reason why files cannot be opened, and one for all files with a wrong row count."""
    current = () if view.current_snapshot_id is None else (view.current_snapshot_id,)
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    counted: dict[str, list[WrongFooter]] = defaultdict(list)
    for each in wrong:
        kind = "delete" if each.delete else "data"
        if each.found is None:
            by_reason[kind, each.reason].append(each.path)
        else:
            counted[kind].append(each)
    for (kind, reason), named in by_reason.items():
        paths = list(dict.fromkeys(named))  # several deletion vectors may be in one file
        what = f"{len(paths):,} {kind} files of the current snapshot cannot be read: {reason}"
        yield Finding(
            Fault.UNREADABLE_FILE, Severity.ERROR, what, BACKUP, len(paths), tuple(paths[:NAMED]), current
        )
    for kind, odd in counted.items():
        first = odd[0]
        what = f"{len(odd):,} {kind} files have a different row count than the metadata (the first {first.found:,}, not {first.expected:,})"
        repair = f"it was overwritten, or wrongly described when it was added; {BACKUP}"
        paths = [each.path for each in odd]
        yield Finding(
            Fault.WRONG_ROWS, Severity.ERROR, what, repair, len(paths), tuple(paths[:NAMED]), current
        )


def data_footers(files: FileSet, gone: Container[str] = ()) -> tuple[list[Footer], int]:
    """The data files that Arrow can read, and the number of those it cannot."""
    table = files.files
    columns = (table[name].to_pylist() for name in ("path", "format", "bytes", "records", "encrypted"))
    footers, others = [], 0
    for path, format_, size, rows, encrypted in zip(*columns, strict=True):
        if encrypted or format_ != "parquet":
            others += 1
        elif not gone or normal(path) not in gone:
            footers.append(Footer(path, size, rows))
    return footers, others


def delete_footers(files: FileSet, gone: Container[str] = ()) -> tuple[list[Footer], int]:
    """The delete files and deletion vectors that Arrow can read, and the number of those it cannot."""
    footers, others = [], 0
    for delete in files.deletes:
        if delete.encrypted or delete.format not in READABLE.get(delete.kind, ()):
            others += 1
        elif not gone or normal(delete.path) not in gone:
            size = delete.content_size if delete.kind == "vector" else delete.bytes
            footers.append(Footer(delete.path, size, delete.records, delete))
    return footers, others


def _check(
    spark: Any, files: Sequence[Footer], io: Mapping[str, str], what: str, progress: Progress
) -> list[WrongFooter]:
    if not files:
        return []
    meter, group = Meter(spark), f"fsck-{new_run_id(clock.now())}"
    progress.begin(what, sum(file.bytes for file in files))
    try:
        with ticking(meter, progress.advance):
            return decode(spark, files, io, meter, group, what)
    except JavaError as error:
        raise LakewardenError(reason=f"{what}: {task_reason(error)}") from error
    except KeyboardInterrupt:
        cancel(spark, group)
        raise
    finally:
        progress.end()


def decode(
    spark: Any, files: Sequence[Footer], io: Mapping[str, str], meter: Meter, group: str, what: str
) -> list[WrongFooter]:
    """Reads each file completely in a Spark task. Returns the damaged ones."""
    tasks = [FooterTask(tuple(part), dict(io)) for part in _shares(files, parallelism(spark))]
    results = fan_out(spark, _kernel(meter), tasks, group, what) if tasks else []
    return [each for part in results for each in part]


def _shares(files: Sequence[Footer], cores: int) -> Iterator[list[Footer]]:
    """The files of each task: an equal part for each core, but no more than a task reads in some seconds."""
    most = min(_PER_TASK, -(-len(files) // cores))
    share: list[Footer] = []
    size = 0
    for file in files:
        if share and (len(share) >= most or size + file.bytes > _TASK_BYTES):
            yield share
            share, size = [], 0
        share.append(file)
        size += file.bytes
    if share:
        yield share


def _kernel(meter: Meter) -> Callable[[FooterTask], list[WrongFooter]]:
    done = meter.accumulator

    def run(task: FooterTask) -> list[WrongFooter]:
        wrong = check_footers(task)
        done.add(sum(file.bytes for file in task.files))
        return wrong

    return run
