"""handoff: copy what is about to expire to a colder tier, where it stays readable; told in order.

    plan       which snapshots would expire and are not in the cold table yet, and which of their files have no copy
    copy       each file streamed by a Spark task, read back and compared; journaled in portions, so that a stop costs one
    rehome     manifests and manifest lists, with the cold tier's paths in them
    register   one commit of the cold table, after which it has these snapshots and all it had before

Where a process stops: before the last step the cold table does not name what was copied, and the next run finds the copies
it has a record of. Nothing of the live table is touched here: expire waits until a snapshot is in the cold table, reap until
each file's copy has been read once more and is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.actions import HandOff
from lakewarden.engine.kernels.avro_paths import Outside, rehomed_list, rehomed_manifest
from lakewarden.engine.kernels.copying import NEVER, Copied, CopyTask, copy, measure, placed
from lakewarden.engine.kernels.pace import Pace
from lakewarden.engine.kernels.s3_copy import on_s3
from lakewarden.engine.kernels.storage import Store
from lakewarden.engine.objects import Objects
from lakewarden.engine.spark import fan_out, parallelism
from lakewarden.errors import CommitLost, CommitUnknown, LakewardenError, Refused
from lakewarden.formats.seam import ColdHome, TableFormat
from lakewarden.jobs import expire
from lakewarden.jobs.archived import changed, in_archive
from lakewarden.jobs.context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.cost import hand_off_cost
from lakewarden.jobs.grounds import Grounds
from lakewarden.jobs.recover import IN_FLIGHT, Settled
from lakewarden.model import Job, Run, RunState, TableRef, TableView
from lakewarden.paths import normal, spellings
from lakewarden.plan import Bounds, Plan, count_spared
from lakewarden.policy.resolve import Policy
from lakewarden.safety.holds import gather
from lakewarden.state.cold_files import ColdFile, ColdFiles
from lakewarden.state.runs import Journal

_METADATA = ("manifest", "manifest-list")
_DELETES = "position-deletes"
_DELETE_FILES = (".parquet", ".puffin")
_AS_IT_IS = ("data", "equality-deletes")
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
    ids = expire.snapshots_to_drop(wanted)
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
    new = _without_copies(files, _copies(grounds, format_, view, home, files))
    action = HandOff(
        left,
        policy.text("handoff_catalog"),
        new.num_rows,
        sum(sizes),
        files.num_rows - new.num_rows,
        wanted.reason,
        hand_off_cost(sizes, None, policy.maybe_text("handoff_storage_class"), grounds.prices),
    )
    reason = f"{len(left):,} snapshots expire next: {new.num_rows:,} of the files they need have no copy yet"
    return Prepared(replace(empty, actions=(action,), reason=reason, spared=spared), view, policy, more=files)


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
        self.grounds, self.copies = grounds, ColdFiles(grounds.state)
        self.move = context.format.cold_tier().rehome(view, home)
        self.counters = {"files_copied": 0, "files_present": 0, "bytes_copied": 0}
        self.classes: dict[str, str | None] = {}  # of what is copied as it is; all else has the store's own

    def copy(self, files: pa.Table) -> None:
        """Data first, then what names it: a manifest's copy tells the sizes that its delete files have there."""
        plain = files.filter(pc.invert(pc.is_in(files["kind"], pa.array(_METADATA))))
        for portion in _portions(self._missing(plain)):
            self._record(self._fanned_out(portion))
        deletes = plain.filter(pc.equal(plain["kind"], _DELETES))
        self._rehome(files, "manifest", self._sizes(deletes["path"].to_pylist()))
        manifests = files.filter(pc.equal(files["kind"], "manifest"))["path"].to_pylist()
        self._rehome(files, "manifest-list", self._sizes(manifests))

    def register(self, snapshot_ids: Sequence[int]) -> None:
        going = set(snapshot_ids)
        tags = [each for each in self.view.refs if each.kind == "tag" and each.snapshot_id in going]
        self.context.format.cold_tier().register(self.view, self.home, snapshot_ids, tags)

    def _missing(self, files: pa.Table) -> pa.Table:
        have = _copies(self.grounds, self.context.format, self.view, self.home, files)
        self.counters["files_present"] += len(have)
        return _without_copies(files, have)

    def _sizes(self, paths: Sequence[str]) -> Mapping[str, int]:
        return {path: each.size for path, each in self.copies.among(self.view.uuid, paths).items()}

    def _fanned_out(self, portion: pa.Table) -> list[Copied]:
        tasks = [
            self._task(path, kind)
            for path, kind in zip(portion["path"].to_pylist(), portion["kind"].to_pylist(), strict=True)
        ]
        return in_tasks(self.context, tasks, copy)

    def _task(self, path: str, kind: str) -> CopyTask:
        rehome: tuple[tuple[str, str], ...] = ()
        if kind == _DELETES:
            if not path.endswith(_DELETE_FILES):
                raise Refused(
                    action="hand off",
                    target=self.view.ref,
                    reason=f"{path} names data files and is no Parquet file: its paths cannot be changed",
                    hint="apply its deletes first: `lakewarden run compact-deletes`",
                )
            rehome = prefixes(self.view, self.home)
        moved = self.move(path)
        return CopyTask(path, moved, self.view.io, self.home.io, None, rehome, self.storage_class)

    def _rehome(self, files: pa.Table, kind: str, sizes: Mapping[str, int]) -> None:
        """On the driver: these are small, and few."""
        missing = self._missing(files.filter(pc.equal(files["kind"], kind)))
        source = Store(self.view.io)
        change = rehomed_list if kind == "manifest-list" else rehomed_manifest

        def one(path: str) -> Copied:
            with source.open(path) as file:
                content = file.read()
            try:
                made = change(content, self._maybe, sizes)
            except Outside as error:
                self.move(error.path)  # says what to do about it
                raise
            return placed(path, self.move(path), made, self.home.io)

        with ThreadPoolExecutor(_THREADS) as pool:
            for portion in _portions(missing):
                self._record(list(pool.map(one, portion["path"].to_pylist())))

    def _maybe(self, path: str) -> str | None:
        """Where the file lies in the colder tier; None for one that has no place there."""
        try:
            return self.move(path)
        except Refused:
            return None

    def _record(self, copied: Sequence[Copied]) -> None:
        """What is whole is written down, also where another of the portion failed."""
        whole = [each for each in copied if not each.trouble]
        now = clock.now()
        found = (
            ColdFile(each.source, each.target, each.bytes, each.checksum, self.classes.get(each.source))
            for each in whole
        )
        self.copies.add(self.view.uuid, found, self.context.run_id, now)
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
    context: RunContext,
    view: TableView,
    policy: Policy,
    grounds: Grounds,
    files: pa.Table,
    promised: Mapping[str, frozenset[int]],
) -> dict[str, str]:
    """Of files that are to be deleted (path, modified), those whose copy is not there as it was written: path to reason.

    `promised` are, by path, snapshots that the cold table must have: copies that no table names are of no use.

    The copies are read, every byte of them: this is the last moment at which a damaged one can be made again, and it is.
    """
    paths: list[str] = files["path"].to_pylist()
    home = context.format.cold_tier().find(view, policy.text("handoff_catalog"))
    if home is None:
        return dict.fromkeys(paths, "there is no cold table")
    lost = {path: ids - home.snapshots for path, ids in promised.items() if not ids <= home.snapshots}
    if lost:
        told = {path: f"{home.ref} does not have snapshot {min(ids)}" for path, ids in lost.items()}
        rest = files.filter(pc.invert(pc.is_in(files["path"], pa.array(list(lost), pa.string()))))
        return told | unproven(context, view, policy, grounds, rest, {})
    every = ColdFiles(grounds.state).among(view.uuid, paths)
    folder = f"{normal(home.location)}/"
    have = {path: each for path, each in every.items() if normal(each.cold_path).startswith(folder)}
    found = {path: "no copy of it in the colder tier is on record" for path in paths if path not in every}
    move = context.format.cold_tier().rehome(view, home)
    # Records may be lost: a copy that is equal to the file proves itself.
    compared = [CopyTask(each, move(each), view.io, home.io, known=NEVER) for each in found]
    for each in mended(context, compared, view, home):
        del found[each.source]
    found |= {path: f"its copy is not in {home.ref}" for path in every if path not in have}
    tasks = {path: CopyTask(path, each.cold_path, view.io, home.io) for path, each in have.items()}
    doubtful = {}
    for each in in_tasks(context, list(tasks.values()), measure):
        wanted = have[each.source]
        if each.trouble:
            doubtful[each.source] = f"its copy {each.target} cannot be read: {each.trouble}"
        elif (each.bytes, each.checksum) != (wanted.size, wanted.checksum):
            doubtful[each.source] = f"its copy {each.target} is not what was copied"
    for path, modified in zip(paths, files["modified"].to_pylist(), strict=True):
        if path in have and have[path].before(modified):
            doubtful.setdefault(path, "it was written again after it was copied")
    kind = policy.maybe_text("handoff_storage_class")
    known = {path: (each.size, each.checksum) for path, each in have.items()}
    again = [replace(tasks[each], known=known[each], storage_class=kind) for each in doubtful]
    for each in mended(context, again, view, home):
        if each.written:
            doubtful[each.source] += "; it was made again from this file, and the next run looks once more"
        else:
            del doubtful[each.source]
    return found | doubtful


def mended(context: RunContext, tasks: Sequence[CopyTask], view: TableView, home: ColdHome) -> list[Copied]:
    """Those whose copy is what it was, made from the live file again where it had to be. No other content is ever written."""
    plain = [each for each in in_tasks(context, tasks, copy) if not each.trouble]
    whole = {each.source for each in plain}
    # Delete files were not copied as they are. What is neither is told from them by its checksum, and left alone.
    rest = [each for each in tasks if each.source not in whole and each.source.endswith(_DELETE_FILES)]
    again = in_tasks(context, [replace(each, rehome=prefixes(view, home)) for each in rest], copy)
    return plain + [each for each in again if not each.trouble]


def in_tasks(
    context: RunContext, tasks: Sequence[CopyTask], kernel: Callable[[CopyTask], Copied]
) -> list[Copied]:
    """A Spark task for several files each: a task costs more than a small file does. Under a limit, each at its share."""
    if not tasks:
        return []
    spark, what = context.spark, "lakewarden copies"
    parts = _parts(tasks, parallelism(spark) * 4)
    if context.lanes is None:
        found = fan_out(spark, _Each(kernel), parts, context.run_id, what)
    else:

        def alone(part: list[CopyTask], share: Pace) -> list[Copied]:
            paced = [replace(each, pace=share) for each in part]
            return fan_out(spark, _Each(kernel), [paced], context.run_id, what)[0]

        with context.lanes.work(len(parts)) as work:
            found = work.run(alone, parts)
    return [each for part in found for each in part]


def _parts(tasks: Sequence[CopyTask], most: int) -> list[list[CopyTask]]:
    return [list(tasks[start::most]) for start in range(min(len(tasks), most))]


class _Each:
    def __init__(self, kernel: Callable[[CopyTask], Copied]) -> None:
        self.kernel = kernel

    def __call__(self, tasks: list[CopyTask]) -> list[Copied]:
        return [self.kernel(each) for each in tasks]


def prefixes(view: TableView, home: ColdHome) -> tuple[tuple[str, str], ...]:
    """What paths of the table's files begin with, and in the colder tier."""
    return tuple((each, f"{home.location}/") for each in spellings(view.location))


def _copies(
    grounds: Grounds, format_: TableFormat, view: TableView, home: ColdHome | None, files: pa.Table
) -> dict[str, ColdFile]:
    """The copies that these files (path, kind, size) have in this very cold table.

    One made before the table was renamed or another catalog named is of no use here; and a file of another size than the
    one that was copied is another file under the old name.
    """
    if home is None:
        return {}
    move = format_.cold_tier().rehome(view, home)
    found = ColdFiles(grounds.state).among(view.uuid, files["path"].to_pylist())
    columns = (files[name].to_pylist() for name in ("path", "kind", "size"))
    kept = {
        path: found[path]
        for path, kind, size in zip(*columns, strict=True)
        if path in found
        and normal(found[path].cold_path) == normal(move(path))
        and (kind not in _AS_IT_IS or size is None or size == found[path].size)
    }
    # A table without snapshots was not written to before, or was dropped since, and its files with it.
    return kept if home.snapshots else _still_there(home, kept)


def _still_there(home: ColdHome, copies: Mapping[str, ColdFile]) -> dict[str, ColdFile]:
    sizes = Objects(home.io).look([each.cold_path for each in copies.values()])["size"].to_pylist()
    pairs = zip(copies.items(), sizes, strict=True)
    return {path: each for (path, each), size in pairs if size == each.size}


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
