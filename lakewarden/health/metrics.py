"""Serves /metrics: the state database's numbers in Prometheus' format. Every metric is one row of a table;
docs/metrics.md is made from it. What runs have done is added up from the journal.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from lakewarden import clock
from lakewarden.config.schema import Config
from lakewarden.config.types import NEVER
from lakewarden.model.job_facts import slot_of, timed_as
from lakewarden.model.run import Job, RunState
from lakewarden.policy.fleet import FleetJobs
from lakewarden.state.audit_log import Rejections
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State
from lakewarden.state.fleet import Fleet
from lakewarden.state.health import HealthRecords, TableHealth
from lakewarden.state.locks import Lease, Leases
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.run_queries import RunSum, RunTotals
from lakewarden.state.tables import SeenTables
from lakewarden.version import build

# A table without a worker may or may not still exist: it is shown for this long after its last run.
_REMEMBERED = timedelta(days=30)
# Two requests at once, and a page beside them, read the database once.
_SECONDS = 5.0

Samples = Iterable[tuple[tuple[str, ...], float]]

BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)

# By metric, the counter of a run that it adds up.
ADDED = {
    "files_compacted": "files_compacted",
    "snapshots_expired": "snapshots_expired",
    "bytes_rewritten": "bytes_before",
    "files_erased": "files_erased",
    "bytes_erased": "bytes_erased",
}


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One metric, as the docs print it. A counter's name includes `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    sentence: str


_TABLE = ("table",)

METRICS: tuple[MetricInfo, ...] = (
    MetricInfo("files_compacted_total", "counter", _TABLE, "small files that compactions replaced"),
    MetricInfo("snapshots_expired_total", "counter", _TABLE, "snapshots that expire dropped"),
    MetricInfo("orphans_cleaned_total", "counter", _TABLE, "files that belonged to no snapshot, found by a sweep or left by a failed load, and deleted"),
    MetricInfo("lineage_validation_failures_total", "counter", _TABLE, "commits that were turned away for want of lineage, at every door"),
    MetricInfo("lakewarden_bytes_rewritten_total", "counter", _TABLE, "bytes that compactions read"),
    MetricInfo("lakewarden_files_erased_total", "counter", _TABLE, "trashed files that purge deleted"),
    MetricInfo("lakewarden_bytes_erased_total", "counter", _TABLE, "bytes of those"),
    MetricInfo("lakewarden_lineage_compactions_total", "counter", _TABLE, "runs of compact-history that folded something"),
    MetricInfo("lakewarden_lake_files", "gauge", _TABLE, "data files of the current snapshot"),
    MetricInfo("lakewarden_lake_delete_files", "gauge", _TABLE, "its delete files; deletion vectors by the file they are in"),
    MetricInfo("lakewarden_lake_bytes", "gauge", _TABLE, "bytes of both"),
    MetricInfo("lakewarden_lake_records", "gauge", _TABLE, "rows of the current snapshot"),
    MetricInfo("lakewarden_lake_snapshots", "gauge", _TABLE, "snapshots in the metadata"),
    MetricInfo("lakewarden_lake_manifests", "gauge", _TABLE, "manifests of the current snapshot"),
    MetricInfo("lakewarden_lake_delete_ratio", "gauge", _TABLE, "delete files per data file or the share of rows deleted, whichever is worse"),
    MetricInfo("lakewarden_lake_small_files", "gauge", _TABLE, "data files below rewrite_small_bytes"),
    MetricInfo("lakewarden_lake_overdue_snapshots", "gauge", _TABLE, "snapshots that are free to expire and still there"),
    MetricInfo("lakewarden_lake_trashed_files", "gauge", _TABLE, "files marked for deletion and still there"),
    MetricInfo("lakewarden_lake_trashed_bytes", "gauge", _TABLE, "bytes of those"),
    MetricInfo("lakewarden_lake_held_bytes", "gauge", _TABLE, "bytes that stay only because something holds them"),
    MetricInfo("lakewarden_lake_lineage_gaps", "gauge", _TABLE, "live snapshots that do not say what the policy asks for"),
    MetricInfo("lakewarden_lake_score", "gauge", _TABLE, "health from 0 to 100"),
    MetricInfo("lakewarden_lake_debt", "gauge", _TABLE, "how urgently it needs work; 0 is not at all"),
    MetricInfo("lakewarden_lake_readable", "gauge", _TABLE, "1, or 0 where the table could not be looked at"),
    MetricInfo("lakewarden_lake_suspended", "gauge", ("table", "by"), "1 where the schedule leaves the table alone until it is resumed, by the worker itself or by an operator; only such tables are told"),
    MetricInfo("lakewarden_lake_warnings", "gauge", ("table", "kind"), "1 for each warning that is open"),
    MetricInfo("lakewarden_lake_looked_timestamp_seconds", "gauge", _TABLE, "when the table was last looked at"),
    MetricInfo("lakewarden_last_success_timestamp_seconds", "gauge", ("table", "run_job"), "when a run of the job last ended well, with something to do or without, or a worker first saw the table, if that is later; only of jobs that policy and schedule ask for"),
    MetricInfo("lakewarden_run_duration_seconds", "histogram", ("run_job", "state"), "how long runs took, by how they ended"),
    MetricInfo("lakewarden_runs_open", "gauge", ("run_job",), "runs that are at work"),
    MetricInfo("lakewarden_budget_limit", "gauge", ("budget",), "what the settings allow; a budget without a limit is left out"),
    MetricInfo("lakewarden_budget_used", "gauge", ("budget",), "what the newest rewrite moved, of the same"),
    MetricInfo("lakewarden_leader_live", "gauge", (), "1 while a worker leads"),
    MetricInfo("lakewarden_leader_term", "gauge", (), "the newest term; it grows whenever another worker takes over"),
    MetricInfo("lakewarden_leader_seconds_left", "gauge", (), "seconds until the lease is over unless it is renewed"),
    MetricInfo("lakewarden_requests_pending", "gauge", (), "passes that were asked for and have not begun"),
    MetricInfo("lakewarden_requests_oldest_pending_seconds", "gauge", (), "how long the one of them that has waited longest has; 0 where none waits"),
    MetricInfo("lakewarden_tables_in_debt", "gauge", (), "tables whose debt is one run or more"),
    MetricInfo("lakewarden_tables_suspended", "gauge", (), "tables that the schedule leaves alone"),
    MetricInfo("lakewarden_tables_unreadable", "gauge", (), "tables that could not be looked at"),
    MetricInfo("lakewarden_health_oldest_look_seconds", "gauge", (), "how long ago the table was looked at that waited longest; a look that takes long is taken seldom"),
    MetricInfo("lakewarden_health_newest_look_seconds", "gauge", (), "how long ago any table was looked at"),
    MetricInfo("lakewarden_build_info", "gauge", ("version",), "1, with the version that answers"),
)  # fmt: skip

_OF_NUMBERS = {
    "lakewarden_lake_files": "files",
    "lakewarden_lake_delete_files": "delete_files",
    "lakewarden_lake_bytes": "bytes",
    "lakewarden_lake_records": "records",
    "lakewarden_lake_snapshots": "snapshots",
    "lakewarden_lake_manifests": "manifests",
    "lakewarden_lake_delete_ratio": "delete_ratio",
    "lakewarden_lake_small_files": "small_files",
    "lakewarden_lake_overdue_snapshots": "overdue_snapshots",
    "lakewarden_lake_trashed_files": "trashed_files",
    "lakewarden_lake_trashed_bytes": "trashed_bytes",
    "lakewarden_lake_held_bytes": "held_bytes",
    "lakewarden_lake_lineage_gaps": "lineage_gaps",
}
_OF_RUNS = {
    "files_compacted_total": "files_compacted",
    "snapshots_expired_total": "snapshots_expired",
    "lakewarden_bytes_rewritten_total": "bytes_rewritten",
    "lakewarden_files_erased_total": "files_erased",
    "lakewarden_bytes_erased_total": "bytes_erased",
}
_BUDGETS = ("max_tasks", "read_mb_per_s", "write_mb_per_s", "requests_per_s", "deletes_per_s")


class Exposition:
    """The text that is served, rebuilt when it is a few seconds old."""

    def __init__(self, state: State, config: Config, seconds: float = _SECONDS) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StateMetrics(state, config))
        self._seconds = seconds
        self._lock = threading.Lock()
        self._made: tuple[float, bytes] | None = None

    def text(self) -> tuple[bytes, str]:
        """The metrics and their content type."""
        with self._lock:
            if self._made is None or clock.monotonic() - self._made[0] >= self._seconds:
                self._made = (clock.monotonic(), generate_latest(self._registry))
            return self._made[1], CONTENT_TYPE_LATEST


class StateMetrics:
    """A collector for prometheus-client that queries the state database, with a few queries for all tables together."""

    def __init__(self, state: State, config: Config) -> None:
        self._state, self._config = state, config
        self._fleet = Fleet(state)
        self._totals, self._duties = Totals(state), ExpectedJobs(state, config)

    def describe(self) -> Iterable[Metric]:
        """Empty: registering the collector runs no queries."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric of `METRICS`, in that order; those without a current value have their name and help."""
        samples = self._samples()
        for each in METRICS:
            yield (
                _histogram(each, self._totals)
                if each.kind == "histogram"
                else _family(each, samples[each.name])
            )

    def _samples(self) -> Mapping[str, Samples]:
        self._totals.refresh()
        now, health, seen = clock.now(), HealthRecords(self._state).all(), self._fleet.seen()
        known = _There({each.table for each in health}, seen, now)
        suspended = dict(sorted(self._fleet.suspended_by().items()))
        return {
            **self._counters(known),
            **_gauges(health, now),
            **_lease(Leases(self._state).current()),
            **self._budgets(),
            **self._requests(now),
            "lakewarden_lake_suspended": [((table, by), 1.0) for table, by in suspended.items()],
            "lakewarden_lake_warnings": [
                ((table, kind), 1.0)
                for table, kinds in sorted(HealthRecords(self._state).open_kinds().items())
                for kind in sorted(kinds)
            ],
            "lakewarden_last_success_timestamp_seconds": self._last_success(known),
            "lakewarden_runs_open": [
                ((job,), float(n)) for job, n in sorted(self._fleet.open_runs().items())
            ],
            "lakewarden_tables_suspended": [((), float(len(suspended)))],
            "lakewarden_build_info": [((build(),), 1.0)],
        }

    def _counters(self, known: _There) -> dict[str, Samples]:
        """A known table counts from 0 on, because a rate needs a first number. A removed table is no longer shown."""
        rejected: dict[str, float] = {}
        heard = dict(self._totals.last_run)
        for each in Rejections(self._state).list():
            rejected[each.table] = rejected.get(each.table, 0.0) + each.count
            heard[each.table] = max(each.at, heard.get(each.table, each.at))
        of_runs: dict[str, Mapping[str, float]] = {
            name: self._totals.added[counter] for name, counter in _OF_RUNS.items()
        }
        all_: dict[str, Mapping[str, float]] = {
            **of_runs,
            "orphans_cleaned_total": self._totals.orphans,
            "lineage_validation_failures_total": rejected,
            "lakewarden_lineage_compactions_total": self._totals.lineage_compactions,
        }
        looked = known.looked_at
        shown = looked | {table for table, at in heard.items() if known.is_told(table, at)}
        return {
            name: [
                ((table,), float(values.get(table, 0))) for table in sorted(looked | (shown & values.keys()))
            ]
            for name, values in all_.items()
        }

    def _last_success(self, known: _There) -> Samples:
        """For every expected job of a table. A job that never succeeded counts from when a worker first saw the table."""
        succeeded: dict[str, dict[str, datetime]] = {}
        for (table, job), ended in self._totals.last_success.items():
            succeeded.setdefault(table, {})[job] = ended
        tables = known.in_charge | {
            table for table, jobs in succeeded.items() if known.is_told(table, max(jobs.values()))
        }
        return [
            ((table, job), at.timestamp())
            for table, jobs in sorted(self._duties.of(tables - known.gone).items())
            for job in sorted(jobs)
            if (at := _later(succeeded.get(table, {}).get(job), known.seen.get(table))) is not None
        ]

    def _requests(self, now: datetime) -> dict[str, Samples]:
        pending, oldest = self._fleet.pending_requests()
        waited = (now - oldest).total_seconds() if oldest else 0.0
        return {
            "lakewarden_requests_pending": [((), float(pending))],
            "lakewarden_requests_oldest_pending_seconds": [((), max(0.0, waited))],
        }

    def _budgets(self) -> dict[str, Samples]:
        budgets = self._config.budgets
        limits = [((name,), getattr(budgets, name)) for name in _BUDGETS]
        return {
            "lakewarden_budget_limit": [(key, float(value)) for key, value in limits if isinstance(value, int | float)],
            "lakewarden_budget_used": [((name,), value) for name, value in self._totals.newest_speed.items()],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _There:
    """The tables that exist as far as the database knows: those with a look, and those a worker has seen, with
    the first time.
    """

    looked_at: set[str]
    seen: Mapping[str, datetime | None]
    now: datetime

    @property
    def gone(self) -> set[str]:
        return {table for table, since in self.seen.items() if since is None}

    @property
    def in_charge(self) -> set[str]:
        """Tables that a worker looks after."""
        return self.seen.keys() - self.gone

    def is_told(self, table: str, heard: datetime) -> bool:
        """`heard`: when something last happened to it."""
        if table in self.looked_at:
            return True
        if table in self.seen:
            return self.seen[table] is not None
        return self.now - heard < _REMEMBERED


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _gauges(health: Iterable[TableHealth], now: datetime) -> dict[str, Samples]:
    tables = list(health)

    def each_of(value: Callable[[TableHealth], float]) -> Samples:
        return [((each.table,), float(value(each))) for each in tables]

    waited = [max(0.0, (now - each.at).total_seconds()) for each in tables]
    return {
        **{name: each_of(_number(field)) for name, field in _OF_NUMBERS.items()},
        "lakewarden_lake_score": each_of(lambda each: each.score),
        "lakewarden_lake_debt": each_of(lambda each: each.debt),
        "lakewarden_lake_readable": each_of(lambda each: not each.error),
        "lakewarden_lake_looked_timestamp_seconds": each_of(lambda each: each.at.timestamp()),
        "lakewarden_tables_in_debt": [((), float(sum(each.debt >= 1 for each in tables)))],
        "lakewarden_tables_unreadable": [((), float(sum(bool(each.error) for each in tables)))],
        "lakewarden_health_oldest_look_seconds": [((), max(waited, default=0.0))],
        "lakewarden_health_newest_look_seconds": [((), min(waited, default=0.0))],
    }


def _number(field: str) -> Callable[[TableHealth], float]:
    def value(each: TableHealth) -> float:
        found: float = getattr(each.numbers, field)
        return found

    return value


def _lease(lease: Lease | None) -> dict[str, Samples]:
    return {
        "lakewarden_leader_live": [((), float(bool(lease and lease.live)))],
        "lakewarden_leader_term": [((), float(lease.term if lease else 0))],
        "lakewarden_leader_seconds_left": [((), max(0.0, lease.seconds_left) if lease else 0.0)],
    }


def _family(named: MetricInfo, samples: Samples) -> Metric:
    kinds: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    family: Metric = kinds[named.kind](named.name, named.sentence, labels=named.labels)
    for labels, value in samples:
        family.add_metric(labels, value)  # type: ignore[attr-defined]
    return family


def _histogram(named: MetricInfo, totals: Totals) -> Metric:
    family = HistogramMetricFamily(named.name, named.sentence, labels=named.labels)
    for key, durations in sorted(totals.durations.items()):
        reached, buckets = 0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), durations.counts, strict=True):
            reached += count
            buckets.append((bound, reached))
        family.add_metric(key, buckets, durations.seconds)
    return family


_PAGE = 5_000
# Another process may write the end of a run some time after the end itself.
_LATE = timedelta(minutes=10)
_MICROSECOND = timedelta(microseconds=1)
_REWRITES = tuple(job for job in Job if slot_of(job) == slot_of(Job.COMPACT))
_SUCCESS = (RunState.DONE, RunState.NOTHING_TO_DO)


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
    """Kept by a server of metrics. Safe to share between threads.

    Adds up what all runs have done, from the journal: each run is counted once, however often it is read. A
    restarted process continues from the same numbers. The database adds up everything older than the last
    minutes in one query; from there on each run is read when it ends.
    """

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


class ExpectedJobs:
    """The jobs that every table should have by its policy and the schedule. Kept between calls: the cache
    makes the next call cheap."""

    def __init__(self, state: State, config: Config) -> None:
        self._policies, self._seen, self._schedule = StoredPolicies(state), SeenTables(state), config.schedule
        self._cold = ColdTables(state)
        self._jobs = FleetJobs(config.policy)
        self._timed: dict[tuple[Job, ...], frozenset[str]] = {}

    def of(self, tables: set[str]) -> dict[str, frozenset[str]]:
        """By table, the names of its jobs; none if upkeep is switched off or the policy is invalid."""
        stored, seen = self._policies.all(), self._seen.all()
        found: dict[str, frozenset[str]] = {}
        for table in tables:
            known = seen.get(table)
            properties = known.properties if known else {}
            cold_of = self._cold.source(properties, known.uuid) if known else ""
            found[table] = self._with_times(
                self._jobs.of(table, properties, stored.get(table, {}), cold_of).jobs
            )
        self._jobs.keep(tables)
        return found

    def _with_times(self, jobs: tuple[Job, ...]) -> frozenset[str]:
        """The names of the jobs for which the schedule has a time."""
        names = self._timed.get(jobs)
        if names is None:
            config = self._schedule
            names = self._timed[jobs] = frozenset(
                str(job)
                for job in jobs
                if config.mode != "cron" or config.times.get(str(timed_as(job, jobs)), NEVER) != NEVER
            )
        return names
