"""Collects the holds on a table: pins, tags, branches, streaming writers, consumers, active writers and staged
loads.

Active writers and staged loads keep files that no snapshot names yet; all other holds keep snapshots. Only this
module decides what a hold covers. In doubt, the hold covers the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from lakewarden.config.aliases import Aliases
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.location import normal
from lakewarden.model.table import Ref, Snapshot, TableView
from lakewarden.state.database import State
from lakewarden.state.generation import Generations
from lakewarden.state.holds import Heartbeats, Loads, Pins
from lakewarden.tables.streaming_writers import RESTARTS, held_for_restarts

# The clocks of a store and a writer may differ: a file that seems this much older than its writer may still belong to it.
CLOCKS_DIFFER = timedelta(hours=1)

_FIRST_STORES = datetime(1990, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Holds:
    """All holds on one table at one moment. `restored_at` is when the state database was found restored from a
    backup: pins made after that backup are missing from the holds.
    """

    holds: tuple[Hold, ...] = ()
    aliases: Aliases = field(default_factory=Aliases)
    restored_at: datetime | None = None

    def complete_from(self, grace: timedelta) -> datetime | None:
        """When the owners of lost pins have had the grace period to pin again. None if no pin was lost."""
        return None if self.restored_at is None else self.restored_at + grace

    def snapshots(self) -> Mapping[int, tuple[Hold, ...]]:
        """The holds on each snapshot."""
        holds: dict[int, tuple[Hold, ...]] = {}
        for hold in self.holds:
            for each in (hold.snapshot_id, *hold.chain):
                if each is not None:
                    holds[each] = (*holds.get(each, ()), hold)
        return holds

    def covering(self, path: str, modified: datetime | None) -> Hold | None:
        """The writer or load that may still need this file. A file of unknown age may belong to any writer."""
        if self._cover.nothing:  # almost always true: purge asks this for every file
            return None
        for plain in map(normal, self.aliases.spellings(path)):
            for prefix, hold in self._cover.prefixes:
                if plain.startswith(prefix):
                    return hold
            if plain in self._cover.paths:
                return self._cover.paths[plain]
        return next((hold for hold in self._cover.anywhere if _may_have_written(hold, modified)), None)

    @property
    def cover_files(self) -> bool:
        """Whether any hold is on files rather than on snapshots."""
        return not self._cover.nothing

    @cached_property
    def _cover(self) -> _Cover:
        files = [hold for hold in self.holds if hold.kind in (HoldKind.WRITER, HoldKind.LOAD)]
        return _Cover(
            tuple((_prefix(each), hold) for hold in files for each in hold.prefixes),
            {normal(each): hold for hold in files for each in hold.paths},
            tuple(hold for hold in files if _is_anywhere(hold)),
        )


@dataclass(frozen=True, slots=True)
class _Cover:
    """An index of what the holds cover, arranged for fast look-up."""

    prefixes: tuple[tuple[str, Hold], ...]
    paths: Mapping[str, Hold]
    anywhere: tuple[Hold, ...]

    @property
    def nothing(self) -> bool:
        return not (self.prefixes or self.paths or self.anywhere)


def _prefix(written: str) -> str:
    """A prefix of file names, not a folder: `…/data/part-` covers `…/data/part-7`. The name of a folder ends with a slash."""
    plain = normal(written)
    return plain + "/" if written.endswith("/") and not plain.endswith("/") else plain


def _is_anywhere(hold: Hold) -> bool:
    return hold.kind is HoldKind.WRITER and not hold.prefixes and not hold.paths


def known_age(modified: datetime | None) -> datetime | None:
    """When a file was modified, if the time is credible. Stores that do not know the time report 0 or a time
    before stores existed.
    """
    return None if modified is None or modified < _FIRST_STORES else modified


def _may_have_written(writer: Hold, modified: datetime | None) -> bool:
    known = known_age(modified)
    return writer.since is None or known is None or known >= writer.since - CLOCKS_DIFFER


def gather(view: TableView, state: State, now: datetime, restarts: timedelta = RESTARTS) -> Holds:
    """Every hold that counts at this moment. The state database is read last, so a pin that was made during the
    call is included.

    `restarts` is how long after its last commit a streaming writer may come back (`snapshot_restart_hours`).
    """
    in_table = (*_refs(view), *held_for_restarts(view, restarts, now))
    restored_at = Generations(state).restored_at()
    return Holds((*in_table, *_in_state(view, state, now)), restored_at=restored_at)


def _in_state(view: TableView, state: State, now: datetime) -> Iterator[Hold]:
    table = str(view.ref)
    yield from (each.hold() for each in Pins(state).live(view.uuid, now))
    # A heartbeat that names files counts for every table. One that names no files counts only for its own table.
    beats = (each for each in Heartbeats(state).list() if each.live(now))
    yield from (each.hold() for each in beats if each.prefixes or each.table == table)
    yield from (each.hold() for each in Loads(state).live(now))


def _refs(view: TableView) -> Iterator[Hold]:
    for ref in view.refs:
        kind = HoldKind(ref.kind)
        until = _tag_ends(ref, view.snapshot(ref.snapshot_id)) if kind is HoldKind.TAG else None
        yield Hold(kind, ref.name, "", snapshot_id=ref.snapshot_id, until=until)
    # Format version 1 does not have to name its main branch.
    if view.current_snapshot_id is not None and not any(ref.name == "main" for ref in view.refs):
        yield Hold(HoldKind.BRANCH, "main", "", snapshot_id=view.current_snapshot_id)


def _tag_ends(ref: Ref, snapshot: Snapshot | None) -> datetime | None:
    """When the tag expires. Iceberg counts a ref's age from the commit of its snapshot."""
    if ref.max_age_ms is None or snapshot is None:
        return ref.ends_at
    try:
        return snapshot.committed_at + timedelta(milliseconds=ref.max_age_ms)
    except OverflowError:
        return None  # how Iceberg writes "forever"
