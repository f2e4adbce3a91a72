"""The cold tier of an Iceberg table: a table in another catalog with every snapshot that was handed off.

The catalog decides its location. Below it, files have the same relative paths as below the live table. Manifests and
manifest lists are copies with changed paths. The metadata is that of the live table, but only with the snapshots that were
handed off. Ids, times, sequence numbers and schemas are the same, so time travel gives the same result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import CommitLost, CommitUnknown, NoSuchTable, PolicyError, Refused
from lakewarden.model.table import COLD_SOURCE, COLD_SOURCE_UUID, Ref, TableRef, TableView
from lakewarden.tables.cold import refuse_other, rehome
from lakewarden.tables.iceberg.catalog import IcebergCatalogs, session_catalogs
from lakewarden.tables.iceberg.reachability import IcebergReachability
from lakewarden.tables.iceberg.view import io_properties
from lakewarden.tables.interface import ColdHome, Copying
from lakewarden.tables.jvm import JavaError, is_java, java_reason
from lakewarden.tables.places import ELSEWHERE

# The id field of the entries in each list of the metadata.
_BY_ID = (("schemas", "schema-id"), ("partition-specs", "spec-id"), ("sort-orders", "order-id"))
# Properties with folders of the live table.
_WHERE = (*ELSEWHERE, "write.object-storage.enabled", "write.location-provider.impl")
_DELETES, _REHOMED_DELETES = "position-deletes", (".parquet", ".puffin")
_GROWS = ("last-column-id", "last-sequence-number", "last-partition-id", "next-row-id", "last-updated-ms")


class IcebergCold:
    """Implements ColdTier for Iceberg."""

    stays_because = ""

    def __init__(self, catalogs: IcebergCatalogs, reach: Callable[[TableView], IcebergReachability]) -> None:
        self._catalogs, self._reach = catalogs, reach

    def find(self, view: TableView, catalog: str) -> ColdHome | None:
        return find(self._catalogs, view, catalog)

    def closure(self, view: TableView, snapshot_ids: Collection[int]) -> pa.Table:
        return self._reach(view).closure(snapshot_ids)

    def check(self, view: TableView, files: pa.Table) -> None:
        for path in _of_kind(files, _DELETES)["path"].to_pylist():
            if not path.endswith(_REHOMED_DELETES):
                raise Refused(
                    action="hand off",
                    target=view.ref,
                    reason=f"{path} names data files but is not a Parquet file: its paths cannot be changed",
                    hint="apply its deletes first: `lakewarden run compact-deletes`",
                )

    def order(self, files: pa.Table) -> list[Copying]:
        """Data files first, then the files that name them: the copy of a manifest contains the sizes of the copied delete files."""
        deletes, manifests, lists = (
            _of_kind(files, each) for each in (_DELETES, "manifest", "manifest-list")
        )
        rest = pc.invert(pc.is_in(files["kind"], pa.array([_DELETES, "manifest", "manifest-list"])))
        return [
            Copying(files.filter(rest)),
            Copying(deletes, "deletes"),
            Copying(manifests, "manifest", tuple(deletes["path"].to_pylist()), instant=True),
            Copying(lists, "manifest-list", tuple(manifests["path"].to_pylist()), instant=True),
        ]

    def may_name(self, path: str) -> bool:
        return path.endswith(_REHOMED_DELETES)

    def rehome(self, view: TableView, home: ColdHome) -> Callable[[str], str]:
        return rehome(view, home)


def _of_kind(files: pa.Table, kind: str) -> pa.Table:
    return files.filter(pc.equal(files["kind"], kind))


def find(catalogs: IcebergCatalogs, view: TableView, catalog: str) -> ColdHome | None:
    """The cold table; None if it does not exist yet. Raises Refused if another table has its name."""
    ref = TableRef(catalog, view.ref.namespace, view.ref.name)
    there = session_catalogs(catalogs.spark)
    if catalog not in there:
        reason = f"no Iceberg catalog {catalog} is configured; configured: {', '.join(there)}"
        raise PolicyError(key="handoff_catalog", reason=reason)
    try:
        table = catalogs.sought(ref)
    except NoSuchTable:
        return None
    if not catalogs.cold.replaceable(table):
        raise Refused(
            action="hand off to",
            target=ref,
            reason="a REST catalog accepts only single changes of a table, and no change can add an old snapshot",
            hint="name a Hadoop, JDBC, Hive or Glue catalog: policy key handoff_catalog",
        )
    metadata = json.loads(catalogs.bridge.metadata(table))
    refuse_other(ref, view, metadata.get("properties", {}).get(COLD_SOURCE_UUID))
    return ColdHome(
        ref,
        str(metadata["location"]).rstrip("/"),
        frozenset(int(each["snapshot-id"]) for each in metadata.get("snapshots", ())),
        io_properties(catalogs, table),
    )


def make(catalogs: IcebergCatalogs, view: TableView, catalog: str) -> ColdHome:
    """The cold table. Creates an empty one if there is none."""
    home = find(catalogs, view, catalog)
    if home is not None:
        return home
    ref = TableRef(catalog, view.ref.namespace, view.ref.name)
    properties = {
        COLD_SOURCE: str(view.ref),
        COLD_SOURCE_UUID: view.uuid,
        "gc.enabled": "false",  # no procedure of any tool may delete its files
        "format-version": str(view.format_version),
    }
    catalogs.cold.make(
        _catalog(catalogs, catalog),
        json.dumps([*ref.namespace, ref.name]),
        catalogs.load(view.ref),
        json.dumps(properties),
    )
    created = find(catalogs, view, catalog)
    assert created is not None, "it was made a moment ago"
    return created


def _catalog(catalogs: IcebergCatalogs, name: str) -> Any:
    return catalogs.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
        catalogs.spark._jsparkSession, name
    )


def register(
    catalogs: IcebergCatalogs,
    view: TableView,
    home: ColdHome,
    snapshot_ids: Collection[int],
    tags: Iterable[Ref],
) -> None:
    """Adds these snapshots to the cold table, in one commit. CommitLost: nothing changed."""
    table = catalogs.load(home.ref)
    cold = json.loads(catalogs.bridge.metadata(table))
    live = json.loads(catalogs.bridge.metadata(catalogs.load(view.ref)))
    before = catalogs.bridge.metadataLocation(table)
    lost = set(snapshot_ids) - {int(each["snapshot-id"]) for each in (*_of(cold), *_of(live))}
    if lost:
        raise CommitLost(table=home.ref, reason=f"{view.ref} no longer has snapshot {min(lost)}")
    metadata = merged(cold, live, frozenset(snapshot_ids), tuple(tags), rehome(view, home), before)
    _replace(catalogs, home, table, before, metadata)
    now = find(catalogs, view, home.ref.catalog)
    if now is None or not now.snapshots.issuperset(snapshot_ids):
        raise CommitLost(
            table=home.ref, reason="its catalog accepted the commit but does not show the snapshots"
        )


def release(
    catalogs: IcebergCatalogs, view: TableView, home: ColdHome, snapshot_ids: Collection[int]
) -> None:
    """Removes these snapshots from the cold table, in one commit. CommitLost: nothing changed."""
    table = catalogs.load(home.ref)
    cold, before = json.loads(catalogs.bridge.metadata(table)), catalogs.bridge.metadataLocation(table)
    _replace(catalogs, home, table, before, without(cold, frozenset(snapshot_ids), before))
    now = find(catalogs, view, home.ref.catalog)
    if now is None or not now.snapshots.isdisjoint(snapshot_ids):
        raise CommitLost(
            table=home.ref, reason="its catalog accepted the commit but still shows the snapshots"
        )


def _replace(
    catalogs: IcebergCatalogs, home: ColdHome, table: Any, before: str, made: Mapping[str, Any]
) -> None:
    try:
        catalogs.cold.replace(table, before, json.dumps(made))
    except JavaError as error:
        if is_java(error, "CommitStateUnknownException"):
            raise CommitUnknown(table=home.ref, reason=java_reason(error)) from error
        raise CommitLost(table=home.ref, reason=java_reason(error)) from error


def _of(metadata: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return metadata.get("snapshots") or ()


def merged(
    cold: Mapping[str, Any],
    live: Mapping[str, Any],
    snapshot_ids: frozenset[int],
    tags: Sequence[Ref],
    move: Callable[[str], str],
    before: str,
) -> dict[str, Any]:
    """The metadata of the cold table plus these snapshots of the live table. Pure.

    Schemas, specs and sort orders of both tables are kept under their ids; none is ever removed.
    """
    had = {int(snapshot["snapshot-id"]): snapshot for snapshot in _of(cold)}
    # A newly created table has its own column ids, which differ from those in the live table's files.
    sources = (cold, live) if had else (live,)
    for each in _of(live):
        id_ = int(each["snapshot-id"])
        if id_ in snapshot_ids and id_ not in had:
            had[id_] = {**each, "manifest-list": move(each["manifest-list"])}
    snapshots = sorted(had.values(), key=lambda each: (each.get("sequence-number", 0), each["timestamp-ms"]))
    log = _log(cold, live)
    head = next((id_ for _, id_ in reversed(log) if id_ in had), int(snapshots[-1]["snapshot-id"]))
    made: dict[str, Any] = {
        **live,
        **{key: max(cold.get(key, 0), live[key]) for key in _GROWS if key in live},
        "table-uuid": cold["table-uuid"],
        "location": cold["location"],
        "properties": _properties(cold, live),
        "snapshots": snapshots,
        "current-snapshot-id": head,
        "refs": {
            **_tags(cold, [tag for tag in tags if tag.snapshot_id in had]),
            "main": {"snapshot-id": head, "type": "branch"},
        },
        "snapshot-log": [{"timestamp-ms": at, "snapshot-id": id_} for at, id_ in log],
        "metadata-log": [
            *cold.get("metadata-log", ()),
            {"timestamp-ms": cold["last-updated-ms"], "metadata-file": before},
        ],
        "statistics": [],
        "partition-statistics": [],
    }
    for name, key in _BY_ID:
        by_id = {each[key]: each for source in sources for each in source.get(name, ())}
        made[name] = [by_id[id_] for id_ in sorted(by_id)]
    return made


def _log(cold: Mapping[str, Any], live: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The snapshot log of both tables: when each snapshot was current. Time travel by timestamp uses it.

    It includes snapshots that the cold table does not have. A query for such a time then fails; without the entry, it
    would return the rows of an earlier snapshot.
    """
    logs = (*cold.get("snapshot-log", ()), *live.get("snapshot-log", ()))
    return sorted({(int(log["timestamp-ms"]), int(log["snapshot-id"])) for log in logs})


def _tags(cold: Mapping[str, Any], tags: Sequence[Ref]) -> dict[str, Any]:
    """The tags. A name that several snapshots had goes to the newest; the older tag gets its snapshot id as a suffix."""
    refs = {name: each for name, each in cold.get("refs", {}).items() if name != "main"}
    for tag in tags:
        earlier = refs.get(tag.name)
        if earlier is not None and earlier["snapshot-id"] != tag.snapshot_id:
            refs.setdefault(f"{tag.name}-{earlier['snapshot-id']}", earlier)
        refs[tag.name] = {"snapshot-id": tag.snapshot_id, "type": "tag"}
    return refs


def _properties(cold: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, str]:
    """The live table's properties without its folders: otherwise new metadata files would be orphans in the live table."""
    properties = {key: value for key, value in live.get("properties", {}).items() if key not in _WHERE}
    return {**properties, **cold.get("properties", {})}


def without(cold: Mapping[str, Any], snapshot_ids: frozenset[int], before: str) -> dict[str, Any]:
    """The metadata of the cold table without these snapshots and their tags. Pure.

    The snapshot log keeps them: a query for their time then fails because the snapshot is missing.
    """
    stays = {
        snapshot["snapshot-id"]: snapshot
        for snapshot in _of(cold)
        if int(snapshot["snapshot-id"]) not in snapshot_ids
    }
    log = [int(each["snapshot-id"]) for each in cold.get("snapshot-log", ())]
    head = next((id_ for id_ in reversed(log) if id_ in stays), next(reversed(stays), -1))
    refs = {
        name: each
        for name, each in cold.get("refs", {}).items()
        if name != "main" and int(each["snapshot-id"]) in stays
    }
    return {
        **cold,
        "snapshots": [*stays.values()],
        "current-snapshot-id": head,
        "refs": {**refs, **({"main": {"snapshot-id": head, "type": "branch"}} if stays else {})},
        "metadata-log": [
            *cold.get("metadata-log", ()),
            {"timestamp-ms": cold["last-updated-ms"], "metadata-file": before},
        ],
    }
