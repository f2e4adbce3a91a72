"""fsck on real Paimon tables, each fault made for real: it is found and named, and not a byte is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakewarden.jobs.fsck.findings import Fault, Finding, FsckResult, Severity
from lakewarden.model.table import TableView
from lakewarden.tables.metadata_walk import WalkResult
from lakewarden.tables.paimon.format import Paimon
from tests.support.paimon import PaimonLab

KINDS = [
    pytest.param(False, {}, id="append"),
    pytest.param(True, {"changelog-producer": "input"}, id="primary key, changelog"),
    pytest.param(True, {"deletion-vectors.enabled": "true"}, id="primary key, deletion vectors"),
]


def looked_over(lab: PaimonLab, table: str, *, deep: bool = False) -> FsckResult:
    """A checkup that changed nothing."""
    before = state(lab.folder(table))
    done = lab.lw.fsck(table, deep=deep)
    assert state(lab.folder(table)) == before
    return done


def state(folder: Path) -> dict[str, tuple[int, int]]:
    stats = {str(path): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def only(done: FsckResult, kind: Fault) -> Finding:
    """The finding of this kind; nothing else may be wrong."""
    wrong = [each for each in done.findings if each.severity is not Severity.NOTE or each.kind is kind]
    assert [each.kind for each in wrong] == [kind], [(each.kind, each.what) for each in wrong]
    assert wrong[0].repair
    return wrong[0]


@contextmanager
def harmed(lab: PaimonLab, table: str) -> Iterator[Path]:
    """The table's folder, to do harm in; afterwards everything is as it was."""
    folder, aside = lab.folder(table), lab.warehouse.parent / "aside"
    shutil.copytree(folder, aside)
    yield folder
    shutil.rmtree(folder)
    aside.rename(folder)


def snapshot(folder: Path, number: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"snapshot/snapshot-{number}").read_text())
    return content


def amend(folder: Path, number: int, **values: Any) -> None:
    content = {**snapshot(folder, number), **values}
    (folder / f"snapshot/snapshot-{number}").write_text(json.dumps(content))


def cut(path: Path, length: int = 100) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


def garble(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def found_in(lab: PaimonLab, table: str, harm: Callable[[Path], object]) -> FsckResult:
    with harmed(lab, table) as folder:
        harm(folder)
        return looked_over(lab, table)


def manifests(folder: Path) -> list[Path]:
    return [path for path in folder.glob("manifest/manifest-*") if "manifest-list-" not in path.name]


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


# ------------------------------------------------------------ nothing wrong


@pytest.mark.parametrize(("keyed", "options"), KINDS)
def test_a_healthy_table_is_clean(paimon: PaimonLab, keyed: bool, options: dict[str, str]) -> None:
    table = paimon.create(keyed=keyed, **options)
    paimon.append(table, 3)
    paimon.maker.tag(paimon.load(table), "then", 2)
    paimon.load(table).createBranch("side", "then")
    paimon.maker.dropPartition(paimon.load(table), "2024-01-02")
    paimon.append(table, 1, rows=10)
    paimon.maker.compact(paimon.load(table))
    paimon.maker.consumer(paimon.load(table), "reader", 99)
    done = looked_over(paimon, table, deep=not options)
    assert not done.findings, [(each.kind, each.what, each.paths) for each in done.findings]
    assert done.looked.footers == (0 if options else len(paimon.files(table))) and done.looked.snapshots >= 5
    paimon.maker.ownExpire(paimon.load(table), 2)
    again = looked_over(paimon, table)
    assert not again.findings, "what manifests name and delete need not be there"
    assert again.looked.snapshots == 2
    assert paimon.lw.plan("sweep", table).empty, "a tag does without its snapshot's changelog"


def test_changelogs_that_outlive_their_snapshots(paimon: PaimonLab) -> None:
    lasting = {"changelog.num-retained.min": "50", "changelog.num-retained.max": "50"}
    table = paimon.create(keyed=True, **{"changelog-producer": "input", **lasting})
    paimon.append(table, 4, days=1)
    paimon.lw.run("expire", table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    paimon.lw.run("purge", table, {"delete_grace_hours": 0})
    done = looked_over(paimon, table)
    assert not done.findings and done.looked.snapshots == 1, done.findings
    oldest = min(
        (paimon.folder(table)).rglob("changelog-*.parquet"), key=lambda path: path.stat().st_mtime_ns
    )
    with harmed(paimon, table):
        oldest.unlink()
        found = only(looked_over(paimon, table), Fault.MISSING_FILE)
    assert "changelog 1 needs it" in found.what and "until changelog 1 expires" in found.repair


# ------------------------------------------------------------ files


def test_files_of_an_append_table(paimon: PaimonLab) -> None:
    table = paimon.create(**{"compaction.min.file-num": "2"})
    paimon.append(table, 4, days=1)
    old = [each["name"] for each in paimon.files(table)]
    paimon.maker.compact(paimon.load(table))
    paimon.append(table, 1, start=500)
    bucket = "dt=2024-01-01/bucket-0"
    (merged,) = (each["name"] for each in paimon.files(table) if each["rows"] > 20)

    gone = only(found_in(paimon, table, lambda at: (at / bucket / merged).unlink()), Fault.MISSING_FILE)
    assert "1 data file cannot be found" in gone.what and "the current snapshot 6" in gone.what
    assert gone.snapshot_ids == (5, 6) and gone.paths[0].endswith(merged)
    assert "remove_unexisting_files" in gone.repair

    past = only(found_in(paimon, table, lambda at: (at / bucket / old[0]).unlink()), Fault.MISSING_FILE)
    assert past.snapshot_ids[-1] == 4 and "current" not in past.what
    assert "snapshot_min_retained=2" in past.repair

    short = only(found_in(paimon, table, lambda at: cut(at / bucket / merged)), Fault.WRONG_SIZE)
    assert "100 bytes" in short.what and short.snapshot_ids == (5, 6)

    with harmed(paimon, table) as folder:
        garble(folder / bucket / merged)
        assert looked_over(paimon, table).healthy, "as long as before: only who opens it can tell"
        deep = looked_over(paimon, table, deep=True)
        assert only(deep, Fault.UNREADABLE_FILE).paths[0].endswith(merged) and deep.looked.footers == 2


def test_files_of_copies_changelogs_and_vectors(paimon: PaimonLab) -> None:
    options = {"deletion-vectors.enabled": "true", "changelog-producer": "lookup", "bucket": "1"}
    table = paimon.create(keyed=True, **options)
    paimon.append(table, 2, days=1)
    first = min((each["name"] for each in paimon.files(table)), key=len)
    head = max(int(path.name.rpartition("-")[2]) for path in paimon.folder(table).glob("snapshot/snapshot-*"))
    paimon.maker.tag(paimon.load(table), "then", head)
    paimon.load(table).createBranch("side", "then")
    for start in (0, 5):
        paimon.append(table, 1, start=start, rows=10)
    paimon.maker.compact(paimon.load(table))
    paimon.maker.ownExpire(paimon.load(table), 1)
    assert not looked_over(paimon, table).findings
    assert first not in {each["name"] for each in paimon.files(table)}
    bucket = "dt=2024-01-01/bucket-0"

    kept = only(found_in(paimon, table, lambda at: (at / bucket / first).unlink()), Fault.MISSING_FILE)
    assert "tag then" in kept.what and "branch side" in kept.what and kept.snapshot_ids == ()

    def change(at: Path) -> None:
        newest(at, f"{bucket}/changelog-*").unlink()

    changes = only(found_in(paimon, table, change), Fault.MISSING_FILE)
    assert "1 changelog file" in changes.what and "changelog " in changes.what.partition(";")[2]

    lost = only(
        found_in(paimon, table, lambda at: newest(at, "manifest/index-*").unlink()), Fault.MISSING_MANIFEST
    )
    assert "index manifest" in lost.what
    vectors = only(
        found_in(paimon, table, lambda at: newest(at, "index/index-*").unlink()), Fault.MISSING_FILE
    )
    assert "1 file of deletion vectors" in vectors.what


def test_one_file_twice(paimon: PaimonLab) -> None:
    table = paimon.create(**{"manifest.compression": "null"})
    for _ in range(3):
        paimon.append(table, 1, start=100)
    with harmed(paimon, table) as folder:
        other = {key: value for key, value in snapshot(folder, 2).items() if key.startswith("delta")}
        amend(folder, 3, **other)
        listed = only(looked_over(paimon, table), Fault.REPEATED_MANIFEST)
    assert listed.snapshot_ids == (3,) and listed.count == 1
    with harmed(paimon, table) as folder:
        second, third = sorted(manifests(folder), key=lambda path: path.stat().st_mtime_ns)[1:]
        third.write_bytes(second.read_bytes())
        named = only(looked_over(paimon, table), Fault.REPEATED_FILE)
    assert named.snapshot_ids == (3,) and named.count == 1 and named.paths


def test_what_is_not_parquet_is_not_opened(paimon: PaimonLab) -> None:
    table = paimon.create(**{"file.format": "orc"})
    paimon.append(table, 2)
    done = looked_over(paimon, table, deep=True)
    (found,) = done.findings
    assert found.kind is Fault.NOT_CHECKED and "2 data files" in found.what and done.healthy


# ------------------------------------------------------------ metadata


@pytest.mark.main
def test_lists_and_manifests(paimon: PaimonLab) -> None:
    table = paimon.create()
    paimon.append(table, 4)
    last = snapshot(paimon.folder(table), 4)
    lists = [last["baseManifestList"], last["deltaManifestList"]]

    gone = only(found_in(paimon, table, lambda at: (at / "manifest" / lists[1]).unlink()), Fault.MISSING_LIST)
    assert gone.snapshot_ids == (4,) and "snapshot => 3" in gone.repair
    short = only(
        found_in(paimon, table, lambda at: cut(at / "manifest" / lists[0], 500)), Fault.UNREADABLE_LIST
    )
    assert short.snapshot_ids == (4,)

    for harm, kind in (
        (Path.unlink, Fault.MISSING_MANIFEST),
        (cut, Fault.TRUNCATED_MANIFEST),
        (garble, Fault.UNREADABLE_MANIFEST),
    ):
        with harmed(paimon, table) as folder:
            oldest = min(manifests(folder), key=lambda path: path.stat().st_mtime_ns)
            harm(oldest)
            done = looked_over(paimon, table)
        found = only(done, kind)
        assert found.path is not None and found.path.endswith(oldest.name)
        assert 4 in found.snapshot_ids and len(found.snapshot_ids) >= 2
        (note,) = done.of(Severity.NOTE)
        assert note.kind is Fault.NOT_CHECKED and "which files of" in note.what


def test_counters_that_disagree(paimon: PaimonLab) -> None:
    table = paimon.create()
    paimon.append(table, 3)
    found = only(found_in(paimon, table, lambda at: amend(at, 2, totalRecordCount=99)), Fault.SHORT_LIST)
    assert found.severity is Severity.WARNING and found.snapshot_ids == (2,)
    assert "states 99 rows, its manifests add up to 40" in found.what


def test_the_tables_own_files(paimon: PaimonLab) -> None:
    table = paimon.create()
    paimon.append(table, 4)
    paimon.maker.tag(paimon.load(table), "then", 2)
    for size in (1, 2):
        paimon.change(table, f"target-file-size={size} mb")

    def lost_head(at: Path) -> None:
        (at / "snapshot/snapshot-4").unlink()

    current = found_in(paimon, table, lost_head)
    assert "LATEST leads readers to snapshot 4" in only(current, Fault.BROKEN_CURRENT).what
    gap = only(
        found_in(paimon, table, lambda at: (at / "snapshot/snapshot-2").unlink()), Fault.MISSING_METADATA
    )
    assert gap.severity is Severity.WARNING and "snapshot 2 cannot be found" in gap.what
    schema = only(
        found_in(paimon, table, lambda at: (at / "schema/schema-1").unlink()), Fault.MISSING_METADATA
    )
    assert schema.severity is Severity.ERROR and "schema 1 of 3" in schema.what
    tag = only(
        found_in(paimon, table, lambda at: (at / "tag/tag-then").write_text("{")), Fault.UNREADABLE_TABLE
    )
    assert "tag-then" in tag.what
    paimon.maker.consumer(paimon.load(table), "late", 2)
    assert looked_over(paimon, table).healthy
    paimon.maker.ownExpire(paimon.load(table), 1)
    (paimon.folder(table) / "consumer/consumer-late").write_text('{"nextSnapshot": 1}')
    late = only(looked_over(paimon, table), Fault.BROKEN_REF)
    assert "consumer late reads snapshot 1 next" in late.what


def test_a_table_that_expires_meanwhile_is_looked_at_again(
    paimon: PaimonLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = paimon.create()
    paimon.append(table, 4)
    real, surveys = Paimon.survey, []

    def late(self: Paimon, view: TableView) -> WalkResult:
        if not surveys:
            assert paimon.maker.ownExpire(paimon.load(table), 1) == 3
        surveys.append(view.current_snapshot_id)
        return real(self, view)

    monkeypatch.setattr(Paimon, "survey", late)
    done = paimon.lw.fsck(table)
    assert done.healthy and surveys == [4, 4], "the current snapshot is the same, the state is not"
