"""Adopts or fails staged loads. The files wait outside of the table and are held; one snapshot then adds all or none.

If the process stops during an adoption:

    before ADOPTING          nothing happened; the load is open
    between it and ADOPTED   the table decides: the snapshot's summary has the load's id; this is checked first
    after ADOPTED            the load is adopted

Adopting again is always safe, because no commit adds a file twice. Failing a load waits until no commit can arrive any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lakewarden import clock
from lakewarden.errors import Busy, CommitLost, CommitUnknown, Refused, UsageError, message_of
from lakewarden.jobs.cold.table import refuse_frozen
from lakewarden.jobs.commit_guard import RunGuard, foresee
from lakewarden.jobs.heartbeat import DRIVEN, beating, driving
from lakewarden.jobs.journaled_commit import ending
from lakewarden.jobs.loads.begin import absolute, distinct, own_name
from lakewarden.jobs.recovery import IN_FLIGHT, RunResult, recover
from lakewarden.jobs.run_context import DeletingStep, Outcome, finish
from lakewarden.lineage.summary import Lineage
from lakewarden.model.location import normal
from lakewarden.model.run import Owner, Run, RunState, Trigger
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.read.bounds import BoundsTask, check_bounds, of_unknown_writers
from lakewarden.spark.tasks import fan_out, parallelism
from lakewarden.state.database import State
from lakewarden.state.holds import Load, Loads, LoadState
from lakewarden.state.runs import Journal, current_owner, new_run_id
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import BatchState
from lakewarden.tables.errors import not_adopted
from lakewarden.tables.interface import Adoption, TableFormat

JOB = "adopt"
CAUSE = "failed-load"
OPERATION = "append"
# How many of a table's newest runs are searched for earlier attempts.
_LOOK_BACK = 10_000


@dataclass(frozen=True, slots=True)
class LoadAdoption:
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
            all_paths = distinct([*load.paths, *absolute(paths)])
            run = self._start(run_id, load, all_paths, view, owner, trigger)
            with beating(self.journal, run_id, owner):
                return finish(self.journal, run, owner, self._adopting(run, owner, load, all_paths, view))

    def _adopting(
        self, run: Run, owner: Owner, load: Load, paths: tuple[str, ...], view: TableView
    ) -> Outcome:
        """Closes the run if an exception ends it, unless its commit was started: then the next call reads the outcome from the table."""
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
                state = RunState.REFUSED if refused else RunState.FAILED
                finish(self.journal, run, owner, Outcome(state, message_of(error)))
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
        # Only now, so that a path that cannot be adopted does not become part of the load.
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
        """Raises for wrong statistics in footers: they become the table's bounds and decide the partition. Decodes unknown writers' files."""
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
                "it has expired, and nothing has held its files since",
                "begin a new load with the same paths",
            )
        if load.table_uuid and load.table_uuid != view.uuid:
            raise _refused(
                "adopt",
                load,
                f"{load.table} was dropped and created again since",
                "begin a new load for the new table",
            )
        if any(_expired_since(view, tried) for tried in self._tried(load)):
            raise _refused(
                "adopt",
                load,
                "an earlier attempt may have committed, and its snapshot may have expired since",
                "search the table for its rows; if they are missing, begin a new load with the same paths",
            )
        if not paths:
            raise UsageError(reason=f"adopt {load.id}: it names no files", hint="name them with --path")
        for path in paths:
            if (own := own_name(path, view.location)) is not None:
                reason, hint = f"{path} is a symlink to {own}", "begin a load with that path"
                raise _refused("adopt", load, reason, hint)
        trashed = _trashed_among(self.state, view.uuid, paths)
        if trashed:
            hint = f"restore it first: `lakewarden restore {load.table} {trashed}`"
            raise _refused("adopt", load, f"{trashed} is in the trash", hint)

    # ------------------------------------------------------------ failing

    def fail(self, load_id: str) -> Load:
        """Put the registered files into the trash, never files from a listing. After a crash, a second call finishes the work."""
        load, _ = self._settled(load_id)
        if load.state is LoadState.ADOPTED:
            hint = "its files are part of the table; delete the rows instead"
            raise _refused("fail", load, _already(load), hint)
        if load.state is LoadState.OPEN:
            self._fail_open(load)
        trashed, batch = TrashedFiles(self.state), TrashedFiles(self.state).batch(load.id)
        if batch is not None and batch.state is BatchState.PENDING:
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
        # Another commit may have added some of the files to the table: these must not be trashed.
        live = set(format_.loads().live_among(table, load.paths)) if load.paths else set()
        self._trash(load, [path for path in load.paths if path not in live], view)
        # A crash before this line leaves a deletion batch that is not effective, and an open load.
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

    # ------------------------------------------------------------ recovery

    def _settled(self, load_id: str) -> tuple[Load, Owner]:
        """The load, after the open adoptions of this table are settled. Raises Busy while one is running."""
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

    def _ended(self, run: Run, format_: TableFormat, table: TableRef) -> RunResult | None:
        """The real outcome of an adoption: the table has its snapshot or not. None while the commit may still arrive."""
        begun = [step.at for step in self.journal.steps(run.id) if step.name == DeletingStep.ADOPTING]
        if not begun:
            return RunResult(RunState.FAILED, "it had not started to commit")
        load = self.loads.get(str(run.plan["load"]))  # None: it ended long ago and its record was deleted
        snapshot_id = format_.loads().find_adoption(table, str(run.plan["load"]))
        if snapshot_id is not None:
            if load is not None:
                self.loads.end(load, LoadState.ADOPTED, clock.now())
            return RunResult(RunState.DONE, f"the table has its files since snapshot {snapshot_id}")
        if clock.now() - begun[-1] < IN_FLIGHT:
            return None
        return RunResult(RunState.FAILED, "the table does not show its files")

    def _tried(self, load: Load) -> list[datetime]:
        """The start times of commits of this load with an unknown outcome."""
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
    by_location = {normal(path): path for path in paths}
    for page in TrashedFiles(state).trashed_paths(table_uuid):
        for path in page.to_pylist():
            if normal(path) in by_location:
                return by_location[normal(path)]
    return None


def _expired_since(view: TableView, moment: datetime) -> bool:
    """Whether a commit started then may already have expired, so that its absence proves nothing."""
    return bool(view.snapshots) and min(snapshot.committed_at for snapshot in view.snapshots) > moment


def _already(load: Load) -> str:
    return f"load {load.id} was adopted already, by run {load.run_id}"


def _meanwhile(action: str, load: Load) -> Busy:
    return Busy(job=action, table=load.table, run_id=load.run_id or load.id, owner=load.holder, since="now")


def _refused(action: str, load: Load, reason: str, hint: str) -> Refused:
    return Refused(action=action, target=f"load {load.id} of {load.table}", reason=reason, hint=hint)
