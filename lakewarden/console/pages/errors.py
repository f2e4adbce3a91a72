"""What a browser sees when something is not there, not allowed, too fast or not working: what, why, and where to go."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from lakewarden.console import queries
from lakewarden.console.pages.render import html
from lakewarden.errors import LakewardenError

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
