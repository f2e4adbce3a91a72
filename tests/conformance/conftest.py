"""Every kind of table that the conformance suite is asked of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lakes import IcebergLake, Lake, PaimonLake
from tests.support.lab import Lab, lakewarden
from tests.support.nightly import nightly_except
from tests.support.paimon import paimon_lab
from tests.support.spark import add_catalog, jdbc_warehouse, remove_catalog

PAIMON = {
    "paimon append": {},
    "paimon append, fixed buckets": {"bucket": "2", "bucket-key": "id"},
    "paimon primary key": {"keyed": True},
}


# Those that differ most are asked every time, the others by `make crash`.
ALWAYS = ["iceberg v2", "paimon append", "paimon primary key"]
KINDS = nightly_except(ALWAYS.__contains__, ["iceberg v2", "iceberg v3", *PAIMON])


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    kind: str = request.param
    if kind in PAIMON:
        with paimon_lab(spark, tmp_path, cold=True) as lab:
            yield PaimonLake(lab, **PAIMON[kind])  # type: ignore[arg-type]
        return
    warehouse = jdbc_warehouse(spark, tmp_path)
    (
        tmp_path / "cold"
    ).mkdir()  # every catalog is read before anything is deleted, and one without a folder cannot be
    cold = add_catalog(spark, {"type": "hadoop", "warehouse": str(tmp_path / "cold")})
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield IcebergLake(Lab(spark, warehouse.catalog, warehouse.path, lw), int(kind[-1]), cold)
    remove_catalog(spark, warehouse.catalog)
    remove_catalog(spark, cold)
