"""Deletes that arrive while their files are being rewritten, in the ways that are easy to get wrong."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from bench.equality import add_equality_deletes
from lakewarden.jobs.compact.execute import ConcurrentDeletes
from lakewarden.model.run import Run, RunState
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import Sending
from lakewarden.tables.iceberg.rewrite import RewriteCommit
from tests.support.lab import Lab

MANUAL = {"type": "manual", "operator": "ana"}
ON_READ = {"write.delete.mode": "merge-on-read"}


def run(lab: Lab, table: str, job: str = "compact", **policy: object) -> Run:
    return lab.lw.run(job, table, policy=policy, trigger=MANUAL)


def delete_keys(lab: Lab, table: str, ids: list[int], partition: str = "") -> None:
    add_equality_deletes(lab.spark, table, [pa.table({"id": pa.array(ids, pa.int64())})], partition)


def ids(lab: Lab, table: str) -> list[int]:
    return sorted(row.id for row in lab.sql(f"select id from {table}"))


def flat(lab: Lab, files: int = 8, rows: int = 50, **properties: str) -> str:
    table = lab.create("id bigint, s string", partition="", **properties)
    for n in range(files):
        lab.sql(f"insert into {table} select id, 'x' from range({n * rows}, {(n + 1) * rows}, 1, 1)")
    return table


@pytest.mark.parametrize("version", ["2", "3"])
def test_an_equality_delete_that_other_files_need_too_stays_for_them(lab: Lab, version: str) -> None:
    """It is replaced by a copy with its key columns: a table that names one without cannot be read at all."""
    table = flat(lab, files=8, **{"format-version": version})
    half = "id < 200"
    with lab.before_commit(lambda: delete_keys(lab, table, [3, 250])):
        done = run(lab, table, rewrite_where=half, rewrite_min_input_files=2)
    assert done.state is RunState.DONE, done.reason
    assert done.counters["deletes_carried_over"] == 1
    assert ids(lab, table) == [n for n in range(400) if n not in (3, 250)]
    assert run(lab, table, "compact-deletes").state is RunState.DONE
    assert ids(lab, table) == [n for n in range(400) if n not in (3, 250)]
    assert lab.sql(f"select * from {table}.delete_files") == []
    assert lab.strays(table) == set()


def test_rows_that_a_rollback_brought_back_are_not_deleted_again(lab: Lab) -> None:
    table = flat(lab, files=1, rows=100, **ON_READ)
    before = lab.snapshots(table)[-1].snapshot_id
    lab.sql(f"delete from {table} where id < 50")

    def roll_back() -> None:
        catalog, _, name = table.partition(".")
        lab.sql(f"call {catalog}.system.rollback_to_snapshot('{name}', {before})")
        lab.sql(f"delete from {table} where id = 99")

    with lab.before_commit(roll_back):
        run(lab, table, "compact-deletes")
    assert ids(lab, table) == list(range(99))
    assert lab.strays(table) == set()


def test_deletes_of_other_keys_do_not_stop_it(lab: Lab) -> None:
    """The library refuses for any equality delete in the partition, whichever keys it has."""
    table = flat(lab)
    with lab.before_commit(lambda: delete_keys(lab, table, [10_000])):
        done = run(lab, table)
    assert done.state is RunState.DONE, done.reason
    assert len(lab.data_files(table)) == 1 + len(lab.sql(f"select * from {table}.delete_files"))
    assert ids(lab, table) == list(range(400))


def test_a_delete_for_a_file_that_left_no_replacement(lab: Lab) -> None:
    table = flat(lab, files=2, **ON_READ)
    lab.sql(f"delete from {table} where id < 50 and s <> ''")
    delete_keys(lab, table, list(range(50, 100)))
    with lab.before_commit(lambda: delete_keys(lab, table, [1, 60])):
        done = run(lab, table, "compact-deletes")
    assert done.state is RunState.DONE, done.reason
    assert ids(lab, table) == []
    assert lab.strays(table) == set()


def test_an_attempt_that_was_told_it_failed_keeps_its_delete_files(lab: Lab) -> None:
    """A catalog may commit and answer with a conflict: then the table names what that attempt wrote."""
    table = flat(lab)
    half = "id < 200"
    real, lied = RewriteCommit._attempt, []

    def attempt(self: RewriteCommit, sending: Sending) -> bool:
        changed = real(self, sending)
        if self._added and not lied:
            lied.append(True)
            raise _thrown(self, "CommitFailedException", "told otherwise")
        return changed

    with (
        lab.before_commit(lambda: delete_keys(lab, table, [3, 250])),
        patch.object(RewriteCommit, "_attempt", attempt),
    ):
        done = run(lab, table, rewrite_where=half, rewrite_min_input_files=2)
    assert lied
    assert done.state is RunState.DONE, done.reason
    assert ids(lab, table) == [n for n in range(400) if n not in (3, 250)]


def _thrown(commit: RewriteCommit, name: str, message: str) -> Exception:
    """An exception of the library, as py4j brings it."""
    spark = commit._catalogs.spark
    none = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Object, 0)
    return Py4JJavaError("commit", getattr(spark._jvm.org.apache.iceberg.exceptions, name)(message, none))


def test_a_failure_while_deletes_are_carried_over_is_made_good(lab: Lab) -> None:
    table = flat(lab, **ON_READ)

    def fail(self: ConcurrentDeletes, arrived: Any) -> Any:
        raise RuntimeError("no executor left")

    with (
        lab.before_commit(lambda: lab.sql(f"delete from {table} where id = 7")),
        patch.object(ConcurrentDeletes, "positions", fail),
    ):
        done = run(lab, table)
    assert done.state is RunState.DONE, "written anew, with the delete applied"
    assert ids(lab, table) == [n for n in range(400) if n != 7]
    assert lab.strays(table) == set()


def test_a_catalog_that_forbids_the_commit_is_asked_once(lab: Lab) -> None:
    table = flat(lab)
    tried = []

    def forbidden(self: RewriteCommit, sending: Sending) -> bool:
        tried.append(True)
        raise _thrown(self, "ForbiddenException", "read only")

    with patch.object(RewriteCommit, "_attempt", forbidden):
        done = run(lab, table)
    assert (done.state, len(tried)) == (RunState.FAILED, 1)
    assert "read only" in done.reason
    assert lab.strays(table) == set()


def test_small_files_left_by_applying_deletes_are_packed_later(lab: Lab) -> None:
    table = lab.create("id bigint, s string", partition="", **ON_READ)
    for n in range(4):
        lab.sql(f"insert into {table} select id, 'x' from range({n * 50}, {n * 50 + 50}, 1, 1)")
        lab.sql(f"delete from {table} where id = {n * 50}")
        assert run(lab, table, "compact-deletes").state is RunState.DONE
    assert len(lab.data_files(table)) == 4
    assert run(lab, table, rewrite_min_input_files=2).state is RunState.DONE
    assert len(lab.data_files(table)) == 1
    assert run(lab, table, rewrite_min_input_files=2).state is RunState.NOTHING_TO_DO


def test_dropped_delete_files_are_counted_from_the_commits(lab: Lab) -> None:
    table = flat(lab, files=3, **ON_READ)
    lab.sql(f"delete from {table} where id % 10 = 0")
    count = len(lab.sql(f"select * from {table}.delete_files"))
    assert run(lab, table, "compact-deletes").counters["delete_files_dropped"] == count > 0


@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("spelling", ["file://{}", "file:{}//elsewhere"])
def test_a_carried_delete_stays_however_the_location_is_spelled(
    lab: Lab, version: str, spelling: str
) -> None:
    """Iceberg shortens `file:///` and doubled slashes in the names it returns: they are compared as places."""
    table = lab.create("id bigint, s string", partition="", **{"format-version": version, **ON_READ})
    folder = spelling.format(lab.warehouse / "spelled")
    lab.sql(f"alter table {table} set tblproperties ('write.data.path'='{folder}')")
    for n in range(6):
        lab.sql(f"insert into {table} select id, 'x' from range({n * 50}, {n * 50 + 50}, 1, 1)")
    with lab.before_commit(lambda: lab.sql(f"delete from {table} where id = 7")):
        done = run(lab, table, rewrite_min_input_files=2)
    assert done.state is RunState.DONE, done.reason
    assert done.counters["deletes_carried_over"] == 1
    assert ids(lab, table) == [n for n in range(300) if n != 7]


class _Arriving:
    """The helper for deletes, with something that others do right after the head was seen to be free of equality deletes."""

    def __init__(self, deletes: Any, do: Any) -> None:
        self._deletes, self._do, self.done = deletes, do, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._deletes, name)

    def headWithoutEqualityDeletes(self, table: Any, branch: str) -> int:
        head: int = self._deletes.headWithoutEqualityDeletes(table, branch)
        if not self.done:
            self.done += 1
            self._do()
        return head


def test_outputs_keep_the_sequence_number_of_their_sources(lab: Lab) -> None:
    """After an upgrade to format version 3 it is what tells when a row was last updated."""
    table = flat(lab, **{"format-version": "2"})
    assert run(lab, table).state is RunState.DONE
    lab.sql(f"alter table {table} set tblproperties ('format-version'='3')")
    lab.sql(f"insert into {table} values (1000, 'new')")
    found = lab.sql(f"select distinct _last_updated_sequence_number as n from {table} where id < 1000")
    assert [row.n for row in found] == [8], "the newest source's, not the compaction's"


@pytest.mark.parametrize("engine", ["arrow", "iceberg"])
def test_what_keeps_its_number_is_known_as_compacted(lab: Lab, engine: str) -> None:
    table = flat(lab, **{"format-version": "2"})
    assert run(lab, table, rewrite_engine=engine).state is RunState.DONE
    lab.sql(f"insert into {table} values (1000, 'new')")
    assert run(lab, table, rewrite_engine=engine, rewrite_min_input_files=2).state is RunState.NOTHING_TO_DO


@pytest.mark.main
def test_an_equality_delete_that_comes_right_before_the_commit_still_counts(lab: Lab) -> None:
    """Followed by an append, it would be dropped where outputs keep an old number: iceberg#10312 brings the row back."""
    table = flat(lab, **{"format-version": "2"})

    def others() -> None:
        delete_keys(lab, table, [7])
        lab.sql(f"insert into {table} values (1000, 'new')")

    real, made = IcebergCatalogs.__init__, []

    def init(self: IcebergCatalogs, spark: Any) -> None:
        real(self, spark)
        self.deletes = _Arriving(self.deletes, others)
        made.append(self.deletes)

    with patch.object(IcebergCatalogs, "__init__", init):
        lab.lw.close()
        done = run(lab, table)
    lab.lw.close()
    assert sum(each.done for each in made) == 1
    assert done.state is RunState.DONE, done.reason
    assert ids(lab, table) == [*(n for n in range(400) if n != 7), 1000]
    assert run(lab, table, "compact-deletes", delete_compaction_min_deletes=1).state is RunState.DONE
    assert ids(lab, table) == [*(n for n in range(400) if n != 7), 1000]
