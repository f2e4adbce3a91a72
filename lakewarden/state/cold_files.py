"""Copies in the colder tier: where each file of a table was copied to, and the size and checksum it had there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from lakewarden.paths import normal
from lakewarden.state.database import State
from lakewarden.state.schema import cold_files
from lakewarden.state.upsert import upsert

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ColdFile:
    """`path` is the live file's, in its normal form."""

    path: str
    cold_path: str
    size: int
    checksum: str
    copied_at: datetime | None = None

    def before(self, moment: datetime | None) -> bool:
        """Whether the copy was made before then."""
        return moment is not None and self.copied_at is not None and self.copied_at < moment


class ColdFiles:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, table_uuid: str, copies: Iterable[ColdFile], run_id: str, now: datetime) -> None:
        """All of them or none; one that is there already is replaced."""
        with self._state.write() as connection:
            for each in copies:
                row = {
                    "table_uuid": table_uuid,
                    "path": normal(each.path),
                    "cold_path": each.cold_path,
                    "size": each.size,
                    "checksum": each.checksum,
                    "run_id": run_id,
                    "copied_at": now,
                }
                upsert(connection, cold_files, row, ["table_uuid", "path"])

    def among(self, table_uuid: str, paths: Sequence[str]) -> Mapping[str, ColdFile]:
        """Those of the paths that have a copy, by the path as it was asked for."""
        spelled = {normal(path): path for path in paths}
        names, found = list(spelled), {}
        with self._state.read() as connection:
            for start in range(0, len(names), _AT_ONCE):
                wanted = select(cold_files).where(
                    cold_files.c.table_uuid == table_uuid,
                    cold_files.c.path.in_(names[start : start + _AT_ONCE]),
                )
                for row in connection.execute(wanted):
                    copy = ColdFile(row.path, row.cold_path, row.size, row.checksum, row.copied_at)
                    found[spelled[row.path]] = copy
        return found
