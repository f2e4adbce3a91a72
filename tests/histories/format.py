"""The modelled tables behind Lakewarden's own seam: the real reachability code reads them, the real jobs run on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lakewarden.config.aliases import Aliases
from lakewarden.errors import CommitLost, CommitUnknown, NoSuchTable, Refused, UsageError
from lakewarden.model.table import Counters, PartitionSpec, Ref, Snapshot, SortOrder, TableRef, TableView
from lakewarden.rewrite.metadata.manifests import LISTED, NAMED
from lakewarden.tables.iceberg.reachability import IcebergReachability
from lakewarden.tables.interface import Adoption, CommitGuard, HeldByRef
from lakewarden.tables.metadata_cache import CachedMetadata, ReachCache
from lakewarden.tables.metadata_files import ForeignMetadataCache
from tests.histories.model import File, Meta, Snap, Table, plain, there

CATALOGS = ["lake", "other"]
# A commit whose answer was lost may still arrive for this long; Lakewarden waits longer than that.
ARRIVES_WITHIN = timedelta(minutes=9)


class Watcher(Protocol):
    """Told of everything that happens to tables, and asked whether it may."""

    def gate(self, name: str) -> None: ...

    def expiring(self, table: Table, ids: set[int], refs: Mapping[str, int]) -> None: ...

    def committed(self) -> None: ...


@dataclass
class InFlight:
    """A commit on its way to a slow catalog: it holds only on top of the metadata it was made from."""

    table: Table
    base: Meta
    made: Meta
    ids: set[int]
    refs: Mapping[str, int]
    until: datetime


@dataclass
class Catalog:
    """Every table, and how the catalog answers the next expiry."""

    tables: dict[TableRef, Table] = field(default_factory=dict)
    answer: str = ""
    in_flight: InFlight | None = None

    def table(self, ref: TableRef) -> Table:
        if ref not in self.tables:
            raise NoSuchTable(table=ref, reason="the model has no such table")
        return self.tables[ref]


class ModelReader:
    """Decodes lists and manifests that are there; of one that is not on disk it says so."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def lists(
        self, paths: Sequence[str], io: Mapping[str, str], lengths: Mapping[str, int]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        for path in paths:
            if not there(plain(path)):
                yield path, None, "it is not there"
                continue
            rows = [
                (name, each.length, len(each.live), False)
                for name, each in self._table.lists[plain(path)].manifests
            ]
            yield path, _table(rows, LISTED), ""

    def manifests(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        for path, length, live in wanted:
            try:
                size = Path(plain(path)).stat().st_size
            except FileNotFoundError:
                yield path, None, "it is not there"
                continue
            found = self._table.manifests[plain(path)].live
            if size != length or len(found) != live:
                yield (
                    path,
                    None,
                    f"it has {size} bytes and {len(found)} files, its list says {length}, {live}",
                )
                continue
            yield path, _table([(each.path, each.size, each.kind) for each in found], NAMED), ""

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        return [path for path in paths if not there(plain(path))]


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(each, kind.type) for each, kind in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


class ModelFormat:
    """What the deleting jobs, pins and loads ask of a format."""

    def __init__(self, catalog: Catalog, watcher: Watcher, cache: Path, adopted: Callable[[Table, Sequence[str], Mapping[str, str]], Snap]) -> None:  # fmt: skip
        self._catalog, self._watcher, self._cache, self._adopted = catalog, watcher, cache, adopted

    # ------------------------------------------------------------ looking

    def tables(self, catalog: str) -> list[TableRef]:
        self._watcher.gate(f"tables {catalog}")
        return [ref for ref in self._catalog.tables if ref.catalog == catalog]

    def view(self, table: TableRef) -> TableView:
        self._watcher.gate("view")
        return view_of(self._catalog.table(table))

    def version(self, table: TableRef) -> str:
        return self.view(table).state_version

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> Any:
        self._watcher.gate("reached")
        return self._reach(view).reached(snapshot_ids)

    def unreached(
        self,
        view: TableView,
        removed: Collection[int],
        refs: Collection[str] = (),
        changelogs: Collection[int] = (),
    ) -> pa.Table:
        self._watcher.gate("unreached")
        return self._reach(view).unreached(removed)

    def named_paths(self, view: TableView, numbers: Any) -> Iterator[pa.Array]:
        return self._reach(view).named_paths(numbers)

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        return {}

    def _reach(self, view: TableView) -> IcebergReachability:
        reader = ModelReader(self._catalog.table(view.ref))
        return IcebergReachability(view, CachedMetadata(view, reader, {}, ReachCache(self._cache, view.uuid)))

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        snapshots = self._catalog.table(table).meta.snapshots
        return next((s.id for s in snapshots if summary.items() <= s.summary.items()), None)

    def loads(self) -> ModelLoads:
        return ModelLoads(self._catalog, self.find_commit)

    def writer(self, guard: CommitGuard) -> ModelWriter:
        return ModelWriter(guard, self._catalog, self._watcher, self._adopted)


class ModelLoads:
    """What staged loads ask."""

    def __init__(self, catalog: Catalog, find: Callable[[TableRef, Mapping[str, str]], int | None]) -> None:
        self._catalog, self._find = catalog, find

    def check_adoption(self, table: TableRef, paths: Sequence[str]) -> Adoption:
        live = self.live_among(table, paths)
        missing = [path for path in paths if not there(plain(path))]
        if live or missing:
            raise Refused(action="adopt", target=(live or missing)[0], reason="live already, or not there")
        return Adoption(tuple(paths), len(paths), len(paths), ())

    def find_adoption(self, table: TableRef, load_id: str) -> int | None:
        return self._find(table, {"lineage.load": load_id})

    def live_among(self, table: TableRef, paths: Sequence[str]) -> list[str]:
        return _live_among(self._catalog.table(table), paths)


class ModelWriter:
    """What changes a modelled table: like a format's own writer, it asks the guard first."""

    def __init__(self, guard: CommitGuard, catalog: Catalog, watcher: Watcher, adopted: Callable[[Table, Sequence[str], Mapping[str, str]], Snap]) -> None:  # fmt: skip
        self._guard, self._catalog, self._watcher, self._adopted = guard, catalog, watcher, adopted

    # ------------------------------------------------------------ expiring

    def expire(
        self,
        view: TableView,
        snapshot_ids: Sequence[int],
        refs: Mapping[str, int],
        changelogs: Collection[int] = (),
    ) -> None:
        """As IcebergExpiry.java does it: on the newest metadata, refused as a whole where a ref names one of them."""
        self._guard.check(view.ref, None)
        self._watcher.gate("before the commit")
        table = self._catalog.table(view.ref)
        answer, self._catalog.answer = self._catalog.answer, ""
        if answer == "lost":
            raise CommitLost(table=view.ref, reason="the model says so")
        ids = set(snapshot_ids).intersection(each.id for each in table.meta.snapshots)
        dropped = {ref.name for ref in table.meta.refs if refs.get(ref.name) == ref.snapshot_id}
        held = [
            (ref.name, ref.snapshot_id)
            for ref in table.meta.refs
            if ref.name not in dropped and ref.snapshot_id in ids
        ]
        if held:
            raise HeldByRef(held)
        if ids or dropped:
            self._commit_expiry(table, ids, dropped, refs, answer)
        self._watcher.gate("after the commit")

    def _commit_expiry(
        self, table: Table, ids: set[int], dropped: set[str], refs: Mapping[str, int], answer: str
    ) -> None:
        if answer == "unknown, not done":
            raise CommitUnknown(table=table.ref, reason="the model did not say, and did nothing")
        going = {name: refs[name] for name in sorted(dropped)}
        self._watcher.expiring(table, ids, going)
        base, made = table.meta, table.prepared(table.without(ids, dropped))
        if answer == "unknown, late":
            until = table.disk.clock.tick() + ARRIVES_WITHIN
            self._catalog.in_flight = InFlight(table, base, made, ids, going, until)
            raise CommitUnknown(table=table.ref, reason="the model did not say; it may come later")
        table.move(made)
        self._watcher.committed()
        if answer == "unknown, done":
            raise CommitUnknown(table=table.ref, reason="the model did not say, and did it")

    # ------------------------------------------------------------ tags

    def create_tag(self, table: TableRef, name: str, snapshot_id: int, until: datetime | None) -> None:
        self._guard.check(table, None)
        found = self._catalog.table(table)
        snap = found.meta.snapshot(snapshot_id)
        if snap is None or found.meta.ref(name) is not None:
            raise UsageError(reason=f"tag {name}: taken, or no such snapshot")
        found.set_ref(Ref(name, "tag", snapshot_id, None if until is None else _millis(until - snap.at)))
        self._watcher.committed()

    def retain_tag(self, table: TableRef, name: str, until: datetime | None) -> None:
        self._guard.check(table, None)
        found = self._catalog.table(table)
        ref = found.meta.ref(name)
        snap = None if ref is None else found.meta.snapshot(ref.snapshot_id)
        if ref is None or snap is None:
            raise UsageError(reason=f"there is no tag {name}")
        found.set_ref(Ref(name, "tag", snap.id, None if until is None else _millis(until - snap.at)))
        self._watcher.committed()

    def drop_tag(self, table: TableRef, name: str) -> None:
        self._guard.check(table, None)
        found = self._catalog.table(table)
        if found.meta.ref(name) is None:
            raise UsageError(reason=f"there is no tag {name}")
        found.drop_ref(name)
        self._watcher.committed()

    # ------------------------------------------------------------ adopting

    def commit_adoption(self, table: TableRef, adopting: Adoption, summary: Mapping[str, str]) -> int:
        self._guard.check(table, summary)
        self._watcher.gate("before the adoption")
        if _live_among(self._catalog.table(table), adopting.paths):
            raise CommitLost(table=table, reason="another commit added one of them first")
        made = self._adopted(self._catalog.table(table), adopting.paths, summary)
        self._watcher.committed()
        self._watcher.gate("after the adoption")
        return made.id


def _live_among(table: Table, paths: Sequence[str]) -> list[str]:
    head = table.meta.head()
    live = set() if head is None else {plain(each.path) for each in head.files}
    return [path for path in paths if plain(path) in live]


class ModelLake:
    """The lake as configured: two catalogs of modelled tables, no session."""

    spark = None

    def __init__(self, format_: ModelFormat) -> None:
        self._format = format_
        self.strays = ForeignMetadataCache()
        self.incomplete: tuple[str, ...] = ()
        self.aliases = Aliases()

    def attend(self) -> None:
        """There is no session that a thread would have to be told of."""

    def catalogs(self) -> list[str]:
        return CATALOGS

    def format_of(self, catalog: str) -> ModelFormat:
        return self._format

    def format_for(self, table: TableRef) -> ModelFormat:
        return self._format

    def close(self) -> None:
        pass


def view_of(table: Table) -> TableView:
    meta, head = table.meta, table.meta.head()
    return TableView(
        ref=table.ref,
        format="iceberg",
        format_version=2,
        uuid=table.uuid,
        location=table.location,
        metadata_location=meta.path,
        current_snapshot_id=None if head is None else head.id,
        snapshots=tuple(
            Snapshot(s.id, s.parent, s.sequence, s.at, s.operation, s.summary, s.list_path)
            for s in meta.snapshots
        ),
        refs=meta.refs,
        schema_id=0,
        schema_json="{}",
        specs=(PartitionSpec(0, ()),),
        current_spec_id=0,
        sort_orders=(SortOrder(0, ()),),
        current_sort_order_id=0,
        properties={},
        counters=Counters(),
        metadata_log=meta.log,
        statistics=meta.statistics,
        updated_ms=meta.updated_ms,
        sequence_number=meta.sequence,
    )


def _millis(length: timedelta) -> int:
    return int(length.total_seconds() * 1000)


def file_on_disk(path: str) -> File:
    return File(path, Path(plain(path)).stat().st_size)
