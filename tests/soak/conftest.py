"""A lab whose catalog decides between two commits that come at once, as a folder does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.lab import Lab, lakewarden
from tests.support.paimon import PaimonLab, paimon_lab
from tests.support.spark import jdbc_warehouse


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    made = jdbc_warehouse(spark, tmp_path)
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, made.catalog, made.path, lw)


@pytest.fixture
def paimon(spark: SparkSession, tmp_path: Path) -> Iterator[PaimonLab]:
    with paimon_lab(spark, tmp_path) as made:
        yield made
