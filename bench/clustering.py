"""How well a table is clustered: the files that queries open, and the value range of files in a partition."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import mean
from typing import Any

from bench.telemetry import FIRST_DAY

# A few selective conditions per column; the result is their mean.
QUERIES: Mapping[str, tuple[str, ...]] = {
    "device_id = one device": tuple(f"device_id = 'device-{n:06d}'" for n in (17, 1003, 1800)),
    "temperature in a narrow range": tuple(
        f"temperature BETWEEN {low} AND {low + 0.01}" for low in (16.0, 21.7, 26.3)
    ),
}
ONE_DAY = f"day = DATE '{FIRST_DAY}'"


def files_opened(spark: Any, table: str) -> dict[str, float]:
    """Data files that Spark's scan opened, for each kind of query."""
    return {
        name: mean(_opened(spark, table, condition) for condition in conditions)
        for name, conditions in QUERIES.items()
    }


def _opened(spark: Any, table: str, condition: str) -> int:
    with _plain_plans(spark):
        query = spark.sql(f"SELECT count(*) FROM {table} WHERE {condition}")
        query.collect()
        leaves = query._jdf.queryExecution().executedPlan().collectLeaves()
        return sum(
            int(leaves.apply(n).metrics().apply("resultDataFiles").value()) for n in range(leaves.length())
        )


@contextmanager
def _plain_plans(spark: Any) -> Iterator[None]:
    """Switch off adaptive execution: an adaptive plan hides its scans after it has run."""
    key = "spark.sql.adaptive.enabled"
    before = spark.conf.get(key)
    spark.conf.set(key, "false")
    try:
        yield
    finally:
        spark.conf.set(key, before)


def spans_of_one_day(spark: Any, table: str) -> tuple[int, dict[str, float]]:
    """The files of the first day, and for each column the average share of its range that a file covers."""
    devices = [
        row[0]
        for row in spark.sql(
            f"SELECT DISTINCT device_id FROM {table} WHERE {ONE_DAY} ORDER BY device_id"
        ).collect()
    ]
    rows = spark.sql(
        "SELECT readable_metrics.device_id.lower_bound, readable_metrics.device_id.upper_bound,"
        " readable_metrics.temperature.lower_bound, readable_metrics.temperature.upper_bound"
        f" FROM {table}.files WHERE content = 0 AND partition.{ONE_DAY}"
    ).collect()
    # Strings have no differences, so their ranks are used.
    places = [(bisect_left(devices, low), bisect_left(devices, high)) for low, high, _, _ in rows]
    temperatures = [(low, high) for _, _, low, high in rows]
    return len(rows), {"device_id": _mean_span(places), "temperature": _mean_span(temperatures)}


def _mean_span(bounds: Sequence[tuple[float, float]]) -> float:
    whole = max(high for _, high in bounds) - min(low for low, _ in bounds)
    return mean((high - low) / whole for low, high in bounds)
