"""Hand-off of a Paimon table from one bucket to another, whose catalog is a database, in the storage class of the policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden import Lakewarden
from lakewarden.model.actions import AgeFiles
from lakewarden.model.run import RunState
from lakewarden.storage.objects import Objects
from tests.cold.test_cold_retention import later
from tests.cold.test_s3_handoff import classes
from tests.support.paimon import CATALOG, COLD
from tests.support.paimon_s3 import BucketLab, s3_properties
from tests.support.postgres import Database
from tests.support.s3 import S3
from tests.tables.test_paimon_catalogs import in_postgres

pytestmark = pytest.mark.services


def test_from_bucket_to_bucket(
    spark: SparkSession, exact_s3: S3, pg_database: Database, tmp_path: Path
) -> None:
    live, cold = exact_s3.bucket(), exact_s3.bucket()
    here = {**s3_properties(live), "warehouse": f"{live.url}/wh"}
    there = {**s3_properties(cold), **in_postgres(pg_database), "warehouse": f"{cold.url}/wh"}
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "catalogs": {CATALOG: {"format": "paimon", **here}, COLD: {"format": "paimon", **there}},
        "policy": {
            "snapshot_retention_hours": 0,
            "snapshot_min_retained": 1,
            "handoff_enabled": True,
            "handoff_catalog": COLD,
            "handoff_storage_class": "GLACIER_IR",
        },
    }
    with Lakewarden(config, spark=spark, environ={}) as lw:
        lab = BucketLab(spark, Path("nowhere"), lw, properties=here, bucket=live)
        table = lab.create()
        for turn in range(2):
            lab.append(table, 3, start=1_000 * turn)
            rows = {each.id: lab.rows(table, each.id) for each in lw.view(table).snapshots}
            for job in ("handoff", "expire"):
                run = lw.run(job, table)
                assert run.state is RunState.DONE, run.reason
        purged = lw.run("purge", table, {"delete_grace_hours": 0})
        assert purged.counters["files_erased"] and not purged.counters["files_held"], purged.reason
        head = lw.view(table).current_snapshot_id
        frozen = lab.maker.load(lab.maker.open(there), "events")
        assert {each.id for each in lw.view(f"{COLD}.db.events").snapshots} == {1, 2, 3, 4, 5}
        for batch in Objects(live.server.io()).list(live.url):
            for path in batch["path"].to_pylist():
                live.client.delete_object(Bucket=live.name, Key=path.removeprefix(f"{live.url}/"))
        for id_ in rows.keys() - {head}:
            assert json.loads(lab.maker.rows(frozen, id_, None)) == rows[id_]
    kinds = {key: kind for key, kind in classes(cold).items() if not key.endswith("/")}
    assert {kind for key, kind in kinds.items() if "/bucket-" in key} == {"GLACIER_IR"}
    assert {kind for key, kind in kinds.items() if "/bucket-" not in key} == {"STANDARD"}


def test_it_ages_is_recalled_and_stays(spark: SparkSession, exact_s3: S3, tmp_path: Path) -> None:
    live, cold = exact_s3.bucket(), exact_s3.bucket()
    here = {**s3_properties(live), "warehouse": f"{live.url}/wh"}
    there = {**s3_properties(cold), "warehouse": f"{cold.url}/wh"}
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "catalogs": {CATALOG: {"format": "paimon", **here}, COLD: {"format": "paimon", **there}},
        "policy": {
            "snapshot_retention_hours": 0,
            "snapshot_min_retained": 1,
            "handoff_enabled": True,
            "handoff_catalog": COLD,
            "handoff_storage_class": "GLACIER_IR",
            "handoff_retention_hours": "30d",
            "cold_retention_hours": "40d",
        },
    }
    with Lakewarden(config, spark=spark, environ={}) as lw:
        lab = BucketLab(spark, Path("nowhere"), lw, properties=here, bucket=live)
        table = lab.create()
        lab.append(table, 3)
        for job in ("handoff", "expire"):
            assert lw.run(job, table).state is RunState.DONE
        with later(50):
            plan = lw.plan("handoff", table)
            assert [type(each) for each in plan.actions] == [AgeFiles]
            told = {each.reason: each.count for each in plan.skipped if each.what == "cold snapshot"}
            assert [count for reason, count in told.items() if "keeps its snapshots forever" in reason] == [2]
            run = lw.run("handoff", table)
            assert run.state is RunState.DONE and run.counters["files_aged"] > 0, run.reason
            assert lw.run("handoff", table).state is RunState.NOTHING_TO_DO
        kinds = {key: kind for key, kind in classes(cold).items() if not key.endswith("/")}
        assert {kind for key, kind in kinds.items() if "/bucket-" in key} == {"DEEP_ARCHIVE"}
        assert {kind for key, kind in kinds.items() if "/bucket-" not in key} == {"STANDARD"}
        found = lw.tiers.where(table, snapshot_id=1)
        assert found.tier == "deep" and f"lakewarden recall {table} --snapshot 1" in found.reason
        done = lw.tiers.recall(table, snapshot_id=1, days=3, wait=True)
        assert done.ready and done.asked == done.archived > 0 and done.where.tier == "recalled"
        tiers = {(each.tier, each.storage_class): each.files for each in lw.tiers.cost(table).tiers}
        assert tiers["deep", "DEEP_ARCHIVE"] == sum(kind == "DEEP_ARCHIVE" for kind in kinds.values())
        assert tiers["live", "STANDARD"] > 0 and tiers["cold", "STANDARD"] > 0
        with later(60):
            purged = lw.run("purge", table, {"delete_grace_hours": 0})
        assert purged.counters["files_erased"] and not purged.counters["files_held"], purged.reason
