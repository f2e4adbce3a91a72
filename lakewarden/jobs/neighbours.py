"""Every other table there is, read anew each time: which of them could name a file, and what they need.

For sweep and reap, which must not take another table's file for unneeded. A table that cannot be read stops them: what it
needs is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lakewarden import clock
from lakewarden.errors import LakewardenError, NoSuchTable, Refused
from lakewarden.jobs.grounds import Catalogs
from lakewarden.jobs.moved_on import WAITS
from lakewarden.model import TableRef, TableView
from lakewarden.paths import normal
from lakewarden.safety.ownership import MetadataFile, check_ownership, is_same
from lakewarden.safety.proof import Proof
from lakewarden.safety.reached import Reached

# Loading a table waits for its catalog and its store most of the time.
_THREADS = 8
# How long what was read of the other tables counts. The table itself is read anew for every batch.
FRESH_SECONDS = 5.0
# Tables come, go and are committed to while they are read; then everything is read again, so often at most.
_ATTEMPTS = 3


@dataclass
class Neighbours:
    """The tables around one table. `view` is it as it was planned; `strays` are metadata files found in its folders."""

    action: str
    lake: Catalogs
    view: TableView
    strays: Sequence[MetadataFile] = ()
    _known: dict[tuple[str, str], Reached] = field(default_factory=dict)
    _others: list[TableView] = field(default_factory=list)
    _read_at: float | None = None

    def prove(self) -> tuple[TableView, Proof]:
        """The table as it is now, and what every table needs. Wherever a table lies: it may name files of any place.

        Refused where the location is not this table's alone, or where a table cannot be read.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            made_at = clock.now()
            own, others = self.read()
            check_ownership(self.action, own, others, self.strays)
            try:
                known = {_pointer(each): self._reached(each) for each in (own, *others)}
            except Refused:
                # Another tool may have expired what was about to be read: the table as it is now does not need it.
                if attempt == _ATTEMPTS:
                    raise
                if self.view.in_order:  # while files go, the snapshot that names them is there for a moment
                    clock.sleep(WAITS[attempt])
                self._read_at = None
                continue
            self._known = known  # what moved on is forgotten: memory holds one state of each table
            return own, Proof(tuple(known.values()), made_at)
        raise AssertionError("the last attempt returns or raises")

    def read(self) -> tuple[TableView, list[TableView]]:
        """This table as it is now, and all others, of every catalog, as they were at most some seconds ago."""
        if self._read_at is not None and clock.monotonic() - self._read_at < FRESH_SECONDS:
            own = self._own([self._view(self.view.ref)])
            if all(each.uuid != own.uuid or is_same(own, each) for each in self._others):
                return own, self._others
        own, self._others = self._read()
        self._read_at = (
            clock.monotonic()
        )  # reading a thousand tables may itself take longer than they stay fresh
        return own, self._others

    def _read(self) -> tuple[TableView, list[TableView]]:
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            found = self._read_all(gone_is_fatal=last)
            if found is None:
                continue
            own = self._own(found)
            others = [each for each in found if each.ref != own.ref]
            if last or not any(each.uuid == own.uuid and not is_same(own, each) for each in others):
                return own, others
        raise AssertionError("the last attempt returns or raises")

    def _read_all(self, *, gone_is_fatal: bool) -> list[TableView] | None:
        """None where a table was listed and is not there: dropped, or called something else by now."""
        # The table itself even where its catalog does not list it: a Hadoop catalog hides what lies in another table's folder.
        listed = [self.view.ref, *(ref for catalog in self.lake.catalogs() for ref in self._listed(catalog))]
        try:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakewarden-neighbours") as pool:
                found = pool.map(self._view_or_none, dict.fromkeys(listed))
                return [each for each in found if each is not None]
        except NoSuchTable as error:
            if gone_is_fatal:
                raise self._unknown(str(error.parts["table"]), error) from error
            return None

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
        """None for what is listed but no table of this format: a session's own catalog has others too."""
        try:
            return self._view(ref)
        except NoSuchTable as error:
            if error.parts.get("other_format") and ref != self.view.ref:
                return None
            raise

    def _own(self, found: Sequence[TableView]) -> TableView:
        own = next(each for each in found if each.ref == self.view.ref)
        if own.uuid != self.view.uuid:
            raise Refused(
                action=self.action,
                target=own.ref,
                reason=f"it is another table now: its uuid was {self.view.uuid} and is {own.uuid}",
                hint="it was dropped and made anew, or another was renamed to it; plan again",
            )
        return own

    def _reached(self, view: TableView) -> Reached:
        """What a table needs changes only with its metadata file, which is never written twice."""
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
    return view.uuid, f"{normal(view.metadata_location)} {view.version}"
