"""A listing from elsewhere: an inventory file or a view of the session, instead of listing the store.

One inventory may serve every table of a prefix. It needs a path (or a bucket and a key), a size and a time of change, under
the names stores use for them. It may be old: files that were written since are not in it, and are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import UsageError
from lakewarden.jobs.sweep.plan import StoreListing
from lakewarden.model.location import all_inside
from lakewarden.storage.objects import LISTING

_PATH = ("path", "file_path", "uri")
_SIZE = ("size", "length", "file_size", "size_in_bytes")
_MODIFIED = ("modified", "last_modified", "last_modified_date", "lastmodified", "mtime")
_STAMP = ("stamp", "etag", "e_tag")


def read_inventory(lake: Any, named: str, roots: Sequence[str]) -> StoreListing:
    """The part of the inventory that lies under the roots. `named` is a Parquet or CSV file, or a table or view of the
    session.
    """
    rows = _load(lake.spark, named)
    columns = {name.lower(): name for name in rows.column_names}
    path = _paths(rows, columns, named)
    modified = _timestamps(rows[_need(columns, _MODIFIED, named)])
    stamp = _optional(rows, columns, _STAMP)
    files = pa.Table.from_arrays(
        [path, rows[_need(columns, _SIZE, named)].cast(pa.int64()), modified, stamp], schema=LISTING
    )
    files = files.filter(all_inside(files["path"], roots))
    newest = pc.max(files["modified"]).as_py()
    if newest is None:
        raise UsageError(
            reason=f"read inventory {named}: it has no file under {', '.join(roots)}",
            hint="name an inventory that covers the table's location",
        )
    return StoreListing(files, newest, tuple(roots))


def _load(spark: Any, named: str) -> pa.Table:
    try:
        if named.endswith((".csv", ".csv.gz")):
            return spark.read.csv(named, header=True, inferSchema=True).toArrow()
        if named.endswith(".parquet") or "/" in named:
            return spark.read.parquet(named).toArrow()
        return spark.table(named).toArrow()
    except Exception as error:  # Spark has many ways to say that something is not there
        raise UsageError(
            reason=f"read inventory {named}: {str(error).splitlines()[0]}",
            hint="name a Parquet or CSV file with a header, or a table or view that Spark can read",
        ) from error


def _need(columns: dict[str, str], names: Sequence[str], named: str) -> str:
    for name in names:
        if name in columns:
            return columns[name]
    raise UsageError(
        reason=f"read inventory {named}: it has no column {' or '.join(names)}; it has {', '.join(columns)}",
        hint="rename its columns in a view, and name the view",
    )


def _paths(rows: pa.Table, columns: dict[str, str], named: str) -> Any:
    if "bucket" in columns and "key" in columns:
        bucket, key = (rows[columns[name]].cast(pa.string()) for name in ("bucket", "key"))
        return pc.binary_join_element_wise(pc.binary_join_element_wise("s3://", bucket, ""), key, "/")
    return rows[_need(columns, _PATH, named)].cast(pa.string())


def _timestamps(column: Any) -> Any:
    """Times in UTC. A time without a zone counts as UTC, and a number as milliseconds."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.timestamp("ms"))
    if pa.types.is_string(column.type):
        column = pc.strptime(column, format="%Y-%m-%dT%H:%M:%S", unit="us", error_is_null=False)
    return column.cast(pa.timestamp("us", "UTC"))


def _optional(rows: pa.Table, columns: dict[str, str], names: Sequence[str]) -> Any:
    name = next((columns[each] for each in names if each in columns), None)
    return pa.nulls(rows.num_rows, pa.string()) if name is None else rows[name].cast(pa.string())
