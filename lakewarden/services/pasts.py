"""The past of one table or of all: live snapshots, and the history that was archived before snapshots expired."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewarden.errors import LakewardenError, UsageError
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.services.deps import ServiceDeps
from lakewarden.services.table_names import table_ref

if TYPE_CHECKING:  # Arrow and the database are loaded when first used, not when a command starts
    from lakewarden.lineage.history import Entry, HistoryQuery, TableHistory


@dataclass(frozen=True, slots=True)
class TablePast:
    """The past of one table. Without a view it has only what was archived."""

    ref: TableRef
    uuid: str
    properties: Mapping[str, str]
    view: TableView | None
    history: TableHistory

    def entries(self, wanted: HistoryQuery | None = None) -> list[Entry]:
        from lakewarden.lineage.history import EVERYTHING

        return self.history.entries(str(self.ref), self.uuid, self.view, wanted or EVERYTHING)

    def unfolded(self) -> list[Entry]:
        return self.history.unfolded(str(self.ref), self.uuid, self.view)

    def known(self, ids: Collection[int]) -> Mapping[int, Entry]:
        from lakewarden.lineage.history import HistoryQuery

        if not ids:
            return {}
        return {each.snapshot.id: each for each in self.entries(HistoryQuery(ids=frozenset(ids)))}


class Pasts:
    def __init__(self, deps: ServiceDeps) -> None:
        self._deps = deps

    def of(self, table: str | TableRef, history_only: bool = False) -> TablePast:
        from lakewarden.lineage.history import TableHistory

        ref = table_ref(table)
        if not history_only:
            return self._of_view(self._deps.view(ref))
        seen = self._deps.seen.get(ref)
        if seen is None:
            raise UsageError(
                reason=f"ask the history of {ref}: no table of that name was ever read",
                hint="ask once without --history-only, or see `lakewarden tables`",
            )
        return TablePast(ref, seen.uuid, seen.properties, None, TableHistory(self._deps.connections.state))

    def _of_view(self, view: TableView) -> TablePast:
        from lakewarden.jobs.history import history_of

        return TablePast(
            view.ref, view.uuid, view.properties, view, history_of(self._deps.connections.state, view)
        )

    def of_every_table(
        self, wanted: TableRef, history_only: bool, unread: dict[str, str]
    ) -> tuple[list[TablePast], dict[str, str]]:
        """Every table once, with the name it goes by for each of its names.

        Tables of all catalogs, and tables that are gone but were read before. A table that was renamed, or that two catalogs
        have, is one table.
        """
        from lakewarden.lineage.history import TableHistory

        pasts: dict[str, list[TablePast]] = defaultdict(list)
        names: dict[str, str] = {}
        live = [] if history_only else list(self._read_all(wanted, unread))
        for past in sorted(live, key=lambda each: each.ref != wanted):
            first = next((each for each in pasts[past.uuid] if _is_same(each.view, past.view)), None)
            if first is None:
                pasts[past.uuid].append(past)
            names[str(past.ref)] = str((first or past).ref)
        seen = {name: each for name, each in self._deps.seen.all().items() if name not in names}
        for name in sorted(seen, key=lambda each: (each != str(wanted), -seen[each].seen_at.timestamp())):
            uuid = seen[name].uuid
            # Copies share a uuid: which of them had this name is not known.
            if len(pasts[uuid]) != 1:
                ref = TableRef.parse(name)
                pasts[uuid].append(
                    TablePast(
                        ref, uuid, seen[name].properties, None, TableHistory(self._deps.connections.state)
                    )
                )
            names[name] = str(pasts[uuid][0].ref) if len(pasts[uuid]) == 1 else name
        return [each for several in pasts.values() for each in several], names

    def entries(
        self,
        pasts: Sequence[TablePast],
        needed: str,
        unread: dict[str, str],
        wanted: HistoryQuery | None = None,
    ) -> list[Entry]:
        """The entries of all of them. Only the needed table must be readable. Another that is not goes into `unread`, with
        the reason, and only what was archived of it is used."""
        from lakewarden.lineage.history import EVERYTHING, TableHistory

        gone = [(str(each.ref), each.uuid) for each in pasts if each.view is None]
        written = TableHistory(self._deps.connections.state).written(gone, wanted or EVERYTHING)
        entries: list[Entry] = []
        for past in pasts:
            known = written.get((str(past.ref), past.uuid)) if past.view is None else None
            try:
                entries += past.entries(wanted) if known is None else known
            except LakewardenError as error:
                if str(past.ref) == needed:
                    raise
                unread.setdefault(str(past.ref), error.message)
                entries += past.unfolded()
        return entries

    def _read_all(self, wanted: TableRef, unread: dict[str, str]) -> Iterator[TablePast]:
        for ref in self._listed(unread):
            try:
                past = self._of_view(self._deps.view(ref))
            except LakewardenError as error:
                if ref == wanted:
                    raise
                unread[str(ref)] = error.message
            else:
                yield past

    def _listed(self, unread: dict[str, str]) -> Iterator[TableRef]:
        lake = self._deps.connections.lake
        for catalog in lake.catalogs():
            try:
                yield from lake.format_of(catalog).tables(catalog)
            except LakewardenError as error:
                unread[f"{catalog}.*"] = error.message


def _is_same(one: TableView | None, other: TableView | None) -> bool:
    from lakewarden.deletion.ownership import is_same

    return one is not None and other is not None and is_same(one, other)
