"""Whose table it is: folders that hold another format's metadata, and tables that no listing used to show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden import Lakewarden
from lakewarden.errors import Refused
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef
from tests.deletion.test_known_losses import add_back
from tests.support.lab import Lab, lakewarden
from tests.support.paimon import PaimonLab, paimon_lab
from tests.support.spark import add_catalog, jdbc_warehouse
from tests.support.witness import EXPIRE, PURGE, SWEEP, later

PUBLISHED = {"metadata__iceberg__storage": "table-location"}


@dataclass
class Mirror:
    """A Paimon table that publishes Iceberg metadata in its own folder, and a Lakewarden that knows the Iceberg side only."""

    paimon: PaimonLab
    table: str
    lw: Lakewarden
    ref: TableRef


@pytest.fixture
def mirror(spark: SparkSession, tmp_path: Path) -> Iterator[Mirror]:
    alone = spark.newSession()
    with paimon_lab(alone, tmp_path) as paimon:
        table = paimon.create(**PUBLISHED)
        paimon.append(table, 4, days=1)
        catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(paimon.warehouse)})
        alone.sql(f"show namespaces in {catalog}").collect()  # makes it the session of this thread
        with lakewarden(alone, f"sqlite:///{tmp_path}/iceberg-side.db") as lw:
            yield Mirror(paimon, table, lw, TableRef(catalog, ("db.db",), "events"))


@pytest.mark.parametrize(
    ("job", "policy"),
    [
        ("compact", {"rewrite_min_input_files": 2}),
        ("rewrite-manifests", {}),
        ("expire", EXPIRE),
        ("sweep", SWEEP),
        ("purge", PURGE),
    ],
)
def test_a_paimon_table_that_shows_itself_as_iceberg_is_left_to_paimon(
    mirror: Mirror, job: str, policy: dict[str, object]
) -> None:
    before, rows = mirror.paimon.on_disk(mirror.table), mirror.paimon.rows(mirror.table)
    with later(), pytest.raises(Refused, match="Apache Paimon"):
        mirror.lw.run(job, mirror.ref, policy=policy)
    assert mirror.paimon.on_disk(mirror.table) == before
    assert mirror.paimon.rows(mirror.table) == rows


@pytest.mark.main
@pytest.mark.parametrize("mark", ["_delta_log/00000000000000000000.json", ".hoodie/hoodie.properties"])
def test_a_folder_of_delta_lake_or_hudi_is_left_to_it(mirror: Mirror, mark: str) -> None:
    """By way of Paimon's catalog too, which otherwise may look after the table."""
    path = mirror.paimon.folder(mirror.table) / mark
    path.parent.mkdir()
    path.write_text("{}")
    tool = "Delta Lake" if "delta" in mark else "Apache Hudi"
    for job in ("compact", "expire", "sweep", "purge"):
        with pytest.raises(Refused, match=tool):
            mirror.paimon.lw.run(job, mirror.table)


@pytest.mark.parametrize("mark", ["_delta_log/00000000000000000000.json", ".hoodie/hoodie.properties"])
def test_another_formats_metadata_in_the_data_folder_stops_every_job(
    spark: SparkSession, tmp_path: Path, mark: str
) -> None:
    """Where Apache XTable puts it."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path)})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(alone, catalog, tmp_path, lw)
        table = lab.create(partition="")
        lab.append(table, 4, rows=10, days=1)
        path = Path(lw.view(table).location.removeprefix("file:")) / "data" / mark
        path.parent.mkdir()
        path.write_text("{}")
        before = set(lab.on_disk())
        tool = "Delta Lake" if "delta" in mark else "Apache Hudi"
        policies = {
            "compact": {"rewrite_min_input_files": 2},
            "expire": EXPIRE,
            "sweep": SWEEP,
            "purge": PURGE,
        }
        for job, policy in policies.items():
            with later(days=2), pytest.raises(Refused, match=tool):
                lw.run(job, table, policy=policy)
        assert set(lab.on_disk()) == before


def test_what_a_paimon_table_publishes_for_iceberg_does_not_stop_its_upkeep(
    spark: SparkSession, tmp_path: Path
) -> None:
    with paimon_lab(spark.newSession(), tmp_path) as paimon:
        table = paimon.create(**PUBLISHED)
        paimon.append(table, 4, days=1)
        rows = paimon.rows(table)
        assert any(path.endswith(".metadata.json") for path in paimon.on_disk(table))
        assert paimon.lw.run("expire", table, policy=EXPIRE).state is RunState.DONE
        done = paimon.lw.run("purge", table, policy=PURGE)
        assert done.state is RunState.DONE and done.counters["files_erased"]
        with later(days=2):
            paimon.lw.run("sweep", table, policy=SWEEP)
        assert paimon.rows(table) == rows


@pytest.mark.main
def test_two_tables_whose_names_only_differ_in_their_dots_share_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`a`.`b.c` and `a.b`.`c`: state, policies and runs of one were those of the other."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path)})
    one, other = f"{catalog}.a.`b.c`", f"{catalog}.`a.b`.c"
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        for name in (one, other):
            alone.sql(f"create table {name} (id bigint) using iceberg")
            alone.sql(f"insert into {name} values (1)")
        assert [str(each) for each in lw.tables()] == [one, other]
        lw.set_policy(f"`{catalog}`.`a`.`b.c`", {"snapshot_min_retained": 7})
        assert lw.policy(one)["snapshot_min_retained"] == 7
        assert lw.policy(other)["snapshot_min_retained"] == 5
        pin = lw.pin(one, None, holder="report", ttl="1h")
        assert lw.holds.pins(other) == () and lw.holds.pins(one) == (pin.pin,)
        run = lw.run("expire", other, policy={"snapshot_min_retained": 1})
        assert lw.runs(one) == () and [each.id for each in lw.runs(f"{catalog}.`a.b`.`c`")] == [run.id]


@pytest.mark.parametrize("ours_is_newer", [False, True])
@pytest.mark.parametrize(("job", "policy"), [("expire", EXPIRE), ("sweep", SWEEP), ("purge", PURGE)])
def test_a_table_that_another_catalog_moves_too_is_not_cleaned(
    spark: SparkSession, tmp_path: Path, job: str, policy: dict[str, object], ours_is_newer: bool
) -> None:
    """Registered with a catalog that Lakewarden does not know, and committed to there; then perhaps here again."""
    alone, elsewhere = spark.newSession(), spark.newSession()
    here = jdbc_warehouse(alone, tmp_path)
    there = jdbc_warehouse(elsewhere, tmp_path / "other").catalog
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(alone, here.catalog, here.path, lw)
        table = lab.create(partition="")
        lab.append(table, 3, rows=10, days=1)
        lab.sql(f"delete from {table} where id < 10")
        if job == "purge":
            lw.run("expire", table, policy=EXPIRE)
        pointer = lw.view(table).metadata_location
        elsewhere.sql(f"create namespace {there}.db")
        elsewhere.sql(f"call {there}.system.register_table('db.events', '{pointer}')").collect()
        elsewhere.sql(f"insert into {there}.db.events select * from {there}.db.events")
        before = elsewhere.table(f"{there}.db.events").count()
        if ours_is_newer:
            lab.append(table, 1, rows=10, days=1, start=100)
        with later(days=2), pytest.raises(Refused, match="metadata of this very table") as refused:
            lw.run(job, table, policy=policy)
        assert "--adopt-folder" in refused.value.hint
        assert elsewhere.table(f"{there}.db.events").count() == before
        fork = lw.holds.adopt_folder(table, operator="ana", confirm=True)
        assert len(fork.files) == 1 and fork.files[0].uuid == lw.view(table).uuid
        with later(days=2):
            assert lw.run(job, table, policy=policy).state is RunState.DONE


def test_a_paimon_tag_that_is_called_like_a_mark_keeps_its_files(spark: SparkSession, tmp_path: Path) -> None:
    with paimon_lab(spark.newSession(), tmp_path) as paimon:
        table = paimon.create()
        paimon.append(table, 2, days=1)
        paimon.lw.holds.tag(table, "success-file/x", forever=True)
        tagged = {path for path in paimon.on_disk(table) if path.endswith(".parquet")}
        paimon.append(table, 2, days=1)
        rows = paimon.rows(table)
        paimon.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
        paimon.lw.run("expire", table, policy=EXPIRE)
        paimon.lw.run("purge", table, policy=PURGE)
        with later(days=2):
            paimon.lw.run("sweep", table, policy=SWEEP)
            paimon.lw.run("purge", table, policy=PURGE)
        assert paimon.rows(table) == rows
        assert tagged and tagged <= paimon.on_disk(table)


def test_that_a_table_is_a_cold_one_is_not_believed_of_its_properties(
    spark: SparkSession, tmp_path: Path
) -> None:
    """gc.enabled=false forbids purge. Only a colder tier's own retention may delete there, and the state database knows it."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path)})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(alone, catalog, tmp_path, lw)
        table = lab.create(partition="")
        lab.append(table, 2, rows=10, days=1)
        lab.sql(f"delete from {table} where id < 10")
        lw.run("expire", table, policy=EXPIRE)
        before = set(lab.on_disk())
        marks = "'gc.enabled' = 'false', 'cold-tier.source' = 'live.db.events', 'cold-tier.source-uuid' = 'u'"
        lab.sql(f"alter table {table} set tblproperties ({marks})")
        with pytest.raises(Refused, match=r"gc\.enabled"):
            lw.run("purge", table, policy=PURGE)
        assert before <= set(lab.on_disk())


def test_a_plain_table_with_the_properties_of_a_cold_one_is_looked_after(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its writer set them; hand-off recorded nothing of it. For ever nothing was done to such a table."""
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path)})
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(alone, catalog, tmp_path, lw)
        table = lab.create(partition="")
        lab.append(table, 3, rows=10, days=1)
        rows = lab.rows(table)
        marks = "'cold-tier.source' = 'x.y.z', 'cold-tier.source-uuid' = 'u'"
        lab.sql(f"alter table {table} set tblproperties ({marks})")
        assert lw.run("compact", table, policy={"rewrite_min_input_files": 2}).state is RunState.DONE
        assert lw.run("expire", table, policy=EXPIRE).state is RunState.DONE
        assert lab.rows(table) == rows


def test_a_plain_paimon_table_with_the_options_of_a_cold_one_is_looked_after(
    spark: SparkSession, tmp_path: Path
) -> None:
    with paimon_lab(spark.newSession(), tmp_path) as paimon:
        table = paimon.create()
        paimon.append(table, 4, days=1)
        paimon.maker.alter(paimon._opened, "events", "cold-tier.source-uuid", "u")
        assert paimon.lw.run("expire", table, policy=EXPIRE).state is RunState.DONE


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_table_created_in_a_dropped_ones_folder_is_cleaned_once_it_is_adopted(
    spark: SparkSession, tmp_path: Path, taken_back: bool
) -> None:
    """Flink's DROP without PURGE, then CREATE. Purge refused such a folder for good, and did not say what to do."""
    alone = spark.newSession()
    here = jdbc_warehouse(alone, tmp_path)
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(alone, here.catalog, here.path, lw)
        table = lab.create(partition="")
        lab.append(table, 2, rows=10, days=1)
        old = lw.view(table)
        lab.sql(f"drop table {table}")
        table = lab.create(partition="")
        lab.append(table, 4, rows=10, days=1)
        lab.sql(f"delete from {table} where id < 10")
        rows = lab.rows(table)
        lw.run("expire", table, policy=EXPIRE)
        with pytest.raises(Refused, match=old.uuid) as refused:
            lw.run("purge", table, policy=PURGE)
        assert f"lakewarden fsck '{table}' --adopt-folder" in refused.value.hint
        assert old.uuid in str(lw.fsck(table).findings)
        # It shows what it would do, does it in somebody's name, and can be taken back.
        shown = lw.holds.adopt_folder(table, operator="ana")
        assert shown.batch is None and {each.uuid for each in shown.files} == {old.uuid}
        first = lw.holds.adopt_folder(table, operator="ana", confirm=True)
        assert {each.reason for each in (s.batch for s, _ in lw.trash(table).batches)} >= {
            "metadata that a dropped table left, claimed by ana"
        }
        assert lw.holds.adopt_folder(table, operator="ana").files == (), "it is claimed already"
        if taken_back:
            lw.restore(table, run=first.batch, operator="ana")
            with pytest.raises(Refused, match=old.uuid):
                lw.run("purge", table, policy=PURGE)
            with pytest.raises(Refused, match="a restored file cannot be trashed again"):
                lw.holds.adopt_folder(table, operator="ana", confirm=True)
            return
        assert lw.run("purge", table, policy=PURGE).counters["files_erased"]
        assert Path(old.metadata_location.removeprefix("file:")).exists(), "it waits as orphans do"
        with later(days=3):
            lw.run("sweep", table, policy=SWEEP)
        with later(days=8):
            lw.run("purge", table, policy=PURGE)
        assert not Path(old.metadata_location.removeprefix("file:")).exists()
        assert lab.rows(table) == rows


def test_a_folder_is_not_adopted_from_a_table_that_a_catalog_has(spark: SparkSession, tmp_path: Path) -> None:
    alone = spark.newSession()
    here, there = jdbc_warehouse(alone, tmp_path), jdbc_warehouse(alone, tmp_path / "other").catalog
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(alone, here.catalog, here.path, lw)
        table = lab.create(partition="")
        with lakewarden(
            alone, f"sqlite:///{tmp_path}/other.db"
        ) as other:  # where it was first seen is not remembered here
            old = other.view(table)
        lab.sql(f"drop table {table}")
        table = lab.create(partition="")
        lab.sql(f"create namespace {there}.db")
        lab.sql(f"call {there}.system.register_table('db.kept', '{old.metadata_location}')")
        lab.sql(f"alter table {there}.db.kept set location '{tmp_path}/elsewhere'")
        with pytest.raises(Refused, match=rf"metadata of {there}\.db\.kept"):
            lw.holds.adopt_folder(table, operator="ana", confirm=True)
        lab.sql(f"alter table {there}.db.kept set location '{old.location}'")
        with pytest.raises(Refused, match=rf"shares a place with {there}\.db\.kept"):
            lw.holds.adopt_folder(table, operator="ana", confirm=True)


def test_iceberg_metadata_that_a_paimon_table_published_earlier_can_be_adopted(
    spark: SparkSession, tmp_path: Path
) -> None:
    with paimon_lab(spark.newSession(), tmp_path) as paimon:
        table = paimon.create()
        paimon.append(table, 4, days=1)
        rows = paimon.rows(table)
        path = paimon.folder(table) / "metadata" / "v1.metadata.json"
        path.parent.mkdir()
        told = {"format-version": 2, "table-uuid": "old", "location": str(paimon.folder(table))}
        path.write_text(json.dumps({**told, "last-sequence-number": 1, "last-updated-ms": 1}))
        for job in ("compact", "expire", "sweep", "purge"):
            with pytest.raises(Refused, match="which publishes none") as refused:
                paimon.lw.run(job, table, policy=PURGE if job == "purge" else None)
            assert "--adopt-folder" in refused.value.hint
        assert paimon.lw.holds.adopt_folder(table, operator="ana", confirm=True).files[0].uuid == "old"
        assert paimon.lw.run("expire", table, policy=EXPIRE).state is RunState.DONE
        assert paimon.lw.run("purge", table, policy=PURGE).counters["files_erased"]
        assert paimon.rows(table) == rows


@pytest.mark.parametrize("complete", [True, False])
def test_where_a_catalog_is_not_complete_nothing_goes_outside_of_own_folders(
    spark: SparkSession, tmp_path: Path, complete: bool
) -> None:
    alone = spark.newSession()
    properties = {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")}
    (tmp_path / "warehouse").mkdir()
    catalog = add_catalog(alone, properties)
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "catalogs": {catalog: {**properties, "complete": complete}},
    }
    with Lakewarden(config, spark=alone, environ={}) as lw:
        lab = Lab(alone, catalog, tmp_path / "warehouse", lw)
        table = lab.create(partition="")
        lab.append(table, 2, rows=10, days=1)
        (row,) = lab.sql(f"select distinct _file from {table} where id < 10")
        outside = tmp_path / "elsewhere" / "part.parquet"
        outside.parent.mkdir()
        shutil.copy(row[0].removeprefix("file:"), outside)
        add_back(lab, table, str(outside))
        lab.sql(f"delete from {table} where id < 10")
        lw.run("expire", table, policy=EXPIRE)
        done = lw.run("purge", table, policy={**PURGE, "purge_outside_location": True})
        assert done.counters["files_erased"] > 0, "its own folders are cleaned as ever"
        assert outside.exists() is not complete
        assert complete or f"catalog {catalog} has complete=false" in done.reason


@pytest.mark.parametrize("kind", ["hadoop", "hadoop with a cache", "jdbc"])
def test_a_table_of_no_namespace_is_part_of_every_proof(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """It names a file of another table (added by hand): purge of that one took it."""
    alone = spark.newSession()
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    catalog = (
        jdbc_warehouse(alone, tmp_path).catalog
        if kind == "jdbc"
        else add_catalog(
            alone,
            {"type": "hadoop", "warehouse": str(warehouse), "cache-enabled": str("cache" in kind).lower()},
        )
    )
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        lab = Lab(alone, catalog, warehouse, lw)
        table = lab.create(partition="")
        lab.append(table, 3, rows=10, days=1)
        lab.sql(f"create table {catalog}.loner (id bigint, s string, d date) using iceberg")
        assert f"{catalog}.loner" in map(str, lw.tables())
        (row,) = lab.sql(f"select distinct _file from {table} where id < 10")
        add_back(lab, f"{catalog}.loner", row[0])
        lab.sql(f"delete from {table} where id < 10")
        lw.run("expire", table, policy=EXPIRE)
        done = lw.run("purge", table, policy=PURGE)
        assert done.counters["files_kept"] == 1
        assert len(lab.rows(f"{catalog}.loner")) == 10
        # And it is looked after like any other.
        lab.append(f"{catalog}.loner", 6, rows=10, days=1)
        assert (
            lw.run("compact", f"{catalog}.loner", policy={"rewrite_min_input_files": 2}).state
            is RunState.DONE
        )
        with later(days=2):
            lw.run("sweep", f"{catalog}.`loner`", policy=SWEEP)
        assert len(lab.rows(f"{catalog}.loner")) == 70


def test_what_another_client_makes_after_we_looked_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """A namespace and a table in it, by a client of its own on the same catalog. Nessie's case is in tests/interop."""
    alone, jvm = spark.newSession(), spark._jvm
    catalog = jdbc_warehouse(alone, tmp_path).catalog
    with lakewarden(alone, f"sqlite:///{tmp_path}/state.db") as lw:
        first = Lab(alone, catalog, tmp_path / "warehouse", lw).create(partition="")
        assert list(map(str, lw.tables(catalog))) == [first]
        other = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
        other.setConf(alone._jsparkSession.sessionState().newHadoopConf())
        uri = f"jdbc:sqlite:{tmp_path / 'catalog.db'}"
        other.initialize(catalog, {"uri": uri, "warehouse": str(tmp_path / "warehouse")})
        name = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("later.made")
        other.createNamespace(name.namespace())
        field = jvm.org.apache.iceberg.types.Types.NestedField.optional(
            1, "id", jvm.org.apache.iceberg.types.Types.LongType.get()
        )
        other.createTable(name, jvm.org.apache.iceberg.Schema([field]))
        other.close()
        assert f"{catalog}.later.made" in map(str, lw.tables(catalog))
        assert lw.run("compact", f"{catalog}.later.made").state is RunState.NOTHING_TO_DO
