"""Keeps a copy of the state database's generation in each table's folder. A database that was restored from a backup
is older than that copy. See `lakewarden.state.generation`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lakewarden import clock
from lakewarden.errors import message_of
from lakewarden.model.location import local_path
from lakewarden.model.table import TableView
from lakewarden.redact import redact_text
from lakewarden.state.database import State
from lakewarden.state.generation import Generation, Generations

# Needs Arrow: calls that only ask the database load it only when they touch a table's folder.
if TYPE_CHECKING:
    from lakewarden.storage.objects import Objects

log = logging.getLogger(__name__)

# The generation that the table's folder has recorded. Every tool that looks for orphans, Lakewarden's own sweep
# included, ignores names that begin with an underscore.
WITNESS = "metadata/_lakewarden-generation.json"


@contextmanager
def keeping(location: str | None, io: Mapping[str, str], state: State) -> Iterator[None]:
    """Wraps a transaction that keeps files from being deleted, and records it in the table's folder.

    So if the database and its whole folder are restored to an older state, the next run that deletes notices.
    The folder is also checked before the transaction, because this transaction uses the lost number again. If
    the folder cannot be read or written, that is logged and nothing fails: the database has the request. With
    None, the table's location is unknown.
    """
    place = None if location is None else local_path(location)
    if location is None or (place is not None and not Path(place).is_dir()):
        yield  # do not create a folder for a table that does not exist
        return
    from lakewarden.storage.objects import Objects

    objects, path = Objects(io), f"{location.rstrip('/')}/{WITNESS}"
    mine = _looked_back(objects, path, state)
    yield
    if mine:
        _noted(objects, path, Generations(state).now())


def _looked_back(objects: Objects, path: str, state: State) -> bool:
    """Whether the witness belongs to this database, or there is none. If the database was restored, every grace
    period starts again.
    """
    try:
        seen = read_witness(objects, path)
    except Exception as error:  # a store fails in many ways, and none of them is a reason not to keep a file
        _log_silence(path, error)
        return False
    confirmed = Generations(state).confirm(seen, clock.now())
    if confirmed.restored:
        log.warning(
            "the state database was restored from a backup or another server took over: %s; every grace starts again",
            confirmed.restored,
        )
    return seen is None or confirmed.generation.witness(seen) is not None


def _noted(objects: Objects, path: str, reached: Generation) -> None:
    try:
        seen = reached.witness(read_witness(objects, path) or b"")
        if seen is None or seen.number < reached.number:
            objects.write(path, reached.to_json())
    except Exception as error:  # as above
        _log_silence(path, error)


def _log_silence(path: str, error: Exception) -> None:
    log.warning(
        "%s cannot be read or written, so a restored state database may not be noticed: after a restore run `lakewarden migrate --restored` (%s)",
        path,
        redact_text(message_of(error)),
    )


def read_witness(objects: Objects, path: str) -> bytes | None:
    try:
        return objects.read(path)
    except FileNotFoundError:
        return None


def witness_of(view: TableView) -> str:
    return f"{view.location.rstrip('/')}/{WITNESS}"
