"""A pass that the worker does and somebody waits for: its progress as the journal tells it, until the request has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewarden import clock
from lakewarden.errors import NoWorker

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.model.progress import Progress
    from lakewarden.model.run import Run
    from lakewarden.state.requests import Request

POLL_SECONDS = 0.5
_LEASES = 3  # a standby takes over within one


def follow(lakewarden: Lakewarden, request: Request, progress: Progress) -> Request:
    """Until it is done or failed; who leaves earlier leaves the request filed. NoWorker where nobody leads for too long."""
    shown, led_at = _Shown(progress), clock.monotonic()
    patience = _LEASES * lakewarden.config.worker.lease_seconds
    while not request.ended:
        shown.tell(lakewarden, request)
        leader = lakewarden.schedule.leader()
        if leader is not None and leader.live:
            led_at = clock.monotonic()
        elif clock.monotonic() - led_at > patience:
            shown.end()
            raise NoWorker(request=request.id, seconds=int(patience), table=request.table)
        clock.sleep(POLL_SECONDS)
        request = lakewarden.schedule.request_by_id(request.id)
    shown.end()
    return request


def runs_of(lakewarden: Lakewarden, request: Request) -> tuple[Run, ...]:
    return tuple(lakewarden.run_by_id(each)[0] for each in request.run_ids)


class _Shown:
    def __init__(self, progress: Progress) -> None:
        self._progress, self._what, self._done, self._said = progress, "", 0, ""

    def tell(self, lakewarden: Lakewarden, request: Request) -> None:
        self._note(_waits(lakewarden, request))
        for run in lakewarden.runs(request.table, 5):
            moment = lakewarden.schedule.progress_of(run.id) if run.ended_at is None else None
            if moment is None:
                continue
            if moment.what != self._what:
                self.end()
                self._progress.begin(moment.what, moment.total_bytes)
                self._what, self._done = moment.what, 0
            self._progress.advance(max(0, moment.done_bytes - self._done))
            self._done = max(self._done, moment.done_bytes)

    def _note(self, text: str) -> None:
        if text != self._said:
            self._progress.note(text)
        self._said = text

    def end(self) -> None:
        if self._what:
            self._progress.end()
        self._what = ""


def _waits(lakewarden: Lakewarden, request: Request) -> str:
    leader = lakewarden.schedule.leader()
    if leader is None or not leader.live:
        return f"request {request.id} waits: no worker leads at the moment"
    if request.claimed_at is None:
        return f"request {request.id} is filed, {leader.holder} leads"
    return f"request {request.id} is being done by {leader.holder}"
