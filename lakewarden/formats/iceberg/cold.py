"""The colder tier of an Iceberg table: another table, of another catalog, that has every snapshot that was handed off.

Its files lie where the catalog puts it, under the same names below its location as below the live table's. Manifests and
lists are the live table's own with other paths in them; its metadata is that of the live table, with the snapshots that were
handed off and no others. Ids, times, sequence numbers and schemas are the same, so time travel reads the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import CommitLost, CommitUnknown, NoSuchTable, PolicyError, Refused
from lakewarden.formats.cold import SOURCE, SOURCE_UUID, refuse_other, rehome
from lakewarden.formats.iceberg.catalog import Catalogs, session_catalogs
from lakewarden.formats.iceberg.reach import Reach
from lakewarden.formats.iceberg.view import io_properties
from lakewarden.formats.jvm import JavaError, is_java, java_reason
from lakewarden.formats.seam import ColdHome, Copying
from lakewarden.model import Ref, TableRef, TableView

# Of several lists of the metadata, the entry that tells which one it is.
_BY_ID = (("schemas", "schema-id"), ("partition-specs", "spec-id"), ("sort-orders", "order-id"))
_DELETES, _VECTORS = "position-deletes", ".puffin"
_GROWS = ("last-column-id", "last-sequence-number", "last-partition-id", "next-row-id", "last-updated-ms")


class IcebergCold:
    """Every promise of ColdTier."""

    def __init__(self, catalogs: Catalogs, reach: Callable[[TableView], Reach]) -> None:
        self._catalogs, self._reach = catalogs, reach

    def find(self, view: TableView, catalog: str) -> ColdHome | None:
        return find(self._catalogs, view, catalog)

    def make(self, view: TableView, catalog: str) -> ColdHome:
        return make(self._catalogs, view, catalog)

    def closure(self, view: TableView, snapshot_ids: Collection[int]) -> pa.Table:
        return self._reach(view).closure(snapshot_ids)

    def check(self, view: TableView, files: pa.Table) -> None:
        for path in _of_kind(files, _DELETES)["path"].to_pylist():
            if not path.endswith((".parquet", _VECTORS)):
                raise Refused(
                    action="hand off",
                    target=view.ref,
                    reason=f"{path} names data files and is no Parquet file: its paths cannot be changed",
                    hint="apply its deletes first: `lakewarden run compact-deletes`",
                )

    def order(self, files: pa.Table) -> list[Copying]:
        """Data first, then what names it: a manifest's copy tells the sizes that its delete files have there."""
        deletes, manifests, lists = (
            _of_kind(files, each) for each in (_DELETES, "manifest", "manifest-list")
        )
        naming = pc.invert(pc.ends_with(deletes["path"], _VECTORS))
        rest = pc.invert(pc.is_in(files["kind"], pa.array([_DELETES, "manifest", "manifest-list"])))
        return [
            Copying(files.filter(rest)),
            Copying(deletes.filter(pc.invert(naming))),
            Copying(deletes.filter(naming), "positions"),
            Copying(manifests, "manifest", tuple(deletes["path"].to_pylist())),
            Copying(lists, "manifest-list", tuple(manifests["path"].to_pylist())),
        ]

    def rehome(self, view: TableView, home: ColdHome) -> Callable[[str], str]:
        return rehome(view, home)

    def register(
        self, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Sequence[Ref]
    ) -> None:
        register(self._catalogs, view, home, snapshot_ids, tags)


def _of_kind(files: pa.Table, kind: str) -> pa.Table:
    return files.filter(pc.equal(files["kind"], kind))


def find(catalogs: Catalogs, view: TableView, catalog: str) -> ColdHome | None:
    """The cold table, where it has been made already. Refused where a table of that name is something else."""
    ref = TableRef(catalog, view.ref.namespace, view.ref.name)
    there = session_catalogs(catalogs.spark)
    if catalog not in there:
        reason = f"no Iceberg catalog {catalog} is configured; configured: {', '.join(there)}"
        raise PolicyError(key="handoff_catalog", reason=reason)
    try:
        table = catalogs.load(ref)
    except NoSuchTable:
        return None
    if not catalogs.cold.replaceable(table):
        raise Refused(
            action="hand off to",
            target=ref,
            reason="a REST catalog takes changes of a table one by one, and old snapshots are none of them",
            hint="name a Hadoop, JDBC, Hive or Glue catalog: policy key handoff_catalog",
        )
    metadata = json.loads(catalogs.bridge.metadata(table))
    refuse_other(ref, view, metadata.get("properties", {}).get(SOURCE_UUID))
    return ColdHome(
        ref,
        str(metadata["location"]).rstrip("/"),
        frozenset(int(each["snapshot-id"]) for each in metadata.get("snapshots", ())),
        io_properties(catalogs, table),
    )


def make(catalogs: Catalogs, view: TableView, catalog: str) -> ColdHome:
    """The cold table; an empty one, where there was none."""
    found = find(catalogs, view, catalog)
    if found is not None:
        return found
    ref = TableRef(catalog, view.ref.namespace, view.ref.name)
    properties = {
        SOURCE: str(view.ref),
        SOURCE_UUID: view.uuid,
        "gc.enabled": "false",  # nobody's procedures may delete what it names
        "format-version": str(view.format_version),
    }
    catalogs.cold.make(
        _catalog(catalogs, catalog),
        json.dumps([*ref.namespace, ref.name]),
        catalogs.load(view.ref),
        json.dumps(properties),
    )
    made = find(catalogs, view, catalog)
    assert made is not None, "it was made a moment ago"
    return made


def _catalog(catalogs: Catalogs, name: str) -> Any:
    return catalogs.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
        catalogs.spark._jsparkSession, name
    )


def register(
    catalogs: Catalogs, view: TableView, home: ColdHome, snapshot_ids: Collection[int], tags: Iterable[Ref]
) -> None:
    """One commit after which the cold table has these snapshots too, and all it had. CommitLost: nothing changed."""
    table = catalogs.load(home.ref)
    cold = json.loads(catalogs.bridge.metadata(table))
    live = json.loads(catalogs.bridge.metadata(catalogs.load(view.ref)))
    before = catalogs.bridge.metadataLocation(table)
    made = merged(cold, live, frozenset(snapshot_ids), tuple(tags), rehome(view, home), before)
    try:
        catalogs.cold.replace(table, before, json.dumps(made))
    except JavaError as error:
        if is_java(error, "CommitStateUnknownException"):
            raise CommitUnknown(table=home.ref, reason=java_reason(error)) from error
        raise CommitLost(table=home.ref, reason=java_reason(error)) from error
    now = find(catalogs, view, home.ref.catalog)
    if now is None or not now.snapshots.issuperset(snapshot_ids):
        raise CommitLost(table=home.ref, reason="its catalog took the commit and does not show the snapshots")


@dataclass(frozen=True, slots=True)
class _Log:
    at: int
    snapshot_id: int


def merged(
    cold: Mapping[str, Any],
    live: Mapping[str, Any],
    snapshot_ids: frozenset[int],
    tags: Sequence[Ref],
    move: Callable[[str], str],
    before: str,
) -> dict[str, Any]:
    """The cold table's metadata with these snapshots of the live one's. Pure.

    What the two tables share only grows: schemas, specs and orders of either are in it, under their ids.
    """
    had = {int(each["snapshot-id"]): each for each in cold.get("snapshots", ())}
    for each in live.get("snapshots", ()):
        id_ = int(each["snapshot-id"])
        if id_ in snapshot_ids and id_ not in had:
            had[id_] = {**each, "manifest-list": move(each["manifest-list"])}
    snapshots = sorted(had.values(), key=lambda each: (each.get("sequence-number", 0), each["timestamp-ms"]))
    # When each was current is what time travel by time goes by: the live table's log first, the cold one's for what it lacks.
    known = {int(each["snapshot-id"]): int(each["timestamp-ms"]) for each in cold.get("snapshot-log", ())}
    known |= {
        int(each["snapshot-id"]): int(each["timestamp-ms"])
        for each in live.get("snapshot-log", ())
        if int(each["snapshot-id"]) in had and int(each["snapshot-id"]) not in known
    }
    log = sorted((_Log(at, id_) for id_, at in known.items()), key=lambda each: each.at)
    head = log[-1].snapshot_id if log else int(snapshots[-1]["snapshot-id"])
    refs = {name: each for name, each in cold.get("refs", {}).items() if name != "main"}
    for tag in tags:
        if tag.snapshot_id in had:
            refs.setdefault(tag.name, {"snapshot-id": tag.snapshot_id, "type": "tag"})
    made: dict[str, Any] = {
        **live,
        **{key: max(cold.get(key, 0), live[key]) for key in _GROWS if key in live},
        "table-uuid": cold["table-uuid"],
        "location": cold["location"],
        "properties": {**live.get("properties", {}), **cold.get("properties", {})},
        "snapshots": snapshots,
        "current-snapshot-id": head,
        "refs": {**refs, "main": {"snapshot-id": head, "type": "branch"}},
        "snapshot-log": [{"timestamp-ms": each.at, "snapshot-id": each.snapshot_id} for each in log],
        "metadata-log": [
            *cold.get("metadata-log", ()),
            {"timestamp-ms": cold["last-updated-ms"], "metadata-file": before},
        ],
        "statistics": [],
        "partition-statistics": [],
    }
    for name, key in _BY_ID:
        by_id = {each[key]: each for each in (*cold.get(name, ()), *live.get(name, ()))}
        made[name] = [by_id[id_] for id_ in sorted(by_id)]
    return made
