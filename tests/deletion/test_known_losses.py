"""Losses that other tools are known for, on real tables: each once, by its number where it has one.

Those of sweeping are in test_sweep.py (iceberg#17213, #12278, #15487, #4652, paimon#7710, #3074, #4779, amoro#4292, #2925,
#1959, #877), of S3 in test_s3_deleting.py (iceberg#4652), of compaction in test_compact.py and test_delete_debt.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakewarden.errors import CommitUnknown, LakewardenError, Refused
from lakewarden.model.location import normal
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import FileState
from lakewarden.tables.iceberg.writer import IcebergWriter
from tests.support.guard import Unasked
from tests.support.lab import Lab, lakewarden
from tests.support.spark import add_catalog
from tests.support.witness import EXPIRE, PURGE, SWEEP, Witness, later, run, wanted


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """In a session of its own: every catalog of a session is asked before anything is deleted."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(alone, catalog, tmp_path / "warehouse", lw)


def loaded(lab: Lab, table: str) -> Any:
    return lab.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        lab.spark._jsparkSession, table
    )


def data_file(lab: Lab, table: str, path: str) -> Any:
    """The file as a writer would add it; unpartitioned tables only."""
    local = Path(normal(path))
    rows = lab.spark.read.parquet(str(local)).count()
    builder = lab.spark._jvm.org.apache.iceberg.DataFiles.builder(loaded(lab, table).spec())
    return (
        builder.withPath(path)
        .withFormat("parquet")
        .withFileSizeInBytes(local.stat().st_size)
        .withRecordCount(rows)
        .build()
    )


def add_back(lab: Lab, table: str, path: str) -> None:
    loaded(lab, table).newFastAppend().appendFile(data_file(lab, table, path)).commit()


def remove_first(lab: Lab, table: str) -> str:
    """The file of the first ten rows leaves the table; its path."""
    (row,) = lab.sql(f"select distinct _file from {table} where id < 10")
    lab.sql(f"delete from {table} where id < 10")
    return str(row[0])


# ------------------------------------------------------------ a tag removed, then expiry


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_ref_that_is_dropped_frees_what_only_it_needed(lab: Lab, kind: str) -> None:
    """The snapshot it named shares files with the current one: those stay, and the others go."""
    table = lab.messy(files=3, days=2)
    first = lab.snapshots(table)[0].snapshot_id
    lab.sql(f"alter table {table} create {kind} audit as of version {first}")
    lab.sql(f"delete from {table} where d = date'2024-03-01'")
    witness = Witness(lab, table)
    run(lab, table, "expire")
    run(lab, table, "purge")
    witness.nothing_lost()
    assert lab.rows(table, f"version as of {first}") == witness.rows[first]

    lab.sql(f"alter table {table} drop {kind} audit")
    witness.look()
    freed = {path for path in witness.stored() if "d=2024-03-01" in path and path.endswith(".parquet")}
    assert len(freed) == 1, "what the ref alone kept"
    run(lab, table, "expire")
    assert freed <= lab.trash(table)
    assert not lab.trash(table) & witness.needed()
    run(lab, table, "purge")
    assert not freed & witness.stored()
    witness.converges()


def test_a_ref_that_is_moved_frees_what_only_its_old_snapshot_needed(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"alter table {table} create tag here as of version {ids[0]}")
    run(lab, table, "expire", snapshot_min_retained=3)
    lab.sql(f"alter table {table} replace tag here as of version {ids[2]}")
    witness = Witness(lab, table)
    run(lab, table, "expire")
    assert set(witness.snapshots()) == {ids[2], ids[3]}
    witness.converges()


# ------------------------------------------------------------ a file that comes back


def test_a_file_added_again_before_its_snapshot_expires_is_not_trashed(lab: Lab) -> None:
    table = lab.create(partition="")
    lab.append(table, 3, rows=10, days=1)
    path = remove_first(lab, table)
    add_back(lab, table, path)
    witness = Witness(lab, table)
    run(lab, table, "expire")
    assert normal(path) not in lab.trash(table)
    run(lab, table, "purge")
    assert Path(normal(path)).exists() and len(lab.rows(table)) == 30
    witness.converges()


@pytest.mark.main
@pytest.mark.parametrize("spelling", ["{path}", "file:{path}", "file://{path}"])
def test_a_file_added_again_after_it_was_trashed_is_kept(lab: Lab, spelling: str) -> None:
    """It left, its snapshot expired, and while it waits someone adds it again; later it leaves for good."""
    table = lab.create(partition="")
    lab.append(table, 3, rows=10, days=1)
    path = remove_first(lab, table)
    witness = Witness(lab, table)
    run(lab, table, "expire")
    assert normal(path) in lab.trash(table)

    again = spelling.format(path=normal(path))
    add_back(lab, table, again)
    witness.look()
    done = run(lab, table, "purge")
    assert done.counters["files_kept"] == 1
    assert len(lab.rows(table)) == 30
    (kept,) = TrashedFiles(lab.lw.state).list(table, (FileState.KEPT,))
    assert normal(kept.path) == normal(path) and kept.note == f"named again by {table}"
    witness.nothing_lost()

    assert normal(remove_first(lab, table)) == normal(path)
    witness.look()
    run(lab, table, "expire")
    run(lab, table, "purge")
    assert not Path(normal(path)).exists()
    witness.converges()


def test_a_file_added_again_while_the_expiry_commits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trashed on what was true before: purge looks anew."""
    table = lab.create(partition="")
    lab.append(table, 3, rows=10, days=1)
    path = remove_first(lab, table)
    real, added = IcebergWriter.expire, []

    def late(self: IcebergWriter, *arguments: Any) -> None:
        if not added:  # expire plans again on top of the table as it is then
            added.append(add_back(lab, table, path))
        real(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "expire", late)
        run(lab, table, "expire")
    witness = Witness(lab, table)
    run(lab, table, "purge")
    assert Path(normal(path)).exists() and len(lab.rows(table)) == 30
    witness.converges()


@pytest.mark.main
def test_a_rollback_makes_old_files_live_again(lab: Lab) -> None:
    """The current snapshot is an old one again; what came after it expires, and takes nothing of it along."""
    table = lab.create(partition="")
    lab.append(table, 2, rows=10, days=1)
    before = lab.snapshots(table)[-1].snapshot_id
    lab.sql(f"insert overwrite {table} select id + 100, s, d from {table}")
    lab.sql(f"call {lab.catalog}.system.rollback_to_snapshot('db.events', {before})")
    witness = Witness(lab, table)
    run(lab, table, "expire")
    run(lab, table, "purge")
    assert lab.rows(table) == witness.rows[before]
    witness.converges()


# ------------------------------------------------------------ commits nobody knows the end of (iceberg#12792)


def test_outputs_of_a_commit_that_came_very_late_are_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """iceberg#12792: the outcome is unknown, the outputs look like orphans, are in the trash, and then the commit arrives."""
    table = lab.messy(files=8, days=1)
    before, pending = lab.rows(table), []

    def unheard(self: IcebergWriter, *arguments: Any) -> int | None:
        pending.append(arguments)
        raise CommitUnknown(table=table, reason="the line is dead")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "commit_rewrite", unheard)
        assert lab.lw.run("compact", table).state is RunState.UNKNOWN
    outputs = lab.strays(table)
    assert len(outputs) == 1, "nothing is removed while nobody knows"
    witness = Witness(lab, table)
    with later(days=10):
        run(lab, table, "sweep")
        assert outputs <= lab.trash(table)
    # It was sent while the run was alive: no guard is asked when it arrives.
    lab.lw.lake.format_for(TableRef.parse(table)).writer(Unasked()).commit_rewrite(*pending[0])
    with later(days=12):
        run(lab, table, "purge")
    assert outputs == {normal(path) for path in lab.data_files(table)}
    assert lab.rows(table) == before
    witness.look()
    witness.nothing_lost()


@pytest.mark.parametrize("happened", [True, False])
def test_an_expiry_whose_end_is_unknown_trashes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    table = lab.messy(files=2, days=1)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    witness = Witness(lab, table)
    real = IcebergWriter.expire

    def unheard(self: IcebergWriter, *arguments: Any) -> None:
        if happened:
            real(self, *arguments)
        raise CommitUnknown(table=table, reason="the line is dead")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "expire", unheard)
        assert lab.lw.run("expire", table, EXPIRE).state is RunState.UNKNOWN
    assert run(lab, table, "purge").state is RunState.NOTHING_TO_DO
    assert witness.seen <= witness.stored()
    with later(days=10):  # as orphans they are young batches' files: nobody else's
        assert lab.lw.plan("sweep", table, SWEEP).empty
    run(lab, table, "expire")
    assert run(lab, table, "purge").counters["files_erased"]
    witness.converges()


# ------------------------------------------------------------ what cannot be read


def breaks(lab: Lab, witness: Witness, job: str, *words: str) -> None:
    """Said with the name of what cannot be read, and not a byte changes."""
    before, marked = lab.on_disk(), lab.trash(witness.table)
    with pytest.raises(LakewardenError) as error:
        lab.lw.run(job, witness.table, wanted(job))
    for word in words:
        assert word in f"{error.value.message} {error.value.hint}", error.value.message
    assert lab.on_disk() == before
    assert lab.trash(witness.table) == marked
    assert lab.lw.receipts(witness.table) == ()


def trashed_and_appended(lab: Lab) -> Witness:
    """Files are in the trash, and a commit came since whose metadata nobody has read yet."""
    table = lab.messy(files=2, days=1)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    run(lab, table, "expire")
    lab.append(table, 1, start=5000, days=1)
    return Witness(lab, table)


@pytest.mark.parametrize("how", ["truncated", "garbled", "missing", "empty"])
@pytest.mark.parametrize("what", ["manifest", "list"])
def test_purge_refuses_where_a_manifest_cannot_be_read(lab: Lab, what: str, how: str) -> None:
    witness = trashed_and_appended(lab)
    newest = witness.snapshots()[-1]
    asked = f"select path from {witness.table}.manifests where added_snapshot_id = {newest}"
    if what == "list":
        asked = f"select manifest_list from {witness.table}.snapshots where snapshot_id = {newest}"
    path = Path(normal(lab.sql(asked)[0][0]))
    content = path.read_bytes()
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    match how:
        case "truncated":
            path.write_bytes(content[:-40])
        case "garbled":
            path.write_bytes(content[:-200] + bytes(200))
        case "missing":
            path.unlink()
        case _:
            path.write_bytes(b"")
    breaks(lab, witness, "purge", path.name)
    path.write_bytes(content)
    run(lab, witness.table, "purge")
    witness.converges()


@pytest.mark.parametrize("job", ["expire", "sweep", "purge"])
def test_encrypted_manifests_are_not_taken_for_empty_ones(lab: Lab, job: str) -> None:
    """What they name cannot be known: a table like that is left alone."""
    witness = trashed_and_appended(lab)
    lab.append(witness.table, 1, start=9000, days=1)
    newest = lab.sql(f"select manifest_list from {witness.table}.snapshots order by committed_at")[-1][0]
    encrypt_entries(lab, Path(normal(newest)))
    breaks(lab, witness, job, "encrypted")


def encrypt_entries(lab: Lab, path: Path) -> None:
    """As Iceberg marks manifests that only a key can open."""
    jvm: Any = lab.spark._jvm
    reader = jvm.org.apache.avro.file.DataFileReader(
        jvm.java.io.File(str(path)), jvm.org.apache.avro.generic.GenericDatumReader()
    )
    schema = reader.getSchema()
    writer = jvm.org.apache.avro.file.DataFileWriter(jvm.org.apache.avro.generic.GenericDatumWriter(schema))
    for key in reader.getMetaKeys():
        if not key.startswith("avro."):
            writer.setMeta(key, reader.getMetaString(key))
    copy = path.with_suffix(".copy")
    writer.create(schema, jvm.java.io.File(str(copy)))
    while reader.hasNext():
        entry = reader.next()
        entry.put("key_metadata", jvm.java.nio.ByteBuffer.wrap(bytearray(b"a key")))
        writer.append(entry)
    writer.close()
    reader.close()
    copy.replace(path)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


# ------------------------------------------------------------ a history with holes (iceberg#13568)


def test_a_broken_chain_of_ancestors_loses_nothing(lab: Lab) -> None:
    """iceberg#13568: another tool took snapshots out of the middle; who walks along parents sees half of the table."""
    table = lab.messy(files=6, days=1)
    ids = [row.snapshot_id for row in lab.snapshots(table)]
    lab.sql(f"alter table {table} create branch side as of version {ids[1]}")
    lab.sql(f"insert into {table}.branch_side values (-1, 'side', date'2024-03-01')")
    expire = loaded(lab, table).expireSnapshots().cleanExpiredFiles(False)
    expire.expireSnapshotId(ids[2]).expireSnapshotId(ids[3]).commit()
    witness = Witness(lab, table)
    run(lab, table, "expire")
    assert set(witness.snapshots()) == {ids[5], *(set(witness.rows) - set(ids))}
    run(lab, table, "purge")
    assert lab.rows(table) == witness.rows[ids[5]]
    witness.converges()


# ------------------------------------------------------------ another tool at the same time


def test_what_another_tool_deleted_first_is_not_an_error(lab: Lab) -> None:
    """Iceberg's own expiry, with its own deletions, between ours and our purge: what is gone is told as gone."""
    table = lab.messy(files=3, days=1)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    run(lab, table, "expire", snapshot_min_retained=2)
    witness = Witness(lab, table)
    lab.sql(
        f"call {lab.catalog}.system.expire_snapshots(table => 'db.events', older_than => timestamp'2999-01-01', retain_last => 1)"
    )
    lab.sql(
        f"call {lab.catalog}.system.remove_orphan_files(table => 'db.events', older_than => timestamp'2001-01-01')"
    )
    done = lab.lw.run("purge", table, PURGE)
    assert done.state is RunState.DONE, done.reason
    assert lab.rows(table) == list(witness.rows.values())[-1]
    assert witness.needed() <= witness.stored()


@pytest.mark.main
def test_the_table_was_dropped_while_its_files_waited(lab: Lab) -> None:
    """Made anew under the same name and at the same place: its files are not the old one's."""
    table = lab.messy(files=2, days=1)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    run(lab, table, "expire")
    lab.sql(f"drop table {table}")
    table = lab.messy(files=2, days=1)
    before = lab.on_disk()
    with pytest.raises(Refused, match="another table of that name"):
        lab.lw.run("purge", table, PURGE)
    assert lab.on_disk() == before and len(lab.rows(table)) == 400
