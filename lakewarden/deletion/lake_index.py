"""Index of all other tables: which of them may name a file, and which files they need.

Sweep and purge use it so that they never treat another table's file as unneeded. A table that cannot be read
stops them, because its needs are unknown.

Each table's reading has its own time. For a reading that is too old, the table's pointer is asked again, and
the table is read again only if the pointer moved. So a lake that takes long to read is as safe to clean as a
small one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lakewarden import clock
from lakewarden.deletion.ownership import check_ownership, is_same
from lakewarden.deletion.permit import PROOF_AGE
from lakewarden.deletion.proof import Proof
from lakewarden.errors import LakewardenError, NoSuchTable, Refused
from lakewarden.model.location import Location, hashes
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.every_table import Catalogs
from lakewarden.tables.interface import TableFormat
from lakewarden.tables.places import MetadataFile, Places, roots
from lakewarden.tables.reachability import Reached, contains
from lakewarden.tables.reread import WAITS

# Loading a table mostly waits for its catalog and its store: a large lake uses more threads.
_THREADS, _MOST_THREADS, _TABLES_PER_THREAD = 8, 32, 25
# How long the reading of another table is valid. The table itself is read again for every batch.
FRESH_SECONDS = 5.0
# If a round over the lake takes longer than this, its readings stay valid longer in the same proportion.
# Otherwise every batch would wait for a whole round.
_LONG_ROUND = 5.0
# The oldest a proof may be when it is handed out. The rest of its valid time is enough to check and delete a batch of files.
_READY_AGE = PROOF_AGE / 2
# Tables are created, dropped and committed to during the reading. Then they are read again, at most this many times.
_ATTEMPTS = 3
# Reading what tables need may take longer than the readings are valid. Then pointers are asked again, at most
# this many times.
_ROUNDS = 5
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The state of a table when it was read. `view` is None for a listed table that is not of this format."""

    view: TableView | None
    at: datetime


@dataclass
class Neighbours:
    """The tables around one table. `view` is the table as it was planned; `strays` are metadata files found in its folders."""

    action: str
    lake: Catalogs
    view: TableView
    strays: Sequence[MetadataFile] = ()
    places: Places = field(default_factory=Places)
    _known: dict[tuple[str, str], Reached] = field(default_factory=dict)
    _readings: dict[TableRef, _Reading] = field(default_factory=dict)
    _lists: dict[str, tuple[list[TableRef], datetime]] = field(default_factory=dict)
    _round: float = 0.0  # the longest round over the lake, in seconds
    _since: datetime = _EVER  # readings made before this moment are asked again

    def prove(self) -> tuple[TableView, Proof]:
        """The table as it is now, and the files that every table needs. All tables count: a table may name
        files in any place.

        Refuses if the location belongs to another table too, or if a table cannot be read.
        """
        for left in reversed(range(_ROUNDS)):
            own, known = self._prove()
            names = self.places.aliases.and_links(roots(own).values())
            proof = Proof(tuple(known.values()), self._read_at(), names)
            # Slow readings are old by now. The pointers of those tables are asked again; a table that did not
            # move is still known.
            if not left or clock.now() - proof.made_at <= _READY_AGE:
                break
        return own, proof

    def check(self) -> None:
        """Refuses if another table shares this table's places. `prove` repeats the readings made here: files
        that are listed in between may be committed before their table is read.
        """
        own, others = self.read()
        check_ownership(self.action, own, others, self.strays, self.places)
        self._since = clock.now()

    def _prove(self) -> tuple[TableView, Mapping[tuple[str, str], Reached]]:
        for attempt in range(1, _ATTEMPTS + 1):
            own, others = self.read()
            check_ownership(self.action, own, others, self.strays, self.places)
            try:
                known = {_pointer(each): self._reached(each) for each in (own, *others)}
            except Refused:
                # Another tool may have expired a snapshot during the reading: then the current table does not need it.
                if attempt == _ATTEMPTS:
                    raise
                if self.view.in_order:
                    # While files are dropped, the snapshot that names them exists for a moment.
                    clock.sleep(WAITS[attempt])
                self._since = clock.now()
                continue
            self._known = known  # forget older states: memory holds one state of each table
            return own, known
        raise AssertionError("the last attempt returns or raises")

    def read(self) -> tuple[TableView, list[TableView]]:
        """This table as it is now, and all other tables of every catalog, each as of its last reading."""
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            began = clock.monotonic()
            whole = self._ask_all(gone_is_fatal=last)
            self._round = max(self._round, clock.monotonic() - began)
            if not whole:
                continue
            views = [each.view for each in self._readings.values() if each.view is not None]
            own = self._own(views)
            others = [each for each in views if each.ref != own.ref]
            if last or not any(each.uuid == own.uuid and not is_same(own, each) for each in others):
                return own, others
            # One of the two tables may have been read before a commit, the other after it.
            self._since = clock.now()
        raise AssertionError("the last attempt returns or raises")

    @property
    def others(self) -> list[TableView]:
        """All other tables, as of their last reading."""
        views = (each.view for each in self._readings.values())
        return [each for each in views if each is not None and each.ref != self.view.ref]

    def _read_at(self) -> dict[str, datetime]:
        """When each table was read, and when each catalog was listed."""
        lists = {f"the list of catalog {name}": at for name, (_, at) in self._lists.items()}
        return lists | {str(ref): each.at for ref, each in self._readings.items()}

    def _counts(self, at: datetime) -> bool:
        """Whether a reading from that time is still valid."""
        seconds = FRESH_SECONDS * max(1.0, self._round / _LONG_ROUND)
        fresh = min(timedelta(seconds=seconds), _READY_AGE)
        return at >= self._since and clock.now() - at < fresh

    def _ask_all(self, *, gone_is_fatal: bool) -> bool:
        """False if a listed table does not exist: it was dropped or renamed after the listing."""
        for catalog in self.lake.catalogs():
            if catalog not in self._lists or not self._counts(self._lists[catalog][1]):
                at = clock.now()
                self._lists[catalog] = (self._listed(catalog), at)
        # Include the table itself even if its catalog does not list it: a Hadoop catalog hides tables in
        # another table's folder.
        listed = dict.fromkeys([self.view.ref, *(ref for refs, _ in self._lists.values() for ref in refs)])
        self._readings = {ref: each for ref, each in self._readings.items() if ref in listed}
        threads = min(_MOST_THREADS, max(_THREADS, len(listed) // _TABLES_PER_THREAD))
        try:
            with ThreadPoolExecutor(threads, thread_name_prefix="lakewarden-neighbours") as pool:
                for ref, reading in zip(listed, pool.map(self._ask, listed), strict=True):
                    self._readings[ref] = reading
        except NoSuchTable as error:
            if gone_is_fatal:
                raise self._unknown(str(error.parts["table"]), error) from error
            self._lists.clear()
            return False
        return True

    def _ask(self, ref: TableRef) -> _Reading:
        """The current state of the table. If its pointer did not move, the earlier reading is used again."""
        known = self._readings.get(ref)
        if known is not None and ref != self.view.ref:
            if self._counts(known.at):
                return known
            at = clock.now()
            if known.view is not None and self._version(ref) == known.view.state_version:
                return replace(known, at=at)
        at = clock.now()
        return _Reading(self._view_or_none(ref), at)

    def _version(self, ref: TableRef) -> str:
        """The table's pointer. Empty if the table no longer exists or is no longer of this format: reading it shows which."""
        try:
            return self.lake.format_for(ref).version(ref)
        except NoSuchTable:
            return ""
        except LakewardenError as error:
            raise self._unknown(str(ref), error) from error

    def _listed(self, catalog: str) -> list[TableRef]:
        try:
            return self.lake.format_of(catalog).tables(catalog)
        except LakewardenError as error:
            raise self._unknown(f"catalog {catalog}", error) from error

    def _view(self, ref: TableRef) -> TableView:
        try:
            return self.lake.format_for(ref).view(ref)
        except NoSuchTable:
            raise
        except LakewardenError as error:
            raise self._unknown(str(ref), error) from error

    def _view_or_none(self, ref: TableRef) -> TableView | None:
        """The table, or None if the name is listed but is no table of this format: a session's own catalog has others too."""
        try:
            return self._view(ref)
        except NoSuchTable as error:
            if error.parts.get("other_format") and ref != self.view.ref:
                return None
            raise

    def _own(self, views: Sequence[TableView]) -> TableView:
        own = next(each for each in views if each.ref == self.view.ref)
        if own.uuid != self.view.uuid:
            raise Refused(
                action=self.action,
                target=own.ref,
                reason=f"it is another table now: its uuid was {self.view.uuid} and is {own.uuid}",
                hint="it was dropped and made anew, or another was renamed to it; plan again",
            )
        return own

    def _reached(self, view: TableView) -> Reached:
        """The files that a table needs. They change only with its metadata file, which is never overwritten."""
        if not view.metadata_location:
            error = LakewardenError(reason="its catalog does not tell where its metadata file is", hint="")
            raise self._unknown(str(view.ref), error)
        known = self._known.get(_pointer(view))
        if known is not None:
            return known
        try:
            return self.lake.format_for(view.ref).reached(view)
        except LakewardenError as error:
            raise self._unknown(str(view.ref), error) from error

    def _unknown(self, other: str, error: LakewardenError) -> Refused:
        return Refused(
            action=self.action,
            target=self.view.ref,
            reason=f"{other} cannot be read, and may need the same files: {error.message}",
            hint=f"nothing was deleted; {error.hint or f'make {other} readable, or drop it from its catalog'}",
        )


def _pointer(view: TableView) -> tuple[str, str]:
    return view.uuid, f"{Location.of(view.metadata_location)} {view.version}"


def named_files(format_: TableFormat, view: TableView, numbers: Any) -> Iterator[pa.Array]:
    """The paths in a table's metadata whose hashes are among these sorted numbers."""
    own = [view.metadata_location, *view.metadata_log, *(path for _, path in view.statistics)]
    paths = pa.array(own, pa.string())
    yield paths.filter(pa.array(contains(numbers, hashes(paths))))
    yield from format_.named_paths(view, numbers)
