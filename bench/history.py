"""A table with a long history: a thousand commits of a hundred files each, half of the files already
compacted away.

Built once and kept in a master folder. Before each turn it is restored by hard links, so that every tool
deletes the same files. Data files have only a few bytes: the benchmark measures metadata and deletes.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.telemetry import CATALOG
from lakewarden.tables.jvm import bridge

FILES_PER_COMMIT = 100
COLUMNS = 11
_OLD = 1_700_000_000.0  # older than every grace period


@dataclass(frozen=True, slots=True)
class LongTable:
    """`commits` appends and one compaction. `folder` is its location, `master` the folder it is restored
    from."""

    spark: Any
    name: str
    folder: Path
    master: Path

    def reset(self) -> None:
        """Restore the table with the same paths. Files are hard links to the master's, so deleting one does
        not change the master."""
        catalog, name = _catalog(self.spark), _identifier(self.spark, self.name)
        # Before it deletes, Lakewarden checks every table of the catalog; the other tool checks none. Here there is only this table.
        for other in catalog.listTables(name.namespace()):
            catalog.dropTable(other, False)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.master, self.folder, copy_function=os.link)
        newest = max(self.folder.glob("metadata/*.metadata.json"), key=lambda path: path.name)
        catalog.registerTable(name, str(newest))

    def on_disk(self) -> set[str]:
        return {
            f"{where}/{name}" for where, _, names in os.walk(self.folder) for name in names
            if not name.endswith(".crc")
        }  # fmt: skip

    def commit(self, times: int, start: int) -> None:
        """The commits between two runs."""
        history_writer(self.spark).append(
            java_table(self.spark, self.name),
            str(self.folder / "data"),
            times,
            FILES_PER_COMMIT,
            COLUMNS,
            start,
            True,
        )

    def plant_orphans(self, count: int) -> None:
        """Add files that no metadata refers to, old enough to be swept."""
        for number in range(count):
            path = (
                self.folder / "data" / f"day=2024-01-{1 + number % 28:02d}" / f"orphan-{number:05d}.parquet"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"orphan")
        for where, _, names in os.walk(self.folder):
            for name in names:
                os.utime(f"{where}/{name}", (_OLD, _OLD))


def long_table(spark: Any, folder: Path, commits: int) -> LongTable:
    """The table with this many commits; built unless an earlier run left it there."""
    name = f"commits_{commits}"
    home = folder / "warehouse" / "history" / name
    master = folder / "history-master" / name
    table = LongTable(spark, f"{CATALOG}.history.{name}", home, master)
    if not master.exists():
        _build(table, commits)
    table.reset()
    return table


def _build(table: LongTable, commits: int) -> None:
    spark, columns = table.spark, ", ".join(f"c{number} bigint" for number in range(COLUMNS - 1))
    shutil.rmtree(table.folder, ignore_errors=True)
    spark.sql(f"create namespace if not exists {CATALOG}.history")
    spark.sql(f"drop table if exists {table.name}")
    spark.sql(
        f"create table {table.name} (day date, {columns}) using iceberg partitioned by (day) "
        "tblproperties ('commit.manifest-merge.enabled'='false')"
    )
    writer, java, data = history_writer(spark), java_table(spark, table.name), str(table.folder / "data")
    writer.append(java, data, commits, FILES_PER_COMMIT, COLUMNS, 0, True)
    writer.compactHalf(java, data, COLUMNS, True)
    table.master.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(table.folder, table.master)


def wide_table(spark: Any, entries: int, per_commit: int = 10_000) -> str:
    """A table with this many file entries in few commits, half of them already compacted away. Its data files
    exist only in metadata."""
    name = f"{CATALOG}.history.entries_{entries}"
    spark.sql(f"create namespace if not exists {CATALOG}.history")
    spark.sql(f"drop table if exists {name}")
    spark.sql(f"create table {name} (day date, c0 bigint) using iceberg partitioned by (day)")
    writer, java = history_writer(spark), java_table(spark, name)
    data = java.location().removeprefix("file:") + "/data"
    writer.append(java, data, entries // per_commit, per_commit, 2, 0, False)
    writer.compactHalf(java, data, 2, False)
    return name


def java_table(spark: Any, name: str) -> Any:
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)


def _catalog(spark: Any) -> Any:
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, CATALOG)


def _identifier(spark: Any, name: str) -> Any:
    return spark._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(name.removeprefix(f"{CATALOG}."))


def history_writer(spark: Any) -> Any:
    return bridge(spark, Path(__file__).with_name("LongHistory.java"), "bench.LongHistory")
