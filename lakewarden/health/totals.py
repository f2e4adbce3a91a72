"""Adds up what all runs have done, from the journal: each run is counted once, however often it is read.

Derived from the database, so that a restarted process continues from the same numbers. The database adds up
everything older than the last minutes in one query; from there on each run is read when it ends.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lakewarden.model.job import slot_of
from lakewarden.model.run import Job, RunState
from lakewarden.state.database import State
from lakewarden.state.fleet import Fleet
from lakewarden.state.run_queries import RunSum, RunTotals

BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_PAGE = 5_000
# Another process may write the end of a run some time after the end itself.
_LATE = timedelta(minutes=10)
_MICROSECOND = timedelta(microseconds=1)
_REWRITES = tuple(job for job in Job if slot_of(job) == slot_of(Job.COMPACT))
_SUCCESS = (RunState.DONE, RunState.NOTHING_TO_DO)
# By metric, the counter of a run that it adds up.
ADDED = {
    "files_compacted": "files_compacted",
    "snapshots_expired": "snapshots_expired",
    "bytes_rewritten": "bytes_before",
    "files_erased": "files_erased",
    "bytes_erased": "bytes_erased",
}


@dataclass(slots=True)
class Durations:
    """A histogram of one job and end state."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    microseconds: int = 0  # an integer: a sum in another order after a restart must not be slightly smaller

    @property
    def seconds(self) -> float:
        return self.microseconds / 1_000_000

    def add(self, took: timedelta) -> None:
        self.counts[bisect_left(BUCKETS, took.total_seconds())] += 1
        self.microseconds += took // _MICROSECOND

    def add_all(self, found: RunSum) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, found.took, strict=True)]
        self.microseconds += found.microseconds


class Totals:
    """Kept by a server of metrics. Safe to share between threads."""

    def __init__(self, state: State) -> None:
        self._fleet, self._sums = Fleet(state), RunTotals(state)
        self._orphans = _Orphans(self._fleet)
        self._lock = threading.Lock()
        self._after: datetime | None = None
        self._stood: datetime | None = None
        self._recent: dict[str, tuple[str, datetime]] = {}
        self._unsettled: set[str] = set()
        self.added: dict[str, Counter[str]] = {name: Counter() for name in ADDED}
        self.lineage_compactions: Counter[str] = Counter()
        self.durations: dict[tuple[str, str], Durations] = {}
        self.last_success: dict[tuple[str, str], datetime] = {}
        self.last_run: dict[str, datetime] = {}
        self.newest_speed: Mapping[str, float] = {}

    @property
    def orphans(self) -> Mapping[str, int]:
        """By table, how many files were deleted that a sweep found, or that a failed load had left."""
        return self._orphans.erased

    def refresh(self) -> None:
        """Count the runs that ended since the last call; at the first call, all runs."""
        with self._lock:
            if self._after is None:
                self._begin()
            while rows := self._fleet.ended_runs(self._after, _PAGE):
                for row in rows:
                    if self._recent.get(row.id, ("",))[0] != row.state:
                        self._add(row)
                before, newest = self._after, rows[-1].ended_at
                late = newest - 2 * _LATE
                self._recent = {run: seen for run, seen in self._recent.items() if seen[1] >= late}
                self._after = newest
                if len(rows) < _PAGE or newest == before:
                    self._after = newest - _LATE
                    break
            self._orphans.refresh()
            self._see_standings()

    def _begin(self) -> None:
        """Add all runs that ended before the last minutes. A run that ended as unknown may be settled later,
        and must not count twice.
        """
        newest = self._sums.newest_end()
        if newest is None:
            return
        until = newest - 2 * _LATE
        # Query before adding anything: if the database fails in between, nothing may be added twice.
        sums = self._sums.before(until, list(ADDED.values()), BUCKETS)
        unsettled = any(each.state == RunState.UNKNOWN for each in sums)
        open_ = self._sums.ended_as(RunState.UNKNOWN, until) if unsettled else frozenset()
        speed = self._sums.newest_with("read_mb_per_s", _REWRITES, until)
        for each in sums:
            self._add_all(each)
        self._unsettled |= open_
        self._see_speed(speed)
        self._after = until

    def _add_all(self, sum_: RunSum) -> None:
        self.durations.setdefault((sum_.job, sum_.state), Durations()).add_all(sum_)
        self._see_run(sum_.table, sum_.job, sum_.state, sum_.newest)
        for name, counter in ADDED.items():
            if counter in sum_.added:
                self.added[name][sum_.table] += sum_.added[counter]  # type: ignore[assignment]
        if sum_.job == Job.COMPACT_HISTORY and sum_.state == RunState.DONE:
            self.lineage_compactions[sum_.table] += sum_.runs

    def _see_run(self, table: str, job: str, state: str, ended_at: datetime) -> None:
        self.last_run[table] = max(ended_at, self.last_run.get(table, ended_at))
        if state in _SUCCESS:
            key = table, job
            self.last_success[key] = max(ended_at, self.last_success.get(key, ended_at))

    def _see_speed(self, counters: Mapping[str, Any]) -> None:
        if "read_mb_per_s" in counters:
            names = ("read_mb_per_s", "write_mb_per_s")
            self.newest_speed = {name: float(counters[name]) for name in names if name in counters}

    def _see_standings(self) -> None:
        """A scheduled job with nothing to do is not journaled: only the table's schedule record shows that it ended well."""
        for row in self._fleet.went_well(self._stood, [str(each) for each in _SUCCESS]):
            key = row.table_name, row.slot
            self.last_success[key] = max(row.ended_at, self.last_success.get(key, row.ended_at))
            self._stood = max(row.ended_at - _LATE, self._stood or row.ended_at - _LATE)

    def _add(self, row: Any) -> None:
        settled = (
            row.id in self._unsettled
        )  # it ended as unknown, and now the table shows the outcome: counted already
        self._recent[row.id] = (row.state, row.ended_at)
        if row.state == RunState.UNKNOWN:
            self._unsettled.add(row.id)
        self._unsettled -= {row.id} if settled else set()
        took = max(timedelta(), row.ended_at - row.started_at)
        self.durations.setdefault((row.job, row.state), Durations()).add(took)
        self._see_run(row.table_name, row.job, row.state, row.ended_at)
        if row.job == Job.PURGE:
            self._orphans.purged(row.table_name)
        if settled:
            return
        for name, counter in ADDED.items():
            amount = row.counters.get(counter, 0)
            if amount:
                self.added[name][row.table_name] += amount
        if row.job == Job.COMPACT_HISTORY and row.state == RunState.DONE:
            self.lineage_compactions[row.table_name] += 1
        self._see_speed(row.counters)


class _Orphans:
    """Deleted files that belonged to no snapshot, counted from their receipts, which are kept forever. A batch
    with nothing left to delete is counted once, the others again when a purge has ended.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._settled: set[str] = set()
        self._open: dict[str, str] = {}
        self._over: Counter[str] = Counter()
        self._purged: set[str] | None = None  # None: nothing is counted yet
        self.erased: Mapping[str, int] = {}

    def purged(self, table: str) -> None:
        if self._purged is not None:
            self._purged.add(table)

    def refresh(self) -> None:
        if self._purged is not None and not self._purged:
            return
        found = self._fleet.orphan_batches(self._purged)
        new = {batch: table for batch, table in found.items() if batch not in self._settled}
        asked = self._open | new
        counted = self._fleet.erased_of(asked)
        going: Counter[str] = Counter()
        self._open = {}
        for batch, table in asked.items():
            count = counted.get(batch)
            if count is not None and count.goes_on:
                self._open[batch] = table
                going[table] += count.files
            else:
                self._settled.add(batch)
                self._over[table] += count.files if count is not None else 0
        self.erased = self._over + going
        self._purged = set()
