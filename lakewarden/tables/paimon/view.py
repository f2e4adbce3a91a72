"""Builds the view of a Paimon table from its metadata files only. Also reads the data files of a snapshot in
bulk, and the changes of a past snapshot: its data files compared with those of the snapshot before it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.clock import from_millis
from lakewarden.model.files import DeleteFile, FileSet, Partition
from lakewarden.model.table import (
    Changelogs,
    Counters,
    PartitionField,
    PartitionSpec,
    Ref,
    Snapshot,
    TableRef,
    TableView,
    cold_properties,
)
from lakewarden.tables.interface import DataFile, FilesWithDeletes, ReplacedFiles
from lakewarden.tables.jvm import JavaError
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.errors import catalog_error
from lakewarden.tables.paimon.metadata import (
    MAIN,
    PaimonMetadata,
    PaimonRoot,
    made_cold,
    main_snapshots,
    newest_run,
)

_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Handle:
    """What only the Paimon code needs of a view: the metadata it was made from, and options of the table."""

    metadata: PaimonMetadata
    decoupled: bool  # changelogs may stay longer than their snapshots
    produces_changelogs: bool
    index_beside_data: bool


def view_of(ref: TableRef, told: Mapping[str, Any], metadata: PaimonMetadata) -> TableView:
    """The view from the library's description of the table and from its metadata files."""
    schema = told["schema"]
    # Snapshots before a gap are the rest of an expiry that stopped. In a cold table, a gap means that another tool had expired them.
    run = main_snapshots(metadata.roots) if made_cold(metadata.first_schema) else newest_run(metadata.roots)
    before = {root.id for root in run}
    head = run[-1] if run else None
    return TableView(
        ref=ref,
        format="paimon",
        format_version=_FORMAT_VERSION,
        uuid=metadata.uuid,
        location=metadata.location,
        metadata_location=head.file if head else f"{metadata.location}/schema/schema-{schema['id']}",
        current_snapshot_id=head.id if head else None,
        snapshots=tuple(_snapshot(root, first=root.id - 1 not in before) for root in run),
        refs=tuple(_refs(metadata, head)),
        schema_id=schema["id"],
        schema_json=json.dumps(schema),
        specs=(_spec(schema),),
        current_spec_id=0,
        sort_orders=(),
        current_sort_order_id=0,
        properties=_options(told["options"], metadata),
        counters=_counters(head, len(run)),
        metadata_log=metadata.files,
        in_order=True,
        keyed=bool(schema.get("primaryKeys")),
        version=metadata.version,
        changelogs=_changelogs(metadata, told["changelogs"], decoupled=bool(told["decoupled"])),
        handle=Handle(
            metadata,
            bool(told["decoupled"]),
            bool(told["changelogs"]["produced"]),
            bool(told["index_beside_data"]),
        ),
    )


def _snapshot(root: PaimonRoot, *, first: bool) -> Snapshot:
    content = root.content
    written = {
        "commit-user": content.get("commitUser"),
        "commit-identifier": content.get("commitIdentifier"),
        "total-records": content.get("totalRecordCount"),
        "delta-records": content.get("deltaRecordCount"),
    }
    summary = {key: str(value) for key, value in written.items() if value is not None}
    return Snapshot(
        id=root.id,
        parent_id=None if first else root.id - 1,
        sequence_number=root.id,
        committed_at=from_millis(content["timeMillis"]),
        operation=str(content["commitKind"]).lower(),
        summary=summary | dict(content.get("properties") or {}),
        manifest_list=root.file,
    )


def _options(told: Mapping[str, str], metadata: PaimonMetadata) -> Mapping[str, str]:
    """The table's options. Only the first schema, which hand-off wrote, decides whether it is a cold table, never a later option."""
    first = (
        cold_properties(metadata.first_schema.get("options") or {})
        if made_cold(metadata.first_schema)
        else {}
    )
    return {name: each for name, each in told.items() if name not in cold_properties(told)} | first


def _refs(metadata: PaimonMetadata, head: PaimonRoot | None) -> list[Ref]:
    """The tags, branches and consumers. Tags and branches have their own copies of snapshots, so main may expire them."""
    refs = [Ref(MAIN, "branch", head.id)] if head else []
    refs += [
        Ref(root.name, "tag", root.id, has_copy=True, ends_at=_ends(root))
        for root in metadata.roots
        if root.kind == "tag" and root.branch == MAIN
    ]
    for branch in metadata.branches:
        heads = [root.id for root in metadata.roots if root.branch == branch and root.kind == "snapshot"]
        if heads:
            refs.append(Ref(branch, "branch", max(heads), has_copy=True))
    refs += [Ref(name, "consumer", following) for name, following in metadata.consumers.items()]
    return refs


def _changelogs(metadata: PaimonMetadata, told: Mapping[str, Any], *, decoupled: bool) -> Changelogs:
    return Changelogs(
        {
            root.id: from_millis(root.content["timeMillis"])
            for root in metadata.roots
            if root.kind == "changelog" and root.branch == MAIN
        },
        decoupled,
        timedelta(milliseconds=told["millis"]),
        told["at_least"],
        told["at_most"],
        told["at_once"],
    )


def _ends(tag: PaimonRoot) -> datetime | None:
    """When the tag expires. Paimon counts from its creation time, which is in the writer's time zone, without naming the zone.

    So the modification time of the file counts as well: the later of the two is used.
    """
    created, retained = tag.content.get("tagCreateTime"), tag.content.get("tagTimeRetained")
    if created is None or retained is None:
        return None
    year, month, day, hour, minute, *rest = (int(part) for part in created)
    second, nanos = (*rest, 0, 0)[:2]
    moment = datetime(year, month, day, hour, minute, second, nanos // 1000).astimezone(UTC)
    begins = moment if tag.written_at is None else max(moment, tag.written_at)
    return begins + timedelta(seconds=float(retained))


def _spec(schema: Mapping[str, Any]) -> PartitionSpec:
    ids = {each["name"]: each["id"] for each in schema["fields"]}
    fields = [
        PartitionField(ids[name], ids[name], name, "identity") for name in schema.get("partitionKeys", ())
    ]
    return PartitionSpec(0, tuple(fields))


def _counters(head: PaimonRoot | None, snapshots: int) -> Counters:
    records = int(head.content.get("totalRecordCount") or 0) if head else 0
    return Counters(records=records, snapshots=snapshots)


# Bytes around a deletion vector: its length before it, its checksum after it.
_FRAME = 8


def read_files(catalogs: PaimonCatalogs, ref: TableRef, snapshot_id: int) -> FileSet:
    """All live data files as Arrow. The JVM writes them to one local stream file.

    Each bucket of a partition counts as an own partition for the planner, so that an output never mixes files of two buckets.
    """
    table = catalogs.load(ref)
    with tempfile.TemporaryDirectory(prefix="lakewarden-") as folder:
        stream = Path(folder) / "files.arrow"
        try:
            scan = catalogs.files.scan(table, snapshot_id, str(stream))
        except JavaError as error:
            # An unreadable manifest stops the plan: a partial file list is worse than none.
            raise catalog_error(error, f"the metadata of {ref}") from error
        files = pa.ipc.open_stream(stream.read_bytes()).read_all()
    partitions = tuple(
        Partition(number, 0, each["path"], tuple(each["values"]))
        for number, each in enumerate(json.loads(scan.places()))
    )
    deletes = tuple(_vector(each) for each in json.loads(scan.deletes()))
    return FileSet(snapshot_id, partitions, files, scan, deletes, ordered=bool(scan.ordered()))


def _vector(row: dict[str, Any]) -> DeleteFile:
    return DeleteFile(
        key=f"{row['path']}#{row['offset']}",
        kind="vector",
        path=row["path"],
        format="paimon",
        bytes=row["length"] + _FRAME,
        records=row["records"] or -1,
        sequence_number=0,
        content_offset=row["offset"],
        content_size=row["length"] + _FRAME,
    )


def read_replaced(catalogs: PaimonCatalogs, view: TableView, snapshot_id: int) -> ReplacedFiles:
    after = read_files(catalogs, view.ref, snapshot_id)
    if view.snapshot(snapshot_id - 1) is None:
        missing = f"snapshot {snapshot_id - 1} before it has expired, so the removed files are unknown"
        return ReplacedFiles(
            _schema(catalogs, view, after, after), FilesWithDeletes(()), _files(after, None), missing
        )
    before = read_files(catalogs, view.ref, snapshot_id - 1)
    return ReplacedFiles(_schema(catalogs, view, after, before), _files(before, after), _files(after, before))


def _files(mine: FileSet, others: FileSet | None) -> FilesWithDeletes:
    """The files of one snapshot that the other does not have."""
    table = mine.files
    if others is not None:
        table = table.filter(pc.invert(pc.is_in(table["path"], others.files["path"].combine_chunks())))
    names = ("path", "format", "bytes", "records", "sequence_number", "row_groups", "encrypted", "deletes")
    rows = table.select(names).to_pylist()
    return FilesWithDeletes(
        tuple(DataFile(**{**row, "spec_id": 0, "deletes": tuple(row["deletes"])}) for row in rows),
        mine.deletes,
    )


def _schema(catalogs: PaimonCatalogs, view: TableView, after: FileSet, before: FileSet) -> str:
    """The schema of the newest added file."""
    paths = [file.path for file in _files(after, before).files]
    if not paths:
        return view.schema_json
    schema: str = catalogs.files.schemaOf(catalogs.load(view.ref), after.handle, json.dumps(paths))
    return schema
