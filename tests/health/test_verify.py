"""verify on real tables: every kind of rewrite is proven again, every tampered file is found, and what is gone is said to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden import Lakewarden
from lakewarden.cli import main
from lakewarden.errors import UsageError
from lakewarden.jobs.verify.result import VerifyResult
from lakewarden.model.run import RunState
from tests.support.lab import Lab

MERGE_ON_READ = {"write.delete.mode": "merge-on-read"}


def compacted(lab: Lab, table: str, job: str = "compact", **policy: object) -> list[int]:
    run = lab.lw.run(job, table, policy={"rewrite_min_input_files": 2, **policy})
    assert run.state is RunState.DONE, run.reason
    return list(run.snapshot_ids)


def newest(lab: Lab, table: str) -> Any:
    return lab.snapshots(table)[-1]


def rewritten_with_a_digest(lab: Lab, **properties: str) -> tuple[str, int, Path]:
    """A table of one partition, sorted into one file, so that the commit stored a digest: table, snapshot, output."""
    table = lab.messy(files=3, days=1, **properties)
    (snapshot,) = compacted(lab, table, rewrite_sort_columns="s,id")
    assert newest(lab, table).summary["lineage.digest"]
    (path,) = lab.data_files(table)
    return table, snapshot, Path(path)


# ------------------------------------------------------------ proven


@pytest.mark.parametrize(
    ("version", "policy"),
    [
        ("1", {}),
        ("3", {}),
        ("2", {"rewrite_sort_columns": "s desc nulls last, id"}),
        ("3", {"rewrite_zorder_columns": "id,s"}),
        ("2", {"rewrite_engine": "iceberg"}),
    ],
    ids=["bin-pack v1", "bin-pack v3", "sort", "z-order", "iceberg's writer"],
)
def test_every_kind_of_compaction_is_proven(lab: Lab, version: str, policy: dict[str, str]) -> None:
    table = lab.messy(files=3, days=2, **{"format-version": version})
    disk = lab.on_disk()
    snapshots = compacted(lab, table, **policy)
    assert len(snapshots) == 2
    made = lab.on_disk()
    for id_ in snapshots:
        done = lab.lw.verify(table, id_)
        assert done.state is VerifyResult.PROVEN, done.reason
        assert (done.removed.files, done.added.files) == (3, 1)
        assert (done.removed.rows, done.removed.deleted) == (300, 0)
        assert done.removed.digest == done.added.digest
        stored = done.snapshot.summary.get("lineage.digest")
        assert done.stored_agrees is (True if stored else None)
    assert lab.on_disk() == made != disk, "nothing was written to look again"


def test_copied_pages_are_read_and_proven(lab: Lab) -> None:
    """The commit compared checksums, and a digest of the columns that were decoded; looking again decodes the rows."""
    table = lab.messy(files=2, rows=200_000, days=1)
    (snapshot,) = compacted(lab, table)
    summary = newest(lab, table).summary
    assert summary["lineage.proof"] == "pages+values"
    assert summary["lineage.digest"].startswith("values-v1:400000:")
    done = lab.lw.verify(table, snapshot)
    assert (done.state, done.stored_agrees, done.added.rows) == (VerifyResult.PROVEN, None, 400_000), (
        done.reason
    )


@pytest.mark.parametrize(
    ("rows", "policy", "proof"),
    [
        (100, {}, "rows"),
        (100, {"rewrite_digest": "off"}, "count"),
        (100, {"rewrite_engine": "iceberg"}, "count"),
        (100, {"rewrite_engine": "iceberg", "rewrite_digest": "rows"}, "count"),
        (200_000, {"rewrite_digest": "off"}, "count+pages"),
        (200_000, {"rewrite_digest": "rows"}, "rows"),
    ],
)
def test_a_commit_claims_no_more_than_was_proven(
    lab: Lab, rows: int, policy: dict[str, Any], proof: str
) -> None:
    table = lab.messy(files=2, rows=rows, days=1)
    compacted(lab, table, **policy)
    summary = newest(lab, table).summary
    assert summary["lineage.proof"] == proof
    assert ("lineage.digest" in summary) is (proof == "rows")


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_compaction_of_deletes_is_proven(lab: Lab, version: str) -> None:
    table = lab.messy(files=3, days=1, **MERGE_ON_READ, **{"format-version": version})
    lab.sql(f"delete from {table} where id % 3 = 0")
    (snapshot,) = compacted(lab, table, "compact-deletes")
    done = lab.lw.verify(table, snapshot)
    assert done.state is VerifyResult.PROVEN, done.reason
    assert (done.removed.rows, done.removed.deleted) == (400, 200)
    assert (done.added.rows, done.added.deleted) == (400, 0)


def test_files_of_which_no_row_was_left(lab: Lab) -> None:
    table = lab.create(partition="", **MERGE_ON_READ)
    lab.append(table, 2)
    for first in (0, 100, 200, 300):  # in parts: a delete of everything would drop the files instead
        lab.sql(f"delete from {table} where id between {first} and {first + 99}")
    snapshots = compacted(lab, table, "compact-deletes")
    done = lab.lw.verify(table, snapshots[0])
    assert done.state is VerifyResult.PROVEN, done.reason
    assert (done.added.files, done.added.rows, done.removed.deleted) == (0, 0, 400)


def equality_delete(lab: Lab, table: str, ids: list[int]) -> None:
    """As Flink writes one: the spec's only way to delete rows that nobody has looked up."""
    path = lab.warehouse / f"equality-{len(lab.snapshots(table))}.parquet"
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.Table.from_arrays([pa.array(ids)], schema=pa.schema([field])), path)
    jvm, gateway = lab.spark._jvm, lab.spark.sparkContext._gateway
    iceberg = jvm.org.apache.iceberg
    loaded = iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    columns = gateway.new_array(gateway.jvm.int, 1)
    columns[0] = 1
    file = (
        iceberg.FileMetadata.deleteFileBuilder(loaded.spec())
        .ofEqualityDeletes(columns)
        .withPath(str(path))
        .withFormat(iceberg.FileFormat.PARQUET)
        .withFileSizeInBytes(path.stat().st_size)
        .withRecordCount(len(ids))
        .build()
    )
    loaded.newRowDelta().addDeletes(file).commit()


def test_equality_deletes_are_applied_by_their_sequence_numbers(lab: Lab) -> None:
    table = lab.create(partition="")
    lab.append(table, 4)
    equality_delete(lab, table, [1, 2, 3, 500])
    lab.sql(f"insert into {table} values (2, 'again', date'2024-03-01')")
    (snapshot,) = compacted(lab, table, "compact-deletes")
    done = lab.lw.verify(table, snapshot)
    assert done.state is VerifyResult.PROVEN, done.reason
    assert done.removed.deleted == 4


@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_that_were_carried_over_are_left_out_on_both_sides(lab: Lab, version: str) -> None:
    table = lab.messy(files=3, days=1, **MERGE_ON_READ, **{"format-version": version})
    with lab.before_commit(lambda: lab.sql(f"delete from {table} where id % 100 = 7")):
        (snapshot,) = compacted(lab, table)
    done = lab.lw.verify(table, snapshot)
    assert done.state is VerifyResult.PROVEN, done.reason
    assert (done.removed.rows, done.removed.deleted) == (594, 6)
    assert (done.added.rows, done.added.deleted) == (594, 6)
    assert done.stored_agrees is True, (
        "the commit stored the digest of all rows it wrote, deleted meanwhile or not"
    )


def test_deletes_that_came_later_do_not_count(lab: Lab) -> None:
    table = lab.messy(files=3, days=1, **MERGE_ON_READ)
    (snapshot,) = compacted(lab, table)
    lab.sql(f"delete from {table} where id < 100")
    done = lab.lw.verify(table, snapshot)
    assert (done.state, done.added.rows, done.added.deleted) == (VerifyResult.PROVEN, 600, 0), done.reason


def test_icebergs_own_procedure_is_proven_too(lab: Lab) -> None:
    table = lab.messy(files=3, days=2, **MERGE_ON_READ)
    lab.sql(f"delete from {table} where id % 5 = 0")
    lab.sql(
        f"call {lab.catalog}.system.rewrite_data_files(table => '{table}', options => map('min-input-files', '2'))"
    )
    snapshot = newest(lab, table)
    assert snapshot.operation == "replace" and "writer.id" not in snapshot.summary
    done = lab.lw.verify(table, snapshot.snapshot_id)
    assert done.state is VerifyResult.PROVEN, done.reason
    assert (done.removed.files, done.added.files, done.removed.deleted) == (6, 2, 120)
    assert (done.stored_digest, done.stored_agrees) == (None, None)


def test_a_commit_on_a_branch(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    lab.sql(f"alter table {table} create branch dev")
    lab.append(table, 1, days=1, start=9000)
    (snapshot,) = compacted(lab, table, rewrite_branch="dev")
    assert lab.lw.verify(table, snapshot).state is VerifyResult.PROVEN


def test_a_later_schema_does_not_matter(lab: Lab) -> None:
    table, snapshot, _ = rewritten_with_a_digest(lab)
    lab.sql(f"alter table {table} drop column s")
    lab.sql(f"alter table {table} add column s int")
    done = lab.lw.verify(table, snapshot)
    assert (done.state, done.stored_agrees) == (VerifyResult.PROVEN, True), done.reason


def test_a_column_dropped_while_files_were_written_is_no_difference(lab: Lab) -> None:
    """The stored digest is of rows as they were written; the snapshot's schema is that of the commit."""
    table = lab.messy(files=3, days=1)
    with lab.before_commit(lambda: lab.sql(f"alter table {table} drop column s")):
        (snapshot,) = compacted(lab, table)
    done = lab.lw.verify(table, snapshot)
    assert done.stored_digest
    assert (done.state, done.stored_agrees) == (VerifyResult.PROVEN, True), done.reason


def test_budgets_hold_and_progress_is_told(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=3, days=1)
    (snapshot,) = compacted(lab, table)
    told: list[tuple[str, int]] = []

    class Told:
        def begin(self, what: str, total_bytes: int) -> None:
            told.append((what, total_bytes))

        def advance(self, done_bytes: int) -> None:
            told.append(("advance", done_bytes))

        def note(self, text: str) -> None: ...

        def end(self) -> None:
            told.append(("end", 0))

    config = {"state": {"url": f"sqlite:///{tmp_path}/other.db"}, "budgets": {"max_tasks": 1}}
    with Lakewarden(config, spark=lab.spark, environ={}) as limited:
        assert limited.verify(table, snapshot, Told()).state is VerifyResult.PROVEN
    what, total = told[0]
    assert what == f"verify {table} snapshot {snapshot}"
    assert total == sum(each for name, each in told if name == "advance")
    assert told[-1] == ("end", 0)


# ------------------------------------------------------------ tampered with


def drop_one(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def change_one(rows: pa.Table) -> pa.Table:
    names = rows["s"].to_pylist()
    names[17] = "name-x"
    return rows.set_column(1, rows.schema.field(1), pa.array(names))


def duplicate_one_and_drop_another(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)])


def swap_two_values(rows: pa.Table) -> pa.Table:
    names = rows["s"].to_pylist()
    other = next(place for place, name in enumerate(names) if name != names[0])
    names[0], names[other] = names[other], names[0]
    return rows.set_column(1, rows.schema.field(1), pa.array(names))


TAMPERING = [drop_one, change_one, duplicate_one_and_drop_another, swap_two_values]


def tamper(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """The same path with other rows; the table is told nothing."""
    rows = pq.ParquetFile(path).read()
    changed = change(rows)
    assert not changed.equals(rows)
    pq.write_table(changed.cast(rows.schema), path, store_schema=False)


@pytest.mark.parametrize("change", TAMPERING)
@pytest.mark.parametrize("digest", [True, False], ids=["digest stored", "none stored"])
def test_an_output_that_was_tampered_with_is_found(
    lab: Lab, change: Callable[[pa.Table], pa.Table], digest: bool
) -> None:
    table = lab.messy(files=3, days=1)
    (snapshot,) = compacted(lab, table, rewrite_digest="rows" if digest else "off")
    (path,) = lab.data_files(table)
    tamper(Path(path), change)
    done = lab.lw.verify(table, snapshot)
    assert done.state is VerifyResult.DIFFERS
    assert done.removed.digest != done.added.digest
    assert done.added.rows == (599 if change is drop_one else 600)
    assert str(done.added.digest) in done.reason and str(done.removed.digest) in done.reason
    assert (path in done.reason) == (change is drop_one), "a count that is not the table's names the file"
    assert done.stored_agrees is (False if digest else None)
    assert ("do not hold the rows whose digest the commit stored" in done.reason) == digest


def test_an_input_that_was_tampered_with_is_told_apart_by_the_stored_digest(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    source = lab.data_files(table)[1]
    (snapshot,) = compacted(lab, table)
    tamper(Path(source), change_one)
    done = lab.lw.verify(table, snapshot)
    assert (done.state, done.stored_agrees) == (VerifyResult.DIFFERS, True)
    assert "as many (600), but not the same" in done.reason
    assert "the files added still hold the rows whose digest the commit stored" in done.reason


def test_both_sides_equal_but_not_what_was_stored(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    wrong = "rows-v1:600:" + "ab" * 16
    with patch("lakewarden.jobs.compact.execute.digest_of", lambda *_: wrong):
        (snapshot,) = compacted(lab, table)
    done = lab.lw.verify(table, snapshot)
    assert done.removed.digest == done.added.digest
    assert (done.state, done.stored_agrees) == (VerifyResult.DIFFERS, False)
    assert wrong in done.reason and str(done.added.digest) in done.reason


# ------------------------------------------------------------ cannot tell


@pytest.mark.main
def test_a_missing_input_is_named_and_the_outputs_are_still_checked(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    victim = lab.data_files(table)[2]
    (snapshot,) = compacted(lab, table)
    (output,) = lab.data_files(table)
    Path(victim).unlink()
    done = lab.lw.verify(table, snapshot)
    assert (done.state, done.file) == (VerifyResult.CANNOT_TELL, victim)
    assert "no such file" in done.reason
    assert (done.removed.rows, done.added.rows, done.stored_agrees) == (None, 600, True)
    tamper(Path(output), change_one)
    assert lab.lw.verify(table, snapshot).state is VerifyResult.DIFFERS, "the stored digest alone tells"


def test_an_expired_parent(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    (snapshot,) = compacted(lab, table)
    parent = lab.snapshots(table)[-2].snapshot_id
    lab.sql(
        f"call {lab.catalog}.system.expire_snapshots(table => '{table}', older_than => timestamp'2100-01-01', retain_last => 1)"
    )
    done = lab.lw.verify(table, snapshot)
    assert done.state is VerifyResult.CANNOT_TELL
    assert f"parent snapshot {parent} has expired" in done.reason
    assert (done.removed.files, done.removed.rows) == (3, None)
    assert done.stored_agrees is True


def test_a_parent_whose_metadata_is_gone(lab: Lab) -> None:
    """Somebody removed files by listing; the snapshot itself is whole."""
    table = lab.messy(files=3, days=1)
    (snapshot,) = compacted(lab, table)
    parent = lab.sql(f"select snapshot_id, manifest_list from {table}.snapshots order by committed_at")[-2]
    Path(parent.manifest_list.removeprefix("file:")).unlink()
    done = lab.lw.verify(table, snapshot)
    assert (done.state, done.removed.files, done.stored_agrees) == (VerifyResult.CANNOT_TELL, 3, True)
    assert f"metadata of its parent snapshot {parent.snapshot_id} is gone" in done.reason


@pytest.mark.parametrize("format_", ["orc", "avro"])
def test_files_the_kernel_cannot_read(lab: Lab, format_: str) -> None:
    table = lab.messy(files=3, days=1, **{"write.format.default": format_})
    (snapshot,) = compacted(lab, table)
    done = lab.lw.verify(table, snapshot)
    assert done.state is VerifyResult.CANNOT_TELL
    assert f"{format_} file" in done.reason
    assert done.file.endswith(format_)


# ------------------------------------------------------------ not a rewrite


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        ("insert into {} values (1, 'a', date'2024-03-01')", "append"),
        ("delete from {} where id < 40", "overwrite"),
        ("delete from {} where d = date'2024-03-02'", "delete"),
        ("call {catalog}.system.rewrite_manifests('{}')", "manifests"),
    ],
)
def test_what_is_no_rewrite_is_said_to_be_none(lab: Lab, change: str, operation: str) -> None:
    table = lab.messy(files=3, days=2)
    rewrites = compacted(lab, table)
    lab.sql(change.format(table, catalog=lab.catalog))
    with pytest.raises(UsageError, match=operation) as caught:
        lab.lw.verify(table, newest(lab, table).snapshot_id)
    assert caught.value.exit_code == 2
    assert all(str(each) in caught.value.hint for each in rewrites)


def test_an_unknown_snapshot_lists_those_that_can_be_verified(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    with pytest.raises(UsageError, match="no such snapshot") as caught:
        lab.lw.verify(table, 42)
    assert "none of the table's snapshots rewrote" in caught.value.hint
    (snapshot,) = compacted(lab, table)
    with pytest.raises(UsageError) as caught:
        lab.lw.verify(table, 42)
    assert str(snapshot) in caught.value.hint


# ------------------------------------------------------------ the command


def test_the_command_its_document_and_its_exit_codes(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    config = tmp_path / "lakewarden.toml"
    config.write_text(
        f'[state]\nurl = "sqlite:///cli.db"\n[catalogs.{lab.catalog}]\ntype = "hadoop"\nwarehouse = "{lab.warehouse}"\n'
    )

    def verify(*words: str) -> tuple[int, str, str]:
        code = main(["--config", str(config), "verify", *words], spark=lab.spark)
        said = capsys.readouterr()
        return code, said.out, said.err

    table, snapshot, output = rewritten_with_a_digest(lab)
    code, out, err = verify(table, str(snapshot))
    assert code == 0
    assert "to read" in err
    for words in (
        "proven",
        str(snapshot),
        "replace",
        "compaction by lakewarden",
        "3 files",
        "1 file",
        "600 rows",
    ):
        assert words in out, words

    code, out, err = verify(table, str(snapshot), "--json")
    document = json.loads(out)
    assert (code, err, document["state"], document["stored_agrees"]) == (0, "", "proven", True)
    assert document["removed"]["digest"] == document["added"]["digest"] == document["stored_digest"]

    assert verify(table, "42")[0] == 2
    assert json.loads(verify(table, "42", "--json")[2])["error"] == "UsageError"

    tamper(output, change_one)
    code, out, _ = verify(table, str(snapshot), "--json")
    assert (code, json.loads(out)["state"]) == (1, "differs")
    code, out, _ = verify(table, str(snapshot))
    assert code == 1
    assert "differs" in out and "stop expiry" in out

    output.unlink()
    code, out, _ = verify(table, str(snapshot), "--json")
    assert (code, json.loads(out)["state"], json.loads(out)["file"]) == (3, "cannot-tell", str(output))
