"""Audits on the screen: history, when data came in, what was made from it, who committed, commits without lineage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import counted, moment, number, size, some
from lakewarden.lineage.audit import CommitAuthors, Downstream, Gaps, IngestCommit, Ingested, Node
from lakewarden.lineage.history import Entry
from lakewarden.model.plain import Plain, pick
from lakewarden.report import look
from lakewarden.services.history import HistoryView
from lakewarden.state.history import Detail

if TYPE_CHECKING:
    from rich.console import RenderableType

# Lines shown on a screen; `--json` has all.
SHOWN = 50
_NOT_TOLD = "–"


@dataclass(frozen=True, slots=True)
class HistoryReport:
    history: HistoryView

    def to_dict(self) -> dict[str, Any]:
        months = [_month(each) for each in self.history.details]
        return {**pick(self.history, "table counts entries"), "months": months}

    def render(self, width: int) -> RenderableType:
        found = self.history
        counts = found.counts
        where = f"{number(counts['live'])} live, {number(counts['archived'])} archived, {number(counts['folded'])} folded"
        kept = sum(each.bytes for each in found.details)
        facts: list[tuple[str, str | Text]] = [("entries", where)]
        others = {each.written_as for each in found.entries} - {None, found.table}
        if others:
            told = some(sorted(str(each) for each in others))
            facts.append(("also as", f"{told}: its name before, or a copy with the same uuid"))
        if found.details:
            ranges = sum(len(each.ranges) for each in found.details)
            facts.append(("folded into", f"{counted(ranges, 'range')}, details of {size(kept)}"))
        return look.stack(
            look.title("history", found.table),
            look.facts(facts),
            Text(),
            _entries(found.entries) if found.entries else look.dim("  no history is known"),
            *_folded(found.details),
        )


@dataclass(frozen=True, slots=True)
class IngestedReport(Plain):
    ingested: Ingested

    JSON_KEYS = "**ingested"

    def render(self, width: int) -> RenderableType:
        found = self.ingested
        return look.stack(
            look.title("audit ingested", found.table),
            look.facts([("asked", found.question)]),
            Text(),
            _commits(found.commits) if found.commits else look.dim("  no commit added any"),
            *_more(
                "the commits above rewrote data that these commits added",
                [each for each in found.origins if not each.only_read],
            ),
            *_more(
                "the commits above rewrote data of these snapshots; it was added by them or by earlier commits",
                [each for each in found.origins if each.only_read],
            ),
            *_more("removed again by", found.removed_by),
        )


@dataclass(frozen=True, slots=True)
class DownstreamReport(Plain):
    downstream: Downstream

    JSON_KEYS = "**downstream"

    def render(self, width: int) -> RenderableType:
        found = self.downstream
        facts: list[tuple[str, str | Text]] = [
            (
                "snapshot",
                str(found.start.snapshot_id) if found.entry else f"{found.start.snapshot_id}, unknown",
            ),
            ("read", f"{counted(found.snapshots, 'snapshot')} of {counted(found.tables, 'table')}"),
            ("made from it", _radius(found)),
        ]
        if found.unread:
            told = [f"{table}: {reason}" for table, reason in found.unread]
            facts.append(("not read", Text(some(told), style="bold yellow")))
        if found.unreadable:
            told = [f"{text!r} of {node}" for node, text in found.unreadable]
            facts.append(("unreadable", Text(some(told), style="bold yellow")))
        rows = [
            (
                number(each.depth),
                str(each.node),
                moment(each.entry.snapshot.committed_at),
                each.entry.operation,
                each.entry.told("writer.id") or _NOT_TOLD,
                look.dim(str(each.via)),
            )
            for each in found.affected[:SHOWN]
        ]
        headings = ("step", "snapshot", "committed", "operation", "writer", "made from")
        return look.stack(
            look.title("audit downstream", str(found.start)),
            look.facts(facts),
            *_lines(rows, ("right", *look.left(5)), headings, wraps=(1, 5)),
            _rest(len(found.affected)),
        )


def _radius(found: Downstream) -> str:
    if not found.affected:
        return "nothing"
    tables = {each.node.table for each in found.affected}
    return (
        f"{counted(len(found.affected), 'snapshot')} of {counted(len(tables), 'table')}, "
        f"up to {counted(found.depth, 'step')} away"
    )


def dot(found: Downstream) -> str:
    """The graph for Graphviz: `… --format dot | dot -Tsvg`."""
    lines = [f"  {_quoted(str(node))} [label={_quoted(label)}];" for node, label in _labels(found)]
    lines += [f"  {_quoted(str(parent))} -> {_quoted(str(child))};" for parent, child in found.edges]
    return "\n".join(["digraph downstream {", "  rankdir=LR;", "  node [shape=box];", *lines, "}"])


def mermaid(found: Downstream) -> str:
    """The graph as a Mermaid flowchart."""
    labels = _labels(found)
    names = {node: f"n{place}" for place, (node, _) in enumerate(labels)}
    lines = [f'  {names[node]}["{_escaped(label)}"]' for node, label in labels]
    lines += [f"  {names[parent]} --> {names[child]}" for parent, child in found.edges]
    return "\n".join(["flowchart LR", *lines])


def _labels(found: Downstream) -> list[tuple[Node, str]]:
    known = {each.node: each.entry.operation for each in found.affected}
    known = {found.start: found.entry.operation if found.entry else "unknown", **known}
    return [(node, f"{node} {operation}") for node, operation in known.items()]


def _quoted(text: str) -> str:
    escaped = _visible(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _escaped(text: str) -> str:
    """`#` is replaced first: it starts an escape in Mermaid."""
    told = _visible(text).replace("#", "#35;").replace("&", "#amp;").replace('"', "#quot;")
    return told.replace("<", "#lt;").replace(">", "#gt;").replace("`", "#96;")


def _visible(text: str) -> str:
    """Line ends and control characters as escapes: summaries may contain them, and each line of a graph has a meaning."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


@dataclass(frozen=True, slots=True)
class WhoReport(Plain):
    who: CommitAuthors

    JSON_KEYS = "**who"

    def render(self, width: int) -> RenderableType:
        found = self.who
        facts: list[tuple[str, str | Text]] = [
            ("commits", f"{number(len(found.entries))}{f' of {found.operation}' if found.operation else ''}")
        ]
        if found.since or found.until:
            begin = moment(found.since) if found.since else "the beginning"
            facts.append(("from", f"{begin} to {moment(found.until) if found.until else 'now'}"))
        rows = [
            (
                str(each.snapshot.id),
                moment(each.snapshot.committed_at),
                each.operation,
                each.told("trigger.type") or _NOT_TOLD,
                each.told("trigger.operator") or _NOT_TOLD,
                each.told("trigger.ticket") or _NOT_TOLD,
                each.told("writer.id") or _NOT_TOLD,
            )
            for each in found.entries[:SHOWN]
        ]
        headings = ("snapshot", "committed", "operation", "trigger", "operator", "ticket", "writer")
        return look.stack(
            look.title("audit who", found.table),
            look.facts(facts),
            *_lines(rows, look.left(7), headings, wraps=(3, 4, 5, 6)),
            _rest(len(found.entries)),
        )


@dataclass(frozen=True, slots=True)
class GapsReport(Plain):
    gaps: Gaps

    JSON_KEYS = "**gaps"

    def render(self, width: int) -> RenderableType:
        found = self.gaps
        share = f"{number(len(found.gaps))} of {counted(found.commits, 'commit')} lack lineage that the policy requires"
        rows = [
            (
                str(each.entry.snapshot.id),
                moment(each.entry.snapshot.committed_at),
                each.entry.operation,
                look.dim(each.told),
            )
            for each in found.gaps[:SHOWN]
        ]
        turned = [
            (each.door, number(each.count), moment(each.at), look.dim(each.reason)) for each in found.rejected
        ]
        headings = ("snapshot", "committed", "operation", "what is wrong")
        return look.stack(
            look.title("audit gaps", found.table),
            look.facts([("gaps", share), *(("asked by", each) for each in found.asked)]),
            *_lines(rows, look.left(4), headings),
            _rest(len(found.gaps)),
            *_lines(
                turned,
                ("left", "right", "left", "left"),
                ("door", "commits", "last", "reason"),
                "rejected before they became commits",
            ),
        )


# ------------------------------------------------------------ parts


def _lines(
    rows: Sequence[Sequence[str | Text]],
    sides: Sequence[look.Justify],
    headings: Sequence[str],
    title: str = "",
    wraps: Sequence[int] = (),
) -> list[RenderableType]:
    """An empty line, the title if there is one, and the rows; nothing if there are no rows."""
    if not rows:
        return []
    above: list[RenderableType] = [look.dim(f"  {title}")] if title else []
    return [Text(), *above, look.lines(rows, sides, headings, wraps=wraps)]


def _entries(entries: Iterable[Entry]) -> RenderableType:
    rows = [
        (
            str(each.snapshot.id),
            moment(each.snapshot.committed_at),
            each.operation,
            each.told("writer.id") or _NOT_TOLD,
            each.told("trigger.operator") or each.told("trigger.type") or _NOT_TOLD,
            str(each.source),
        )
        for each in entries
    ]
    return look.lines(rows, look.left(6), ("snapshot", "committed", "operation", "writer", "trigger", "from"))


def _folded(details: Sequence[Detail]) -> list[RenderableType]:
    rows = [
        (
            detail.month,
            each.operation,
            each.writer or _NOT_TOLD,
            number(each.entries),
            number(each.rows),
            size(each.bytes),
            look.dim(detail.id),
        )
        for detail in details
        for each in detail.ranges
    ]
    if not rows:
        return []
    sides: tuple[look.Justify, ...] = ("left", "left", "left", "right", "right", "right", "left")
    headings = ("month", "operation", "writer", "entries", "rows", "size", "detail")
    return [
        Text(),
        look.lines(rows[:SHOWN], sides, headings),
        *([rest] if (rest := _rest(len(rows))) else []),
    ]


def _commits(commits: Sequence[IngestCommit]) -> RenderableType:
    rows = [
        (
            str(each.node.snapshot_id),
            moment(each.entry.snapshot.committed_at) if each.entry else "no longer known",
            each.entry.operation if each.entry else _NOT_TOLD,
            _told(each, "writer.id"),
            _told(each, "writer.commit_hash")[:12],
            _told(each, "writer.invocation_id"),
            _NOT_TOLD if each.files is None else number(each.files),
        )
        for each in commits[:SHOWN]
    ]
    headings = ("snapshot", "committed", "operation", "writer", "version", "invocation", "files")
    lines = look.lines(rows, (*look.left(6), "right"), headings, wraps=(5,))
    return look.stack(lines, _rest(len(commits)))


def _told(commit: IngestCommit, key: str) -> str:
    return (commit.entry.told(key) if commit.entry else None) or _NOT_TOLD


def _more(title: str, commits: Sequence[IngestCommit]) -> list[RenderableType]:
    return [Text(), look.dim(f"  {title}"), _commits(commits)] if commits else []


def _rest(count: int) -> Text | None:
    return look.dim(f"  and {count - SHOWN:,} more: --json has them all") if count > SHOWN else None


def _month(detail: Detail) -> dict[str, Any]:
    return {
        **pick(detail, "month detail=id"),
        "kept_in": detail.path or "state",
        **pick(detail, "entries bytes sha256 folded_at=made_at run_id ranges"),
    }
