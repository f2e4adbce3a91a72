"""Whether two states of a table have the same rows, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The count of rows, and sum and exclusive-or of a 64-bit hash over all columns of each row."""

    rows: int
    sum: int
    xor: int


def fingerprint(spark: Any, table: str, where: str = "true") -> Fingerprint:
    """Read all rows, or those that match `where`, with Spark: no tool checks itself."""
    columns = ", ".join(f"`{name}`" for name in spark.table(table).columns)
    # Nulls are skipped by the hash, so a value that moved to a null neighbour would go unnoticed without null bits.
    nulls = ", ".join(f"isnull(`{name}`)" for name in spark.table(table).columns)
    row = spark.sql(
        "SELECT count(*), sum(CAST(h AS decimal(38, 0))), bit_xor(h)"
        f" FROM (SELECT xxhash64({columns}, {nulls}) AS h FROM {table} WHERE {where})"
    ).first()
    return Fingerprint(int(row[0]), int(row[1] or 0), int(row[2] or 0))
