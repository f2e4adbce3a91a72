"""The console as one ASGI application: the gate, the REST API, login, probes, and the pages if they are
installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from lakewarden.client import Lakewarden
from lakewarden.config.schema import ConsoleConfig
from lakewarden.console.answers import API, ConsoleError, RequestDenied, answer, on_error
from lakewarden.console.api import api_router
from lakewarden.console.auth import Auth, check
from lakewarden.console.gate import Gate
from lakewarden.console.limits import Heavy
from lakewarden.console.login import login_router
from lakewarden.console.manual import manual_router
from lakewarden.console.refusals import RefusalLog
from lakewarden.errors import LakewardenError
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
