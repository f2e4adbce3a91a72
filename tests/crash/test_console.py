"""A console of its own whose Spark dies: the next call that reads a table has another one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from pyspark.sql import SparkSession

from tests.support.spark import add_catalog

pytestmark = pytest.mark.crash

CONFIG = """\
[state]
url = "sqlite:///{folder}/state.db"
[catalogs.lake]
type = "hadoop"
warehouse = "{folder}/warehouse"
"""


@contextmanager
def console(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    config = folder / "lakewarden.toml"
    config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
    command = [sys.executable, "-m", "lakewarden.cli", "--config", str(config), "console", "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            said = ""
            while not (found := re.search(r'"address": "(.*)"', said)):
                said += started.stdout.readline()
            yield psutil.Process(started.pid), found[1]
        finally:
            started.terminate()


@pytest.mark.nightly
def test_a_console_replaces_a_spark_that_died(spark: SparkSession, tmp_path: Path) -> None:
    catalog = add_catalog(spark, {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")})
    spark.sql(f"create table {catalog}.db.events (id bigint) using iceberg")
    spark.sql(f"insert into {catalog}.db.events values (1)")
    with console(tmp_path) as (process, address), httpx.Client(base_url=address, timeout=120) as client:
        plan = "/api/v1/tables/lake.db.events/plan/compact"
        assert client.get(plan).status_code == 200, client.get(plan).text
        (java,) = [each for each in process.children(recursive=True) if each.name() == "java"]
        java.kill()
        psutil.wait_procs([java], 30)
        assert client.get(plan).status_code == 200, client.get(plan).text
