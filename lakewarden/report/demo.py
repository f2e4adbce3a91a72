"""The demo's last screen: the whole story, on one terminal of 80 by 40."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import average, counted, duration, number, percent, size
from lakewarden.model.run import Run
from lakewarden.report import look
from lakewarden.report.run import RunReport, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

LINEAGE = ("writer.id", "writer.commit_hash", "lineage.operation", "lineage.run_id", "trigger.type", "trigger.operator", "input.row_count")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picture:
    """The table at one moment, and what a query costs on it."""

    snapshot_id: int
    files: int
    bytes: int
    rows: int
    checksum: str
    query_seconds: float
    query_files: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Proof:
    """One promise, and whether it held."""

    name: str
    held: bool
    found: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "held": self.held, "found": self.found}

    def line(self) -> tuple[Text, str, str]:
        mark = Text("yes", style="bold green") if self.held else Text("NO", style="bold red")
        return mark, self.name, self.found


@dataclass(frozen=True, slots=True)
class DemoReport:
    table: str
    config: str
    before: Picture
    after: Picture
    run: Run
    lineage: Mapping[str, str]
    proofs: tuple[Proof, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def held(self) -> bool:
        return all(proof.held for proof in self.proofs)

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "config": self.config,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "run": RunReport(self.run).to_dict(),
            "lineage": dict(self.lineage),
            "proofs": [proof.to_dict() for proof in self.proofs],
            "next": [command for command, _ in self.commands],
        }

    def render(self, width: int) -> RenderableType:
        took = duration(seconds(self.run) or 0)
        commits = counted(len(self.run.snapshot_ids), "commit")
        return look.stack(
            Text(),
            look.title("demo", self.table),
            look.lines(self._change(), ("left", "right", "right", "left"), ("", "before", "after", "")),
            look.dim(f"  compacted in {took}, {commits}: one per day, so writers of other days never wait"),
            Text("\nwho did this, and why", style="bold"),
            look.facts([(key, self.lineage[key]) for key in LINEAGE if key in self.lineage]),
            Text("\nproof", style="bold"),
            look.lines([proof.line() for proof in self.proofs], look.left(3)),
            Text("\ngo on by hand", style="bold"),
            *(_next(command, why) for command, why in self.commands),
        )

    def _change(self) -> list[tuple[str, str, str, Text]]:
        old, new = self.before, self.after
        return [
            ("data files", number(old.files), number(new.files), _gain(old.files, new.files)),
            ("average file", average(old.bytes, old.files), average(new.bytes, new.files), Text()),
            ("data", size(old.bytes), size(new.bytes), look.dim(f"{percent(old.bytes - new.bytes, old.bytes)} less")),
            ("files a query opens", number(old.query_files), number(new.query_files), _gain(old.query_files, new.query_files)),
            ("that query takes", duration(old.query_seconds), duration(new.query_seconds), _gain(old.query_seconds, new.query_seconds)),
        ]  # fmt: skip


def _gain(old: float, new: float) -> Text:
    return Text(f"{old / new:.1f} times less", style="green") if new and old > new else Text()


def _next(command: str, why: str) -> Text:
    return Text.assemble(f"  {why}\n    ", look.command(command))
