"""One history's world: tables, files, processes, what was promised to whom; and the judge of every single deletion.

The judge knows what the model knows and what the history did itself. It asks nothing of the code it judges but which
batch a deleted path is under.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from lakewarden.model.table import TableRef
from tests.histories.format import Catalog, ModelFormat, ModelLake, file_on_disk
from tests.histories.model import Clock, Disk, Snap, Table, plain, there
from tests.histories.process import Database, Process

HARD_FLOOR = timedelta(hours=24)
# A streaming writer is waited for so long after its last commit: the default of snapshot_restart_hours.
_RESTARTS = timedelta(days=30)


class Violated(AssertionError):
    """A promise was broken."""


@dataclass
class Promise:
    """Something that was granted: a pinned snapshot, or files of a writer or a load, for as long as it lasts."""

    table: Table
    until: datetime | None
    snapshot_id: int | None = None
    files: set[str] = field(default_factory=set)
    prefixes: tuple[str, ...] = ()

    def live(self, now: datetime) -> bool:
        return self.until is None or self.until > now

    def covers(self, name: str) -> bool:
        return name in self.files or any(name.startswith(each) for each in self.prefixes)


@dataclass
class Settings:
    """What the job that runs now was asked for."""

    job: str = ""
    retention: timedelta = timedelta(0)
    least: int = 0
    by_id: bool = False
    grace: timedelta = timedelta(0)
    orphan_grace: timedelta = HARD_FLOOR


class World:
    def __init__(self, folder: Path, database: Database, rng: Random) -> None:
        self.folder, self.database = folder, database
        self.clock = Clock()
        self.disk = Disk(self.clock)
        self.catalog = Catalog()
        self.told: Counter[str] = Counter()
        self.pins: dict[str, Promise] = {}
        self.writers: dict[str, Promise] = {}
        self.loads: dict[str, Promise] = {}
        self.restored: set[tuple[str, str]] = set()
        self.untouchable: set[str] = set()  # hidden and foreign files
        self.lost_pins: list[Promise] = []  # on snapshots that another tool dropped
        self.deletions: set[tuple[str, str]] = set()
        self.expired_at: dict[str, datetime] = {}
        self.read_before: frozenset[str] = frozenset()
        self.settings = Settings()
        self.proving = False
        self.disturbed = False
        self.fail_deletes: Random | None = None
        self.short_listing: Random | None = None
        self.hosts = 0
        self.checked = 0
        self._lake = ModelLake(ModelFormat(self.catalog, self, folder / "cache", self._adopted))
        database.use(folder / "state.db")
        self.process = self.new_process()
        self.rng = rng

    # ------------------------------------------------------------ parts

    def add_table(self, catalog: str, name: str, rng: Random) -> Table:
        ref = TableRef(catalog, ("db",), name)
        self.catalog.tables[ref] = Table(ref, f"{self.folder}/lake/db/{name}", self.disk, rng)
        return self.catalog.tables[ref]

    @property
    def tables(self) -> list[Table]:
        return list(self.catalog.tables.values())

    def new_process(self, host: str | None = None) -> Process:
        if host is None:
            self.hosts += 1
            host = f"host-{self.hosts}"
        return Process(self.database.engine, self._lake, host)

    @contextmanager
    def as_process(self, process: Process) -> Iterator[None]:
        """Someone else's turn, while the process before waits."""
        before = self.process, self.settings, self.proving, self.disturbed
        self.process, self.settings = process, Settings()
        try:
            yield
        finally:
            self.process, self.settings, self.proving, self.disturbed = before

    def _adopted(self, table: Table, paths: Sequence[str], summary: Mapping[str, str]) -> Snap:
        return table.append([file_on_disk(path) for path in paths], self.rng, summary=dict(summary))

    # ------------------------------------------------------------ what is needed

    def needed(self) -> frozenset[str]:
        """Every file that any table needs: a walk over the model, nothing else."""
        return frozenset().union(*(table.meta.needed for table in self.tables))

    def committed(self) -> None:
        """A table moved on by someone else's hand, or by ours: remember what nobody can read any more because we expired it."""
        now, read = self.clock.tick(), frozenset().union(*(table.meta.read for table in self.tables))
        for name in self.read_before - read if self.settings.job == "expire" else ():
            self.expired_at[name] = now
        self.read_before = read

    # ------------------------------------------------------------ told by the format

    def gate(self, name: str) -> None:
        """Every table is read after the moment its catalog lists it, so until then a commit is still seen."""
        if name.startswith("tables"):
            self.proving = False
        self.process.gates.at()
        if name.startswith("tables"):
            self.proving = self.settings.job == "purge"

    def expiring(self, table: Table, ids: set[int], refs: Mapping[str, int]) -> None:
        """May these snapshots and refs leave? Judged at the very moment of the commit."""
        now, meta = self.clock.tick(), table.meta
        staying = [ref for ref in meta.refs if ref.name not in refs]
        heads = [ref.snapshot_id for ref in staying if ref.kind == "branch"]
        found = _found_by_flink(meta.snapshots, heads, now)
        for snapshot_id in ids:
            snap = meta.snapshot(snapshot_id)
            assert snap is not None
            for pin in self.pins.values():
                if pin.table is table and pin.snapshot_id == snapshot_id and pin.live(now):
                    raise Violated(
                        f"snapshot {snapshot_id} of {table.ref} expires, and is pinned until {pin.until}"
                    )
            if any(ref.snapshot_id == snapshot_id for ref in staying):
                raise Violated(f"snapshot {snapshot_id} of {table.ref} expires, and a ref names it")
            if not self.settings.by_id and snap.at > now - self.settings.retention:
                raise Violated(f"snapshot {snapshot_id} of {table.ref} expires inside the window")
            if snapshot_id in found:
                raise Violated(f"snapshot {snapshot_id} of {table.ref} expires, a Flink job restarts from it")
        for name in refs:
            self._check_ref(table, name, now)
        kept = len(meta.snapshots) - len(ids)
        if ids and not self.settings.by_id and not self.disturbed and kept < self.settings.least:
            raise Violated(f"{kept} snapshots of {table.ref} are left, {self.settings.least} were to stay")
        self.told["snapshots expired"] += len(ids)

    def _check_ref(self, table: Table, name: str, now: datetime) -> None:
        ref = table.meta.ref(name)
        assert ref is not None
        snap = table.meta.snapshot(ref.snapshot_id)
        over = (
            snap is not None
            and ref.max_age_ms is not None
            and now - snap.at > timedelta(milliseconds=ref.max_age_ms)
        )
        if name == "main" or not over:
            raise Violated(f"ref {name} of {table.ref} is dropped before its own retention is over")

    def arrive(self, rng: Random) -> None:
        """A commit whose answer was lost comes in the end, or never does."""
        late = self.catalog.in_flight
        if late is None or rng.random() < 0.5:
            return
        self.catalog.in_flight = None
        if late.table.meta is late.base and self.clock.moment < late.until:
            with self.as_process(self.process):
                self.settings = Settings("expire", by_id=True)
                self.expiring(late.table, late.ids, late.refs)
                late.table.move(late.made)
                self.committed()

    # ------------------------------------------------------------ told by the store

    def delete(self, path: str, unlink: Callable[[], object]) -> None:
        """May this file be deleted, now? Then it is, and that is remembered."""
        name = plain(path)
        if not there(name):
            return
        batch = self._judged(path, name, self.clock.tick())
        unlink()
        self.deletions.add((batch, name))
        self.told["files erased"] += 1

    def _judged(self, path: str, name: str, now: datetime) -> str:
        if name in self.needed():
            raise Violated(f"{name} is deleted, and {self._who_needs(name)}")
        if name in self.untouchable:
            raise Violated(f"{name} is deleted, which is no table's file")
        for kind, promises in (("writer", self.writers), ("load", self.loads)):
            for who, each in promises.items():
                if each.live(now) and each.covers(name):
                    raise Violated(f"{name} is deleted, and {kind} {who} holds it")
        return self._check_batch(path, name, now)

    def _who_needs(self, name: str) -> str:
        for table in self.tables:
            for snap in table.meta.snapshots:
                if name in snap.needs:
                    return f"snapshot {snap.id} of {table.ref} needs it"
        return "a table's own metadata names it"

    def _check_batch(self, path: str, name: str, now: datetime) -> str:
        rows = self.database.ask(
            "SELECT v.id, v.state, v.cause, v.trashed_at, v.made_at FROM trash d JOIN trash_batches v ON v.id = d.batch_id "
            "WHERE d.state = 'erasing' AND d.path = ?",
            path,
        )
        if len(rows) != 1:
            raise Violated(f"{name} is deleted under {len(rows)} batches")
        batch, state, cause, trashed_at, made_at = rows[0]
        since = moment(trashed_at)
        grace = self.settings.orphan_grace if cause == "failed-load" else self.settings.grace
        if state != "active" or since is None or since + grace > now:
            raise Violated(f"{name} is deleted at {now}, trashed {since} by {cause} ({state}), grace {grace}")
        if name in self.expired_at and self.expired_at[name] + grace > now:
            raise Violated(
                f"{name} is deleted at {now}, a snapshot needed it until {self.expired_at[name]}, grace {grace}"
            )
        if self.disk.written[name] > since:
            raise Violated(f"{name} is deleted, it was written after it was trashed")
        if cause == "sweep" and self.disk.written[name] > (moment(made_at) or since) - HARD_FLOOR:
            raise Violated(f"{name} is deleted, it was young when it was swept")
        if (batch, name) in self.restored:
            raise Violated(f"{name} is deleted by {batch}, from which it was restored")
        if (batch, name) in self.deletions:
            raise Violated(f"{name} is deleted twice by {batch}")
        if cause == "sweep" and any(each.live(now) and name in each.files for each in self.lost_pins):
            raise Violated(f"{name} is deleted, a pinned snapshot that another tool dropped needs it")
        return str(batch)

    # ------------------------------------------------------------ after every step

    def check(self, *, thorough: bool = False) -> None:
        """Everything any snapshot needs is there, and every pinned snapshot is in the metadata."""
        # Asking the disk takes longer than anything else here: only after a deletion, and at the end.
        if thorough or self.checked != self.told["files erased"]:
            self.checked = self.told["files erased"]
            for name in self.needed():
                if not there(name):
                    raise Violated(f"{name} is gone, and {self._who_needs(name)}")
        now = self.clock.tick()
        for pin_id, pin in self.pins.items():
            if pin.live(now) and pin.table.meta.snapshot(pin.snapshot_id) is None:
                raise Violated(f"pinned snapshot {pin.snapshot_id} of {pin.table.ref} is gone (pin {pin_id})")


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def _found_by_flink(snapshots: Sequence[Snap], heads: Sequence[int], now: datetime) -> set[int]:
    """What a restarted job walks over, from each head to its newest checkpoint, and that checkpoint."""
    by_id = {each.id: each for each in snapshots}
    needed: set[int] = set()
    for head in heads:
        passed: list[int] = []
        jobs: set[str] = set()
        at: int | None = head
        while at is not None and at in by_id and at not in passed:
            passed.append(at)
            job = by_id[at].summary.get("flink.job-id")
            if job is not None and job not in jobs:
                jobs.add(job)
                needed |= set(passed) if by_id[at].at + _RESTARTS > now else set()
            at = by_id[at].parent
    return needed
