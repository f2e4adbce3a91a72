"""Replaces data files of a Paimon table: the paths of outputs, their descriptions, and the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from lakewarden.errors import CommitLost, LakewardenError
from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import OutputFile, Rewrite
from lakewarden.tables.jvm import JavaError, java_reason
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit import Find, commit, new_identifier
from lakewarden.tables.paimon.commit_lock import HeldLock

# The smallest and largest sequence number of each source.
_Numbers = Mapping[str, tuple[int, int]]


def output_locations(
    catalogs: PaimonCatalogs, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
) -> list[str]:
    loaded = catalogs.load(table)
    paths: list[str] = json.loads(catalogs.files.locations(loaded, files.handle, json.dumps(names)))
    return paths


def prepare_rewrite(catalogs: PaimonCatalogs, rewrite: Rewrite) -> None:
    """Read the outputs' footers, so that a wrong output is found before a commit starts."""
    scan = rewrite.files.handle
    numbers: _Numbers = json.loads(catalogs.files.sequenceNumbers(scan, json.dumps(rewrite.removed)))
    outputs = [_described(each, numbers, rewrite.files.ordered) for each in rewrite.added]
    loaded = catalogs.load(rewrite.table)
    catalogs.files.describeOutputs(loaded, scan, rewrite.schema_id, json.dumps(outputs))


def _described(output: OutputFile, numbers: _Numbers, ordered: bool) -> dict[str, Any]:
    least, largest = _sequence_numbers(output, numbers, ordered)
    return {
        "path": output.path,
        "bytes": output.bytes,
        "rows": output.rows,
        "place": output.partition_id,
        "min_sequence": least,
        "max_sequence": largest,
        "nan_ids": [id_ for id_, count in output.nan_counts.items() if count],
        "copied_from": list(output.copied_from),
    }


def _sequence_numbers(output: OutputFile, numbers: _Numbers, ordered: bool) -> tuple[int, int]:
    """The first and last sequence number of an output. Ordered files keep the numbers of their source rows, and so their order.

    Otherwise the numbers are counted from the smallest number of the first source, as Paimon does.
    """
    if not output.parts:
        return 0, output.rows - 1
    first, start, _ = output.parts[0]
    last, _, end = output.parts[-1]
    if not ordered:
        return numbers[first][0], numbers[first][0] + output.rows - 1
    least, largest = numbers[first][0] + start, min(numbers[last][0] + end - 1, numbers[last][1])
    return least, max(least, largest)


def commit_rewrite(
    catalogs: PaimonCatalogs, rewrite: Rewrite, find: Find, lock: AbstractContextManager[HeldLock]
) -> int:
    """Commits one atomic COMPACT snapshot. The library refuses it if a source is gone or got a deletion vector."""
    added = json.dumps([[each.path, each.partition_id] for each in rewrite.added])
    loaded = catalogs.load(rewrite.table)
    try:
        messages = catalogs.files.messages(loaded, rewrite.files.handle, json.dumps(rewrite.removed), added)
    except JavaError as error:
        # Before any commit: for example, the snapshot with the index of its deletion vectors has expired.
        raise CommitLost(table=rewrite.table, reason=java_reason(error)) from error
    identifier, summary = new_identifier(), json.dumps(dict(rewrite.summary))

    def attempt() -> int:
        with catalogs.committing(rewrite.table) as fresh:
            return int(catalogs.commit.commit(fresh, messages, summary, identifier))

    return commit(rewrite.table, rewrite.summary, attempt, find, lock)


def rewrite_natively(
    catalogs: PaimonCatalogs, table: TableRef, files: FileSet, group: RewriteGroup, target_bytes: int
) -> list[OutputFile]:
    """Rewrites the group with Paimon's own writer, in the driver."""
    if group.ordered:
        raise LakewardenError(
            reason=f"order rows of {table}: {group.engine_reason or 'the kernel cannot'}, and Paimon's own writer cannot sort",
            hint="set rewrite_strategy to binpack for this table",
        )
    request = {"place": group.partition_id, "sources": list(group.paths()), "target_bytes": target_bytes}
    written = catalogs.files.rewriteNatively(catalogs.load(table), files.handle, json.dumps(request))
    return [OutputFile(path, size, rows, group.partition_id) for path, size, rows in json.loads(written)]
