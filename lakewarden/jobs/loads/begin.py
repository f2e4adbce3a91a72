"""Beginning a staged load: files are held before they are written. Reads only the state database, so it is quick."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.model.location import Location, inside, is_absolute, join, local_path, normal, real, same
from lakewarden.model.table_name import TableRef
from lakewarden.state.database import State
from lakewarden.state.holds import Load, Loads, LoadState
from lakewarden.state.tables import SeenTables


def begin(
    state: State,
    table: TableRef,
    holder: str,
    paths: Sequence[str],
    prefixes: Sequence[str],
    purpose: str,
    ttl: timedelta | None,
) -> Load:
    """Hold these files from now on. Reads only the state database: a writer must not wait for Spark before it writes."""
    if not paths and not prefixes:
        raise UsageError(
            reason=f"begin a load for {table}: it names no files",
            hint="name them with --path, or where they come with --prefix",
        )
    for folder in (path for path in paths if path.endswith("/")):
        raise UsageError(
            reason=f"begin a load for {table}: {folder} is a folder", hint="name it with --prefix"
        )
    now, seen = clock.now(), SeenTables(state).get(table)
    load = Load(
        f"load-{secrets.token_hex(4)}",
        str(table),
        "" if seen is None else seen.uuid,
        holder,
        purpose,
        LoadState.OPEN,
        distinct(absolute(paths)),
        tuple(absolute(prefixes)),
        now,
        None if ttl is None else now + ttl,
    )
    Loads(state).begin(load)
    return load


def absolute(paths: Iterable[str]) -> list[str]:
    """As they are, if they say where they are. One that does not would be compared with nothing, and hold nothing."""
    found = list(paths)
    for path in found:
        if not is_absolute(path):
            raise UsageError(
                reason=f"read path {path!r}: it does not say where it is",
                hint="write it in full, for example s3://bucket/lake/db/events/data/part-1.parquet",
            )
    return found


def own_name(path: str, location: str) -> str | None:
    """What a file on a disk is called without links, if that is not how it was written. Below the table's location any name is right.

    A listing of the table shows a file under one name. By another the table would not seem to need it, and could have it twice.
    """
    if local_path(path) is None or inside(path, location):
        return None
    below = Location.of(real(path)).below(Location.of(real(location)))
    own = real(path) if below is None else join(normal(location), below)
    return None if same(own, path) else own


def distinct(paths: Iterable[str]) -> tuple[str, ...]:
    """Each file once, in its first spelling."""
    first: dict[str, str] = {}
    for path in paths:
        first.setdefault(normal(path), path)
    return tuple(first.values())
