"""The part of `Lakewarden` that keeps things: pins, tags, heartbeats and staged loads."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.model.hold import Hold
from lakewarden.model.run import Run, Trigger
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.duration import duration

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.config.schema import Config
    from lakewarden.deletion.holds import Holds
    from lakewarden.jobs.fsck.adopt_folder import Claim
    from lakewarden.jobs.loads.adopt import Adopting
    from lakewarden.jobs.pins import PinHandle, Pinning
    from lakewarden.lake import Lake
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.database import State
    from lakewarden.state.holds import Heartbeat, Load, Pin
    from lakewarden.state.runs import Journal
    from lakewarden.state.tables import SeenTables
    from lakewarden.tables.interface import TableFormat, TableWriter

# Longer than any commit of a tag takes; a process that dies meanwhile keeps its snapshot no longer than this.
_TAGGING = timedelta(minutes=10)


def check_stay(ref: TableRef, retain: str | timedelta | None, forever: bool) -> None:
    """A tag stays for a time or for ever: UsageError where a call says neither, or both."""
    if (retain is None) is not forever:
        raise UsageError(
            reason=f"tag {ref}: say how long, in exactly one way", hint="add --retain 90d or --forever"
        )


class Holding:
    """Calls about holds. What they stand on, `Lakewarden` itself has."""

    if TYPE_CHECKING:
        config: Config

        @property
        def state(self) -> State: ...

        @property
        def journal(self) -> Journal: ...

        @property
        def lake(self) -> Lake: ...

        @property
        def _seen(self) -> SeenTables: ...

        def view(self, table: str | TableRef) -> TableView: ...

        def _resolve(
            self, ref: TableRef, properties: Mapping[str, str], call: Mapping[str, object] | None
        ) -> Policy: ...

        def _trigger(self, trigger: Trigger | Mapping[str, str] | None) -> Trigger: ...

    def holds(self, table: str | TableRef) -> Holds:
        """Everything that keeps a snapshot or a file of the table at this moment, and who asked for it."""
        from lakewarden.deletion.holds import gather

        view = self.view(table)
        policy = self._resolve(view.ref, view.properties, None)
        return gather(view, self.state, clock.now(), policy.hours("snapshot_restart_hours"))

    def hold_costs(self, table: str | TableRef) -> tuple[tuple[Hold, int | None], ...]:
        """Every hold with the bytes that stay only because of it; None where that cannot be known."""
        from lakewarden.deletion.holds import gather
        from lakewarden.jobs.hold_costs import hold_costs

        view, now = self.view(table), clock.now()
        whole = {"snapshot_expire_limit": None, "snapshot_expiry_enabled": True}
        policy = self._resolve(view.ref, view.properties, whole)
        found = gather(view, self.state, now, policy.hours("snapshot_restart_hours")).holds
        return tuple(
            zip(found, hold_costs(self.lake.format_for(view.ref), view, policy, found, now), strict=True)
        )

    # ------------------------------------------------------------ pins

    def pin(
        self,
        table: str | TableRef,
        snapshot_id: int | None = None,
        *,
        holder: str,
        purpose: str = "",
        ttl: str | timedelta | None = None,
        mirror: bool = False,
    ) -> PinHandle:
        """Keep a snapshot (the current one, when not said) readable for `ttl`, or until it is unpinned.

        Refused where the snapshot is gone or going: then it must not be read. `with lw.pin(...) as pin:` unpins on leaving.
        `mirror` makes a tag of it too, for tools that know nothing of pins.
        """
        from lakewarden.jobs.pins import Wish

        name = _named(holder, "holder")
        wish = Wish(_ref(table), snapshot_id, name, purpose, duration(ttl, "ttl"), mirror)
        return self._pinning.pin(wish)

    def unpin(self, pin_id: str) -> Pin:
        """Take a pin away, and its mirror; its snapshot stays until it expires."""
        return self._pinning.unpin(pin_id)

    def pins(self, table: str | TableRef | None = None) -> tuple[Pin, ...]:
        """Every pin, or the table's; also those whose time is over."""
        return self._pinning.pins.list(None if table is None else str(_ref(table)))

    @property
    def _pinning(self) -> Pinning:
        from lakewarden.jobs.pins import Pinning

        return Pinning(self.state, self._format_for)

    def _format_for(self, table: TableRef) -> TableFormat:
        return self.lake.format_for(table)

    def _writer_for(self, table: TableRef) -> TableWriter:
        from lakewarden.jobs.commit_guard import OutsideRuns

        return self._format_for(table).writer(OutsideRuns())

    # ------------------------------------------------------------ tags

    def tag(
        self,
        table: str | TableRef,
        name: str,
        snapshot_id: int | None = None,
        *,
        retain: str | timedelta | None = None,
        forever: bool = False,
    ) -> TableView:
        """Give a snapshot (the current one, when not said) a name that keeps it: for `retain` from now, or `forever`."""
        from lakewarden.jobs.cold.read_only import refuse_frozen
        from lakewarden.jobs.pins import Wish

        ref = _ref(table)
        check_stay(ref, retain, forever)
        view = self.view(ref)
        wanted = view.current_snapshot_id if snapshot_id is None else snapshot_id
        if wanted is None:
            raise UsageError(reason=f"tag {ref}: it has no snapshot yet", hint="write to it first")
        refuse_frozen("tag", view, self.state)
        with ExitStack() as pinned:
            if view.snapshot(wanted) is not None:
                # Until the tag is there, a pin keeps the snapshot: others who expire look for pins right before they commit.
                pinned.enter_context(self._pinning.pin(Wish(ref, wanted, f"tag {name}", ttl=_TAGGING)))
            self._writer_for(ref).create_tag(ref, name, wanted, _end(duration(retain, "retain")))
        return self.view(ref)

    def untag(self, table: str | TableRef, name: str) -> TableView:
        """Take a tag away; its snapshot stays until it expires."""
        from lakewarden.jobs.cold.read_only import refuse_frozen

        ref = _ref(table)
        refuse_frozen("untag", self.view(ref), self.state)
        self._writer_for(ref).drop_tag(ref, name)
        return self.view(ref)

    # ------------------------------------------------------------ heartbeats

    def heartbeat(
        self,
        table: str | TableRef,
        writer: str,
        *,
        prefixes: Sequence[str] = (),
        ttl: str | timedelta = "10m",
        host: str | None = None,
    ) -> Heartbeat:
        """Say that a writer is at the table, so that files no snapshot names yet are left to it. Repeat it within `ttl`.

        With prefixes everything whose path begins with one is left alone; without, everything since the writer started.
        """
        from lakewarden.jobs.loads.begin import absolute
        from lakewarden.state.holds import Heartbeats

        length = duration(ttl, "ttl")
        if length is None:
            raise UsageError(reason="read ttl None: a heartbeat ends", hint="write it as 10m or 2h")
        name, where = _named(writer, "writer"), host or socket.gethostname()
        return Heartbeats(self.state).beat(
            str(_ref(table)), name, where, absolute(prefixes), length, clock.now()
        )

    def stop_heartbeat(self, table: str | TableRef, writer: str) -> bool:
        """The writer is done, and holds nothing any more. False when it was not known."""
        from lakewarden.state.holds import Heartbeats

        return Heartbeats(self.state).stop(str(_ref(table)), writer)

    def heartbeats(self, table: str | TableRef) -> tuple[Heartbeat, ...]:
        """Every writer that was heard of; also those that fell silent."""
        from lakewarden.state.holds import Heartbeats

        return Heartbeats(self.state).list(str(_ref(table)))

    # ------------------------------------------------------------ staged loads

    def stage_begin(
        self,
        table: str | TableRef,
        holder: str,
        *,
        paths: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        purpose: str = "",
        ttl: str | timedelta | None = None,
    ) -> Load:
        """Hold files that are about to be written and will become part of the table. Call it before writing them."""
        from lakewarden.jobs.loads.begin import begin

        who, length = _named(holder, "holder"), duration(ttl, "ttl")
        ref = _ref(table)
        with self._keeping(ref):
            return begin(self.state, ref, who, paths, prefixes, purpose, length)

    def stage_adopt(
        self,
        load_id: str,
        paths: Sequence[str] = (),
        trigger: Trigger | Mapping[str, str] | None = None,
    ) -> Run:
        """Make the load's Parquet files, and these, part of its table: all of them in one snapshot, or none. Twice is once."""
        return self._adopting.adopt(load_id, paths, self._trigger(trigger))

    def stage_fail(self, load_id: str) -> Load:
        """Give the load up: its registered files are in the trash. Refused while they are, or may become, part of the table."""
        return self._adopting.fail(load_id)

    def adopt_folder(self, table: str | TableRef, *, operator: str, confirm: bool = False) -> Claim:
        """Metadata that dropped tables left in the table's folder, and that stops sweep and purge; with `confirm` it is claimed:
        trashed in the operator's name. `restore` takes that back. Refused where a table of any catalog is there."""
        from lakewarden.jobs.deps import Grounds
        from lakewarden.jobs.fsck.adopt_folder import claim

        ref = _ref(table)
        name = _named(operator, "operator")
        grounds, format_ = Grounds(self.state, self.lake), self.lake.format_for(ref)
        return claim(grounds, format_, ref, self._policy_of, name, do=confirm)

    def _keeping(self, ref: TableRef) -> AbstractContextManager[None]:
        """Around what keeps files of the table from being deleted, for calls that start no Spark."""
        from lakewarden.deletion.restored_state import keeping
        from lakewarden.tables.paimon.stores import io_properties

        seen, catalog = self._seen.get(ref), self.config.catalogs.get(ref.catalog)
        properties = catalog.properties if catalog else {}
        io = io_properties(properties) if catalog and catalog.format == "paimon" else properties
        return keeping(self._seen.home(seen.uuid) if seen else None, io, self.state)

    def _policy_of(self, view: TableView) -> Policy:
        return self._resolve(view.ref, view.properties, None)

    @property
    def _adopting(self) -> Adopting:
        from lakewarden.jobs.loads.adopt import Adopting

        return Adopting(self.state, self.journal, self._format_for, self._policy_of, lambda: self.lake.spark)


def _ref(table: str | TableRef) -> TableRef:
    return table if isinstance(table, TableRef) else TableRef.parse(table)


def _end(length: timedelta | None) -> datetime | None:
    return None if length is None else clock.now() + length


def _named(name: Any, what: str) -> str:
    text = str(name).strip()
    if not text:
        raise UsageError(reason=f"read {what} {name!r}: it needs a name", hint=f"say who it is with --{what}")
    return text
