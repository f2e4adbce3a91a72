"""The tables of every configured catalog."""

from __future__ import annotations

from typing import Protocol

from lakewarden.model.table_name import TableRef
from lakewarden.tables.interface import TableFormat


class AllCatalogs(Protocol):
    """Lists and reads the tables of all configured catalogs."""

    def catalogs(self) -> list[str]: ...

    def format_of(self, catalog: str) -> TableFormat: ...

    def format_for(self, table: TableRef) -> TableFormat: ...
