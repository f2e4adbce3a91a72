"""What a table is made from and what is made from it, table by table, as portraits tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakewarden.client import Lakewarden
from lakewarden.console import queries
from lakewarden.health.table_details import TableDetails
from lakewarden.lineage.audit import inputs_of

_MOST = 12


@dataclass(frozen=True, slots=True)
class TableRelations:
    """Names of tables, with how many live commits tell so: where this one's data came from, and where it went."""

    table: str
    sources: tuple[tuple[str, int], ...] = ()
    results: tuple[tuple[str, int], ...] = ()

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        came = [(name, self.table) for name, _ in self.sources]
        return (*came, *((self.table, name) for name, _ in self.results))

    def to_dict(self) -> dict[str, Any]:
        return {
            "sources": [{"table": name, "commits": count} for name, count in self.sources],
            "results": [{"table": name, "commits": count} for name, count in self.results],
        }


def table_relations(warden: Lakewarden, table: str, portrait: TableDetails | None) -> TableRelations:
    if portrait is None:
        return TableRelations(table)
    results = Counter(
        each.table
        for each in queries.inputs_naming(warden, f"{table}@")
        if each.table != table and table in _named(each.inputs)
    )
    sources = Counter(name for line in portrait.snapshots for name in _named(line.inputs) if name != table)
    return TableRelations(table, _most(sources), _most(results))


def _named(inputs: str) -> set[str]:
    return {table for table, _ in inputs_of(inputs)[0] if table} if inputs else set()


def _most(counted: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counted.items(), key=lambda each: (-each[1], each[0]))[:_MOST])
