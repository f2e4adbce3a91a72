"""Authentication and roles: tokens for programs, a signed cookie for browsers. Requests from pages of other
sites are rejected."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.config.schema import ConsoleConfig, Token
from lakewarden.console.answers import API, RequestDenied
from lakewarden.errors import ConfigError

READ, OPERATE = "read", "operate"
SESSION_SECONDS = 12 * 3600
CSRF_FIELD, CSRF_HEADER = "csrf", "x-csrf-token"
SAFE = ("GET", "HEAD", "OPTIONS")
# The identity of callers if no tokens are configured: anyone on this machine.
NOBODY = "local"


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request. `csrf` goes into every form as the field `csrf`; `by` is how the sender was
    identified."""

    name: str
    role: str
    address: str = ""
    csrf: str = field(default="", repr=False)
    by: str = "token"

    @property
    def operates(self) -> bool:
        return self.role == OPERATE


def warden_of(request: Request) -> Lakewarden:
    warden: Lakewarden = request.app.state.warden
    return warden


def reader(request: Request) -> Identity:
    """The caller of a reading route. The gate has already identified it: see `gate.Gate`."""
    found: Identity | None = request.scope.get("lakewarden.identity")
    if found is None:
        raise RequestDenied(
            401, "Unauthorized", f"cannot open {request.url.path}: the request has no token", _HOW
        )
    return found


def operator(request: Request) -> Identity:
    """The caller of an acting route. A read token is not enough."""
    found = reader(request)
    if not found.operates:
        raise RequestDenied(
            403,
            "Forbidden",
            f"{request.method} {request.url.path}: the token of {found.name} may read, not act",
            "use a token of operate_tokens in [console]",
        )
    return found


_HOW = (
    "send Authorization: Bearer TOKEN, one of read_tokens or operate_tokens in [console], or log in at /login"
)


def check(settings: ConsoleConfig, where: str = "the configuration") -> None:
    """Refuse to listen on a public address without tokens, and to start while a token's environment variable
    is not set."""
    if settings.unset:
        names = ", ".join(settings.unset)
        raise ConfigError(
            key="console.read_tokens and operate_tokens",
            where=where,
            reason=f"they name the environment variable {names}, which is not set",
            hint="set it for the process that serves the console; other commands need no token",
        )
    if settings.tokens or settings.loopback:
        return
    raise ConfigError(
        key="console.host",
        where=where,
        reason=f"{settings.host} can be reached by others, and no tokens are configured",
        hint='add read_tokens and operate_tokens to [console], such as ["ana=${{ANA_TOKEN}}"], or listen on 127.0.0.1',
    )


class Tokens:
    """The configured secrets, stored as digests: comparing digests takes the same time for any input of any
    length."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self._known = [(_digest(each.secret), each.name, each.role) for each in tokens]

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, secret: str) -> tuple[str, str] | None:
        """Name and role. All tokens are compared, even after a match, so that the time reveals nothing."""
        shown, found = _digest(secret), None
        for digest, name, role in self._known:
            if hmac.compare_digest(shown, digest):
                found = (name, role)
        return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Sessions:
    """Signed login cookies with an end time. Only sessions that were ended early are stored here.

    The key belongs to this process: a restart, which is also how tokens change, ends every session.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        self._ended: dict[str, float] = {}

    def make(self, name: str, role: str) -> str:
        end = int(clock.now().timestamp()) + SESSION_SECONDS
        said = {"name": name, "role": role, "end": end, "id": secrets.token_hex(8)}
        body = _encoded(json.dumps(said).encode())
        return f"{body}.{self._sign('session', body)}"

    def read(self, cookie: str) -> dict[str, Any] | None:
        """The content of the cookie; None if its signature is wrong or it has expired."""
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._sign("session", body).encode(), signature.encode()):
            return None
        try:
            said: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (binascii.Error, ValueError):
            return None
        return said if said["end"] > clock.now().timestamp() and said["id"] not in self._ended else None

    def end(self, cookie: str) -> None:
        """End a session, so that copies of its cookie are invalid too. Stored until the cookie would have
        expired."""
        said, now = self.read(cookie), clock.now().timestamp()
        if said is not None:
            self._ended = {each: end for each, end in self._ended.items() if end > now}
            self._ended[said["id"]] = said["end"]

    def vouch(self, text: str) -> str:
        """A signature of the text, so that a link by another site cannot contain one."""
        return self._sign("said", text)

    def said(self, text: str, proof: str) -> bool:
        return hmac.compare_digest(self.vouch(text).encode(), proof.encode("utf-8", "replace"))

    def csrf(self, about: str) -> str:
        """The value that forms of this session contain; a page of another site cannot know it."""
        return self._sign("csrf", about)

    def _sign(self, purpose: str, text: str) -> str:
        made = hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256)
        return _encoded(made.digest())


def _encoded(raw: bytes) -> str:
    """Base64 for a cookie, without `=`."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Auth:
    """Identifies the sender of a request by its headers."""

    def __init__(self, settings: ConsoleConfig) -> None:
        self.settings = settings
        self.tokens = Tokens(settings.tokens)
        self.sessions = Sessions()

    @property
    def secure(self) -> bool:
        return self.settings.tls_certificate is not None

    @property
    def cookie(self) -> str:
        """The cookie's name. With TLS, browsers let no other host and no plain connection set it."""
        return "__Host-lakewarden" if self.secure else "lakewarden"

    def identify(self, headers: dict[str, str], address: str) -> Identity | None:
        """The sender; None if the headers prove nothing. A wrong token is not ignored in favour of a valid
        cookie."""
        shown = headers.get("authorization")
        if shown is not None:
            return self._by_token(shown, address)
        if not self.tokens:
            return Identity(NOBODY, OPERATE, address, self.sessions.csrf(NOBODY), "loopback")
        return self._by_cookie(headers, address)

    def _by_token(self, shown: str, address: str) -> Identity | None:
        kind, _, secret = shown.partition(" ")
        found = self.tokens.find(secret.strip()) if kind.lower() == "bearer" else None
        return None if found is None else Identity(*found, address)

    def shown_cookie(self, headers: Mapping[str, str]) -> str:
        """The session cookie as sent; empty if there is none."""
        try:
            said = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return said.value if said else ""

    def _by_cookie(self, headers: Mapping[str, str], address: str) -> Identity | None:
        session = self.sessions.read(self.shown_cookie(headers))
        if session is None:
            return None
        return Identity(
            session["name"], session["role"], address, self.sessions.csrf(session["id"]), "session"
        )

    def set_cookie(self, value: str, seconds: int) -> str:
        parts = [f"{self.cookie}={value}", "Path=/", f"Max-Age={seconds}", "HttpOnly", "SameSite=Strict"]
        return "; ".join([*parts, "Secure"] if self.secure else parts)


def from_here(headers: dict[str, str]) -> bool:
    """Whether the page that sent this is from this console, as far as the browser says."""
    origin, host = headers.get("origin"), headers.get("host", "")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    if origin is None:
        return True
    scheme, found, netloc = origin.partition("://")
    return scheme in ("http", "https") and bool(found) and netloc.lower() == host.lower()


def is_browser(headers: dict[str, str]) -> bool:
    """Browsers send the origin of a request; programs do not."""
    return "origin" in headers or "sec-fetch-site" in headers


def check_form(identity: Identity, path: str, headers: dict[str, str], body: bytes) -> None:
    """Reject forms sent by pages of other sites. Other sites cannot send a token header, so those requests
    pass."""
    if identity.by == "token":
        return
    if not from_here(headers):
        raise RequestDenied(
            403, "OtherOrigin", f"cannot post to {path}: the page that sent it is not from this console"
        )
    if identity.by == "loopback" and path.startswith(API) and not is_browser(headers):
        return  # a program on this machine, when no tokens are configured
    shown = headers.get(CSRF_HEADER) or _field(headers, body)
    if not hmac.compare_digest(shown.encode(), identity.csrf.encode()):
        raise RequestDenied(
            403,
            "WrongForm",
            f"cannot post to {path}: the form's csrf field is missing or old",
            "load the page again",
        )


def _field(headers: dict[str, str], body: bytes) -> str:
    if not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return ""
    return form_of(body).get(CSRF_FIELD, "")


def form_of(body: bytes) -> dict[str, str]:
    """The fields of a form; of a repeated field the first."""
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS)
    except ValueError:
        raise RequestDenied(
            400, "WrongForm", f"cannot read the form: it has more than {_FIELDS} fields"
        ) from None
    return {name: values[0] for name, values in found.items()}


_FIELDS = 100


def check_reading(identity: Identity, path: str, headers: dict[str, str]) -> None:
    """Reject API reads sent by pages of other sites: they cannot see the answer, but would cause work here.

    Following a link is allowed.
    """
    if identity.by == "token" or not path.startswith(API) or headers.get("sec-fetch-dest") == "document":
        return
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise RequestDenied(
            403, "OtherOrigin", f"cannot read {path}: the page that sent the request is not from this console"
        )


def is_local(host: str) -> bool:
    """Whether a Host header names this machine. A DNS name that points to 127.0.0.1 does not."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
