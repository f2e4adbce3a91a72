"""A lake to experiment on: a catalog of the shared session, a Lakewarden on it, and questions tests ask again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from lakewarden import Lakewarden
from lakewarden.model.location import local_path, normal
from lakewarden.storage.generation_file import WITNESS
from lakewarden.tables.iceberg import format as iceberg
from lakewarden.tables.iceberg import view
from lakewarden.tables.iceberg.writer import IcebergWriter

LONG_AGO = 1_577_836_800  # 2020


@dataclass
class Lab:
    spark: SparkSession
    catalog: str
    warehouse: Path
    lw: Lakewarden

    def table(self, name: str = "events") -> str:
        return f"{self.catalog}.db.{name}"

    def create(
        self, columns: str = "id bigint, s string, d date", partition: str = "d", **properties: str
    ) -> str:
        """An empty table; returns its full name."""
        table = self.table()
        self.sql(f"create namespace if not exists {self.catalog}.db")
        by = f"partitioned by ({partition})" if partition else ""
        props = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.sql(
            f"create table {table} ({columns}) using iceberg {by} "
            + (f"tblproperties ({props})" if props else "")
        )
        self.grow_old(table)
        return table

    def grow_old(self, table: str) -> None:
        """The table was created long ago: what tests leave behind as orphans is younger."""
        for path in (self.warehouse / "db" / table.rsplit(".", 1)[1]).glob("metadata/*.metadata.json"):
            os.utime(path, (LONG_AGO, LONG_AGO))

    def messy(self, files: int = 10, rows: int = 200, days: int = 2, **properties: str) -> str:
        """A table with `files` small files in each of `days` partitions, made by one commit per round."""
        table = self.create(**properties)
        self.append(table, files, rows, days)
        return table

    def append(self, table: str, files: int, rows: int = 200, days: int = 2, start: int = 0) -> None:
        for number in range(files):
            first = start + number * rows
            self.sql(
                f"insert into {table} select id, concat('name-', id % 17), date_add(date'2024-03-01', cast(id % {days} as int)) "
                f"from range({first}, {first + rows}, 1, 1) order by id % {days}"
            )

    def sql(self, text: str) -> list[Any]:
        return self.spark.sql(text).collect()

    def rows(self, table: str, suffix: str = "") -> list[Any]:
        return sorted((tuple(row) for row in self.sql(f"select * from {table} {suffix}")), key=repr)

    def data_files(self, table: str) -> list[str]:
        return sorted(row.file_path for row in self.sql(f"select file_path from {table}.files"))

    def snapshots(self, table: str) -> list[Any]:
        return self.sql(
            f"select snapshot_id, operation, summary from {table}.snapshots order by committed_at"
        )

    def on_disk(self) -> dict[str, tuple[int, int]]:
        """Every file of the warehouse with its size and time of change; not what a run that deletes leaves beside the metadata."""
        found = [path for path in self.warehouse.rglob("*") if path.is_file() and not path.match(WITNESS)]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    def trash(self, table: str) -> set[str]:
        """Every file that is marked and not yet gone, in normal form."""
        return {normal(each.path) for each in self.lw.trash(table, limit=1_000_000).files}

    def strays(self, table: str) -> set[str]:
        """Data and delete files on disk that no snapshot of the table names."""
        named = {row.file_path for row in self.sql(f"select distinct file_path from {table}.all_files")}
        folder = self.warehouse / "db" / table.rsplit(".", 1)[1] / "data"
        here = {str(path) for suffix in ("parquet", "puffin") for path in folder.rglob(f"*.{suffix}")}
        return here - {local_path(path) or path for path in named}

    @contextmanager
    def before_commit(self, do: Any) -> Iterator[None]:
        """Run `do` at the worst moment: outputs are written, the commit has not begun."""
        real, done = IcebergWriter.commit_rewrite, []

        def commit(self: IcebergWriter, rewrite: Any, incorporate: Any = None) -> int | None:
            if not done:
                done.append(True)
                do()
            return real(self, rewrite, incorporate)

        with patch.object(IcebergWriter, "commit_rewrite", commit):
            yield


def lakewarden(spark: SparkSession, state_url: str, policy: Mapping[str, object] | None = None) -> Lakewarden:
    return Lakewarden({"state": {"url": state_url}, "policy": dict(policy or {})}, spark=spark, environ={})


@contextmanager
def told_to_tables(io: Mapping[str, str]) -> Iterator[None]:
    """Iceberg's tables tell Lakewarden these properties of their files, beside their own. Their library keeps its own."""
    real = view.io_properties

    def changed(catalogs: Any, table: Any) -> Mapping[str, str]:
        return {**real(catalogs, table), **io}

    with patch.object(view, "io_properties", changed), patch.object(iceberg, "io_properties", changed):
        yield
