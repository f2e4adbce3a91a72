"""Sends runs to an OpenTelemetry collector: a span per run, its steps as events. Sent when the run has ended.

The receiver never delays a run: spans wait in a queue of the SDK's own thread, and the SDK drops and logs spans
that cannot be delivered.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewarden.model.run import Run, RunState, Step
from lakewarden.redact import redact_url
from lakewarden.version import build

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

_SECONDS = 5.0
_QUEUE, _DELAY_MS = 1_000, 1_000
_WELL = (RunState.DONE, RunState.NOTHING_TO_DO, RunState.PARTIAL)
_WORDS = 500


class Traces:
    """A listener of the journal. `steps` returns the steps that a run journaled."""

    def __init__(self, url: str, steps: Callable[[str], Sequence[Step]]) -> None:
        self._url, self._steps = url, steps
        self._provider: TracerProvider | None = None

    def started(self, run: Run) -> None:
        """Does nothing: a span is sent whole, at its end."""

    def ended(self, run: Run) -> None:
        try:
            self._send(run)
        except Exception as error:  # a failure of the receiver must not affect the run
            log.warning("no trace of run %s was sent: %s", run.id, redact_url(str(error)))

    def close(self) -> None:
        """Send the waiting spans, but only for a limited time."""
        if self._provider is not None:
            self._provider.force_flush(int(_SECONDS * 1000))
            self._provider.shutdown()
            self._provider = None

    def _send(self, run: Run) -> None:
        from opentelemetry.trace import Status, StatusCode

        tracer = self._made().get_tracer("lakewarden", build())
        attributes = _attributes(run)
        span = tracer.start_span(
            f"{run.job} {run.table}", attributes=attributes, start_time=_nanos(run.started_at)
        )
        for step in self._steps(run.id):
            span.add_event(
                step.name, {"detail": json.dumps(step.detail, default=str)[:_WORDS]}, _nanos(step.at)
            )
        well = run.state in _WELL
        span.set_status(
            Status(StatusCode.OK) if well else Status(StatusCode.ERROR, run.reason or str(run.state))
        )
        span.end(_nanos(run.ended_at or run.started_at))

    def _made(self) -> TracerProvider:
        if self._provider is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            resource = Resource.create({"service.name": "lakewarden", "service.version": build()})
            provider = TracerProvider(resource=resource, shutdown_on_exit=True)
            exporter = OTLPSpanExporter(endpoint=self._url, timeout=_SECONDS)
            provider.add_span_processor(
                BatchSpanProcessor(exporter, max_queue_size=_QUEUE, schedule_delay_millis=_DELAY_MS, max_export_batch_size=100)
            )  # fmt: skip
            self._provider = provider
        return self._provider


def _attributes(run: Run) -> dict[str, Any]:
    counters = {
        f"lakewarden.counter.{name}": value
        for name, value in run.counters.items()
        if isinstance(value, int | float)
    }
    return {
        "lakewarden.run_id": run.id,
        "lakewarden.job": run.job,
        "lakewarden.table": run.table,
        "lakewarden.state": str(run.state),
        "lakewarden.reason": run.reason[:_WORDS],
        "lakewarden.trigger.type": run.trigger.type,
        "lakewarden.trigger.operator": run.trigger.operator or "",
        "lakewarden.snapshot_ids": [str(each) for each in run.snapshot_ids],
        **counters,
    }


def _nanos(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000_000)
