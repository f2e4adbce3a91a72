"""Queries that cover all tables in a few statements: for lists of thousands of tables, and for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import exists, func, select, text

from lakewarden.state.database import State
from lakewarden.state.schedule import GONE, PASS, SEEN, Suspension
from lakewarden.state.schema import (
    STILL_THERE,
    pins,
    requests,
    runs,
    seen_tables,
    standings,
    suspensions,
    table_health,
    trash_batches,
    trashed,
)
from lakewarden.state.trash_batches import BatchState, FileState, Tally, TrashBatch

# Causes of files that were in a table's folder without being part of the table.
ORPHANED = ("sweep", "failed-load")
# The operator name of suspensions by the worker itself.
BY_WORKER = "worker"
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """A deletion batch of a table, and how many of its files still exist."""

    batch: TrashBatch
    live: Tally


@dataclass(frozen=True, slots=True)
class ErasedCount:
    """How many files of a deletion batch were deleted so far, and whether more may follow."""

    files: int
    goes_on: bool


class Fleet:
    def __init__(self, state: State) -> None:
        self._state = state

    def went_well(self, since: datetime | None, states: Sequence[str]) -> Sequence[Any]:
        """Successful jobs of the schedule since then, including those that had nothing to do and so have no
        run in the journal."""
        wanted = select(standings.c.table_name, standings.c.slot, standings.c.ended_at).where(
            standings.c.slot.not_in((PASS, SEEN)),
            standings.c.state.in_(states),
            standings.c.ended_at.is_not(None),
        )
        return self._all(wanted if since is None else wanted.where(standings.c.ended_at >= since))

    def seen(self) -> dict[str, datetime | None]:
        """When a worker first saw each table; None if its catalog does not list it any more."""
        wanted = select(standings.c.table_name, standings.c.began_at, standings.c.state)
        rows = self._all(wanted.where(standings.c.slot == SEEN))
        return {row.table_name: None if row.state == GONE else row.began_at for row in rows}

    def there(self, since: datetime) -> set[str]:
        """Tables that exist: tables that a worker maintains and, if no worker knows them, tables that were
        read since then.

        Before `since`, dropped tables are already marked as gone. The history of a table may be kept forever,
        the mark is not.
        """
        seen = self.seen()
        lately = self._all(select(seen_tables.c.table_name).where(seen_tables.c.seen_at >= since))
        others = {row.table_name for row in lately} - seen.keys()
        return others | {table for table, at in seen.items() if at is not None}

    def pinned(self) -> dict[str, list[str]]:
        """The ids and ends of each table's pins. A changed pin changes what is held, so its text changes too."""
        found: dict[str, list[str]] = {}
        wanted = select(pins.c.table_name, pins.c.id, pins.c.expires_at).order_by(pins.c.id)
        for row in self._all(wanted):
            found.setdefault(row.table_name, []).append(f"{row.id} {row.expires_at}")
        return found

    def waiting(self) -> dict[str, list[WaitingBatch]]:
        """The active deletion batches of each table that still have files to delete."""
        live = (
            select(
                trashed.c.batch_id,
                func.count().label("files"),
                func.coalesce(func.sum(trashed.c.size), 0).label("bytes"),
            )
            .where(text(STILL_THERE))  # must be exactly the condition of the index, or the index is not used
            .group_by(trashed.c.batch_id)
            .subquery()
        )
        wanted = (
            select(trash_batches, live.c.files, live.c.bytes)
            .join(live, live.c.batch_id == trash_batches.c.id)
            .where(trash_batches.c.state == BatchState.ACTIVE.value)
        )
        found: dict[str, list[WaitingBatch]] = {}
        for row in self._all(wanted):
            batch = TrashBatch(
                row.id, row.table_name, row.table_uuid, row.cause, row.reason, BatchState(row.state),
                row.made_at, row.trashed_at, grace_from=row.grace_from,
            )  # fmt: skip
            found.setdefault(row.table_name, []).append(WaitingBatch(batch, Tally(row.files, int(row.bytes))))
        return found

    def failures(self) -> dict[str, int]:
        """The most failures in a row of any slot of each table."""
        wanted = select(standings.c.table_name, func.max(standings.c.failures).label("most"))
        found = self._all(wanted.group_by(standings.c.table_name).having(func.max(standings.c.failures) > 0))
        return {row.table_name: row.most for row in found}

    def suspensions(self) -> dict[str, Suspension]:
        """The suspended tables that exist. A dropped table stays suspended in case it is created again, but
        is not listed here.

        A table that no worker maintains any more is marked as gone too, although the collector still sees it.
        """
        dropped = exists().where(
            standings.c.table_name == suspensions.c.table_name,
            standings.c.slot == SEEN,
            standings.c.state == GONE,
        )
        health = exists().where(table_health.c.table_name == suspensions.c.table_name)
        rows = self._all(select(suspensions).where(~dropped | health))
        return {row.table_name: Suspension(row.table_name, row.since, row.reason, row.by) for row in rows}

    def suspended(self) -> dict[str, str]:
        """The reason of each suspended table."""
        return {table: each.reason for table, each in self.suspensions().items()}

    # ------------------------------------------------------------ for metrics

    def suspended_by(self) -> dict[str, str]:
        """Who suspended each table: `worker` after too many failures, or `operator` for any person."""
        found = self.suspensions()
        return {table: "worker" if each.by == BY_WORKER else "operator" for table, each in found.items()}

    def pending_requests(self) -> tuple[int, datetime | None]:
        """The number of pending requests, and when the oldest was filed."""
        wanted = select(func.count().label("n"), func.min(requests.c.made_at).label("oldest"))
        [row] = self._all(wanted.where(requests.c.state == "pending"))
        return int(row.n), row.oldest

    def orphan_batches(self, tables: Iterable[str] | None = None) -> dict[str, str]:
        """Deletion batches of orphan files (from sweeps and failed loads), each with its table. Of these
        tables, or of all."""
        orphaned = select(trash_batches.c.id, trash_batches.c.table_name).where(
            trash_batches.c.state == BatchState.ACTIVE.value, trash_batches.c.cause.in_(ORPHANED)
        )
        if tables is None:
            return {row.id: row.table_name for row in self._all(orphaned)}
        return {
            row.id: row.table_name
            for some in _pages(sorted(tables))
            for row in self._all(orphaned.where(trash_batches.c.table_name.in_(some)))
        }

    def erased_of(self, batch_ids: Iterable[str]) -> dict[str, ErasedCount]:
        """How many files of each deletion batch were deleted, and whether any are left."""
        found: dict[str, ErasedCount] = {}
        for some in _pages(sorted(batch_ids)):
            counted = select(
                trashed.c.batch_id,
                func.count().filter(trashed.c.state == FileState.ERASED.value).label("erased"),
                func.count().filter(text(STILL_THERE)).label("live"),
            )
            rows = self._all(counted.where(trashed.c.batch_id.in_(some)).group_by(trashed.c.batch_id))
            found |= {row.batch_id: ErasedCount(row.erased, row.live > 0) for row in rows}
        return found

    def ended_runs(self, after: datetime | None, at_once: int) -> Sequence[Any]:
        """Runs that ended at or after `after`, oldest first: id, table, job, state, start, end and counters."""
        wanted = select(
            runs.c.id, runs.c.table_name, runs.c.job, runs.c.state, runs.c.started_at, runs.c.ended_at, runs.c.counters
        )  # fmt: skip
        since = [] if after is None else [runs.c.ended_at >= after]
        return self._all(
            wanted.where(runs.c.ended_at.is_not(None), *since)
            .order_by(runs.c.ended_at, runs.c.id)
            .limit(at_once)
        )

    def open_runs(self) -> Mapping[str, int]:
        """The number of open runs of each job."""
        wanted = (
            select(runs.c.job, func.count().label("n")).where(runs.c.ended_at.is_(None)).group_by(runs.c.job)
        )
        return {row.job: row.n for row in self._all(wanted)}

    def _all(self, wanted: Any) -> Sequence[Any]:
        with self._state.read() as connection:
            return connection.execute(wanted).all()


def _pages(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))
