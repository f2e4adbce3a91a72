"""The class Lakewarden: the Python API. The CLI, the worker and the console use nothing else.

Every call re-reads the table, so one Lakewarden can live for months. Calls raise a LakewardenError for wrong
usage and for refusals. A run that ended partial, lost or unknown is returned with that state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lakewarden import clock
from lakewarden.config.schema import Config
from lakewarden.errors import UsageError
from lakewarden.model.plain import to_plain
from lakewarden.model.run import Job, Run, Step, Trigger
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.keys import key as known_key
from lakewarden.policy.origin import Layer, Origin
from lakewarden.policy.resolve import Policy, read_layer, validate
from lakewarden.policy.values import duration
from lakewarden.services.connections import Connections
from lakewarden.services.deps import ServiceDeps, TableNames, current_user, read_trigger, table_ref
from lakewarden.services.health import HealthService
from lakewarden.services.history import HistoryService, Pasts
from lakewarden.services.holds import HoldService, checked_name, pin_jobs
from lakewarden.services.schedule import ScheduleService
from lakewarden.services.tiers import TierService

if TYPE_CHECKING:  # Spark, Arrow and the database are imported on first use, so that commands start fast
    from lakewarden.jobs.fsck.findings import FsckResult
    from lakewarden.jobs.pins import PinHandle
    from lakewarden.jobs.run_context import Stop
    from lakewarden.jobs.verify.result import Verification
    from lakewarden.lake import Lake
    from lakewarden.model.plan import Plan
    from lakewarden.model.run import Progress
    from lakewarden.state.database import State
    from lakewarden.state.runs import Journal
    from lakewarden.state.trash_batches import RestoreResult, TrashedFile, TrashedList


class Lakewarden:
    """A configured data lake: its settings, its state database and, once a table is read, its Spark session.

    The services are `holds`, `history`, `tiers`, `schedule` and `health`.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        *,
        spark: Any = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`config` has the shape of the TOML file. A given `spark` session is used unchanged and never
        stopped."""
        environ = os.environ if environ is None else environ
        self.config = config if isinstance(config, Config) else Config.from_dict(config or {}, environ)
        validate(self.config.policy, self.config.path)
        self.connections = Connections(self.config, spark)
        self.names = TableNames(self.config, self.connections)
        self._deps = deps = ServiceDeps(self.config, self.connections, self.names)
        pasts = Pasts(deps)
        self.holds = HoldService(deps)
        self.history = HistoryService(deps, pasts)
        self.tiers = TierService(deps, pasts)
        self.schedule = ScheduleService(deps, self.run, self.tiers.trashed)
        self.health = HealthService(deps)

    @classmethod
    def open(cls, path: str | Path, *, spark: Any = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Open a lake from a `lakewarden.toml`."""
        return cls(Config.load(Path(path), os.environ, overrides), spark=spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, and the Spark session if this Lakewarden started it."""
        self.connections.close()
        self.health = HealthService(self._deps)  # cached values belong to the closed database

    # ------------------------------------------------------------ looking

    def tables(self, catalog: str | None = None) -> list[TableRef]:
        """Every table of every catalog, or of the given catalog."""
        names = self.lake.catalogs() if catalog is None else [catalog]
        return [table for name in names for table in self.lake.format_of(name).tables(name)]

    def view(self, table: str | TableRef) -> TableView:
        """The table as its newest metadata describes it."""
        return self._deps.view(table)

    def runs(self, table: str | TableRef | None = None, limit: int = 50) -> tuple[Run, ...]:
        """Runs from the journal, newest first."""
        return self.journal.list(None if table is None else str(self.names.checked(table)), limit)

    def run_by_id(self, run_id: str) -> tuple[Run, tuple[Step, ...]]:
        """A run and every step it journaled."""
        return self._deps.run(run_id), self.journal.steps(run_id)

    # ------------------------------------------------------------ trashed files

    def trash(self, table: str | TableRef, limit: int = 50) -> TrashedList:
        """Files marked for deletion: why, and when they may be deleted. Returns the first `limit` files.
        Needs no Spark."""
        from lakewarden.policy.graces import due_at
        from lakewarden.state.trash_batches import LIVE, BatchState, TrashedList

        ref = self.names.checked(table)
        seen = self._deps.seen.get(ref)
        uuid = seen.uuid if seen else None
        policy = self.connections.resolve(ref, seen.properties if seen else {})
        batches = self._deps.trashed.batches(str(ref), uuid)
        known = [each for each in batches if each.batch.state is not BatchState.VOID]
        dated = tuple((each, due_at(each.batch, policy)) for each in known)
        return TrashedList(dated, self._deps.trashed.list(str(ref), LIVE, limit, uuid))

    def restore(
        self,
        table: str | TableRef,
        path: str | None = None,
        *,
        run: str | None = None,
        everything: bool = False,
        operator: str | None = None,
    ) -> RestoreResult:
        """Restore one trashed file, the files that one run trashed, or all. No run deletes them again. Needs
        no Spark.

        Refused for a file that is being deleted right now, or is already deleted.
        """
        from lakewarden.jobs.purge.restore import restore

        ref = self.names.known(table)
        seen = self._deps.seen.get(ref)
        with self._deps.keeping(ref):
            return restore(
                self._deps.trashed,
                str(ref),
                seen.uuid if seen else None,
                clock.now(),
                path=path,
                run=run,
                everything=everything,
                operator=operator or current_user(),
            )

    def receipts(
        self, table: str | TableRef, limit: int = 50, run_id: str | None = None
    ) -> tuple[TrashedFile, ...]:
        """Receipts of deleted files, newest first: when, why and by which run each was deleted. With `run_id`
        only that run's. Needs no Spark."""
        ref = self.names.checked(table)
        seen = self._deps.seen.get(ref)
        return self._deps.trashed.receipts(str(ref), limit, None, seen.uuid if seen else None, run_id)

    # ------------------------------------------------------------ policy

    def policy(
        self, table: str | TableRef, call: Mapping[str, object] | None = None, *, refresh: bool = False
    ) -> Policy:
        """Every policy key with its value and origin. The table's own properties are as last read, unless
        `refresh` is true."""
        return self._deps.policy(table, call, refresh=refresh)

    def set_policy(
        self,
        table: str | TableRef,
        values: Mapping[str, object] | None = None,
        *,
        unset: tuple[str, ...] = (),
        reset: bool = False,
        operator: str | None = None,
    ) -> Policy:
        """Change the policy values stored for the table. If one value is wrong, none is changed."""
        from lakewarden.state.policies import StoredPolicies

        ref, stored = table_ref(table), StoredPolicies(self.state)
        wanted = {} if reset else dict(stored.get(str(ref)))
        for key in unset:
            known_key(key)
            wanted.pop(key, None)
        checked = read_layer(values or {}, Origin(Layer.TABLE, str(ref)))
        new = {key: to_plain(each.value) for key, each in checked.items()}
        policy = self.connections.resolve(ref, self._deps.properties(ref), stored={**wanted, **new})
        if reset:
            stored.reset(str(ref))
        stored.unset(str(ref), unset)
        stored.set(str(ref), new, operator or current_user(), clock.now())
        return policy

    # ------------------------------------------------------------ doing

    def plan(self, job: str | Job, table: str | TableRef, policy: Mapping[str, object] | None = None) -> Plan:
        """What a job would do to the table now, and what it would skip, with reasons. Changes nothing."""
        from lakewarden.jobs.deps import JobDeps
        from lakewarden.jobs.runner import prepare

        kind, ref = _job(job), table_ref(table)
        format_, view = self.lake.format_for(ref), self.view(ref)
        rate, prices = self.config.budgets.deletes_per_s, self.config.prices
        deps = JobDeps(self.state, self.lake, rate, prices=prices)
        wanted = self._deps.policy_of(view, policy)
        return prepare(kind, format_, view, wanted, clock.now(), deps).plan

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
        """Plan a job and run it now. If a dead process left a run of the same job open, that run is settled
        first.

        `stop` may be set from another thread. A worker passes its `lease_term`. With `quiet`, a run that has
        nothing to do is not journaled and is returned without an id. `run_id`, which must be new, becomes the
        id of the run.
        """
        from lakewarden.jobs.run_context import Stop
        from lakewarden.jobs.runner import Runner

        kind, ref, why = _job(job), table_ref(table), read_trigger(trigger)
        runner = Runner(
            self.lake,
            self.journal,
            self.config.engine.task_memory_mb << 20,
            progress,
            self.config.budgets,
            self.connections.slots(),
            self.config.lineage.history,
            self.config.prices,
            stop or Stop(),
            lease_term,
            quiet,
        )

        def resolved(view: TableView) -> Policy:
            self._deps.seen.saw(view, clock.now())
            return self._deps.policy_of(view, policy)

        return runner.run(kind, ref, resolved, why, run_id)

    def maintain(
        self,
        table: str | TableRef,
        trigger: Trigger | Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> tuple[Run, ...]:
        """Run a whole pass: compact-deletes, compact, rewrite-manifests, expire, purge, compact-history. If
        the policy asks for them, also expire-partitions first, and sweep after purge.

        If a job fails or is refused, that is reported and the pass continues. The pass stops at a run whose
        outcome is unknown. The first error that no run reports is raised at the end.
        """
        ref = table_ref(table)
        ended = list(self.schedule.pass_over(ref, self.schedule.jobs_of(ref), trigger, progress))
        lost = next((each.error for each in ended if each.run is None and each.error is not None), None)
        if lost is not None:
            raise lost
        return tuple(each.run for each in ended if each.run is not None)

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
        """Keep a snapshot readable for `ttl`, or until it is unpinned. Without `snapshot_id`: the current
        snapshot.

        Refused if the snapshot is gone or about to expire; then it must not be read. `with lw.pin(...) as
        pin:` unpins at the end of the block. `mirror` also creates a tag, for tools that do not know pins.
        See `lw.holds` for all other holds.
        """
        from lakewarden.jobs.pins import PinRequest

        name = checked_name(holder, "holder")
        wish = PinRequest(table_ref(table), snapshot_id, name, purpose, duration(ttl, "ttl"), mirror)
        return pin_jobs(self._deps).pin(wish)

    def verify(
        self, table: str | TableRef, snapshot_id: int, progress: Progress | None = None
    ) -> Verification:
        """Prove a past rewrite again: the files a snapshot added contain the same rows as the files it
        removed. Changes nothing."""
        from lakewarden.jobs.verify.verify import Verifier
        from lakewarden.model.run import Silent

        ref, memory = table_ref(table), self.config.engine.task_memory_mb << 20
        verifier = Verifier(
            self.lake.spark, self.lake.format_for(ref), memory, progress or Silent(), self.connections.slots()
        )
        return verifier.verify(self.view(ref), snapshot_id)

    def fsck(
        self, table: str | TableRef, *, deep: bool = False, progress: Progress | None = None
    ) -> FsckResult:
        """Check that all files the table uses exist and are readable. `deep` also decodes its Parquet files.
        Changes nothing."""
        from lakewarden.jobs.deps import JobDeps
        from lakewarden.jobs.fsck.check import FsckInputs
        from lakewarden.model.run import Silent

        ref = table_ref(table)

        def resolved(view: TableView) -> Policy:
            return self._deps.policy_of(view)

        deps = JobDeps(self.state, self.lake)
        examiner = FsckInputs(
            deps, self.lake.format_for(ref), self.lake.spark, resolved, progress or Silent()
        )
        return examiner.examine(ref, deep=deep)

    # ------------------------------------------------------------ parts

    @property
    def state(self) -> State:
        """The state database, opened on first use."""
        return self.connections.state

    @property
    def journal(self) -> Journal:
        """The journal of runs and their steps."""
        return self.connections.journal

    @property
    def lake(self) -> Lake:
        """Spark and the table formats, started on first use."""
        return self.connections.lake


def _job(job: str | Job) -> Job:
    try:
        return Job(job)
    except ValueError:
        known = ", ".join(Job)
        raise UsageError(reason=f"cannot find job {str(job)!r}: jobs are {known}") from None
