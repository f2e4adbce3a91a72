"""fsck's checks over small values: what is wrong is found, what is fine is not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from lakewarden.cli.checks import FsckReport
from lakewarden.jobs.fsck.check import check_history, check_pins, check_stale_statistics, check_version_hint
from lakewarden.jobs.fsck.findings import NAMED, CheckCounts, Fault, Finding, FsckResult, Severity, ordered
from lakewarden.jobs.fsck.manifests import (
    ManifestInputs,
    Presence,
    check_files,
    check_log_bound,
    check_metadata,
    needed_by,
    removal_text,
)
from lakewarden.model.location import hashes
from lakewarden.model.table import Ref, Snapshot, TableView
from lakewarden.state.holds import Pin
from lakewarden.state.trash_batches import BatchState, FileState, TrashBatch, TrashedFile
from lakewarden.storage.objects import LISTING
from lakewarden.tables.metadata_walk import (
    DATA,
    VECTOR,
    FileEntries,
    Lists,
    Manifests,
    UnreadableMetadata,
    WalkResult,
    WalkRoot,
)
from tests.support.tables import NOW, TABLE
from tests.support.tables import view as plain_view


def history(*parents: int | None, refs: Sequence[Ref] = (), **summary: str) -> TableView:
    """Snapshots 1, 2, 3 … with these parents; main is at the last."""
    snapshots = tuple(
        Snapshot(number, parent, number, NOW + timedelta(hours=number), "append", summary, f"/l{number}.avro")
        for number, parent in enumerate(parents, 1)
    )
    last = len(parents) or None
    main = (Ref("main", "branch", last),) if last else ()
    return replace(plain_view(), snapshots=snapshots, current_snapshot_id=last, refs=(*main, *refs))


def surveyed(
    lists: Mapping[int, Sequence[str]],
    manifests: Mapping[str, Sequence[tuple[str, int]]],
    *,
    broken: Sequence[UnreadableMetadata] = (),
    live: Mapping[str, int] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> WalkResult:
    """Lists by snapshot, manifests by path with their files; a file is a path and a size."""
    names = list(manifests)
    gone = {each.path for each in broken}
    rows = [(path, size, names.index(name)) for name in names for path, size in manifests[name]]
    paths = pa.array([path for path, _, _ in rows], pa.string())
    pairs = [(place, names.index(name)) for place, each in enumerate(lists.values()) for name in each]
    told = [(live or {}).get(name, len(manifests[name])) for name in names]
    found = [-1 if name in gone else len(manifests[name]) for name in names]

    def spell(numbers: Any) -> pa.Array:
        kept = paths.filter(pa.array(np.isin(hashes(paths), numbers)))
        return kept.unique()

    return WalkResult(
        Lists(
            tuple(WalkRoot(number, (f"/l{number}.avro",)) for number in lists),
            np.array([place for place, _ in pairs], dtype=np.int32),
            np.array([number for _, number in pairs], dtype=np.int32),
        ),
        Manifests(
            pa.array(names, pa.string()),
            hashes(pa.array(names, pa.string())),
            np.full(len(names), 100),
            np.array(told, dtype=np.int64),
            np.array(found, dtype=np.int64),
        ),
        FileEntries(
            hashes(paths),
            np.array([size for _, size, _ in rows], dtype=np.int64),
            np.array([(kinds or {}).get(path, DATA) for path, _, _ in rows], dtype=np.int8),
            np.array([number for _, _, number in rows], dtype=np.int32),
            np.ones(len(rows), dtype=np.int8),
        ),
        tuple(broken),
        (),
        spell,
    )


def present(
    absent: Sequence[str] = (), odd: Mapping[str, int] | None = None, empty: Sequence[str] = ()
) -> Presence:
    odd = odd or {}
    paths = [*absent, *odd, *empty]
    numbers = dict(zip(paths, hashes(pa.array(paths, pa.string())).tolist(), strict=True))
    return Presence(
        np.unique(np.array([numbers[path] for path in absent], dtype=np.uint64)),
        {numbers[path]: size for path, size in odd.items()},
        frozenset(numbers[path] for path in empty),
        {number: path for path, number in numbers.items()},
        10,
        LISTING.empty_table(),
    )


def kinds(findings: Any) -> list[Fault]:
    return [each.kind for each in findings]


# ------------------------------------------------------------ history


def test_a_straight_history_is_sound() -> None:
    assert not list(check_history(history(None, 1, 2)))
    assert not list(check_history(history()))


def test_a_ref_to_a_snapshot_that_is_not_there() -> None:
    view = history(None, 1, refs=[Ref("audit", "tag", 77)])
    (found,) = check_history(view)
    assert (found.kind, found.severity, found.snapshot_ids) == (Fault.BROKEN_REF, Severity.ERROR, (77,))
    assert "tag audit" in found.what and "DROP TAG audit" in found.repair


def test_a_current_snapshot_that_is_not_there() -> None:
    view = replace(history(None, 1), refs=(Ref("main", "branch", 9),), current_snapshot_id=None)
    found = list(check_history(view))
    assert found[0].kind is Fault.BROKEN_CURRENT and found[0].severity is Severity.ERROR


def test_parents_that_go_in_a_circle() -> None:
    (found,) = check_history(history(3, 1, 2))
    assert found.kind is Fault.SNAPSHOT_CYCLE and found.severity is Severity.ERROR
    assert set(found.snapshot_ids) == {1, 2, 3}


def test_an_expired_parent_is_only_worth_a_note() -> None:
    (found,) = check_history(history(99, 1))
    assert (found.kind, found.severity, found.snapshot_ids) == (Fault.EXPIRED_PARENT, Severity.NOTE, (1,))


def test_snapshots_no_ref_leads_to_are_counted_with_the_oldest() -> None:
    view = history(None, 1, 2, 1)  # 2 and 3 were rolled back
    (found,) = check_history(view)
    assert found.kind is Fault.OFF_HISTORY and found.severity is Severity.NOTE
    assert (found.count, found.snapshot_ids) == (2, (2, 3)) and "the oldest is 2" in found.what
    tagged = history(None, 1, 2, 1, refs=[Ref("keep", "tag", 3)])
    assert not list(check_history(tagged))


def test_a_pin_on_a_snapshot_that_is_gone_is_a_broken_promise() -> None:
    pins = [Pin("p1", "t", "u", 1, "bi", "", NOW), Pin("p2", "t", "u", 42, "ml", "", NOW)]
    (found,) = check_pins(history(None), pins)
    assert found.kind is Fault.BROKEN_PIN and found.severity is Severity.ERROR
    assert "p2" in found.what and "unpin p2" in found.repair


def test_statistics_of_a_snapshot_that_is_gone() -> None:
    view = replace(history(None), statistics=((1, "/a.stats"), (5, "/b.stats")))
    (found,) = check_stale_statistics(view)
    assert (found.kind, found.paths) == (Fault.STALE_STATISTICS, ("/b.stats",))


@pytest.mark.parametrize(
    ("metadata", "hint", "wrong"),
    [
        ("/t/metadata/v7.metadata.json", "7", False),
        ("/t/metadata/v7.metadata.json", "7\n", False),
        ("/t/metadata/v7.gz.metadata.json", "7", False),
        ("/t/metadata/v7.metadata.json", "6", True),
        ("/t/metadata/00007-abc.metadata.json", "7", True),
        ("/t/metadata/00007-abc.metadata.json", None, False),
    ],
)
def test_the_version_hint(metadata: str, hint: str | None, wrong: bool) -> None:
    view = replace(plain_view(), metadata_location=metadata)
    found = list(check_version_hint(view, "/t/metadata/version-hint.text", hint))
    assert bool(found) is wrong and all(each.severity is Severity.NOTE for each in found)


# ------------------------------------------------------------ metadata


TWO = {"/m1": [("/a", 1), ("/b", 2)], "/m2": [("/c", 3)]}


def evidence(
    view: TableView, survey: WalkResult, presence: Presence | None = None, **more: Any
) -> ManifestInputs:
    return ManifestInputs(view, survey, presence or present(), **more)


def test_a_whole_table_has_no_findings() -> None:
    view = history(None, 1, **{"total-data-files": "3", "total-delete-files": "0"})
    found = evidence(view, surveyed({1: ["/m1"], 2: ["/m1", "/m2"]}, TWO))
    assert not list(check_metadata(found)) and not list(check_files(found))


@pytest.mark.parametrize(
    ("entries", "properties", "told"),
    [
        (99, {}, ""),
        (100, {}, "leaves a metadata file behind"),
        (100, {"write.metadata.delete-after-commit.enabled": "true"}, ""),
        (5, {"write.metadata.previous-versions-max": "5"}, "leaves a metadata file behind"),
        (5, {"write.metadata.previous-versions-max": "5000"}, "may have 5,000"),
        (301, {"write.metadata.previous-versions-max": "nonsense"}, "has 301 entries"),
    ],
)
def test_the_log_of_metadata_files_is_bounded(entries: int, properties: dict[str, str], told: str) -> None:
    log = tuple(f"/v{number}.json" for number in range(entries))
    view = replace(history(None), metadata_log=log, properties=properties)
    found = list(check_log_bound(view))
    assert [told in each.what for each in found] == ([True] if told else [])
    assert not list(check_log_bound(replace(view, format="paimon")))


def test_earlier_metadata_files_that_are_gone_or_empty() -> None:
    view = replace(history(None), metadata_log=("/v1.json", "/v2.json", "/v3.json"))
    survey = surveyed({1: ["/m1"]}, {"/m1": [("/a", 1)]})
    found = list(check_metadata(evidence(view, survey, present(["/v2.json"], empty=["/v3.json"]))))
    assert kinds(found) == [Fault.MISSING_METADATA] * 2
    assert [each.path for each in found] == ["/v2.json", "/v3.json"]
    assert all(each.severity is Severity.WARNING for each in found)


def test_all_broken_lists_and_manifests_are_told_with_the_snapshots_they_hurt() -> None:
    view = history(None, 1, 2)
    broken = [
        UnreadableMetadata("manifest list", "/l1.avro", "no such file"),
        UnreadableMetadata("manifest", "/m1", "it has 5 bytes, its list says 100"),
        UnreadableMetadata("manifest", "/m2", "it is not an Avro file"),
    ]
    survey = surveyed({1: [], 2: ["/m1"], 3: ["/m1", "/m2"]}, TWO, broken=broken)
    found = list(check_metadata(evidence(view, survey, present(["/l1.avro"], {"/m1": 5}))))
    assert kinds(found) == [Fault.MISSING_LIST, Fault.TRUNCATED_MANIFEST, Fault.UNREADABLE_MANIFEST]
    assert [each.snapshot_ids for each in found] == [(1,), (2, 3), (3,)]
    assert "the current snapshot 3" in found[2].what and "current" not in found[0].what
    assert all(each.severity is Severity.ERROR for each in found)


def test_a_way_back_is_named_where_an_older_snapshot_is_whole() -> None:
    broken = [UnreadableMetadata("manifest", "/m2", "no such file")]
    survey = surveyed({1: ["/m1"], 2: ["/m1", "/m2"]}, TWO, broken=broken)
    (found,) = check_metadata(evidence(history(None, 1), survey, present(["/m2"])))
    assert found.kind is Fault.MISSING_MANIFEST and "rollback_to_snapshot('db.events', 1)" in found.repair


def test_a_manifest_that_went_after_it_was_read() -> None:
    survey = surveyed({1: ["/m1", "/m2"]}, TWO)
    (found,) = check_metadata(evidence(history(None), survey, present(["/m1"])))
    assert (found.kind, found.path) == (Fault.MISSING_MANIFEST, "/m1")


def test_a_manifest_whose_count_is_not_its_list_s() -> None:
    survey = surveyed({1: ["/m1", "/m2"]}, TWO, live={"/m1": 5, "/m2": -1})
    (found,) = check_metadata(evidence(history(None), survey))
    assert found.kind is Fault.MISCOUNTED_MANIFEST and found.path == "/m1"
    assert "names 2 live files, its list states 5" in found.what


def test_a_list_with_fewer_files_than_the_snapshot_has() -> None:
    view = history(None, **{"total-data-files": "5", "total-delete-files": "0"})
    (found,) = check_metadata(evidence(view, surveyed({1: ["/m1", "/m2"]}, TWO)))
    assert (found.kind, found.severity) == (Fault.SHORT_LIST, Severity.WARNING)
    fewer = history(None, **{"total-data-files": "2"})  # a writer that miscounts: no row is missing
    assert not list(check_metadata(evidence(fewer, surveyed({1: ["/m1", "/m2"]}, TWO))))


def test_statistics_that_cannot_be_found() -> None:
    view = replace(history(None), statistics=((1, "/a.stats"), (1, "/b.stats")))
    survey = surveyed({1: []}, {})
    (found,) = check_metadata(evidence(view, survey, present(["/b.stats"])))
    assert (found.kind, found.severity) == (Fault.MISSING_STATISTICS, Severity.WARNING)
    assert found.paths == ("/b.stats",)


# ------------------------------------------------------------ files


def test_missing_files_are_split_by_whether_the_current_snapshot_needs_them() -> None:
    survey = surveyed({1: ["/m1"], 2: ["/m2"]}, TWO)
    found = list(check_files(evidence(history(None, 1), survey, present(["/a", "/b", "/c"]))))
    assert kinds(found) == [Fault.MISSING_FILE] * 2
    assert [(each.count, each.snapshot_ids) for each in found] == [(1, (2,)), (2, (1,))]
    assert found[0].paths == ("/c",) and "newDelete().deleteFile" in found[0].repair
    assert set(found[1].paths) == {"/a", "/b"} and "--set snapshot_ids=1" in found[1].repair


def test_a_missing_file_is_told_with_what_we_did_to_it() -> None:
    batch = TrashBatch("run-1", "t", "u", "expire", "only expired", BatchState.ACTIVE, NOW, NOW)
    erased = TrashedFile("/c", "data", 3, FileState.ERASED, batch, "run-2", NOW, "")
    survey = surveyed({1: ["/m2"]}, {"/m2": [("/c", 3)]})
    number = int(hashes(["/c"])[0])
    (found,) = check_files(evidence(history(None), survey, present(["/c"]), known={number: erased}))
    assert "trashed by run-1 (only expired) and deleted by run run-2 at 2024-03-15 12:00 UTC" in found.what
    assert removal_text(None) == ""
    assert "no Lakewarden run deleted it" in removal_text(
        replace(erased, state=FileState.TRASHED, ended_at=None)
    )
    assert "found it gone" in removal_text(replace(erased, state=FileState.MISSING))


def test_a_file_with_another_size() -> None:
    survey = surveyed({1: ["/m1"], 2: ["/m1"]}, TWO)
    (found,) = check_files(evidence(history(None, 1), survey, present(odd={"/b": 1})))
    assert (found.kind, found.paths, found.snapshot_ids) == (Fault.WRONG_SIZE, ("/b",), (1, 2))
    assert "has 1 bytes, the metadata says 2" in found.what


def test_one_path_twice_in_one_snapshot() -> None:
    twice = {"/m1": [("/a", 1), ("/b", 1)], "/m2": [("file:/a", 1)], "/m3": [("/b", 1)]}
    survey = surveyed({1: ["/m1"], 2: ["/m1", "/m2"], 3: ["/m2", "/m3"]}, twice)
    (found,) = check_files(evidence(history(None, 1, 2), survey))
    assert (found.kind, found.count, found.snapshot_ids) == (Fault.REPEATED_FILE, 1, (2,))
    within = surveyed({1: ["/m1"]}, {"/m1": [("/a", 1), ("/a", 1)]})
    assert kinds(check_files(evidence(history(None), within))) == [Fault.REPEATED_FILE]


def test_vectors_share_a_file_and_are_no_duplicates() -> None:
    shared = {"/m1": [("/d.puffin", 9), ("/d.puffin", 9)]}
    survey = surveyed({1: ["/m1"]}, shared, kinds={"/d.puffin": VECTOR})
    assert not list(check_files(evidence(history(None), survey)))
    (found,) = check_files(evidence(history(None), survey, present(["/d.puffin"])))
    assert found.count == 1 and "1 file of deletion vectors" in found.what


def test_one_manifest_twice_in_one_list() -> None:
    survey = surveyed({1: ["/m1"], 2: ["/m1", "/m2", "/m1"]}, TWO)
    (found,) = check_files(evidence(history(None, 1), survey))
    assert (found.kind, found.paths, found.snapshot_ids) == (Fault.REPEATED_MANIFEST, ("/m1",), (2,))


def test_no_more_paths_are_named_than_anyone_reads() -> None:
    many = [(f"/f{number}", 1) for number in range(NAMED + 50)]
    survey = surveyed({1: ["/m1"]}, {"/m1": many})
    (found,) = check_files(evidence(history(None), survey, present([path for path, _ in many])))
    assert found.count == NAMED + 50 and len(found.paths) == NAMED


def test_who_needs_it() -> None:
    view = history(None, 1, 2, refs=[Ref("audit", "tag", 1)])
    one, two, three = (WalkRoot(number, ()) for number in (1, 2, 3))
    assert needed_by(view, [three]) == "the current snapshot 3 needs it"
    assert needed_by(view, [one, three]) == "the current snapshot 3 and tag audit need it"
    assert needed_by(view, [two]) == "1 older snapshot needs it"
    assert needed_by(view, []) == "no snapshot needs it"
    kept = [WalkRoot(2, (), "tag old"), WalkRoot(7, (), "branch dev"), WalkRoot(8, (), "branch dev")]
    assert needed_by(view, kept) == "tag old and branch dev need it"


# ------------------------------------------------------------ the checkup


def checkup(*severities: Severity) -> FsckResult:
    findings = [
        Finding(Fault.MISSING_FILE, each, "what is [red]", "do this", 5, ("/p",), (1,)) for each in severities
    ]
    return FsckResult(TABLE, NOW, 1, "/m.json", ordered(findings), CheckCounts(1, 2, 3, 4, 0), False, 0.5)


def test_notes_alone_are_healthy_and_the_worst_comes_first() -> None:
    assert checkup().exit_code == 0 and checkup(Severity.NOTE).exit_code == 0
    done = checkup(Severity.NOTE, Severity.WARNING, Severity.ERROR)
    assert done.exit_code == 3 and not done.healthy
    assert [each.severity for each in done.findings] == list(Severity)


def test_the_report_names_what_where_and_the_repair() -> None:
    console = Console(width=180)
    with console.capture() as said:
        console.print(FsckReport(checkup(Severity.ERROR, Severity.NOTE)).render(180))
    text = said.get()
    assert "1 error" in text and "missing-file" in text and "what is [red]" in text and "do this" in text
    assert "… 4 more" in text and "nothing was changed" in text
    with console.capture() as said:
        console.print(FsckReport(checkup()).render(180))
    assert "nothing is wrong" in said.get()


def test_every_fault_has_its_line_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "fsck.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert told == set(Fault)
