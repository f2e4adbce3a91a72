"""The trash on the screen: trashed files and when they are deleted, restored files, receipts of deletions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import age, counted, known_size, moment, number, size
from lakewarden.model.plain import pick, to_plain
from lakewarden.report import look
from lakewarden.state.trash_batches import (
    BatchFiles,
    BatchState,
    FileState,
    RestoreResult,
    TrashedFile,
    TrashedList,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class TrashedReport:
    table: str
    found: TrashedList
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "batches": [_batch(each, due) for each, due in self.found.batches],
            "files": [_file(each) for each in self.found.files],
        }

    def render(self, width: int) -> RenderableType:
        live = [(each, due) for each, due in self.found.batches if each.live.files]
        title = look.title("trash", self.table)
        if not live:
            return look.stack(title, look.dim("  no file is in the trash"))
        total = sum(each.live.files for each, _ in live)
        shown = len(self.found.files)
        more = f"  … {number(total - shown)} more; --limit {total} shows all" if total > shown else ""
        return look.stack(
            title,
            look.lines(
                [_line(each, due, self.now) for each, due in live],
                ("left", "right", "right", "left", "left"),
                ("run", "files", "size", "deleted", "why"),
            ),
            Text(),
            look.lines(
                [(_size(each), each.path, look.dim(each.note)) for each in self.found.files],
                ("right", "left", "left"),
                wraps=(1, 2),
            ),
            look.dim(more) if more else None,
            Text(),
            Text.assemble(
                ("to keep them:  ", "dim"),
                look.command(f"lakewarden restore {self.table} PATH | --run ID | --all"),
            ),
        )


@dataclass(frozen=True, slots=True)
class RestoreReport:
    table: str
    done: RestoreResult

    def to_dict(self) -> dict[str, Any]:
        return {"table": self.table, **pick(self.done, "restored=files bytes already erasing gone")}

    def render(self, width: int) -> RenderableType:
        done = self.done
        facts: list[tuple[str, str | Text]] = [
            (
                "restored",
                f"{counted(done.files, 'file')}, {known_size(done.bytes, done.files)}: no run deletes them",
            )
        ]
        if done.already:
            facts.append(("already", f"{counted(done.already, 'file')} restored before"))
        if done.erasing:
            facts.append(("too late", f"{counted(done.erasing, 'file')} being deleted at this moment"))
        if done.gone:
            facts.append(("gone", f"{counted(done.gone, 'file')} deleted before"))
        if done.files:
            facts.append(("snapshots", "expired snapshots stay expired: only their files are kept"))
        return look.stack(look.title("restore", self.table), look.facts(facts))


@dataclass(frozen=True, slots=True)
class ReceiptsReport:
    table: str
    files: tuple[TrashedFile, ...]
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"table": self.table, "receipts": [_receipt(each) for each in self.files]}

    def render(self, width: int) -> RenderableType:
        title = look.title("receipts", self.table)
        if not self.files:
            return look.stack(title, look.dim("  nothing was deleted"))
        rows = [
            (
                age(each.ended_at, self.now) if each.ended_at else "–",
                _size(each),
                "deleted" if each.state is FileState.ERASED else "was gone",
                each.run_id or "–",
                each.path,
                look.dim(each.batch.reason),
            )
            for each in self.files
        ]
        headings = ("when", "size", "", "by run", "file", "why")
        justify: tuple[look.Justify, ...] = ("left", "right", *look.left(4))
        proof = "the proof of each deletion: lakewarden run-show ID --json"
        return look.stack(title, look.lines(rows, justify, headings, wraps=(4, 5)), look.dim(proof))


def _line(each: BatchFiles, due: datetime | None, now: datetime) -> tuple[str | Text, ...]:
    batch, live = each.batch, each.live
    return (
        batch.id,
        number(live.files),
        known_size(live.bytes, live.files),
        _when(each, due, now),
        batch.reason,
    )


def _when(each: BatchFiles, due: datetime | None, now: datetime) -> str:
    if due is None or each.batch.state is BatchState.PENDING:
        return "not before its run has ended"
    return "by the next purge" if due <= now else f"not before {moment(due)}"


def _size(each: TrashedFile) -> str:
    return "–" if each.size is None else size(each.size)


def _batch(each: BatchFiles, due: datetime | None) -> dict[str, Any]:
    return {
        **pick(each.batch, "batch=id cause reason state trashed_at"),
        "due_at": to_plain(due),
        "tallies": to_plain(each.tallies),
    }


def _file(each: TrashedFile) -> dict[str, Any]:
    return pick(each, "path kind size state batch=batch.id note")


def _receipt(each: TrashedFile) -> dict[str, Any]:
    erased = "erased_at=ended_at run=run_id"
    return {**_file(each), **pick(each.batch, "cause reason trashed_at"), **pick(each, erased)}
