"""fsck on real tables, each fault made for real: it is found and named, and not a byte is changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden import clock
from lakewarden.cli import main
from lakewarden.errors import NoSuchTable
from lakewarden.jobs.fsck.findings import Fault, Finding, FsckResult, Severity
from lakewarden.model.location import normal
from lakewarden.rewrite.pages import thrift
from lakewarden.state.holds import Pin, Pins
from lakewarden.state.trash import TrashedFiles
from lakewarden.tables.iceberg.format import Iceberg
from tests.support.lab import Lab

V3 = {"format-version": "3", "write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
V2 = {"format-version": "2", "write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}


def looked_over(lab: Lab, table: str, *, deep: bool = False) -> FsckResult:
    """A checkup that changed nothing."""
    before = lab.on_disk()
    done = lab.lw.fsck(table, deep=deep)
    assert lab.on_disk() == before
    return done


def only(done: FsckResult, kind: Fault) -> Finding:
    """The finding of this kind; nothing else may be wrong."""
    wrong = [each for each in done.findings if each.severity is not Severity.NOTE or each.kind is kind]
    assert [each.kind for each in wrong] == [kind], [(each.kind, each.what) for each in wrong]
    assert wrong[0].repair
    return wrong[0]


def metadata_folder(lab: Lab, table: str) -> Path:
    return lab.warehouse / "db" / table.rsplit(".", 1)[1] / "metadata"


def manifests(lab: Lab, table: str) -> list[str]:
    """Of the current snapshot, the oldest first."""
    rows = lab.sql(f"select path, added_snapshot_id from {table}.manifests")
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    return [row.path for row in sorted(rows, key=lambda row: ids.index(row.added_snapshot_id))]


def loaded(lab: Lab, table: str) -> Any:
    return lab.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        lab.spark._jsparkSession, table
    )


def cut(path: str, length: int = 100) -> None:
    with Path(normal(path)).open("r+b") as file:
        file.truncate(length)


# ------------------------------------------------------------ nothing wrong


@pytest.mark.main
@pytest.mark.parametrize("properties", [{"format-version": "1"}, V2, V3], ids=["v1", "v2", "v3"])
def test_a_healthy_table_is_clean(lab: Lab, properties: dict[str, str]) -> None:
    table = lab.messy(files=4, rows=100, **properties)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"alter table {table} create tag audit as of version {ids[0]}")
    lab.sql(f"alter table {table} create branch dev as of version {ids[1]}")
    lab.sql(f"insert into {table}.branch_dev values (1, 'x', date'2024-03-09')")
    if properties["format-version"] != "1":
        lab.sql(f"delete from {table} where id % 7 = 0")
    lab.sql(f"call {lab.catalog}.system.compute_table_stats('{table}')")
    lab.sql(f"call {lab.catalog}.system.rewrite_manifests('{table}')")
    done = looked_over(lab, table, deep=True)
    assert done.healthy and done.exit_code == 0, done.findings
    assert not done.findings
    # Delete files, and files of deletion vectors, are decoded too.
    decoded = set(lab.data_files(table))
    assert (len(decoded) > 8) == (properties["format-version"] != "1")
    assert done.looked.files >= 9 and done.looked.footers == len(decoded)
    assert done.looked.snapshots == len(lab.snapshots(table))


def test_an_empty_table_is_clean(lab: Lab) -> None:
    table = lab.create()
    done = looked_over(lab, table, deep=True)
    assert done.findings == () and done.snapshot_id is None


def test_a_table_after_all_of_our_own_jobs_is_clean(lab: Lab) -> None:
    """Every file that expire trashed is unneeded: fsck would tell otherwise."""
    table = lab.messy(files=6, rows=50, days=1, **V3)
    lab.sql(f"delete from {table} where id % 5 = 0")
    lab.lw.run("compact-deletes", table)
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    lab.lw.run("expire", table, {"snapshot_retention_hours": 0, "snapshot_min_retained": 1})
    done = looked_over(lab, table, deep=True)
    assert done.healthy, done.findings
    assert Fault.ORPHANS not in {each.kind for each in done.findings}, "what is in the trash is no orphan"


def test_no_such_table(lab: Lab) -> None:
    lab.create()
    with pytest.raises(NoSuchTable):
        lab.lw.fsck(lab.table("nothing"))


# ------------------------------------------------------------ files


@pytest.mark.main
def test_a_data_file_that_is_gone(lab: Lab) -> None:
    table = lab.messy(files=3)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    path = lab.sql(f"select file_path from {table}.files version as of {ids[0]}")[0].file_path
    Path(normal(path)).unlink()
    found = only(looked_over(lab, table), Fault.MISSING_FILE)
    assert found.severity is Severity.ERROR and found.count == 1
    assert [normal(each) for each in found.paths] == [normal(path)]
    assert set(found.snapshot_ids) == set(ids) and f"current snapshot {ids[-1]}" in found.what


def test_a_file_only_older_snapshots_need(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    old = lab.data_files(table)
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    Path(normal(old[0])).unlink()
    found = only(looked_over(lab, table), Fault.MISSING_FILE)
    assert "current" not in found.what and "--set snapshot_ids=" in found.repair
    assert lab.rows(table), "the table can be read"


def test_a_data_file_that_was_cut_off(lab: Lab) -> None:
    table = lab.messy(files=3)
    path = lab.data_files(table)[0]
    cut(path)
    found = only(looked_over(lab, table), Fault.WRONG_SIZE)
    assert normal(found.path or "") == normal(path) and "100 bytes" in found.what


def test_all_files_gone_are_one_finding(lab: Lab) -> None:
    table = lab.messy(files=3)
    shutil.rmtree(metadata_folder(lab, table).parent / "data")
    found = only(looked_over(lab, table), Fault.MISSING_FILE)
    assert found.count == 6


@pytest.mark.parametrize(("properties", "word"), [(V2, "position delete file"), (V3, "deletion vectors")])
def test_a_delete_file_that_is_gone(lab: Lab, properties: dict[str, str], word: str) -> None:
    table = lab.messy(files=2, **properties)
    lab.sql(f"delete from {table} where id % 7 = 0")
    path = lab.sql(f"select file_path from {table}.delete_files")[0].file_path
    Path(normal(path)).unlink()
    done = looked_over(lab, table)
    found = only(done, Fault.MISSING_FILE)
    assert word in found.what and normal(found.path or "") == normal(path)


def test_files_outside_of_the_location_are_asked_for(lab: Lab, tmp_path: Path) -> None:
    table = lab.create("id bigint", "")
    outside = tmp_path / "elsewhere"
    lab.spark.range(10).coalesce(1).write.parquet(str(outside))
    lab.sql(
        f"call {lab.catalog}.system.add_files(table => '{table}', source_table => '`parquet`.`{outside}`')"
    )
    assert looked_over(lab, table, deep=True).healthy
    next(outside.glob("*.parquet")).unlink()
    only(looked_over(lab, table), Fault.MISSING_FILE)


def test_one_path_appended_twice(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    iceberg = loaded(lab, table)
    tasks = iceberg.newScan().planFiles().iterator()
    file = tasks.next().file()
    iceberg.newAppend().appendFile(file).commit()
    found = only(looked_over(lab, table), Fault.REPEATED_FILE)
    assert normal(found.path or "") == normal(str(file.location())) and len(found.snapshot_ids) == 1


def test_what_we_deleted_ourselves_is_told_with_the_run(lab: Lab) -> None:
    """A receipt of a file that the table names again: restored metadata, or a mistake; either way, who did it is known."""
    table = lab.messy(files=2, days=1)
    view, path = lab.lw.view(table), lab.data_files(table)[0]
    files = pa.table(
        {"path": [path], "kind": ["data"], "size": pa.array([1]), "stamp": pa.array([None], pa.string())}
    )
    trashed = TrashedFiles(lab.lw.state)
    trashed.trash("run-1", table, view.uuid, "expire", "only expired snapshots", files, {}, clock.now())
    assert looked_over(lab, table).healthy, "a deletion batch that is not in force says nothing"
    trashed.enforce("run-1", clock.now())
    again = only(looked_over(lab, table), Fault.TRASHED_AGAIN)
    assert again.severity is Severity.WARNING and "run-1" in again.what and again.paths == (path,)
    Path(normal(path)).unlink()
    found = only(looked_over(lab, table), Fault.MISSING_FILE)
    assert "trashed by run-1" in found.what


# ------------------------------------------------------------ metadata


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lambda path: Path(path).unlink(), Fault.MISSING_MANIFEST),
        (cut, Fault.TRUNCATED_MANIFEST),
        (lambda path: Path(path).write_bytes(b"x" * Path(path).stat().st_size), Fault.UNREADABLE_MANIFEST),
    ],
    ids=["gone", "cut", "garbage"],
)
def test_a_manifest_that_cannot_be_read(lab: Lab, harm: Callable[[str], Any], kind: Fault) -> None:
    table = lab.messy(files=3)
    first = manifests(lab, table)[0]
    harm(normal(first))
    found = only(looked_over(lab, table), kind)
    assert normal(found.path or "") == normal(first) and len(found.snapshot_ids) == 3


def test_a_manifest_list_that_cannot_be_read(lab: Lab) -> None:
    table = lab.messy(files=3)
    lists = {each.id: each.manifest_list for each in lab.lw.view(table).snapshots}
    ids = list(lists)
    Path(normal(lists[ids[0]])).unlink()
    cut(lists[ids[1]], 300)
    done = looked_over(lab, table)
    assert [each.kind for each in done.of(Severity.ERROR)] == [Fault.MISSING_LIST, Fault.UNREADABLE_LIST]
    assert [each.snapshot_ids for each in done.of(Severity.ERROR)] == [(ids[0],), (ids[1],)]


@pytest.mark.main
def test_everything_broken_at_once_is_told_at_once(lab: Lab) -> None:
    table = lab.messy(files=4)
    first, second, _, _ = manifests(lab, table)
    Path(normal(first)).unlink()
    cut(second)
    view = lab.lw.view(table)
    Path(normal(view.snapshots[0].manifest_list)).unlink()
    Path(normal(view.metadata_log[0])).unlink()
    kinds = {each.kind for each in looked_over(lab, table).findings}
    assert {
        Fault.MISSING_LIST,
        Fault.MISSING_MANIFEST,
        Fault.TRUNCATED_MANIFEST,
        Fault.MISSING_METADATA,
    } <= kinds


def test_a_list_cut_at_the_end_of_a_block(lab: Lab) -> None:
    """It reads as a shorter list without a word. Only the snapshot's own total tells."""
    table = lab.messy(files=3, days=1)
    view = lab.lw.view(table)
    newest, older = view.snapshots[-1].manifest_list, view.snapshots[0].manifest_list
    shutil.copyfile(normal(older), normal(newest))
    found = only(looked_over(lab, table), Fault.SHORT_LIST)
    assert found.severity is Severity.WARNING and "3 data files" in found.what


def test_a_gap_in_the_log_of_metadata_files(lab: Lab) -> None:
    table = lab.messy(files=3)
    gone = lab.lw.view(table).metadata_log[1]
    Path(normal(gone)).unlink()
    done = looked_over(lab, table)
    found = only(done, Fault.MISSING_METADATA)
    assert found.severity is Severity.WARNING and found.paths == (gone,) and done.exit_code == 3


def test_a_current_metadata_file_that_is_broken(lab: Lab) -> None:
    table = lab.messy(files=2)
    Path(normal(lab.lw.view(table).metadata_location)).write_text('{"format-version": 2, "table')
    found = only(looked_over(lab, table), Fault.UNREADABLE_TABLE)
    assert "metadata" in found.what


def test_metadata_whose_refs_lead_nowhere(lab: Lab) -> None:
    table = lab.messy(files=2)
    path = Path(normal(lab.lw.view(table).metadata_location))
    document = json.loads(path.read_text())
    document["refs"]["lost"] = {"snapshot-id": 12345, "type": "tag"}
    path.write_text(json.dumps(document))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    found = only(looked_over(lab, table), Fault.UNREADABLE_TABLE)
    assert "12345" in found.what


def test_a_version_hint_that_is_behind(lab: Lab) -> None:
    table = lab.messy(files=3)
    hint = metadata_folder(lab, table) / "version-hint.text"
    hint.write_text("2")
    (hint.parent / ".version-hint.text.crc").unlink(missing_ok=True)
    done = looked_over(lab, table)
    assert [each.kind for each in done.findings] == [Fault.VERSION_HINT] and done.healthy


def test_statistics_that_are_gone_or_of_nothing(lab: Lab) -> None:
    table = lab.messy(files=2)
    lab.sql(f"call {lab.catalog}.system.compute_table_stats('{table}')")
    lab.sql(f"call {lab.catalog}.system.compute_partition_stats('{table}')")
    (_, first), (_, second) = lab.lw.view(table).statistics
    Path(normal(first)).unlink()
    found = only(looked_over(lab, table), Fault.MISSING_STATISTICS)
    assert found.paths == (first,)
    Path(normal(second)).unlink()
    assert only(looked_over(lab, table), Fault.MISSING_STATISTICS).count == 2
    stats = loaded(lab, table).statisticsFiles().get(0)
    generic = lab.spark._jvm.org.apache.iceberg.GenericStatisticsFile(
        4711, stats.path(), stats.fileSizeInBytes(), stats.fileFooterSizeInBytes(), stats.blobMetadata()
    )
    loaded(lab, table).updateStatistics().setStatistics(generic).commit()
    kinds = [each.kind for each in looked_over(lab, table).findings]
    assert kinds == [Fault.MISSING_STATISTICS, Fault.STALE_STATISTICS]


# ------------------------------------------------------------ history and holds


def test_rolled_back_and_staged_snapshots_are_noted(lab: Lab) -> None:
    table = lab.messy(files=3)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('{table}', {ids[0]})")
    lab.sql(f"alter table {table} set tblproperties ('write.wap.enabled'='true')")
    lab.spark.conf.set("spark.wap.id", "audit-1")
    try:
        lab.append(table, 1, start=5000)
    finally:
        lab.spark.conf.unset("spark.wap.id")
    done = looked_over(lab, table)
    (found,) = done.findings
    assert found.kind is Fault.OFF_HISTORY and found.count == 3 and done.healthy
    assert "1 of them staged" in found.what and f"the oldest is {ids[1]}" in found.what


def test_a_pin_whose_snapshot_someone_else_expired(lab: Lab) -> None:
    table = lab.messy(files=3)
    view = lab.lw.view(table)
    until = clock.now() + timedelta(hours=1)
    Pins(lab.lw.state).add(
        Pin("p1", table, view.uuid, view.snapshots[0].id, "bi", "report", clock.now(), until)
    )
    assert looked_over(lab, table).healthy
    loaded(lab, table).expireSnapshots().expireSnapshotId(view.snapshots[0].id).cleanExpiredFiles(
        False
    ).commit()
    found = only(looked_over(lab, table), Fault.BROKEN_PIN)
    assert found.severity is Severity.ERROR and "bi" in found.what


def test_delete_files_that_apply_to_nothing(lab: Lab) -> None:
    table = lab.messy(files=2, **V2)
    lab.sql(f"delete from {table} where id % 7 = 0")
    options = "map('rewrite-all', 'true')"
    lab.sql(f"call {lab.catalog}.system.rewrite_data_files(table => '{table}', options => {options})")
    dangling = lab.sql(f"select file_path from {table}.delete_files")
    done = looked_over(lab, table)
    found = {each.kind: each for each in done.findings}
    assert dangling and found[Fault.DANGLING_DELETES].count == len(dangling)
    assert done.healthy and "compact-deletes" in found[Fault.DANGLING_DELETES].repair


# ------------------------------------------------------------ what lies around


def test_orphans_are_estimated_by_age(lab: Lab) -> None:
    table = lab.messy(files=2)
    data = metadata_folder(lab, table).parent / "data"
    for name in ("old-1.parquet", "old-2.parquet", "young.parquet", "README.txt"):
        (data / name).write_bytes(b"x" * 1000)
    long_ago = (clock.now() - timedelta(days=30)).timestamp()
    for name in ("old-1.parquet", "old-2.parquet", "README.txt"):
        os.utime(data / name, (long_ago, long_ago))
    done = looked_over(lab, table)
    (found,) = done.findings
    assert found.kind is Fault.ORPHANS and found.count == 3 and done.healthy
    assert {Path(normal(path)).name for path in found.paths} == {"old-1.parquet", "old-2.parquet"}
    assert "2 old enough" in found.what and "1 younger" in found.what


def test_another_table_s_metadata_in_the_location(lab: Lab) -> None:
    table = lab.messy(files=2)
    path = Path(normal(lab.lw.view(table).metadata_location))
    document = {**json.loads(path.read_text()), "table-uuid": "11111111-2222-3333-4444-555555555555"}
    (path.parent / "00003-foreign.metadata.json").write_text(json.dumps(document))
    found = only(looked_over(lab, table), Fault.FOREIGN_METADATA)
    assert found.severity is Severity.ERROR and "11111111" in found.what
    assert found.path is not None and found.path.endswith("00003-foreign.metadata.json")


# ------------------------------------------------------------ deep


def test_footers_are_opened_only_when_asked(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    garbage, shorter = (Path(normal(path)) for path in lab.data_files(table))
    garbage.write_bytes(b"x" * garbage.stat().st_size)
    rows = pq.read_table(shorter).slice(0, 3)
    size = shorter.stat().st_size
    pq.write_table(rows, shorter, store_schema=False)
    content = shorter.read_bytes()
    assert len(content) < size
    # As long as before, with a footer that says something else: only who opens it can tell.
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    shorter.write_bytes(content[:footer] + bytes(size - len(content)) + content[footer:])
    for path in (garbage, shorter):
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    assert looked_over(lab, table).healthy
    done = looked_over(lab, table, deep=True)
    assert [each.kind for each in done.findings] == [Fault.UNREADABLE_FILE, Fault.WRONG_ROWS]
    assert [normal(each.path or "") for each in done.findings] == [str(garbage), str(shorter)]
    assert "3, not 200" in done.findings[1].what and done.looked.footers == 2


def test_a_damaged_page_is_found_though_its_footer_is_whole(lab: Lab) -> None:
    """Four bytes of one page: the footer still tells the right rows."""
    table = lab.messy(files=2, days=1)
    path = Path(normal(lab.data_files(table)[0]))
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    _, body = thrift.read(data, chunk.dictionary_page_offset or chunk.data_page_offset)
    data[body : body + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(bytes(data))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    assert looked_over(lab, table).healthy
    found = only(looked_over(lab, table, deep=True), Fault.UNREADABLE_FILE)
    assert found.severity is Severity.ERROR and normal(found.path or "") == str(path)


# ------------------------------------------------------------ the table moves, the command ends


def test_a_table_that_lets_go_of_a_missing_file_meanwhile_is_looked_at_again(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    path = lab.data_files(table)[0]
    real, done = Iceberg.survey, []

    def late(self: Iceberg, view: Any) -> Any:
        found = real(self, view)
        if not done:
            done.append(True)
            lab.sql(f"delete from {table} where true")
            lab.sql(
                f"call {lab.catalog}.system.expire_snapshots(table => '{table}', "
                f"older_than => timestamp '2100-01-01 00:00:00', retain_last => 1)"
            )
            assert not Path(normal(path)).exists()
        return found

    with patch.object(Iceberg, "survey", late):
        checkup = lab.lw.fsck(table)
    assert checkup.healthy, checkup.findings


@pytest.mark.main
def test_the_command_says_it_and_exits_with_3(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "lakewarden.toml"
    config.write_text(
        f'[state]\nurl = "sqlite:///state.db"\n[catalogs.{lab.catalog}]\ntype = "hadoop"\nwarehouse = "{lab.warehouse}"\n'
    )
    table = lab.messy(files=2)
    words = ["--config", str(config), "fsck", table]
    assert main(words, spark=lab.spark) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    path = lab.data_files(table)[0]
    Path(normal(path)).unlink()
    assert main([*words, "--deep"], spark=lab.spark) == 3
    said = capsys.readouterr()
    assert "missing-file" in said.out and path.rsplit("/", 1)[1] in "".join(said.out.split())
    assert main([*words, "--json"], spark=lab.spark) == 3
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert said.err == "" and document["errors"] == 1 and document["findings"][0]["kind"] == "missing-file"
