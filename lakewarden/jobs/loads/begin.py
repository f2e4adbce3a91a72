"""Begins a staged load: holds the files before they are written. Reads only the state database, so it is fast."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.model.location import Location, inside, is_absolute, join, local_path, normal, real, same
from lakewarden.model.table import TableRef
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
    """Hold these files from now on. Reads only the state database, so that a writer need not wait for Spark."""
    if not paths and not prefixes:
        raise UsageError(
            reason=f"begin a load for {table}: it names no files",
            hint="name them with --path, or their folder with --prefix",
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
    """The paths unchanged. Raises for a relative path: it would match no file and hold nothing."""
    given = list(paths)
    for path in given:
        if not is_absolute(path):
            raise UsageError(
                reason=f"read path {path!r}: it is relative",
                hint="write it in full, for example s3://bucket/lake/db/events/data/part-1.parquet",
            )
    return given


def own_name(path: str, location: str) -> str | None:
    """The path of a local file without symlinks, if it differs from the given path. Not for paths below the table's location.

    A listing shows a file under one name. Under another name the table would seem not to need it, or could have it twice.
    """
    if local_path(path) is None or inside(path, location):
        return None
    below = Location.of(real(path)).below(Location.of(real(location)))
    own = real(path) if below is None else join(normal(location), below)
    return None if same(own, path) else own


def distinct(paths: Iterable[str]) -> tuple[str, ...]:
    """Each file once, in the first spelling that was given."""
    first: dict[str, str] = {}
    for path in paths:
        first.setdefault(normal(path), path)
    return tuple(first.values())
