"""A lab per test on the shared session: Hadoop catalog, SQLite state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.lab import Lab, lakewarden
from tests.support.paimon import PaimonLab, paimon_lab
from tests.support.spark import add_catalog, remove_catalog


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    warehouse = tmp_path / "warehouse"
    catalog = add_catalog(spark, {"type": "hadoop", "warehouse": str(warehouse)})
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, warehouse, lw)
    remove_catalog(spark, catalog)


@pytest.fixture
def paimon(spark: SparkSession, tmp_path: Path) -> Iterator[PaimonLab]:
    with paimon_lab(spark, tmp_path) as lab:
        yield lab
