"""`lw.holds`: what keeps snapshots and files: pins, tags, heartbeats and staged loads."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.model.hold import Hold
from lakewarden.model.run import Run, Trigger
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.values import duration
from lakewarden.services.deps import ServiceDeps, read_trigger, table_ref

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.deletion.holds import Holds
    from lakewarden.jobs.fsck.adopt_folder import Claim
    from lakewarden.jobs.loads.adopt import LoadAdoption
    from lakewarden.jobs.pins import PinJobs
    from lakewarden.state.holds import Heartbeat, Load, Pin
    from lakewarden.tables.interface import TableWriter

# Longer than any commit of a tag takes. The pin of a process that dies while it tags ends after this time.
_TAGGING = timedelta(minutes=10)


def check_stay(ref: TableRef, retain: str | timedelta | None, forever: bool) -> None:
    """UsageError unless a call says exactly one of: how long the tag stays, or forever."""
    if (retain is None) is not forever:
        raise UsageError(
            reason=f"tag {ref}: say how long, in exactly one way", hint="add --retain 90d or --forever"
        )


def pin_jobs(deps: ServiceDeps) -> PinJobs:
    from lakewarden.jobs.pins import PinJobs

    return PinJobs(deps.connections.state, deps.format_for)


def checked_name(name: Any, what: str) -> str:
    text = str(name).strip()
    if not text:
        raise UsageError(reason=f"read {what} {name!r}: it needs a name", hint=f"say who it is with --{what}")
    return text


class HoldService:
    """What keeps snapshots and files of tables: pins, tags, heartbeats of writers and staged loads."""

    def __init__(self, deps: ServiceDeps) -> None:
        self._deps = deps

    def of(self, table: str | TableRef) -> Holds:
        """Everything that keeps a snapshot or a file of the table now, and who asked for it."""
        from lakewarden.deletion.holds import gather

        view = self._deps.view(table)
        policy = self._deps.policy_of(view)
        return gather(view, self._deps.connections.state, clock.now(), policy.hours("snapshot_restart_hours"))

    def costs(self, table: str | TableRef) -> tuple[tuple[Hold, int | None], ...]:
        """Every hold with the bytes that only it keeps; None where that cannot be known."""
        from lakewarden.deletion.holds import gather
        from lakewarden.jobs.hold_costs import hold_costs

        view, now = self._deps.view(table), clock.now()
        whole = {"snapshot_expire_limit": None, "snapshot_expiry_enabled": True}
        policy = self._deps.policy_of(view, whole)
        found = gather(view, self._deps.connections.state, now, policy.hours("snapshot_restart_hours")).holds
        return tuple(
            zip(found, hold_costs(self._deps.format_for(view.ref), view, policy, found, now), strict=True)
        )

    # ------------------------------------------------------------ pins

    def unpin(self, pin_id: str) -> Pin:
        """Remove a pin and its mirror tag. The snapshot stays until it expires."""
        return pin_jobs(self._deps).unpin(pin_id)

    def pins(self, table: str | TableRef | None = None) -> tuple[Pin, ...]:
        """The pins of one table, or of all tables, including expired pins."""
        return pin_jobs(self._deps).pins.list(None if table is None else str(table_ref(table)))

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
        """Give a snapshot a name that keeps it: for `retain` from now, or `forever`. Without `snapshot_id`: the current one."""
        from lakewarden.jobs.cold.table import refuse_frozen
        from lakewarden.jobs.pins import PinRequest

        ref = table_ref(table)
        check_stay(ref, retain, forever)
        view = self._deps.view(ref)
        wanted = view.current_snapshot_id if snapshot_id is None else snapshot_id
        if wanted is None:
            raise UsageError(reason=f"tag {ref}: it has no snapshot yet", hint="write to it first")
        refuse_frozen("tag", view, self._deps.connections.state)
        with ExitStack() as pinned:
            if view.snapshot(wanted) is not None:
                # Until the tag is there, a pin keeps the snapshot: others who expire look for pins right before they commit.
                pinned.enter_context(
                    pin_jobs(self._deps).pin(PinRequest(ref, wanted, f"tag {name}", ttl=_TAGGING))
                )
            self._writer(ref).create_tag(ref, name, wanted, _end(duration(retain, "retain")))
        return self._deps.view(ref)

    def untag(self, table: str | TableRef, name: str) -> TableView:
        """Remove a tag. The snapshot stays until it expires."""
        from lakewarden.jobs.cold.table import refuse_frozen

        ref = table_ref(table)
        refuse_frozen("untag", self._deps.view(ref), self._deps.connections.state)
        self._writer(ref).drop_tag(ref, name)
        return self._deps.view(ref)

    def _writer(self, table: TableRef) -> TableWriter:
        from lakewarden.jobs.commit_guard import OutsideRuns

        return self._deps.format_for(table).writer(OutsideRuns())

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
        """Report that a writer is running, so that its files, which no snapshot names yet, are kept. Repeat it within `ttl`.

        With prefixes, every file whose path begins with one is kept; without, every file since the writer started.
        """
        from lakewarden.jobs.loads.begin import absolute
        from lakewarden.state.holds import Heartbeats

        length = duration(ttl, "ttl")
        if length is None:
            raise UsageError(reason="read ttl None: a heartbeat ends", hint="write it as 10m or 2h")
        name, where = checked_name(writer, "writer"), host or socket.gethostname()
        return Heartbeats(self._deps.connections.state).beat(
            str(table_ref(table)), name, where, absolute(prefixes), length, clock.now()
        )

    def stop_heartbeat(self, table: str | TableRef, writer: str) -> bool:
        """Report that a writer has ended: its hold ends too. False where no such writer was known."""
        from lakewarden.state.holds import Heartbeats

        return Heartbeats(self._deps.connections.state).stop(str(table_ref(table)), writer)

    def heartbeats(self, table: str | TableRef) -> tuple[Heartbeat, ...]:
        """Every writer that reported itself, also those whose time is over."""
        from lakewarden.state.holds import Heartbeats

        return Heartbeats(self._deps.connections.state).list(str(table_ref(table)))

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
        """Hold files that will be written and then become part of the table. Call it before they are written."""
        from lakewarden.jobs.loads.begin import begin

        who, length = checked_name(holder, "holder"), duration(ttl, "ttl")
        ref = table_ref(table)
        with self._deps.keeping(ref):
            return begin(self._deps.connections.state, ref, who, paths, prefixes, purpose, length)

    def stage_adopt(
        self,
        load_id: str,
        paths: Sequence[str] = (),
        trigger: Trigger | Mapping[str, str] | None = None,
    ) -> Run:
        """Add the load's Parquet files and `paths` to its table: all of them in one snapshot, or none. A second call changes nothing."""
        return self._adopting.adopt(load_id, paths, read_trigger(trigger))

    def stage_fail(self, load_id: str) -> Load:
        """Cancel the load and put its files into the trash. Refused while they are, or may become, part of the table."""
        return self._adopting.fail(load_id)

    def adopt_folder(self, table: str | TableRef, *, operator: str, confirm: bool = False) -> Claim:
        """Find metadata of dropped tables in the table's folder, which makes sweep and purge refuse.

        With `confirm` it goes into the trash in the operator's name; `restore` undoes that. Refused where a catalog has a
        table there.
        """
        from lakewarden.jobs.deps import JobDeps
        from lakewarden.jobs.fsck.adopt_folder import claim

        ref = table_ref(table)
        name = checked_name(operator, "operator")
        deps, format_ = (
            JobDeps(self._deps.connections.state, self._deps.connections.lake),
            self._deps.format_for(ref),
        )
        return claim(deps, format_, ref, self._deps.policy_of, name, do=confirm)

    @property
    def _adopting(self) -> LoadAdoption:
        from lakewarden.jobs.loads.adopt import LoadAdoption

        deps = self._deps
        return LoadAdoption(
            deps.connections.state,
            deps.connections.journal,
            deps.format_for,
            deps.policy_of,
            lambda: deps.connections.lake.spark,
        )


def _end(length: timedelta | None) -> datetime | None:
    return None if length is None else clock.now() + length
