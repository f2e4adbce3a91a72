"""The deletion itself, told in order: prove, look, mark, delete, write the receipts; then the next batch.

A process may stop anywhere. Before a batch's files are marked `erasing` nothing was touched; after that the next run finds
them marked, proves them anew, and takes a file that is gone for deleted. A file has a receipt once, when it is gone.
"""

from __future__ import annotations

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
from lakewarden.deletion.permit import Condemned, for_trashed
from lakewarden.deletion.proof import Proof, Term
from lakewarden.deletion.restored_state import confirm_state, leave_witness
from lakewarden.deletion.spelling import Spellings
from lakewarden.errors import LakewardenError, Refused, Stopped, Unreachable
from lakewarden.jobs.cold.verify_copies import unproven
from lakewarden.jobs.deps import Grounds, places_of
from lakewarden.jobs.expire.plan import refuse_without_gc
from lakewarden.jobs.purge.rate import Rate
from lakewarden.jobs.run_context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.units import run_units
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.location import Location, all_inside, is_local, join, parent
from lakewarden.model.run import RunState
from lakewarden.model.table import TableView, cold_source
from lakewarden.state.generation import Generation
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import COLD_RETENTION, FAILED_LOAD, Verdict
from lakewarden.storage.objects import Objects, Stat
from lakewarden.tables.lake_readings import named_files
from lakewarden.tables.metadata_files import strays_in_metadata_folders
from lakewarden.tables.places import Places, led_out, roots
from lakewarden.tables.reachability import Reached
from lakewarden.tables.reread import moved_on

# What one bulk request of an object store takes; on a disk a batch only bounds what a crash leaves to prove again.
REMOTE_BATCH = 1_000
LOCAL_BATCH = 25_000
# As Iceberg names those of a table and of its partitions.
_STATISTICS = r"\.stats$|/partition-stats-[^/]*$"
CHANGED = "changed since it was trashed"


@dataclass(frozen=True, slots=True)
class Due:
    """A trashed file whose grace is over, as it was marked."""

    id: int
    path: str
    size: int | None
    stamp: str | None
    verdict: str
    trashed_at: datetime


@dataclass
class Count:
    """What became of everything that was due."""

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
    """One run over one table."""

    def __init__(self, prepared: Prepared, grounds: Grounds, context: RunContext) -> None:
        self._view = prepared.view
        self._plan = prepared.plan
        self._grounds = grounds
        self._context = context
        self._files = TrashedFiles(grounds.state)
        self._places = places_of(grounds, prepared.policy)
        if prepared.policy.bool(
            "purge_outside_location"
        ):  # the operator's word for every place that the table names
            named = (*self._places.confirmed, *roots(prepared.view).values())
            self._places = replace(self._places, confirmed=named)
        self._neighbours = Neighbours("purge", grounds.lake, prepared.view, places=self._places)
        self._spellings: tuple[Reached, Spellings] | None = None
        self._rate = Rate(grounds.deletes_per_s)
        self._policy = prepared.policy
        self._outside_too = prepared.policy.bool("purge_outside_location")
        self._count = Count()
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
        self._generation = confirm_state("purge", self._view, self._grounds.state)
        found = strays_in_metadata_folders(self._objects, self._view, self._places, self._grounds.lake.strays)
        self._neighbours.strays = settled(
            self._objects,
            self._view,
            unclaimed(self._grounds.state, self._view, found),
            lambda: self._context.format.view(self._view.ref),
        )

    def _due(self, graces: Mapping[str, timedelta]) -> Iterator[pa.Table]:
        size = self._batch_size()
        for page in self._files.due(self._view.uuid, graces, self._plan.made_at):
            for start in range(0, page.num_rows, size):
                yield page.slice(start, size)

    def _batch_size(self) -> int:
        most = LOCAL_BATCH if is_local(self._view.location) else REMOTE_BATCH
        rate = self._grounds.deletes_per_s
        return most if rate is None else max(1, min(most, int(rate)))

    def _connect(self, view: TableView) -> None:
        """With the newest credentials: those a catalog hands out do not live as long as a run may."""
        if view.io != self._io:
            self._io, self._objects = view.io, Objects(view.io)

    # Batches travel as Arrow columns: 50,000 files as Python objects cost more than deleting them.

    def _purge_batch(self, batch: pa.Table) -> None:
        self._rate.wait(batch.num_rows)
        # The order matters: every table is read after the last restore or commit that must count, the files after the
        # tables, the holds last. Whoever commits, pins or begins to write after this had the whole grace to do so.
        view, proof = self._neighbours.prove()
        refuse_shared(view, {self._cause(each) for each in pc.unique(batch["verdict"]).to_pylist()})
        self._connect(view)
        unnamed = self._keep_named(batch, proof)
        found = self._look(unnamed)
        holds = replace(gather(view, self._grounds.state, clock.now()), aliases=self._grounds.lake.aliases)
        proven = self._leave_unproven(view, self._leave_outside(view, found))
        free = self._leave_held(view, proven, holds)
        if free.num_rows and self._check_spellings(view, proof, free["path"]):
            self._erase(self._leave_doubtful(free, proof), proof, holds)

    def _check_spellings(self, view: TableView, proof: Proof, paths: Any) -> bool:
        """What a state of the table names is read once, whatever the number of batches. False where it is gone by now."""
        own, format_ = proof.reached[0], self._context.format
        if self._spellings is None or self._spellings[0] is not own:

            def named() -> Iterator[pa.Array]:
                return named_files(format_, view, own.numbers)

            try:
                made = Spellings("purge", view, named, self._grounds.lake.aliases)
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
        """Files that another table may name by another path stay in the trash: the next run asks again."""
        assert self._spellings is not None, "spellings are checked first"
        doubtful = self._spellings[1].doubtful(found["path"], proof.reached[1:])
        for reason in doubtful.values():
            self._count.files_held += 1
            self._count.held_by[reason] += 1
        return found.filter(pc.invert(pc.is_in(found["path"], pa.array(list(doubtful), pa.string()))))

    def _keep_named(self, batch: pa.Table, proof: Proof) -> pa.Table:
        """Files that some table names again leave the verdict for good."""
        named = pa.array(proof.names(batch["path"]))
        by_table: dict[str, list[int]] = {}
        for each in _rows(batch.filter(named)):
            by_table.setdefault(proof.named_by(each.path) or "a table", []).append(each.id)
        for table, ids in by_table.items():
            self._keep(ids, f"named again by {table}")
        return batch.filter(pc.invert(named))

    def _look(self, batch: pa.Table) -> pa.Table:
        """Each as it is now. What is gone is settled, what is not the file that was marked stays for good."""
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
        """That files are gone is believed only of a store that shows what must be there: a disk may not be mounted."""
        if pc.any(gone).as_py() and self._objects.stat([self._view.metadata_location])[0] is None:
            fresh = self._context.format.view(self._view.ref).metadata_location
            if self._objects.stat([fresh])[0] is None:
                raise Unreachable(what=fresh, reason="the table's own metadata file is not there either")

    def _keep(self, ids: Sequence[int], note: str) -> None:
        run, owner = self._context.run_id, self._context.owner
        self._count.files_kept += self._files.keep(ids, note, run, owner, clock.now())

    def _leave_held(self, view: TableView, found: pa.Table, holds: Holds) -> pa.Table:
        """Held files stay in the trash: the next run asks again."""
        verdicts = pc.unique(found["verdict"]).to_pylist()
        pins = {verdict: self._pin(view, verdict, holds) for verdict in verdicts}
        if not any(pins.values()) and not holds.cover_files:
            return found
        free = []
        columns = (found[name].to_pylist() for name in ("path", "verdict", "modified"))
        for path, verdict, modified in zip(*columns, strict=True):
            hold = pins[verdict] or holds.covering(path, modified)
            free.append(hold is None)
            if hold is not None:
                self._count.files_held += 1
                self._count.held_by[f"{hold.kind} {hold.name}"] += 1
        return found.filter(pa.array(free, pa.bool_()))

    def _leave_outside(self, view: TableView, found: pa.Table) -> pa.Table:
        """Files outside the table's own places were taken in, or lie where only its writer says it may write: whose they are is
        not known. Loads name their own.

        A table that no catalog lists may name any of them, so where a catalog is not complete all of them stay.
        """
        incomplete = self._grounds.lake.incomplete
        if self._outside_too and not incomplete:
            return found
        metadata, aliases = parent(view.metadata_location), self._grounds.lake.aliases
        folders = [
            *self._places.own(view).values(),
            *([metadata] if self._places.is_own(view, metadata) else []),
        ]
        ours = all_inside(found["path"], [name for each in folders for name in aliases.spellings(each)])
        ours = pc.and_not(ours, led_out(found["path"], [*folders, *self._places.confirmed], aliases))
        why = f"catalog {', '.join(incomplete)} has complete=false"
        if not incomplete:
            verdicts = pc.unique(found["verdict"]).to_pylist()
            loads = [each for each in verdicts if self._cause(each) == FAILED_LOAD]
            ours = pc.or_(ours, pc.is_in(found["verdict"], pa.array(loads, pa.string())))
            why = "purge_outside_location=false"
        outside = found.num_rows - (pc.sum(ours).as_py() or 0)
        if outside:
            self._count.files_held += outside
            self._count.held_by[f"outside the table's own places, {why}"] += outside
        return found.filter(ours)

    def _leave_unproven(self, view: TableView, found: pa.Table) -> pa.Table:
        """What expired where the policy asks for a hand-off goes only if its copy in the colder tier is whole."""
        if not self._policy.bool("handoff_enabled") or not found.num_rows:
            return found
        expired = [each for each in pc.unique(found["verdict"]).to_pylist() if self._cause(each) == "expire"]
        asked = found.filter(pc.is_in(found["verdict"], pa.array(expired, pa.string())))
        # Statistics speed queries up and are not needed for any: they are not copied.
        asked = asked.filter(pc.invert(pc.match_substring_regex(asked["path"], _STATISTICS)))
        if not asked.num_rows:
            return found
        failed = unproven(self._context, view, self._policy, self._grounds, asked, self._promised(asked))
        for reason in failed.values():
            self._count.files_held += 1
            self._count.held_by[reason] += 1
        return found.filter(pc.invert(pc.is_in(found["path"], pa.array(list(failed), pa.string()))))

    def _promised(self, found: pa.Table) -> dict[str, frozenset[int]]:
        """By path the snapshots that expired with it, and that the colder tier must have for it to go."""
        promised: dict[str, frozenset[int]] = {}
        for id_ in pc.unique(found["verdict"]).to_pylist():
            verdict = self._files.verdict(id_)
            promised[id_] = frozenset(verdict.detail.get("snapshot_ids", ()) if verdict else ())
        pairs = zip(found["path"].to_pylist(), found["verdict"].to_pylist(), strict=True)
        return {path: promised[id_] for path, id_ in pairs}

    def _cause(self, verdict_id: str) -> str:
        verdict = self._files.verdict(verdict_id)
        return "" if verdict is None else verdict.cause

    def _pin(self, view: TableView, verdict_id: str, holds: Holds) -> Hold | None:
        verdict = self._files.verdict(verdict_id)
        return None if verdict is None else pin_on_what_is_gone(view, verdict, holds)

    def _erase(self, free: pa.Table, proof: Proof, holds: Holds) -> None:
        if self._generation is not None:  # once, and not before it is certain whose folder it is
            leave_witness(self._view, self._generation)
            self._generation = None
        self._journal_intent(free, proof)
        run, owner = self._context.run_id, self._context.owner
        # A file restored until this moment is left out, one restored later is told that it is too late.
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
        """What could not be deleted, and why. A refusal takes the marks back: nothing of the batch was touched."""
        if not mine.num_rows:
            return {}
        context = self._context
        term = Term(
            context.run_id,
            context.owner,
            lambda: context.journal.right(context.run_id, context.owner, clock.now()),
        )
        ages = mine["modified"].to_pylist() if holds.cover_files else [None] * mine.num_rows
        batch = [Condemned(*each) for each in zip(mine["path"].to_pylist(), ages, strict=True)]
        try:
            permit = for_trashed(batch, proof=proof, holds=holds, term=term)
        except Refused as error:
            refused = dict.fromkeys(mine["id"].to_pylist(), error.message)
            self._files.finish_erasing(context.run_id, clock.now(), failed=refused)
            raise
        return erase(permit, self._objects)

    def _journal_intent(self, free: pa.Table, proof: Proof) -> None:
        """What is about to go; and, where it is new, what was looked at to prove that nobody needs it."""
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
        """Folders left empty, up to but not including those a table is made of."""
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
    """A cold table says that it takes no garbage collection so that nobody else's does; what its own retention trashed may go.

    That a table is a cold one is a property, which its writers may set; what was trashed why is in the state database.
    """
    if not cold_source(view.properties) or set(causes) - {COLD_RETENTION}:
        refuse_without_gc("purge", view)


def _nothing(count: Count) -> str:
    return "" if count.settled else "what was due when it was planned has been restored since"


def _rows(page: pa.Table) -> list[Due]:
    names = ("id", "path", "size", "stamp", "verdict", "trashed_at")
    return [Due(*row) for row in zip(*(page.column(name).to_pylist() for name in names), strict=True)]


def _may_differ(batch: pa.Table, now: pa.Table) -> Any:
    """Where `change` must be asked: everything it could object to, for all files at once."""
    sized = pc.fill_null(pc.not_equal(batch["size"], now["size"]), False)
    stamped = pc.fill_null(pc.not_equal(batch["stamp"], now["stamp"]), False)
    later = pc.greater(now["modified"], batch["trashed_at"])
    return pc.or_(pc.or_(sized, stamped), pc.fill_null(later, False))


def change(due: Due, stat: Stat) -> str:
    """How the file differs from the one that was marked; empty where it is the same.

    A file written after it was trashed is another file under the old name, even with the same content and so the same stamp.
    """
    if due.size is not None and due.size != stat.size:
        return f"{CHANGED}: {due.size:,} bytes then, {stat.size:,} now"
    if due.stamp is not None and due.stamp != stat.stamp:
        return f"{CHANGED}: written again"
    return f"{CHANGED}: written again" if stat.modified > due.trashed_at else ""


def pin_on_what_is_gone(view: TableView, verdict: Verdict, holds: Holds) -> Hold | None:
    """A pin on a snapshot that the metadata no longer has: what it needs can only be among what is in the trash.

    A verdict that tells which snapshots made its files unneeded, and not this one, is none of the pin's business.
    """
    have = {each.id for each in view.snapshots}
    told = verdict.detail.get("snapshot_ids")
    for hold in holds.holds:
        lost = hold.kind is HoldKind.PIN and hold.snapshot_id not in have
        if lost and (told is None or hold.snapshot_id in told):
            return hold
    return None


def by_root(view: TableView, folders: set[str], places: Places) -> dict[str, list[str]]:
    """Folders by the innermost one of the table's own that holds them; that one itself must stay, empty or not."""
    named = {*places.own(view).values(), join(view.location, "data"), join(view.location, "metadata")}
    own = {root: Location.of(root) for root in named if places.is_own(view, root)}
    found: dict[str, list[str]] = {}
    for folder in folders:
        place = Location.of(folder)
        around = [root for root in own if place.inside(own[root])]
        if around:
            found.setdefault(max(around, key=lambda root: len(own[root].path)), []).append(folder)
    return found
