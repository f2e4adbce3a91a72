"""A worker whose database goes away in the middle of a run: nothing is begun without it, and all goes on when it is back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from lakewarden.model.run import RunState
from lakewarden.rewrite.arrow import ArrowEngine
from tests.support.lab import Lab
from tests.support.ports import wait_until
from tests.support.postgres import postgres
from tests.support.spark import add_catalog
from tests.support.workers import passed, with_worker, working

pytestmark = pytest.mark.services


def test_the_worker_waits_for_its_database_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    alone = spark.newSession()
    catalog = add_catalog(alone, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    begun, go_on, real = threading.Event(), threading.Event(), ArrowEngine.write

    def write(self: ArrowEngine, order: Any) -> Any:
        begun.set()
        assert go_on.wait(120)
        return real(self, order)

    with postgres() as server:
        url = server.fresh_database().url.replace("+psycopg", "")
        with with_worker(alone, url, catalog, policy={"rewrite_min_input_files": 2}) as lw:
            lab = Lab(alone, catalog, tmp_path / "warehouse", lw)
            table = lab.messy(files=4, days=1)
            with patch.object(ArrowEngine, "write", write), working(lw) as worker:
                assert begun.wait(120)
                server.kill()
                wait_until(lambda: not worker.leading, "it leads no more", 60)
                go_on.set()
                wait_until(lambda: not worker.at_work(), "its run has stopped", 90)
                assert len(lab.data_files(table)) == 4, "nothing is committed without the journal"
                server.start()
                wait_until(lambda: len(lab.data_files(table)) == 1, "it goes on", 120)
                assert passed(lw, table).state == "done"
            runs = [each for each in lw.runs(table) if each.job == "compact"]
            assert [each.state for each in runs] == [RunState.DONE, RunState.FAILED], runs
            leader = lw.schedule.leader()
            assert leader is not None and leader.term == 2
            assert not lw.schedule.suspended() and lab.strays(table) == set()
