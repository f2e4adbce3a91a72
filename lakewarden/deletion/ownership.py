"""Checks that the files in a table's folders belong to that table before any file counts as unneeded. Location
is not ownership.

The caller has already read the other tables and the stray metadata files. The functions here only ask this
machine's disk which folders are the same folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lakewarden.config.aliases import Aliases, Disk
from lakewarden.errors import Refused
from lakewarden.model.location import Location, inside, same
from lakewarden.model.table import TableView
from lakewarden.tables.metadata_files import forks, is_ahead
from lakewarden.tables.places import NO_HOMES, Places, TableMetadataFile, roots

# The tool that looks after tables of each format.
TOOLS = {
    "iceberg": "Apache Iceberg",
    "paimon": "Apache Paimon",
    "delta": "Delta Lake",
    "hudi": "Apache Hudi",
}
# A Paimon table with this option writes Iceberg metadata about itself, so that Iceberg readers can read it.
PUBLISHES = "metadata.iceberg.storage"


def check_ownership(
    action: str,
    view: TableView,
    others: Sequence[TableView],
    found: Sequence[TableMetadataFile] = (),
    places: Places = NO_HOMES,
) -> None:
    """Refuses if files in this table's folders may belong to another table. The message names both tables and
    both places.

    `others` are all tables of all catalogs, with or without this one; `found` are metadata files in its
    folders.
    """
    disk = Disk(strict=False)
    for other in others:
        if other.ref == view.ref and other.uuid == view.uuid:
            continue
        if other.uuid == view.uuid:
            _check_same_table(action, view, other)
        elif not _publishes(view, other):
            _check_apart(action, view, other, places, disk)
    check_one_history(action, view, found)
    for each in found:
        _check_own(action, view, each)


def check_one_history(action: str, view: TableView, found: Sequence[TableMetadataFile]) -> None:
    """Refuses if a metadata file of this table is neither the catalog's current one nor an ancestor of it.

    Then another catalog also changes the table, or the catalog was reset to an earlier state, or a failed
    commit left the file. In the first two cases the file is in use, and it may name files that this catalog
    does not know, or no longer knows.
    """
    for each in forks(view, found):
        newer = "newer " if is_ahead(view, each) else ""
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"{each.path} is {newer}metadata of this very table (uuid {view.uuid}), but not an earlier state of "
            f"{view.metadata_location}, its current metadata file in catalog {view.ref.catalog}",
            hint="nothing was changed; if another catalog has this table, remove the table from one of the two catalogs and keep its files; "
            f"if a commit failed and left the file, or the table was set back, and no catalog uses the file, {_adopt(view)}",
        )


def is_same(one: TableView, other: TableView) -> bool:
    """Whether two names lead to one table, and the table has one pointer (or had one when both were read)."""
    same_file = same(one.metadata_location, other.metadata_location)
    return one.uuid == other.uuid and same_file and one.version == other.version


def _check_same_table(action: str, view: TableView, other: TableView) -> None:
    """Refuses a table under two names with two metadata files: then each catalog changes its own. With one
    metadata file it is one table.
    """
    if is_same(view, other):
        return
    raise Refused(
        action=action,
        target=view.ref,
        reason=f"{other.ref} is the same table (uuid {view.uuid}) with metadata of its own: "
        f"{view.metadata_location} and {other.metadata_location}; each may need files the other dropped",
        hint="drop the registration that is no longer used from its catalog, keeping the files; then run again",
    )


def _check_apart(action: str, view: TableView, other: TableView, places: Places, disk: Disk) -> None:
    for mine, theirs in _overlaps(places.own(view), other, places, disk):
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"it shares a place with {other.ref}: {mine} and {theirs}",
            hint=f"move one of the two tables to a folder of its own; until then neither is cleaned (uuids {view.uuid}, {other.uuid})",
        )


def _overlaps(
    mine: Mapping[str, str], other: TableView, places: Places, disk: Disk
) -> Iterator[tuple[str, str]]:
    """Places that both tables use. Of the other table, only its home place counts: counting every folder that its
    writer names could stop all deletion in the lake (see `shared`). Files that it names are in every proof.
    """
    home = places.home(other)
    home_place = Location.of(home)
    if places.inherits(other) and not any(inside(other.location, each) for each in (home, *mine.values())):
        return  # a new table took the name of an old one: it has another location
    for name, place in mine.items():
        names = places.aliases.covering(place)
        if any(each.may_overlap(home_place) for each in names) or disk.overlap(place, home):
            yield f"{place} ({name})", f"{home} (location)"


def shared(view: TableView, others: Sequence[TableView], places: Places) -> dict[str, str]:
    """Folders inside the table's own places that other tables' writers name, each with that table and the name
    it uses.

    No file in them is known to be an orphan of this table.
    """
    disk, own, named = Disk(strict=False), places.own(view).values(), dict[str, str]()
    for other in others:
        if other.uuid == view.uuid or _publishes(view, other):
            continue
        home = places.home(other)
        for name, place in roots(other).items():
            if same(place, home):
                continue
            for each in own:
                folder = _part(each, place, places.aliases, disk)
                if folder is not None:
                    named.setdefault(folder, f"{other.ref} by {name}")
    return named


def _part(own: str, place: str, aliases: Aliases, disk: Disk) -> str | None:
    """The part of an own place that equals the other place. If the other place has another name there, any part
    is possible, so the whole place is returned.
    """
    spelled = next((each for each in aliases.spellings(place) if inside(each, own)), None)
    if spelled is not None:
        return spelled
    other_place = Location.of(place)
    may = any(other_place.may_be_inside(each) for each in aliases.covering(own)) or disk.lies_in(place, own)
    return own if may else None


def _check_own(action: str, view: TableView, file: TableMetadataFile) -> None:
    if not _lies_in(view, file.path):
        return
    if file.format != view.format and not _is_published(view, file):
        raise _foreign(action, view, file)
    if file.uuid == view.uuid or file.format != view.format:
        return
    if file.uuid is not None:
        reason = f"{file.path} is the metadata of another table (uuid {file.uuid}, at {file.location or 'an unknown location'}); this one is {view.uuid} at {view.location}"
    elif file.location is not None and same(file.location, view.location):
        return  # format version 1 did not require a uuid; the location is this table's
    else:
        where = file.location or "no location"
        reason = f"{file.path} names {where} and no uuid, so its owner is not known; this table is {view.uuid} at {view.location}"
    raise Refused(
        action=action,
        target=view.ref,
        reason=reason,
        hint=f"if that table is still used, move it to a folder of its own; if it was dropped, {_adopt(view)}",
    )


def _publishes(view: TableView, other: TableView) -> bool:
    """Whether an Iceberg table of some catalog is the one that this Paimon table publishes about itself.

    Such a table is part of every proof: the files that it names stay.
    """
    return _is_published(view, TableMetadataFile(other.metadata_location, None, other.location, other.format))


def _is_published(view: TableView, file: TableMetadataFile) -> bool:
    """Whether the Iceberg metadata in a Paimon table's folder is what the table itself publishes for Iceberg readers."""
    asked = view.format == "paimon" and view.properties.get(PUBLISHES, "disabled") != "disabled"
    here = file.location is not None and same(file.location, view.location)
    return asked and file.format == "iceberg" and here


def _adopt(view: TableView) -> str:
    return f"`lakewarden fsck '{view.ref}' --adopt-folder` lists these files; with `--yes` it marks them for deletion"


def _foreign(action: str, view: TableView, file: TableMetadataFile) -> Refused:
    tool, own = TOOLS[file.format], TOOLS[view.format]
    if file.format == "iceberg":
        return Refused(
            action=action,
            target=view.ref,
            reason=f"{file.path} is metadata of an {tool} table in the folder of this {own} table, which publishes none "
            f"({PUBLISHES} is {view.properties.get(PUBLISHES, 'not set')}): another table may need files here",
            hint=f"if that table is still used, move it to a folder of its own; if this table published it earlier, {_adopt(view)}",
        )
    return Refused(
        action=action,
        target=view.ref,
        reason=f"{file.path} is metadata of {tool}: the folder is a table of {tool}, which may need every file in it, "
        f"and {own} only shows it",
        hint=f"look after it with {tool}"
        + (" (configure its Paimon catalog)" if file.format == "paimon" else "")
        + f"; if {tool} no longer uses the folder, move its metadata out of it, then run again",
    )


def _lies_in(view: TableView, path: str) -> bool:
    place = Location.of(path)
    return any(place.may_be_inside(Location.of(each)) for each in roots(view).values())
