"""Rewrites of Paimon tables: which files they may touch, the paths and descriptions of outputs, and the
commit. Buckets of tables with primary keys are merged by Paimon's own engine in Spark tasks. Many manifests
are merged into few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lakewarden.errors import CommitLost, LakewardenError
from lakewarden.model.actions import MergeBuckets, RewriteGroup
from lakewarden.model.files import Bucket, FileSet, Manifest
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.interface import BucketEngine, Buckets, MergedBuckets, OutputFile, Rewrite
from lakewarden.tables.jvm import JavaError, bridge, java_reason, shipped
from lakewarden.tables.paimon import arrow_schema as schema
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit import Find, HeldLock, commit, new_identifier
from lakewarden.tables.paimon.errors import catalog_error


class PaimonRewrites:
    """Implements RewriteSupport for Paimon. `cache` is the folder for the jar that is sent to executors."""

    def __init__(self, catalogs: PaimonCatalogs, schemas: schema.StoredSchemas, cache: Path) -> None:
        self._catalogs, self._schemas, self._cache = catalogs, schemas, cache

    def left_alone(self, view: TableView) -> str | None:
        return schema.left_alone(view)

    def unfit(self, view: TableView) -> str | None:
        return self._schemas.unfit(view)

    def parquet_properties(self, view: TableView) -> Mapping[str, str]:
        return schema.parquet_properties(view.properties)

    def arrow_schema(self, view: TableView) -> bytes:
        return bytes(self._schemas.arrow(view).serialize())

    def clustering(
        self, table: TableRef, files: FileSet, columns: Sequence[str]
    ) -> Mapping[int, Mapping[str, float]]:
        """Unknown for Paimon: a partition is then clustered again when enough of it is new."""
        return {}

    def clustering_of_outputs(
        self, table: TableRef, files: FileSet, paths: Sequence[str], columns: Sequence[str]
    ) -> Mapping[str, float]:
        return {}

    def dangling(self, table: TableRef, files: FileSet, branch: str) -> list[str]:
        """Always empty: a deletion vector is removed with its data file."""
        return []

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        files.handle.retain(json.dumps(list(paths)))

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        return output_locations(self._catalogs, table, files, names)

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        return rewrite_natively(self._catalogs, table, files, group, target_bytes)

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        prepare_rewrite(self._catalogs, rewrite)

    def bucket_engine(self) -> BucketEngine:
        return Keyed(self._catalogs, self._cache)


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


_HERE = Path(__file__).parent
# In the other modes, rows of one key may be in several buckets, or rows have no bucket yet.
_MODES = ("HASH_FIXED", "HASH_DYNAMIC")


class Keyed:
    """Merges the buckets of tables with primary keys, by Paimon's own engine (a `BucketEngine`).

    `cache` is the folder of the jar that is sent to executors.
    """

    def __init__(self, catalogs: PaimonCatalogs, cache: Path) -> None:
        self._catalogs, self._cache = catalogs, cache

    def buckets(self, view: TableView, snapshot_id: int) -> Buckets:
        helper = self._helper()
        try:
            described = json.loads(helper.buckets(self._catalogs.load(view.ref), snapshot_id))
        except JavaError as error:
            raise catalog_error(error, f"the buckets of {view.ref}") from error
        rows = tuple(Bucket(*row) for row in described["buckets"])
        unfit = (
            ""
            if described["mode"] in _MODES
            else f"Paimon's bucket mode {described['mode']} is not merged by this release"
        )
        return Buckets(rows, described["hidden"], unfit)

    def merge(self, view: TableView, merges: Sequence[MergeBuckets], keep_runs: int) -> MergedBuckets:
        helper, table = self._helper(), self._catalogs.load(view.ref)
        context = self._catalogs.spark.sparkContext
        tasks = [
            f"{bucket.key}\t{bucket.number}\t{'full' if merge.full else 'minor'}"
            for merge in merges
            for bucket in merge.buckets
        ]
        try:
            messages = helper.merge(context._jsc, table, _java_list(context, tasks), max(1, keep_runs))
            written = json.loads(helper.told(table, messages))
        except JavaError as error:
            raise LakewardenError(reason=java_reason(error)) from error
        return MergedBuckets(
            written["before"],
            written["after"],
            written["bytes_before"],
            written["bytes_after"],
            written["rows_before"],
            written["rows_after"],
            tuple(written["paths"]),
            messages if len(messages) else None,
        )

    def _helper(self) -> Any:
        spark = self._catalogs.spark
        task = shipped(spark, _HERE / "PaimonBucketTask.java", "lakewarden.PaimonBucketTask", self._cache)
        return bridge(spark, _HERE / "PaimonKeyed.java", "lakewarden.PaimonKeyed", beside=task)


def commit_merge(
    catalogs: PaimonCatalogs,
    table: TableRef,
    merged: MergedBuckets,
    summary: Mapping[str, str],
    find: Find,
    lock: AbstractContextManager[HeldLock],
) -> int:
    """Commits a merge. Paimon refuses it if a source file is gone: another writer merged it or dropped its partition."""

    def attempt() -> int:
        with catalogs.committing(table) as loaded:
            properties = json.dumps(dict(summary))
            return int(catalogs.commit.commit(loaded, merged.handle, properties, new_identifier()))

    return commit(table, summary, attempt, find, lock)


def _java_list(context: Any, values: Sequence[str]) -> Any:
    java_list = context._jvm.java.util.ArrayList()
    for value in values:
        java_list.add(value)
    return java_list


_ONE_SPEC = 0
_CONTENT = "data"


def manifests(catalogs: PaimonCatalogs, view: TableView, snapshot_id: int) -> list[Manifest]:
    """The manifests of data files. A Paimon manifest has both added and deleted files."""
    helper = catalogs.helper("PaimonManifests")
    try:
        rows = json.loads(helper.manifests(catalogs.load(view.ref), snapshot_id))
    except JavaError as error:
        raise catalog_error(error, f"the manifests of {view.ref}") from error
    folder = view.handle.metadata
    return [Manifest(folder.manifest(name), size, _ONE_SPEC, _CONTENT) for name, size in rows]


def fold(
    catalogs: PaimonCatalogs,
    table: TableRef,
    target_bytes: int,
    summary: Mapping[str, str],
    find: Find,
    lock: AbstractContextManager[HeldLock],
) -> int:
    """Merges all manifests in one snapshot that changes no files. Entries that cancel each other out are removed."""
    options = catalogs.helper("PaimonManifests").folding(target_bytes)

    def attempt() -> int:
        properties = json.dumps(dict(summary))
        with catalogs.committing(table) as loaded:
            return int(catalogs.commit.commit(loaded, [], properties, new_identifier(), options, None))

    return commit(table, summary, attempt, find, lock)
