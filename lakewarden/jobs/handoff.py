"""handoff: copy what is about to expire to a colder tier, where it stays readable; told in order.

    plan       which snapshots would expire and are not in the cold table yet, and which of their files have no copy
    copy       each file streamed by a Spark task, read back and compared; journaled in portions, so that a stop costs one
    rehome     what names other files by their whole path is written anew, with the cold tier's paths in it
    register   the cold table has these snapshots from here on, and all it had before

Where a process stops: before the last step the cold table does not name what was copied, and the next run finds the copies
it has a record of. Nothing of the live table is touched here: expire waits until a snapshot is in the cold table, reap until
each file's copy has been read once more and is what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.actions import HandOff
from lakewarden.engine.kernels.avro_paths import rehomed_list, rehomed_manifest
from lakewarden.engine.kernels.copying import Copied, CopyTask, checksum, copy, measure
from lakewarden.engine.kernels.pace import Pace
from lakewarden.engine.kernels.storage import Store
from lakewarden.engine.lanes import budget_of
from lakewarden.engine.spark import fan_out, parallelism
from lakewarden.errors import CommitLost, CommitUnknown, LakewardenError
from lakewarden.formats.seam import ColdHome, Copying, TableFormat
from lakewarden.jobs import expire
from lakewarden.jobs.context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.grounds import Grounds
from lakewarden.jobs.recover import IN_FLIGHT, Settled
from lakewarden.model import Job, Run, RunState, TableRef, TableView
from lakewarden.paths import normal
from lakewarden.plan import Bounds, Plan, count_spared
from lakewarden.policy.resolve import Policy
from lakewarden.safety.holds import gather
from lakewarden.state.cold_files import ColdFile, ColdFiles
from lakewarden.state.runs import Journal

# What is written anew as a whole, on the driver.
_REHOMED = {"manifest": rehomed_manifest, "manifest-list": rehomed_list}
# One portion is journaled at a time: what a stop may cost to copy again.
_PORTION_BYTES, _PORTION_FILES = 1 << 30, 2_000
_THREADS = 8


def prepare(
    grounds: Grounds, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    """Reads metadata only. What has a copy is not planned again."""
    empty = Plan(
        Job.HANDOFF, view.ref, now, Bounds(view.current_snapshot_id, "main", 0), policy.hash(), reason=""
    )
    if not policy.bool("handoff_enabled"):
        why = f"switched off: {policy.explain('handoff_enabled')}"
        return Prepared(replace(empty, reason=why), view, policy)
    expire.check(view, now)
    wanted = expire.plan(view, policy, gather(view, grounds.state, now), now)
    ids = (*expire.snapshots_to_drop(wanted), *_kept_by_tags(wanted, view))
    tier = format_.cold_tier()
    home = tier.find(view, policy.text("handoff_catalog"))
    there = home.snapshots if home else frozenset()
    left = tuple(each for each in ids if each not in there)
    spared = count_spared(
        [("snapshot", 1, 0, "handed off already") for each in ids if each in there]
        + [
            (each.what, each.count, each.bytes, each.reason)
            for each in wanted.spared
            if each.what == "snapshot"
        ]
    )
    if not left:
        why = f"all {len(ids):,} snapshots that may expire are handed off" if ids else "no snapshot expires"
        return Prepared(replace(empty, reason=why, spared=spared), view, policy)
    files = tier.closure(view, left)
    new = _without_copies(files, _copies(grounds, view, home, files["path"].to_pylist()))
    tier.check(view, new)
    action = HandOff(
        left,
        policy.text("handoff_catalog"),
        new.num_rows,
        pc.sum(new["size"]).as_py() or 0,
        files.num_rows - new.num_rows,
        wanted.reason,
    )
    reason = f"{len(left):,} snapshots expire next: {new.num_rows:,} of the files they need have no copy yet"
    return Prepared(replace(empty, actions=(action,), reason=reason, spared=spared), view, policy, more=files)


def _kept_by_tags(wanted: Plan, view: TableView) -> list[int]:
    """Snapshots that expired before, and of which a tag that goes now has the last copy."""
    going = expire.refs_to_drop(wanted, view)
    held = {ref.snapshot_id for ref in view.refs if ref.name in going and ref.kind == "tag" and ref.has_copy}
    return sorted(each for each in held if view.snapshot(each) is None)


def handed_off(format_: TableFormat, view: TableView, policy: Policy) -> frozenset[int] | None:
    """The snapshots that the cold table has; None where the policy asks for no hand-off."""
    if not policy.bool("handoff_enabled"):
        return None
    home = format_.cold_tier().find(view, policy.text("handoff_catalog"))
    return home.snapshots if home else frozenset()


def settle(journal: Journal, format_: TableFormat, table: TableRef, run: Run) -> Settled | None:
    """How a hand-off that stopped really ended: the cold table has its snapshots or not. None while they may still come."""
    told = [step for step in journal.steps(run.id) if step.name == DeletingStep.HANDING]
    if not told:
        return Settled(RunState.FAILED, "it had not begun to copy")
    wanted = frozenset(told[-1].detail["snapshot_ids"])
    home = format_.cold_tier().find(format_.view(table), TableRef.parse(told[-1].detail["cold"]).catalog)
    if home is not None and home.snapshots >= wanted:
        return Settled(RunState.DONE, f"{home.ref} has its snapshots")
    if clock.now() - told[-1].at < IN_FLIGHT and run.state is RunState.UNKNOWN:
        return None
    return Settled(RunState.FAILED, "what it copied is known; the next run goes on from there")


def execute(prepared: Prepared, grounds: Grounds, context: RunContext) -> Outcome:
    (action,) = (each for each in prepared.plan.actions if isinstance(each, HandOff))
    files: pa.Table = prepared.more
    context.progress.begin(f"handoff {prepared.view.ref}", action.bytes)
    try:
        home = context.format.cold_tier().make(prepared.view, action.catalog)
        detail = {"cold": str(home.ref), "location": home.location, "snapshot_ids": list(action.snapshot_ids)}
        context.step(DeletingStep.HANDING, detail)
        storage_class = prepared.policy.maybe_text("handoff_storage_class")
        handing = _Handing(prepared.view, home, grounds, context, storage_class)
        handing.copy(files)
        handing.register(action.snapshot_ids)
        context.step(DeletingStep.HANDED, detail)
    except CommitLost as error:
        return Outcome(RunState.LOST_RACE, error.message)
    except CommitUnknown as error:
        return Outcome(RunState.UNKNOWN, error.message)
    finally:
        context.progress.end()
    return Outcome(RunState.DONE, "", {"snapshots_handed_off": len(action.snapshot_ids), **handing.counters})


class _Handing:
    """One run's copying; lives as long as `execute`."""

    def __init__(
        self,
        view: TableView,
        home: ColdHome,
        grounds: Grounds,
        context: RunContext,
        storage_class: str | None,
    ) -> None:
        self.view, self.home, self.context, self.storage_class = view, home, context, storage_class
        self.grounds = grounds
        self.move = context.format.cold_tier().rehome(view, home)
        self.counters = {"files_copied": 0, "files_present": 0, "bytes_copied": 0}

    def copy(self, files: pa.Table) -> None:
        for step in self.context.format.cold_tier().order(files):
            if step.change in _REHOMED:
                self._rehome(step)
                continue
            for portion in _portions(self._missing(step.files)):
                self._record(self._fanned_out(portion, step))

    def register(self, snapshot_ids: Sequence[int]) -> None:
        going = set(snapshot_ids)
        tags = [each for each in self.view.refs if each.kind == "tag" and each.snapshot_id in going]
        self.context.format.cold_tier().register(self.view, self.home, snapshot_ids, tags)

    def _missing(self, files: pa.Table) -> pa.Table:
        have = _copies(self.grounds, self.view, self.home, files["path"].to_pylist())
        self.counters["files_present"] += len(have)
        return _without_copies(files, have)

    def _sizes(self, paths: Sequence[str]) -> Mapping[str, int]:
        found = _copies(self.grounds, self.view, self.home, paths)
        return {path: each.size for path, each in found.items()}

    def _fanned_out(self, portion: pa.Table, step: Copying) -> list[Copied]:
        tasks = [self._task(path, step) for path in portion["path"].to_pylist()]
        return in_tasks(self.context, tasks, copy)

    def _task(self, path: str, step: Copying) -> CopyTask:
        rehome = None
        if step.change == "positions":
            rehome = (f"{self.view.location.rstrip('/')}/", f"{self.home.location}/")
        kind = None if step.instant else self.storage_class
        moved, budget = self.move(path), pace(self.context)
        return CopyTask(path, moved, self.view.io, self.home.io, budget, rehome, kind)

    def _rehome(self, step: Copying) -> None:
        """On the driver: these are small, and few."""
        paths, sizes = self._missing(step.files)["path"].to_pylist(), self._sizes(step.sized)
        source, target = Store(self.view.io), Store(self.home.io)
        change = _REHOMED[step.change]

        def one(path: str) -> Copied:
            with source.open(path) as file:
                content = change(file.read(), self.move, sizes)
            cold = self.move(path)
            with target.create(cold) as out:
                out.write(content)
            with target.open(cold) as file:
                trouble = "" if file.read() == content else "the copy differs from what was written"
            return Copied(path, cold, len(content), checksum(content), True, trouble)

        with ThreadPoolExecutor(_THREADS) as pool:
            self._record(list(pool.map(one, paths)))

    def _record(self, copied: Sequence[Copied]) -> None:
        """What is whole is written down, also where another of the portion failed."""
        whole = [each for each in copied if not each.trouble]
        now = clock.now()
        found = (ColdFile(each.source, each.target, each.bytes, each.checksum) for each in whole)
        ColdFiles(self.grounds.state).add(self.view.uuid, found, self.context.run_id, now)
        self.counters["files_copied"] += sum(each.written for each in whole)
        self.counters["files_present"] += sum(not each.written for each in whole)
        self.counters["bytes_copied"] += sum(each.bytes for each in whole if each.written)
        self.context.progress.advance(sum(each.bytes for each in whole))
        failed = [each for each in copied if each.trouble]
        if failed:
            raise LakewardenError(
                reason=f"copy {failed[0].source} to {failed[0].target}: {failed[0].trouble}"
                + (f", and {len(failed) - 1} more" if len(failed) > 1 else ""),
                hint="nothing of the live table was touched; run handoff again, it goes on where it stopped",
            )


def unproven(
    context: RunContext, view: TableView, policy: Policy, grounds: Grounds, paths: Sequence[str]
) -> dict[str, str]:
    """Of files that are to be deleted, those whose copy is not there as it was written: path to reason.

    The copies are read, every byte of them: this is the last moment at which a damaged one can be made again.
    """
    home = context.format.cold_tier().find(view, policy.text("handoff_catalog"))
    if home is None:
        return dict.fromkeys(paths, "there is no cold table")
    have = _copies(grounds, view, home, paths)
    found = {path: "it has no copy in the colder tier" for path in paths if path not in have}
    tasks = [CopyTask(path, each.cold_path, {}, home.io, pace(context)) for path, each in have.items()]
    for each in in_tasks(context, tasks, measure):
        wanted = have[each.source]
        if each.trouble:
            found[each.source] = f"its copy {each.target} cannot be read: {each.trouble}"
        elif (each.bytes, each.checksum) != (wanted.size, wanted.checksum):
            found[each.source] = f"its copy {each.target} is not what was copied"
    return found


def in_tasks(context: RunContext, tasks: Sequence[CopyTask], kernel: object) -> list[Copied]:
    """A Spark task for several files each: a task costs more than a small file does."""
    if not tasks:
        return []
    at_once = parallelism(context.spark)
    parts = [list(tasks[start :: at_once * 4]) for start in range(min(len(tasks), at_once * 4))]
    found = fan_out(context.spark, _Each(kernel), parts, context.run_id, "lakewarden copies")
    return [each for part in found for each in part]


class _Each:
    def __init__(self, kernel: object) -> None:
        self.kernel = kernel

    def __call__(self, tasks: list[CopyTask]) -> list[Copied]:
        return [self.kernel(each) for each in tasks]  # type: ignore[operator]


def pace(context: RunContext) -> Pace | None:
    """Each of the tasks that run at once has its part of the budget."""
    whole = budget_of(context.budgets)
    return whole.part(1 / parallelism(context.spark)) if whole.limits else None


def _copies(
    grounds: Grounds, view: TableView, home: ColdHome | None, paths: Sequence[str]
) -> dict[str, ColdFile]:
    """Those of this very cold table: one made before the catalog or the table's name changed is of no use here."""
    if home is None:
        return {}
    folder = f"{normal(home.location)}/"
    found = ColdFiles(grounds.state).among(view.uuid, paths)
    return {path: each for path, each in found.items() if normal(each.cold_path).startswith(folder)}


def _without_copies(files: pa.Table, have: Collection[str]) -> pa.Table:
    return files.filter(pc.invert(pc.is_in(files["path"], pa.array(list(have), pa.string()))))


def _portions(files: pa.Table) -> Iterator[pa.Table]:
    start = total = 0
    for place, size in enumerate(files["size"].to_pylist()):
        if place > start and (total + (size or 0) > _PORTION_BYTES or place - start >= _PORTION_FILES):
            yield files.slice(start, place - start)
            start, total = place, 0
        total += size or 0
    if start < files.num_rows:
        yield files.slice(start)
