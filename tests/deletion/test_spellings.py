"""One folder under two names: sweep and purge tell them apart for sure, or refuse and name both. On real tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden import Lakewarden
from lakewarden.errors import Refused
from lakewarden.model.location import normal
from lakewarden.model.run import RunState
from tests.support.lab import Lab
from tests.support.paimon import PaimonLab
from tests.support.spark import jdbc_warehouse
from tests.support.witness import EXPIRE, later

PURGE = {"delete_grace_hours": 0, "purge_outside_location": True}


def any_of(lab: Lab) -> dict[str, object]:
    """However many orphans there are, and wherever a test puts the table: its operator says that these places are its own."""
    return {"orphan_max_percent": 100, "own_places": [str(lab.warehouse.parent)]}


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """In a session of its own, on a catalog that lets tables choose their place."""
    alone = spark.newSession()
    made = jdbc_warehouse(alone, tmp_path)
    with opened(alone, tmp_path) as lw:
        yield Lab(alone, made.catalog, made.path, lw)


def opened(spark: SparkSession, folder: Path, *aliases: str) -> Lakewarden:
    config = {"state": {"url": f"sqlite:///{folder}/state.db"}, "paths": {"aliases": list(aliases)}}
    return Lakewarden(config if aliases else {"state": config["state"]}, spark=spark, environ={})


def told(lab: Lab, tmp_path: Path, *aliases: str) -> Lab:
    """The same lake, with what its operator says about its places."""
    return Lab(lab.spark, lab.catalog, lab.warehouse, opened(lab.spark, tmp_path, *aliases))


def home(lab: Lab, table: str) -> Path:
    return Path(normal(lab.lw.view(table).location))


def move(lab: Lab, table: str, place: Path | str) -> None:
    """The table as Spark leaves it, with one file more in the new place."""
    lab.sql(f"alter table {table} set location '{place}'")
    lab.append(table, 1, days=1, start=10_000)


def trashed(lab: Lab, table: str) -> set[str]:
    with later(days=10):
        return {normal(each.path) for each in lab.lw.plan("sweep", table, any_of(lab)).trash}


def refused(lab: Lab, job: str, table: str, *words: str) -> None:
    """Exit code 12, the words are in the message, and not a byte changes."""
    before, rows = lab.on_disk(), lab.rows(table)
    with later(days=10), pytest.raises(Refused) as found:
        lab.lw.run(job, table, any_of(lab) if job == "sweep" else PURGE)
    assert found.value.exit_code == 12
    for each in words:
        assert each in found.value.message
    assert "aliases" in found.value.hint
    assert lab.on_disk() == before and lab.rows(table) == rows


def test_a_location_that_is_a_link_to_the_old_one(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=2, days=1)
    real, link = home(lab, table), tmp_path / "link"
    link.symlink_to(real.parent)
    move(lab, table, link / real.name)
    (real / "data" / "orphan.parquet").write_bytes(b"x")
    refused(lab, "sweep", table, str(real), str(link / real.name))

    # The operator says that both are one place: then only what no spelling of it names is an orphan.
    lab = told(lab, tmp_path, f"{link} = {real.parent}")
    orphan = link / real.name / "data" / "orphan.parquet"
    assert trashed(lab, table) == {str(orphan)}
    rows = lab.rows(table)
    with later(days=10):
        lab.lw.run("sweep", table, any_of(lab))
        assert lab.lw.run("purge", table, PURGE).counters["files_erased"] == 1
    assert not orphan.exists() and lab.rows(table) == rows


def test_a_link_that_became_the_folder_itself(lab: Lab, tmp_path: Path) -> None:
    """The other way round: old files are named through the link, new ones by the folder."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    lab.sql(f"create namespace {lab.catalog}.db")
    table = lab.table()
    lab.sql(f"create table {table} (id bigint, s string, d date) using iceberg location '{link}/t'")
    lab.append(table, 2, days=1)
    move(lab, table, f"file://{real}/t")
    refused(lab, "sweep", table, str(link), str(real))


def test_a_data_folder_that_is_a_link_to_the_old_one(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=2, days=1)
    data = tmp_path / "files"
    data.symlink_to(home(lab, table) / "data")
    lab.sql(f"alter table {table} set tblproperties ('write.data.path'='{data}')")
    lab.append(table, 1, days=1, start=10_000)
    refused(lab, "sweep", table, str(data), str(home(lab, table)))


def test_a_table_that_really_moved_is_swept_in_its_new_place(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=2, days=1)
    old, new = home(lab, table), tmp_path / "elsewhere" / "events"
    move(lab, table, new)
    (old / "data" / "left.parquet").write_bytes(b"x")
    (new / "data" / "orphan.parquet").write_bytes(b"x")
    rows = lab.rows(table)
    assert trashed(lab, table) == {str(new / "data" / "orphan.parquet")}
    with later(days=10):
        assert lab.lw.run("sweep", table, any_of(lab)).state is RunState.DONE
        assert lab.lw.run("purge", table, PURGE).counters["files_erased"] == 1
    assert lab.rows(table) == rows


def test_a_candidate_with_the_name_of_a_live_file_elsewhere(lab: Lab, tmp_path: Path) -> None:
    """Copies of live files lie in the new place, as on a second mount of the old one."""
    table = lab.messy(files=2, days=1)
    old, new = home(lab, table), tmp_path / "elsewhere" / "events"
    shutil.copytree(old, new)
    live = Path(normal(lab.data_files(table)[0])).name
    move(lab, table, new)
    refused(lab, "sweep", table, str(new), str(old))

    copies = trashed(told(lab, tmp_path, f"{old} != {new}"), table)
    assert any(each.endswith(live) for each in copies) and all(each.startswith(str(new)) for each in copies)


@pytest.mark.main
def test_a_trashed_file_that_is_named_again_through_a_link(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=2, days=1)
    real, link = home(lab, table), tmp_path / "link"
    live = Path(normal(lab.data_files(table)[0]))
    orphan = real / "data" / "again.parquet"
    shutil.copy(live, orphan)
    with later(days=10):
        lab.lw.run("sweep", table, any_of(lab))
    assert lab.trash(table) == {str(orphan)}
    link.symlink_to(real)
    add_file(lab, table, f"{link}/data/again.parquet", orphan.stat().st_size)
    refused(lab, "purge", table, str(real), str(link))
    lab = told(lab, tmp_path, f"{link} = {real}")
    with later(days=10):
        assert lab.lw.run("purge", table, PURGE).counters["files_kept"] == 1
    assert orphan.exists()


def test_links_inside_a_table(lab: Lab) -> None:
    """An administrator renamed a folder or a file and left a link: what the metadata names is there under two names."""
    table = lab.messy(files=2, days=1)
    live = Path(normal(lab.data_files(table)[0]))
    renamed = live.rename(live.with_name("renamed.parquet"))
    live.symlink_to(renamed)
    with later(days=10):
        swept = lab.lw.plan("sweep", table, any_of(lab))
    assert swept.empty and str(live) in str(swept.to_dict())
    live.unlink()
    renamed.rename(live)

    day = live.parent
    moved = day.rename(day.with_name(f"{day.name}-moved"))
    day.symlink_to(moved.name)
    refused(lab, "sweep", table, str(day), str(moved))
    lab.sql(f"insert overwrite {table} select * from {table} where id < 10")
    with later(days=10):
        lab.lw.run("expire", table, EXPIRE)
    rows = lab.rows(table)
    with later(days=10):
        assert lab.lw.run("purge", table, PURGE).state is RunState.DONE, (
            "one name is used, whatever it leads to"
        )
    assert lab.rows(table) == rows


def test_another_table_whose_data_folder_is_a_link_into_this_one(lab: Lab, tmp_path: Path) -> None:
    """Its metadata is elsewhere, so that no file in this table's folder tells of it."""
    table = lab.messy(files=2, days=1)
    link, other = tmp_path / "link", f"{lab.catalog}.db.other"
    link.symlink_to(home(lab, table) / "data")
    place = f"tblproperties ('write.data.path'='{link}/inner')"
    lab.sql(f"create table {other} (id bigint) using iceberg {place}")
    lab.sql(f"insert into {other} values (1)")
    before = lab.on_disk()
    with later(days=10):
        found = lab.lw.run("sweep", table, any_of(lab))
        lab.lw.run("purge", table, PURGE)
    assert found.state is RunState.NOTHING_TO_DO, found.reason
    assert lab.on_disk() == before


def taken_in(lab: Lab, table: str, place: Path) -> str:
    """Another table with the files of this folder, as Iceberg's `add_files` makes it."""
    other = f"{lab.catalog}.db.other"
    lab.sql(f"create table {other} (id bigint, s string, d date) using iceberg")
    lab.sql(
        f"call {lab.catalog}.system.add_files(table => 'db.other', source_table => '`parquet`.`{place}`')"
    )
    return other


def test_another_table_that_took_this_one_s_files_in_through_a_link(lab: Lab, tmp_path: Path) -> None:
    table = lab.create(partition="")
    lab.append(table, 3, rows=10)
    real, link = home(lab, table), tmp_path / "mnt"
    link.symlink_to(real.parent)
    other = taken_in(lab, table, link / real.name / "data")
    theirs = lab.rows(other)
    lab.sql(f"insert overwrite {table} select * from {table} where id < 10")
    with later(days=10):
        lab.lw.run("expire", table, EXPIRE)
    (real / "data" / "orphan.parquet").write_bytes(b"x")
    with later(days=10):
        swept = lab.lw.plan("sweep", table, any_of(lab))
        purged = lab.lw.run("purge", table, PURGE)
    assert swept.empty and str(link / real.name) in str(swept.to_dict()) and other in str(swept.to_dict())
    # The data files stay, and what lies in the metadata folder goes.
    assert purged.counters["files_erased"] > 0 and purged.counters["files_held"] == 3
    assert str(link / real.name) in str(purged.counters) + str(purged.reason)
    assert lab.rows(other) == theirs

    # With the operator's word exactly the files that the other table names stay.
    lab = told(lab, tmp_path, f"{link} = {real.parent}")
    assert trashed(lab, table) == {str(real / "data" / "orphan.parquet")}
    with later(days=10):
        found = lab.lw.run("purge", table, PURGE)
    assert found.counters["files_kept"] == 3
    assert lab.rows(other) == theirs


def test_another_table_that_took_files_in_from_a_place_that_may_be_this_one(lab: Lab, tmp_path: Path) -> None:
    """As on a second mount, which no disk tells: the files are called the same, and their folder is not."""
    table = lab.create(partition="")
    lab.append(table, 2, rows=10)
    real, mount = home(lab, table), tmp_path / "mount"
    shutil.copytree(real / "data", mount)
    other = taken_in(lab, table, mount)
    lab.sql(f"insert overwrite {table} select * from {table} where id < 10")
    with later(days=10):
        lab.lw.run("expire", table, EXPIRE)
    with later(days=10):
        assert lab.lw.run("purge", table, PURGE).counters["files_held"] == 2
    lab = told(lab, tmp_path, f"{real}/data != {mount}")
    with later(days=10):
        assert lab.lw.run("purge", table, PURGE).counters["files_erased"] == 2
    assert len(lab.rows(other)) == 20


def test_another_table_that_took_files_in_by_their_own_names(lab: Lab, tmp_path: Path) -> None:
    """It is no second name: what the other table names stays, and the rest goes."""
    table = lab.create(partition="")
    lab.append(table, 2, rows=10)
    other = taken_in(lab, table, home(lab, table) / "data")
    lab.sql(f"insert overwrite {table} select * from {table} where id < 10")
    with later(days=10):
        lab.lw.run("expire", table, EXPIRE)
        assert lab.lw.run("purge", table, PURGE).counters["files_erased"] > 0
    assert len(lab.rows(other)) == 20


def test_a_paimon_table_with_files_in_this_one_s_folder_by_another_name(
    paimon: PaimonLab, tmp_path: Path
) -> None:
    """It wrote them to an external path that its options no longer name."""
    table = paimon.create()
    paimon.append(table, 2)
    link = tmp_path / "link"
    link.symlink_to(paimon.folder(table))
    strategy = {"data-file.external-paths.strategy": "round-robin"}
    other = paimon.create("other", **{"data-file.external-paths": f"file://{link}"}, **strategy)
    paimon.append(other, 2, start=1_000)
    paimon.maker.alter(paimon._opened, "other", "data-file.external-paths", f"file://{tmp_path}/elsewhere")
    theirs = paimon.rows(other)
    with later(days=10):
        found = paimon.lw.plan("sweep", table, {"orphan_max_percent": 100})
    assert found.empty and str(link) in str(found.to_dict()) and "aliases" in str(found.to_dict())
    assert paimon.rows(other) == theirs


def add_file(lab: Lab, table: str, path: str, size: int) -> None:
    jvm = lab.spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lab.spark._jsparkSession, table)
    builder = jvm.org.apache.iceberg.DataFiles.builder(loaded.spec()).withPath(path).withFormat("parquet")
    builder = builder.withPartitionPath("d=2024-03-01").withFileSizeInBytes(size).withRecordCount(200)
    loaded.newAppend().appendFile(builder.build()).commit()
