"""/metrics: what the state database knows, in Prometheus' words. Every metric is a row of one table; docs/metrics.md is made from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from lakewarden import clock
from lakewarden.config import Config
from lakewarden.health.totals import BUCKETS, Totals
from lakewarden.state.database import State
from lakewarden.state.fleet import Fleet
from lakewarden.state.health import HealthRecords, TableHealth
from lakewarden.state.leases import Lease, Leases
from lakewarden.state.rejections import Rejections
from lakewarden.version import build

# Two that ask at once, and a page beside them, read the database once.
_SECONDS = 5.0

Samples = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class Named:
    """One metric, as the docs print it. A counter's name is told with its `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    sentence: str


_TABLE = ("table",)

METRICS: tuple[Named, ...] = (
    Named("files_compacted_total", "counter", _TABLE, "small files that compactions replaced"),
    Named("snapshots_expired_total", "counter", _TABLE, "snapshots that expire dropped"),
    Named("orphans_cleaned_total", "counter", _TABLE, "files that belonged to no snapshot, found by a sweep or left by a failed load, and deleted"),
    Named("lineage_validation_failures_total", "counter", _TABLE, "commits that were turned away for want of lineage, at every door"),
    Named("lakewarden_bytes_rewritten_total", "counter", _TABLE, "bytes that compactions read"),
    Named("lakewarden_files_erased_total", "counter", _TABLE, "doomed files that reap deleted"),
    Named("lakewarden_bytes_erased_total", "counter", _TABLE, "bytes of those"),
    Named("lakewarden_lineage_compactions_total", "counter", _TABLE, "runs of compact-history that folded something"),
    Named("lakewarden_lake_files", "gauge", _TABLE, "data files of the current snapshot"),
    Named("lakewarden_lake_delete_files", "gauge", _TABLE, "its delete files; deletion vectors by the file they are in"),
    Named("lakewarden_lake_bytes", "gauge", _TABLE, "bytes of both"),
    Named("lakewarden_lake_records", "gauge", _TABLE, "rows of the current snapshot"),
    Named("lakewarden_lake_snapshots", "gauge", _TABLE, "snapshots in the metadata"),
    Named("lakewarden_lake_manifests", "gauge", _TABLE, "manifests of the current snapshot"),
    Named("lakewarden_lake_delete_ratio", "gauge", _TABLE, "delete files per data file or the share of rows deleted, whichever is worse"),
    Named("lakewarden_lake_small_files", "gauge", _TABLE, "data files below rewrite_small_bytes"),
    Named("lakewarden_lake_overdue_snapshots", "gauge", _TABLE, "snapshots that are free to expire and still there"),
    Named("lakewarden_lake_doomed_files", "gauge", _TABLE, "files marked for deletion and still there"),
    Named("lakewarden_lake_doomed_bytes", "gauge", _TABLE, "bytes of those"),
    Named("lakewarden_lake_held_bytes", "gauge", _TABLE, "bytes that stay only because something holds them"),
    Named("lakewarden_lake_lineage_gaps", "gauge", _TABLE, "live snapshots that do not say what the policy asks for"),
    Named("lakewarden_lake_score", "gauge", _TABLE, "health from 0 to 100"),
    Named("lakewarden_lake_debt", "gauge", _TABLE, "how urgently it needs work; 0 is not at all"),
    Named("lakewarden_lake_readable", "gauge", _TABLE, "1, or 0 where the table could not be looked at"),
    Named("lakewarden_lake_suspended", "gauge", _TABLE, "1 where the schedule leaves the table alone until it is resumed; only such tables are told"),
    Named("lakewarden_lake_warnings", "gauge", ("table", "kind"), "1 for each warning that is open"),
    Named("lakewarden_lake_looked_timestamp_seconds", "gauge", _TABLE, "when the table was last looked at"),
    Named("lakewarden_last_success_timestamp_seconds", "gauge", ("table", "job"), "when a run of the job last ended well, with something to do or without"),
    Named("lakewarden_run_duration_seconds", "histogram", ("job", "state"), "how long runs took, by how they ended"),
    Named("lakewarden_runs_open", "gauge", ("job",), "runs that are at work"),
    Named("lakewarden_budget_limit", "gauge", ("budget",), "what the settings allow; a budget without a limit is left out"),
    Named("lakewarden_budget_used", "gauge", ("budget",), "what the newest rewrite moved, of the same"),
    Named("lakewarden_leader_live", "gauge", (), "1 while a worker leads"),
    Named("lakewarden_leader_term", "gauge", (), "the newest term; it grows whenever another worker takes over"),
    Named("lakewarden_leader_seconds_left", "gauge", (), "seconds until the lease is over unless it is renewed"),
    Named("lakewarden_requests_pending", "gauge", (), "passes that were asked for and have not begun"),
    Named("lakewarden_tables_in_debt", "gauge", (), "tables whose debt is one run or more"),
    Named("lakewarden_tables_suspended", "gauge", (), "tables that the schedule leaves alone"),
    Named("lakewarden_tables_unreadable", "gauge", (), "tables that could not be looked at"),
    Named("lakewarden_health_oldest_look_seconds", "gauge", (), "how long ago the most neglected table was looked at"),
    Named("lakewarden_build_info", "gauge", ("version",), "1, with the version that answers"),
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
    "lakewarden_lake_doomed_files": "doomed_files",
    "lakewarden_lake_doomed_bytes": "doomed_bytes",
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
    """The text that is served, made anew when it is a few seconds old."""

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
    """A collector of prometheus-client that asks the state database, a few questions for all tables together."""

    def __init__(self, state: State, config: Config) -> None:
        self._state, self._config = state, config
        self._fleet = Fleet(state)
        self._totals = Totals(self._fleet)

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked when the collector is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric of `METRICS`, in that order; those without a value for now have their name and help."""
        found = self._samples()
        for each in METRICS:
            yield (
                _histogram(each, self._totals)
                if each.kind == "histogram"
                else _family(each, found[each.name])
            )

    def _samples(self) -> Mapping[str, Samples]:
        self._totals.refresh()
        health = HealthRecords(self._state).all()
        suspended, gone = self._fleet.suspended(), self._fleet.gone()
        lease = Leases(self._state).current()
        return {
            **self._counters(health),
            **_gauges(health, clock.now()),
            **_lease(lease),
            **self._budgets(),
            "lakewarden_lake_suspended": [((table,), 1.0) for table in sorted(suspended)],
            "lakewarden_lake_warnings": [
                ((table, kind), 1.0)
                for table, kinds in sorted(HealthRecords(self._state).open_kinds().items())
                for kind in sorted(kinds)
            ],
            "lakewarden_last_success_timestamp_seconds": [
                (key, at.timestamp())
                for key, at in sorted(self._totals.last_success.items())
                if key[0] not in gone
            ],
            "lakewarden_runs_open": [
                ((job,), float(n)) for job, n in sorted(self._fleet.open_runs().items())
            ],
            "lakewarden_requests_pending": [((), float(self._fleet.pending_requests()))],
            "lakewarden_tables_suspended": [((), float(len(suspended)))],
            "lakewarden_build_info": [((build(),), 1.0)],
        }

    def _counters(self, health: Iterable[TableHealth]) -> dict[str, Samples]:
        """A table that is known counts from 0 on: a rate needs a number to begin with."""
        known = [each.table for each in health]
        rejected: dict[str, float] = {}
        for each in Rejections(self._state).list():
            rejected[each.table] = rejected.get(each.table, 0.0) + each.count
        of_runs: dict[str, Mapping[str, float]] = {
            name: self._totals.added[counter] for name, counter in _OF_RUNS.items()
        }
        all_: dict[str, Mapping[str, float]] = {
            **of_runs,
            "orphans_cleaned_total": self._fleet.orphans_erased(),
            "lineage_validation_failures_total": rejected,
            "lakewarden_lineage_compactions_total": self._totals.lineage_compactions,
        }
        return {
            name: [((table,), float(values.get(table, 0))) for table in sorted({*known, *values})]
            for name, values in all_.items()
        }

    def _budgets(self) -> dict[str, Samples]:
        budgets = self._config.budgets
        limits = [((name,), getattr(budgets, name)) for name in _BUDGETS]
        return {
            "lakewarden_budget_limit": [(key, float(value)) for key, value in limits if isinstance(value, int | float)],
            "lakewarden_budget_used": [((name,), value) for name, value in self._totals.newest_speed.items()],
        }  # fmt: skip


def _gauges(health: Iterable[TableHealth], now: datetime) -> dict[str, Samples]:
    tables = list(health)

    def each_of(value: Callable[[TableHealth], float]) -> Samples:
        return [((each.table,), float(value(each))) for each in tables]

    oldest = max(((now - each.at).total_seconds() for each in tables), default=0.0)
    return {
        **{name: each_of(_number(field)) for name, field in _OF_NUMBERS.items()},
        "lakewarden_lake_score": each_of(lambda each: each.score),
        "lakewarden_lake_debt": each_of(lambda each: each.debt),
        "lakewarden_lake_readable": each_of(lambda each: not each.error),
        "lakewarden_lake_looked_timestamp_seconds": each_of(lambda each: each.at.timestamp()),
        "lakewarden_tables_in_debt": [((), float(sum(each.debt >= 1 for each in tables)))],
        "lakewarden_tables_unreadable": [((), float(sum(bool(each.error) for each in tables)))],
        "lakewarden_health_oldest_look_seconds": [((), max(0.0, oldest))],
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


def _family(named: Named, samples: Samples) -> Metric:
    kinds: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    family: Metric = kinds[named.kind](named.name, named.sentence, labels=named.labels)
    for labels, value in samples:
        family.add_metric(labels, value)  # type: ignore[attr-defined]
    return family


def _histogram(named: Named, totals: Totals) -> Metric:
    family = HistogramMetricFamily(named.name, named.sentence, labels=named.labels)
    for key, found in sorted(totals.durations.items()):
        reached, buckets = 0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), found.counts, strict=True):
            reached += count
            buckets.append((bound, reached))
        family.add_metric(key, buckets, found.seconds)
    return family
