"""The interface between a plan and the engine that rewrites data. Two engines implement it.

An engine writes; it never commits, expires or deletes. The plan sets the limits, and both engines get the same
plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.plan import Plan
from lakewarden.model.table import TableView
from lakewarden.rewrite.digest import Digest
from lakewarden.rewrite.order.sort_keys import Ordering
from lakewarden.rewrite.task import SlicePart
from lakewarden.tables.interface import OutputFile


@dataclass(frozen=True, slots=True)
class Order:
    """A set of groups to write in one call, with the path prefix of each output (the engine completes it)."""

    run_id: str
    view: TableView
    files: FileSet
    plan: Plan
    groups: tuple[RewriteGroup, ...]
    prefixes: Mapping[int, tuple[str, ...]]
    schema: bytes
    encodings: str
    ordering: Ordering | None = None
    sort_order_id: int = 0
    digest: bool = True
    copy_pages: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)  # the table's `write.parquet.*` properties


@dataclass(frozen=True, slots=True)
class RewriteProblem:
    """Why a group could not be written. `unfit` means another engine can; otherwise `path` names the faulty file."""

    unfit: bool
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result of one group: its outputs, or the trouble (then nothing of it may be committed).

    `erased` counts deleted rows. `read` and `written` are digests of the rows read and written, as far as they
    were hashed; where pages were `copied`, they cover only the other columns' values in their order. `parts`
    say, by output, where each source's rows are in it; empty if rows changed their order.
    """

    group: RewriteGroup
    outputs: tuple[OutputFile, ...]
    trouble: RewriteProblem | None
    cpu_seconds: float = 0.0
    peak_rss: int = 0
    engine: str = "arrow"
    erased: int = 0
    read: Digest | None = None
    written: Digest | None = None
    parts: Mapping[str, tuple[SlicePart, ...]] = field(default_factory=dict)
    waited: float = 0.0
    exchanged: bool = False  # rows were sent from task to task because they did not fit one task's memory
    copied: bool = False  # some task copied whole pages and verified their checksums

    @property
    def differs(self) -> bool:
        """Whether the written rows differ from the rows that were read."""
        return self.read != self.written


class RewriteEngine(Protocol):
    name: str

    def write(self, order: Order) -> Sequence[GroupResult]:
        """Write all groups. Returns one result per group, in order."""

    def cancel(self) -> None:
        """Stop all writing for this run, from any thread; `write` then raises."""
