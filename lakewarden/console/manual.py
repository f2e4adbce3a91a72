"""The REST API's documentation page: every route and its parameters, from the OpenAPI document. Nothing is
loaded from other sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse

from lakewarden.console.answers import API
from lakewarden.console.auth import reader

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
