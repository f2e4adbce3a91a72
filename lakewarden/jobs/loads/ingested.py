"""Finds when data was ingested and by whom: from files, through manifests, to the commits that added them.

A file from a rewrite contains rows of earlier commits. While the table has the rewrite's parent, manifests show which commits
added the removed files. After that, only the rewrite's own record remains: the snapshots it read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import PolicyError, UsageError
from lakewarden.lineage.audit import MANIFESTS, IngestCommit, Ingested, Node, recorded_origins, rewrites
from lakewarden.lineage.history import Entry, EntrySource
from lakewarden.model.location import Location, name_of
from lakewarden.model.table import TableView
from lakewarden.policy.filters import wrong_filter
from lakewarden.tables.interface import TableFormat

# How many rewrites are followed through manifests (about 1 s each); for older ones their own records are used.
_BY_MANIFESTS = 30


@dataclass(frozen=True, slots=True)
class IngestedLookup:
    """Answers questions about one table. `known` finds history entries by id. Without a view, only records are used."""

    table: str
    known: Callable[[Collection[int]], Mapping[int, Entry]]
    format: TableFormat | None = None
    view: TableView | None = None

    def snapshot(self, snapshot_id: int) -> Ingested:
        """A commit and, if it is a rewrite, the commits its data came from."""
        entry = self.known([snapshot_id]).get(snapshot_id)
        if entry is None:
            raise UsageError(
                reason=f"find snapshot {snapshot_id} of {self.table}: neither the table nor its history has it",
                hint=f"see `lakewarden history {self.table}`",
            )
        commit = IngestCommit(Node(self.table, snapshot_id), entry, "snapshot")
        return Ingested(self.table, f"snapshot {snapshot_id}", (commit,), self._origins([entry]))

    def file(self, path: str) -> Ingested:
        """The commits that added the file, and those that removed it."""
        format_, view = self._table()
        rows = format_.additions(view, None, name_of(path)).to_pylist()
        place = Location.of(path)
        own = [row for row in rows if Location.of(row["path"]).may_be(place)]
        if not own:
            raise UsageError(
                reason=f"find {path} in {self.table}: no snapshot that the table still has names it as a data file",
                hint="write the path in full, as `select file_path from TABLE.all_data_files` has it",
            )
        added = self._commits({row["snapshot_id"] for row in own if not row["removed"]})
        removed = self._commits({row["snapshot_id"] for row in own if row["removed"]})
        origins = self._origins([each.entry for each in added if each.entry is not None])
        return Ingested(self.table, f"file {path}", added, origins, removed)

    def rows(self, where: str | None) -> Ingested:
        """The files of the current snapshot that can contain matching rows, counted by the commit that added them."""
        format_, view = self._table()
        head = view.current_snapshot_id
        question = "every row" if where is None else f"rows where {where}"
        if head is None:
            return Ingested(self.table, question, ())
        try:
            files = format_.files(view.ref, head, where).files.select(["path", "records", "bytes"])
        except PolicyError as error:
            raise wrong_filter(str(error.parts["reason"])) from error
        adders = format_.additions(view, head).select(["path", "snapshot_id"])
        joined = files.join(adders, "path", join_type="left outer")
        counts = joined.group_by("snapshot_id").aggregate(
            [("path", "count"), ("records", "sum"), ("bytes", "sum")]
        )
        commits = self._counted(counts)
        origins = self._origins([commit.entry for commit in commits if commit.entry is not None])
        return Ingested(self.table, question, commits, origins)

    def _table(self) -> tuple[TableFormat, TableView]:
        if self.format is None or self.view is None:
            raise UsageError(
                reason=f"ask the history of {self.table} about files: it knows commits only",
                hint="ask without --history-only, or with --snapshot ID",
            )
        return self.format, self.view

    def _counted(self, counts: pa.Table) -> tuple[IngestCommit, ...]:
        rows = counts.filter(pc.is_valid(counts["snapshot_id"])).to_pylist()
        known = self.known([row["snapshot_id"] for row in rows])
        commits = [
            IngestCommit(
                Node(self.table, row["snapshot_id"]),
                known.get(row["snapshot_id"]),
                MANIFESTS,
                row["path_count"],
                row["records_sum"],
                row["bytes_sum"],
            )
            for row in rows
        ]
        return tuple(sorted(commits, key=_newest_first))

    def _commits(self, ids: Collection[int]) -> tuple[IngestCommit, ...]:
        known = self.known(ids)
        commits = [IngestCommit(Node(self.table, each), known.get(each), MANIFESTS) for each in ids]
        return tuple(sorted(commits, key=_newest_first))

    # ------------------------------------------------------------ behind rewrites

    def _origins(self, entries: Collection[Entry]) -> tuple[IngestCommit, ...]:
        """The commits that first added the data of these rewrites, followed through rewrites of rewrites.

        A snapshot that a rewrite only read is not followed: it contained the rows, but may have written others.
        """
        waiting = [entry for entry in entries if rewrites(entry)]
        seen, origins = {each.snapshot.id for each in waiting}, list[IngestCommit]()
        while waiting:
            for each in self._behind(waiting.pop(), look=len(seen) <= _BY_MANIFESTS):
                if each.only_read or each.entry is None or not rewrites(each.entry):
                    origins.append(each)
                elif each.node.snapshot_id not in seen:
                    seen.add(each.node.snapshot_id)
                    waiting.append(each.entry)
        return _once(origins)

    def _behind(self, rewrite: Entry, *, look: bool) -> tuple[IngestCommit, ...]:
        """From the manifests while the table has the parent snapshot; otherwise from the rewrite's own record."""
        format_, view, parent = self.format, self.view, rewrite.snapshot.parent_id
        if (
            not look
            or format_ is None
            or view is None
            or view.format != "iceberg"
            or rewrite.source is not EntrySource.LIVE
            or parent is None
            or view.snapshot(parent) is None
        ):
            return self._recorded(rewrite)
        removed = [file.path for file in format_.replaced(view.ref, rewrite.snapshot.id).removed.files]
        adders = format_.additions(view, parent)
        chosen = adders.filter(pc.is_in(adders["path"], pa.array(removed, pa.string())))
        return self._commits(set(chosen["snapshot_id"].to_pylist()))

    def _recorded(self, rewrite: Entry) -> tuple[IngestCommit, ...]:
        named = recorded_origins(rewrite, {})
        own = [each.node.snapshot_id for each in named if each.node.table == self.table]
        return tuple(recorded_origins(rewrite, self.known(own)))


def _once(commits: Collection[IngestCommit]) -> tuple[IngestCommit, ...]:
    """Each commit once. If it occurs both as a source and as only read, it counts as a source."""
    by_node = {commit.node: commit for commit in sorted(commits, key=lambda each: not each.only_read)}
    return tuple(sorted(by_node.values(), key=_newest_first))


def _newest_first(commit: IngestCommit) -> tuple[float, Node]:
    at = 0.0 if commit.entry is None else commit.entry.snapshot.committed_at.timestamp()
    return -at, commit.node
