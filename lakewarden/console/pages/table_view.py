"""The page of a table as HTML. A form shows it again with the value that was typed and why it was rejected."""

from __future__ import annotations

from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from lakewarden import clock
from lakewarden.console.pages.pictures import TablePictures
from lakewarden.console.pages.render import html
from lakewarden.console.pages.schedule import ScheduleState, ScheduleStates
from lakewarden.console.pages.table import SPANS, TablePage, table_page
from lakewarden.policy.keys import KEYS
from lakewarden.worker.schedule import Decision

USUAL = "24h"
_EDITABLE = tuple(each for each in KEYS if not each.call_only)


def decision(request: Request, now: datetime) -> Decision:
    return outlook(request, now).decision


def outlook(request: Request, now: datetime) -> ScheduleState:
    """The tables that are due now. Created at the first request: of two requests at once, the last one's object stays."""
    state = request.app.state
    if not hasattr(state, "outlooks"):
        state.outlooks = ScheduleStates(state.warden)
    found: ScheduleStates = state.outlooks
    return found.at(now)


def read_table(request: Request, name: str, span: str = USUAL) -> TablePage:
    now = clock.now()
    warden = request.app.state.warden
    with warden.state.one_look():
        return table_page(warden, name, span if span in SPANS else USUAL, decision(request, now), now)


def show_table(
    request: Request,
    found: TablePage,
    status: int = 200,
    *,
    key: str = "",
    typed: str = "",
    wrong: str = "",
    suspend_wrong: str = "",
) -> Response:
    """`wrong` says why the value `typed` for the policy key was rejected."""
    return html(
        request,
        "table.html",
        status,
        page=found,
        now=found.now,
        pictures=TablePictures(found, request.app.state.warden.config.health),
        keys=_EDITABLE,
        spans=tuple(SPANS),
        key=key,
        typed=typed,
        wrong=wrong,
        suspend_wrong=suspend_wrong,
    )
