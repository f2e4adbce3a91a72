"""Location is not ownership: whose files lie in a table's folders is asked before any of them is taken for unneeded.

Whoever calls has read the other tables and the metadata files that lie around. A disk of this machine is asked which folders
are one, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakewarden.aliases import Aliases, Disk
from lakewarden.errors import Refused
from lakewarden.location import Location, inside, same
from lakewarden.model import TableView

# Where a table may put files outside of its location.
ELSEWHERE = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
# Paimon's, and several of them.
EXTERNAL = "data-file.external-paths"


# Who looks after tables of each format.
TOOLS = {
    "iceberg": "Apache Iceberg",
    "paimon": "Apache Paimon",
    "delta": "Delta Lake",
    "hudi": "Apache Hudi",
}
# Where each of the other formats keeps its metadata below a table's folder, and how its files are named there.
MARKS = {
    "paimon": ("schema", re.compile(r"/schema/schema-\d+$")),
    "delta": ("_delta_log", re.compile(r"/_delta_log/[^/]+$")),
    "hudi": (".hoodie", re.compile(r"/\.hoodie/.+$")),
}
# A Paimon table with this option writes Iceberg metadata about itself, so that readers of Iceberg can read it.
PUBLISHES = "metadata.iceberg.storage"


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A table's metadata file and whose it says it is. Of an unreadable one, and of very old ones, some is not known.

    `updated_ms` None: it does not say when it was written, and counts as newer than any other.
    """

    path: str
    uuid: str | None
    location: str | None = None
    format: str = "iceberg"
    updated_ms: int | None = None
    sequence_number: int = 0


def format_of(path: str) -> str | None:
    """Which other format than Iceberg a file is metadata of, by its name; None for a file of another kind."""
    return next((format_ for format_, (_, named) in MARKS.items() if named.search(path)), None)


def roots(view: TableView) -> dict[str, str]:
    """Every folder the table writes to, and what says so: its location, and the properties that name others."""
    if view.format == "paimon":
        named, several = {}, view.properties.get(EXTERNAL, "").split(",")
    else:
        named, several = {name: view.properties[name] for name in ELSEWHERE if view.properties.get(name)}, []
    external = {
        f"{EXTERNAL} {number}": place for number, place in enumerate(filter(None, map(str.strip, several)), 1)
    }
    return {"location": view.location, **named, **external}


@dataclass(frozen=True, slots=True)
class Places:
    """Which of the places that a table says it writes to count as its own: nothing is listed or deleted anywhere else.

    Its location when it was first seen (`homes`, by uuid) does, and what the operator names (`confirmed`: `own_places`). A
    location that was changed since, and places that its properties name, are the writer's word. Paimon does not let a
    location be changed: where the catalog says the table is, it is.
    """

    homes: Mapping[str, str] = field(default_factory=dict)
    confirmed: tuple[str, ...] = ()
    aliases: Aliases = field(default_factory=Aliases)

    def home(self, view: TableView) -> str:
        return view.location if view.format == "paimon" else self.homes.get(view.uuid, view.location)

    def is_own(self, view: TableView, place: str) -> bool:
        own = (self.home(view), *self.confirmed)
        return any(inside(name, each) for name in self.aliases.spellings(place) for each in own)

    def own(self, view: TableView) -> dict[str, str]:
        return {name: place for name, place in roots(view).items() if self.is_own(view, place)}

    def not_own(self, view: TableView) -> dict[str, str]:
        return {name: place for name, place in roots(view).items() if not self.is_own(view, place)}


NO_HOMES = Places()


def check_ownership(
    action: str,
    view: TableView,
    others: Sequence[TableView],
    found: Sequence[MetadataFile] = (),
    places: Places = NO_HOMES,
) -> None:
    """Refused, naming both tables and both places, where files in this table's folders may be another's.

    `others` are all tables of all catalogs, this one among them or not; `found` are metadata files in its folders.
    """
    disk = Disk()
    for other in others:
        if other.ref == view.ref and other.uuid == view.uuid:
            continue
        if other.uuid == view.uuid:
            _check_same_table(action, view, other)
        elif not _publishes(view, other):
            _check_apart(action, view, other, places, disk)
    check_not_ahead(action, view, found)
    for each in found:
        _check_own(action, view, each)


def check_not_ahead(action: str, view: TableView, found: Sequence[MetadataFile]) -> None:
    """Refused where a metadata file of this very table is newer than the one the catalog leads to, and not its ancestor.

    Then another catalog moves the table too, or the catalog was set back to an earlier state: the newer file may name
    snapshots that the older one does not know, or no longer knows.
    """
    for each in ahead(view, found):
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"{each.path} is newer metadata of this very table (uuid {view.uuid}) than {view.metadata_location}, "
            f"to which catalog {view.ref.catalog} leads, and not an earlier state of it",
            hint="nothing was changed; if another catalog has this table, drop one of the two registrations, keeping the files; "
            f"if a commit failed and left the file, the table's next commit settles it; if the table was set back, {_adopt(view)}",
        )


def ahead(view: TableView, found: Sequence[MetadataFile]) -> list[MetadataFile]:
    """Metadata files of this very table that are newer than its pointer, and not its ancestors."""
    newer = [
        each
        for each in found
        if each.uuid == view.uuid
        and each.format == view.format == "iceberg"
        and (
            each.updated_ms is None
            or each.updated_ms > view.updated_ms
            or each.sequence_number > view.sequence_number
        )
    ]
    if not newer:
        return []
    own = {Location.of(each) for each in (view.metadata_location, *view.metadata_log)}
    return [each for each in newer if Location.of(each.path) not in own]


def is_same(one: TableView, other: TableView) -> bool:
    """Whether two names lead to one table that has one pointer, or had when both were read."""
    same_file = same(one.metadata_location, other.metadata_location)
    return one.uuid == other.uuid and same_file and one.version == other.version


def _check_same_table(action: str, view: TableView, other: TableView) -> None:
    """Registered under two names, with one metadata file, it is one table. With two, each catalog moves its own."""
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
    """What the other table's writer says counts only inside this table's places: one that names the whole warehouse would
    otherwise stop every deletion in the lake. Files that it names are in every proof, wherever they lie."""
    home = places.home(other)
    theirs = {**roots(other), "location": home}
    if not same(other.location, home):
        theirs["new location"] = other.location
    for name, place in mine.items():
        names = places.aliases.covering(place)
        for other_name, other_place in theirs.items():
            there = Location.of(other_place)
            if other_name == "location":
                found = any(each.may_overlap(there) for each in names) or disk.overlap(place, other_place)
            else:
                found = any(there.may_be_inside(each) for each in names) or disk.lies_in(other_place, place)
            if found:
                yield f"{place} ({name})", f"{other_place} ({other_name})"


def _check_own(action: str, view: TableView, found: MetadataFile) -> None:
    if not _lies_in(view, found.path):
        return
    if found.format != view.format and not _is_published(view, found):
        raise _foreign(action, view, found)
    if found.uuid == view.uuid or found.format != view.format:
        return
    if found.uuid is not None:
        reason = f"{found.path} is the metadata of another table (uuid {found.uuid}, at {found.location or 'an unknown location'}); this one is {view.uuid} at {view.location}"
    elif found.location is not None and same(found.location, view.location):
        return  # the first format version did not have to name a uuid; the location is this table's
    else:
        where = found.location or "no location"
        reason = f"{found.path} names {where} and no uuid, so whose it is cannot be told; this table is {view.uuid} at {view.location}"
    raise Refused(
        action=action,
        target=view.ref,
        reason=reason,
        hint=f"if that table is still used, move it to a folder of its own; if it was dropped, {_adopt(view)}",
    )


def _publishes(view: TableView, other: TableView) -> bool:
    """Whether an Iceberg table of some catalog is what this Paimon table publishes of itself.

    Such a table is part of every proof: what it names stays.
    """
    return _is_published(view, MetadataFile(other.metadata_location, None, other.location, other.format))


def _is_published(view: TableView, found: MetadataFile) -> bool:
    """Whether Iceberg metadata in a Paimon table's folder is what the table itself publishes for readers of Iceberg."""
    asked = view.format == "paimon" and view.properties.get(PUBLISHES, "disabled") != "disabled"
    here = found.location is not None and same(found.location, view.location)
    return asked and found.format == "iceberg" and here


def _adopt(view: TableView) -> str:
    return f"`lakewarden fsck '{view.ref}' --adopt-folder` shows what it left here; `--yes` claims it"


def _foreign(action: str, view: TableView, found: MetadataFile) -> Refused:
    tool, own = TOOLS[found.format], TOOLS[view.format]
    if found.format == "iceberg":
        return Refused(
            action=action,
            target=view.ref,
            reason=f"{found.path} is metadata of an {tool} table in the folder of this {own} table, which publishes none "
            f"({PUBLISHES} is {view.properties.get(PUBLISHES, 'not set')}): another table may need files here",
            hint=f"if that table is still used, move it to a folder of its own; if this table published it earlier, {_adopt(view)}",
        )
    return Refused(
        action=action,
        target=view.ref,
        reason=f"{found.path} is metadata of {tool}: the folder is a table of {tool}, which may need every file in it, "
        f"and {own} only shows it",
        hint=f"look after it with {tool}"
        + (" (configure its Paimon catalog)" if found.format == "paimon" else "")
        + f"; if {tool} no longer uses the folder, move its metadata out of it, then run again",
    )


def _lies_in(view: TableView, path: str) -> bool:
    place = Location.of(path)
    return any(place.may_be_inside(Location.of(each)) for each in roots(view).values())
