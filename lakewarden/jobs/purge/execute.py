"""purge, batch by batch: prove, look at the files, mark them, delete, write the receipts.

A process may stop anywhere. Before the files of a batch are marked `erasing`, nothing was touched. After that, the
next run finds the marks, proves the files again, and counts a missing file as deleted. Each deleted file gets
exactly one receipt.

`Rate` limits deletion to a steady number of files per second.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.deletion.erase import erase
from lakewarden.deletion.foreign_metadata import settled, unclaimed
from lakewarden.deletion.holds import Holds, gather
from lakewarden.deletion.lake_index import Neighbours
from lakewarden.deletion.permit import TrashedObject, for_trashed
from lakewarden.deletion.proof import Proof, Term
from lakewarden.deletion.restored_state import confirm_state, leave_witness
from lakewarden.deletion.spelling import Spellings
from lakewarden.errors import LakewardenError, Refused, Stopped, Unreachable
from lakewarden.jobs.cold.verify_copies import unproven
from lakewarden.jobs.deps import JobDeps, places_of
from lakewarden.jobs.expire.plan import refuse_without_gc
from lakewarden.jobs.run_context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.units import run_units
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.location import Location, all_inside, is_local, join, parent
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView, cold_source
from lakewarden.rate_limit import TokenBucket
from lakewarden.state.generation import Generation
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import COLD_RETENTION, FAILED_LOAD, TrashBatch
from lakewarden.storage.objects import Objects, Stat
from lakewarden.tables.lake_readings import named_files
from lakewarden.tables.metadata_files import strays_in_metadata_folders
from lakewarden.tables.places import Places, led_out, roots
from lakewarden.tables.reachability import ReachableFiles
from lakewarden.tables.reread import moved_on

# The size of one bulk request to an object store. On a disk, a batch only limits what is proven again after a crash.
REMOTE_BATCH = 1_000
LOCAL_BATCH = 25_000
# Names of the statistics files of tables and partitions in Iceberg.
_STATISTICS = r"\.stats$|/partition-stats-[^/]*$"
CHANGED = "changed since it was trashed"


@dataclass(frozen=True, slots=True)
class DueFile:
    """A trashed file whose grace period is over, as it was when it was trashed."""

    id: int
    path: str
    size: int | None
    stamp: str | None
    batch_id: str
    trashed_at: datetime


@dataclass
class PurgeCounts:
    """The outcome of all files that were due."""

    files_erased: int = 0
    bytes_erased: int = 0
    files_missing: int = 0
    files_kept: int = 0
    files_held: int = 0
    files_failed: int = 0
    folders_removed: int = 0
    first_failure: str = ""
    held_by: Counter[str] = field(default_factory=Counter)

    def counters(self) -> dict[str, Any]:
        names = ("files_erased", "bytes_erased", "files_missing", "files_kept", "files_held", "files_failed", "folders_removed")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    @property
    def settled(self) -> int:
        return self.files_erased + self.files_missing + self.files_kept


class Purger:
    """One purge of one table."""

    def __init__(self, prepared: Prepared, deps: JobDeps, context: RunContext) -> None:
        self._view = prepared.view
        self._plan = prepared.plan
        self._deps = deps
        self._context = context
        self._files = TrashedFiles(deps.state)
        self._places = places_of(deps, prepared.policy)
        if prepared.policy.bool(
            "purge_outside_location"
        ):  # the operator confirms every place that the table names
            named = (*self._places.confirmed, *roots(prepared.view).values())
            self._places = replace(self._places, confirmed=named)
        self._neighbours = Neighbours("purge", deps.lake, prepared.view, places=self._places)
        self._spellings: tuple[ReachableFiles, Spellings] | None = None
        self._rate = Rate(deps.deletes_per_s)
        self._policy = prepared.policy
        self._outside_too = prepared.policy.bool("purge_outside_location")
        self._count = PurgeCounts()
        self._folders: set[str] = set()
        self._journaled: tuple[object, ...] = ()
        self._io: Mapping[str, str] = {}
        self._objects = Objects({})
        self._batches = 0
        self._generation: Generation | None = None

    def purge(self, graces: Mapping[str, timedelta]) -> Outcome:
        """Until nothing is due, or a guard refuses. Files that were deleted before that are reported."""
        planned = sum(action.to_dict()["bytes"] for action in self._plan.actions)
        title = f"erasing trashed files of {self._view.ref}"
        try:
            self._check_table()
            run_units(self._context, title, self._due(graces), self._purge_batch, total=planned)
            self._remove_folders()
        except Stopped as stopped:
            return replace(self._outcome(stopped.message), state=RunState.INTERRUPTED)
        except (Refused, Unreachable) as error:
            if not self._count.settled:
                raise
            return self._outcome(f"stopped before the rest: {error.message}")
        return self._outcome("")

    def _check_table(self) -> None:
        """The state database must have forgotten nothing, and metadata of other tables here is known before the first batch."""
        self._connect(self._view)
        self._generation = confirm_state("purge", self._view, self._deps.state)
        found = strays_in_metadata_folders(self._objects, self._view, self._places, self._deps.lake.strays)
        self._neighbours.strays = settled(
            self._objects,
            self._view,
            unclaimed(self._deps.state, self._view, found),
            lambda: self._context.format.view(self._view.ref),
        )

    def _due(self, graces: Mapping[str, timedelta]) -> Iterator[pa.Table]:
        size = self._batch_size()
        for page in self._files.due(self._view.uuid, graces, self._plan.made_at):
            for start in range(0, page.num_rows, size):
                yield page.slice(start, size)

    def _batch_size(self) -> int:
        most = LOCAL_BATCH if is_local(self._view.location) else REMOTE_BATCH
        rate = self._deps.deletes_per_s
        return most if rate is None else max(1, min(most, int(rate)))

    def _connect(self, view: TableView) -> None:
        """Connect with the newest credentials: a run may last longer than the credentials from a catalog."""
        if view.io != self._io:
            self._io, self._objects = view.io, Objects(view.io)

    # Batches travel as Arrow columns: 50,000 files as Python objects cost more than deleting them.

    def _purge_batch(self, batch: pa.Table) -> None:
        self._rate.wait(batch.num_rows)
        # The order matters: the tables are read first, then the files, then the holds. A commit, pin or write that comes
        # later had the whole grace period to happen.
        view, proof = self._neighbours.prove()
        refuse_shared(view, {self._cause(each) for each in pc.unique(batch["batch_id"]).to_pylist()})
        self._connect(view)
        unnamed = self._keep_named(batch, proof)
        found = self._look(unnamed)
        holds = replace(gather(view, self._deps.state, clock.now()), aliases=self._deps.lake.aliases)
        proven = self._leave_unproven(view, self._leave_outside(view, found))
        free = self._leave_held(view, proven, holds)
        if free.num_rows and self._check_spellings(view, proof, free["path"]):
            self._erase(self._leave_doubtful(free, proof), proof, holds)

    def _check_spellings(self, view: TableView, proof: Proof, paths: Any) -> bool:
        """The names in one state of the table are read once for all batches. False if that state is gone by now."""
        own, format_ = proof.reached[0], self._context.format
        if self._spellings is None or self._spellings[0] is not own:

            def named() -> Iterator[pa.Array]:
                return named_files(format_, view, own.numbers)

            try:
                made = Spellings("purge", view, named, self._deps.lake.aliases)
            except Refused:
                raise
            except LakewardenError:
                if moved_on(view, lambda: format_.view(view.ref)) is None:
                    raise
                self._count.files_held += len(paths)
                self._count.held_by["another tool expired snapshots while their files were read"] += len(
                    paths
                )
                return False
            self._spellings = own, made
        self._spellings[1].check(paths)
        return True

    def _leave_doubtful(self, found: pa.Table, proof: Proof) -> pa.Table:
        """Leave files in the trash that another table may name by another path: the next run asks again."""
        assert self._spellings is not None, "spellings are checked first"
        doubtful = self._spellings[1].doubtful(found["path"], proof.reached[1:])
        for reason in doubtful.values():
            self._count.files_held += 1
            self._count.held_by[reason] += 1
        return found.filter(pc.invert(pc.is_in(found["path"], pa.array(list(doubtful), pa.string()))))

    def _keep_named(self, batch: pa.Table, proof: Proof) -> pa.Table:
        """Files that a table names again leave the trash for good."""
        named = pa.array(proof.names(batch["path"]))
        by_table: dict[str, list[int]] = {}
        for each in _rows(batch.filter(named)):
            by_table.setdefault(proof.named_by(each.path) or "a table", []).append(each.id)
        for table, ids in by_table.items():
            self._keep(ids, f"named again by {table}")
        return batch.filter(pc.invert(named))

    def _look(self, batch: pa.Table) -> pa.Table:
        """Look at each file as it is now. A missing file is settled; a file that has changed leaves the trash for good."""
        now = self._objects.look(batch["path"].to_pylist())
        gone = pc.is_null(now["size"])
        self._check_store(gone)
        differs = pc.and_not(_may_differ(batch, now), gone)
        run, owner = self._context.run_id, self._context.owner
        missing = batch["id"].filter(gone).to_pylist()
        self._count.files_missing += self._files.note_missing(missing, run, owner, clock.now())
        changed: dict[str, list[int]] = {}
        for due, stat in zip(_rows(batch.filter(differs)), now.filter(differs).to_pylist(), strict=True):
            changed.setdefault(change(due, Stat(**stat)), []).append(due.id)
        for note, ids in changed.items():
            self._keep(ids, note)
        same = pc.invert(pc.or_(gone, differs))
        found = batch.filter(same)
        return found.append_column("now_size", now["size"].filter(same)).append_column(
            "modified", now["modified"].filter(same)
        )

    def _check_store(self, gone: Any) -> None:
        """Believe that files are missing only if the store has the table's metadata file: a disk may not be mounted."""
        if pc.any(gone).as_py() and self._objects.stat([self._view.metadata_location])[0] is None:
            fresh = self._context.format.view(self._view.ref).metadata_location
            if self._objects.stat([fresh])[0] is None:
                raise Unreachable(what=fresh, reason="the table's own metadata file is not there either")

    def _keep(self, ids: Sequence[int], note: str) -> None:
        run, owner = self._context.run_id, self._context.owner
        self._count.files_kept += self._files.keep(ids, note, run, owner, clock.now())

    def _leave_held(self, view: TableView, found: pa.Table, holds: Holds) -> pa.Table:
        """Leave held files in the trash: the next run asks again."""
        batches = pc.unique(found["batch_id"]).to_pylist()
        pins = {batch: self._pin(view, batch, holds) for batch in batches}
        if not any(pins.values()) and not holds.cover_files:
            return found
        free = []
        columns = (found[name].to_pylist() for name in ("path", "batch_id", "modified"))
        for path, batch, modified in zip(*columns, strict=True):
            hold = pins[batch] or holds.covering(path, modified)
            free.append(hold is None)
            if hold is not None:
                self._count.files_held += 1
                self._count.held_by[f"{hold.kind} {hold.name}"] += 1
        return found.filter(pa.array(free, pa.bool_()))

    def _leave_outside(self, view: TableView, found: pa.Table) -> pa.Table:
        """Leave files outside the table's own places in the trash: their owner is not known. The table adopted them, or
        only its writer names the place. Files of failed loads are known by name.

        A table that no catalog lists may name any of them. So if a catalog is not complete, all of them stay.
        """
        incomplete = self._deps.lake.incomplete
        if self._outside_too and not incomplete:
            return found
        metadata, aliases = parent(view.metadata_location), self._deps.lake.aliases
        folders = [
            *self._places.own(view).values(),
            *([metadata] if self._places.is_own(view, metadata) else []),
        ]
        ours = all_inside(found["path"], [name for each in folders for name in aliases.spellings(each)])
        ours = pc.and_not(ours, led_out(found["path"], [*folders, *self._places.confirmed], aliases))
        why = f"catalog {', '.join(incomplete)} has complete=false"
        if not incomplete:
            batches = pc.unique(found["batch_id"]).to_pylist()
            loads = [each for each in batches if self._cause(each) == FAILED_LOAD]
            ours = pc.or_(ours, pc.is_in(found["batch_id"], pa.array(loads, pa.string())))
            why = "purge_outside_location=false"
        outside = found.num_rows - (pc.sum(ours).as_py() or 0)
        if outside:
            self._count.files_held += outside
            self._count.held_by[f"outside the table's own places, {why}"] += outside
        return found.filter(ours)

    def _leave_unproven(self, view: TableView, found: pa.Table) -> pa.Table:
        """If the policy asks for a hand-off, delete expired files only if their copies in the colder tier are complete."""
        if not self._policy.bool("handoff_enabled") or not found.num_rows:
            return found
        expired = [each for each in pc.unique(found["batch_id"]).to_pylist() if self._cause(each) == "expire"]
        asked = found.filter(pc.is_in(found["batch_id"], pa.array(expired, pa.string())))
        # Statistics only speed queries up, so they are not copied.
        asked = asked.filter(pc.invert(pc.match_substring_regex(asked["path"], _STATISTICS)))
        if not asked.num_rows:
            return found
        failed = unproven(self._context, view, self._policy, self._deps, asked, self._promised(asked))
        for reason in failed.values():
            self._count.files_held += 1
            self._count.held_by[reason] += 1
        return found.filter(pc.invert(pc.is_in(found["path"], pa.array(list(failed), pa.string()))))

    def _promised(self, found: pa.Table) -> dict[str, frozenset[int]]:
        """For each path the snapshots that expired with it. The colder tier must have them before the file is deleted."""
        promised: dict[str, frozenset[int]] = {}
        for id_ in pc.unique(found["batch_id"]).to_pylist():
            batch = self._files.batch(id_)
            promised[id_] = frozenset(batch.detail.get("snapshot_ids", ()) if batch else ())
        pairs = zip(found["path"].to_pylist(), found["batch_id"].to_pylist(), strict=True)
        return {path: promised[id_] for path, id_ in pairs}

    def _cause(self, batch_id: str) -> str:
        batch = self._files.batch(batch_id)
        return "" if batch is None else batch.cause

    def _pin(self, view: TableView, batch_id: str, holds: Holds) -> Hold | None:
        batch = self._files.batch(batch_id)
        return None if batch is None else pin_on_what_is_gone(view, batch, holds)

    def _erase(self, free: pa.Table, proof: Proof, holds: Holds) -> None:
        if self._generation is not None:  # once, and only when the owner of the folder is certain
            leave_witness(self._view, self._generation)
            self._generation = None
        self._journal_intent(free, proof)
        run, owner = self._context.run_id, self._context.owner
        # Files restored before this moment are left out. A later restore is refused as too late.
        marked = self._files.begin_erasing(free["id"].to_pylist(), run, owner, clock.now())
        mine = free
        if len(marked) < free.num_rows:
            mine = free.filter(pc.is_in(free["id"], pa.array(marked, pa.int64())))
        failed = self._erase_marked(mine, proof, holds)
        stays = pc.is_in(mine["path"], pa.array(list(failed), pa.string()))
        gone = mine.filter(pc.invert(stays))
        self._files.finish_erasing(
            run,
            clock.now(),
            erased=gone["id"].to_pylist(),
            failed={each.id: failed[each.path] for each in _rows(mine.filter(stays))},
        )
        self._tell(gone, failed)

    def _erase_marked(self, mine: pa.Table, proof: Proof, holds: Holds) -> dict[str, str]:
        """Delete the marked files. Returns those that could not be deleted, with the reason. A refusal removes the marks."""
        if not mine.num_rows:
            return {}
        context = self._context
        term = Term(
            context.run_id,
            context.owner,
            lambda: context.journal.right(context.run_id, context.owner, clock.now()),
        )
        ages = mine["modified"].to_pylist() if holds.cover_files else [None] * mine.num_rows
        batch = [TrashedObject(*each) for each in zip(mine["path"].to_pylist(), ages, strict=True)]
        try:
            permit = for_trashed(batch, proof=proof, holds=holds, term=term)
        except Refused as error:
            refused = dict.fromkeys(mine["id"].to_pylist(), error.message)
            self._files.finish_erasing(context.run_id, clock.now(), failed=refused)
            raise
        return erase(permit, self._objects)

    def _journal_intent(self, free: pa.Table, proof: Proof) -> None:
        """Journal the batch and, if it is new, the state of the tables that proves that no table needs the files."""
        self._batches += 1
        looked_at = tuple((each.uuid, each.metadata_location) for each in proof.reached)
        detail: dict[str, Any] = {
            "batch": self._batches,
            "files": free.num_rows,
            "bytes": pc.sum(free["now_size"]).as_py(),
        }
        if looked_at != self._journaled:
            detail["proof"] = proof.to_dict()
            self._journaled = looked_at
        self._context.step(DeletingStep.ERASING, detail)

    def _tell(self, gone: pa.Table, failed: Mapping[str, str]) -> None:
        count, size = self._count, pc.sum(gone["now_size"]).as_py() or 0
        count.files_erased += gone.num_rows
        count.bytes_erased += size
        count.files_failed += len(failed)
        for path, reason in failed.items():
            count.first_failure = count.first_failure or f"{path}: {reason}"
        self._folders.update(parent(path) for path in gone["path"].to_pylist())
        self._context.progress.advance(size)
        self._context.step(
            DeletingStep.ERASED,
            {"batch": self._batches, "files": gone.num_rows, "bytes": size, "failed": len(failed)},
        )

    def _remove_folders(self) -> None:
        """Remove empty folders below the folders that every table has."""
        for root, folders in by_root(self._view, self._folders, self._places).items():
            self._count.folders_removed += self._objects.remove_empty_folders(folders, root)

    def _outcome(self, stopped: str) -> Outcome:
        count = self._count
        parts = [stopped] if stopped else []
        if count.files_failed:
            parts.append(
                f"{count.files_failed:,} files could not be deleted, the next run tries again: {count.first_failure}"
            )
        if count.files_held:
            who = ", ".join(f"{name} ({files:,})" for name, files in count.held_by.most_common(3))
            parts.append(f"{count.files_held:,} files are held: {who}")
        if count.files_kept:
            parts.append(f"{count.files_kept:,} files are needed again or have changed, and stay")
        if stopped or count.files_failed:
            state = RunState.PARTIAL
        else:
            state = RunState.DONE if count.settled else RunState.NOTHING_TO_DO
        return Outcome(state, "; ".join(parts) or _nothing(count), count.counters())


def refuse_shared(view: TableView, causes: Collection[str]) -> None:
    """Refuses a table with gc.enabled=false, except for files that the retention of a cold table trashed.

    A cold table has this property so that no other tool deletes its files. Writers can set properties, so the cause
    in the state database decides.
    """
    if not cold_source(view.properties) or set(causes) - {COLD_RETENTION}:
        refuse_without_gc("purge", view)


def _nothing(count: PurgeCounts) -> str:
    return "" if count.settled else "what was due when it was planned has been restored since"


def _rows(page: pa.Table) -> list[DueFile]:
    names = ("id", "path", "size", "stamp", "batch_id", "trashed_at")
    return [DueFile(*row) for row in zip(*(page.column(name).to_pylist() for name in names), strict=True)]


def _may_differ(batch: pa.Table, now: pa.Table) -> Any:
    """Files for which `change` must be asked. For all files at once."""
    sized = pc.fill_null(pc.not_equal(batch["size"], now["size"]), False)
    stamped = pc.fill_null(pc.not_equal(batch["stamp"], now["stamp"]), False)
    later = pc.greater(now["modified"], batch["trashed_at"])
    return pc.or_(pc.or_(sized, stamped), pc.fill_null(later, False))


def change(due: DueFile, stat: Stat) -> str:
    """How the file differs from the one that was trashed; empty if it is the same.

    A file written after it was trashed is another file under the old name, even with the same content and so the same stamp.
    """
    if due.size is not None and due.size != stat.size:
        return f"{CHANGED}: {due.size:,} bytes then, {stat.size:,} now"
    if due.stamp is not None and due.stamp != stat.stamp:
        return f"{CHANGED}: written again"
    return f"{CHANGED}: written again" if stat.modified > due.trashed_at else ""


def pin_on_what_is_gone(view: TableView, batch: TrashBatch, holds: Holds) -> Hold | None:
    """A pin on a snapshot that the metadata no longer has: its files can only be in the trash.

    If the batch names its snapshots and the pinned one is not among them, the pin does not need its files.
    """
    have = {each.id for each in view.snapshots}
    told = batch.detail.get("snapshot_ids")
    for hold in holds.holds:
        lost = hold.kind is HoldKind.PIN and hold.snapshot_id not in have
        if lost and (told is None or hold.snapshot_id in told):
            return hold
    return None


def by_root(view: TableView, folders: set[str], places: Places) -> dict[str, list[str]]:
    """Folders, grouped by the innermost of the table's own folders around them. The table's own folders stay, even if empty."""
    named = {*places.own(view).values(), join(view.location, "data"), join(view.location, "metadata")}
    own = {root: Location.of(root) for root in named if places.is_own(view, root)}
    found: dict[str, list[str]] = {}
    for folder in folders:
        place = Location.of(folder)
        around = [root for root in own if place.inside(own[root])]
        if around:
            found.setdefault(max(around, key=lambda root: len(own[root].path)), []).append(folder)
    return found


# How many seconds of a slow batch the next batches may make up for by starting earlier.
_CATCH_UP = 2.0


class Rate:
    """Paces work in batches, so that the average rate holds at every moment since the start, including the first batch."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and per_second <= 0:
            raise ValueError(f"a rate of {per_second:g} a second never ends")
        now = clock.monotonic()
        self._bucket = TokenBucket(per_second, per_second * _CATCH_UP, now) if per_second else None
        self._lock = threading.Lock()

    def wait(self, n: int) -> None:
        """Wait until n more may be done. Later batches make up for a batch that took a little too long; idle
        time is not saved.
        """
        if self._bucket is None or not n:
            return
        with self._lock:
            now = clock.monotonic()
            self._bucket.take(n, now)
            due = now + self._bucket.owed(now)
        while (left := due - clock.monotonic()) > 0:
            clock.sleep(left)
