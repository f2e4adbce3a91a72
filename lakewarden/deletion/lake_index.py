"""Index of all other tables: which of them may name a file, and which files they need.

Sweep and purge use it so that they never treat another table's file as unneeded. A table that cannot be read
stops them, because its needs are unknown.

Each table's reading has its own time. For a reading that is too old, the table's pointer is asked again, and
the table is read again only if the pointer moved. So a lake that takes long to read is as safe to clean as a
small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakewarden import clock
from lakewarden.deletion.ownership import check_ownership, is_same
from lakewarden.deletion.permit import PROOF_AGE
from lakewarden.deletion.proof import Proof
from lakewarden.errors import LakewardenError, Refused
from lakewarden.model.location import Location
from lakewarden.model.table import TableView
from lakewarden.tables.interface import AllCatalogs
from lakewarden.tables.lake_readings import LakeReadings
from lakewarden.tables.places import Places, TableMetadataFile, roots
from lakewarden.tables.reachability import ReachableFiles
from lakewarden.tables.reread import WAITS

# The oldest a proof may be when it is handed out. The rest of its valid time is enough to check and delete a batch of files.
_READY_AGE = PROOF_AGE / 2
# Tables are created, dropped and committed to during the reading. Then they are read again, at most this many times.
_ATTEMPTS = 3
# Reading what tables need may take longer than the readings are valid. Then pointers are asked again, at most
# this many times.
_ROUNDS = 5


@dataclass
class Neighbours:
    """The tables around one table. `view` is the table as it was planned; `strays` are metadata files found in its folders."""

    action: str
    lake: AllCatalogs
    view: TableView
    strays: Sequence[TableMetadataFile] = ()
    places: Places = field(default_factory=Places)
    _known: dict[tuple[str, str], ReachableFiles] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._readings = LakeReadings(self.action, self.lake, self.view.ref, _READY_AGE)

    def prove(self) -> tuple[TableView, Proof]:
        """The table as it is now, and the files that every table needs. All tables count: a table may name
        files in any place.

        Refuses if the location belongs to another table too, or if a table cannot be read.
        """
        for left in reversed(range(_ROUNDS)):
            own, known = self._prove()
            names = self.places.aliases.and_links(roots(own).values())
            proof = Proof(tuple(known.values()), self._readings.read_at(), names)
            # Slow readings are old by now. The pointers of those tables are asked again; a table that did not
            # move is still known.
            if not left or clock.now() - proof.made_at <= _READY_AGE:
                break
        return own, proof

    def check(self) -> None:
        """Refuse if another table shares this table's folders. Call it before you list files. `prove` reads all tables
        again afterwards, because a listed file may be committed after the reading made here.
        """
        own, others = self.read()
        check_ownership(self.action, own, others, self.strays, self.places)
        self._readings.forget_before(clock.now())

    def _prove(self) -> tuple[TableView, Mapping[tuple[str, str], ReachableFiles]]:
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
                self._readings.forget_before(clock.now())
                continue
            self._known = known  # forget older states: memory holds one state of each table
            return own, known
        raise AssertionError("the last attempt returns or raises")

    def read(self) -> tuple[TableView, list[TableView]]:
        """This table as it is now, and all other tables of every catalog, each as of its last reading."""
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            if not self._readings.ask_all(gone_is_fatal=last):
                continue
            views = self._readings.views
            own = self._own(views)
            others = [each for each in views if each.ref != own.ref]
            if last or not any(each.uuid == own.uuid and not is_same(own, each) for each in others):
                return own, others
            # One of the two tables may have been read before a commit, the other after it.
            self._readings.forget_before(clock.now())
        raise AssertionError("the last attempt returns or raises")

    @property
    def others(self) -> list[TableView]:
        """All other tables, as of their last reading."""
        return [each for each in self._readings.views if each.ref != self.view.ref]

    def _own(self, views: Sequence[TableView]) -> TableView:
        own = next(each for each in views if each.ref == self.view.ref)
        if own.uuid != self.view.uuid:
            raise Refused(
                action=self.action,
                target=own.ref,
                reason=f"it is another table now: its uuid was {self.view.uuid} and is {own.uuid}",
                hint="it was dropped and created again, or another table was renamed to it; plan again",
            )
        return own

    def _reached(self, view: TableView) -> ReachableFiles:
        """The files that a table needs. They change only with its metadata file, which is never overwritten."""
        if not view.metadata_location:
            error = LakewardenError(reason="its catalog does not name its metadata file", hint="")
            raise self._readings.unknown(str(view.ref), error)
        known = self._known.get(_pointer(view))
        if known is not None:
            return known
        try:
            return self.lake.format_for(view.ref).reached(view)
        except LakewardenError as error:
            raise self._readings.unknown(str(view.ref), error) from error


def _pointer(view: TableView) -> tuple[str, str]:
    return view.uuid, f"{Location.of(view.metadata_location)} {view.version}"
