"""fsck checks on manifest lists, manifests and their files: missing, truncated, contradictory or named twice.

The checks are pure. Input: the metadata that was read (`WalkResult`) and the files that exist (`Presence`).
Output: findings with the affected snapshots. `look_for` finds the files that exist: it lists the table's
folders once, and stats every file outside of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from lakewarden.jobs.fsck.findings import NAMED, Fault, Finding, Severity
from lakewarden.jobs.fsck.repairs import BACKUP, drop_files, expire_or_drop, name_once, roll_back, statistics
from lakewarden.model.location import hashes
from lakewarden.model.table import TableView, cold_source
from lakewarden.state.trash_batches import FileState, TrashedFile
from lakewarden.storage.objects import LISTING, Objects
from lakewarden.tables.metadata_walk import (
    DATA,
    DELETES,
    KINDS,
    VECTOR,
    UnreadableMetadata,
    WalkResult,
    WalkRoot,
)
from lakewarden.tables.reachability import contains


@dataclass(frozen=True, slots=True)
class ManifestInputs:
    """The input of the checks. `known` are the trash records of files, by file number."""

    view: TableView
    survey: WalkResult
    presence: Presence
    known: Mapping[int, TrashedFile] = field(default_factory=dict)

    @property
    def current(self) -> WalkRoot | None:
        return self.survey.own(self.view.current_snapshot_id)


def check_metadata(evidence: ManifestInputs) -> Iterator[Finding]:
    """Checks metadata files: the log of earlier metadata files, manifest lists, manifests, statistics."""
    yield from _check_log(evidence)
    yield from check_log_bound(evidence.view)
    yield from _check_broken(evidence)
    yield from _check_lost(evidence)
    yield from _check_consumers(evidence)
    yield from _check_unread(evidence)
    yield from _check_totals(evidence)
    yield from _check_records(evidence)
    yield from _check_manifest_counts(evidence)
    yield from _check_statistics(evidence)


def check_files(evidence: ManifestInputs) -> Iterator[Finding]:
    """Checks data files, delete files and deletion vectors that snapshots name."""
    yield from _check_absent(evidence)
    yield from _check_sizes(evidence)
    yield from _check_repeated(evidence)


# ------------------------------------------------------------ metadata


def _check_log(evidence: ManifestInputs) -> Iterator[Finding]:
    view, presence = evidence.view, evidence.presence
    absent = _of(presence, view.metadata_log, presence.absent.tolist())
    empty = _of(presence, (view.metadata_location, *view.metadata_log), presence.empty)
    for paths, fault in ((absent, "are gone"), (empty, "are empty")):
        if paths:
            what = f"{len(paths):,} of {len(view.metadata_log):,} earlier metadata files that the log names {fault}"
            repair = "only a rollback to an earlier metadata file needs them, reads do not. " + BACKUP
            yield Finding(
                Fault.MISSING_METADATA, Severity.WARNING, what, repair, len(paths), tuple(paths[:NAMED])
            )


# Iceberg's default number of earlier metadata files in the log. Several times as many are a mistake.
_LOG_DEFAULT, _LOG_MOST = 100, 300


def check_log_bound(view: TableView) -> Iterator[Finding]:
    """An unbounded metadata log in Iceberg: every commit rewrites it, and files that drop out of it must be deleted."""
    if view.format != "iceberg":
        return
    most = _whole(view.properties.get("write.metadata.previous-versions-max"), _LOG_DEFAULT)
    deletes = view.properties.get("write.metadata.delete-after-commit.enabled", "false").lower() == "true"
    entries = len(view.metadata_log)
    bounded = (
        "'write.metadata.delete-after-commit.enabled'='true', 'write.metadata.previous-versions-max'='100'"
    )
    if most > _LOG_MOST or entries > _LOG_MOST:
        what = f"the log of earlier metadata files has {entries:,} entries and may have {most:,}: every commit writes them all"
    elif entries >= most and not deletes:
        what = f"the log of earlier metadata files is full ({entries:,}): every commit leaves a metadata file behind that no metadata names"
    else:
        return
    repair = f"ALTER TABLE {view.ref} SET TBLPROPERTIES ({bounded}); sweep trashes the existing ones"
    yield Finding(Fault.UNBOUNDED_LOG, Severity.NOTE, what, repair, max(entries, 1))


def _whole(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:  # Iceberg does not accept such a value either
        return default


def _check_broken(evidence: ManifestInputs) -> Iterator[Finding]:
    """Lists and manifests that cannot be read or have disappeared since. Equal problems form one finding."""
    groups: dict[tuple[Fault, str, str], list[str]] = defaultdict(list)
    for each in _broken(evidence):
        fault = _fault(evidence, each)
        groups[fault, each.kind, each.reason].append(each.path)
    for (fault, kind, reason), paths in groups.items():
        roots = _naming(evidence.survey, kind, paths)
        what = f"{_counted(len(paths), kind)} cannot be read: {reason}; {needed_by(evidence.view, roots)}"
        yield Finding(
            fault,
            Severity.ERROR,
            what,
            _repair_metadata(evidence, roots),
            len(paths),
            tuple(paths[:NAMED]),
            ids_of(roots),
        )


def _broken(evidence: ManifestInputs) -> Iterator[UnreadableMetadata]:
    yield from evidence.survey.broken
    unreadable = {each.path for each in evidence.survey.broken}
    gone = set(evidence.presence.absent.tolist())
    lists = dict.fromkeys(path for root in evidence.survey.lists.roots for path in root.lists)
    for path, number in zip(lists, hashes(list(lists)).tolist(), strict=True):
        if number in gone and path not in unreadable:
            yield UnreadableMetadata("manifest list", path, "no such file")
    manifests = evidence.survey.manifests
    for path, number in zip(manifests.paths.to_pylist(), manifests.numbers.tolist(), strict=True):
        if number in gone and path not in unreadable:
            yield UnreadableMetadata("manifest", path, "no such file")


def _fault(evidence: ManifestInputs, broken: UnreadableMetadata) -> Fault:
    number = int(hashes([broken.path])[0])
    gone = bool(contains(evidence.presence.absent, np.array([number], dtype=np.uint64))[0])
    if broken.kind == "manifest list":
        return Fault.MISSING_LIST if gone else Fault.UNREADABLE_LIST
    if gone:
        return Fault.MISSING_MANIFEST
    return Fault.TRUNCATED_MANIFEST if number in evidence.presence.odd else Fault.UNREADABLE_MANIFEST


def _naming(survey: WalkResult, kind: str, paths: Sequence[str]) -> tuple[WalkRoot, ...]:
    if kind == "manifest list":
        named = set(paths)
        return tuple(root for root in survey.lists.roots if not named.isdisjoint(root.lists))
    numbers = np.unique(hashes(list(paths)))
    return survey.lists.naming(np.flatnonzero(contains(numbers, survey.manifests.numbers)))


def _repair_metadata(evidence: ManifestInputs, roots: Sequence[WalkRoot]) -> str:
    if evidence.current not in roots:
        return f"{BACKUP}; until then expire, sweep and purge refuse this table, because the files it needs are unknown"
    view, survey = evidence.view, evidence.survey
    whole = (snapshot.id for snapshot in reversed(view.snapshots) if survey.is_whole(survey.own(snapshot.id)))
    newest = next(whole, None)
    if newest is None:
        return f"{BACKUP}; no snapshot of the table is complete without it"
    return f"{BACKUP}; without it the newest complete snapshot is {newest}: {roll_back(view, newest)}"


def _check_lost(evidence: ManifestInputs) -> Iterator[Finding]:
    for each in evidence.survey.lost:
        match each.kind:
            case "current" | "branch":
                fault = Fault.BROKEN_CURRENT if each.kind == "current" else Fault.BROKEN_REF
                severity = Severity.ERROR
                repair = f"{BACKUP}; if it is lost, remove the hint file that names it: readers then find the newest existing snapshot"
            case "schema":
                fault, severity = Fault.MISSING_METADATA, Severity.ERROR
                repair = BACKUP
            case "gap":
                fault, severity = Fault.MISSING_METADATA, Severity.WARNING
                repair = f"nothing to do if an expiry stopped half way; otherwise {BACKUP}"
            case unknown:
                assert_never(unknown)
        yield Finding(fault, severity, each.what, repair, paths=(each.path,))


def _check_consumers(evidence: ManifestInputs) -> Iterator[Finding]:
    """Consumers whose next snapshot is missing. It must be an existing snapshot, its changelog, or the next one to come.

    The consumer of a cold table reads nothing: it only stops every expiry.
    """
    if cold_source(evidence.view.properties):
        return
    roots = evidence.survey.lists.roots
    ids = {root.snapshot_id for root in roots if not root.copy or root.copy_kind == "changelog"}
    for ref in evidence.view.refs:
        if ref.kind == "consumer" and ids and ref.snapshot_id not in ids and ref.snapshot_id < max(ids):
            what = f"consumer {ref.name} reads snapshot {ref.snapshot_id} next, which the table no longer has: it cannot continue"
            repair = f"reset it to an existing snapshot, or drop it: `CALL sys.reset_consumer(table => '{evidence.view.ref.short}', consumerId => '{ref.name}', …)`"
            yield Finding(Fault.BROKEN_REF, Severity.ERROR, what, repair, snapshot_ids=(ref.snapshot_id,))


def _check_unread(evidence: ManifestInputs) -> Iterator[Finding]:
    for each in evidence.survey.unread:
        yield not_checked(each)
    unsure = evidence.survey.unsure()
    if unsure:
        what = f"which files of {_counted(len(unsure), 'snapshot')} are live: an unreadable manifest may delete files that others add"
        yield not_checked(what, "repair the metadata first")


def _check_totals(evidence: ManifestInputs) -> Iterator[Finding]:
    """A list truncated at the end of a block looks complete. The file counts in the snapshot's summary reveal it."""
    view, survey = evidence.view, evidence.survey
    head = view.snapshot(view.current_snapshot_id) if view.current_snapshot_id is not None else None
    root = evidence.current
    if head is None or root is None or not survey.is_whole(root):
        return
    counts = survey.counts(root)
    counted = {"data": counts[DATA], "delete": sum(counts[kind] for kind in DELETES)}
    for name, number in counted.items():
        stated = head.summary.get(f"total-{name}-files", "")
        if stated.isdigit() and number < int(stated):
            what = f"snapshot {head.id} says it has {int(stated):,} {name} files, its manifests name {number:,}: its manifest list may be cut short"
            yield Finding(
                Fault.SHORT_LIST,
                Severity.WARNING,
                what,
                f"compare {head.manifest_list} with a backup; some writers write wrong counts into summaries; then no rows are missing",
                paths=(head.manifest_list,),
                snapshot_ids=(head.id,),
            )


def _check_records(evidence: ManifestInputs) -> Iterator[Finding]:
    """Snapshots whose row count differs from their manifests: a list lacks a manifest, or a manifest was replaced."""
    survey = evidence.survey
    checkable = [root for root in survey.lists.roots if root.records is not None and survey.is_whole(root)]
    wrong = [each for each in checkable if survey.records(each) != each.records]
    if wrong:
        first = wrong[-1]
        rows = f"the newest states {first.records:,} rows, its manifests add up to {survey.records(first):,}"
        what = f"{_counted(len(wrong), 'snapshot')} with a different row count than their manifests ({rows}); {needed_by(evidence.view, wrong)}"
        repair = "compare its manifest lists with a backup; if a writer counted wrongly, no rows are missing"
        paths = first.lists
        yield Finding(Fault.SHORT_LIST, Severity.WARNING, what, repair, len(wrong), paths, ids_of(wrong))


def _check_manifest_counts(evidence: ManifestInputs) -> Iterator[Finding]:
    survey, manifests = evidence.survey, evidence.survey.manifests
    wrong = np.flatnonzero(
        (manifests.found >= 0) & (manifests.live >= 0) & (manifests.found != manifests.live)
    )
    for each in wrong.tolist():
        roots = survey.lists.naming(np.array([each]))
        what = f"a manifest names {manifests.found[each]:,} live files, its list states {manifests.live[each]:,}; {needed_by(evidence.view, roots)}"
        yield Finding(
            Fault.MISCOUNTED_MANIFEST,
            Severity.ERROR,
            what,
            _repair_metadata(evidence, roots),
            paths=(manifests.paths[each].as_py(),),
            snapshot_ids=ids_of(roots),
        )


def _check_statistics(evidence: ManifestInputs) -> Iterator[Finding]:
    presence, statistics_files = evidence.presence, evidence.view.statistics
    named = [*(path for _, path in statistics_files), *evidence.survey.statistics]
    paths = _of(presence, named, presence.absent.tolist())
    if paths:
        ids = tuple(snapshot_id for snapshot_id, path in statistics_files if path in paths)
        what = f"{_counted(len(paths), 'statistics file')} that the metadata names cannot be found"
        repair = (
            f"query planning lacks them, no rows are missing; compute them again: {statistics(evidence.view)}"
        )
        yield Finding(
            Fault.MISSING_STATISTICS,
            Severity.WARNING,
            what,
            repair,
            len(paths),
            tuple(paths[:NAMED]),
            ids[:NAMED],
        )


# ------------------------------------------------------------ files


def _check_absent(evidence: ManifestInputs) -> Iterator[Finding]:
    """Missing files, grouped by whether the current snapshot needs them, and by their trash record."""
    numbers = evidence.presence.among(np.unique(evidence.survey.files.numbers))
    groups: dict[tuple[bool, str], list[int]] = defaultdict(list)
    current = evidence.survey.needed_by(evidence.current, numbers)
    for number, needed in zip(numbers.tolist(), current.tolist(), strict=True):
        groups[needed, removal_text(evidence.known.get(number))].append(number)
    for (_, story), members in sorted(groups.items(), reverse=True):
        roots = evidence.survey.needing(np.array(members, dtype=np.uint64))
        what = f"{_kinds(evidence.survey, members)} cannot be found; {needed_by(evidence.view, roots)}{story}"
        yield _about_files(Fault.MISSING_FILE, evidence, members, what, roots)


def _check_sizes(evidence: ManifestInputs) -> Iterator[Finding]:
    mine = np.unique(evidence.survey.files.numbers)
    odd = np.array(sorted(evidence.presence.odd), dtype=np.uint64)
    odd = odd[contains(mine, odd)]
    current = evidence.survey.needed_by(evidence.current, odd)
    for members in (odd[current].tolist(), odd[~current].tolist()):
        if not members:
            continue
        roots = evidence.survey.needing(np.array(members, dtype=np.uint64))
        first = members[0]
        stated = int(evidence.survey.files.sizes[evidence.survey.files.numbers == first][0])
        sizes = f"the first has {evidence.presence.odd[first]:,} bytes, the metadata says {stated:,}"
        what = f"{_kinds(evidence.survey, members)} with a different size than in the metadata, truncated or overwritten ({sizes}); {needed_by(evidence.view, roots)}"
        yield _about_files(Fault.WRONG_SIZE, evidence, members, what, roots)


def _about_files(
    fault: Fault, evidence: ManifestInputs, members: Sequence[int], what: str, roots: tuple[WalkRoot, ...]
) -> Finding:
    paths = tuple(evidence.presence.paths[member] for member in members[:NAMED])
    repair = _repair_files(evidence.view, roots)
    return Finding(fault, Severity.ERROR, what, repair, len(members), paths, ids_of(roots))


def _repair_files(view: TableView, roots: Sequence[WalkRoot]) -> str:
    ids = {root.snapshot_id for root in roots if not root.copy}
    on_branch = any(ref.kind == "branch" and ref.snapshot_id in ids and not ref.has_copy for ref in view.refs)
    if on_branch or view.current_snapshot_id in ids or any(root.copy_kind == "branch" for root in roots):
        return f"{BACKUP}; if it is lost, so are its rows: {drop_files(view)}"
    return f"{BACKUP}; or {expire_or_drop(view, roots)}"


def removal_text(file: TrashedFile | None) -> str:
    """What the trash records say about a missing file."""
    if file is None:
        return ""
    batch, at = file.batch, f" at {file.ended_at:%Y-%m-%d %H:%M} UTC" if file.ended_at else ""
    trashed = f"trashed by {batch.id} ({batch.reason})"
    match file.state:
        case FileState.ERASED:
            return f"; {trashed} and deleted by run {file.run_id}{at}"
        case FileState.MISSING:
            return f"; {trashed}, run {file.run_id} found it gone{at}"
        case FileState.RESTORED:
            return f"; {trashed}, then {file.note or 'restored'}{at}: it disappeared afterwards, and no Lakewarden run deleted it"
        case _:
            return f"; {trashed}, but no Lakewarden run deleted it"


def _check_repeated(evidence: ManifestInputs) -> Iterator[Finding]:
    """Files that one snapshot names twice: readers see their rows twice."""
    view, survey = evidence.view, evidence.survey
    for repeated, fault, noun, paths_of in (
        (survey.listed_twice(), Fault.REPEATED_MANIFEST, "manifest", survey.manifests.paths.take),
        (survey.named_twice(), Fault.REPEATED_FILE, "file", survey.spell),
    ):
        if not repeated:
            continue
        members = np.unique(np.concatenate(list(repeated.values())))
        paths = tuple(
            paths_of(pa.array(members) if noun == "manifest" else members[:NAMED]).to_pylist()[:NAMED]
        )
        roots = tuple(repeated)
        what = f"{_counted(len(members), noun)} named twice in one snapshot: their rows are read twice; {needed_by(view, roots)}"
        yield Finding(fault, Severity.ERROR, what, name_once(view), len(members), paths, ids_of(roots))


# ------------------------------------------------------------ words


def needed_by(view: TableView, roots: Sequence[WalkRoot]) -> str:
    """The snapshots that need these files, the current one first."""
    if not roots:
        return "no snapshot needs it"
    hurt, heads = {root.snapshot_id for root in roots if not root.copy}, []
    if view.current_snapshot_id in hurt:
        heads.append(f"the current snapshot {view.current_snapshot_id}")
    refs = [ref for ref in view.refs if not ref.has_copy]
    heads += [f"{ref.kind} {ref.name}" for ref in refs if ref.name != "main" and ref.snapshot_id in hurt]
    heads += dict.fromkeys(root.copy for root in roots if root.copy)
    named = {view.current_snapshot_id, *(ref.snapshot_id for ref in refs)}
    older = len(hurt - named)
    if older:
        heads.append(_counted(older, "older snapshot" if not heads else "other snapshot"))
    needs = "needs" if len(heads) == 1 and older < 2 else "need"
    shown = heads if len(heads) <= 5 else [*heads[:4], f"{len(heads) - 4:,} more"]
    return f"{' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))} {needs} it"


def ids_of(roots: Sequence[WalkRoot]) -> tuple[int, ...]:
    """Snapshot ids in the table's own history, at most as many as a finding names."""
    return tuple(root.snapshot_id for root in roots if not root.copy)[:NAMED]


def not_checked(what: str, repair: str = "the files it names and the orphans were not checked") -> Finding:
    return Finding(Fault.NOT_CHECKED, Severity.NOTE, f"not checked: {what}", repair)


def _of(presence: Presence, paths: Iterable[str], numbers: Iterable[int]) -> list[str]:
    """The paths whose numbers are among the given ones."""
    selected, chosen = set(numbers), list(paths)
    numbered = zip(chosen, hashes(pa.array(chosen, pa.string())).tolist(), strict=True)
    return [path for path, number in numbered if number in selected]


def _kinds(survey: WalkResult, members: Sequence[int]) -> str:
    """The counts by kind, as in `3 data files and 1 deletion vector`."""
    rows = contains(np.array(members, dtype=np.uint64), survey.files.numbers)
    parts = []
    for kind, word in enumerate(KINDS):
        count = len(np.unique(survey.files.numbers[rows & (survey.files.kinds == kind)]))
        if count:
            parts.append(_counted(count, word if kind != VECTOR else "file of deletion vectors"))
    return " and ".join(parts)


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    head, of, rest = noun.partition(" of ")
    return f"{count:,} {head}s{of}{rest}"


# The batch size for stats of files outside of the table's folders.
_ASKED_AT_ONCE = 1_000
# A folder that only a table property names may contain anything: its listing stops after this many surplus files.
_STRANGERS = 10_000
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ReferencedFiles:
    """All files that the table names, each once: sorted hashes, sizes (-1: unknown). `metadata` are paths in no manifest."""

    numbers: Any
    sizes: Any
    metadata: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Presence:
    """The result. `absent` are sorted numbers of missing files; `odd` has the real size of files with a wrong size.

    `unnamed` are files in the table's own folders that it does not name.
    """

    absent: Any
    odd: Mapping[int, int]
    empty: frozenset[int]
    paths: Mapping[int, str]
    listed: int
    unnamed: pa.Table

    def among(self, numbers: Any) -> Any:
        """The missing files among these sorted numbers."""
        return self.absent[contains(numbers, self.absent)]


def wanted(view: TableView, survey: WalkResult) -> ReferencedFiles:
    """All files to look for. If the metadata has two sizes of one file, the first counts."""
    own = list(own_files(view, survey))
    numbers = hashes(pa.array(own, pa.string()))
    manifests = survey.manifests
    everything = np.concatenate([survey.files.numbers, manifests.numbers, numbers])
    unknown = np.full(len(own), _UNKNOWN, dtype=np.int64)
    sizes = np.concatenate([survey.files.sizes, manifests.lengths, unknown])
    unique, first = np.unique(everything, return_index=True)
    spelled = dict(zip(manifests.numbers.tolist(), manifests.paths.to_pylist(), strict=True))
    return ReferencedFiles(unique, sizes[first], spelled | dict(zip(numbers.tolist(), own, strict=True)))


def own_files(view: TableView, survey: WalkResult) -> Iterable[str]:
    """The metadata file and all files that it names directly."""
    yield view.metadata_location
    yield from view.metadata_log
    yield from dict.fromkeys(path for root in survey.lists.roots for path in root.lists)
    yield from (path for _, path in view.statistics)
    yield from survey.statistics


def look_for(
    objects: Objects,
    own: Sequence[str],
    named: Sequence[str],
    wanted: ReferencedFiles,
    spell: Callable[[Any], pa.Array],
) -> Presence:
    """Look for all files. The table's own folders are listed completely. In folders that only a table property names, only
    the table's files are looked for.

    `spell` returns the paths of file numbers from manifests.
    """
    looking = _Looking(wanted)
    for folder in own:
        for batch in objects.list(folder):
            looking.saw(batch, unnamed=True)
    for folder in named:
        most = looking.listed + len(wanted.numbers) + _STRANGERS
        for batch in objects.list(folder):
            looking.saw(batch, unnamed=False)
            if looking.listed > most:
                break
    looking.ask(objects, spell)
    return looking.presence()


@dataclass
class _Looking:
    """A running search. It keeps one bit per file, and paths only of files with a problem."""

    wanted: ReferencedFiles
    seen: Any = None
    gone: list[int] = field(default_factory=list)
    odd: dict[int, int] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    paths: dict[int, str] = field(default_factory=dict)
    unnamed: list[pa.RecordBatch] = field(default_factory=list)
    listed: int = 0

    def __post_init__(self) -> None:
        self.seen = np.zeros(len(self.wanted.numbers), dtype=bool)

    def saw(self, batch: pa.RecordBatch, *, unnamed: bool) -> None:
        """Process files of a listing. With `unnamed`, files that the table does not name are kept."""
        numbers = hashes(batch.column("path"))
        named = contains(self.wanted.numbers, numbers)
        self.listed += batch.num_rows
        rest = batch.filter(pa.array(~named))
        if unnamed and rest.num_rows:
            self.unnamed.append(rest)
        sizes = batch.column("size").to_numpy()
        places = np.searchsorted(self.wanted.numbers, numbers[named])
        self._mark(places, sizes[named], batch.column("path").filter(pa.array(named)))

    def _mark(self, places: Any, sizes: Any, paths: pa.Array) -> None:
        self.seen[places] = True
        stated = self.wanted.sizes[places]
        wrong = np.flatnonzero(((stated != _UNKNOWN) & (stated != sizes)) | (sizes == 0))
        for row in wrong.tolist():
            number, size = int(self.wanted.numbers[places[row]]), int(sizes[row])
            self.paths[number] = paths[row].as_py()
            if stated[row] not in (_UNKNOWN, size):
                self.odd[number] = size
            else:
                self.empty.add(number)

    def ask(self, objects: Objects, spell: Callable[[Any], pa.Array]) -> None:
        """Stat the files that no listing contained: they are elsewhere or missing."""
        numbers = self.wanted.numbers[~self.seen]
        own = [self.wanted.metadata[number] for number in numbers.tolist() if number in self.wanted.metadata]
        paths = pa.concat_arrays([pa.array(own, pa.string()), spell(numbers)])
        for start in range(0, len(paths), _ASKED_AT_ONCE):
            self._ask(objects, paths[start : start + _ASKED_AT_ONCE])

    def _ask(self, objects: Objects, paths: pa.Array) -> None:
        stats = objects.stat(paths.to_pylist())
        there = np.array([stat is not None for stat in stats], dtype=bool)
        numbers = hashes(paths)
        sizes = np.array([stat.size for stat in stats if stat is not None], dtype=np.int64)
        places = np.searchsorted(self.wanted.numbers, numbers[there])
        self._mark(places, sizes, paths.filter(pa.array(there)))
        gone = numbers[~there].tolist()
        self.gone += gone
        self.paths.update(zip(gone, paths.filter(pa.array(~there)).to_pylist(), strict=True))

    def presence(self) -> Presence:
        return Presence(
            np.unique(np.array(self.gone, dtype=np.uint64)),
            self.odd,
            frozenset(self.empty),
            self.paths,
            self.listed,
            pa.Table.from_batches(self.unnamed, LISTING),
        )
