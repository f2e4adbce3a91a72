"""One table, whatever it is made of: what a test does to it reads the same for every format.

A new format, or a new kind of table of a known one, is a class here and a line in conftest.py. The tests stay as they are.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lakewarden import Lakewarden, TableRef, clock
from lakewarden.errors import CommitUnknown
from lakewarden.model.location import normal
from lakewarden.model.run import Run, RunState
from lakewarden.model.table import TableView
from lakewarden.tables.iceberg.format import Iceberg
from lakewarden.tables.iceberg.writer import IcebergWriter
from lakewarden.tables.interface import TableFormat
from lakewarden.tables.paimon.format import Paimon
from lakewarden.tables.paimon.writer import PaimonWriter
from tests.support.lab import Lab
from tests.support.paimon import COLD, PaimonLab, files_below

# Long over, but for the last: that is today.
DAYS = ("2024-01-01", "2024-01-02", f"{clock.now():%Y-%m-%d}")


class Lake(ABC):
    """A table with the columns id, v and dt, by day in `dt`, and those who write to it beside us."""

    lw: Lakewarden
    catalog: str
    cold: str  # the catalog that takes what is handed off
    implementation: type[Any]
    keyed = False  # then compaction merges rows by key and is told of buckets, not of files

    def __init__(self) -> None:
        self.table = f"{self.catalog}.db.events"

    # ------------------------------------------------------------ what its writers do

    @abstractmethod
    def create(self) -> None:
        """Empty, under the name `table` has."""

    @abstractmethod
    def add(self, first: int, rows: int, day: str) -> None:
        """One commit: rows that follow from their numbers, on one day."""

    @abstractmethod
    def drop_day(self, day: str) -> None: ...

    @abstractmethod
    def compact_elsewhere(self) -> None:
        """By the format's own tool."""

    @abstractmethod
    def expire_elsewhere(self) -> None:
        """All but the newest snapshot, and their files, by the format's own tool."""

    @abstractmethod
    def rename(self, name: str) -> None: ...

    @abstractmethod
    def tag_elsewhere(self, name: str, snapshot_id: int) -> None:
        """By somebody who does not ask us."""

    @abstractmethod
    def branch(self, name: str, tag: str) -> None:
        """A branch that begins where the tag stands."""

    def append(self, commits: int, rows: int = 20, first: int = 0) -> None:
        """By day in turn."""
        for number in range(commits):
            self.add(first + number * rows, rows, DAYS[number % len(DAYS)])

    def busy(self) -> None:
        """Appends, a compaction, a day that was dropped, more appends."""
        self.create()
        self.append(6)
        self.compact_elsewhere()
        self.drop_day(DAYS[1])
        self.append(4, first=1_000)

    # ------------------------------------------------------------ what is seen from outside

    @abstractmethod
    def rows(self, snapshot_id: int | None = None, ref: str | None = None) -> list[str]:
        """Every row by the format's own reader: of the newest snapshot, another one, or a tag or a branch."""

    @abstractmethod
    def cold_rows(
        self, snapshot_id: int | None = None, as_of: datetime | None = None, tag: str | None = None
    ) -> list[str]:
        """The same from the colder tier, by the format's own reader."""

    @property
    @abstractmethod
    def folder(self) -> Path: ...

    @property
    @abstractmethod
    def cold_folder(self) -> Path: ...

    @abstractmethod
    def stray_names(self) -> list[str]:
        """Paths below the folder that a crashed writer may have left: data and metadata."""

    @abstractmethod
    def manifest(self) -> Path:
        """A manifest the newest snapshot needs."""

    def files(self) -> set[str]:
        """Everything there is, by path below the table's folder, but for hints, which are rewritten in place."""
        hints = ("EARLIEST", "LATEST", "version-hint.text", ".version-hint.text.crc")
        return {each for each in files_below(self.folder) if not each.endswith(hints)}

    def contents(self) -> dict[str, bytes]:
        return {each: (self.folder / each).read_bytes() for each in files_below(self.folder)}

    def trash(self) -> set[str]:
        """Marked and not yet gone, by path below the table's folder."""
        folder = f"{normal(str(self.folder))}/"
        return {
            normal(each.path).removeprefix(folder) for each in self.lw.trash(self.table, limit=100_000).files
        }

    def age(self, days: int = 60) -> None:
        """Everything in the folder was last written so long ago."""
        then = time.time() - days * 86_400
        for path in self.folder.rglob("*"):
            os.utime(path, (then, then))

    def put(self, name: str, age: float = 60 * 86_400) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left behind")
        os.utime(path, (time.time() - age,) * 2)
        return name

    # ------------------------------------------------------------ what Lakewarden does

    @property
    def ref(self) -> TableRef:
        return TableRef.parse(self.table)

    @property
    def format(self) -> TableFormat:
        return self.lw.lake.format_for(self.ref)

    def view(self) -> TableView:
        return self.lw.view(self.table)

    def head(self) -> int:
        found = self.view().current_snapshot_id
        assert found is not None
        return found

    def run(self, job: str, **policy: object) -> Run:
        return self.lw.run(job, self.table, policy)

    def do(self, job: str, **policy: object) -> Run:
        """A run that has something to do and does it."""
        run = self.run(job, **policy)
        assert run.state is RunState.DONE, f"{run.state}: {run.reason}"
        return run

    def expire(self, **policy: object) -> Run:
        return self.do("expire", **{"snapshot_retention_hours": 0, "snapshot_min_retained": 1, **policy})

    def purge(self) -> Run:
        return self.do("purge", delete_grace_hours=0)

    def committing(self, job: str) -> tuple[type[Any], str]:
        """Which call of the writer makes the job's snapshots."""
        return self.writing, {
            "compact": "commit_rewrite",
            "rewrite-manifests": "rewrite_manifests",
            "expire-partitions": "drop_partitions",
            "expire": "expire",
        }[job]

    @contextmanager
    def just_before(self, what: tuple[type[Any], str], do: Callable[[], object]) -> Iterator[None]:
        """Others do something at the worst moment: once, as the format is about to do what was planned."""
        owner, method = what
        real, done = getattr(owner, method), []

        def late(itself: Any, *rest: Any, **more: Any) -> Any:
            if not done:
                done.append(True)
                do()
            return real(itself, *rest, **more)

        with patch.object(owner, method, late):
            yield
        assert done, f"{method} was never called"

    @contextmanager
    def answer_lost(self, what: tuple[type[Any], str]) -> Iterator[None]:
        """The first call does what it should, and nobody hears of it."""
        owner, method = what
        real, done = getattr(owner, method), []

        def silent(itself: Any, *rest: Any, **more: Any) -> Any:
            answer = real(itself, *rest, **more)
            if not done:
                done.append(True)
                raise CommitUnknown(
                    table=self.table, reason="the connection broke while the answer was on its way"
                )
            return answer

        with patch.object(owner, method, silent):
            yield
        assert done, f"{method} was never called"


class IcebergLake(Lake):
    implementation, writing = Iceberg, IcebergWriter

    def __init__(self, lab: Lab, version: int, cold: str = "") -> None:
        self.lab, self.lw, self.catalog, self.version, self.cold = lab, lab.lw, lab.catalog, version, cold
        super().__init__()

    def create(self) -> None:
        version = {"format-version": str(self.version)}
        self.lab.create("id bigint, v string, dt string", "dt", **version)

    def add(self, first: int, rows: int, day: str) -> None:
        self.lab.sql(
            f"insert into {self.table} select id, concat('v', id), '{day}' from range({first}, {first + rows}, 1, 1)"
        )

    def drop_day(self, day: str) -> None:
        self.lab.sql(f"delete from {self.table} where dt = '{day}'")

    def compact_elsewhere(self) -> None:
        self._call("rewrite_data_files", "options => map('min-input-files', '2')")

    def expire_elsewhere(self) -> None:
        self._call("expire_snapshots", "older_than => current_timestamp(), retain_last => 1")

    def _call(self, procedure: str, more: str) -> None:
        name = self.table.split(".", 1)[1]
        self.lab.sql(f"call {self.catalog}.system.{procedure}(table => '{name}', {more})")

    def rename(self, name: str) -> None:
        self.lab.sql(f"alter table {self.table} rename to db.{name}")
        self.table = f"{self.catalog}.db.{name}"

    def tag_elsewhere(self, name: str, snapshot_id: int) -> None:
        self.lab.sql(f"alter table {self.table} create tag {name} as of version {snapshot_id}")

    def branch(self, name: str, tag: str) -> None:
        at = next(each.snapshot_id for each in self.view().refs if each.name == tag)
        self.lab.sql(f"alter table {self.table} create branch {name} as of version {at}")

    def rows(self, snapshot_id: int | None = None, ref: str | None = None) -> list[str]:
        version = f"'{ref}'" if ref else str(snapshot_id)
        which = f"version as of {version}" if ref or snapshot_id is not None else ""
        return self._read(f"{self.table} {which}")

    def _read(self, what: str) -> list[str]:
        return sorted(" ".join(map(str, row)) for row in self.lab.sql(f"select * from {what}"))

    def cold_rows(
        self, snapshot_id: int | None = None, as_of: datetime | None = None, tag: str | None = None
    ) -> list[str]:
        then = f"timestamp as of '{as_of.isoformat()}'" if as_of else ""
        return self._read(f"{self.cold}.db.events {then or f'version as of {snapshot_id or repr(tag)}'}")

    @property
    def folder(self) -> Path:
        return self.lab.warehouse / "db" / "events"

    @property
    def cold_folder(self) -> Path:
        return self.lab.warehouse.parent / "cold"

    def stray_names(self) -> list[str]:
        return ["data/dt=2024-01-01/00000-9-left-00001.parquet", "metadata/left-m0.avro"]

    def manifest(self) -> Path:
        found = self.lab.sql(f"select path from {self.table}.manifests")[0].path
        return Path(found.removeprefix("file:"))


class PaimonLake(Lake):
    implementation, writing = Paimon, PaimonWriter

    def __init__(self, lab: PaimonLab, *, keyed: bool = False, **options: str) -> None:
        self.lab, self.lw, self.catalog, self.cold = lab, lab.lw, lab.catalog, COLD
        self.keyed, self.options = keyed, options
        super().__init__()

    def create(self) -> None:
        self.lab.create(self.table.rsplit(".", 1)[1], keyed=self.keyed, **self.options)

    def add(self, first: int, rows: int, day: str) -> None:
        self.lab.maker.write(self.lab.load(self.table), first, rows, day, False)

    def drop_day(self, day: str) -> None:
        self.lab.maker.dropPartition(self.lab.load(self.table), day)

    def compact_elsewhere(self) -> None:
        self.lab.maker.compact(self.lab.load(self.table))

    def committing(self, job: str) -> tuple[type[Any], str]:
        return (PaimonWriter, "commit_merge") if self.keyed and job == "compact" else super().committing(job)

    def expire_elsewhere(self) -> None:
        self.lab.maker.ownExpire(self.lab.load(self.table), 1)

    def rename(self, name: str) -> None:
        self.table = self.lab.rename(self.table, name)

    def tag_elsewhere(self, name: str, snapshot_id: int) -> None:
        self.lab.maker.tag(self.lab.load(self.table), name, snapshot_id)

    def branch(self, name: str, tag: str) -> None:
        self.lab.load(self.table).createBranch(name, tag)

    def rows(self, snapshot_id: int | None = None, ref: str | None = None) -> list[str]:
        if ref and any(each.name == ref and each.kind == "branch" for each in self.view().refs):
            return self.lab.branch_rows(self.table, ref)
        return self.lab.rows(self.table, -1 if snapshot_id is None else snapshot_id, ref)

    def cold_rows(
        self, snapshot_id: int | None = None, as_of: datetime | None = None, tag: str | None = None
    ) -> list[str]:
        millis = None if as_of is None else round(as_of.timestamp() * 1000)
        asked = {"snapshot_id": snapshot_id, "timestamp_millis": millis, "tag_name": tag}
        return self.lab.cold_rows(
            self.table, **{key: each for key, each in asked.items() if each is not None}
        )

    @property
    def folder(self) -> Path:
        return self.lab.folder(self.table)

    @property
    def cold_folder(self) -> Path:
        return self.lab.cold

    def stray_names(self) -> list[str]:
        left = "11111111-1111-1111-1111-111111111111-0"
        return [f"dt=2024-01-01/bucket-0/data-{left}.parquet", f"manifest/manifest-{left}"]

    def manifest(self) -> Path:
        return Path(normal(self.format.manifests(self.ref, self.head())[0].path).removeprefix("file:"))
