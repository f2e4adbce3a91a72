"""What every table format offers. Small enough to hold in the head; each method says what it promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lakewarden.model import FileSet, Manifest, TableRef, TableView
from lakewarden.plan import Bounds, RewriteGroup


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A data file that was written and closed, but that no snapshot names yet."""

    path: str
    bytes: int
    rows: int
    partition_id: int
    split_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What one atomic commit does: these files leave, these come; the rows are the same."""

    table: TableRef
    files: FileSet
    bounds: Bounds
    removed: tuple[str, ...]
    added: tuple[OutputFile, ...]
    summary: Mapping[str, str]


class TableFormat(Protocol):
    def tables(self, catalog: str) -> list[TableRef]:
        """Every table the catalog lists now."""

    def view(self, table: TableRef) -> TableView:
        """The table from its newest metadata. NoSuchTable, or Unreachable, when it cannot be read."""

    def files(self, table: TableRef, snapshot_id: int, where: str | None) -> FileSet:
        """Every live data file of the snapshot that can match `where`. Complete, or raises; never partial."""

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        """Let go of the format's own view of all files but these."""

    def unfit(self, view: TableView) -> str | None:
        """Why the Arrow kernel cannot write this table, if it cannot."""

    def arrow_schema(self, view: TableView) -> bytes:
        """The table's schema as a serialized Arrow schema with field ids at every level."""

    def manifests(self, table: TableRef, snapshot_id: int) -> list[Manifest]:
        """Every manifest of the snapshot."""

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        """Where new data files of these partitions and names belong."""

    def write_properties(self, table: TableRef) -> Mapping[str, str]:
        """How files are reached from outside the format's library: endpoint, region, credentials."""

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        """Check and describe the outputs, so that what is wrong with one shows before a commit is begun."""

    def commit_rewrite(self, rewrite: Rewrite) -> int:
        """One atomic snapshot; its id. CommitLost: nothing changed. CommitUnknown: read the table before acting."""

    def find_commit(self, table: TableRef, summary: Mapping[str, str]) -> int | None:
        """The snapshot whose summary carries all these values, from fresh metadata."""

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        """The group rewritten by the format's own engine, not committed."""

    def rewrite_manifests(
        self, table: TableRef, spec_id: int, target_bytes: int, summary: Mapping[str, str]
    ) -> int | None:
        """Manifests of one spec folded in one atomic snapshot; its id, or None where nothing changed."""
