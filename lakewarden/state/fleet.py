"""What the state database knows of every table at once, in a few questions: for looks at thousands of tables, and for metrics."""

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
    trashed,
    verdicts,
)
from lakewarden.state.trash_batches import FileState, Tally, Verdict, VerdictState

# Files that were in a table's folder without being part of it.
ORPHANED = ("sweep", "failed-load")
# How the worker signs a suspension of its own.
BY_WORKER = "worker"
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Waiting:
    """A verdict of a table, and how many of its files are still there."""

    verdict: Verdict
    live: Tally


@dataclass(frozen=True, slots=True)
class Erased:
    """Of a verdict: how many files were deleted so far, and whether more may follow."""

    files: int
    goes_on: bool


class Fleet:
    def __init__(self, state: State) -> None:
        self._state = state

    def went_well(self, since: datetime | None, states: Sequence[str]) -> Sequence[Any]:
        """Jobs of the schedule that ended so, from then on, also those that had nothing to do and are in no journal."""
        wanted = select(standings.c.table_name, standings.c.slot, standings.c.ended_at).where(
            standings.c.slot.not_in((PASS, SEEN)),
            standings.c.state.in_(states),
            standings.c.ended_at.is_not(None),
        )
        return self._all(wanted if since is None else wanted.where(standings.c.ended_at >= since))

    def seen(self) -> dict[str, datetime | None]:
        """By table since when a worker looks after it; None where its catalog does not list it any more."""
        wanted = select(standings.c.table_name, standings.c.began_at, standings.c.state)
        rows = self._all(wanted.where(standings.c.slot == SEEN))
        return {row.table_name: None if row.state == GONE else row.began_at for row in rows}

    def there(self, since: datetime) -> set[str]:
        """Tables that a worker looks after and, of those that none knows of, those that somebody has read since then.

        `since` is from when on a dropped table is marked as gone: what is known of its past may stay for good, the mark does not.
        """
        seen = self.seen()
        lately = self._all(select(seen_tables.c.table_name).where(seen_tables.c.seen_at >= since))
        others = {row.table_name for row in lately} - seen.keys()
        return others | {table for table, at in seen.items() if at is not None}

    def pinned(self) -> dict[str, list[str]]:
        """By table the ids of its pins, with the moments they end: a pin that changes changes what is held."""
        found: dict[str, list[str]] = {}
        wanted = select(pins.c.table_name, pins.c.id, pins.c.expires_at).order_by(pins.c.id)
        for row in self._all(wanted):
            found.setdefault(row.table_name, []).append(f"{row.id} {row.expires_at}")
        return found

    def waiting(self) -> dict[str, list[Waiting]]:
        """By table the verdicts in force that still have files to delete."""
        live = (
            select(
                trashed.c.verdict_id,
                func.count().label("files"),
                func.coalesce(func.sum(trashed.c.size), 0).label("bytes"),
            )
            .where(text(STILL_THERE))  # word for word the condition of the index, or it is not used
            .group_by(trashed.c.verdict_id)
            .subquery()
        )
        wanted = (
            select(verdicts, live.c.files, live.c.bytes)
            .join(live, live.c.verdict_id == verdicts.c.id)
            .where(verdicts.c.state == VerdictState.ACTIVE.value)
        )
        found: dict[str, list[Waiting]] = {}
        for row in self._all(wanted):
            verdict = Verdict(
                row.id, row.table_name, row.table_uuid, row.cause, row.reason, VerdictState(row.state),
                row.made_at, row.trashed_at, grace_from=row.grace_from,
            )  # fmt: skip
            found.setdefault(row.table_name, []).append(Waiting(verdict, Tally(row.files, int(row.bytes))))
        return found

    def failures(self) -> dict[str, int]:
        """By table the most failures in a row that one of its slots has."""
        wanted = select(standings.c.table_name, func.max(standings.c.failures).label("most"))
        found = self._all(wanted.group_by(standings.c.table_name).having(func.max(standings.c.failures) > 0))
        return {row.table_name: row.most for row in found}

    def suspensions(self) -> dict[str, Suspension]:
        """By table, of those that are there. One that was dropped is nobody's trouble: it stays suspended in case it is made anew.

        A table that a worker no longer looks after is marked as gone too; the collector still sees it.
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
        """By table why it is suspended."""
        return {table: each.reason for table, each in self.suspensions().items()}

    # ------------------------------------------------------------ for metrics

    def suspended_by(self) -> dict[str, str]:
        """By table who suspended it: `worker`, because it failed too often, or `operator`, whoever that was."""
        found = self.suspensions()
        return {table: "worker" if each.by == BY_WORKER else "operator" for table, each in found.items()}

    def pending_requests(self) -> tuple[int, datetime | None]:
        """How many wait, and since when the one does that has waited longest."""
        wanted = select(func.count().label("n"), func.min(requests.c.made_at).label("oldest"))
        [row] = self._all(wanted.where(requests.c.state == "pending"))
        return int(row.n), row.oldest

    def orphan_verdicts(self, tables: Iterable[str] | None = None) -> dict[str, str]:
        """Verdicts about files that a sweep, or a load that failed, had left there: the table of each. Of these tables, or of all."""
        orphaned = select(verdicts.c.id, verdicts.c.table_name).where(
            verdicts.c.state == VerdictState.ACTIVE.value, verdicts.c.cause.in_(ORPHANED)
        )
        if tables is None:
            return {row.id: row.table_name for row in self._all(orphaned)}
        return {
            row.id: row.table_name
            for some in _pages(sorted(tables))
            for row in self._all(orphaned.where(verdicts.c.table_name.in_(some)))
        }

    def erased_of(self, verdict_ids: Iterable[str]) -> dict[str, Erased]:
        """By verdict how many of its files were deleted, and whether any is left to be."""
        found: dict[str, Erased] = {}
        for some in _pages(sorted(verdict_ids)):
            counted = select(
                trashed.c.verdict_id,
                func.count().filter(trashed.c.state == FileState.ERASED.value).label("erased"),
                func.count().filter(text(STILL_THERE)).label("live"),
            )
            rows = self._all(counted.where(trashed.c.verdict_id.in_(some)).group_by(trashed.c.verdict_id))
            found |= {row.verdict_id: Erased(row.erased, row.live > 0) for row in rows}
        return found

    def ended_runs(self, after: datetime | None, at_once: int) -> Sequence[Any]:
        """Runs that ended at or after then, the oldest first: id, table, job, state, both moments and the counters."""
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
        """By job how many are running."""
        wanted = (
            select(runs.c.job, func.count().label("n")).where(runs.c.ended_at.is_(None)).group_by(runs.c.job)
        )
        return {row.job: row.n for row in self._all(wanted)}

    def _all(self, wanted: Any) -> Sequence[Any]:
        with self._state.read() as connection:
            return connection.execute(wanted).all()


def _pages(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))
