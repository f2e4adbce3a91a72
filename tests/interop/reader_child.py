"""One small reader in its own environment: a JSON line names a table, a JSON line answers with count and digest.

Run as a script by the readers' Python, which has neither Lakewarden nor Spark. The digest is over every value of
every row, in any order of rows, and is made the same way for every reader.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
from pathlib import Path
from typing import Any


def rows_of(reader: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    return globals()[f"_by_{reader}"](asked)


def _by_pyiceberg(asked: dict[str, Any]) -> Any:
    return _table(asked).scan().to_arrow().to_pylist()


def _by_polars(asked: dict[str, Any]) -> Any:
    import polars

    return polars.scan_iceberg(_table(asked), storage_options=_s3(asked) or None).collect().to_dicts()


def _by_daft(asked: dict[str, Any]) -> Any:
    import daft

    return daft.read_iceberg(_table(asked)).to_arrow().to_pylist()


def _by_datafusion(asked: dict[str, Any]) -> Any:
    from datafusion import SessionContext
    from pyiceberg.table import StaticTable

    # Not the catalog's table: its properties hold an object of the session, which DataFusion's side refuses.
    table = StaticTable.from_metadata(_table(asked).metadata_location, _s3(asked))
    context = SessionContext()
    context.register_table("asked", table)
    return context.sql("select * from asked").to_arrow_table().to_pylist()


def _by_duckdb(asked: dict[str, Any]) -> Any:
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        module = __import__(f"duckdb_extension_{name}")
        (extension,) = Path(module.__path__[0]).rglob("*.duckdb_extension")
        connection.execute(f"load '{extension}'")
    metadata = _table(asked).metadata_location
    return connection.sql(f"select * from iceberg_scan('{_local(metadata)}')").to_arrow_table().to_pylist()


def _by_chdb(asked: dict[str, Any]) -> Any:
    import chdb
    import pyarrow.ipc

    location = _local(_table(asked).location())
    answer = chdb.query(f"select * from icebergLocal('{location}', 'Parquet')", "Arrow")
    return pyarrow.ipc.open_file(answer.bytes()).read_all().to_pylist()


def _table(asked: dict[str, Any]) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("asked", **asked["catalog"]).load_table(asked["table"])


def _s3(asked: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in asked["catalog"].items() if key.startswith("s3.")}


def _local(path: str) -> str:
    return path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")


def digest(rows: list[dict[str, Any]]) -> str:
    lines = sorted(json.dumps([[key, _plain(row[key])] for key in sorted(row)]) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """The same text for the same value, whatever type a reader gives it."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case datetime.datetime():
            return value.replace(tzinfo=None).isoformat()
        case datetime.date():
            return value.isoformat()
        case list() | tuple():
            return [_plain(each) for each in value]
        case bool() | None | int() | float() | str():
            return value
        case _:
            return str(value)


def main(reader: str) -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    for line in sys.stdin:
        try:
            rows = rows_of(reader, json.loads(line))
            answer: dict[str, Any] = {"count": len(rows), "digest": digest(rows)}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
