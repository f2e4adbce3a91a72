"""The seam between a plan and whatever rewrites data: two engines stand behind it.

An engine writes; it never commits, expires or deletes. The plan carries the bounds, and both engines get the same plan.
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
from lakewarden.rewrite.task import Part
from lakewarden.tables.interface import OutputFile


@dataclass(frozen=True, slots=True)
class Order:
    """Groups to write together in one go, with where each output goes (a prefix the engine completes)."""

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
    properties: Mapping[str, str] = field(
        default_factory=dict
    )  # `write.parquet.` ones, as the table wants its files


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a group could not be written. `unfit` means another engine can; otherwise `path` names the file at fault."""

    unfit: bool
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True, slots=True)
class Written:
    """What came of one group: outputs, or the trouble (then nothing of it may be committed).

    `erased` rows were deleted ones. `read` and `written` are digests of the rows on their way in and out, as far as they
    were hashed; where pages were `copied`, of the other columns' values in their order. `parts` tell, by output, where each
    source's rows are in it; empty where rows changed their order.
    """

    group: RewriteGroup
    outputs: tuple[OutputFile, ...]
    trouble: Trouble | None
    cpu_seconds: float = 0.0
    peak_rss: int = 0
    engine: str = "arrow"
    erased: int = 0
    read: Digest | None = None
    written: Digest | None = None
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    waited: float = 0.0
    exchanged: bool = False  # rows went from task to task: they did not fit one's memory
    copied: bool = False  # by some task pages were copied whole, and their checksums compared

    @property
    def differs(self) -> bool:
        """Whether the rows that came out are not those that went in."""
        return self.read != self.written


class RewriteEngine(Protocol):
    name: str

    def write(self, order: Order) -> Sequence[Written]:
        """One result per group, in order."""

    def cancel(self) -> None:
        """Stop what is being written for this run, from any thread; `write` then raises."""
