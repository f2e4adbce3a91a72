"""What runs have done since the beginning, added up from the journal: each run is read once, however often it is asked for.

Derived from the database, so that a process that starts anew goes on from the same numbers.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lakewarden.model import Job, RunState
from lakewarden.state.fleet import Fleet

BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_PAGE = 5_000
# Another process may have written an ending a while after the moment it names.
_LATE = timedelta(minutes=10)
_SUCCESS = (RunState.DONE, RunState.NOTHING_TO_DO)
# By metric, the counter of a run it adds up.
ADDED = {
    "files_compacted": "files_compacted",
    "snapshots_expired": "snapshots_expired",
    "bytes_rewritten": "bytes_before",
    "files_erased": "files_erased",
    "bytes_erased": "bytes_erased",
}


@dataclass(slots=True)
class Durations:
    """A histogram of one job and ending."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class Totals:
    """Kept by whoever serves metrics. Safe to share between threads."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = threading.Lock()
        self._after: datetime | None = None
        self._stood: datetime | None = None
        self._recent: dict[str, tuple[str, datetime]] = {}
        self._unsettled: set[str] = set()
        self.added: dict[str, Counter[str]] = {name: Counter() for name in ADDED}
        self.lineage_compactions: Counter[str] = Counter()
        self.durations: dict[tuple[str, str], Durations] = {}
        self.last_success: dict[tuple[str, str], datetime] = {}
        self.newest_speed: Mapping[str, float] = {}

    def refresh(self) -> None:
        """Read what ended since the last time, a page at a time."""
        with self._lock:
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
            self._see_standings()

    def _see_standings(self) -> None:
        """A scheduled job that has nothing to do is not journaled: that it ended well is in the table's standing alone."""
        for row in self._fleet.went_well(self._stood, [str(each) for each in _SUCCESS]):
            key = row.table_name, row.slot
            self.last_success[key] = max(row.ended_at, self.last_success.get(key, row.ended_at))
            self._stood = max(row.ended_at - _LATE, self._stood or row.ended_at - _LATE)

    def _add(self, row: Any) -> None:
        settled = (
            row.id in self._unsettled
        )  # it ended as unknown, and now the table has told: counted already
        self._recent[row.id] = (row.state, row.ended_at)
        if row.state == RunState.UNKNOWN:
            self._unsettled.add(row.id)
        self._unsettled -= {row.id} if settled else set()
        seconds = max(0.0, (row.ended_at - row.started_at).total_seconds())
        self.durations.setdefault((row.job, row.state), Durations()).add(seconds)
        if row.state in _SUCCESS:
            key = row.table_name, row.job
            self.last_success[key] = max(row.ended_at, self.last_success.get(key, row.ended_at))
        if settled:
            return
        for name, counter in ADDED.items():
            amount = row.counters.get(counter, 0)
            if amount:
                self.added[name][row.table_name] += amount
        if row.job == Job.COMPACT_HISTORY and row.state == RunState.DONE:
            self.lineage_compactions[row.table_name] += 1
        if "read_mb_per_s" in row.counters:
            self.newest_speed = {
                name: float(row.counters[name])
                for name in ("read_mb_per_s", "write_mb_per_s")
                if name in row.counters
            }
