"""The addresses of pages. Each answers HTML and, with `.json` behind it, the same as data. All are made from
the database. The last part is the page for an error: what is wrong, why, and what to do next.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.console import queries
from lakewarden.console.answers import named
from lakewarden.console.auth import Identity, reader, warden_of
from lakewarden.console.pages import forms
from lakewarden.console.pages.audit import QUESTIONS, AuditQuestion, audit_page
from lakewarden.console.pages.fleet import COLUMNS, ONLY, FleetQuery, fleet
from lakewarden.console.pages.holds import KINDS, SHOWN, holds_page
from lakewarden.console.pages.pictures import downstream_graph
from lakewarden.console.pages.render import document, html
from lakewarden.console.pages.runs import JOBS, STATES, RunsQuery, run_page, runs_page
from lakewarden.console.pages.schedule import schedule_page
from lakewarden.console.pages.table_view import decision, outlook, read_table, show_table
from lakewarden.errors import LakewardenError
from lakewarden.model.table import printed

router = APIRouter()
router.include_router(forms.router)

Reader = Annotated[Identity, Depends(reader)]
Page = Annotated[int, Query(ge=1, le=100_000)]
Words = Annotated[str, Query(max_length=300)]


@router.get("/")
@router.get("/fleet.json")
def fleet_(
    request: Request,
    who: Reader,
    q: Words = "",
    format: Words = "",
    only: Words = "",
    sort: Words = "need",
    order: Words = "",
    page: Page = 1,
) -> Response:
    column = sort if sort in COLUMNS else "need"
    down = order != "up" if order else column not in ("table", "score", "next")
    wish = FleetQuery(q, format, only if only in ONLY else "", column, down, page)
    now, warden = clock.now(), warden_of(request)
    with warden.state.one_look():
        found = fleet(warden, wish, outlook(request, now), now)
    if _is_json(request):
        return document(found.to_dict())
    formats = sorted({each.format for each in warden.config.catalogs.values()})
    return html(request, "fleet.html", page=found, formats=formats, now=found.now)


@router.get("/tables/{name:path}")
def table_(request: Request, who: Reader, name: str, span: Words = "24h") -> Response:
    warden = warden_of(request)
    table, as_json = _name_of(warden, name)
    with named():
        found = read_table(request, table, span)
    return document(found.to_dict()) if as_json else show_table(request, found)


def _name_of(warden: Lakewarden, name: str) -> tuple[str, bool]:
    """A table may itself be called `json`: the whole name counts first."""
    stem = name.removesuffix(".json")
    if stem == name or stem.count(".") < 2:
        return name, False
    return (name, False) if name in queries.known_tables(warden) else (stem, True)


@router.get("/runs")
@router.get("/runs.json")
def runs(
    request: Request, who: Reader, q: Words = "", job: Words = "", state: Words = "", page: Page = 1
) -> Response:
    wish = RunsQuery(q, job if job in JOBS else "", state if state in STATES else "", page)
    warden = warden_of(request)
    with warden.state.one_look():
        found = runs_page(warden, wish, clock.now())
    if _is_json(request):
        return document(found.to_dict())
    return html(request, "runs.html", page=found, jobs=JOBS, states=STATES, now=found.now)


@router.get("/runs/{run_id}")
def run(request: Request, who: Reader, run_id: str) -> Response:
    warden = warden_of(request)
    with named(), warden.state.one_look():
        found = run_page(warden, run_id.removesuffix(".json"), clock.now())
    return (
        document(found.to_dict())
        if _is_json(request)
        else html(request, "run.html", page=found, now=found.now)
    )


@router.get("/holds")
@router.get("/holds.json")
def holds(request: Request, who: Reader, kind: Words = "", q: Words = "") -> Response:
    warden = warden_of(request)
    with warden.state.one_look():
        found = holds_page(warden, kind if kind in KINDS else "", q, clock.now())
    if _is_json(request):
        return document(found.to_dict())
    return html(request, "holds.html", page=found, kinds=KINDS, shown=SHOWN, now=found.now)


@router.get("/audit")
@router.get("/audit.json")
def audit(
    request: Request, who: Reader, question: Words = "actions", table: Words = "", snapshot: Words = ""
) -> Response:
    asked = AuditQuestion(
        question if question in QUESTIONS else "actions", printed(table.strip()), snapshot.strip()
    )
    warden = warden_of(request)
    with warden.state.one_look():
        found = audit_page(warden, asked, clock.now())
    if _is_json(request):
        return document(found.to_dict())
    graph = downstream_graph(found.downstream) if found.downstream else None
    return html(request, "audit.html", page=found, questions=QUESTIONS, graph=graph, now=found.now)


@router.get("/schedule")
@router.get("/schedule.json")
def schedule(request: Request, who: Reader) -> Response:
    now, warden = clock.now(), warden_of(request)
    with warden.state.one_look():
        found = schedule_page(warden, decision(request, now), now)
    if _is_json(request):
        return document(found.to_dict())
    return html(request, "schedule.html", page=found, now=found.now)


def _is_json(request: Request) -> bool:
    return request.url.path.endswith(".json")


_TITLES = {
    400: "That cannot be done",
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "Not that way",
    409: "Something else is at it",
    413: "Too large",
    429: "Too fast",
    500: "Something failed",
    502: "The catalog did not say",
    503: "Not working right now",
}


def error_page(request: Request, status: int, document: dict[str, Any]) -> Response:
    back = request.headers.get("referer", "")
    return html(
        request,
        "error.html",
        status,
        title=_TITLES.get(status, "Something failed"),
        code=status,
        message=document.get("message", ""),
        hint=document.get("hint", ""),
        near=_near(request) if status == 404 else (),
        back=back if back.startswith(f"{request.url.scheme}://{request.url.netloc}/") else "/",
    )


def _near(request: Request) -> tuple[str, ...]:
    """Tables whose names are like the one that was asked for."""
    before, _, name = request.url.path.partition("/tables/")
    if before or not name:
        return ()
    try:
        known = queries.known_tables(request.app.state.warden)
    except LakewardenError:
        return ()  # the page says what failed already; near names are only a help
    asked = unquote(name).partition("/")[0]
    ends = {each.rpartition(".")[2]: each for each in known}
    by_end = [ends[each] for each in get_close_matches(asked.rpartition(".")[2], ends, n=3, cutoff=0.6)]
    return tuple(dict.fromkeys([*get_close_matches(asked, known, n=5, cutoff=0.5), *by_end]))[:6]
