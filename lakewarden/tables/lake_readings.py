"""The state of every table of every catalog, each with the time when it was read.

For a reading that is too old, the table's pointer is asked again, and the table is read again only if the pointer
moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lakewarden import clock
from lakewarden.errors import LakewardenError, NoSuchTable, Refused
from lakewarden.model.location import hashes
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.interface import AllCatalogs, TableFormat
from lakewarden.tables.reachability import contains

# Loading a table mostly waits for its catalog and its store: a large lake uses more threads.
_THREADS, _MOST_THREADS, _TABLES_PER_THREAD = 8, 32, 25
# How long the reading of another table is valid. The table itself is read again for every batch.
FRESH_SECONDS = 5.0
# If a round over the lake takes longer than this, its readings stay valid longer in the same proportion.
# Otherwise every batch would wait for a whole round.
_LONG_ROUND = 5.0
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The state of a table when it was read. `view` is None for a listed table that is not of this format."""

    view: TableView | None
    at: datetime


class LakeReadings:
    """The readings that one job makes. `ref` is its own table, which is read in every round. No reading is valid for longer
    than `most`.
    """

    def __init__(self, action: str, lake: AllCatalogs, ref: TableRef, most: timedelta) -> None:
        self._action, self._lake, self._ref, self._most = action, lake, ref, most
        self._readings: dict[TableRef, _Reading] = {}
        self._lists: dict[str, tuple[list[TableRef], datetime]] = {}
        self._round = 0.0  # the longest round over the lake, in seconds
        self._since = _EVER  # readings made before this moment are asked again

    def forget_before(self, moment: datetime) -> None:
        """Ask again what was read before this moment."""
        self._since = moment

    @property
    def views(self) -> list[TableView]:
        """All tables, each as of its last reading."""
        return [each.view for each in self._readings.values() if each.view is not None]

    def read_at(self) -> dict[str, datetime]:
        """When each table was read, and when each catalog was listed."""
        lists = {f"the list of catalog {name}": at for name, (_, at) in self._lists.items()}
        return lists | {str(ref): each.at for ref, each in self._readings.items()}

    def _is_valid(self, at: datetime) -> bool:
        """Whether a reading from that time is still valid."""
        seconds = FRESH_SECONDS * max(1.0, self._round / _LONG_ROUND)
        fresh = min(timedelta(seconds=seconds), self._most)
        return at >= self._since and clock.now() - at < fresh

    def ask_all(self, *, gone_is_fatal: bool) -> bool:
        """Read what is not known or too old. False if a listed table does not exist: it was dropped or renamed after the
        listing.
        """
        began = clock.monotonic()
        whole = self._ask(gone_is_fatal=gone_is_fatal)
        self._round = max(self._round, clock.monotonic() - began)
        return whole

    def _ask(self, *, gone_is_fatal: bool) -> bool:
        for catalog in self._lake.catalogs():
            if catalog not in self._lists or not self._is_valid(self._lists[catalog][1]):
                at = clock.now()
                self._lists[catalog] = (self._listed(catalog), at)
        # Include the table itself even if its catalog does not list it: a Hadoop catalog hides tables in
        # another table's folder.
        listed = dict.fromkeys([self._ref, *(ref for refs, _ in self._lists.values() for ref in refs)])
        self._readings = {ref: each for ref, each in self._readings.items() if ref in listed}
        threads = min(_MOST_THREADS, max(_THREADS, len(listed) // _TABLES_PER_THREAD))
        try:
            with ThreadPoolExecutor(threads, thread_name_prefix="lakewarden-neighbours") as pool:
                for ref, reading in zip(listed, pool.map(self._ask_one, listed), strict=True):
                    self._readings[ref] = reading
        except NoSuchTable as error:
            if gone_is_fatal:
                raise self.unknown(str(error.parts["table"]), error) from error
            self._lists.clear()
            return False
        return True

    def _ask_one(self, ref: TableRef) -> _Reading:
        """The current state of the table. If its pointer did not move, the earlier reading is used again."""
        known = self._readings.get(ref)
        if known is not None and ref != self._ref:
            if self._is_valid(known.at):
                return known
            at = clock.now()
            if known.view is not None and self._version(ref) == known.view.state_version:
                return replace(known, at=at)
        at = clock.now()
        return _Reading(self._view_or_none(ref), at)

    def _version(self, ref: TableRef) -> str:
        """The table's pointer. Empty if the table no longer exists or is no longer of this format: reading it shows which."""
        try:
            return self._lake.format_for(ref).version(ref)
        except NoSuchTable:
            return ""
        except LakewardenError as error:
            raise self.unknown(str(ref), error) from error

    def _listed(self, catalog: str) -> list[TableRef]:
        try:
            return self._lake.format_of(catalog).tables(catalog)
        except LakewardenError as error:
            raise self.unknown(f"catalog {catalog}", error) from error

    def _view(self, ref: TableRef) -> TableView:
        try:
            return self._lake.format_for(ref).view(ref)
        except NoSuchTable:
            raise
        except LakewardenError as error:
            raise self.unknown(str(ref), error) from error

    def _view_or_none(self, ref: TableRef) -> TableView | None:
        """The table, or None if the name is listed but is no table of this format: a session's own catalog has others too."""
        try:
            return self._view(ref)
        except NoSuchTable as error:
            if error.parts.get("other_format") and ref != self._ref:
                return None
            raise

    def unknown(self, other: str, error: LakewardenError) -> Refused:
        """The refusal because a table or a catalog cannot be read."""
        return Refused(
            action=self._action,
            target=self._ref,
            reason=f"{other} cannot be read, and may need the same files: {error.message}",
            hint=f"nothing was deleted; {error.hint or f'make {other} readable, or drop it from its catalog'}",
        )


def named_files(format_: TableFormat, view: TableView, numbers: Any) -> Iterator[pa.Array]:
    """The paths in a table's metadata whose hashes are among these sorted numbers."""
    own = [view.metadata_location, *view.metadata_log, *(path for _, path in view.statistics)]
    paths = pa.array(own, pa.string())
    yield paths.filter(pa.array(contains(numbers, hashes(paths))))
    yield from format_.named_paths(view, numbers)
