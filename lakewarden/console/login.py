"""Browser login and logout: a form that takes a token and sets a cookie."""

from __future__ import annotations

from html import escape

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lakewarden.client import Lakewarden
from lakewarden.console.actions import DONE, record
from lakewarden.console.auth import SESSION_SECONDS, Auth, Identity, form_of
from lakewarden.console.gate import LOGIN, LOGOUT, client_of
from lakewarden.console.limits import Failures
from lakewarden.console.refusals import RefusalLog, unknown_client
from lakewarden.gateway.connection import address_range

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
