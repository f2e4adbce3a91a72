"""Location is not ownership: whose files lie in a table's folders is asked before any of them is taken for unneeded.

Whoever calls has read the other tables and the metadata files that lie around. A disk of this machine is asked which folders
are one, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lakewarden.config.aliases import Aliases, Disk
from lakewarden.errors import Refused
from lakewarden.model.location import (
    Location,
    inside,
    is_generated,
    name_of,
    real,
    same,
)
from lakewarden.model.table import TableView

if TYPE_CHECKING:
    pass
from lakewarden.tables.places import NO_HOMES, MetadataFile, Places, roots

# Who looks after tables of each format.
TOOLS = {
    "iceberg": "Apache Iceberg",
    "paimon": "Apache Paimon",
    "delta": "Delta Lake",
    "hudi": "Apache Hudi",
}
# A Paimon table with this option writes Iceberg metadata about itself, so that readers of Iceberg can read it.
PUBLISHES = "metadata.iceberg.storage"


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


def check_one_history(action: str, view: TableView, found: Sequence[MetadataFile]) -> None:
    """Refused where a metadata file of this very table is neither the one the catalog leads to nor an ancestor of that.

    Then another catalog moves the table too, or the catalog was set back to an earlier state, or a commit failed and left the
    file. In the first two cases it may name files that our side does not know, or no longer knows, and it is itself in use.
    """
    for each in forks(view, found):
        newer = "newer " if _is_ahead(view, each) else ""
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"{each.path} is {newer}metadata of this very table (uuid {view.uuid}), but not an earlier state of "
            f"{view.metadata_location}, its current metadata file in catalog {view.ref.catalog}",
            hint="nothing was changed; if another catalog has this table, remove the table from one of the two catalogs and keep its files; "
            f"if a commit failed and left the file, or the table was set back, and no catalog uses the file, {_adopt(view)}",
        )


def forks(view: TableView, found: Sequence[MetadataFile]) -> list[MetadataFile]:
    """Metadata files of this very table that are neither its pointer nor its ancestors, as far back as its log tells.

    Back to the oldest entry of the log every ancestor is known by name. A file from before may be an ancestor that the log no
    longer names, unless it is known to be `forked`.
    """
    since = view.updated_ms + 1 if view.log_since_ms is None else view.log_since_ms
    suspects = [
        each
        for each in of_this_table(view, found)
        if each.forked or _is_ahead(view, each) or (each.updated_ms is not None and each.updated_ms >= since)
    ]
    if not suspects:
        return []
    own = history(view)
    return [each for each in suspects if not own.has(each.path)]


def of_this_table(view: TableView, found: Sequence[MetadataFile]) -> list[MetadataFile]:
    return [each for each in found if each.uuid == view.uuid and each.format == view.format == "iceberg"]


class History:
    """Metadata files that are known to be states of a table.

    They are known under any name of their place, also by a link or on a second mount: whether files in such a place may be
    deleted is judged elsewhere (see spelling.py), and that judgement names both places.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._places: set[Location] = set()
        self._names: set[str] = set()
        self.add(paths)

    def add(self, paths: Iterable[str]) -> bool:
        """Whether any of them was not known."""
        before = len(self._places)
        for path in paths:
            self._places |= {Location.of(path), Location.of(real(path))}
            self._names |= {name_of(path)} if is_generated(path) else set()
        return len(self._places) > before

    def has(self, path: str) -> bool:
        return (
            Location.of(path) in self._places
            or name_of(path) in self._names
            or Location.of(real(path)) in self._places
        )


def history(view: TableView) -> History:
    """The metadata file the catalog leads to, and the ancestors that it names."""
    return History((view.metadata_location, *view.metadata_log))


def _is_ahead(view: TableView, found: MetadataFile) -> bool:
    """Newer than the pointer, by its time or by its sequence number: clocks of two writers differ."""
    later = found.updated_ms is None or found.updated_ms > view.updated_ms
    return later or found.sequence_number > view.sequence_number


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
    """Only where the other table is at home counts. What its writer says besides could stop every deletion in the lake: see
    `shared`. Files that it names are in every proof, wherever they lie."""
    home = places.home(other)
    there = Location.of(home)
    if places.inherits(other) and not any(inside(other.location, each) for each in (home, *mine.values())):
        return  # a table of a name that another one had: it lies elsewhere
    for name, place in mine.items():
        names = places.aliases.covering(place)
        if any(each.may_overlap(there) for each in names) or disk.overlap(place, home):
            yield f"{place} ({name})", f"{home} (location)"


def shared(view: TableView, others: Sequence[TableView], places: Places) -> dict[str, str]:
    """Folders inside the table's own places that writers of other tables name, and which table names each, by what.

    Nothing in them is known to be an orphan of this table.
    """
    disk, own, found = Disk(strict=False), places.own(view).values(), dict[str, str]()
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
                    found.setdefault(folder, f"{other.ref} by {name}")
    return found


def _part(own: str, place: str, aliases: Aliases, disk: Disk) -> str | None:
    """The part of an own place that another place is. Where that has another name there, it may be any part: the whole."""
    spelled = next((each for each in aliases.spellings(place) if inside(each, own)), None)
    if spelled is not None:
        return spelled
    there = Location.of(place)
    may = any(there.may_be_inside(each) for each in aliases.covering(own)) or disk.lies_in(place, own)
    return own if may else None


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
    return f"`lakewarden fsck '{view.ref}' --adopt-folder` lists these files; with `--yes` it marks them for deletion"


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
