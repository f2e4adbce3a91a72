"""Everything that keeps something in the whole lake: pins, writers and loads from the database, tags and branches from portraits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lakewarden.client import Lakewarden
from lakewarden.console import queries
from lakewarden.health.table_details import HoldLine
from lakewarden.model.hold import HoldKind
from lakewarden.model.plain import Plain

SHOWN = 300
KINDS = tuple(map(str, HoldKind))
_FROM_DATABASE = (HoldKind.PIN, HoldKind.WRITER, HoldKind.LOAD)


@dataclass(frozen=True, slots=True)
class HoldRow(Plain):
    """`pin` is the id of a pin, which can be taken away."""

    table: str
    hold: HoldLine
    pin: str = ""

    JSON_KEYS = "table **hold pin?"


@dataclass(frozen=True, slots=True)
class HoldsPage(Plain):
    now: datetime
    kind: str
    text: str
    rows: tuple[HoldRow, ...]
    total: int

    JSON_KEYS = "at=now total holds=rows"


def holds_page(warden: Lakewarden, kind: str, text: str, now: datetime) -> HoldsPage:
    details = [(table, HoldLine.read(stored)) for table, stored in queries.stored_holds(warden)]
    every = [*_of_database(warden, details, now), *_of_portraits(details)]
    words = text.lower().split()
    found = [
        row
        for row in every
        if (not kind or row.hold.kind == kind) and all(word in _words(row) for word in words)
    ]
    found.sort(key=lambda row: (-(row.hold.bytes or 0), row.table, row.hold.kind, row.hold.name))
    return HoldsPage(now, kind, text, tuple(found), len(every))


def _words(row: HoldRow) -> str:
    hold = row.hold
    return f"{row.table} {hold.kind} {hold.name} {hold.holder} {hold.purpose}".lower()


_Painted = list[tuple[str, HoldLine]]


def _of_database(warden: Lakewarden, details: _Painted, now: datetime) -> Iterator[HoldRow]:
    """These change from moment to moment, so portraits are not asked about them; but those know what a pin costs."""
    pins = [each for each in warden.holds.pins() if each.live(now)]
    cost = {(table, hold.name): hold.bytes for table, hold in details if hold.kind == HoldKind.PIN}
    for pin in pins:
        line = HoldLine(
            "pin", pin.id, pin.holder, pin.purpose, pin.snapshot_id, pin.created_at, pin.expires_at,
            cost.get((pin.table, pin.id)),
        )  # fmt: skip
        yield HoldRow(pin.table, line, pin.id)
    for beat in queries.writers(warden):
        what = ", ".join(beat.prefixes) or "everything written since it started"
        yield HoldRow(
            beat.table, HoldLine("writer", beat.writer, beat.host, what, None, beat.started_at, beat.until)
        )
    for load in queries.loads(warden):
        files = f"{len(load.paths):,} files" if load.paths else ", ".join(load.prefixes)
        told = f"{load.purpose} ({files})" if load.purpose else files
        yield HoldRow(
            load.table, HoldLine("load", load.id, load.holder, told, None, load.created_at, load.expires_at)
        )


def _of_portraits(details: _Painted) -> Iterator[HoldRow]:
    for table, hold in details:
        if hold.kind not in _FROM_DATABASE:
            yield HoldRow(table, hold)
