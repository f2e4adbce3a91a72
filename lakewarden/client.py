"""class Lakewarden: everything a user can ask for. The CLI, the worker and the console call nothing else.

Every call reads the table afresh, so one Lakewarden may live for months. Calls raise LakewardenErrors for usage and
refusal; a run that ended partial, lost or unknown returns with that state.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lakewarden import clock
from lakewarden.auditing import Auditing
from lakewarden.browsing import Browsing
from lakewarden.config.schema import Config
from lakewarden.errors import NoSuchTable, UsageError
from lakewarden.holding import Holding
from lakewarden.model.files import Manifest
from lakewarden.model.run import Job, Run, Step, Trigger
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.keys import key as known_key
from lakewarden.policy.origin import Layer, Origin
from lakewarden.policy.resolve import Layers, Policy, read_layer, resolve, validate
from lakewarden.tiering import Tiering
from lakewarden.watching import Watching
from lakewarden.working import Working, current_user

if TYPE_CHECKING:  # Spark, Arrow and the database are loaded when first touched, not when a command starts
    from lakewarden.gateway.server import Listening
    from lakewarden.health.opentelemetry import Traces
    from lakewarden.jobs.cancel import Stop
    from lakewarden.jobs.fsck.findings import Checkup
    from lakewarden.jobs.verify.result import Verification
    from lakewarden.lake import Lake
    from lakewarden.model.plan import Plan
    from lakewarden.model.progress import Progress
    from lakewarden.spark.task_slots import Lanes
    from lakewarden.state.database import State
    from lakewarden.state.locks import Lock
    from lakewarden.state.policies import Policies
    from lakewarden.state.runs import Journal, Listener, Listeners
    from lakewarden.state.tables import SeenTables
    from lakewarden.state.trash import TrashedFiles
    from lakewarden.state.trash_batches import Restored, TrashedList
    from lakewarden.tables.places import Places


class Lakewarden(Holding, Auditing, Tiering, Working, Watching, Browsing):
    """A lake to look after: its configuration, its state and, once a table is touched, its Spark session."""

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        *,
        spark: Any = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`config` has the shape of the TOML file. A `spark` session handed in is used as it is and never stopped."""
        environ = os.environ if environ is None else environ
        self.config = config if isinstance(config, Config) else Config.from_dict(config or {}, environ)
        validate(self.config.policy, self.config.path)
        self._spark = spark
        self._state: State | None = None
        self._lake: Lake | None = None
        self._made_lanes: list[Lanes | None] = []
        self._making_lanes = threading.Lock()
        # Apart: while Spark starts, the database is asked.
        self._opening_state, self._opening_lake = threading.Lock(), threading.Lock()
        self._listening: Listeners | None = None
        self._traces: Traces | None = None

    @classmethod
    def open(cls, path: str | Path, *, spark: Any = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """From a `lakewarden.toml`."""
        return cls(Config.load(Path(path), os.environ, overrides), spark=spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database and of a Spark session this Lakewarden started."""
        for lanes in self._made_lanes:
            if lanes is not None:
                lanes.close()
        self._made_lanes = []
        if self._traces is not None:
            self._traces.close()
        self._listening, self._traces = None, None
        if self._lake is not None:
            self._lake.close()
        if self._state is not None:
            self._state.close()
        self._lake, self._state = None, None
        self._collector, self._exposition = None, None

    # ------------------------------------------------------------ looking

    def catalogs(self) -> list[str]:
        """Every catalog: the configured ones, and Iceberg catalogs a session that was handed in already had."""
        return self.lake.catalogs()

    def tables(self, catalog: str | None = None) -> list[TableRef]:
        """Every table of every catalog, or of this one."""
        names = self.catalogs() if catalog is None else [catalog]
        return [table for name in names for table in self.lake.format_of(name).tables(name)]

    def view(self, table: str | TableRef) -> TableView:
        """The table as its newest metadata describes it."""
        ref = _ref(table)
        view = self.lake.format_for(ref).view(ref)
        self._seen.saw(view, clock.now())
        return view

    def counted(self, view: TableView) -> TableView:
        """The view with all its counters: files and bytes are not in every format's metadata, and are counted then."""
        return replace(view, counters=self.lake.format_for(view.ref).counters(view))

    def manifests(self, view: TableView) -> tuple[Manifest, ...]:
        """The manifests of the view's current snapshot."""
        if view.current_snapshot_id is None:
            return ()
        return tuple(self.lake.format_for(view.ref).manifests(view.ref, view.current_snapshot_id))

    def runs(self, table: str | TableRef | None = None, limit: int = 50) -> tuple[Run, ...]:
        """The journal, newest first."""
        return self.journal.list(None if table is None else str(self._named(table)), limit)

    def run_by_id(self, run_id: str) -> tuple[Run, tuple[Step, ...]]:
        """A run and every step it journaled."""
        found = self.journal.get(run_id)
        if found is None:
            raise UsageError(
                reason=f"find run {run_id!r}: the journal has no such run", hint="see `lakewarden runs`"
            )
        return found, self.journal.steps(run_id)

    # ------------------------------------------------------------ trashed files

    def trash(self, table: str | TableRef, limit: int = 50) -> TrashedList:
        """What is marked for deletion and why, when it may be deleted, and the first `limit` of the files. Needs no Spark."""
        from lakewarden.policy.graces import due_at
        from lakewarden.state.trash_batches import LIVE, TrashedList, VerdictState

        ref = self._named(table)
        seen = self._seen.get(ref)
        uuid = seen.uuid if seen else None
        policy = self._resolve(ref, seen.properties if seen else {}, None)
        standings = self._trashed.standings(str(ref), uuid)
        known = [each for each in standings if each.verdict.state is not VerdictState.VOID]
        verdicts = tuple((each, due_at(each.verdict, policy)) for each in known)
        return TrashedList(verdicts, self._trashed.list(str(ref), LIVE, limit, uuid))

    def restore(
        self,
        table: str | TableRef,
        path: str | None = None,
        *,
        run: str | None = None,
        everything: bool = False,
        operator: str | None = None,
    ) -> Restored:
        """Bring back one trashed file, those that one run trashed, or all: no run deletes them, for good. Needs no Spark.

        Refused for a file that is being deleted at this moment, or is gone.
        """
        from lakewarden.jobs.purge.restore import restore

        ref = self._known(table)
        seen = self._seen.get(ref)
        with self._keeping(ref):
            return restore(
                self._trashed,
                str(ref),
                seen.uuid if seen else None,
                clock.now(),
                path=path,
                run=run,
                everything=everything,
                operator=operator or current_user(),
            )

    # ------------------------------------------------------------ policy

    def policy(
        self, table: str | TableRef, call: Mapping[str, object] | None = None, *, refresh: bool = False
    ) -> Policy:
        """Every key's value and origin. The table's own properties are those last seen, unless `refresh` asks for new ones."""
        ref = _ref(table)
        return self._resolve(ref, self._properties(ref, refresh), call)

    def _properties(self, ref: TableRef, refresh: bool = False) -> Mapping[str, str]:
        seen = None if refresh else self._seen.get(ref)
        return self.view(ref).properties if seen is None else seen.properties

    def set_policy(
        self,
        table: str | TableRef,
        values: Mapping[str, object] | None = None,
        *,
        unset: tuple[str, ...] = (),
        reset: bool = False,
        operator: str | None = None,
    ) -> Policy:
        """Change what is stored for the table: all of it or, where one value is wrong, none."""
        ref = _ref(table)
        stored = self._policies
        wanted = {} if reset else dict(stored.get(str(ref)))
        for key in unset:
            known_key(key)
            wanted.pop(key, None)
        checked = read_layer(values or {}, Origin(Layer.TABLE, str(ref)))
        new = {key: _plain(each.value) for key, each in checked.items()}
        policy = self._resolve(ref, self._properties(ref), None, stored={**wanted, **new})
        if reset:
            stored.reset(str(ref))
        stored.unset(str(ref), unset)
        stored.set(str(ref), new, operator or current_user(), clock.now())
        return policy

    def _resolve(
        self,
        ref: TableRef,
        properties: Mapping[str, str],
        call: Mapping[str, object] | None,
        stored: Mapping[str, object] | None = None,
    ) -> Policy:
        stored = self._policies.get(str(ref)) if stored is None else stored
        layers = Layers.of(self.config.policy, table_properties=properties, stored=stored, call=call or {})
        return resolve(ref, layers)

    # ------------------------------------------------------------ doing

    def plan(self, job: str | Job, table: str | TableRef, policy: Mapping[str, object] | None = None) -> Plan:
        """What would be done to the table now, and what is skipped, with reasons. Changes nothing."""
        from lakewarden.jobs.deps import Grounds
        from lakewarden.jobs.runner import prepare

        kind, ref = _job(job), _ref(table)
        format_, view = self.lake.format_for(ref), self.view(ref)
        rate, prices = self.config.budgets.deletes_per_s, self.config.prices
        grounds = Grounds(self.state, self.lake, rate, prices=prices)
        wanted = self._resolve(ref, view.properties, policy)
        return prepare(kind, format_, view, wanted, clock.now(), grounds).plan

    def run(
        self,
        job: str | Job,
        table: str | TableRef,
        policy: Mapping[str, object] | None = None,
        trigger: Trigger | Mapping[str, str] | None = None,
        progress: Progress | None = None,
        *,
        stop: Stop | None = None,
        lease_term: int | None = None,
        quiet: bool = False,
        run_id: str | None = None,
    ) -> Run:
        """Plan and do it now. A run of the same job that a dead process left open is settled first.

        `stop` can be asked from another thread. A worker's runs are under its lease's term, and with `quiet` one that has nothing
        to do is not journaled: it comes back without an id. `run_id`, which must be new, is the run's name if it gets that far.
        """
        from lakewarden.jobs.cancel import Stop
        from lakewarden.jobs.runner import Runner

        kind, ref, why = _job(job), _ref(table), _trigger(trigger)
        runner = Runner(
            self.lake,
            self.journal,
            self.config.engine.task_memory_mb << 20,
            progress,
            self.config.budgets,
            self._lanes(),
            self.config.lineage.history,
            self.config.prices,
            stop or Stop(),
            lease_term,
            quiet,
        )

        def resolved(view: TableView) -> Policy:
            self._seen.saw(view, clock.now())
            return self._resolve(ref, view.properties, policy)

        return runner.run(kind, ref, resolved, why, run_id)

    def verify(
        self, table: str | TableRef, snapshot_id: int, progress: Progress | None = None
    ) -> Verification:
        """Prove a past rewrite again: the files a snapshot added hold the rows of those it removed. Changes nothing."""
        from lakewarden.jobs.verify.verify import Verifier
        from lakewarden.model.progress import Silent

        ref, memory = _ref(table), self.config.engine.task_memory_mb << 20
        verifier = Verifier(
            self.lake.spark, self.lake.format_for(ref), memory, progress or Silent(), self._lanes()
        )
        return verifier.verify(self.view(ref), snapshot_id)

    def fsck(self, table: str | TableRef, *, deep: bool = False, progress: Progress | None = None) -> Checkup:
        """Whether everything the table names is there and whole; `deep` decodes its Parquet files too. Changes nothing."""
        from lakewarden.jobs.deps import Grounds
        from lakewarden.jobs.fsck.check import Examiner
        from lakewarden.model.progress import Silent

        ref = _ref(table)

        def resolved(view: TableView) -> Policy:
            return self._resolve(ref, view.properties, None)

        grounds = Grounds(self.state, self.lake)
        examiner = Examiner(
            grounds, self.lake.format_for(ref), self.lake.spark, resolved, progress or Silent()
        )
        return examiner.examine(ref, deep=deep)

    def serve_gateway(
        self,
        host: str | None = None,
        port: int | None = None,
        ready: Callable[[Listening], None] = lambda _: None,
    ) -> None:
        """Stand in front of the REST catalog `[gateway]` names until the process is told to stop; `ready` hears where."""
        from lakewarden.gateway.server import serve

        serve(self.config, self.state, host, port, ready)

    def _trigger(self, trigger: Trigger | Mapping[str, str] | None) -> Trigger:
        return _trigger(trigger)

    def _named(self, table: str | TableRef) -> TableRef:
        """For questions that only the database is asked: of a name that nobody knows it would have nothing to tell."""
        ref = _ref(table)
        of_spark = {
            key.split(".")[3] for key in self.config.spark.conf if key.startswith("spark.sql.catalog.")
        }
        known = {*self.config.catalogs, *of_spark}
        if self._spark is not None or ref.catalog in known or self._remembered(ref):
            return ref
        there = ", ".join(sorted(known)) or "none"
        raise NoSuchTable(table=ref, reason=f"no catalog {ref.catalog} is configured; configured: {there}")

    def _remembered(self, ref: TableRef) -> bool:
        """Its catalog may have left the configuration since."""
        seen = self._seen.get(ref)
        return bool(seen or self.journal.list(str(ref), 1) or self._trashed.standings(str(ref), None))

    # ------------------------------------------------------------ parts

    @property
    def state(self) -> State:
        """The state database, opened when first needed."""
        with self._opening_state:  # several threads may be the first
            if self._state is None:
                from lakewarden.state.database import State

                self._state = State.open(self.config.state.url)
            return self._state

    @property
    def journal(self) -> Journal:
        """Every run and its steps."""
        from lakewarden.state.runs import Journal, Listeners

        if self._listening is None:
            self._listening = Listeners(*self._listeners())
        return Journal(self.state, self._listening)

    def _listeners(self) -> Iterator[Listener]:
        """Who is told about runs: none is made, or loaded, that no setting asks for."""
        lineage, traces = self.config.lineage, self.config.health.traces_url
        if lineage.openlineage_url or lineage.openlineage_file:
            from lakewarden.lineage.openlineage import Events

            yield Events(lineage)
        if traces:
            from lakewarden.health.opentelemetry import Traces
            from lakewarden.state.runs import Journal

            self._traces = Traces(traces, lambda run_id: Journal(self.state).steps(run_id))
            yield self._traces

    @property
    def _policies(self) -> Policies:
        from lakewarden.state.policies import Policies

        return Policies(self.state)

    @property
    def _trashed(self) -> TrashedFiles:
        from lakewarden.state.trash import TrashedFiles

        return TrashedFiles(self.state)

    @property
    def _seen(self) -> SeenTables:
        from lakewarden.state.tables import SeenTables

        return SeenTables(self.state)

    def _lanes(self) -> Lanes | None:
        """Shared by all runs: the budgets are for everything this process rewrites. None where nothing is limited."""
        from lakewarden.spark.task_slots import lanes_for
        from lakewarden.spark.tasks import parallelism

        with self._making_lanes:
            if not self._made_lanes:
                self._made_lanes = [lanes_for(self.config.budgets, parallelism(self.lake.spark))]
            return self._made_lanes[0]

    @property
    def lake(self) -> Lake:
        """Spark and the formats, started when first needed."""
        with self._opening_lake:
            if self._lake is None:
                from lakewarden.lake import Lake

                self._lake = Lake(self.config, self._spark, self._locked, self._places)
            found = self._lake
        found.attend()
        return found

    @property
    def has_lake(self) -> bool:
        """Whether Spark and the formats have been started."""
        return self._lake is not None

    @property
    def lake_lives(self) -> bool:
        """Whether Spark has been started and answers. Never raises, and starts nothing."""
        from lakewarden.spark.session import is_alive

        lake = self._lake  # not by `lake`: that makes ready for calls, which needs a JVM that lives
        return lake is not None and is_alive(lake.spark)

    def revive_lake(self) -> None:
        """Let go of a Spark that died by itself, so that the next call starts another."""
        with self._opening_lake:  # one that somebody starts meanwhile would be ended in its place
            if self.has_lake and not self.lake_lives:
                self.reopen_lake()

    def reopen_lake(self) -> None:
        """Let go of a Spark session whose JVM is gone; the next call that needs one starts it. What is under way on it fails."""
        from lakewarden.spark.session import abandon_session

        for lanes in filter(None, self._made_lanes):
            lanes.close()
        self._made_lanes, self._lake = [], None
        if self._spark is None:  # one that was handed in is its owner's to end
            abandon_session()

    def _locked(self, table: TableRef, place: str) -> AbstractContextManager[Lock]:
        from lakewarden.state.locks import Locks
        from lakewarden.state.process import current_owner

        return Locks(self.state, current_owner()).held(table, place)

    def _places(self, view: TableView) -> Places:
        from lakewarden.jobs.deps import Grounds, places_of

        return places_of(Grounds(self.state, self.lake), self._resolve(view.ref, view.properties, None))


def _ref(table: str | TableRef) -> TableRef:
    return table if isinstance(table, TableRef) else TableRef.parse(table)


def _job(job: str | Job) -> Job:
    try:
        return Job(job)
    except ValueError:
        known = ", ".join(Job)
        raise UsageError(reason=f"find job {str(job)!r}: jobs are {known}") from None


def _trigger(trigger: Trigger | Mapping[str, str] | None) -> Trigger:
    from lakewarden.lineage.summary import checked

    if isinstance(trigger, Mapping):
        unknown = set(trigger) - {"type", "operator", "ticket"}
        if unknown:
            raise UsageError(
                reason=f"read trigger: unknown {', '.join(sorted(unknown))}; known are type, operator, ticket"
            )
        trigger = Trigger(trigger.get("type", "manual"), trigger.get("operator"), trigger.get("ticket"))
    return checked(trigger or Trigger("manual", current_user()))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
