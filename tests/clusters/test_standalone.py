"""A Spark standalone master with two workers: executors that never saw Lakewarden get it as an archive, and give the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.one_run import expected_of, one_run
from tests.support.standalone import python_without_us, standalone

pytestmark = pytest.mark.services


def test_a_standalone_cluster_does_the_work(tmp_path: Path) -> None:
    python = python_without_us(tmp_path / "python")
    conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    with standalone(tmp_path, python) as master:
        found = one_run(master, tmp_path, conf, {"PYSPARK_PYTHON": str(python), "PYTHONPATH": ""})
    assert found == expected_of(master, "executors")
