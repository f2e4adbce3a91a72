"""The gateway's own answers, in the form of Iceberg's REST protocol, so that every client shows them to its
user.

    403 ForbiddenException             the commit is rejected. Clients show the message, do not retry, and know that nothing happened
    400 BadRequestException            the request is ambiguous or invalid
    503 ServiceUnavailableException    nothing was forwarded, and a retry may help; clients retry after `Retry-After`
    500 CommitStateUnknownException    the commit was forwarded and its outcome is unknown. Not 502 or 504: older clients send the
                                       request again after these, and take the conflict with their own commit for a failure
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

Headers = Sequence[tuple[bytes, bytes]]
# Longer than any message for a reader; the text may contain the client's input.
_LETTERS = 20_000
_JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    status: int
    headers: Headers
    body: bytes


class EarlyResponse(Exception):
    """Ends the request with this answer."""

    def __init__(self, answer: GatewayResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


def forbidden(message: str) -> GatewayResponse:
    return _error(403, "ForbiddenException", message)


def bad_request(message: str) -> GatewayResponse:
    return _error(400, "BadRequestException", message)


def too_large(message: str) -> GatewayResponse:
    return _error(413, "BadRequestException", message)


def too_slow(message: str) -> GatewayResponse:
    return _error(408, "BadRequestException", message, ((b"connection", b"close"),))


def conflict(message: str) -> GatewayResponse:
    return _error(409, "CommitFailedException", message)


def unavailable(message: str) -> GatewayResponse:
    return _error(503, "ServiceUnavailableException", message, ((b"retry-after", b"1"),))


def unknown(message: str) -> GatewayResponse:
    return _error(500, "CommitStateUnknownException", message)


def failed(message: str) -> GatewayResponse:
    """For requests that are no commits. 500 too: a rename or a create must not be sent again either."""
    return _error(500, "ServiceFailureException", message)


def document(content: object) -> GatewayResponse:
    return _whole(200, json.dumps(content).encode())


def text(content: bytes, kind: str) -> GatewayResponse:
    headers = ((b"content-type", kind.encode()), (b"content-length", str(len(content)).encode()))
    return GatewayResponse(200, headers, content)


def _error(status: int, kind: str, message: str, headers: Headers = ()) -> GatewayResponse:
    shown = message if len(message) <= _LETTERS else f"{message[:_LETTERS]} …"
    body = {"error": {"message": shown, "type": kind, "code": status}}
    return _whole(status, json.dumps(body).encode(), headers)


def _whole(status: int, body: bytes, headers: Headers = ()) -> GatewayResponse:
    return GatewayResponse(status, (_JSON, (b"content-length", str(len(body)).encode()), *headers), body)
