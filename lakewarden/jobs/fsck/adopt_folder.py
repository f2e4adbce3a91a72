"""Lets an operator claim metadata that a dropped table or a failed commit left in a table's folder.

Sweep and purge refuse a folder with metadata of two tables, or of two histories of one table; only people know that one of them
is gone. Claimed files go to the trash like any others: they wait for the grace period, `restore` undoes the claim, and purge
proves each file again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakewarden import clock
from lakewarden.deletion.foreign_metadata import refuse_other_formats, settled, unclaimed
from lakewarden.deletion.lake_index import Neighbours
from lakewarden.deletion.ownership import check_ownership
from lakewarden.errors import Refused
from lakewarden.jobs.cold.table import refuse_frozen
from lakewarden.jobs.deps import JobDeps, places_of
from lakewarden.model.location import Location
from lakewarden.model.plain import pick
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.state.runs import new_run_id
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import CLAIMED
from lakewarden.storage.objects import Objects
from lakewarden.tables.interface import TableFormat
from lakewarden.tables.metadata_files import strays_in_metadata_folders
from lakewarden.tables.places import TableMetadataFile

_ACTION = "adopt the folder of"


@dataclass(frozen=True, slots=True)
class Claim:
    """Metadata files that were or would be claimed. `batch` is the deletion batch; None if nothing was changed."""

    table: TableRef
    files: tuple[TableMetadataFile, ...]
    operator: str
    batch: str | None = None

    def to_dict(self) -> dict[str, Any]:
        files = [pick(each, "path uuid location") for each in self.files]
        return {**pick(self, "table operator batch"), "files": files}


def claim(
    deps: JobDeps,
    format_: TableFormat,
    ref: TableRef,
    policy_of: Callable[[TableView], Policy],
    operator: str,
    *,
    do: bool,
) -> Claim:
    """The foreign metadata in the table's metadata folders, which blocks sweep and purge. With `do` it is trashed.

    Raises Refused if the metadata belongs to an existing table. Metadata of other formats is never claimed: it means that the
    whole folder belongs to the other format.
    """
    view = format_.view(ref)
    refuse_frozen(_ACTION, view, deps.state)
    refuse_other_formats(_ACTION, view)
    own, others = Neighbours(_ACTION, deps.lake, view).read()
    places = places_of(deps, policy_of(own))
    check_ownership(_ACTION, own, others, (), places)
    objects = Objects(own.io)
    strays = strays_in_metadata_folders(objects, own, places, deps.lake.strays)
    foreign = unclaimed(deps.state, own, strays)
    files = tuple(
        each for each in settled(objects, own, foreign, lambda: format_.view(ref)) if _stops(own, each)
    )
    _refuse_living(own, others, files)
    _refuse_restored(deps, own, files)
    if not files or not do:
        return Claim(ref, files, operator)
    return Claim(ref, files, operator, _mark(deps, own, objects, files, operator))


def _stops(view: TableView, found: TableMetadataFile) -> bool:
    try:
        check_ownership(_ACTION, view, (), [found])
    except Refused:
        return True
    return False


def _refuse_living(view: TableView, others: Sequence[TableView], files: Sequence[TableMetadataFile]) -> None:
    """Raises if the metadata belongs to a table that a catalog still has, even if its location is elsewhere now."""
    living = {other.uuid: other.ref for other in others if other.uuid != view.uuid}
    for file in files:
        if file.uuid in living:
            raise Refused(
                action=_ACTION,
                target=view.ref,
                reason=f"{file.path} is metadata of {living[file.uuid]} (uuid {file.uuid}), which its catalog still has",
                hint="nothing was changed; move one of the two tables to another folder",
            )


def _refuse_restored(deps: JobDeps, view: TableView, files: Sequence[TableMetadataFile]) -> None:
    """Raises for restored files: they stay, and no claim can trash them again."""
    pages = TrashedFiles(deps.state).restored_paths(view.uuid)
    restored = {Location.of(path) for page in pages for path in page.to_pylist()}
    for file in files:
        if Location.of(file.path) in restored:
            raise Refused(
                action=_ACTION,
                target=view.ref,
                reason=f"{file.path} was claimed before and restored, and a restored file cannot be trashed again",
                hint="nothing was changed; if no table needs the file, move it out of the folder by hand",
            )


def _mark(
    deps: JobDeps, view: TableView, objects: Objects, files: Sequence[TableMetadataFile], operator: str
) -> str:
    paths = [file.path for file in files]
    now = objects.look(paths)
    marked = pa.table(
        {
            "path": pa.array(paths, pa.string()),
            "kind": pa.array(["metadata"] * len(paths), pa.string()),
            "size": now["size"],
            "stamp": now["stamp"],
        }
    )
    batch, trashed = new_run_id(clock.now()), TrashedFiles(deps.state)
    detail = {"operator": operator, "uuids": {file.path: file.uuid or "" for file in files}}
    left_by = (
        "a dropped table" if any(file.uuid != view.uuid for file in files) else "another history of the table"
    )
    reason = f"metadata that {left_by} left, claimed by {operator}"
    trashed.trash(batch, str(view.ref), view.uuid, CLAIMED, reason, marked, detail, clock.now())
    trashed.enforce(batch, clock.now())
    return batch
