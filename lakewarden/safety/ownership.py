"""Location is not ownership: whose files lie in a table's folders is asked before any of them is taken for unneeded.

Pure. Whoever calls has read the other tables and the metadata files that lie around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakewarden.errors import Refused
from lakewarden.model import TableView
from lakewarden.paths import inside, normal, overlap

# Where a table may put files outside of its location.
ELSEWHERE = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
# Paimon's, and several of them.
EXTERNAL = "data-file.external-paths"


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A table's metadata file and whose it says it is. Of an unreadable one, and of very old ones, some is not known."""

    path: str
    uuid: str | None
    location: str | None = None


def roots(view: TableView) -> dict[str, str]:
    """Every folder the table writes to, and what says so: its location, and the properties that name others."""
    named = {name: view.properties[name] for name in ELSEWHERE if view.properties.get(name)}
    several = (each.strip() for each in view.properties.get(EXTERNAL, "").split(","))
    external = {f"{EXTERNAL} {number}": place for number, place in enumerate(filter(None, several), 1)}
    return {"location": view.location, **named, **external}


def check_ownership(
    action: str, view: TableView, others: Sequence[TableView], found: Sequence[MetadataFile] = ()
) -> None:
    """Refused, naming both tables and both places, where files in this table's folders may be another's.

    `others` are all tables of all catalogs, this one among them or not; `found` are metadata files in its folders.
    """
    for other in others:
        if other.ref == view.ref and other.uuid == view.uuid:
            continue
        if other.uuid == view.uuid:
            _check_same_table(action, view, other)
        else:
            _check_apart(action, view, other)
    for each in found:
        _check_own(action, view, each)


def is_same(one: TableView, other: TableView) -> bool:
    """Whether two names lead to one table that has one pointer, or had when both were read."""
    same_file = normal(one.metadata_location) == normal(other.metadata_location)
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


def _check_apart(action: str, view: TableView, other: TableView) -> None:
    for mine, theirs in _overlaps(roots(view), roots(other)):
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"it shares a place with {other.ref}: {mine} and {theirs}",
            hint=f"move one of the two tables to a folder of its own; until then neither is cleaned (uuids {view.uuid}, {other.uuid})",
        )


def _overlaps(mine: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, place in mine.items():
        for other_name, other_place in theirs.items():
            if overlap(normal(place), normal(other_place)):
                yield f"{place} ({name})", f"{other_place} ({other_name})"


def _check_own(action: str, view: TableView, found: MetadataFile) -> None:
    if found.uuid == view.uuid or not _lies_in(view, found.path):
        return
    if found.uuid is not None:
        reason = f"{found.path} is the metadata of another table (uuid {found.uuid}, at {found.location or 'an unknown location'}); this one is {view.uuid} at {view.location}"
    elif found.location is not None and normal(found.location) == normal(view.location):
        return  # the first format version did not have to name a uuid; the location is this table's
    else:
        where = found.location or "no location"
        reason = f"{found.path} names {where} and no uuid, so whose it is cannot be told; this table is {view.uuid} at {view.location}"
    raise Refused(
        action=action,
        target=view.ref,
        reason=reason,
        hint="if that table is still used, move it to a folder of its own; if not, move the file away; then run again",
    )


def _lies_in(view: TableView, path: str) -> bool:
    plain = normal(path)
    return any(inside(plain, normal(place)) for place in roots(view).values())
