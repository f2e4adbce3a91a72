"""The part of `Lakewarden` about health: how tables are, since when, what is wrong, and what another policy would change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.model.table_name import TableRef

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.config.schema import Config
    from lakewarden.health.collect import Collector
    from lakewarden.health.look import Sweep
    from lakewarden.health.metrics import Exposition
    from lakewarden.health.score import Score
    from lakewarden.health.table_details import Portrait
    from lakewarden.health.what_if import WhatIf
    from lakewarden.lake import Lake
    from lakewarden.policy.resolve import Policy
    from lakewarden.state.database import State
    from lakewarden.state.health import HealthRecords, Point, TableHealth, Warned
    from lakewarden.tables.interface import TableFormat


class Watching:
    """Calls about health. What they stand on, `Lakewarden` itself has."""

    _collector: Collector | None = None
    _exposition: Exposition | None = None

    if TYPE_CHECKING:
        config: Config

        @property
        def state(self) -> State: ...

        @property
        def lake(self) -> Lake: ...

        def _named(self, table: str | TableRef) -> TableRef: ...

        def policy(
            self,
            table: str | TableRef,
            call: Mapping[str, object] | None = None,
            *,
            refresh: bool = False,
        ) -> Policy: ...

    @property
    def _health(self) -> HealthRecords:
        from lakewarden.state.health import HealthRecords

        return HealthRecords(self.state)

    # ------------------------------------------------------------ looking

    def look(
        self,
        tables: Sequence[str | TableRef] | None = None,
        stop: Callable[[], bool] = lambda: False,
        *,
        routine: bool | None = None,
    ) -> Sweep:
        """Look at the health of these tables, or of all there are, now. From metadata only; changes no table.

        `stop` is asked between tables. A `routine` look (when not said: one at all tables) leaves those that take long for later.
        """
        chosen = None if tables is None else [_ref(each) for each in tables]
        return self.collector.sweep(chosen, stop, routine=routine)

    @property
    def collector(self) -> Collector:
        """Kept between looks: what it remembers makes the next one cheap."""
        if self._collector is None:
            from lakewarden.health.collect import Collector

            self._collector = Collector(self.state, _Reached(self), self.config.policy, self.config.health)
        return self._collector

    # ------------------------------------------------------------ what was seen

    def health(self) -> tuple[TableHealth, ...]:
        """Every table as it was last looked at, without its portrait. Needs no Spark."""
        return self._health.all()

    def health_of(self, table: str | TableRef) -> TableHealth | None:
        """One table as it was last looked at, with its portrait; None where no worker has looked yet. Needs no Spark."""
        return self._health.get(str(self._named(table)))

    def portrait_of(self, table: str | TableRef) -> Portrait | None:
        """What the table's page shows, as it was last looked at. Needs no Spark."""
        from lakewarden.health.table_details import Portrait

        found = self.health_of(table)
        return None if found is None else Portrait.read(found.portrait)

    def score_of(self, health: TableHealth) -> Score:
        """Its score with the parts it is made of, and its debt with the sentence that explains it. Needs no Spark."""
        from lakewarden.health.score import Trouble, judge
        from lakewarden.state.fleet import Fleet

        fleet = Fleet(self.state)
        suspended, failures = fleet.suspended(), fleet.failures()
        trouble = Trouble(health.error, suspended.get(health.table, ""), failures.get(health.table, 0))
        return judge(health.numbers, self.config.health, trouble)

    def health_history(
        self, table: str | TableRef, since: datetime, most: int | None = None
    ) -> tuple[Point, ...]:
        """Earlier looks at the table, the oldest first: a number holds until the next look has another. Needs no Spark.

        `most`: about so many of them, evenly, with the newest.
        """
        return self._health.history(str(self._named(table)), since, most)

    def warnings(self, table: str | TableRef | None = None, also_cleared: int = 0) -> tuple[Warned, ...]:
        """What is wrong, the longest first; and so many warnings that are over. Needs no Spark.

        Of all tables, also that no worker leads, where one did.
        """
        from lakewarden.health.warnings import no_leader
        from lakewarden.state.leases import Leases

        named = None if table is None else str(self._named(table))
        found = self._health.warnings(named, also_cleared=also_cleared)
        alone = no_leader(Leases(self.state).current()) if table is None else None
        return found if alone is None else (alone, *found)

    # ------------------------------------------------------------ another policy

    def what_if(self, table: str | TableRef, values: Mapping[str, object], days: int = 30) -> WhatIf:
        """What these policy values would have changed in the last days, beside the policy in force. Changes nothing, needs no Spark."""
        from lakewarden.health.what_if import commits_of, replay
        from lakewarden.state.history import Archive

        ref = self._named(table)
        found = self.health_of(ref)
        portrait = self.portrait_of(ref)
        if found is None or portrait is None:
            raise UsageError(
                reason=f"replay a policy on {ref}: nobody has looked at it yet",
                hint=f"run `lakewarden health {ref} --refresh` once, or start the worker",
            )
        now = clock.now()
        since = now - timedelta(days=days)
        history = self._health.history(str(ref), since)
        commits = commits_of(portrait, Archive(self.state).rows(found.uuid, since=since), since)
        return replay(
            str(ref), commits, history, found.numbers, self.policy(ref), self.policy(ref, values), since, now
        )

    # ------------------------------------------------------------ metrics

    def metrics(self) -> tuple[bytes, str]:
        """All metrics in Prometheus' text format, and its content type. From the database; needs no Spark."""
        if self._exposition is None:
            from lakewarden.health.metrics import Exposition

            self._exposition = Exposition(self.state, self.config)
        return self._exposition.text()


@dataclass(frozen=True, slots=True)
class _Reached:
    """The lake as it is at each call: a session that died is replaced by another."""

    owner: Watching

    def catalogs(self) -> list[str]:
        return self.owner.lake.catalogs()

    def format_of(self, catalog: str) -> TableFormat:
        return self.owner.lake.format_of(catalog)

    def format_for(self, table: TableRef) -> TableFormat:
        return self.owner.lake.format_for(table)


def _ref(table: str | TableRef) -> TableRef:
    return table if isinstance(table, TableRef) else TableRef.parse(table)
