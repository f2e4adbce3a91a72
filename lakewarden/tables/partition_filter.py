"""Evaluates a filter over partition columns in Spark, with one row per partition: a partition matches as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lakewarden.errors import PolicyError
from lakewarden.model.files import KeyKind, LivePartition, PartitionKey
from lakewarden.tables.jvm import JavaError, java_reason

_ID = "lakewarden partition"
_EPOCH = datetime(1970, 1, 1)
_TYPES = {
    KeyKind.YEAR: pa.int64(),
    KeyKind.MONTH: pa.string(),
    KeyKind.DAY: pa.date32(),
    KeyKind.HOUR: pa.timestamp("us"),
    KeyKind.MOMENT: pa.timestamp("us"),
    KeyKind.NUMBER: pa.int64(),
    KeyKind.TEXT: pa.string(),
}


def matching(spark: Any, partitions: Sequence[LivePartition], where: str) -> frozenset[int]:
    """The ids of the partitions that match the filter. A column that a partition lacks is null."""
    kinds = {key.name: key.kind for each in partitions for key in each.keys}
    columns: dict[str, Any] = {_ID: pa.array([partition.id for partition in partitions], pa.int64())}
    for name, kind in kinds.items():
        values = [_value(partition.keys, name, kind) for partition in partitions]
        columns[name] = pa.array(values, _TYPES[kind])
    try:
        rows = spark.createDataFrame(pa.table(columns)).where(where).select(f"`{_ID}`").collect()
    except JavaError as error:
        raise _wrong(where, java_reason(error), kinds) from error
    except Exception as error:  # pyspark has several exception classes for a wrong filter
        if type(error).__module__.startswith("pyspark.errors"):
            raise _wrong(where, str(error).splitlines()[0], kinds) from error
        raise
    return frozenset(row[0] for row in rows)


def _wrong(where: str, reason: str, kinds: dict[str, KeyKind]) -> PolicyError:
    explained = f"found {where!r}; {reason}; write it as SQL over the partition columns {', '.join(kinds)}"
    return PolicyError(key="partition_where", reason=explained)


def _value(keys: Sequence[PartitionKey], name: str, kind: KeyKind) -> Any:
    key = next((key for key in keys if key.name == name and key.kind is kind), None)
    if key is None or key.value is None or isinstance(key.value, str):
        return None if key is None else key.value
    try:
        match kind:
            case KeyKind.YEAR:
                return 1970 + key.value
            case KeyKind.MONTH:
                return f"{1970 + key.value // 12:04d}-{key.value % 12 + 1:02d}"
            case KeyKind.DAY:
                return (_EPOCH + timedelta(days=key.value)).date()
            case KeyKind.HOUR:
                return _EPOCH + timedelta(hours=key.value)
            case KeyKind.MOMENT:
                return _EPOCH + timedelta(microseconds=key.value)
            case KeyKind.TEXT:
                return str(key.value)
            case KeyKind.NUMBER:
                return key.value
    except OverflowError:
        return None  # Python has no date outside the years 1 to 9999, so no filter can match it
