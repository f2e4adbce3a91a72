"""The colder tier of an Iceberg table: another table, of another catalog, that has every snapshot that was handed off.

Its files lie where the catalog puts it, under the same names below its location as below the live table's. Manifests and
lists are the live table's own with other paths in them; its metadata is that of the live table, with the snapshots that were
handed off and no others. Ids, times, sequence numbers and schemas are the same, so time travel reads the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import CommitLost, CommitUnknown, NoSuchTable, PolicyError, Refused
from lakewarden.model.table import COLD_SOURCE, COLD_SOURCE_UUID, Ref, TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.cold import refuse_other, rehome
from lakewarden.tables.iceberg.catalog import Catalogs, session_catalogs
from lakewarden.tables.iceberg.reachability import Reach
from lakewarden.tables.iceberg.view import io_properties
from lakewarden.tables.interface import ColdHome, Copying
from lakewarden.tables.jvm import JavaError, is_java, java_reason
from lakewarden.tables.places import ELSEWHERE

# Of several lists of the metadata, the entry that tells which one it is.
_BY_ID = (("schemas", "schema-id"), ("partition-specs", "spec-id"), ("sort-orders", "order-id"))
# Where the live table writes.
_WHERE = (*ELSEWHERE, "write.object-storage.enabled", "write.location-provider.impl")
_DELETES, _REHOMED_DELETES = "position-deletes", (".parquet", ".puffin")
_GROWS = ("last-column-id", "last-sequence-number", "last-partition-id", "next-row-id", "last-updated-ms")


class IcebergCold:
    """Every promise of ColdTier."""

    stays_because = ""

    def __init__(self, catalogs: Catalogs, reach: Callable[[TableView], Reach]) -> None:
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
                    reason=f"{path} names data files and is no Parquet file: its paths cannot be changed",
                    hint="apply its deletes first: `lakewarden run compact-deletes`",
                )

    def order(self, files: pa.Table) -> list[Copying]:
        """Data first, then what names it: a manifest's copy tells the sizes that its delete files have there."""
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


def find(catalogs: Catalogs, view: TableView, catalog: str) -> ColdHome | None:
    """The cold table, where it has been made already. Refused where a table of that name is something else."""
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
            reason="a REST catalog takes changes of a table one by one, and old snapshots are none of them",
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


def make(catalogs: Catalogs, view: TableView, catalog: str) -> ColdHome:
    """The cold table; an empty one, where there was none."""
    found = find(catalogs, view, catalog)
    if found is not None:
        return found
    ref = TableRef(catalog, view.ref.namespace, view.ref.name)
    properties = {
        COLD_SOURCE: str(view.ref),
        COLD_SOURCE_UUID: view.uuid,
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
    lost = set(snapshot_ids) - {int(each["snapshot-id"]) for each in (*_of(cold), *_of(live))}
    if lost:
        raise CommitLost(table=home.ref, reason=f"{view.ref} no longer has snapshot {min(lost)}")
    made = merged(cold, live, frozenset(snapshot_ids), tuple(tags), rehome(view, home), before)
    _replace(catalogs, home, table, before, made)
    now = find(catalogs, view, home.ref.catalog)
    if now is None or not now.snapshots.issuperset(snapshot_ids):
        raise CommitLost(table=home.ref, reason="its catalog took the commit and does not show the snapshots")


def release(catalogs: Catalogs, view: TableView, home: ColdHome, snapshot_ids: Collection[int]) -> None:
    """One commit after which the cold table has these snapshots no longer. CommitLost: nothing changed."""
    table = catalogs.load(home.ref)
    cold, before = json.loads(catalogs.bridge.metadata(table)), catalogs.bridge.metadataLocation(table)
    _replace(catalogs, home, table, before, without(cold, frozenset(snapshot_ids), before))
    now = find(catalogs, view, home.ref.catalog)
    if now is None or not now.snapshots.isdisjoint(snapshot_ids):
        raise CommitLost(table=home.ref, reason="its catalog took the commit and still shows the snapshots")


def _replace(catalogs: Catalogs, home: ColdHome, table: Any, before: str, made: Mapping[str, Any]) -> None:
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
    """The cold table's metadata with these snapshots of the live one's. Pure.

    What the two tables share only grows: schemas, specs and orders of either are in it, under their ids.
    """
    had = {int(each["snapshot-id"]): each for each in _of(cold)}
    # A table that was only just made has numbers of its own for columns, which the live one's files do not know.
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
            **_tags(cold, [each for each in tags if each.snapshot_id in had]),
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
    """When each snapshot was current, of either table: what time travel by time goes by.

    Those that the cold table does not have are in it too. Asked for a moment of theirs it says that it has no such
    snapshot; without them it would answer with the rows of the one before.
    """
    logs = (*cold.get("snapshot-log", ()), *live.get("snapshot-log", ()))
    return sorted({(int(each["timestamp-ms"]), int(each["snapshot-id"])) for each in logs})


def _tags(cold: Mapping[str, Any], tags: Sequence[Ref]) -> dict[str, Any]:
    """A name is the newest snapshot's that had it; the one before keeps it with its id behind."""
    refs = {name: each for name, each in cold.get("refs", {}).items() if name != "main"}
    for tag in tags:
        earlier = refs.get(tag.name)
        if earlier is not None and earlier["snapshot-id"] != tag.snapshot_id:
            refs.setdefault(f"{tag.name}-{earlier['snapshot-id']}", earlier)
        refs[tag.name] = {"snapshot-id": tag.snapshot_id, "type": "tag"}
    return refs


def _properties(cold: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, str]:
    """The live table's, but for where it writes: the next metadata file would lie in its folders, an orphan to its sweep."""
    told = {key: value for key, value in live.get("properties", {}).items() if key not in _WHERE}
    return {**told, **cold.get("properties", {})}


def without(cold: Mapping[str, Any], snapshot_ids: frozenset[int], before: str) -> dict[str, Any]:
    """The cold table's metadata without these snapshots, and without the names that would lead nowhere then. Pure.

    When they were current is still told: asked for a moment of theirs, it says that it does not have the snapshot.
    """
    stays = {each["snapshot-id"]: each for each in _of(cold) if int(each["snapshot-id"]) not in snapshot_ids}
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
