"""Holds on the screen: the holder, what it keeps, since when and until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import age, counted, moment, size, some
from lakewarden.model.hold import Hold
from lakewarden.model.plain import pick
from lakewarden.model.table import Ref
from lakewarden.report import look
from lakewarden.state.holds import Heartbeat, Load, LoadState, Pin

if TYPE_CHECKING:
    from rich.console import RenderableType

_FOREVER = "forever"


@dataclass(frozen=True, slots=True)
class HoldsReport:
    """Every hold on a table. `sizes`: the bytes that only this hold keeps, in the same order; None if unknown."""

    table: str
    holds: tuple[Hold, ...]
    now: datetime
    sizes: tuple[int | None, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        holds = [_hold(each, size_) for each, size_ in zip(self.holds, self._sizes(), strict=True)]
        return {"table": self.table, "holds": holds}

    def render(self, width: int) -> RenderableType:
        title = look.title("holds", self.table)
        if not self.holds:
            return look.stack(title, look.dim("  nothing holds a snapshot or a file"))
        rows = [
            (
                str(each.kind),
                each.name,
                each.holder or "–",
                _what(each),
                _until(each.until, self.now),
                "–" if bytes_ is None else size(bytes_),
                look.dim(each.purpose),
            )
            for each, bytes_ in zip(self.holds, self._sizes(), strict=True)
        ]
        headings = ("hold", "name", "holder", "keeps", "until", "size", "purpose")
        justify: tuple[look.Justify, ...] = (*look.left(5), "right", "left")
        return look.stack(title, look.lines(rows, justify, headings, wraps=(1, 3, 6)))

    def _sizes(self) -> tuple[int | None, ...]:
        return self.sizes or (None,) * len(self.holds)


@dataclass(frozen=True, slots=True)
class PinsReport:
    pins: tuple[Pin, ...]
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"pins": [_pin(each, self.now) for each in self.pins]}

    def render(self, width: int) -> RenderableType:
        if not self.pins:
            return look.dim("no pins")
        rows = [
            (
                each.id,
                each.table,
                str(each.snapshot_id),
                each.holder,
                age(each.created_at, self.now),
                _until(each.expires_at, self.now),
                look.dim(each.purpose),
            )
            for each in self.pins
        ]
        headings = ("pin", "table", "snapshot", "holder", "made", "until", "purpose")
        return look.lines(rows, look.left(7), headings, indent=0)


@dataclass(frozen=True, slots=True)
class PinReport:
    """One pin, granted or (`removed`) removed."""

    pin: Pin
    now: datetime
    removed: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**_pin(self.pin, self.now), "removed": self.removed}

    def render(self, width: int) -> RenderableType:
        pin = self.pin
        facts: list[tuple[str, str | Text]] = [
            ("pin", pin.id),
            ("snapshot", str(pin.snapshot_id)),
            ("holder", pin.holder),
        ]
        if self.removed:
            facts.append(("removed", "the snapshot may expire when it is due"))
        else:
            facts.append(("until", _until(pin.expires_at, self.now)))
            facts.append(("to end it", look.command(f"lakewarden unpin {pin.id}")))
        if pin.tag:
            facts.append(("tag", pin.tag))
        return look.stack(look.title("unpin" if self.removed else "pin", pin.table), look.facts(facts))


@dataclass(frozen=True, slots=True)
class TagReport:
    """The tags of a table after one was created or (`removed`) removed."""

    table: str
    name: str
    refs: tuple[Ref, ...]
    removed: bool = False

    def to_dict(self) -> dict[str, Any]:
        tags = [pick(ref, "name snapshot_id") for ref in self._tags()]
        return {**pick(self, "table name removed"), "tags": tags}

    def render(self, width: int) -> RenderableType:
        title = look.title("untag" if self.removed else "tag", self.table)
        rows = [(ref.name, str(ref.snapshot_id)) for ref in self._tags()]
        told = f"  {self.name} is removed; its snapshot stays until it expires" if self.removed else None
        return look.stack(
            title,
            None if told is None else look.dim(told),
            look.lines(rows, look.left(2), ("tag", "snapshot")) if rows else look.dim("  it has no tags"),
        )

    def _tags(self) -> list[Ref]:
        return [ref for ref in self.refs if ref.kind == "tag"]


@dataclass(frozen=True, slots=True)
class HeartbeatsReport:
    table: str
    heartbeats: tuple[Heartbeat, ...]
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"table": self.table, "heartbeats": [_beat(each, self.now) for each in self.heartbeats]}

    def render(self, width: int) -> RenderableType:
        title = look.title("heartbeat", self.table)
        if not self.heartbeats:
            return look.stack(title, look.dim("  no writers"))
        rows = [
            (
                each.writer,
                each.host,
                age(each.started_at, self.now),
                _until(each.until, self.now),
                some(list(each.prefixes)) or "everything since it started",
            )
            for each in self.heartbeats
        ]
        headings = ("writer", "host", "started", "until", "holds")
        return look.stack(title, look.lines(rows, look.left(5), headings))


@dataclass(frozen=True, slots=True)
class LoadReport:
    load: Load
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        keys = "load=id table holder purpose state paths prefixes created_at expires_at ended_at run_id"
        return pick(self.load, keys)

    def render(self, width: int) -> RenderableType:
        load = self.load
        facts: list[tuple[str, str | Text]] = [
            ("load", load.id),
            ("state", str(load.state)),
            ("holder", load.holder),
            ("files", _files(load.paths, load.prefixes)),
        ]
        if load.state is LoadState.OPEN:
            facts.append(("until", _until(load.expires_at, self.now)))
            facts.append(("then", look.command(f"lakewarden stage adopt {load.id}")))
            facts.append(("or", look.command(f"lakewarden stage fail {load.id}")))
        elif load.state is LoadState.FAILED:
            facts.append(
                ("next", "its registered files are in the trash; purge deletes them after the grace")
            )
            facts.append(("to see them", look.command(f"lakewarden trash {load.table}")))
        return look.stack(look.title("stage", load.table), look.facts(facts))


def _what(hold: Hold) -> str:
    if hold.snapshot_id is not None:
        between = f" and {counted(len(hold.chain), 'snapshot')} after it" if hold.chain else ""
        return f"snapshot {hold.snapshot_id}{between}"
    if not hold.paths and not hold.prefixes:
        return "everything written since it started"
    return _files(hold.paths, hold.prefixes)


def _files(paths: Sequence[str], prefixes: Sequence[str]) -> str:
    told = [counted(len(paths), "file")] if paths else []
    return ", ".join([*told, *(f"{prefix}…" for prefix in prefixes)])


def _until(end: datetime | None, now: datetime) -> str:
    if end is None:
        return _FOREVER
    return moment(end) if end > now else f"over, {age(end, now)}"


def _hold(hold: Hold, bytes_: int | None) -> dict[str, Any]:
    keys = "kind name holder purpose snapshot_id chain paths prefixes since until"
    return {**pick(hold, keys), "bytes": bytes_}


def _pin(pin: Pin, now: datetime) -> dict[str, Any]:
    keys = "pin=id table snapshot_id holder purpose created_at expires_at"
    return {**pick(pin, keys), "live": pin.live(now), "tag": pin.tag}


def _beat(beat: Heartbeat, now: datetime) -> dict[str, Any]:
    kept = list(beat.prefixes)
    return {**pick(beat, "writer host started_at beat_at until"), "live": beat.live(now), "prefixes": kept}
