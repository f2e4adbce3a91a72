"""Answers audit questions from history entries. Pure.

A commit's `input.snapshot_ids` name the snapshots it was made from, separated by commas:

    lake.db.events@123     snapshot 123 of that table, in whichever catalog and format
    123                    snapshot 123 of the same table, if it ever had one; else of the one other table that has it

The second form is meant for a commit's own table. An id that this table never had is searched in other tables
only if it is too large to be a counter, like Iceberg's random ids: snapshot 7 of one Paimon table is not
snapshot 7 of another.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from lakewarden.lineage.history import Entry
from lakewarden.lineage.validate import Requirements, Violation, validate
from lakewarden.model.plain import Plain, pick
from lakewarden.model.table import printed
from lakewarden.state.audit_log import RejectedCommit

INPUTS = "input.snapshot_ids"
MANIFESTS = "manifests"
# Paimon numbers snapshots from one; a larger id is a random Iceberg id.
_RANDOM = 1 << 32
# Ids of both formats are whole numbers of at most 64 bits. Python would accept many other texts as numbers.
_ID = re.compile("[0-9]{1,19}")


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """One snapshot of one table; prints as `lake.db.events@123`."""

    table: str
    snapshot_id: int

    def __str__(self) -> str:
        return f"{self.table}@{self.snapshot_id}"


def inputs_of(text: str | None) -> tuple[list[tuple[str | None, int]], list[str]]:
    """The table (None: the commit's own) and id of every input, and the texts that are no valid input."""
    inputs: list[tuple[str | None, int]] = []
    unreadable: list[str] = []
    for part in (each.strip() for each in (text or "").split(",")):
        if not part:
            continue
        table, at, number = (each.strip() for each in part.rpartition("@"))
        if _ID.fullmatch(number) and int(number) < 1 << 63 and bool(table) == bool(at):
            inputs.append((printed(table) if table else None, int(number)))
        else:
            unreadable.append(part)
    return inputs, unreadable


# ------------------------------------------------------------ downstream


@dataclass(frozen=True, slots=True)
class Affected(Plain):
    """A snapshot made from the start snapshot, `depth` steps away; the last step came from `via`."""

    node: Node
    depth: int
    via: Node
    entry: Entry

    JSON_KEYS = "**entry depth via"


@dataclass(frozen=True, slots=True)
class Downstream:
    """Everything made from one snapshot, the nearest first. `edges` are all steps between these snapshots,
    including several ways.

    `unreadable` are inputs that name no snapshot, each with its commit; `unread` are tables that could not be
    read, with the reason: the snapshots made there are unknown.
    """

    start: Node
    entry: Entry | None
    affected: tuple[Affected, ...]
    edges: tuple[tuple[Node, Node], ...]
    unreadable: tuple[tuple[Node, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    tables: int = 0
    snapshots: int = 0

    @property
    def depth(self) -> int:
        return max((each.depth for each in self.affected), default=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self, "table=start.table snapshot_id=start.snapshot_id entry affected depth"),
            "edges": [{"from": str(parent), "to": str(child)} for parent, child in self.edges],
            "unreadable": [{"commit": str(node), "input": text} for node, text in self.unreadable],
            "unread": [{"table": table, "reason": reason} for table, reason in self.unread],
            **pick(self, "tables_read=tables snapshots_read=snapshots"),
        }


def downstream(
    entries: Iterable[Entry],
    start: Node,
    unread: Sequence[tuple[str, str]] = (),
    *,
    carried: bool = False,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Downstream:
    """Every snapshot that was made from `start`, at any distance. Each is listed once, with one of its shortest
    ways.

    `names`: maps a table's earlier names, or its names elsewhere, to the name in its entries and in `start`.

    `carried`: also include snapshots made from a later snapshot of the same table, because that one still held
    the rows, unless something had removed them by then. The answer is then too large rather than too small.
    """
    known = {Node(entry.table, entry.snapshot.id): entry for entry in entries}
    children, unreadable = _children(known, names)
    later = _Later(known, children if carried else {})
    depths, via = {start: 0}, dict[Node, Node]()
    edges: dict[tuple[Node, Node], None] = {}
    waiting = deque([start])
    while waiting:
        parent = waiting.popleft()
        direct = children.get(parent, [])
        edges.update(dict.fromkeys((parent, child) for child in direct))
        for child in (*direct, *later.made_since(parent)):
            if child not in depths:
                depths[child], via[child] = depths[parent] + 1, parent
                edges[parent, child] = None
                waiting.append(child)
    reached = sorted(
        via, key=lambda node: (depths[node], node.table, known[node].snapshot.committed_at, node)
    )
    return Downstream(
        start,
        known.get(start),
        tuple(Affected(node, depths[node], via[node], known[node]) for node in reached),
        tuple(edges),
        unreadable,
        tuple(unread),
        len({node.table for node in known}),
        len(known),
    )


class _Later:
    """Snapshots made from later snapshots of a table. Each is returned once: a search by distance reaches it
    first by its shortest way.
    """

    def __init__(self, known: Mapping[Node, Entry], children: Mapping[Node, Sequence[Node]]) -> None:
        self._known = known
        self._made: dict[str, list[tuple[_Order, list[Node]]]] = defaultdict(list)
        for node, outputs in children.items():
            if node in known:
                self._made[node.table].append((_order(known[node]), list(outputs)))
        for used in self._made.values():
            used.sort(key=lambda each: each[0])

    def made_since(self, node: Node) -> list[Node]:
        used = self._made.get(node.table)
        if not used or node not in self._known:
            return []
        first = bisect_right(used, _order(self._known[node]), key=lambda each: each[0])
        later = [child for _, outputs in used[first:] for child in outputs]
        del used[first:]
        return later


_Order = tuple[datetime, int]


def _order(entry: Entry) -> _Order:
    return entry.snapshot.committed_at, entry.snapshot.sequence_number


def _children(
    known: Mapping[Node, Entry], names: Mapping[str, str]
) -> tuple[dict[Node, list[Node]], tuple[tuple[Node, str], ...]]:
    """The snapshots made directly from each snapshot."""
    owners: dict[int, list[str]] = defaultdict(list)
    for node in known:
        owners[node.snapshot_id].append(node.table)
    children: dict[Node, list[Node]] = defaultdict(list)
    unreadable: list[tuple[Node, str]] = []
    for node, entry in known.items():
        named, bad = inputs_of(entry.told(INPUTS))
        inputs = [(None if table is None else names.get(table, table), id_) for table, id_ in named]
        unreadable += [(node, text) for text in bad]
        for parent in dict.fromkeys(_resolve(node.table, *each, owners) for each in inputs):
            if parent != node:
                children[parent].append(node)
    return children, tuple(unreadable)


def _resolve(own: str, named: str | None, id_: int, owners: Mapping[int, Sequence[str]]) -> Node:
    if named is not None:
        return Node(named, id_)
    having = owners.get(id_, ())
    if own not in having and len(having) == 1 and id_ >= _RANDOM:
        return Node(having[0], id_)
    return Node(own, id_)


# ------------------------------------------------------------ ingested


@dataclass(frozen=True, slots=True)
class IngestCommit:
    """A commit that brought data in. `entry` None: neither the table nor its history knows the snapshot any
    more.

    `files`, `rows` and `bytes` count the commit's data that the question is about; None if unknown. `how` says
    how the commit was found: by `manifests`, which name the data's files, or by `input.snapshot_ids`, with
    which a rewrite states only what it read.
    """

    node: Node
    entry: Entry | None
    how: str
    files: int | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def only_read(self) -> bool:
        """Whether the data was already in this snapshot: it came with this commit, or with an earlier one."""
        return self.how == INPUTS

    def to_dict(self) -> dict[str, Any]:
        stated = {} if self.entry is None else self.entry.to_dict()
        return {
            **stated,
            **pick(self, "table=node.table snapshot_id=node.snapshot_id"),
            "known": self.entry is not None,
            **pick(self, "found_by=how only_read files"),
            "rows": stated.get("rows") if self.rows is None else self.rows,
            "bytes": stated.get("bytes") if self.bytes is None else self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Ingested(Plain):
    """When data came in, and who wrote it. `commits` wrote the files that hold it now. If these are rewrites,
    `origins` are the commits that first brought it, or the snapshots that the rewrites read (`only_read`).
    `removed_by` removed a file later.
    """

    table: str
    question: str
    commits: tuple[IngestCommit, ...]
    origins: tuple[IngestCommit, ...] = ()
    removed_by: tuple[IngestCommit, ...] = ()

    JSON_KEYS = "table question commits origins removed_by"


def rewrites(entry: Entry | None) -> bool:
    """Whether the commit only rewrote existing data: then its data came in earlier."""
    if entry is None:
        return False
    return entry.operation == "compaction" or entry.snapshot.operation in ("replace", "compact")


def recorded_origins(entry: Entry, known: Mapping[int, Entry]) -> list[IngestCommit]:
    """The snapshots that a commit names as its inputs; `known` are entries of its own table."""
    inputs, _ = inputs_of(entry.told(INPUTS))
    return [
        IngestCommit(
            Node(table or entry.table, id_),
            known.get(id_) if table in (None, entry.table) else None,
            INPUTS,
        )
        for table, id_ in inputs
    ]


# ------------------------------------------------------------ who


@dataclass(frozen=True, slots=True)
class CommitAuthors(Plain):
    """Commits and who triggered each, the newest first."""

    table: str
    operation: str | None
    since: datetime | None
    until: datetime | None
    entries: tuple[Entry, ...]

    JSON_KEYS = "table operation since until commits=entries"


# ------------------------------------------------------------ gaps


@dataclass(frozen=True, slots=True)
class Gap(Plain):
    """A commit without the lineage that the table's policy requires."""

    entry: Entry
    violations: tuple[Violation, ...]

    JSON_KEYS = "**entry violations"

    @property
    def told(self) -> str:
        """The violations as text: missing keys only by name (`missing: writer.id, lineage.operation`), other rules in full."""
        missing = [violation.key for violation in self.violations if violation.of_every_commit]
        others = [str(violation) for violation in self.violations if not violation.of_every_commit]
        return "; ".join([*([f"missing: {', '.join(missing)}"] if missing else []), *others])


@dataclass(frozen=True, slots=True)
class Gaps(Plain):
    """`commits` is the number of commits checked; `rejected` are those that never became commits.

    `asked` are the policy values that require lineage, each with its origin.
    """

    table: str
    commits: int
    gaps: tuple[Gap, ...]
    rejected: tuple[RejectedCommit, ...] = ()
    asked: tuple[str, ...] = ()

    JSON_KEYS = "table commits gaps rejected"


def gaps(entries: Iterable[Entry], asked: Requirements) -> tuple[Gap, ...]:
    """The commits without the required lineage, in the order of the entries."""
    checked = ((entry, validate(_as_committed(entry), asked)) for entry in entries)
    return tuple(Gap(entry, violations) for entry, violations in checked if violations)


def _as_committed(entry: Entry) -> dict[str, str]:
    """The summary with the format's own operation, as the commit hook sees it."""
    return {**entry.snapshot.summary, "operation": entry.snapshot.operation}
