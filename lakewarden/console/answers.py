"""Errors over HTTP: one shape, the same as with `--json`, and the right status code."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lakewarden.errors import (
    Busy,
    CommitLost,
    CommitUnknown,
    ConfigError,
    LakewardenError,
    NoSuchTable,
    NotSetUp,
    Refused,
    RunTaken,
    Unreachable,
    UsageError,
)
from lakewarden.redact import redact_text

API = "/api/v1"
log = logging.getLogger("lakewarden.console")

# The first match counts, so a subclass comes before its base class.
_STATUSES: tuple[tuple[type[LakewardenError], int], ...] = (
    (NoSuchTable, 404),
    (Busy, 409),
    (RunTaken, 409),
    (CommitLost, 409),
    (Refused, 403),
    (Unreachable, 503),
    (NotSetUp, 503),
    (ConfigError, 500),
    (UsageError, 400),
    (CommitUnknown, 502),
)


class RequestDenied(Exception):
    """A request that is rejected before anything is done: no token, a wrong one, too large, too many."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        hint: str = "",
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.error, self.message, self.hint = status, error, message, hint
        self.retry_after = retry_after

    def to_dict(self) -> dict[str, Any]:
        return {
            "error": self.error,
            "message": self.message,
            "hint": self.hint,
            "exit_code": 2,
            "retry": self.retry_after is not None,
        }

    def headers(self) -> dict[str, str]:
        told = {} if self.retry_after is None else {"Retry-After": str(max(1, round(self.retry_after)))}
        return {**told, "WWW-Authenticate": 'Bearer realm="lakewarden"'} if self.status == 401 else told


class ConsoleError(Exception):
    """A LakewardenError with a status that the route knows better than the error's class does."""

    def __init__(self, status: int, error: LakewardenError) -> None:
        super().__init__(error.message)
        self.status, self.error = status, error


@contextmanager
def named(status: int = 404) -> Iterator[None]:
    """Turns a UsageError into this status, for calls that are wrong only because the address names something
    that does not exist."""
    try:
        yield
    except UsageError as error:
        if type(error) is UsageError:  # not for a wrong setting or a database that does not answer
            raise ConsoleError(status, error) from error
        raise


def one_line(text: str) -> str:
    """Text from a client, for a log and a database: line breaks, terminal escapes and half characters are
    spelled out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def status_of(error: LakewardenError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def wants_page(path: str, headers: Mapping[str, str]) -> bool:
    """Whether the client is a browser showing a page. Programs get JSON."""
    if path.startswith("/api/") or path.endswith(".json"):
        return False
    return "text/html" in headers.get("accept", "")


def answer(
    request: Request, status: int, document: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """The error as JSON or, for a browser and if there are pages, as a page."""
    page = getattr(request.app.state, "error_page", None)
    if page is not None and wants_page(request.url.path, request.headers):
        made: Response = page(request, status, document)
        made.headers.update(headers or {})
        return made
    return JSONResponse(document, status, dict(headers or {}))


def on_error(request: Request, error: Exception) -> Response:
    """Handles any exception of a handler. An unexpected one may contain an address or a secret: it is logged,
    but not sent."""
    match error:
        case RequestDenied():
            return answer(request, error.status, error.to_dict(), error.headers())
        case ConsoleError():
            return answer(request, error.status, error.error.to_dict())
        case LakewardenError():
            return answer(request, status_of(error), error.to_dict())
        case _:
            trace = redact_text("".join(traceback.format_exception(error)))
            log.error("%s %s failed: %s", request.method, one_line(request.url.path), trace)
            told = RequestDenied(
                500,
                "InternalError",
                f"cannot answer {request.url.path}: an internal error occurred",
                "see the log of the console for the reason",
            )
            return answer(request, 500, told.to_dict())
