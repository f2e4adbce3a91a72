"""Paimon tables with primary keys: Paimon's own engine merges their buckets in Spark tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lakewarden.errors import LakewardenError
from lakewarden.model.actions import MergeBuckets
from lakewarden.model.files import Bucket
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import Buckets, MergedBuckets
from lakewarden.tables.jvm import JavaError, bridge, java_reason, shipped
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.commit import Find, commit, new_identifier
from lakewarden.tables.paimon.commit_lock import HeldLock
from lakewarden.tables.paimon.errors import catalog_error

_HERE = Path(__file__).parent
# In the other modes, rows of one key may be in several buckets, or rows have no bucket yet.
_MODES = ("HASH_FIXED", "HASH_DYNAMIC")


class Keyed:
    """Implements BucketEngine for Paimon. `cache` is the folder for the jar that is sent to executors."""

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
