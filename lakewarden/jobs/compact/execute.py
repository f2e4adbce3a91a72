"""Executes a plan of rewrite groups: write, journal, commit; many units of groups at once.

The units of commit (by default one group of one partition) are independent. One Spark job writes the
outputs of a unit, and the unit is committed at once, while other units are still being written. A unit that
fails is skipped with its reason, and the others continue. If the process stops, the table stays valid:
before COMMITTING is journaled no commit can have happened; after it the table itself knows, by run id and
group.

Deletes that arrive while their data files are being rewritten are carried over to the outputs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from lakewarden import clock
from lakewarden.errors import CommitDeclined, CommitLost
from lakewarden.jobs.compact.binpack import output_name, settled_mark
from lakewarden.jobs.compact.cleanup import discard_groups, discard_unnamed
from lakewarden.jobs.compact.cluster import clustering
from lakewarden.jobs.compact.damage import sound
from lakewarden.jobs.compact.delete_files import DeleteFileResult, has_delete_actions, run_delete_actions
from lakewarden.jobs.compact.result import Result, digest_of, outcome, proof_of, redo, speed
from lakewarden.jobs.journaled_commit import CleanupResult, intent_of, journaled_commit
from lakewarden.jobs.quiet_windows import BackOff, Paused, Windows
from lakewarden.jobs.run_context import Outcome, RunContext, StepName
from lakewarden.jobs.units import progress_of, run_units_at_once
from lakewarden.lineage.summary import Lineage
from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.location import normal
from lakewarden.model.plan import Plan
from lakewarden.model.run import Job, RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.arrow import ArrowEngine
from lakewarden.rewrite.deletes.deleted_rows import RemapTask, remap
from lakewarden.rewrite.interface import GroupResult, Order, RewriteEngine
from lakewarden.rewrite.native import NativeEngine
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.store import MissingSource
from lakewarden.rewrite.task import SlicePart
from lakewarden.rewrite.write.encoding import odd_properties
from lakewarden.spark.task_slots import RunSlots
from lakewarden.spark.tasks import Meter, fan_out, kill_timeout, task_reason, ticking, wait_until_idle
from lakewarden.tables.interface import ConcurrentDelete, Rewrite

log = logging.getLogger(__name__)

# How often a group is written in all, if deletes arrive that cannot be carried over to its outputs.
_ROUNDS = 3

Unit = tuple[RewriteGroup, ...]


def execute(plan: Plan, view: TableView, files: FileSet, policy: Policy, context: RunContext) -> Outcome:
    """Execute the plan. Ctrl-C stops the writing, lets a commit that has begun finish, and removes other outputs."""
    began = clock.monotonic()
    done = _round(plan, view, files, policy, context)
    results, read, backed_off = list(done.results), done.bytes_read, done.backed_off
    for _ in range(_ROUNDS - 1):
        again = None if done.interrupted else redo(plan, results, view, policy, context)
        if again is None:
            break
        done = _round(again.plan, view, again.files, policy, context)
        results = [each for each in results if each.group.number not in again.instead_of] + done.results
        read, backed_off = read + done.bytes_read, backed_off + done.backed_off
    moved = speed(results, read, clock.monotonic() - began, backed_off)
    chores = [] if done.interrupted else _chores(plan, view, files, context)
    made = outcome(plan, results, done.interrupted, chores, moved)
    return replace(made, counters={**made.counters, "delete_files_dropped": _dropped(made, view, context)})


def _chores(plan: Plan, view: TableView, files: FileSet, context: RunContext) -> list[DeleteFileResult]:
    """Do the chores, unless a quiet window has begun: then the next run does them."""
    if not has_delete_actions(plan):
        return []
    try:
        Windows.for_run(context.budgets, context.trigger).check(clock.now())
    except Paused as paused:
        return [DeleteFileResult(RunState.PARTIAL, str(paused))]
    return run_delete_actions(plan, view, files, context)


def _dropped(made: Outcome, view: TableView, context: RunContext) -> int:
    """By how many delete files the table has become smaller, from the commits' own summaries."""
    if not made.snapshot_ids:
        return 0
    commits = [each for each in context.format.view(view.ref).snapshots if each.id in made.snapshot_ids]
    removed = sum(int(each.summary.get("removed-delete-files", 0)) for each in commits)
    return removed - sum(int(each.summary.get("added-delete-files", 0)) for each in commits)


@dataclass(frozen=True, slots=True)
class _Round:
    results: list[Result]
    interrupted: bool
    bytes_read: int
    backed_off: float


def _round(plan: Plan, view: TableView, files: FileSet, policy: Policy, context: RunContext) -> _Round:
    """Rewrite every group of the plan once."""
    groups = plan.groups()
    context.format.rewrites().retain(files, [path for group in groups for path in group.paths()])
    prefixes = _prefixes(plan, view, files, context)
    for said in odd_properties(context.format.rewrites().parquet_properties(view)) if prefixes else ():
        log.warning("%s: %s", view.ref, said)
        context.progress.note(f"{view.ref}: {said}")
    outputs = {str(number): list(paths) for number, paths in prefixes.items()}
    context.step(StepName.WRITING, {"outputs": outputs, "table_uuid": view.uuid})
    rewriting = _Rewriting(plan, view, files, policy, context, prefixes)
    units = commit_units(groups, policy.maybe_int("rewrite_max_commits"))
    with (
        progress_of(context, f"{plan.job} {view.ref}", sum(group.bytes for group in groups)),
        ticking(rewriting.meter, context.progress.advance),
        rewriting.work or nullcontext(),
    ):
        results, interrupted = rewriting.run(units)
    backed_off = rewriting.backoff.waited if rewriting.backoff else 0.0
    return _Round(results, interrupted, rewriting.meter.fetched, backed_off)


def commit_units(groups: Sequence[RewriteGroup], max_commits: int | None) -> list[Unit]:
    """Which groups share a commit. By default none; with a maximum of commits, as few groups per commit as it allows."""
    per_commit = 1 if not max_commits else -(-len(groups) // max_commits)
    units = []
    # The summary of a commit is true for all its outputs, so groups with another order are committed separately.
    for order in dict.fromkeys(group.clustering for group in groups):
        alike = [group for group in groups if group.clustering == order]
        units += [tuple(alike[start : start + per_commit]) for start in range(0, len(alike), per_commit)]
    # The largest first: the last unit to finish is then a short one, and no core waits long.
    return sorted(units, key=lambda unit: -sum(group.bytes for group in unit))


def _settles(plan: Plan, group: RewriteGroup) -> int:
    """The target size for which a group's outputs count as settled. Outputs of compact-deletes may be small, so they do
    not count as settled, unless they keep an order."""
    return plan.target_bytes if plan.job is Job.COMPACT or group.clustering else 0


def _prefixes(plan: Plan, view: TableView, files: FileSet, context: RunContext) -> dict[int, tuple[str, ...]]:
    """The place of every output, by the table's own location rules, before the first byte is written."""
    wanted = [
        (group, index) for group in plan.groups() if group.engine == "arrow" for index in range(group.outputs)
    ]
    names = [
        (
            group.partition_id,
            output_name(context.run_id, group.number, index, _settles(plan, group), group.clustering),
        )
        for group, index in wanted
    ]
    found: dict[int, list[str]] = {}
    for (group, _), path in zip(
        wanted, context.format.rewrites().output_locations(view.ref, files, names), strict=True
    ):
        found.setdefault(group.number, []).append(path)
    return {number: tuple(paths) for number, paths in found.items()}


class _Rewriting:
    """The state of one execution."""

    def __init__(
        self,
        plan: Plan,
        view: TableView,
        files: FileSet,
        policy: Policy,
        context: RunContext,
        prefixes: Mapping[int, tuple[str, ...]],
    ) -> None:
        self.plan, self.view, self.files, self.context, self.prefixes = plan, view, files, context, prefixes
        self.meter = Meter(context.spark)
        self.encodings = policy.text("rewrite_encodings")
        self.clustering = clustering(view, policy)
        self.proof = policy.text("rewrite_digest")
        self.schema = context.format.rewrites().arrow_schema(view) if prefixes else b""
        io = context.format.write_properties(view.ref) if prefixes else {}
        # Set once, seen by every thread: no unit starts writing or committing after it.
        self.stop = context.stop.event
        self.windows = Windows.for_run(context.budgets, context.trigger)
        self.backoff = BackOff.of(context.budgets)
        self.work = self._slots()
        self.arrow = ArrowEngine(
            context.spark, context.run_id, io, context.task_memory, self.meter, self.work, self._gate
        )
        self.native: RewriteEngine = NativeEngine(
            context.spark, context.run_id, context.format.rewrites(), view.format
        )
        # One commit of this run at a time: two would only make each other retry.
        self.committing = threading.Lock()
        # Groups whose outputs stay as evidence.
        self.kept: set[int] = set()

    def _slots(self) -> RunSlots | None:
        if self.context.slots is None:
            return None
        tasks = sum(len(group.bins) for group in self.plan.groups() if group.engine == "arrow")
        return self.context.slots.work(tasks, stop=self.stop, gate=self._gate, hold=self._hold)

    def _gate(self) -> None:
        self.windows.check(clock.now())

    def _hold(self) -> None:
        if self.backoff is not None:
            self.backoff.wait(self.stop, self.context.progress.note)

    def run(self, units: Sequence[Unit]) -> tuple[list[Result], bool]:
        """Every unit's results, and whether Ctrl-C cut it short."""
        try:
            results, interrupted = run_units_at_once(self.context, units, self._unit, self.arrow.cancel)
        finally:
            if self.stop.is_set():
                self._remove_late_files(units)
        every = [result for unit in results for result in unit]
        # A cancel may have ended every unit before the waiting thread noticed it.
        return every, interrupted or any(each.state is RunState.INTERRUPTED for each in every)

    def _remove_late_files(self, units: Sequence[Unit]) -> None:
        """The Python worker of a cancelled task may write until Spark's kill timeout, and close a file after the clean-up."""
        clock.sleep(kill_timeout(self.context.spark))
        late = [
            group for unit in units for group in unit if group.number not in self.context.begun | self.kept
        ]
        self._discard(late, ())

    def _unit(self, unit: Unit) -> list[Result]:
        if self.stop.is_set():
            return [Result(group, RunState.INTERRUPTED, "stopped before it was written") for group in unit]
        written: list[GroupResult] = []
        try:
            self._gate()
            written = self._write(unit)
            good = [each for each in written if each.trouble is None]
            if good:
                self.context.format.rewrites().prepare_rewrite(self._rewrite(good))
        except Paused as paused:  # asked before a task starts; other groups of the unit may have been written
            self._discard(unit, written)
            return [self._skip(group, RunState.PARTIAL, str(paused)) for group in unit]
        except Exception as error:  # the failure of one unit is reported, and the others continue
            log.debug("unit failed", exc_info=True)
            return self._give_up(unit, written, error)
        # From here on no error is caught: an error around a commit must never remove files that the commit may have added.
        return self._finish(written)

    def _give_up(self, unit: Unit, written: Sequence[GroupResult], error: Exception) -> list[Result]:
        """Skip the whole unit. Spark may still be ending its tasks: their files are removed when they have ended."""
        wait_until_idle(self.context.spark)
        self._discard(unit, written)
        state = RunState.INTERRUPTED if self.stop.is_set() else RunState.FAILED
        reason = "stopped while it was written" if self.stop.is_set() else task_reason(error)
        return [self._skip(group, state, reason) for group in unit]

    def _write(self, unit: Unit) -> list[GroupResult]:
        """Write each group by its engine. Groups that the kernel cannot write exactly go to the second engine."""
        arrow = [group for group in unit if group.engine == "arrow"]
        native = [group for group in unit if group.engine != "arrow"]
        written = list(self.arrow.write(self._order(arrow))) if arrow else []
        unfit = {
            each.group.number: each.trouble.reason for each in written if each.trouble and each.trouble.unfit
        }
        if unfit:
            self._discard([each.group for each in written if each.group.number in unfit], ())
            native += [
                replace(group, engine=self.view.format, engine_reason=unfit[group.number])
                for group in arrow
                if group.number in unfit
            ]
            written = [each for each in written if each.group.number not in unfit]
        if native:
            good, damaged = sound(native, self.view, self.files, self.context)
            written += [*damaged, *(self.native.write(self._order(good)) if good else ())]
            self.context.progress.advance(sum(group.bytes for group in native))
        return written

    def _order(self, groups: Sequence[RewriteGroup]) -> Order:
        return Order(
            self.context.run_id,
            self.view,
            self.files,
            self.plan,
            tuple(groups),
            self.prefixes,
            self.schema,
            self.encodings,
            self.clustering.ordering,
            self.clustering.sort_order_id,
            digest=self.proof != "off",
            copy_pages=self.proof != "rows",
            properties=self.context.format.rewrites().parquet_properties(self.view),
        )

    def _finish(self, written: Sequence[GroupResult]) -> list[Result]:
        good = [each for each in written if each.trouble is None and not each.differs]
        bad = [each for each in written if each.trouble is not None]
        differing = [each for each in written if each.trouble is None and each.differs]
        if bad:
            self._discard([each.group for each in bad], bad)
        results = [self._skip(each.group, RunState.PARTIAL, str(each.trouble)) for each in bad]
        results += [self._keep_evidence(each) for each in differing]
        return results + (self._commit(good) if good else [])

    def _keep_evidence(self, written: GroupResult) -> Result:
        """The rows written differ from the rows read. They are never committed, and the files stay for an investigation."""
        paths = [file.path for file in written.outputs]
        self.context.step(
            StepName.EVIDENCE,
            {
                "group": written.group.number,
                "read": str(written.read),
                "written": str(written.written),
                "outputs": paths,
            },
        )
        self.kept.add(written.group.number)
        differing = (
            f"the rows written are not the rows read (digest {written.written} instead of {written.read})"
        )
        if str(written.read) == str(written.written):
            differing = "rows were written with the row ids or sequence numbers of other rows"
        reason = f"{differing}; nothing was committed, and the outputs stay as evidence, the first of them {paths[0] if paths else 'none'}"
        return self._skip(written.group, RunState.FAILED, reason)

    def _commit(self, written: Sequence[GroupResult]) -> list[Result]:
        rewrite, arrivals = self._rewrite(written), self._arrivals(written)
        numbers, outputs = [each.group.number for each in written], [file.path for file in rewrite.added]
        intent = intent_of(numbers, outputs, rewrite.summary)

        def discard_lost(error: CommitLost) -> CleanupResult:
            if isinstance(error, CommitDeclined):  # without outputs; the commit may still arrive
                return CleanupResult.GONE
            carried = arrivals.written if arrivals else ()
            return self._discard([each.group for each in written], written, carried)

        def commit() -> int:
            snapshot_id = self.context.writer.commit_rewrite(rewrite, arrivals)
            if snapshot_id is None:
                raise AssertionError("a rewrite of data files always has something to commit")
            return snapshot_id

        result = journaled_commit(
            self.context,
            intent,
            commit,
            lambda snapshot_id: {**intent, "snapshot_id": snapshot_id},
            discard=discard_lost,
            alone=self.committing,
            stopped=self.stop.is_set,
        )
        if result.state is RunState.INTERRUPTED:
            self._discard([each.group for each in written], written)
        if not result.done:
            return [self._skip(each.group, result.state, result.reason) for each in written]
        if result.value is None:  # the commit was reported lost, but the table has it
            return [Result.done(each, None) for each in written]
        if arrivals:
            used = {normal(path) for path in arrivals.used}
            left = [path for path in arrivals.written if normal(path) not in used]
            discard_unnamed(self.context.format, self.view.ref, self.view.uuid, self.context.run_id, left)
        rows = arrivals.rows if arrivals else 0
        return [
            Result.done(each, result.value, self._shares(each), rows if each is written[0] else 0)
            for each in written
        ]

    def _shares(self, written: GroupResult) -> Mapping[str, float]:
        """The share of the new files that a query for one value opens, by their bounds."""
        names = list(written.group.share_before)
        if not names or not written.outputs:
            return {}
        paths = [file.path for file in written.outputs]
        return self.context.format.rewrites().clustering_of_outputs(self.view.ref, self.files, paths, names)

    def _arrivals(self, written: Sequence[GroupResult]) -> ConcurrentDeletes | None:
        """How deletes that arrive during the rewrite are carried over. None if rows changed their order or another engine
        wrote.
        """
        if any(each.engine != "arrow" or (each.outputs and not each.parts) for each in written):
            return None
        parts = {path: found for each in written for path, found in each.parts.items()}
        group_of = {path: each.group for each in written for path in each.parts}

        def task(path: str) -> RemapTask:
            return self.arrow.remap_task(self._order([]), group_of[path], path, parts[path])

        return ConcurrentDeletes(self.context, self.view, parts, task)

    def _rewrite(self, written: Sequence[GroupResult]) -> Rewrite:
        groups = [each.group for each in written]
        lineage = Lineage(
            operation="compaction",
            run_id=self.context.run_id,
            policy_hash=self.plan.policy_hash,
            trigger=self.context.trigger,
            input_snapshot_ids=[self.files.snapshot_id],
            row_count=sum(each.group.rows - each.erased for each in written),
            bytes_compressed=sum(group.bytes for group in groups),
            group=",".join(str(group.number) for group in groups),
            digest=digest_of(written),
            proof=proof_of(written),
            settled=settled_mark(_settles(self.plan, groups[0]), groups[0].clustering),
        )
        return Rewrite(
            table=self.view.ref,
            files=self.files,
            bounds=self.plan.bounds,
            removed=tuple(path for group in groups for path in group.paths()),
            added=tuple(file for each in written for file in each.outputs),
            summary=lineage.summary(),
            deletes=tuple(
                self.files.deletes[place].key for group in groups for place in sorted(group.deletes)
            ),
            schema_id=self.view.schema_id,
        )

    def _skip(self, group: RewriteGroup, state: RunState, reason: str) -> Result:
        self.context.step(
            StepName.SKIPPED, {"group": group.number, "partition": group.partition, "reason": reason}
        )
        self.context.progress.note(f"skipped {group.partition or 'the table'}: {reason}")
        return Result(group, state, reason)

    def _discard(
        self, groups: Sequence[RewriteGroup], written: Sequence[GroupResult], carried: Sequence[str] = ()
    ) -> CleanupResult:
        """Remove what these groups wrote, unless the table names it."""
        if not groups:
            return CleanupResult.GONE
        numbers = [group.number for group in groups]
        native = [file.path for each in written if each.engine != "arrow" for file in each.outputs]
        prefixes = [prefix for number in numbers for prefix in self.prefixes.get(number, ())]
        return discard_groups(self.context, self.view, numbers, prefixes=prefixes, native=[*native, *carried])


class ConcurrentDeletes:
    """Takes in deletes for one commit.

    `written`: all delete files that it wrote. `used`: those of the newest attempt. Delete files of failed
    attempts are not part of the table.

    A kernel that kept the order of the rows reports where each source's rows are in the outputs. So a
    deleted position in a source is a position in an output, and an equality delete is looked up among the
    sources' keys. Both become position deletes on the outputs.
    """

    def __init__(
        self,
        context: RunContext,
        view: TableView,
        parts: Mapping[str, tuple[SlicePart, ...]],
        task: Callable[[str], RemapTask],
    ) -> None:
        """`task` makes the remapping of one output, before any delete is given to it."""
        self._context = context
        self._view = view
        self._parts = parts
        self._task = task
        self._number = count(1)
        self.written: list[str] = []
        self.used: list[str] = []
        self.rows = 0

    def positions(self, arrived: Sequence[ConcurrentDelete]) -> Mapping[str, Any]:
        tasks = [task for path in self._parts if (task := self._with(path, arrived)) is not None]
        self.rows = 0
        if not tasks:
            return {}
        # Its own job group: stopping the run must not stop a commit that has begun.
        group, what = f"{self._context.run_id}-deletes", f"lakewarden {self._view.ref}: deletes"
        found = fan_out(self._context.spark, _remap, tasks, group, what)
        troubled = next((each for each in found if isinstance(each, str)), None)
        if troubled is not None:
            raise CommitLost(table=self._view.ref, reason=f"new deletes cannot be carried over: {troubled}")
        struck = {task.output: each for task, each in zip(tasks, found, strict=True) if len(each)}
        self.rows = sum(len(each) for each in struck.values())
        return struck

    def _with(self, path: str, arrived: Sequence[ConcurrentDelete]) -> RemapTask | None:
        sources = {part.slice.path for part in self._parts[path]}
        applying = [each for each in arrived if sources.intersection(each.applies_to)]
        if not applying:
            return None
        return self._task(path).with_deletes(
            tuple(each.file for each in applying),
            [frozenset(each.applies_to) for each in applying],
        )

    def place(self, output: str, format_: str) -> str:
        """Beside the output, named after it, with a number: a second attempt never overwrites what a first one wrote."""
        stem = output.rsplit(".", 1)[0]
        path = f"{stem}-deletes-{next(self._number)}.{format_}"
        self.written.append(path)
        self._context.step(StepName.CARRYING, {"path": path})
        return path


def _remap(task: RemapTask) -> Any:
    """Runs in a Spark task. A failure is returned as its reason, because Spark would retry after an exception."""
    try:
        return remap(task)
    except (Unfit, MissingSource) as error:
        return str(error)
