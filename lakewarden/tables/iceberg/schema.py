"""An Iceberg schema as Arrow, with field ids at every level."""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa

from lakewarden.model.table import TableView

# Parquet keeps these with annotations that Arrow would drop on the way through.
_SPECIAL = re.compile(r'"type": ?"(geometry|geography|variant|unknown)\b')


def arrow_schema(view: TableView) -> pa.Schema:
    return _parse(view.schema_json)


def unfit_types(view: TableView) -> str | None:
    """Why Arrow cannot hold this schema, if it cannot; such tables are left to Iceberg's own writer."""
    special = _SPECIAL.search(view.schema_json)
    if special:
        return f"the schema has a {special.group(1)} column"
    try:
        arrow_schema(view)
    except Exception as error:  # whatever the parser cannot read, the kernel must not touch
        return f"the schema has a type the Arrow kernel does not know ({str(error).splitlines()[0]})"
    return None


@lru_cache(maxsize=64)
def _parse(schema_json: str) -> pa.Schema:
    # Half a second to import: paid only when something is rewritten.
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    return schema_to_pyarrow(Schema.model_validate_json(schema_json), include_field_ids=True)
