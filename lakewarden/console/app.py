"""The console as one ASGI application: the gate, the REST API, login, probes, and the pages if they are
installed. Browsers log in with a form that takes a token and sets a cookie. The REST API's page of
documentation is made from the OpenAPI document; it loads nothing from other sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from lakewarden.client import Lakewarden
from lakewarden.config.schema import ConsoleConfig
from lakewarden.console.actions import DONE, record
from lakewarden.console.answers import API, ConsoleError, RequestDenied, answer, on_error
from lakewarden.console.api import api_router
from lakewarden.console.auth import SESSION_SECONDS, Auth, Identity, check, form_of, reader
from lakewarden.console.gate import LOGIN, LOGOUT, Gate, client_of
from lakewarden.console.limits import Failures, Heavy
from lakewarden.console.refusals import RefusalLog, unknown_client
from lakewarden.errors import LakewardenError
from lakewarden.http_server import address_range
from lakewarden.version import build

PAGES = "lakewarden.console.pages"
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_STATIC = Path(__file__).parent / "static"


def create_app(
    warden: Lakewarden,
    *,
    metrics: Callable[[], bytes] | None = None,
    settings: ConsoleConfig | None = None,
    revive: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The application for this lake. `settings` replace `[console]` if the caller gives another address.
    `revive` is called before a table is read while no other read is running: see `Heavy`.

    The package `lakewarden.console.pages` plugs in the pages: its `router` is included and, if it has one,
    its `error_page(request, status, document)` shows errors to browsers. Handlers depend on `auth.reader` or
    `auth.operator` and find the lake at `request.app.state.warden`.
    """
    settings = settings or warden.config.console
    check(settings, str(warden.config.path or "the configuration"))
    app = FastAPI(
        title="Lakewarden",
        version=build(),
        description="Everything the command line reads, and the actions of an operator. Errors have the fields of `--json`.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    auth = Auth(settings)
    refusals = RefusalLog(warden)
    app.state.warden, app.state.auth, app.state.heavy, app.state.refusals = (
        warden,
        auth,
        Heavy(revive, settings.spark_seconds),
        refusals,
    )
    app.include_router(api_router())
    app.include_router(manual_router())
    app.include_router(login_router(warden, auth, refusals))
    _add_probes(app, warden, metrics or (lambda: warden.health.metrics()[0]))
    app.mount("/static", StaticFiles(directory=_STATIC, check_dir=False), name="static")
    _add_pages(app)
    for kind in (LakewardenError, ConsoleError, RequestDenied, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_middleware(Gate, auth=auth, refusals=refusals)
    return app


def _add_pages(app: FastAPI) -> None:
    if find_spec(PAGES) is None:
        return
    pages = import_module(PAGES)
    app.include_router(pages.router, include_in_schema=False)
    app.state.error_page = getattr(pages, "error_page", None)


def _add_probes(app: FastAPI, warden: Lakewarden, metrics: Callable[[], bytes]) -> None:
    @app.get("/health", tags=["probes"])
    def health() -> Response:
        """Whether the state database answers, and which worker leads. 503 if it does not answer."""
        try:
            leader = warden.schedule.leader()
        except LakewardenError as error:
            return JSONResponse({"status": "failing", **error.to_dict()}, 503)
        return JSONResponse({"status": "ok", "leader": leader.to_dict() if leader else None})

    @app.get("/metrics", tags=["probes"])
    def exposition() -> Response:
        """Counters and gauges for Prometheus."""
        return Response(metrics(), media_type=_EXPOSITION)


def with_address(settings: ConsoleConfig, host: str | None, port: int | None) -> ConsoleConfig:
    """The settings with another address, if one is given."""
    address = {"host": host or settings.host, "port": settings.port if port is None else port}
    return settings.model_copy(update=address)


async def _on_http(request: Request, error: Exception) -> Response:
    """Errors of the router itself: no such address, wrong method."""
    assert isinstance(error, HTTPException)
    names = {404: "NotFound", 405: "WrongMethod"}
    told = RequestDenied(
        error.status_code,
        names.get(error.status_code, "HttpError"),
        f"{request.method} {request.url.path}: {str(error.detail).lower()}",
        f"see {API}/docs",
    )
    return answer(request, error.status_code, told.to_dict(), error.headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """An invalid parameter or body. The value is not repeated in the message: it may contain anything."""
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    told = RequestDenied(
        400, "UsageError", f"cannot read {request.method} {request.url.path}: {wrong}", f"see {API}/docs"
    )
    return answer(request, 400, told.to_dict())


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · Lakewarden</title><link rel="icon" href="/static/mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/console.css"></head>
<body class="login"><main><h1><img src="/static/mark.svg" alt="">Lakewarden</h1>{told}
<form method="post" action="/login"><input type="hidden" name="next" value="{next}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Log in</button></form>
<p>A token is one of <code>read_tokens</code> or <code>operate_tokens</code> in <code>[console]</code>.</p>
</main></body></html>"""


def login_router(warden: Lakewarden, auth: Auth, refusals: RefusalLog) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    failures = Failures()

    @router.get(LOGIN)
    async def form(next: str = "/") -> Response:
        return _form(next) if auth.tokens else RedirectResponse(_safe(next), 303)

    @router.post(LOGIN)
    async def login(request: Request) -> Response:
        said = form_of(await request.body())
        token, there = said.get("token", ""), said.get("next", "/")
        address = client_of(request.scope)
        near = address_range(address)
        wait = failures.wait(near)
        if wait:
            await _refused(address, "too many failed")
            page = _form(there, f"Too many attempts failed. Try again in {wait:.0f} seconds.", 429)
            page.headers["Retry-After"] = str(max(1, round(wait)))
            return page
        found = auth.tokens.find(token.strip())
        if found is None:
            failures.add(near)
            await _refused(address, "wrong token")
            return _form(there, "This token is not known.", 401)
        failures.forget(near)
        who = Identity(*found, address)
        await run_in_threadpool(record, warden, who, "login", "console", DONE, {})
        answer = RedirectResponse(_safe(there), 303)
        answer.headers["set-cookie"] = auth.set_cookie(auth.sessions.make(*found), SESSION_SECONDS)
        return answer

    @router.post(LOGOUT)
    async def logout(request: Request) -> Response:
        auth.sessions.end(auth.shown_cookie(request.headers))
        answer = RedirectResponse(LOGIN, 303)
        answer.headers["set-cookie"] = auth.set_cookie("", 0)
        return answer

    async def _refused(address: str, reason: str) -> None:
        await run_in_threadpool(refusals.add, unknown_client(address), "login", "console", reason)

    return router


def _form(there: str, told: str = "", status: int = 200) -> HTMLResponse:
    line = f'<p class="error" role="alert">{escape(told)}</p>' if told else ""
    return HTMLResponse(_PAGE.format(told=line, next=escape(_safe(there), quote=True)), status)


def _safe(there: str) -> str:
    """The page to open after login: a page of this console, or the first page."""
    inside = there.startswith("/") and not there.startswith("//")
    return there if inside and there.isprintable() and "\\" not in there else "/"


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>REST API · Lakewarden</title><link rel="stylesheet" href="/static/console.css"></head>
<body><main><h1>REST API</h1>
<p>Send <code>Authorization: Bearer TOKEN</code>. The whole document: <a href="/api/v1/openapi.json">openapi.json</a>.</p>
<table><thead><tr><th>call</th><th>takes</th><th>what it does</th></tr></thead><tbody>"""


@dataclass(frozen=True, slots=True)
class ManualRoute:
    """One line of the page."""

    method: str
    path: str
    takes: tuple[str, ...]
    sentence: str
    role: str


def routes(document: dict[str, Any]) -> Iterator[ManualRoute]:
    """Every call of the OpenAPI document, in its order."""
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            asked = [each["name"] for each in call.get("parameters", ()) if each["in"] == "query"]
            role = "read" if method == "get" else "operate"
            fields = _fields(document, call)
            yield ManualRoute(method.upper(), path, (*asked, *fields), call.get("description", ""), role)


def _fields(document: dict[str, Any], call: dict[str, Any]) -> list[str]:
    content = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    found = [content, *content.get("anyOf", ())]
    names = [each["$ref"].rpartition("/")[2] for each in found if "$ref" in each]
    return [field for name in names for field in document["components"]["schemas"][name]["properties"]]


def manual_router() -> APIRouter:
    router = APIRouter(include_in_schema=False, dependencies=[Depends(reader)])

    @router.get(f"{API}/docs")
    def manual(request: Request) -> HTMLResponse:
        rows = "".join(_row(each) for each in routes(request.app.openapi()))
        return HTMLResponse(f"{_HEAD}{rows}</tbody></table></main></body></html>")

    return router


def _row(each: ManualRoute) -> str:
    takes = ", ".join(f"<code>{escape(name)}</code>" for name in each.takes)
    return (
        f"<tr><td><code>{each.method} {escape(each.path)}</code></td><td>{takes}</td>"
        f"<td>{escape(each.sentence)}</td></tr>"
    )
