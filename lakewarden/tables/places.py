"""Places of a table: its location, and where else its files may lie as the operator says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from lakewarden.config.aliases import Aliases
from lakewarden.model.location import (
    Location,
    inside,
    is_local,
    join,
    name_of,
    numbered_parents,
    parent,
    real,
    same,
)
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.state.tables import FirstSeen

if TYPE_CHECKING:
    import pyarrow as pa

# Where a table may put files outside of its location.
ELSEWHERE = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
# Paimon's, and several of them.
EXTERNAL = "data-file.external-paths"
# Where each of the other formats keeps its metadata below a table's folder, and how its files are named there.
MARKS = {
    "paimon": ("schema", re.compile(r"/schema/schema-\d+$")),
    "delta": ("_delta_log", re.compile(r"/_delta_log/[^/]+$")),
    "hudi": (".hoodie", re.compile(r"/\.hoodie/.+$")),
}
# What catalogs add to a table's name to have a folder that no table had: Trino, Iceberg's own and Nessie a uuid. dbt creates
# tables under a name of its own and renames them. Any other end of a name may be a sibling's.
_UNIQUE = re.compile(r"(?i)(__dbt_tmp)?[-_][0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A table's metadata file and whose it says it is. Of an unreadable one, and of very old ones, some is not known.

    `updated_ms` None: it does not say when it was written, and counts as newer than any other. `forked`: logs of the table's
    earlier metadata files prove that it is none of them.
    """

    path: str
    uuid: str | None
    location: str | None = None
    format: str = "iceberg"
    updated_ms: int | None = None
    sequence_number: int = 0
    forked: bool = False


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
    location that was changed since, and places that its properties name, are the writer's word. So is a new uuid: a table of
    a name that is known (`named`) lies where the earlier ones of that name lay, or beside them. Paimon does not let a location
    be changed: where the catalog says the table is, it is.
    """

    homes: Mapping[str, str] = field(default_factory=dict)
    confirmed: tuple[str, ...] = ()
    aliases: Aliases = field(default_factory=Aliases)
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    since: Mapping[str, datetime] = field(default_factory=dict)
    first: Mapping[str, str] = field(default_factory=dict)  # by uuid, the location itself

    @classmethod
    def of(
        cls, seen: Iterable[FirstSeen], confirmed: tuple[str, ...] = (), aliases: Aliases | None = None
    ) -> Places:
        """By what is remembered of every table, the one that was seen earliest first."""
        homes: dict[str, str] = {}
        named: dict[str, list[str]] = {}
        since: dict[str, datetime] = {}
        first: dict[str, str] = {}
        for each in seen:
            earlier = named.setdefault(each.name, [])
            homes[each.uuid] = _home(each.location, earlier, TableRef.parse(each.name).name)
            first[each.uuid] = each.location
            since[each.uuid] = each.since
            home = homes[each.uuid]
            earlier[:] = [*(place for place in earlier if not _beside(place, home)), home]
        return cls(homes, confirmed, aliases or Aliases(), named, since, first)

    def home(self, view: TableView) -> str:
        if view.format == "paimon":
            return view.location
        found = self.homes.get(view.uuid)
        return (
            _home(view.location, self.named.get(str(view.ref), ()), view.ref.name) if found is None else found
        )

    def inherits(self, view: TableView) -> bool:
        """Whether the table is said to be at home where an earlier one of its name was, and not where it was first seen itself."""
        return not same(self.home(view), self.first.get(view.uuid, view.location))

    def is_own(self, view: TableView, place: str) -> bool:
        own = (self.home(view), *self.confirmed)
        return any(inside(name, each) for name in self.aliases.spellings(place) for each in own)

    def metadata_folders(self, view: TableView) -> list[str]:
        """The folders in which metadata files of the table may lie directly, and nothing else is meant to."""
        named = view.properties.get("write.metadata.path")
        places = (view.location, self.home(view), *self.confirmed)
        found = [*(join(each, "metadata") for each in places), *self.confirmed, *([named] if named else [])]
        return [each for each in found if self.is_own(view, each)]

    def own(self, view: TableView) -> dict[str, str]:
        return {name: place for name, place in roots(view).items() if self.is_own(view, place)}

    def not_own(self, view: TableView) -> dict[str, str]:
        return {name: place for name, place in roots(view).items() if not self.is_own(view, place)}


NO_HOMES = Places()


def led_out(paths: pa.ChunkedArray, own: Iterable[str], aliases: Aliases) -> pa.Array:
    """For each path whether a link in its folders leads out of all these places: who writes to a table can leave one there."""
    import pyarrow as pa

    folders, numbers = numbered_parents(paths)
    places = [real(each) for each in own]
    out = [
        is_local(each)
        and not any(inside(name, place) for name in aliases.spellings(real(each)) for place in places)
        for each in folders
    ]
    return pa.array([out[number] for number in numbers.tolist()], pa.bool_())


def _home(location: str, earlier: Sequence[str], name: str) -> str:
    """Where a table that is first seen at a location is at home, by the homes of earlier tables of its name.

    Whoever writes a table can give it a new uuid and another location in one commit. A table that was dropped and created
    again lies at the same place, or beside it in a folder of its own that is called like the table (catalogs add a uuid).
    Anywhere else the operator is asked.
    """
    called = _called(location, name)
    if not earlier or any(inside(location, each) or (called and _beside(location, each)) for each in earlier):
        return location
    return earlier[-1]


def _called(location: str, table: str) -> bool:
    """Whether a folder bears the name of a table, alone or with what a catalog sets it apart from earlier ones by."""
    folder = name_of(location.rstrip("/"))
    rest = folder.removeprefix(table)
    return folder.startswith(table) and (not rest or _UNIQUE.fullmatch(rest) is not None)


def _beside(one: str, other: str) -> bool:
    """In one folder. Two buckets lie in none."""
    below = all(Location.of(each).path.strip("/") for each in (one, other))
    return below and same(parent(one.rstrip("/")), parent(other.rstrip("/")))
