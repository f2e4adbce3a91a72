"""`lw.health`: the numbers of tables, their scores and warnings, and what another policy would change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.model.files import Manifest
from lakewarden.model.table import TableRef, TableView
from lakewarden.services.deps import ServiceDeps, table_ref

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.health.collect import Collector, Sweep
    from lakewarden.health.metrics import Exposition
    from lakewarden.health.score import Score
    from lakewarden.health.table_details import TableDetails
    from lakewarden.health.what_if import WhatIf
    from lakewarden.state.health import HealthRecords, Point, StoredWarning, TableHealth
    from lakewarden.tables.interface import TableFormat


class HealthService:
    """Health of tables as it was last looked at, or looked at now."""

    def __init__(self, deps: ServiceDeps) -> None:
        self._deps = deps
        self._collector: Collector | None = None
        self._exposition: Exposition | None = None

    @property
    def _records(self) -> HealthRecords:
        from lakewarden.state.health import HealthRecords

        return HealthRecords(self._deps.connections.state)

    # ------------------------------------------------------------ looking

    def look(
        self,
        tables: Sequence[str | TableRef] | None = None,
        stop: Callable[[], bool] = lambda: False,
        *,
        routine: bool | None = None,
    ) -> Sweep:
        """Look at these tables, or at all, now. Only metadata is read; no table changes.

        `stop` is asked between tables. A `routine` look, the default for all tables, leaves slow tables for later.
        """
        chosen = None if tables is None else [table_ref(each) for each in tables]
        return self.collector.sweep(chosen, stop, routine=routine)

    def counted(self, view: TableView) -> TableView:
        """The view with all its counters. Some formats do not keep files and bytes in the metadata; these are counted now."""
        return replace(view, counters=self._deps.format_for(view.ref).counters(view))

    def manifests(self, view: TableView) -> tuple[Manifest, ...]:
        """The manifests of the view's current snapshot."""
        if view.current_snapshot_id is None:
            return ()
        return tuple(self._deps.format_for(view.ref).manifests(view.ref, view.current_snapshot_id))

    @property
    def collector(self) -> Collector:
        """Kept between looks: what it remembers makes the next look cheap."""
        if self._collector is None:
            from lakewarden.health.collect import Collector

            self._collector = Collector(
                self._deps.connections.state,
                _CurrentLake(self._deps),
                self._deps.config.policy,
                self._deps.config.health,
            )
        return self._collector

    # ------------------------------------------------------------ what was seen

    def all(self) -> tuple[TableHealth, ...]:
        """All tables as they were last looked at, without their portraits. Needs no Spark."""
        return self._records.all()

    def of(self, table: str | TableRef) -> TableHealth | None:
        """One table as it was last looked at, with its portrait. None where it was never looked at. Needs no Spark."""
        return self._records.get(str(self._deps.names.checked(table)))

    def portrait_of(self, table: str | TableRef) -> TableDetails | None:
        """What the table's page shows, as it was last looked at. Needs no Spark."""
        from lakewarden.health.table_details import TableDetails

        found = self.of(table)
        return None if found is None else TableDetails.read(found.portrait)

    def score(self, health: TableHealth) -> Score:
        """The score with its parts, and the debt with the sentence that explains it. Needs no Spark."""
        from lakewarden.health.score import MaintenanceProblems, judge
        from lakewarden.state.fleet import Fleet

        fleet = Fleet(self._deps.connections.state)
        suspended, failures = fleet.suspended(), fleet.failures()
        trouble = MaintenanceProblems(
            health.error, suspended.get(health.table, ""), failures.get(health.table, 0)
        )
        return judge(health.numbers, self._deps.config.health, trouble)

    def history(self, table: str | TableRef, since: datetime, most: int | None = None) -> tuple[Point, ...]:
        """Earlier looks at the table, the oldest first. A number is valid until the next look has another. Needs no Spark.

        `most`: about so many looks, evenly chosen, with the newest.
        """
        return self._records.history(str(self._deps.names.checked(table)), since, most)

    def warnings(
        self, table: str | TableRef | None = None, also_cleared: int = 0
    ) -> tuple[StoredWarning, ...]:
        """Open warnings, the oldest first, and up to `also_cleared` that are over. Needs no Spark.

        For all tables, also a warning that no worker leads any more.
        """
        from lakewarden.health.warnings import no_leader
        from lakewarden.state.locks import Leases

        named = None if table is None else str(self._deps.names.checked(table))
        found = self._records.warnings(named, also_cleared=also_cleared)
        alone = no_leader(Leases(self._deps.connections.state).current()) if table is None else None
        return found if alone is None else (alone, *found)

    # ------------------------------------------------------------ another policy

    def what_if(self, table: str | TableRef, values: Mapping[str, object], days: int = 30) -> WhatIf:
        """What other policy values would have done in the last days, beside the current policy. Changes nothing, needs no Spark."""
        from lakewarden.health.what_if import commits_of, replay
        from lakewarden.state.history import SnapshotArchive

        ref = self._deps.names.checked(table)
        found = self.of(ref)
        portrait = self.portrait_of(ref)
        if found is None or portrait is None:
            raise UsageError(
                reason=f"replay a policy on {ref}: nobody has looked at it yet",
                hint=f"run `lakewarden health {ref} --refresh` once, or start the worker",
            )
        now = clock.now()
        since = now - timedelta(days=days)
        history = self._records.history(str(ref), since)
        commits = commits_of(
            portrait, SnapshotArchive(self._deps.connections.state).rows(found.uuid, since=since), since
        )
        return replay(
            str(ref),
            commits,
            history,
            found.numbers,
            self._deps.policy(ref),
            self._deps.policy(ref, values),
            since,
            now,
        )

    # ------------------------------------------------------------ metrics

    def metrics(self) -> tuple[bytes, str]:
        """All metrics in Prometheus' text format, and its content type. From the database; needs no Spark."""
        if self._exposition is None:
            from lakewarden.health.metrics import Exposition

            self._exposition = Exposition(self._deps.connections.state, self._deps.config)
        return self._exposition.text()


@dataclass(frozen=True, slots=True)
class _CurrentLake:
    """The lake of the moment: after a session died, another one takes its place."""

    deps: ServiceDeps

    def catalogs(self) -> list[str]:
        return self.deps.connections.lake.catalogs()

    def format_of(self, catalog: str) -> TableFormat:
        return self.deps.connections.lake.format_of(catalog)

    def format_for(self, table: TableRef) -> TableFormat:
        return self.deps.connections.lake.format_for(table)
