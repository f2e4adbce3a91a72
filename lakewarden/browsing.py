"""The part of `Lakewarden` for who looks at the whole lake at once: runs by search, holds and portraits of many tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.model.run import Run
from lakewarden.model.table_name import TableRef

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.lineage.audit import Downstream
    from lakewarden.lineage.history import Entry, Wanted
    from lakewarden.state.database import State
    from lakewarden.state.holds import Heartbeat, Load
    from lakewarden.state.run_queries import RunSearch
    from lakewarden.state.table_details import PaintedInput
    from lakewarden.state.tables import SeenTables
    from lakewarden.state.trash import TrashedFiles
    from lakewarden.state.trash_batches import TrashedFile


class Browsing:
    """Calls about many tables at once. Nothing here needs Spark. What they stand on, `Lakewarden` itself has."""

    if TYPE_CHECKING:

        @property
        def state(self) -> State: ...

        @property
        def _seen(self) -> SeenTables: ...

        @property
        def _trashed(self) -> TrashedFiles: ...

        def _named(self, table: str | TableRef) -> TableRef: ...

        def _pasts(
            self, wanted: TableRef, history_only: bool, unread: dict[str, str]
        ) -> tuple[list[Any], dict[str, str]]: ...

        def _entries(
            self, pasts: Sequence[Any], needed: str, unread: dict[str, str], wanted: Wanted | None = None
        ) -> list[Entry]: ...

    # ------------------------------------------------------------ tables

    def known_tables(self) -> tuple[str, ...]:
        """Names of every table that was ever read or looked at, also those that are gone."""
        from lakewarden.state.table_details import Portraits

        return tuple(sorted({*self._seen.names(), *Portraits(self.state).names()}))

    def was_read(self, table: str) -> bool:
        """Whether the table's own properties are known, as its policy needs them."""
        return self._seen.get(TableRef.parse(table)) is not None

    def cold_of(self, table: str) -> str:
        """The table whose colder tier this one is, as hand-off recorded it; empty for a table of its own."""
        from lakewarden.state.cold import ColdTables

        seen = self._seen.get(TableRef.parse(table))
        return ColdTables(self.state).source(seen.properties, seen.uuid) if seen else ""

    # ------------------------------------------------------------ runs

    @property
    def _search(self) -> RunSearch:
        from lakewarden.state.run_queries import RunSearch

        return RunSearch(self.state)

    def find_runs(
        self,
        table: str = "",
        job: str = "",
        state: str = "",
        *,
        exact: bool = False,
        limit: int = 50,
        offset: int = 0,
    ) -> tuple[Run, ...]:
        """Runs of tables whose name holds (`exact`: is) the text, of this job, in this state; newest first, without plans."""
        from lakewarden.state.run_queries import Sought

        return self._search.find(Sought(table, job, state, exact), limit, offset)

    def running(self) -> tuple[Run, ...]:
        """Runs under way, the oldest first, without their plans."""
        return self._search.running()

    def receipts(
        self, table: str | TableRef, limit: int = 50, run_id: str | None = None
    ) -> tuple[TrashedFile, ...]:
        """What was deleted of the table, when, why and by which run, or by this one; the newest first. Needs no Spark."""
        ref = self._named(table)
        seen = self._seen.get(ref)
        return self._trashed.receipts(str(ref), limit, None, seen.uuid if seen else None, run_id)

    def deleted_by(self, run_id: str) -> int:
        """How many files are gone by this run's doing."""
        return self._trashed.receipts_of(run_id)

    # ------------------------------------------------------------ portraits and holds

    def portraits(self, tables: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """What the health collector painted of these tables: see `Portrait.read`."""
        from lakewarden.state.table_details import Portraits

        return Portraits(self.state).of(tables)

    def painted_holds(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """What keeps something in any table, as portraits have it: table, and a stored `HoldLine`."""
        from lakewarden.state.table_details import Painted

        return Painted(self.state).holds()

    def inputs_naming(self, text: str) -> tuple[PaintedInput, ...]:
        """Live commits of any table that name the text as what they were made from."""
        from lakewarden.state.table_details import Painted

        return Painted(self.state).inputs_naming(text)

    def writers(self) -> tuple[Heartbeat, ...]:
        """Writers of every table that were heard of and have not fallen silent."""
        from lakewarden.state.holds import Heartbeats

        now = clock.now()
        return tuple(each for each in Heartbeats(self.state).list() if each.live(now))

    def loads(self) -> tuple[Load, ...]:
        """Staged loads of every table whose files are held now."""
        from lakewarden.state.holds import Loads

        return Loads(self.state).live(clock.now())

    # ------------------------------------------------------------ lineage

    def downstream_known(self, table: str, snapshot_id: int) -> Downstream:
        """Everything made from a snapshot, as far as the database tells: what was archived, and snapshots of portraits.

        Only commits that say what they were made from are read: nothing else can be downstream of anything.
        `audit_downstream` asks the tables themselves, and so knows more where a table has many snapshots.
        """
        from lakewarden.lineage.audit import Node, downstream
        from lakewarden.lineage.history import Wanted
        from lakewarden.state.table_details import Painted

        unread: dict[str, str] = {}
        ref = TableRef.parse(table)
        table = str(ref)
        pasts, names = self._pasts(ref, True, unread)
        start = Node(names.get(table, table), snapshot_id)
        entries = self._entries(pasts, start.table, unread, Wanted(inputs=True))
        entries += [
            each
            for past in pasts
            if str(past.ref) == start.table
            for each in past.known({snapshot_id}).values()
        ]
        told = {(entry.table, entry.snapshot.id) for entry in entries}
        live = [*Painted(self.state).inputs(), *self._start(table, snapshot_id)]
        for each in live:
            name = names.get(each.table, each.table)
            if (name, each.snapshot_id) not in told:
                entries.append(_painted(name, each))
        found = downstream(entries, start, tuple(unread.items()), names=names)
        if found.entry is None and not found.affected:
            raise UsageError(
                reason=f"find snapshot {snapshot_id} of {table}: neither its portrait nor its history has it, and no commit names it",
                hint=f"see `lakewarden history {table}`",
            )
        return found

    def _start(self, table: str, snapshot_id: int) -> list[PaintedInput]:
        """The snapshot itself, where its table's portrait has it: it need not say what it was made from."""
        from lakewarden.state.table_details import PaintedInput

        lines = self.portraits([table]).get(table, {}).get("snapshots", ())
        return [
            PaintedInput(
                table,
                each["id"],
                datetime.fromisoformat(each["at"]),
                each["operation"],
                each.get("inputs", ""),
            )
            for each in lines
            if each["id"] == snapshot_id
        ]


def _painted(table: str, found: PaintedInput) -> Entry:
    """A live snapshot of a portrait as an entry of history, with as much of its summary as it has."""
    from lakewarden.lineage.audit import INPUTS
    from lakewarden.lineage.history import Entry, Source
    from lakewarden.model.table import Snapshot

    summary = {INPUTS: found.inputs} if found.inputs else {}
    return Entry(table, Snapshot(found.snapshot_id, None, 0, found.at, found.operation, summary), Source.LIVE)
