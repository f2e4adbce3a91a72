"""kill -9 around the commit that drops partitions; the next run asks the table, and nothing is lost or dropped twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden import clock
from lakewarden.model.run import RunState
from tests.crash.test_crash import kill_at
from tests.crash.test_crash import lab as lab
from tests.support.lab import Lab
from tests.support.paimon import paimon_lab

pytestmark = pytest.mark.crash

JOB = "expire-partitions"
ON: dict[str, object] = {"partition_expiry_enabled": True, "partition_ttl_hours": "30d"}
TODAY = f"{clock.now():%Y-%m-%d}"
# Whether the commit had happened when the process died. The second is for `make crash`.
MOMENTS = [
    pytest.param("committed", "before", True, id="after the commit"),
    pytest.param("committing", "after", False, id="before the commit", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("step", "when", "happened"), MOMENTS)
def test_a_killed_drop_is_settled_by_the_next_run(
    lab: Lab, tmp_path: Path, step: str, when: str, happened: bool
) -> None:
    table = lab.create("id bigint, dt string", "dt")
    lab.sql(f"insert into {table} values (1, '2024-01-01'), (2, '2024-01-02'), (3, '{TODAY}')")
    lab.lw.set_policy(table, ON)
    kill_at(tmp_path, table, JOB, step, when)
    assert len(lab.rows(table)) == (1 if happened else 3)

    again = lab.lw.run(JOB, table)
    assert again.state is (RunState.NOTHING_TO_DO if happened else RunState.DONE), again.reason
    died = lab.lw.runs(table)[-1]
    assert died.state is (RunState.DONE if happened else RunState.FAILED), died.reason
    assert bool(died.snapshot_ids) == happened
    assert "stopped before the run was over" in died.reason
    assert lab.rows(table) == [(3, TODAY)]
    assert len(lab.snapshots(table)) == 2


@pytest.mark.parametrize(("step", "when", "happened"), MOMENTS)
def test_a_killed_drop_of_a_paimon_table_too(
    spark: SparkSession, tmp_path: Path, step: str, when: str, happened: bool
) -> None:
    with paimon_lab(spark, tmp_path) as paimon:
        table = paimon.create()
        for number, day in enumerate(["2024-01-01", "2024-01-02", TODAY]):
            paimon.maker.write(paimon.load(table), number, 1, day, False)
        paimon.lw.set_policy(table, ON)
        kill_at(tmp_path, table, JOB, step, when)

        again = paimon.lw.run(JOB, table)
        assert again.state is (RunState.NOTHING_TO_DO if happened else RunState.DONE), again.reason
        died = paimon.lw.runs(table)[-1]
        assert died.state is (RunState.DONE if happened else RunState.FAILED), died.reason
        assert paimon.rows(table) == [f"2 v2 {TODAY}"]
        assert len(paimon.lw.view(table).snapshots) == 4
