"""Paimon tables to experiment on, made and changed by Paimon's own library."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from lakewarden import Lakewarden
from lakewarden.model.location import normal
from lakewarden.storage.generation_file import WITNESS
from lakewarden.tables.jvm import bridge
from lakewarden.tables.paimon.writer import PaimonWriter

CATALOG = "pm"
# Where snapshots are handed off to.
COLD = "pm_cold"
_HERE = Path(__file__).parent


@dataclass
class PaimonLab:
    spark: SparkSession
    warehouse: Path
    lw: Lakewarden
    catalog: str = CATALOG
    maker: Any = None
    types: Any = None
    properties: Mapping[str, str] = field(default_factory=dict)
    _opened: Any = field(default=None)

    def __post_init__(self) -> None:
        self.maker = bridge(self.spark, _HERE / "PaimonMaker.java", "lakewarden.tests.PaimonMaker")
        self.types = bridge(self.spark, _HERE / "PaimonTypes.java", "lakewarden.tests.PaimonTypes")
        self._opened = self.maker.open({"warehouse": str(self.warehouse), **self.properties})

    def create(self, name: str = "events", *, keyed: bool = False, **options: str) -> str:
        """An empty table; dots in options are written as two underscores. Returns its full name."""
        told = {key.replace("__", "."): value for key, value in options.items()}
        self.maker.create(self._opened, name, keyed, {"bucket": "2" if keyed else "-1"} | told)
        return f"{self.catalog}.db.{name}"

    def typed(self, kind: str = "all", name: str = "typed", **options: str) -> str:
        """An empty append table with every type, or with other columns: see PaimonTypes."""
        told = {key.replace("__", "."): value for key, value in options.items()}
        self.types.create(self._opened, name, kind, {"bucket": "-1"} | told)
        return f"{self.catalog}.db.{name}"

    def write(self, table: str, commits: int = 4, rows: int = 50, start: int = 0, days: int = 2) -> None:
        """Rows that follow from their numbers, by day in turn."""
        for number in range(commits):
            self.types.write(self.load(table), start + number * rows, rows, number % days + 1)

    def change(self, table: str, what: str) -> None:
        self.types.change(self._opened, table.rsplit(".", 1)[1], what)

    def texts(self, table: str, *, in_order: bool = False) -> list[str]:
        """Every row of the table as Paimon's own reader gives it."""
        found: list[str] = json.loads(self.types.rows(self.load(table), not in_order))
        return found

    def files(self, table: str) -> list[dict[str, Any]]:
        """Live data files as Paimon's own library tells them."""
        found: list[dict[str, Any]] = json.loads(self.types.files(self.load(table)))
        return sorted(found, key=lambda each: (each["place"], each["min"], each["name"]))

    @contextmanager
    def before_commit(self, do: Callable[[], object]) -> Iterator[None]:
        """Run `do` at the worst moment: outputs are written, the commit has not begun."""
        real, done = PaimonWriter.commit_rewrite, []

        def commit(self: PaimonWriter, rewrite: Any, incorporate: Any = None) -> int | None:
            if not done:
                done.append(True)
                do()
            return real(self, rewrite, incorporate)

        with patch.object(PaimonWriter, "commit_rewrite", commit):
            yield

    def load(self, table: str) -> Any:
        return self.maker.load(self._opened, table.rsplit(".", 1)[1])

    def folder(self, table: str) -> Path:
        return self.warehouse / "db.db" / table.rsplit(".", 1)[1]

    def append(self, table: str, commits: int = 1, rows: int = 20, start: int = 0, days: int = 3) -> None:
        for number in range(commits):
            day = f"2024-01-0{number % days + 1}"
            self.maker.write(self.load(table), start + number * rows, rows, day, False)

    def delete(self, table: str, start: int, rows: int, day: str = "2024-01-01") -> None:
        self.maker.write(self.load(table), start, rows, day, True)

    def busy(self, name: str = "events", *, keyed: bool = False, **options: str) -> str:
        """Appends, a compaction, a dropped partition, more appends: 15 snapshots or so."""
        table = self.create(name, keyed=keyed, **options)
        self.append(table, 6)
        self.maker.compact(self.load(table))
        self.append(table, 3, start=1_000)
        self.maker.dropPartition(self.load(table), "2024-01-02")
        self.append(table, 3, start=2_000)
        self.maker.compact(self.load(table))
        self.append(table, 1, start=3_000)
        return table

    def rename(self, table: str, name: str) -> str:
        self.maker.rename(self._opened, table.rsplit(".", 1)[1], name)
        return f"{self.catalog}.db.{name}"

    def rows(self, table: str, snapshot: int = -1, tag: str | None = None) -> list[str]:
        found: list[str] = json.loads(self.maker.rows(self.load(table), snapshot, tag))
        return found

    def cold_texts(self, table: str, **scan: object) -> list[str]:
        """Every row as Paimon's own reader gives it from the colder tier: of `snapshot_id`, `timestamp_millis` or `tag_name`."""
        return self._travelled(self.load_cold(table), scan)

    def cold_rows(self, table: str, **scan: object) -> list[str]:
        """The same, as `rows` has them."""
        found: list[str] = json.loads(
            self.maker.rows(self.maker.travel(self.load_cold(table), _scanning(scan)), -1, None)
        )
        return found

    def load_cold(self, table: str) -> Any:
        opened = self.maker.open({"warehouse": str(self.cold)})
        return self.maker.load(opened, table.rsplit(".", 1)[1])

    def texts_at(self, table: str, **scan: object) -> list[str]:
        """The same from the table itself."""
        return self._travelled(self.load(table), scan)

    def _travelled(self, loaded: Any, scan: Mapping[str, object]) -> list[str]:
        found: list[str] = json.loads(self.types.rows(self.maker.travel(loaded, _scanning(scan)), True))
        return found

    @property
    def cold(self) -> Path:
        return self.warehouse.parent / "cold"

    def branch_rows(self, table: str, branch: str) -> list[str]:
        found: list[str] = json.loads(self.maker.rows(self.load(table).switchToBranch(branch), -1, None))
        return found

    def on_disk(self, table: str) -> set[str]:
        """Every file of the table, by its path below the table's folder; not what a run that deletes leaves there."""
        return files_below(self.folder(table)) - {WITNESS}

    def place(self, table: str) -> str:
        """Where it lies, as its metadata spells that."""
        return str(self.folder(table))

    def trash(self, table: str) -> set[str]:
        """Marked and not yet gone, by path below the table's folder."""
        folder = f"{normal(self.place(table))}/"
        found = self.lw.trash(table, limit=1_000_000).files
        return {normal(each.path).removeprefix(folder) for each in found}

    def own_orphans(self, table: str) -> set[str]:
        """What Paimon's own cleaning would delete of what is older than a day."""
        older = int(time.time() * 1000) - 86_400_000
        found = json.loads(self.maker.ownOrphans(self.load(table), older))
        return {normal(path).removeprefix(f"{normal(str(self.folder(table)))}/") for path in found}

    @contextmanager
    def twin(self, table: str) -> Iterator[tuple[Any, Path]]:
        """A copy of the table for Paimon's own tools, so that both can be seen doing the same."""
        copy = self.warehouse.parent / f"twin-{table.rsplit('.', 1)[1]}"
        shutil.copytree(self.folder(table), copy)
        yield self.maker.at(self.load(table), str(copy)), copy
        shutil.rmtree(copy)


def _scanning(scan: Mapping[str, object]) -> dict[str, str]:
    return {f"scan.{key.replace('_', '-')}": str(value) for key, value in scan.items()}


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@contextmanager
def paimon_lab(
    spark: SparkSession, folder: Path, cold: bool = False, **properties: str
) -> Iterator[PaimonLab]:
    """In a folder, whatever else the catalog's properties say; with a colder tier beside it where asked."""
    warehouse = folder / "paimon"
    with lakewarden(spark, folder, cold, warehouse=str(warehouse), **properties) as lw:
        yield PaimonLab(spark, warehouse, lw, properties=properties)


def lakewarden(
    spark: SparkSession,
    folder: Path,
    cold: bool = False,
    more: Mapping[str, object] | None = None,
    **properties: str,
) -> Lakewarden:
    """On one Paimon catalog, with its state in the folder; `more` is the rest of the settings."""
    catalogs = {CATALOG: {"format": "paimon", **properties}}
    if cold:
        (folder / "cold").mkdir(exist_ok=True)
        catalogs[COLD] = {"format": "paimon", "warehouse": str(folder / "cold")}
    config = {"state": {"url": f"sqlite:///{folder}/state.db"}, "catalogs": catalogs, **(more or {})}
    return Lakewarden(config, spark=spark, environ={})
