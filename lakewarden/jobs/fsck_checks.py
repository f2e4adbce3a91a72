"""fsck on lists, manifests and the files they name: what is missing, cut short, contradictory or named twice. Pure.

What was read (a survey) and what is there (a presence) come in; findings go out, each with the snapshots it hurts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakewarden.formats.survey import KINDS, Broken, Survey
from lakewarden.jobs.checkup import NAMED, Fault, Finding, Severity
from lakewarden.jobs.fsck_presence import Presence
from lakewarden.model import TableView
from lakewarden.paths import hashes
from lakewarden.safety.reached import contains
from lakewarden.state.verdicts import DoomedFile, FileState

_BACKUP = "bring it back from a backup, or from an older version of the object where the bucket keeps them"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the checks go by. `known` are files our own state tells something of, by their number."""

    view: TableView
    survey: Survey
    presence: Presence
    known: Mapping[int, DoomedFile] = field(default_factory=dict)

    @property
    def current(self) -> int | None:
        return self.view.current_snapshot_id


def check_metadata(evidence: Evidence) -> Iterator[Finding]:
    """The table's own files: the log of earlier metadata files, manifest lists, manifests, statistics."""
    yield from _check_log(evidence)
    yield from _check_broken(evidence)
    yield from _check_unread(evidence)
    yield from _check_totals(evidence)
    yield from _check_manifest_counts(evidence)
    yield from _check_statistics(evidence)


def check_files(evidence: Evidence) -> Iterator[Finding]:
    """Data files, delete files and deletion vectors that snapshots name."""
    yield from _check_absent(evidence)
    yield from _check_sizes(evidence)
    yield from _check_repeated(evidence)


# ------------------------------------------------------------ metadata


def _check_log(evidence: Evidence) -> Iterator[Finding]:
    view, presence = evidence.view, evidence.presence
    absent = _of(presence, view.metadata_log, presence.absent.tolist())
    empty = _of(presence, (view.metadata_location, *view.metadata_log), presence.empty)
    for paths, fault in ((absent, "are gone"), (empty, "are empty")):
        if paths:
            what = f"{len(paths):,} of {len(view.metadata_log):,} earlier metadata files that the log names {fault}"
            repair = "no read needs them; a rollback by metadata file does. " + _BACKUP
            yield Finding(
                Fault.MISSING_METADATA, Severity.WARNING, what, repair, len(paths), tuple(paths[:NAMED])
            )


def _check_broken(evidence: Evidence) -> Iterator[Finding]:
    """Lists and manifests that cannot be read, and those that were read but are gone by now; alike ones together."""
    groups: dict[tuple[Fault, str, str], list[str]] = defaultdict(list)
    for each in _broken(evidence):
        fault = _fault(evidence, each)
        groups[fault, each.kind, each.reason].append(each.path)
    for (fault, kind, reason), paths in groups.items():
        ids = _snapshots_of_metadata(evidence.survey, kind, paths)
        what = f"{_counted(len(paths), kind)} cannot be read: {reason}; {needed_by(evidence.view, ids)}"
        yield Finding(
            fault,
            Severity.ERROR,
            what,
            _repair_metadata(evidence, ids),
            len(paths),
            tuple(paths[:NAMED]),
            ids[:NAMED],
        )


def _broken(evidence: Evidence) -> Iterator[Broken]:
    yield from evidence.survey.broken
    told = {each.path for each in evidence.survey.broken}
    gone = set(evidence.presence.absent.tolist())
    manifests = evidence.survey.manifests
    for kind, paths in (
        ("manifest list", evidence.survey.lists.paths),
        ("manifest", manifests.paths.to_pylist()),
    ):
        for path, number in zip(paths, hashes(list(paths)).tolist(), strict=True):
            if number in gone and path not in told:
                yield Broken("manifest" if kind == "manifest" else "manifest list", path, "no such file")


def _fault(evidence: Evidence, broken: Broken) -> Fault:
    number = int(hashes([broken.path])[0])
    gone = bool(contains(evidence.presence.absent, np.array([number], dtype=np.uint64))[0])
    if broken.kind == "manifest list":
        return Fault.MISSING_LIST if gone else Fault.UNREADABLE_LIST
    if gone:
        return Fault.MISSING_MANIFEST
    return Fault.TRUNCATED_MANIFEST if number in evidence.presence.odd else Fault.UNREADABLE_MANIFEST


def _snapshots_of_metadata(survey: Survey, kind: str, paths: Sequence[str]) -> tuple[int, ...]:
    if kind == "manifest list":
        named = set(paths)
        pairs = zip(survey.lists.snapshot_ids, survey.lists.paths, strict=True)
        return tuple(snapshot_id for snapshot_id, path in pairs if path in named)
    numbers = np.unique(hashes(list(paths)))
    return survey.lists.naming(np.flatnonzero(contains(numbers, survey.manifests.numbers)))


def _repair_metadata(evidence: Evidence, ids: Sequence[int]) -> str:
    if evidence.current not in ids:
        return f"{_BACKUP}; until then expire, sweep and reap refuse this table, because what it needs is not known"
    whole = [each for each in reversed(evidence.view.snapshots) if evidence.survey.is_whole(each.id)]
    if not whole:
        return f"{_BACKUP}; no snapshot of the table is whole without it"
    back = f"`CALL {evidence.view.ref.catalog}.system.rollback_to_snapshot('{_short(evidence.view)}', {whole[0].id})`"
    return f"{_BACKUP}; without it the newest snapshot that is whole is {whole[0].id}: {back}"


def _check_unread(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.survey.unread:
        yield not_checked(each)


def _check_totals(evidence: Evidence) -> Iterator[Finding]:
    """A list that was cut short at the end of a block reads as a shorter one; the snapshot knows how many files it has."""
    view, survey = evidence.view, evidence.survey
    head = view.snapshot(view.current_snapshot_id) if view.current_snapshot_id is not None else None
    if head is None or not survey.is_whole(head.id):
        return
    counts = survey.counts(head.id)
    found = {"data": counts[0], "delete": sum(counts.values()) - counts[0]}
    for name, number in found.items():
        told = head.summary.get(f"total-{name}-files", "")
        if told.isdigit() and number < int(told):
            what = f"snapshot {head.id} says it has {int(told):,} {name} files, its manifests name {number:,}: its manifest list may be cut short"
            yield Finding(
                Fault.SHORT_LIST,
                Severity.WARNING,
                what,
                f"compare {head.manifest_list} with a backup; some writers miscount in summaries, then the rows are all there",
                paths=(head.manifest_list,),
                snapshot_ids=(head.id,),
            )


def _check_manifest_counts(evidence: Evidence) -> Iterator[Finding]:
    survey, manifests = evidence.survey, evidence.survey.manifests
    wrong = np.flatnonzero(
        (manifests.found >= 0) & (manifests.live >= 0) & (manifests.found != manifests.live)
    )
    for each in wrong.tolist():
        ids = survey.lists.naming(np.array([each]))
        what = f"a manifest names {manifests.found[each]:,} live files, its list says {manifests.live[each]:,}; {needed_by(evidence.view, ids)}"
        yield Finding(
            Fault.MISCOUNTED_MANIFEST,
            Severity.ERROR,
            what,
            _repair_metadata(evidence, ids),
            paths=(manifests.paths[each].as_py(),),
            snapshot_ids=ids[:NAMED],
        )


def _check_statistics(evidence: Evidence) -> Iterator[Finding]:
    presence, statistics = evidence.presence, evidence.view.statistics
    paths = _of(presence, [path for _, path in statistics], presence.absent.tolist())
    if paths:
        ids = tuple(snapshot_id for snapshot_id, path in statistics if path in paths)
        what = f"{_counted(len(paths), 'statistics file')} that the metadata names cannot be found"
        repair = f"queries lose them for planning, no rows; make them anew: `CALL {evidence.view.ref.catalog}.system.compute_table_stats('{_short(evidence.view)}')`"
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


def _check_absent(evidence: Evidence) -> Iterator[Finding]:
    """Grouped by whether the current snapshot needs them, and by what is known about where they went."""
    numbers = evidence.presence.among(np.unique(evidence.survey.files.numbers))
    groups: dict[tuple[bool, str], list[int]] = defaultdict(list)
    current = evidence.survey.needed_by(evidence.current, numbers)
    for number, needed in zip(numbers.tolist(), current.tolist(), strict=True):
        groups[needed, went(evidence.known.get(number))].append(number)
    for (_, story), members in sorted(groups.items(), reverse=True):
        ids = evidence.survey.needing(np.array(members, dtype=np.uint64))
        what = f"{_kinds(evidence.survey, members)} cannot be found; {needed_by(evidence.view, ids)}{story}"
        yield _about_files(Fault.MISSING_FILE, evidence, members, what, ids)


def _check_sizes(evidence: Evidence) -> Iterator[Finding]:
    mine = np.unique(evidence.survey.files.numbers)
    odd = np.array(sorted(evidence.presence.odd), dtype=np.uint64)
    odd = odd[contains(mine, odd)]
    current = evidence.survey.needed_by(evidence.current, odd)
    for members in (odd[current].tolist(), odd[~current].tolist()):
        if not members:
            continue
        ids = evidence.survey.needing(np.array(members, dtype=np.uint64))
        first = members[0]
        told = int(evidence.survey.files.sizes[evidence.survey.files.numbers == first][0])
        sizes = f"the first has {evidence.presence.odd[first]:,} bytes, the metadata says {told:,}"
        what = f"{_kinds(evidence.survey, members)} with another size than the metadata's, cut off or overwritten ({sizes}); {needed_by(evidence.view, ids)}"
        yield _about_files(Fault.WRONG_SIZE, evidence, members, what, ids)


def _about_files(
    fault: Fault, evidence: Evidence, members: Sequence[int], what: str, ids: tuple[int, ...]
) -> Finding:
    paths = tuple(evidence.presence.paths[each] for each in members[:NAMED])
    repair = _repair_files(evidence.view, ids)
    return Finding(fault, Severity.ERROR, what, repair, len(members), paths, ids[:NAMED])


def _repair_files(view: TableView, ids: Sequence[int]) -> str:
    heads = [ref for ref in view.refs if ref.snapshot_id in ids]
    if view.current_snapshot_id in ids or any(ref.kind == "branch" for ref in heads):
        return f"{_BACKUP}; if it is lost, so are its rows: `table.newDelete().deleteFile(path).commit()` drops it, so that the rest can be read"
    names = ",".join(str(each) for each in ids[:NAMED])
    drop = "drop the tags that need it, then " if heads else ""
    return f"{_BACKUP}; or {drop}expire the snapshots that need it: `lakewarden run expire {view.ref} --set snapshot_ids={names}`"


def went(file: DoomedFile | None) -> str:
    """What our state knows of a file that is not there."""
    if file is None:
        return ""
    verdict, at = file.verdict, f" at {file.ended_at:%Y-%m-%d %H:%M} UTC" if file.ended_at else ""
    doomed = f"doomed by {verdict.id} ({verdict.reason})"
    match file.state:
        case FileState.ERASED:
            return f"; {doomed} and deleted by run {file.run_id}{at}"
        case FileState.MISSING:
            return f"; {doomed}, run {file.run_id} found it gone{at}"
        case FileState.RESTORED:
            return f"; {doomed}, then {file.note or 'restored'}{at}: it went afterwards, and no run of ours deleted it"
        case _:
            return f"; {doomed}, but no run of ours deleted it"


def _check_repeated(evidence: Evidence) -> Iterator[Finding]:
    """Rows that a reader sees twice."""
    view, survey = evidence.view, evidence.survey
    for found, fault, noun, paths_of in (
        (survey.listed_twice(), Fault.REPEATED_MANIFEST, "manifest", survey.manifests.paths.take),
        (survey.named_twice(), Fault.REPEATED_FILE, "file", survey.spell),
    ):
        if not found:
            continue
        members = np.unique(np.concatenate(list(found.values())))
        paths = tuple(
            paths_of(pa.array(members) if noun == "manifest" else members[:NAMED]).to_pylist()[:NAMED]
        )
        ids = tuple(found)
        what = f"{_counted(len(members), noun)} named twice in one snapshot: their rows are read twice; {needed_by(view, ids)}"
        yield Finding(
            fault,
            Severity.ERROR,
            what,
            "drop and add it again in one transaction: `newDelete().deleteFile(path)` takes every entry of it away, `newAppend().appendFile(…)` adds one",
            len(members),
            paths,
            ids[:NAMED],
        )


# ------------------------------------------------------------ words


def needed_by(view: TableView, ids: Sequence[int]) -> str:
    """Who is hurt, the current snapshot first."""
    if not ids:
        return "no snapshot needs it"
    hurt, heads = set(ids), []
    if view.current_snapshot_id in hurt:
        heads.append(f"the current snapshot {view.current_snapshot_id}")
    heads += [f"{ref.kind} {ref.name}" for ref in view.refs if ref.name != "main" and ref.snapshot_id in hurt]
    named = {view.current_snapshot_id, *(ref.snapshot_id for ref in view.refs)}
    older = len(hurt - named)
    if older:
        heads.append(_counted(older, "older snapshot" if not heads else "other snapshot"))
    needs = "needs" if len(heads) == 1 and older < 2 else "need"
    shown = heads if len(heads) <= 5 else [*heads[:4], f"{len(heads) - 4:,} more"]
    return f"{' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))} {needs} it"


def not_checked(
    what: str, repair: str = "what it names was not checked, nor which files are orphans"
) -> Finding:
    return Finding(Fault.NOT_CHECKED, Severity.NOTE, f"not checked: {what}", repair)


def _of(presence: Presence, paths: Iterable[str], numbers: Iterable[int]) -> list[str]:
    """Of these paths, those whose numbers are among the given ones."""
    wanted, chosen = set(numbers), list(paths)
    found = zip(chosen, hashes(pa.array(chosen, pa.string())).tolist(), strict=True)
    return [path for path, number in found if number in wanted]


def _kinds(survey: Survey, members: Sequence[int]) -> str:
    """`3 data files and 1 deletion vector`: how often each kind names them."""
    rows = contains(np.array(members, dtype=np.uint64), survey.files.numbers)
    parts = []
    for kind, word in enumerate(KINDS):
        count = len(np.unique(survey.files.numbers[rows & (survey.files.kinds == kind)]))
        if count:
            parts.append(_counted(count, word if kind != 3 else "file of deletion vectors"))
    return " and ".join(parts)


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    head, of, rest = noun.partition(" of ")
    return f"{count:,} {head}s{of}{rest}"


def _short(view: TableView) -> str:
    return ".".join((*view.ref.namespace, view.ref.name))
