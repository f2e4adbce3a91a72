"""Damaged delete files and footers, and odd properties of a table: every job stops at them by name and makes nothing of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakewarden.errors import Refused
from lakewarden.jobs.fsck.findings import Fault
from lakewarden.jobs.verify.result import VerifyResult
from lakewarden.model.location import local_path, normal
from lakewarden.model.run import RunState
from lakewarden.rewrite.pages import thrift
from tests.rewrite.test_pages import refoot
from tests.support.lab import Lab

MERGE_ON_READ = {"format-version": "2", "write.delete.mode": "merge-on-read"}


def on_disk(path: str) -> Path:
    """The file, without the checksum that Hadoop keeps beside it."""
    found = Path(local_path(path) or "")
    found.with_name(f".{found.name}.crc").unlink(missing_ok=True)
    return found


def other_positions(path: Path) -> None:
    """One bit of the page of positions, so that it still decodes, to other rows of the file."""
    whole, before = path.read_bytes(), pq.read_table(path)["pos"].to_pylist()
    group = pq.read_metadata(path).row_group(0)
    (chunk,) = (each for n in range(group.num_columns) if (each := group.column(n)).path_in_schema == "pos")
    header, body = thrift.read(whole, chunk.dictionary_page_offset or chunk.data_page_offset)
    for spot in range(8 * body, 8 * (body + thrift.value_of(header, 3))):
        data = bytearray(whole)
        data[spot // 8] ^= 1 << spot % 8
        path.write_bytes(bytes(data))
        try:
            found = pq.read_table(path)["pos"].to_pylist()
        except OSError:
            continue
        if found != before and all(0 <= each < 1_000 for each in found):
            return
    raise AssertionError("no bit changes a position unnoticed")


@pytest.mark.main
def test_a_delete_file_with_a_wrong_checksum_stops_every_job_by_name(lab: Lab) -> None:
    """It used to be applied: a deleted row was back, a live one was gone, and the run said `done`."""
    table = lab.create(partition="", **MERGE_ON_READ)
    for number in range(3):
        lab.sql(f"insert into {table} select id, 'x', current_date() from range({number * 1_000}, {number * 1_000 + 1_000}, 1, 1)")  # fmt: skip
    lab.sql(f"delete from {table} where id % 100 = 3 and id < 1000")
    (row,) = lab.sql(f"select file_path from {table}.delete_files")
    path = on_disk(row.file_path)
    whole = path.read_bytes()
    other_positions(path)
    damaged = path.read_bytes()
    before = set(lab.data_files(table))
    run = lab.lw.run("compact-deletes", table)
    assert run.state is RunState.PARTIAL, run.reason
    assert str(path) in run.reason and "CRC" in run.reason and "fsck" in run.reason
    assert set(lab.data_files(table)) == before
    assert len(lab.sql(f"select * from {table}.delete_files")) == 1

    assert [each.kind for each in lab.lw.fsck(table).findings if each.kind is Fault.UNREADABLE_FILE] == []
    (finding,) = (
        each for each in lab.lw.fsck(table, deep=True).findings if each.kind is Fault.UNREADABLE_FILE
    )
    assert normal(finding.path or "") == str(path) and "1 delete files" in finding.what

    # With the right bytes back, the run does its work; a verification that meets the damage says that it cannot tell.
    path.write_bytes(whole)
    assert lab.lw.run("compact-deletes", table).state is RunState.DONE
    snapshot = lab.snapshots(table)[-1].snapshot_id
    assert lab.lw.verify(table, snapshot).state is VerifyResult.PROVEN
    path.write_bytes(damaged)
    told = lab.lw.verify(table, snapshot)
    assert told.state is VerifyResult.CANNOT_TELL and told.file and normal(told.file) == str(path)


def test_damaged_delete_files_are_not_merged(lab: Lab) -> None:
    """Iceberg compares no checksums: its merge made a healthy delete file of other positions out of a damaged one."""
    table = lab.create(partition="", **MERGE_ON_READ, **{"write.delete.granularity": "partition"})
    lab.sql(f"insert into {table} select id, 'x', current_date() from range(0, 1000, 1, 1)")
    for number in (3, 4):
        lab.sql(f"delete from {table} where id % 100 = {number}")
    named = {row.file_path for row in lab.sql(f"select file_path from {table}.delete_files")}
    path = on_disk(min(named))
    whole = path.read_bytes()
    other_positions(path)
    policy = {
        "delete_compaction_min_deletes": 1000,
        "delete_compaction_ratio": 1,
        "rewrite_min_input_files": 2,
    }
    run = lab.lw.run("compact-deletes", table, policy=policy)
    assert run.state is RunState.PARTIAL, run.reason
    assert str(path) in run.reason and "CRC" in run.reason and "fsck" in run.reason
    assert {row.file_path for row in lab.sql(f"select file_path from {table}.delete_files")} == named
    path.write_bytes(whole)
    assert lab.lw.run("compact-deletes", table, policy=policy).state is RunState.DONE
    assert len(lab.sql(f"select * from {table}.delete_files")) == 1


def test_a_damaged_file_is_not_rewritten_by_icebergs_own_writer(lab: Lab) -> None:
    """It compares no checksums: what it decoded became the table's rows, and the run said `done`."""
    table = lab.create("id bigint, pos bigint", partition="")
    for _ in range(3):
        lab.sql(f"insert into {table} select id, id from range(0, 900, 1, 1)")
    before = set(lab.data_files(table))
    path = on_disk(min(before))
    whole = path.read_bytes()
    other_positions(path)
    policy = {"rewrite_engine": "iceberg", "rewrite_min_input_files": 2}
    run = lab.lw.run("compact", table, policy=policy)
    assert run.state is RunState.PARTIAL, run.reason
    assert str(path) in run.reason and "CRC" in run.reason and "fsck" in run.reason
    assert set(lab.data_files(table)) == before
    path.write_bytes(whole)
    assert lab.lw.run("compact", table, policy=policy).state is RunState.DONE


def ends_arrow(path: Path) -> None:
    """Statistics of sizes that do not fit the column: Arrow ends the process when it is asked for the column."""

    def change(footer: thrift.Struct) -> None:
        (group,) = thrift.value_of(footer, 4)
        column = thrift.value_of(thrift.value_of(group, 1)[0], 3)
        column[16] = thrift.structure({3: thrift.listed(thrift.I64, [1] * 9)})
        del footer[5]  # what the writer says of itself: it makes room

    size = path.stat().st_size
    refoot(path, change)
    # As long as before: a file of another size is told by that alone.
    data = path.read_bytes()
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:at] + bytes(size - len(data)) + data[at:])


def test_a_footer_that_ends_the_worker_fails_its_own_group_only(lab: Lab) -> None:
    table = lab.messy(files=3, rows=40, days=2)
    days = sorted({row.d for row in lab.sql(f"select distinct d from {table}")})
    bad = next(each for each in lab.data_files(table) if f"d={days[0]}" in each)
    ends_arrow(on_disk(bad))
    run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.counters["groups_done"] == 1 and run.counters["groups_skipped"] == 1
    assert f"d={days[0]}" in run.reason and "worker died" in run.reason and "fsck" in run.reason
    deep = [each for each in lab.lw.fsck(table, deep=True).findings if each.kind is Fault.UNREADABLE_FILE]
    assert [normal(each.path or "") for each in deep] == [normal(bad)]


def test_properties_that_are_no_numbers(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    table = lab.messy(files=3, rows=40, days=1)
    sizes = {"write.parquet.row-group-size-bytes": "abc", "write.parquet.page-row-limit": "0"}
    for key, value in {**sizes, "history.expire.min-snapshots-to-keep": "x"}.items():
        lab.sql(f"alter table {table} set tblproperties ('{key}'='{value}')")
    run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.DONE, run.reason
    assert all(key in caplog.text for key in sizes)
    with pytest.raises(
        Refused, match=r"its property history\.expire\.min-snapshots-to-keep must be .*; got 'x'"
    ):
        lab.lw.run("expire", table)
