"""fsck in order: read the table, read all its metadata, list its folders, compare. Changes nothing.

The metadata is read before the folders are listed, so every file named then must exist. If the table changed during the check,
files found missing may simply have expired. So if there are findings and the table changed, the whole check is repeated.

The checks on the metadata file itself (snapshots, refs, pins, statistics, the version hint) are pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lakewarden import clock
from lakewarden.deletion.foreign_metadata import settled, unclaimed
from lakewarden.deletion.holds import gather
from lakewarden.deletion.ownership import check_ownership, is_same
from lakewarden.errors import LakewardenError, NoSuchTable, Refused
from lakewarden.jobs.deps import JobDeps, places_of
from lakewarden.jobs.fsck import decode as fsck_footers
from lakewarden.jobs.fsck.findings import NAMED, CheckCounts, Fault, Finding, FsckResult, Severity, ordered
from lakewarden.jobs.fsck.manifests import (
    ManifestInputs,
    Presence,
    check_files,
    check_metadata,
    look_for,
    not_checked,
    wanted,
)
from lakewarden.jobs.fsck.repairs import BACKUP
from lakewarden.jobs.sweep import plan as sweep
from lakewarden.jobs.sweep.execute import uncommitted
from lakewarden.jobs.sweep.plan import FileOutcome, StoreListing
from lakewarden.model.location import normal, normals, shortest
from lakewarden.model.run import Progress, Silent
from lakewarden.model.table import Snapshot, TableRef, TableView, cold_source
from lakewarden.policy.resolve import Policy
from lakewarden.state.holds import Pin, Pins
from lakewarden.state.runs import Journal
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import LIVE, TrashedFile
from lakewarden.state.trash_rows import files_numbered
from lakewarden.storage.objects import Objects
from lakewarden.tables.interface import InvalidMetadata, TableFormat
from lakewarden.tables.jvm import JavaError, is_java, java_reason
from lakewarden.tables.metadata_files import read_strays
from lakewarden.tables.metadata_walk import DELETES, WalkResult
from lakewarden.tables.places import Places, TableMetadataFile, names_of

# The maximum number of repeated checks for a table with constant commits.
_ATTEMPTS = 3
_HINT_BYTES = 64
# Java exceptions for missing or invalid metadata, as opposed to a catalog that does not answer.
_DAMAGE = (
    "NotFoundException",
    "FileNotFoundException",
    "ChecksumException",
    "ValidationException",
    "IllegalArgumentException",
    "IllegalStateException",
    "JsonProcessingException",
    "JsonParseException",
    "JsonEOFException",
    "MismatchedInputException",
)


@dataclass(frozen=True, slots=True)
class FsckInputs:
    """Runs fsck. `resolved` returns a table's policy, which decides when an orphan is old."""

    deps: JobDeps
    format: TableFormat
    spark: Any
    resolved: Callable[[TableView], Policy]
    progress: Progress = field(default_factory=Silent)

    def examine(self, ref: TableRef, *, deep: bool = False) -> FsckResult:
        began = clock.monotonic()
        try:
            view = self.format.view(ref)
            checkup = self._settled(view, deep)
        except Exception as error:  # distinguished below: only invalid metadata is a finding
            if not _is_damage(error):
                raise
            checkup = _unreadable(ref, error, deep)
        return replace(checkup, seconds=round(clock.monotonic() - began, 2))

    def _settled(self, view: TableView, deep: bool) -> FsckResult:
        for _ in range(_ATTEMPTS):
            checkup = self._checkup(view, deep)
            if checkup.healthy:
                break
            newer = self.format.view(view.ref)
            if is_same(newer, view):
                break
            view = newer
        return checkup

    def _checkup(self, view: TableView, deep: bool) -> FsckResult:
        survey = self.format.survey(view)
        self.progress.note(
            f"read {len(survey.manifests.paths):,} manifests of {len(view.snapshots):,} snapshots"
        )
        objects = Objects(self.format.write_properties(view.ref))
        sought = wanted(view, survey)
        places = self._places(view)
        elsewhere = shortest(places.not_own(view).values())
        presence = look_for(objects, shortest(places.own(view).values()), elsewhere, sought, survey.spell)
        self.progress.note(f"listed {presence.listed:,} files, looked for {len(sought.numbers):,}")
        evidence = ManifestInputs(view, survey, presence, self._known(view, presence.absent))
        footers, rows = self._rows(view, presence) if deep else (0, [])
        findings = [
            *check_history(view),
            *self._check_hint(view, objects),
            *check_metadata(evidence),
            *check_stale_statistics(view),
            *check_files(evidence),
            *rows,
            *self._check_dangling(evidence),
            *check_pins(view, Pins(self.deps.state).live(view.uuid, clock.now())),
            *self._check_trashed(view, sought.numbers, presence),
            *self._check_foreign(view, objects, presence),
            *self._check_orphans(view, survey, presence),
        ]
        named = len(np.unique(survey.files.numbers))
        looked = CheckCounts(
            len(view.snapshots), len(survey.manifests.paths), named, presence.listed, footers
        )
        return FsckResult(
            view.ref,
            clock.now(),
            view.current_snapshot_id,
            view.metadata_location,
            ordered(findings),
            looked,
            deep,
            0.0,
        )

    def _known(self, view: TableView, numbers: Any) -> dict[int, TrashedFile]:
        """The trash records of missing files; the newest record of a file that was trashed twice."""
        return dict(files_numbered(self.deps.state, view.uuid, numbers)) if len(numbers) else {}

    def _check_hint(self, view: TableView, objects: Objects) -> Iterator[Finding]:
        path = f"{view.metadata_location.rpartition('/')[0]}/version-hint.text"
        try:
            hint = objects.read(path, 0, _HINT_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return
        yield from check_version_hint(view, path, hint)

    def _rows(self, view: TableView, presence: Presence) -> tuple[int, list[Finding]]:
        if view.current_snapshot_id is None:
            return 0, []
        try:
            files = self.format.files(view.ref, view.current_snapshot_id, None)
        except LakewardenError as error:
            return 0, [not_checked(f"the rows of data files: {error.message}", "repair the metadata first")]
        gone = {normal(path) for path in presence.paths.values()}
        return fsck_footers.check_rows(self.spark, self.format, view, files, gone, self.progress)

    def _check_dangling(self, evidence: ManifestInputs) -> Iterator[Finding]:
        """Delete files that apply to nothing. Only if the current snapshot is readable: the library stops at the first broken file."""
        view, current = evidence.view, evidence.current
        if current is None or not evidence.survey.is_whole(current):
            return
        counts = evidence.survey.counts(current)
        if not any(counts[kind] for kind in DELETES):
            return
        try:
            files = self.format.files(view.ref, current.snapshot_id, None)
            dangling = self.format.rewrites().dangling(view.ref, files, "main")
        except (LakewardenError, *JavaError) as error:
            reason = error.message if isinstance(error, LakewardenError) else java_reason(error)
            yield not_checked(
                f"whether delete files apply to anything: {reason}", "repair the broken metadata first"
            )
            return
        if dangling:
            what = f"{len(dangling):,} delete files of the current snapshot apply to no data file"
            repair = f"`lakewarden run compact-deletes {view.ref}` drops them"
            paths = tuple(dangling[:NAMED])
            ids = (current.snapshot_id,)
            yield Finding(Fault.DANGLING_DELETES, Severity.NOTE, what, repair, len(dangling), paths, ids)

    def _check_trashed(self, view: TableView, named: Any, presence: Presence) -> Iterator[Finding]:
        """Trashed files that the table names. Purge will not delete them, but something went wrong when they were trashed."""
        groups: dict[str, list[TrashedFile]] = defaultdict(list)
        there = named[~np.isin(named, presence.absent)]
        for _, file in files_numbered(self.deps.state, view.uuid, there, LIVE):
            groups[file.batch.id].append(file)
        for run, files in groups.items():
            reason = files[0].batch.reason
            what = f"{len(files):,} files that run {run} trashed ({reason}) are named by the table"
            repair = f"purge does not delete named files; `lakewarden restore {view.ref} --run {run}` takes them out of the trash"
            paths = tuple(file.path for file in files[:NAMED])
            yield Finding(Fault.TRASHED_AGAIN, Severity.WARNING, what, repair, len(files), paths)

    def _check_foreign(self, view: TableView, objects: Objects, presence: Presence) -> Iterator[Finding]:
        groups: dict[str | None, list[tuple[TableMetadataFile, Refused]]] = defaultdict(list)
        strays = read_strays(objects, view, dict.fromkeys(_metadata_files(presence), ""))
        found_here = unclaimed(self.deps.state, view, strays)
        for stray in settled(objects, view, found_here, lambda: view):
            try:
                check_ownership("check", view, (), [stray])
            except Refused as error:
                groups[stray.uuid].append((stray, error))
        for refusals in groups.values():
            refusal = refusals[0][1]
            repair = f"{refusal.hint}; until then sweep and purge refuse this table"
            what = f"the location is shared: {refusal.parts['reason']}"
            paths = tuple(stray.path for stray, _ in refusals[:NAMED])
            yield Finding(Fault.FOREIGN_METADATA, Severity.ERROR, what, repair, len(refusals), paths)

    def _check_orphans(self, view: TableView, survey: WalkResult, presence: Presence) -> Iterator[Finding]:
        """An estimate of the orphans: only sweep checks whether other tables need these files."""
        if not presence.unnamed.num_rows or not survey.complete:
            return
        now, policy = clock.now(), self.resolved(view)
        trashed = TrashedFiles(self.deps.state)
        judged = sweep.judge(
            StoreListing(presence.unnamed, now, tuple(shortest(self._places(view).own(view).values()))),
            named=np.zeros(presence.unnamed.num_rows, dtype=bool),
            restored=_among(trashed.restored_paths(view.uuid)),
            trashed=_among(trashed.trashed_paths(view.uuid)),
            holds=gather(view, self.deps.state, now),
            open_runs=self._open_runs(view.ref),
            young_since=now - policy.hours("orphan_grace_hours"),
            names=names_of(view),
            uncommitted=uncommitted(
                view,
                presence.unnamed["path"].to_pylist(),
                policy.hours("snapshot_restart_hours"),
                now,
                self.deps.lake.aliases,
            ),
        )
        yield from orphans(view, policy, judged)

    def _places(self, view: TableView) -> Places:
        return places_of(self.deps, self.resolved(view))

    def _open_runs(self, table: TableRef) -> frozenset[str]:
        runs = Journal(self.deps.state).list(str(table), 1000)
        return frozenset(run.id for run in runs if run.ended_at is None)


def orphans(view: TableView, policy: Policy, judged: sweep.SortedListing) -> Iterator[Finding]:
    """Files that no metadata of the table names, split by whether sweep may already trash them."""
    (old, old_bytes), (young, young_bytes) = judged.fates[FileOutcome.ORPHAN], judged.fates[FileOutcome.YOUNG]
    if not old + young:
        return
    what = (
        f"{old + young:,} files ({_mb(old_bytes + young_bytes)}) that this table's metadata does not name: {old:,} old enough to be swept "
        f"({_mb(old_bytes)}), {young:,} younger than {policy.explain('orphan_grace_hours')}"
    )
    paths = tuple(judged.orphans["path"][:NAMED].to_pylist())
    repair = f"`lakewarden plan sweep {view.ref}` shows which of them no other table needs either"
    yield Finding(Fault.ORPHANS, Severity.NOTE, what, repair, old + young, paths)


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _metadata_files(presence: Presence) -> Iterator[str]:
    return (path for path in presence.unnamed["path"].to_pylist() if ".metadata.json" in path)


def _among(pages: Any) -> Callable[[str], bool]:
    known = {plain for page in pages for plain in normals(page).to_pylist()}
    return lambda path: normal(path) in known


def _is_damage(error: Exception) -> bool:
    """Whether the table's metadata is damaged, as opposed to a catalog or store that cannot be reached."""
    if isinstance(error, LakewardenError):
        cause = error.__cause__
        if isinstance(error, NoSuchTable) or cause is None:
            return False
        return isinstance(cause, InvalidMetadata) or is_java(cause, *_DAMAGE)
    # pyspark replaces some Java exceptions by its own classes.
    kind = type(error)
    return kind.__module__.startswith("pyspark.errors") and kind.__name__ in _DAMAGE


def _unreadable(ref: TableRef, error: Exception, deep: bool) -> FsckResult:
    what = f"the table cannot be opened: {(str(error).splitlines() or [''])[0]}"
    if isinstance(error.__cause__, InvalidMetadata):
        repair = f"{BACKUP}; nothing else of the table was checked"
    else:
        repair = "restore its newest metadata file from a backup, or register the newest intact earlier one with the catalog"
    finding = Finding(Fault.UNREADABLE_TABLE, Severity.ERROR, what, repair)
    return FsckResult(ref, clock.now(), None, "", (finding,), CheckCounts(), deep, 0.0)


_VERSION = re.compile(r"^(?:v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?)$")
_WAP = "wap.id"


def check_history(view: TableView) -> Iterator[Finding]:
    """Refs to missing snapshots, snapshots that no ref reaches, and histories that end early or form a cycle."""
    yield from _check_refs(view)
    yield from _check_parents(view)
    yield from _check_off_history(view)


def _check_refs(view: TableView) -> Iterator[Finding]:
    ids = {snapshot.id for snapshot in view.snapshots}
    for ref in view.refs:
        # A tag with its own copy does not need the snapshot. The next snapshot of a consumer may not exist yet.
        if ref.snapshot_id in ids or ref.has_copy or ref.kind == "consumer":
            continue
        what = f"{ref.kind} {ref.name} names snapshot {ref.snapshot_id}, which the table does not have"
        if ref.name == "main":
            repair = (
                f"point it at an existing snapshot: `CALL {view.ref.catalog}.system.set_current_snapshot(…)`"
            )
            yield Finding(Fault.BROKEN_CURRENT, Severity.ERROR, what, repair, snapshot_ids=(ref.snapshot_id,))
        else:
            repair = f"drop it, `ALTER TABLE {view.ref} DROP {ref.kind.upper()} {ref.name}`, or create it again on an existing snapshot"
            yield Finding(Fault.BROKEN_REF, Severity.ERROR, what, repair, snapshot_ids=(ref.snapshot_id,))


def _check_parents(view: TableView) -> Iterator[Finding]:
    parents = {snapshot.id: snapshot.parent_id for snapshot in view.snapshots}
    turning = _cycle(parents)
    if turning:
        what = f"{len(turning):,} snapshots are each other's ancestors: a walk along their parents never ends"
        repair = "go back to an earlier intact metadata file: register it with the catalog"
        yield Finding(
            Fault.SNAPSHOT_CYCLE, Severity.ERROR, what, repair, len(turning), snapshot_ids=turning[:NAMED]
        )
    cut = [
        snapshot.id
        for snapshot in view.snapshots
        if snapshot.parent_id is not None and snapshot.parent_id not in parents
    ]
    if cut:
        what = f"the parent of {_snapshots(len(cut))} is gone, so the history ends there, as after an expiry"
        yield Finding(
            Fault.EXPIRED_PARENT,
            Severity.NOTE,
            what,
            "nothing to do",
            len(cut),
            snapshot_ids=tuple(cut[:NAMED]),
        )


def _cycle(parents: Mapping[int, int | None]) -> tuple[int, ...]:
    """The snapshots of the first cycle that is found."""
    sound: set[int] = set()
    for start in parents:
        walked: dict[int, None] = {}
        at: int | None = start
        while at is not None and at in parents and at not in sound and at not in walked:
            walked[at] = None
            at = parents[at]
        if at is not None and at in walked:
            order = list(walked)
            return tuple(order[order.index(at) :])
        sound.update(walked)
    return ()


def _check_off_history(view: TableView) -> Iterator[Finding]:
    """Snapshots that are in no ref's history. Not checked for cold tables: their snapshots before a gap must stay."""
    off = _off_history(view)
    if not off or cold_source(view.properties):
        return
    staged = sum(_WAP in each.summary for each in off)
    oldest = min(off, key=lambda each: each.committed_at)
    parts = f"; {staged:,} of them staged (write-audit-publish)" if staged else ""
    what = (
        f"{_snapshots(len(off))} in the history of no branch or tag{parts}: rolled back, staged, or cut off by expiry; "
        f"the oldest is {oldest.id} of {oldest.committed_at:%Y-%m-%d}"
    )
    repair = f"nothing to do: `lakewarden run expire {view.ref}` drops them once they are old enough"
    ids = tuple(each.id for each in off[:NAMED])
    yield Finding(Fault.OFF_HISTORY, Severity.NOTE, what, repair, len(off), snapshot_ids=ids)


def _off_history(view: TableView) -> list[Snapshot]:
    parents = {snapshot.id: snapshot.parent_id for snapshot in view.snapshots}
    reached: set[int] = set()
    for start in (*(ref.snapshot_id for ref in view.refs), view.current_snapshot_id):
        at = start
        while at is not None and at in parents and at not in reached:
            reached.add(at)
            at = parents[at]
    return [snapshot for snapshot in view.snapshots if snapshot.id not in reached]


def check_pins(view: TableView, pins: Sequence[Pin]) -> Iterator[Finding]:
    """Pins whose snapshot is missing: a pin promises that its snapshot stays readable."""
    ids = {snapshot.id for snapshot in view.snapshots}
    for pin in pins:
        if pin.snapshot_id not in ids:
            what = f"pin {pin.id} of {pin.holder} holds snapshot {pin.snapshot_id}, which the table does not have: something else expired it"
            repair = f"tell {pin.holder}, then remove the pin: `lakewarden unpin {pin.id}`"
            yield Finding(Fault.BROKEN_PIN, Severity.ERROR, what, repair, snapshot_ids=(pin.snapshot_id,))


def check_stale_statistics(view: TableView) -> Iterator[Finding]:
    ids = {snapshot.id for snapshot in view.snapshots}
    stale = [(snapshot_id, path) for snapshot_id, path in view.statistics if snapshot_id not in ids]
    if stale:
        what = f"{len(stale):,} statistics files are of snapshots the table does not have: nothing reads them"
        repair = "nothing to do, or remove them from the metadata with Iceberg's `updateStatistics().removeStatistics(…)`"
        yield Finding(
            Fault.STALE_STATISTICS,
            Severity.NOTE,
            what,
            repair,
            len(stale),
            tuple(path for _, path in stale[:NAMED]),
            tuple(each for each, _ in stale[:NAMED]),
        )


def check_version_hint(view: TableView, path: str, hint: str | None) -> Iterator[Finding]:
    """A version hint that does not match the current metadata: readers without a catalog use it."""
    if hint is None:
        return
    name = view.metadata_location.rpartition("/")[2]
    match = _VERSION.match(name)
    if match and match[1] == hint.strip():
        return
    what = f"the version hint says {hint.strip()[:20]!r}, the table's metadata is {name}: readers that open it by its folder may read an older state"
    repair = (
        "the next commit writes it again"
        if match
        else "remove the hint if no reader opens the table by its folder any more"
    )
    yield Finding(Fault.VERSION_HINT, Severity.NOTE, what, repair, paths=(path,))


def _snapshots(count: int) -> str:
    return f"{count:,} snapshot{'' if count == 1 else 's'}"
