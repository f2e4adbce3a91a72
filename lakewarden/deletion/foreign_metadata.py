"""Decides about metadata files in a table's folders that the table does not name. Each belongs to another table,
to a claim of the operator or to a failed commit; only the last two let a deletion go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakewarden import clock
from lakewarden.deletion.ownership import check_one_history, check_ownership
from lakewarden.model.location import Location
from lakewarden.model.table import TableView
from lakewarden.state.database import State
from lakewarden.state.trash import TrashedFiles
from lakewarden.storage.objects import Objects
from lakewarden.tables.metadata_files import (
    ForeignMetadataCache,
    document_of,
    foreign_metadata,
    forks,
    manifest_lists,
    place_of,
    states_around,
    strays_in_metadata_folders,
    whose,
    without_ancestors,
)
from lakewarden.tables.places import Places, TableMetadataFile, roots

# The longest time between two commits that raced each other: a catalog may take this long over one commit.
_RACE_MS = 600_000
# Seconds to wait for a commit that is in progress. After that it is finished, or it waits for something slow.
_WAITS = (0.5, 2.0)


def refuse_foreign(action: str, view: TableView, state: State, known: ForeignMetadataCache) -> None:
    """Refuses if the table's folders hold metadata of another format: then another tool owns the files in them.

    Iceberg metadata beside a Paimon table counts too, unless the table publishes it itself or an operator has
    claimed it.
    """
    refuse_other_formats(action, view)
    if view.format == "paimon":
        strays = strays_in_metadata_folders(Objects(view.io), view, Places(), known)
        check_ownership(action, view, (), unclaimed(state, view, strays))


def refuse_other_formats(action: str, view: TableView) -> None:
    """The same check for metadata that no operator can claim: its files say that the whole folder belongs to another tool."""
    check_ownership(action, view, (), foreign_metadata(Objects(view.io), view))


def unclaimed(state: State, view: TableView, strays: Sequence[TableMetadataFile]) -> list[TableMetadataFile]:
    """Drop the files that an operator has claimed. A claim is for a place and a uuid: another table's file of
    the same name does not match.
    """
    if not strays:
        return []
    claimed = {(Location.of(path), uuid) for path, uuid in TrashedFiles(state).claimed(view.uuid)}
    return [each for each in strays if (Location.of(each.path), each.uuid or "") not in claimed]


def settled(
    objects: Objects,
    view: TableView,
    strays: Sequence[TableMetadataFile],
    look: Callable[[], TableView],
    *,
    whole: bool = True,
) -> list[TableMetadataFile]:
    """Drop the metadata files of failed commits, and earlier states of the table that its log no longer names.

    A writer puts its metadata file in place before the catalog points to it, and deletes the file if another
    writer was faster. A commit that succeeded is an ancestor of the table as `look` reads it. With `whole`,
    files older than the log are judged too, by the logs of earlier metadata files.
    """
    remaining = _written(objects, strays)
    for wait in _WAITS:
        remaining = without_ancestors(objects, view, remaining, whole=whole)
        under_way = forks(view, remaining)
        if not under_way:
            return remaining
        clock.sleep(wait)
        view = look()
        stats = objects.stat([each.path for each in under_way])
        gone = {each.path for each, stat in zip(under_way, stats, strict=True) if stat is None}
        remaining = [each for each in remaining if each.path not in gone]
    dead = {each.path for each in forks(view, remaining) if _is_dead(objects, view, each)}
    return [each for each in remaining if each.path not in dead]


def _written(objects: Objects, strays: Sequence[TableMetadataFile]) -> list[TableMetadataFile]:
    """Read files with incomplete content again: on a disk, a commit that is in progress shows half of its file."""
    files = list(strays)
    for wait in _WAITS:
        half = [each for each in files if each.uuid is None and each.format == "iceberg"]
        if not half:
            break
        clock.sleep(wait)
        again = [whose(each.path, objects.read) for each in half]
        files = [*(each for each in files if each not in half), *(each for each in again if each)]
    return files


def _is_dead(objects: Objects, view: TableView, file: TableMetadataFile) -> bool:
    """Whether a commit that lost a race left this metadata file: no table needs anything that only this file
    names.

    A failed commit and a table that another catalog once moved leave the same file. The files that the commit
    added show the difference: only a writer that cleans up after a failure deletes the snapshot's manifest
    list. The file's age proves nothing: another catalog's table may be unchanged for months. A commit that
    added nothing lost a race if the table's own next state was written within minutes of it.
    """
    try:
        document = document_of(objects.read(file.path, 0, None))
    except FileNotFoundError:
        return True
    lists = manifest_lists(document)
    if lists is None:
        return False
    known = {place_of(each.id, each.manifest_list) for each in view.snapshots if each.manifest_list}
    around, winner_ms = states_around(objects, view, document)
    known |= around
    # A retried commit kept its snapshot's id and wrote another manifest list.
    own = {id_: place for id_, place in lists.items() if place_of(id_, place) not in known}
    if not own:
        at = file.updated_ms
        return winner_ms is not None and at is not None and abs(at - winner_ms) < _RACE_MS
    if document.get("current-snapshot-id") not in own:
        return False
    # These credentials may not be able to see a place outside the table.
    folders = [Location.of(each) for each in roots(view).values()]
    if not all(any(Location.of(place).inside(each) for each in folders) for place in own.values()):
        return False
    return all(each is None for each in objects.stat(list(own.values())))


def refuse_forked(
    action: str,
    view: TableView,
    places: Places,
    look: Callable[[], TableView],
    state: State,
    known: ForeignMetadataCache,
) -> None:
    """Refuses if the table has metadata that is not an earlier state of the catalog's current metadata: another
    catalog may change the table too.
    """
    objects = Objects(view.io)
    strays = unclaimed(state, view, strays_in_metadata_folders(objects, view, places, known))
    # Callers of this function delete no files, so the log alone is enough. Purge looks further back.
    found = settled(objects, view, strays, look, whole=False)
    if forks(view, found):
        check_one_history(action, look(), found)
