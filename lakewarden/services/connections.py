"""What a `Lakewarden` opens and closes: the state database, the journal's listeners and the Spark session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from lakewarden.config.schema import Config
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Layers, Policy, resolve

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first used, not when a command starts
    from lakewarden.health.opentelemetry import Traces
    from lakewarden.lake import Lake
    from lakewarden.spark.task_slots import TaskSlots
    from lakewarden.state.database import State
    from lakewarden.state.locks import Lock
    from lakewarden.state.runs import Journal, Listener, Listeners
    from lakewarden.tables.places import Places


class Connections:
    """Each connection is opened when it is first needed. Threads share them."""

    def __init__(self, config: Config, spark: Any = None) -> None:
        """A `spark` session that is handed in is used as it is and never stopped."""
        self._config, self._spark = config, spark
        self._state: State | None = None
        self._lake: Lake | None = None
        self._made_lanes: list[TaskSlots | None] = []
        self._making_lanes = threading.Lock()
        # Two locks: the database can be used while Spark starts.
        self._opening_state, self._opening_lake = threading.Lock(), threading.Lock()
        self._listening: Listeners | None = None
        self._traces: Traces | None = None

    def close(self) -> None:
        """Close the database, and the Spark session if it was started here."""
        for slots in filter(None, self._made_lanes):
            slots.close()
        self._made_lanes = []
        if self._traces is not None:
            self._traces.close()
        self._listening, self._traces = None, None
        if self._lake is not None:
            self._lake.close()
        if self._state is not None:
            self._state.close()
        self._lake, self._state = None, None

    # ------------------------------------------------------------ the database

    @property
    def state(self) -> State:
        """The state database."""
        with self._opening_state:  # several threads may be the first
            if self._state is None:
                from lakewarden.state.database import State

                self._state = State.open(self._config.state.url)
            return self._state

    @property
    def journal(self) -> Journal:
        """Every run and its steps."""
        from lakewarden.state.runs import Journal, Listeners

        if self._listening is None:
            self._listening = Listeners(*self._listeners())
        return Journal(self.state, self._listening)

    def _listeners(self) -> Iterator[Listener]:
        """Receivers of run events. One that no setting asks for is neither made nor loaded."""
        lineage, traces = self._config.lineage, self._config.health.traces_url
        if lineage.openlineage_url or lineage.openlineage_file:
            from lakewarden.lineage.openlineage import Events

            yield Events(lineage)
        if traces:
            from lakewarden.health.opentelemetry import Traces
            from lakewarden.state.runs import Journal

            self._traces = Traces(traces, lambda run_id: Journal(self.state).steps(run_id))
            yield self._traces

    def resolve(
        self,
        ref: TableRef,
        properties: Mapping[str, str],
        call: Mapping[str, object] | None = None,
        stored: Mapping[str, object] | None = None,
    ) -> Policy:
        """The table's policy from its layers. `stored` replaces what the database has for the table."""
        from lakewarden.state.policies import StoredPolicies

        stored = StoredPolicies(self.state).get(str(ref)) if stored is None else stored
        layers = Layers.of(self._config.policy, table_properties=properties, stored=stored, call=call or {})
        return resolve(ref, layers)

    # ------------------------------------------------------------ Spark

    @property
    def given_spark(self) -> bool:
        """Whether the caller handed in a session, which may have catalogs that no setting names."""
        return self._spark is not None

    @property
    def lake(self) -> Lake:
        """Spark and the formats."""
        with self._opening_lake:
            if self._lake is None:
                from lakewarden.lake import Lake

                self._lake = Lake(self._config, self._spark, self._locked, self._places)
            lake = self._lake
        lake.attend()
        return lake

    @property
    def has_lake(self) -> bool:
        """Whether Spark and the formats have been started."""
        return self._lake is not None

    @property
    def lake_lives(self) -> bool:
        """Whether Spark has been started and answers. Never raises, and starts nothing."""
        from lakewarden.spark.session import is_alive

        lake = self._lake  # not the property `lake`: it prepares for calls, which needs a live JVM
        return lake is not None and is_alive(lake.spark)

    def revive_lake(self) -> None:
        """Drop a Spark session that died, so that the next call starts another."""
        with self._opening_lake:  # else a session that another thread starts now would be ended
            if self.has_lake and not self.lake_lives:
                self.reopen_lake()

    def reopen_lake(self) -> None:
        """Drop a Spark session whose JVM is gone. Its runs fail; the next call that needs a session starts one."""
        from lakewarden.spark.session import abandon_session

        for slots in filter(None, self._made_lanes):
            slots.close()
        self._made_lanes, self._lake = [], None
        if self._spark is None:  # a session that was handed in is ended by its owner
            abandon_session()

    def slots(self) -> TaskSlots | None:
        """Shared by all runs: the budgets are for everything this process rewrites. None where nothing is limited."""
        from lakewarden.spark.task_slots import slots_for
        from lakewarden.spark.tasks import parallelism

        with self._making_lanes:
            if not self._made_lanes:
                self._made_lanes = [slots_for(self._config.budgets, parallelism(self.lake.spark))]
            return self._made_lanes[0]

    def _locked(self, table: TableRef, place: str) -> AbstractContextManager[Lock]:
        from lakewarden.state.locks import Locks
        from lakewarden.state.process import current_owner

        return Locks(self.state, current_owner()).held(table, place)

    def _places(self, view: TableView) -> Places:
        from lakewarden.jobs.deps import JobDeps, places_of

        return places_of(JobDeps(self.state, self.lake), self.resolve(view.ref, view.properties))
