"""The same run on every catalog and every state database; and on executors that are processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.errors import NoSuchTable, Unreachable
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef
from tests.support.lab import Lab, lakewarden
from tests.support.one_run import expected_of, one_run
from tests.support.spark import add_catalog

pytestmark = pytest.mark.services


def catalog_properties(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    warehouse = str(tmp_path / "warehouse")
    if kind == "hadoop":
        return {"type": "hadoop", "warehouse": warehouse}
    if kind == "jdbc-sqlite":
        uri = f"jdbc:sqlite:{tmp_path}/catalog.db"
        return {
            "type": "jdbc",
            "uri": uri,
            "warehouse": warehouse,
            "jdbc.schema-version": "V1",
            "clients": "1",
        }
    if kind == "jdbc-postgres":
        database = request.getfixturevalue("pg_database")
        return {
            "type": "jdbc",
            "uri": database.jdbc_url,
            "jdbc.user": database.user,
            "jdbc.password": database.password,
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
        }
    return {"type": "rest", "uri": request.getfixturevalue("rest_catalog").uri}


@pytest.fixture(params=["hadoop", "jdbc-sqlite", "jdbc-postgres", "rest"])
def catalog(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> str:
    return add_catalog(spark, catalog_properties(request.param, request, tmp_path))


@pytest.fixture(params=["sqlite", "postgresql"])
def lab(request: pytest.FixtureRequest, spark: SparkSession, catalog: str, tmp_path: Path) -> Iterator[Lab]:
    sqlite = f"sqlite:///{tmp_path}/state.db"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres").fresh_database().url
    with lakewarden(spark, url) as lw:
        yield Lab(spark, catalog, tmp_path / "warehouse", lw)


def test_a_table_is_found_planned_compacted_and_its_manifests_folded(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.rows(table)
    assert TableRef.parse(table) in lab.lw.tables(lab.catalog)

    view = lab.lw.view(table)
    assert (view.counters.data_files, view.counters.records) == (16, 1600)
    assert [field.transform for field in view.specs[0].fields] == ["identity"]

    run = lab.lw.run("compact", table)
    assert (run.state, run.counters["files_added"]) == (RunState.DONE, 2), run.reason
    assert lab.lw.run("compact", table).state is RunState.NOTHING_TO_DO

    folded = lab.lw.run("rewrite-manifests", table, policy={"manifest_rewrite_min_manifests": 2})
    assert folded.state is RunState.DONE, folded.reason
    assert folded.counters["manifests_after"] == 1

    assert lab.rows(table) == before
    assert [(each.job, each.state.value) for each in lab.lw.runs(table)] == [
        ("rewrite-manifests", "done"),
        ("compact", "nothing-to-do"),
        ("compact", "done"),
    ]
    with pytest.raises(NoSuchTable, match="has no such table"):
        lab.lw.plan("compact", f"{lab.catalog}.db.nosuch")


def test_a_catalog_that_is_down_is_named_and_nothing_is_written(
    spark: SparkSession, rest_catalog: object, tmp_path: Path
) -> None:
    catalog = add_catalog(spark, {"type": "rest", "uri": rest_catalog.uri})  # type: ignore[attr-defined]
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        table = Lab(spark, catalog, tmp_path, lw).messy(files=2, days=1)
        rest_catalog.kill()  # type: ignore[attr-defined]
        with pytest.raises(Unreachable, match=f"catalog {catalog}") as caught:
            lw.run("compact", table)
        assert caught.value.exit_code == 2
        assert lw.runs() == ()


@pytest.mark.nightly  # test_standalone.py runs every time
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,2048]"])
def test_executors_of_their_own_give_the_same_result(master: str, tmp_path: Path) -> None:
    """A session of its own in a process of its own: kernels reach the executors, rows and files are the same."""
    where = "driver" if master.startswith("local[") else "executors"
    assert one_run(master, tmp_path) == expected_of(master, where)
