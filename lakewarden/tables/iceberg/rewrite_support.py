"""Which files of an Iceberg table a rewrite may touch, and how and where it writes new ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.iceberg import commit
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.schema import arrow_schema, unfit_types
from lakewarden.tables.interface import BucketEngine, OutputFile, Rewrite


class IcebergRewrites:
    """Implements RewriteSupport for Iceberg."""

    def __init__(self, spark: Any, catalogs: IcebergCatalogs) -> None:
        self._spark, self._catalogs = spark, catalogs

    def left_alone(self, view: TableView) -> str | None:
        return None

    def unfit(self, view: TableView) -> str | None:
        return unfit_types(view)

    def parquet_properties(self, view: TableView) -> Mapping[str, str]:
        return view.properties

    def arrow_schema(self, view: TableView) -> bytes:
        return bytes(arrow_schema(view).serialize())

    def clustering(
        self, table: TableRef, files: FileSet, columns: Sequence[str]
    ) -> Mapping[int, Mapping[str, float]]:
        by_partition = self._catalogs.deletes.clustering(
            self._catalogs.load(table), files.handle, json.dumps(list(columns))
        )
        return {int(partition): shares for partition, shares in json.loads(by_partition).items()}

    def clustering_of_outputs(
        self, table: TableRef, files: FileSet, paths: Sequence[str], columns: Sequence[str]
    ) -> Mapping[str, float]:
        loaded, names = self._catalogs.load(table), json.dumps(list(columns))
        shares: Mapping[str, float] = json.loads(
            self._catalogs.deletes.clusteringOfOutputs(loaded, files.handle, json.dumps(list(paths)), names)
        )
        return shares

    def dangling(self, table: TableRef, files: FileSet, branch: str) -> list[str]:
        answer = json.loads(
            self._catalogs.deletes.unneeded(self._catalogs.load(table), files.handle, branch, "[]", "[]")
        )
        return sorted(answer["unneeded"])

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        files.handle.retain(json.dumps(list(paths)))

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        loaded = self._catalogs.load(table)
        paths: list[str] = json.loads(
            self._catalogs.bridge.locations(loaded, files.handle, json.dumps(names))
        )
        return paths

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        request = {
            "number": group.number,
            "partition": group.partition_id,
            "sources": list(group.paths()),
            "output_spec_id": group.output_spec_id,
            # Iceberg lets a file exceed its target by half, so that a small rest fits into it.
            "max_file_bytes": target_bytes + target_bytes // 2,
            "split_bytes": target_bytes,
            "expected_files": group.outputs,
            "strategy": strategy,
            "columns": list(columns),
        }
        written = self._catalogs.bridge.rewriteNatively(
            self._spark._jsparkSession, self._catalogs.load(table), files.handle, json.dumps(request)
        )
        return [
            OutputFile(row["path"], row["bytes"], row["rows"], group.partition_id)
            for row in json.loads(written)
        ]

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        commit.prepare_rewrite(self._catalogs, rewrite)

    def bucket_engine(self) -> BucketEngine:
        raise AssertionError("no table of this format merges rows by primary keys")
