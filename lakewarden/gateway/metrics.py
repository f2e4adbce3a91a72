"""Counts the gateway's events: in memory for `/metrics`, and refused lineage in the state database, about once a second."""

from __future__ import annotations

import logging
import threading

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from lakewarden import clock
from lakewarden.gateway.judge import Rule
from lakewarden.state.audit_log import Rejections
from lakewarden.state.database import State

log = logging.getLogger(__name__)

DOOR = "gateway"
# A client's table name becomes a label or a row only if the catalog has such a table, and only up to this many tables.
NEW, OTHER = "(tables that are not there)", "(other tables)"
_MOST_TABLES = 10_000
_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Counts:
    def __init__(self, state: State) -> None:
        self._rejections = Rejections(state)
        self._waiting: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._tables: set[str] = set()
        self._registry = CollectorRegistry()
        self.failures = Counter(
            "lineage_validation_failures",
            "Commits rejected because they lack the lineage that the table requires.",
            ["table", "door"],
            registry=self._registry,
        )
        self.refusals = Counter(
            "lakewarden_gateway_refusals",
            "Commits rejected, by the rule they break.",
            ["table", "rule"],
            registry=self._registry,
        )
        self.requests = Counter(
            "lakewarden_gateway_requests",
            "Requests answered.",
            ["kind", "status"],
            registry=self._registry,
        )
        self.cut_off = Counter(
            "lakewarden_gateway_connections_cut_off",
            "Connections closed by the gateway, and requests whose body did not come, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "lakewarden_gateway_request_seconds",
            "Seconds from the request to the end of its answer.",
            ["kind"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.catalog_seconds = Histogram(
            "lakewarden_gateway_catalog_seconds",
            "Seconds of that spent in the catalog for a commit.",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def refused(self, table: str | None, rules: set[Rule], reason: str) -> None:
        """`table` is None if the catalog has no such table: a client may send any number of names."""
        table = self._label(table)
        for rule in rules:
            self.refusals.labels(table, rule.value).inc()
        if Rule.LINEAGE not in rules:
            return
        self.failures.labels(table, DOOR).inc()
        with self._lock:
            self._waiting[table] = (self._waiting.get(table, (0, ""))[0] + 1, reason)

    def _label(self, table: str | None) -> str:
        if table is None:
            return NEW
        # A catalog may know one table by many names, in lower and upper case.
        if table not in self._tables and len(self._tables) >= _MOST_TABLES:
            return OTHER
        self._tables.add(table)
        return table

    def flush(self) -> None:
        """Write the counts since the last flush. Counts that cannot be written now are kept for the next flush."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for table, (count, reason) in waiting.items():
            try:
                self._rejections.add(table, DOOR, reason, clock.now(), count)
            except Exception as error:  # whatever the error is: if the task that calls this ended, nothing would be counted any more
                why = type(error).__name__  # the message contains the SQL statement
                log.warning("%d rejected commits to %s are not counted yet: %s", count, table, why)
                with self._lock:
                    later, newest = self._waiting.get(table, (0, reason))
                    self._waiting[table] = (count + later, newest)

    def shown(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)
