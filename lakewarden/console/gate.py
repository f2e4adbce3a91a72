"""Checks every request before its route: rate, sender, origin and role, then the body.

A request rejected here never reached a handler, so nothing changed. Rejections are recorded and logged,
without the secrets that were sent.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakewarden.console.answers import RequestDenied, answer, on_error, wants_page
from lakewarden.console.auth import (
    _HOW,
    OPERATE,
    SAFE,
    Auth,
    Identity,
    check_form,
    check_reading,
    from_here,
    is_local,
)
from lakewarden.console.limits import Rates, read_body
from lakewarden.console.refusals import RefusalLog, unknown_client
from lakewarden.http_server import address_range

LOGIN, LOGOUT, STATIC = "/login", "/logout", "/static/"
# Without a token only on the loopback address and under a name of this machine: a web page may use another name for it.
PROBES = ("/health", "/metrics")

_STARTED = "lakewarden.started"

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not no-referrer: with that, browsers send `Origin: null` with the console's own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, auth: Auth, refusals: RefusalLog) -> None:
        self._app, self._auth, self._refusals = app, auth, refusals
        self._settings = auth.settings
        self._rates = Rates(auth.settings.requests_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._with_headers(scope, send)
        try:
            receive = await self._pass(scope, receive)
        except RequestDenied as denied:
            response = await self._turned_away(scope, denied)
            await response(scope, receive, send)
            return
        except Exception as error:  # a bug: a request that could not be checked is rejected
            await on_error(Request(scope), error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            # Answered here, because an answer from outside would lack the security headers.
            if scope.get(_STARTED):
                raise
            await on_error(Request(scope), error)(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive) -> Receive:
        address, method, path = client_of(scope), scope["method"], scope["path"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        wait = self._rates.take(address_range(address))
        if wait:
            raise RequestDenied(
                429,
                "TooFast",
                f"{method} {path}: more than {self._settings.requests_per_s:g} requests per second",
                "send fewer, or see requests_per_s in [console]",
                retry_after=wait,
            )
        _check_written(scope, headers.get("host", ""))
        identity = self._auth.identify(headers, address)
        scope["lakewarden.identity"] = identity
        self._admit(identity, method, path, headers)
        if method in SAFE:
            if identity is not None:
                check_reading(identity, path, headers)
            return receive
        body = await read_body(receive, headers.get("content-length"), self._settings.max_body_kb * 1024)
        if path == LOGIN:
            if not from_here(headers):
                raise RequestDenied(
                    403,
                    "OtherOrigin",
                    f"cannot post to {path}: the page that sent it is not from this console",
                    "if there is a proxy, it must forward the browser's Host header unchanged",
                )
        elif identity is not None:
            check_form(identity, path, headers, body)
        return _replay(body)

    def _admit(self, identity: Identity | None, method: str, path: str, headers: dict[str, str]) -> None:
        here = is_local(headers.get("host", ""))
        if not self._auth.tokens and not here:
            # A web page can reach local servers through a DNS name that points to 127.0.0.1. With tokens that is harmless:
            # browsers send the session's cookie only to the name of the login page.
            raise RequestDenied(
                403,
                "OtherHost",
                f"{method} {path}: the Host header names another machine",
                "open it as http://127.0.0.1:PORT; under other names it needs tokens in [console]",
            )
        if path == LOGIN or (path.startswith(STATIC) and method in SAFE):
            return
        if path in PROBES and method in SAFE and self._settings.loopback and here:
            return
        if identity is None:
            raise RequestDenied(401, "Unauthorized", f"{method} {path}: no token, or an unknown one", _HOW)
        if method not in SAFE and identity.role != OPERATE and path != LOGOUT:
            raise RequestDenied(
                403,
                "Forbidden",
                f"{method} {path}: the token of {identity.name} may read, not act",
                "use a token of operate_tokens in [console]",
            )

    async def _turned_away(self, scope: Scope, denied: RequestDenied) -> Response:
        request = Request(scope)
        headers = {**denied.headers(), "Connection": "close"} if _unread(denied) else denied.headers()
        if _not_logged_in(request, denied):
            return RedirectResponse(f"{LOGIN}?next={quote(_local(request))}", 303)
        address = client_of(scope)
        if denied.status in (401, 403):
            self._rates.fine(address_range(address))
        await self._note(scope, denied, address)
        return answer(request, denied.status, denied.to_dict(), headers)

    async def _note(self, scope: Scope, denied: RequestDenied, address: str) -> None:
        who = scope.get("lakewarden.identity") or unknown_client(address)
        target = f"{scope['method']} {scope['path']}"
        await run_in_threadpool(self._refusals.add, who, "access", target, denied.error, status=denied.status)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[_STARTED] = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                kept = scope["path"].startswith(STATIC) and message["status"] == 200
                headers["cache-control"] = "public, max-age=300" if kept else "no-store"
                if self._auth.secure:
                    headers["strict-transport-security"] = "max-age=31536000"
            await send(message)

        return sending


# A name or an address, and a port: anything more would become part of URLs built from it.
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def _check_written(scope: Scope, host: str) -> None:
    """Reject requests that no browser and no correct program sends, and that later code cannot handle."""
    if host and not _HOST.fullmatch(host):
        # Without a Host header, the answer uses the address this listens on.
        scope["headers"] = [each for each in scope["headers"] if each[0] != b"host"]
        raise RequestDenied(
            400, "WrongHost", "cannot read the request: its Host header is not a name and a port"
        )
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise RequestDenied(400, "WrongAddress", "cannot read the request: its address contains a zero byte")


def client_of(scope: Scope) -> str:
    """The address of the connection. Headers about it can be forged by anyone."""
    client = scope.get("client")
    return client[0] if client else ""


def _unread(denied: RequestDenied) -> bool:
    """Whether more of the request may still arrive: then the connection is closed after the answer."""
    return denied.status in (408, 413)


def _not_logged_in(request: Request, denied: RequestDenied) -> bool:
    """A person who opened a page without having tried to log in."""
    tried = "authorization" in request.headers or request.method not in SAFE
    return denied.status == 401 and not tried and wants_page(request.url.path, request.headers)


def _local(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def _replay(body: bytes) -> Receive:
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
