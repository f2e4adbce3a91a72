"""The REST catalog the other tests rely on."""

from __future__ import annotations

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.support.ports import answers
from tests.support.rest_catalog import RestCatalog
from tests.support.spark import add_catalog, rest_catalog_properties

pytestmark = pytest.mark.services


def test_spark_writes_and_reads_and_the_table_survives_a_crash(
    spark: SparkSession, rest_catalog: RestCatalog
) -> None:
    lake = add_catalog(spark, rest_catalog_properties(rest_catalog.uri))
    spark.sql(f"create table {lake}.db.t (a int) using iceberg")
    spark.sql(f"insert into {lake}.db.t values (1), (2)")

    rest_catalog.kill()
    assert not answers(rest_catalog.port)

    rest_catalog.start()
    assert [row.a for row in spark.sql(f"select a from {lake}.db.t order by a").collect()] == [1, 2]


def test_listens_on_the_loopback_only(rest_catalog: RestCatalog) -> None:
    import psutil

    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process(rest_catalog.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_speaks_the_rest_protocol(rest_catalog: RestCatalog) -> None:
    answer = httpx.get(f"{rest_catalog.uri}/v1/config")
    assert answer.status_code == 200
    assert "defaults" in answer.json()
