"""Staged loads: files wait outside the table, held; then all of them become part of it in one snapshot, or none does.

Where a process stops while adopting:

    before ADOPTING          nothing happened; the load is open
    between it and ADOPTED   the table tells, by the load's id in the snapshot's summary; asked before anything else
    after ADOPTED            the load is adopted

Adopting again is always safe, because no commit brings in a file twice. Failing waits until it is sure that no commit comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lakewarden import clock
from lakewarden.errors import Busy, CommitLost, CommitUnknown, LakewardenError, Refused, UsageError
from lakewarden.jobs.cold.read_only import refuse_frozen
from lakewarden.jobs.commit_guard import RunGuard, foresee
from lakewarden.jobs.heartbeat import DRIVEN, beating, driving
from lakewarden.jobs.journaled_commit import ending
from lakewarden.jobs.loads.begin import absolute, distinct, own_name
from lakewarden.jobs.recovery import IN_FLIGHT, Settled, recover
from lakewarden.jobs.run_context import DeletingStep, Outcome
from lakewarden.lineage.summary import Lineage
from lakewarden.model.location import normal
from lakewarden.model.run import Owner, Run, RunState, Trigger
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.read.bounds import BoundsTask, check_bounds, of_unknown_writers
from lakewarden.spark.tasks import fan_out, parallelism
from lakewarden.state.database import State
from lakewarden.state.holds import Load, Loads, LoadState
from lakewarden.state.runs import Journal, current_owner, new_run_id
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import VerdictState
from lakewarden.tables.errors import not_adopted
from lakewarden.tables.interface import Adoption, TableFormat

JOB = "adopt"
CAUSE = "failed-load"
OPERATION = "append"
# Of a table's newest runs, how many are looked through for earlier tries.
_LOOK_BACK = 10_000


@dataclass(frozen=True, slots=True)
class Adopting:
    state: State
    journal: Journal
    format_for: Callable[[TableRef], TableFormat]
    policy_of: Callable[[TableView], Policy]
    spark: Callable[[], Any]

    @property
    def loads(self) -> Loads:
        return Loads(self.state)

    # ------------------------------------------------------------ adopting

    def adopt(self, load_id: str, paths: Sequence[str], trigger: Trigger) -> Run:
        load, owner = self._settled(load_id)
        view = self.format_for(TableRef.parse(load.table)).view(TableRef.parse(load.table))
        with driving(new_run_id(clock.now())) as run_id:
            wanted = distinct([*load.paths, *absolute(paths)])
            run = self._start(run_id, load, wanted, view, owner, trigger)
            with beating(self.journal, run_id, owner):
                return self._finish(run, owner, self._adopting(run, owner, load, wanted, view))

    def _adopting(
        self, run: Run, owner: Owner, load: Load, paths: tuple[str, ...], view: TableView
    ) -> Outcome:
        """A run that ends in an exception is closed with it, unless its commit was begun: then the table is asked next time."""
        try:
            if load.state is LoadState.ADOPTED:
                return Outcome(RunState.NOTHING_TO_DO, _already(load))
            return self._attempt(run, owner, load, paths, view)
        except CommitLost as error:
            return Outcome(ending(error), error.message)
        except CommitUnknown as error:
            return Outcome(RunState.UNKNOWN, error.message)
        except Exception as error:
            if not any(step.name == DeletingStep.ADOPTING for step in self.journal.steps(run.id)):
                refused = isinstance(error, Refused)
                reason = (
                    error.message
                    if isinstance(error, LakewardenError)
                    else f"{type(error).__name__}: {error}"
                )
                self._finish(run, owner, Outcome(RunState.REFUSED if refused else RunState.FAILED, reason))
            raise

    def _attempt(
        self, run: Run, owner: Owner, load: Load, paths: tuple[str, ...], view: TableView
    ) -> Outcome:
        refuse_frozen("adopt files into", view, self.state)
        self._refuse_unfit(load, paths, view)
        policy = self.policy_of(view)
        foresee(view.ref, OPERATION, run.id, policy, run.trigger, self.state)
        format_ = self.format_for(view.ref)
        writer = format_.writer(RunGuard.of(run.id, owner, policy, self.journal))
        adoption = format_.loads().check_adoption(view.ref, paths)
        self._refuse_wrong_bounds(view, paths, format_.write_properties(view.ref), run.id)
        # Only now: a path that cannot be adopted does not become one of the load's.
        if not self.loads.claim(load, run.id, paths):
            raise _meanwhile("adopt", load)
        summary = _summary(run, load, adoption, view, policy)
        detail = {"load": load.id, "paths": list(paths), "snapshot_id": view.current_snapshot_id}
        self.journal.step(run.id, owner, DeletingStep.ADOPTING, detail, clock.now())
        snapshot_id = writer.commit_adoption(view.ref, adoption, summary)
        self.journal.step(run.id, owner, DeletingStep.ADOPTED, {"snapshot_id": snapshot_id}, clock.now())
        self.loads.end(replace(load, run_id=run.id), LoadState.ADOPTED, clock.now())
        return Outcome(RunState.DONE, "", _counters(adoption), (snapshot_id,))

    def _refuse_wrong_bounds(
        self, view: TableView, paths: Sequence[str], io: Mapping[str, str], run_id: str
    ) -> None:
        """Footers become the table's bounds, and tell the partition. Files of unknown writers are decoded for that."""
        unknown = of_unknown_writers(paths, io)
        if not unknown:
            return
        share = -(-len(unknown) // parallelism(self.spark()))
        tasks = [
            BoundsTask(tuple(unknown[at : at + share]), dict(io)) for at in range(0, len(unknown), share)
        ]
        what = f"lakewarden {view.ref}: statistics of {len(unknown)} files"
        wrong = [each for part in fan_out(self.spark(), check_bounds, tasks, run_id, what) for each in part]
        if wrong:
            raise not_adopted(view.ref, *wrong[0], len(wrong) - 1)

    def _refuse_unfit(self, load: Load, paths: tuple[str, ...], view: TableView) -> None:
        if load.state is LoadState.FAILED:
            raise _refused(
                "adopt", load, "it was failed, and its files are in the trash", "stage the files again"
            )
        if not load.live(clock.now()):
            raise _refused(
                "adopt",
                load,
                "its time is over and nothing held its files since",
                "begin a new load with the same paths",
            )
        if load.table_uuid and load.table_uuid != view.uuid:
            raise _refused(
                "adopt",
                load,
                f"{load.table} was dropped and made anew since",
                "begin a new load for the new table",
            )
        if any(_expired_since(view, tried) for tried in self._tried(load)):
            raise _refused(
                "adopt",
                load,
                "an earlier try may have committed, and its snapshot may have expired since",
                "look in the table for its rows; if they are not there, begin a new load with the same paths",
            )
        if not paths:
            raise UsageError(reason=f"adopt {load.id}: it names no files", hint="name them with --path")
        for path in paths:
            if (own := own_name(path, view.location)) is not None:
                reason, hint = f"{path} goes through a link, and is {own}", "begin a load that names it so"
                raise _refused("adopt", load, reason, hint)
        trashed = _trashed_among(self.state, view.uuid, paths)
        if trashed:
            hint = f"bring it back first: `lakewarden restore {load.table} {trashed}`"
            raise _refused("adopt", load, f"{trashed} is in the trash", hint)

    # ------------------------------------------------------------ failing

    def fail(self, load_id: str) -> Load:
        """Its registered files are in the trash, never what a listing shows. Again after a crash, it finishes what was begun."""
        load, _ = self._settled(load_id)
        if load.state is LoadState.ADOPTED:
            hint = "its files are part of the table; delete the rows instead"
            raise _refused("fail", load, _already(load), hint)
        if load.state is LoadState.OPEN:
            self._fail_open(load)
        trashed, verdict = TrashedFiles(self.state), TrashedFiles(self.state).verdict(load.id)
        if verdict is not None and verdict.state is VerdictState.PENDING:
            trashed.enforce(load.id, clock.now())
        return self._get(load_id)

    def _fail_open(self, load: Load) -> None:
        now, table = clock.now(), TableRef.parse(load.table)
        if any(now - tried < IN_FLIGHT for tried in self._tried(load)):
            raise _refused(
                "fail", load, "the commit of its files may still happen", "try again in ten minutes"
            )
        format_ = self.format_for(table)
        view = format_.view(table)
        # Someone may have made some of them part of the table in another way: those are nobody's to trash.
        live = set(format_.loads().live_among(table, load.paths)) if load.paths else set()
        self._trash(load, [path for path in load.paths if path not in live], view)
        # A crash before this line leaves a verdict that counts for nothing, and an open load.
        if not self.loads.end(load, LoadState.FAILED, now):
            raise _meanwhile("fail", load)

    def _trash(self, load: Load, paths: Sequence[str], view: TableView) -> None:
        import pyarrow as pa

        count = len(paths)
        if not count:
            return
        files = pa.table(
            {
                "path": pa.array(paths, pa.string()),
                "kind": pa.array(["data"] * count, pa.string()),
                "size": pa.nulls(count, pa.int64()),
                "stamp": pa.nulls(count, pa.string()),
            }
        )
        detail = {"load": load.id, "holder": load.holder}
        reason = f"staged by {load.holder}, and the load failed"
        TrashedFiles(self.state).trash(
            load.id, load.table, view.uuid, CAUSE, reason, files, detail, clock.now()
        )

    # ------------------------------------------------------------ what was left open

    def _settled(self, load_id: str) -> tuple[Load, Owner]:
        """The load, after what an earlier adoption of this table left open is settled. Busy while one is alive."""
        load, owner = self._get(load_id), current_owner()
        table = TableRef.parse(load.table)
        format_ = self.format_for(table)
        recover(
            self.journal,
            format_,
            table,
            JOB,
            owner,
            driven=DRIVEN,
            settle=lambda run: self._ended(run, format_, table),
        )
        return self._get(load_id), owner

    def _ended(self, run: Run, format_: TableFormat, table: TableRef) -> Settled | None:
        """How an adoption really ended: the table has its snapshot or not. None while it may still come."""
        begun = [step.at for step in self.journal.steps(run.id) if step.name == DeletingStep.ADOPTING]
        if not begun:
            return Settled(RunState.FAILED, "it had not begun to commit")
        load = self.loads.get(str(run.plan["load"]))  # None: it ended long ago, and is forgotten
        snapshot_id = format_.loads().find_adoption(table, str(run.plan["load"]))
        if snapshot_id is not None:
            if load is not None:
                self.loads.end(load, LoadState.ADOPTED, clock.now())
            return Settled(RunState.DONE, f"the table has its files since snapshot {snapshot_id}")
        if clock.now() - begun[-1] < IN_FLIGHT:
            return None
        return Settled(RunState.FAILED, "the table does not show its files")

    def _tried(self, load: Load) -> list[datetime]:
        """When commits of this load began that the table does not show, and that are not known to be lost."""
        if load.run_id is None:
            return []
        runs = [run for run in self.journal.list(load.table, _LOOK_BACK) if run.plan.get("load") == load.id]
        return [
            step.at
            for run in runs
            if run.state is not RunState.LOST_RACE
            for step in self.journal.steps(run.id)
            if step.name == DeletingStep.ADOPTING
        ]

    # ------------------------------------------------------------ the journal

    def _get(self, load_id: str) -> Load:
        load = self.loads.get(load_id)
        if load is None:
            raise UsageError(
                reason=f"find load {load_id!r}: there is no such load",
                hint="`lakewarden stage begin` prints its id; `lakewarden holds TABLE` lists the open ones",
            )
        return load

    def _start(
        self, run_id: str, load: Load, paths: tuple[str, ...], view: TableView, owner: Owner, trigger: Trigger
    ) -> Run:
        files = f"{len(paths)} file{'s' if len(paths) != 1 else ''}"
        plan = {
            "job": JOB,
            "table": load.table,
            "load": load.id,
            "files": len(paths),
            "reason": f"adopt {files}",
        }
        return self.journal.start(
            run_id=run_id,
            table=load.table,
            job=JOB,
            owner=owner,
            trigger=trigger,
            plan=plan,
            policy={"keys": self.policy_of(view).to_dict()},
            now=clock.now(),
        )

    def _finish(self, run: Run, owner: Owner, outcome: Outcome) -> Run:
        now = clock.now()
        counters = {**outcome.counters, "seconds": round((now - run.started_at).total_seconds(), 2)}
        return self.journal.finish(
            run.id, outcome.state, outcome.reason, counters, outcome.snapshot_ids, now, owner
        )


def _summary(run: Run, load: Load, adoption: Adoption, view: TableView, policy: Policy) -> Mapping[str, str]:
    head = view.current_snapshot_id
    lineage = Lineage(
        operation=OPERATION,
        run_id=run.id,
        policy_hash=policy.hash(),
        trigger=run.trigger,
        input_snapshot_ids=[] if head is None else [head],
        row_count=adoption.rows,
        bytes_compressed=adoption.bytes,
    )
    return {**lineage.summary(), "lineage.load": load.id}


def _counters(adoption: Adoption) -> dict[str, Any]:
    return {
        "files_added": len(adoption.paths),
        "rows": adoption.rows,
        "bytes_after": adoption.bytes,
        "commits": 1,
    }


def _trashed_among(state: State, table_uuid: str, paths: Sequence[str]) -> str | None:
    wanted = {normal(path): path for path in paths}
    for page in TrashedFiles(state).trashed_paths(table_uuid):
        for path in page.to_pylist():
            if normal(path) in wanted:
                return wanted[normal(path)]
    return None


def _expired_since(view: TableView, moment: datetime) -> bool:
    """Whether the snapshot of a commit that was begun then may be gone again, so that its absence proves nothing."""
    return bool(view.snapshots) and min(each.committed_at for each in view.snapshots) > moment


def _already(load: Load) -> str:
    return f"load {load.id} was adopted already, by run {load.run_id}"


def _meanwhile(action: str, load: Load) -> Busy:
    return Busy(job=action, table=load.table, run_id=load.run_id or load.id, owner=load.holder, since="now")


def _refused(action: str, load: Load, reason: str, hint: str) -> Refused:
    return Refused(action=action, target=f"load {load.id} of {load.table}", reason=reason, hint=hint)
