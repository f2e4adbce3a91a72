"""The folders of a table: its location, and other folders that the operator has confirmed. Only a file in
them, with a name that the format's writers use, may be an orphan.
"""

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
from lakewarden.model.table import TableRef, TableView
from lakewarden.state.tables import FirstSeen

if TYPE_CHECKING:
    import pyarrow as pa


# Table properties that put files outside of the table's location.
ELSEWHERE = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
# Paimon's property, with several folders.
EXTERNAL = "data-file.external-paths"
# Metadata folders and file names of the other formats, below a table's folder.
MARKS = {
    "paimon": ("schema", re.compile(r"/schema/schema-\d+$")),
    "delta": ("_delta_log", re.compile(r"/_delta_log/[^/]+$")),
    "hudi": (".hoodie", re.compile(r"/\.hoodie/.+$")),
}
# Suffixes that make a table's folder unique: Trino, Iceberg and Nessie add a uuid. dbt creates tables under a temporary
# name and renames them. A folder with any other suffix may belong to another table.
_UNIQUE = re.compile(r"(?i)(__dbt_tmp)?[-_][0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class TableMetadataFile:
    """A metadata file and the table it states. Unreadable and very old files lack some of the values.

    `updated_ms` None: the file has no time and counts as the newest. `forked`: the logs of the table's earlier metadata
    files prove that this file is not one of them.
    """

    path: str
    uuid: str | None
    location: str | None = None
    format: str = "iceberg"
    updated_ms: int | None = None
    sequence_number: int = 0
    forked: bool = False


def format_of(path: str) -> str | None:
    """The format (Paimon, Delta, Hudi) whose metadata this file is, by its name; None if it is none of these."""
    return next((format_ for format_, (_, named) in MARKS.items() if named.search(path)), None)


def roots(view: TableView) -> dict[str, str]:
    """The folders the table writes to, each with its origin: the location, or the property that names it."""
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
    """Decides which folders belong to a table. Nothing is listed or deleted anywhere else.

    A table owns its location when it was first seen (`homes`, by uuid) and the folders that the operator names (`confirmed`,
    from `own_places`). A later change of the location and folders in table properties do not count, because any writer can set
    them. A writer can also set a new uuid: a table with a known name (`named`) must lie where earlier tables of that name
    lay, or next to them. Paimon locations cannot be changed, so the catalog's location counts.
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
        """From the recorded locations of all tables, oldest first."""
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
        recorded = self.homes.get(view.uuid)
        if recorded is not None:
            return recorded
        return _home(view.location, self.named.get(str(view.ref), ()), view.ref.name)

    def inherits(self, view: TableView) -> bool:
        """Whether the table's home is that of an earlier table of the same name, not the location where it was first seen."""
        return not same(self.home(view), self.first.get(view.uuid, view.location))

    def is_own(self, view: TableView, place: str) -> bool:
        own = (self.home(view), *self.confirmed)
        return any(inside(name, each) for name in self.aliases.spellings(place) for each in own)

    def metadata_folders(self, view: TableView) -> list[str]:
        """The folders that contain the table's metadata files directly, and should contain nothing else."""
        named = view.properties.get("write.metadata.path")
        places = (view.location, self.home(view), *self.confirmed)
        folders = [
            *(join(place, "metadata") for place in places),
            *self.confirmed,
            *([named] if named else []),
        ]
        return [folder for folder in folders if self.is_own(view, folder)]

    def own(self, view: TableView) -> dict[str, str]:
        return {name: place for name, place in roots(view).items() if self.is_own(view, place)}

    def not_own(self, view: TableView) -> dict[str, str]:
        return {name: place for name, place in roots(view).items() if not self.is_own(view, place)}


NO_HOMES = Places()


def led_out(paths: pa.ChunkedArray, own: Iterable[str], aliases: Aliases) -> pa.Array:
    """For each path: whether a symlink in it leads outside of all these folders. Any writer of the table could create one."""
    import pyarrow as pa

    folders, numbers = numbered_parents(paths)
    places = [real(each) for each in own]
    out = [
        is_local(folder)
        and not any(inside(name, place) for name in aliases.spellings(real(folder)) for place in places)
        for folder in folders
    ]
    return pa.array([out[number] for number in numbers.tolist()], pa.bool_())


def _home(location: str, earlier: Sequence[str], name: str) -> str:
    """The home folder of a table that is seen for the first time, given the homes of earlier tables of its name.

    A writer can give a table a new uuid and another location in one commit. A table that was dropped and created again lies
    in the same folder, or next to it in a folder named like the table (catalogs add a uuid). Any other folder needs the
    operator's confirmation.
    """
    called = _called(location, name)
    if not earlier or any(inside(location, each) or (called and _beside(location, each)) for each in earlier):
        return location
    return earlier[-1]


def _called(location: str, table: str) -> bool:
    """Whether the folder is named like the table, alone or with a suffix that a catalog adds."""
    folder = name_of(location.rstrip("/"))
    rest = folder.removeprefix(table)
    return folder.startswith(table) and (not rest or _UNIQUE.fullmatch(rest) is not None)


def _beside(one: str, other: str) -> bool:
    """Whether both lie in the same parent folder. Two buckets have none."""
    below = all(Location.of(each).path.strip("/") for each in (one, other))
    return below and same(parent(one.rstrip("/")), parent(other.rstrip("/")))


@dataclass(frozen=True, slots=True)
class Names:
    """Patterns that a path in normal form is matched against.

    `ours`: files of this format; the purpose of any other file is unknown. `metadata`: the metadata files among them.
    `signed`: files whose name only writers of this format produce. A name like `part-0.parquet` can come from any tool.
    """

    ours: re.Pattern[str]
    metadata: re.Pattern[str]
    signed: re.Pattern[str]
    temporary: re.Pattern[str] | None = None  # hidden files that a writer left half written


_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_OUR_RUN = r"lakewarden-\d{8}-\d{6}-[0-9a-f]{6}-[^/.]*"
_ICEBERG = Names(
    ours=re.compile(r"\.(parquet|orc|avro|puffin|stats|metadata\.json|metadata\.json\.gz)$"),
    metadata=re.compile(r"(\.metadata\.json|\.metadata\.json\.gz|\.avro|\.stats)$"),
    # Names from Iceberg's library (Spark, Flink, Hive, Kafka Connect), PyIceberg, Trino, Lakewarden; metadata of any writer.
    signed=re.compile(
        rf"/\d{{5,}}-\d+-[^/]*{_UUID}[^/]*$"
        rf"|/\d{{8}}_\d{{6}}_\d{{5}}_\w{{5}}-{_UUID}\.\w+$"
        rf"|/[^/]*{_OUR_RUN}[^/]*$"
        rf"|/{_UUID}-m\d+\.avro$|/snap-\d+-[^/]*{_UUID}\.avro$"
        r"|\.metadata\.json(\.gz)?$|\.stats$|\.puffin$"
    ),
)

_PAIMON_METADATA = (
    rf"/manifest/(manifest|manifest-list|index-manifest)-{_UUID}-\d+(\.\w+)?$"
    rf"|/index/index-{_UUID}-\d+$|/statistics/stat-{_UUID}-\d+$"
)
# A table may set a prefix for its data files. A uuid and a number, or the id of a Lakewarden run, always follow.
_PAIMON_DATA = rf"/bucket-(\d+|postpone)/[^/]*({_UUID}-\d+|{_OUR_RUN})(\.[\w.]+)?$"
# Paimon writes small files under such a name and then renames them. A writer that stops in between leaves the file.
_PAIMON_TEMPORARY = re.compile(
    rf"/(?:snapshot|changelog|tag|consumer|schema|manifest|statistics)/\.[^/]+\.{_UUID}\.tmp$"
)
_PAIMON_OURS = re.compile(f"{_PAIMON_METADATA}|{_PAIMON_DATA}")
_PAIMON = Names(
    _PAIMON_OURS,
    re.compile(_PAIMON_METADATA),
    re.compile(f"{_PAIMON_OURS.pattern}|{_PAIMON_TEMPORARY.pattern}"),
    _PAIMON_TEMPORARY,
)

_BY_FORMAT = {"iceberg": _ICEBERG, "paimon": _PAIMON}


def names_of(view: TableView) -> Names:
    return _BY_FORMAT[view.format]
