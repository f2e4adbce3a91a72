"""Pins and tags: keeping a snapshot readable, with an answer the reader can trust.

A pin's row is committed first; only then are the table and the journal looked at. Expiry does it the other way round: it
journals which snapshots are going, then looks for pins. So of a pin and an expiry that meet, at least one sees the other,
and a pin that was granted holds.

Others expire through the gateway, which journals nothing. It holds the table's removal lock while it looks for pins and
until the catalog has answered. A pin takes the same lock between writing the row and reading the table. So if a removal did
not see the row, it has ended when the table is read, and the pin sees that the snapshot is gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lakewarden import clock
from lakewarden.errors import LakewardenError, NoSuchTable, Refused, UsageError
from lakewarden.jobs.commit_guard import OutsideRuns
from lakewarden.model.location import same
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.values import duration
from lakewarden.state.database import State
from lakewarden.state.holds import MIRROR, Pin, Pins
from lakewarden.state.locks import Locks, removal
from lakewarden.state.process import current_owner
from lakewarden.state.run_queries import taking
from lakewarden.state.runs import Journal
from lakewarden.state.tables import SeenTables

if TYPE_CHECKING:  # listing pins and most unpinning load no Spark
    from lakewarden.tables.interface import TableFormat


@dataclass(frozen=True, slots=True)
class PinRequest:
    """A request for a pin. Snapshot None: the current one. Ttl None: until it is removed."""

    table: TableRef
    snapshot_id: int | None
    holder: str
    purpose: str = ""
    ttl: timedelta | None = None
    mirror: bool = False


class PinJobs:
    """`format_for` is asked only where the table itself must be looked at: listing and most unpinning need no Spark."""

    def __init__(self, state: State, format_for: Callable[[TableRef], TableFormat]) -> None:
        self.pins, self._state = Pins(state), state
        self._journal = Journal(state)
        self._locks = Locks(state, current_owner())
        self._format_for = format_for

    def pin(self, wish: PinRequest) -> PinHandle:
        from lakewarden.storage.generation_file import keeping

        format_ = self._format_for(wish.table)
        view = format_.view(wish.table)
        pin = _asked(wish, view, clock.now())
        home = SeenTables(self._state).home(view.uuid) or view.location
        # Nothing is written where only the table's writer says that it lies.
        with keeping(home if same(home, view.location) else None, view.io, self._state):
            self.pins.add(pin)  # from here on the pin counts, even if this process stops
        try:
            self._check(pin, format_)
            if pin.tag is not None:
                format_.writer(OutsideRuns()).create_tag(wish.table, pin.tag, pin.snapshot_id, pin.expires_at)
        except BaseException:
            # The pin came too late, or that is not known. The reader gets the error, and the pin is removed.
            self.pins.remove(pin.id)
            raise
        return PinHandle(pin, self)

    def renew(self, pin: Pin, ttl: timedelta | None) -> Pin:
        """Checked like a new one: in the last moment of a pin, expiry on another host may think that it is over."""
        now = clock.now()
        renewed = self.pins.renew(pin.id, _after(now, ttl), now)
        if renewed is None:
            raise Refused(
                action="renew",
                target=f"pin {pin.id}",
                reason="its time was over or it was taken away, and its snapshot may be gone",
                hint=f"pin the snapshot again: `lakewarden pin {pin.table} --snapshot {pin.snapshot_id}`",
            )
        table = TableRef.parse(renewed.table)
        format_ = self._format_for(table)
        try:
            self._check(renewed, format_)
        except Refused:  # any other failure leaves the pin as it is: a catalog that is away must not end it
            self.pins.remove(pin.id)
            raise
        if renewed.tag is not None:
            format_.writer(OutsideRuns()).retain_tag(table, renewed.tag, renewed.expires_at)
        return renewed

    def unpin(self, pin_id: str) -> Pin:
        """The mirror goes first: while it is there the pin is listed, so that the next try can take both away."""
        pin = self.pins.get(pin_id)
        if pin is None:
            raise UsageError(
                reason=f"find pin {pin_id!r}: there is no such pin", hint="see `lakewarden pins`"
            )
        if pin.tag is not None:
            self.pins.end(pin)  # the gateway lets nobody drop the mirror of a pin that counts
            self._drop_mirror(pin, pin.tag)
        self.pins.remove(pin_id)
        return pin

    def _check(self, pin: Pin, format_: TableFormat) -> None:
        table = TableRef.parse(pin.table)
        # The journal before the table: an expiry that ends between the two is over by the second look, and is seen there.
        run = taking(self._journal, str(table), pin.snapshot_id)
        with self._locks.held(table, removal(pin.table_uuid)):
            view = format_.view(table)
        if run is not None:
            raise _refused(view, pin.snapshot_id, f"expire run {run.id} is removing it now")
        refuse_expiring(self._journal, view, pin.snapshot_id, pin.table_uuid)

    def _drop_mirror(self, pin: Pin, tag: str) -> None:
        table = TableRef.parse(pin.table)
        try:
            format_ = self._format_for(table)
            if tag in _refs(format_, table):  # expiry may have taken it already
                format_.writer(OutsideRuns()).drop_tag(table, tag)
        except LakewardenError as error:
            raise LakewardenError(
                reason=f"take away tag {tag} of {table}, which mirrors pin {pin.id}: {error.message}",
                hint=f"the pin is listed, and the snapshot kept, until the tag is gone; try `lakewarden unpin {pin.id}` again",
            ) from error


def _refs(format_: TableFormat, table: TableRef) -> set[str]:
    """A dropped table has none: otherwise its pins could never be removed. A renamed table lists the tag under its new name."""
    try:
        return {ref.name for ref in format_.view(table).refs}
    except NoSuchTable:
        return set()


class PinHandle:
    """A granted pin. Leaving its `with` block removes it."""

    def __init__(self, pin: Pin, pinning: PinJobs) -> None:
        self.pin = pin
        self._pinning = pinning

    @property
    def id(self) -> str:
        return self.pin.id

    @property
    def table(self) -> str:
        return self.pin.table

    @property
    def snapshot_id(self) -> int:
        return self.pin.snapshot_id

    @property
    def expires_at(self) -> datetime | None:
        return self.pin.expires_at

    def renew(self, ttl: str | timedelta | None) -> Self:
        """Extend the pin to this long from now. Refused if it has already ended: the snapshot may be gone."""
        self.pin = self._pinning.renew(self.pin, duration(ttl, "ttl"))
        return self

    def unpin(self) -> None:
        """Remove the pin. If it is already removed, that is fine."""
        if self._pinning.pins.get(self.id) is not None:
            self._pinning.unpin(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unpin()


def _after(now: datetime, ttl: timedelta | None) -> datetime | None:
    return None if ttl is None else now + ttl


def _asked(wish: PinRequest, view: TableView, now: datetime) -> Pin:
    snapshot_id = view.current_snapshot_id if wish.snapshot_id is None else wish.snapshot_id
    if snapshot_id is None:
        raise UsageError(reason=f"pin {view.ref}: it has no snapshot yet", hint="write to it first")
    _refuse_unknown(view, snapshot_id)
    pin = Pin(
        secrets.token_hex(4),
        str(view.ref),
        view.uuid,
        snapshot_id,
        wish.holder,
        wish.purpose,
        now,
        _after(now, wish.ttl),
    )
    return replace(pin, tag=MIRROR + pin.id) if wish.mirror else pin


def refuse_expiring(
    journal: Journal, view: TableView, snapshot_id: int, table_uuid: str | None = None
) -> None:
    """Refuses if the snapshot is gone, or if a running expiry may remove it."""
    if table_uuid is not None and view.uuid != table_uuid:
        raise _refused(view, snapshot_id, "the table was dropped and created again since")
    _refuse_unknown(view, snapshot_id)
    run = taking(journal, str(view.ref), snapshot_id)
    if run is not None:
        raise _refused(view, snapshot_id, f"expire run {run.id} is removing it now")


def _refuse_unknown(view: TableView, snapshot_id: int) -> None:
    if view.snapshot(snapshot_id) is None:
        raise _refused(view, snapshot_id, "the table does not have it, or not any more")


def _refused(view: TableView, snapshot_id: int, reason: str) -> Refused:
    return Refused(
        action="keep",
        target=f"snapshot {snapshot_id} of {view.ref}",
        reason=reason,
        hint=f"do not read it; take one that `lakewarden show {view.ref}` lists",
    )
