"""An Iceberg schema as Arrow, with field ids at every level."""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa

from lakewarden.model.table import TableView

# In Parquet these types have annotations that Arrow would lose.
_SPECIAL = re.compile(r'"type": ?"(geometry|geography|variant|unknown)\b')


def arrow_schema(view: TableView) -> pa.Schema:
    return _parse(view.schema_json)


def unfit_types(view: TableView) -> str | None:
    """Why Arrow cannot represent this schema, so that Iceberg's own writer is used; None if it can."""
    special = _SPECIAL.search(view.schema_json)
    if special:
        return f"the schema has a {special.group(1)} column"
    try:
        arrow_schema(view)
    except Exception as error:  # the kernel must not write a schema that the parser cannot read
        return f"the schema has a type the Arrow kernel does not know ({str(error).splitlines()[0]})"
    return None


@lru_cache(maxsize=64)
def _parse(schema_json: str) -> pa.Schema:
    # The import takes half a second, so it happens only for a rewrite.
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    return schema_to_pyarrow(Schema.model_validate_json(schema_json), include_field_ids=True)
