"""Sends OpenLineage events about runs: START when one begins, COMPLETE, FAIL or ABORT when it ends.

A run with an unknown commit outcome ends with OTHER, and with COMPLETE or FAIL once the table shows the
outcome. The receiver never delays a run: an event that cannot be delivered is logged, and the run continues.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import uuid
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakewarden import clock
from lakewarden.config.schema import LineageConfig
from lakewarden.model.run import Run, RunState
from lakewarden.model.table import TableRef
from lakewarden.redact import redact_url
from lakewarden.version import build

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

log = logging.getLogger(__name__)

_SECONDS = 5.0
_MOST = 1_000
_API_KEY = "OPENLINEAGE_API_KEY"  # the name that OpenLineage's own clients read
_ENDS = {
    RunState.DONE: "COMPLETE",
    RunState.NOTHING_TO_DO: "COMPLETE",
    RunState.PARTIAL: "COMPLETE",
    RunState.FAILED: "FAIL",
    RunState.REFUSED: "FAIL",
    RunState.LOST_RACE: "FAIL",
    RunState.INTERRUPTED: "ABORT",
    RunState.UNKNOWN: "OTHER",
}


def event_run_id(run_id: str) -> str:
    """The UUID that OpenLineage requires: the same one for all events of a run, whichever process sends them."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"lakewarden:{run_id}"))


class Events:
    """Sends events from its own thread: a server that answers one byte at a time would otherwise delay a run without limit."""

    def __init__(self, config: LineageConfig) -> None:
        self._config = config
        self._waiting: queue.Queue[tuple[Run, str, threading.Event]] = queue.Queue(_MOST)
        self._thread: threading.Thread | None = None

    def started(self, run: Run) -> None:
        self._tell(run, "START")

    def ended(self, run: Run) -> None:
        self._tell(run, _ENDS[run.state])

    def _tell(self, run: Run, kind: str) -> None:
        """Send an event and wait for it, so that a process sends everything before it ends, but only for a limited time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._sending, name="lakewarden-openlineage", daemon=True)
            self._thread.start()
        sent, behind = threading.Event(), not self._waiting.empty()
        try:
            self._waiting.put_nowait((run, kind, sent))
        except queue.Full:
            log.warning(
                "the OpenLineage event %s of run %s was not sent: %d events are waiting already",
                kind,
                run.id,
                _MOST,
            )
            return
        if not behind and not sent.wait(_SECONDS):
            log.warning(
                "the OpenLineage event %s of run %s was not sent yet: the server is slow", kind, run.id
            )

    def _sending(self) -> None:
        while True:
            run, kind, sent = self._waiting.get()
            try:
                event = _event(run, kind, self._config.openlineage_namespace)
                for client in self._clients:
                    client.emit(event)
            except Exception as error:  # a failure of the receiver must not affect the run
                log.warning(
                    "the OpenLineage event %s of run %s was not sent: %s",
                    kind,
                    run.id,
                    redact_url(str(error)),
                )
            sent.set()

    @cached_property
    def _clients(self) -> list[OpenLineageClient]:
        from openlineage.client import OpenLineageClient
        from openlineage.client.transport.file import FileConfig, FileTransport
        from openlineage.client.transport.http import (
            ApiKeyTokenProvider,
            HttpConfig,
            HttpTransport,
            TokenProvider,
        )

        clients = []
        if self._config.openlineage_file:
            clients.append(
                OpenLineageClient(
                    transport=FileTransport(FileConfig(self._config.openlineage_file, append=True))
                )
            )
        if self._config.openlineage_url:
            server, path = _split(self._config.openlineage_url)
            key = os.environ.get(_API_KEY)
            auth = ApiKeyTokenProvider({"api_key": key}) if key else TokenProvider({})
            http = HttpConfig(url=server, endpoint=path, timeout=_SECONDS, auth=auth, retry={"total": 0})
            clients.append(OpenLineageClient(transport=HttpTransport(http)))
        return clients


def _split(url: str) -> tuple[str, str]:
    """`http://host/api/v1/lineage` in the client's form: the server and the path on it."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", path or "api/v1/lineage"


def _event(run: Run, kind: str, namespace: str) -> Any:
    from openlineage.client import event_v2 as events
    from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run

    facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=build(), name="lakewarden", openlineageAdapterVersion=None
        ),
        "lakewarden": _own_facet(run),
    }
    if kind in ("FAIL", "ABORT"):
        message = run.reason or str(run.state)
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "PYTHON")
    job_type = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="LAKEWARDEN", jobType="MAINTENANCE"
    )
    table = TableRef.parse(run.table)
    at = run.started_at if kind == "START" else run.ended_at or clock.now()
    return events.RunEvent(
        eventTime=at.isoformat(),
        producer=_producer(),
        run=events.Run(event_run_id(run.id), facets),
        job=events.Job(namespace, f"{run.job}.{run.table}", {"jobType": job_type}),
        eventType=events.RunState[kind],
        inputs=[_input(run, table)],
        outputs=[_output(run, table)] if run.snapshot_ids else [],
    )


def _producer() -> str:
    return f"urn:lakewarden:{build()}"


def _own_facet(run: Run) -> Any:
    """Facts that only Lakewarden's runs have: how the run ended and why, who requested it, its counters."""
    from openlineage.client.generated.base import RunFacet

    facts: dict[str, Any] = {
        "runId": run.id,
        "state": str(run.state),
        "reason": run.reason,
        "trigger": {
            "type": run.trigger.type,
            "operator": run.trigger.operator,
            "ticket": run.trigger.ticket,
        },
        "counters": dict(run.counters),
        "snapshotIds": list(run.snapshot_ids),
    }
    return RunFacet(producer=_producer()).with_additional_properties(**facts)


def _input(run: Run, table: TableRef) -> Any:
    from openlineage.client import event_v2 as events

    return events.InputDataset(
        namespace=table.catalog, name=_name(table), facets=_version(run.plan.get("base_snapshot_id"))
    )


def _output(run: Run, table: TableRef) -> Any:
    from openlineage.client import event_v2 as events
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    counted = statistics.OutputStatisticsOutputDatasetFacet(
        rowCount=run.counters.get("rows"),
        size=run.counters.get("bytes_after"),
        fileCount=run.counters.get("files_added"),
    )
    return events.OutputDataset(
        namespace=table.catalog,
        name=_name(table),
        facets=_version(run.snapshot_ids[-1]),
        outputFacets={"outputStatistics": counted},
    )


def _version(snapshot_id: int | None) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset

    if snapshot_id is None:
        return {}
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(str(snapshot_id))}


def _name(table: TableRef) -> str:
    return table.short
