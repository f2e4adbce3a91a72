"""Equality deletes as streaming engines write them. Spark cannot write them, so this module writes the files
and Iceberg commits them.

Only for benchmarks and tests. The rows of a delete file are a given Arrow table; its column names are the
key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq


def load(spark: Any, table: str) -> Any:
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)


def add_equality_deletes(
    spark: Any,
    table: str,
    keys: Iterable[pa.Table],
    partition_path: str = "",
    branch: str = "main",
    spec_id: int | None = None,
) -> None:
    """Write one delete file per Arrow table of keys, all in one commit, in this partition (`day=2024-03-11`)
    of the current spec."""
    loaded = load(spark, table)
    delta = loaded.newRowDelta()
    if branch != "main":
        delta = delta.toBranch(branch)
    for each in keys:
        delta = delta.addDeletes(_written(spark, loaded, each, partition_path, spec_id))
    delta.commit()
    spark.sql(f"REFRESH TABLE {table}")


def _written(spark: Any, loaded: Any, keys: pa.Table, partition_path: str, spec_id: int | None) -> Any:
    jvm = spark._jvm
    ids = {
        field["name"]: field
        for field in json.loads(jvm.org.apache.iceberg.SchemaParser.toJson(loaded.schema()))["fields"]
    }
    fields = [
        pa.field(name, keys.schema.field(name).type, metadata={"PARQUET:field_id": str(ids[name]["id"])})
        for name in keys.column_names
    ]
    name = f"eq-{uuid4()}.parquet"
    where = "/".join(
        part for part in (loaded.location().removeprefix("file:"), "data", partition_path, name) if part
    )
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(keys.cast(pa.schema(fields)), where, store_schema=False, compression="zstd")
    spec = loaded.spec() if spec_id is None else loaded.specs()[spec_id]
    metrics = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(
        loaded.io().newInputFile(where), jvm.org.apache.iceberg.MetricsConfig.getDefault()
    )
    numbers = spark.sparkContext._gateway.new_array(jvm.int, len(fields))
    for place, column in enumerate(keys.column_names):
        numbers[place] = ids[column]["id"]
    builder = (
        jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(spec)
        .ofEqualityDeletes(numbers)
        .withPath(where)
        .withFormat("parquet")
        .withFileSizeInBytes(Path(where).stat().st_size)
        .withMetrics(metrics)
    )
    if partition_path:
        builder = builder.withPartitionPath(partition_path)
    return builder.build()
