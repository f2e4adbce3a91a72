"""Which files of a Paimon table a rewrite may touch, and how and where it writes new ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import BucketEngine, OutputFile, Rewrite
from lakewarden.tables.paimon import rewrite as rewrites
from lakewarden.tables.paimon import schema
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.primary_key import Keyed


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
        return rewrites.output_locations(self._catalogs, table, files, names)

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        return rewrites.rewrite_natively(self._catalogs, table, files, group, target_bytes)

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        rewrites.prepare_rewrite(self._catalogs, rewrite)

    def bucket_engine(self) -> BucketEngine:
        return Keyed(self._catalogs, self._cache)
