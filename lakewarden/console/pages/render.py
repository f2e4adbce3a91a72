"""Pages as HTML: one Jinja environment that escapes everything, with numbers and times in the words of
reports. Also the advice for each kind of warning: the first step of its section in docs/runbook.md.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from lakewarden import clock
from lakewarden.console import charts
from lakewarden.console.auth import Identity
from lakewarden.console.pages.runs import action_line
from lakewarden.console.pages.table import kind_of
from lakewarden.formatting import age, counted, duration, known_size, moment, number, percent, size
from lakewarden.health.warnings import WarningKind
from lakewarden.model.run import RunState
from lakewarden.redact import redact_text
from lakewarden.report.cost import dollars
from lakewarden.report.policy import shown
from lakewarden.report.run import result
from lakewarden.version import build

NAV = (("/", "Fleet"), ("/runs", "Runs"), ("/schedule", "Schedule"), ("/holds", "Holds"), ("/audit", "Audit"))
_TONES = {
    RunState.RUNNING: "calm",
    RunState.DONE: "good",
    RunState.NOTHING_TO_DO: "plain",
    RunState.PARTIAL: "warn",
    RunState.LOST_RACE: "warn",
    RunState.REFUSED: "warn",
    RunState.INTERRUPTED: "warn",
    RunState.UNKNOWN: "bad",
    RunState.FAILED: "bad",
}
_GOOD, _FAIR = 80, 50
_LONG = 400


def html(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """The template with the frame: who looks, where, and what was just done."""
    who: Identity | None = request.scope.get("lakewarden.identity")
    frame = {
        "who": who,
        "csrf_token": who.csrf if who else "",
        "path": request.url.path,
        "nav": NAV,
        "now": values.pop("now", None) or clock.now(),
        "flash": _said(request),
        "version": build(),
        "json_url": _json_url(request),
    }
    return HTMLResponse(environment().get_template(template).render({**frame, **values}), status)


def _said(request: Request) -> str:
    """What was just done, as a form of ours led here with it. What a link of somebody else's says is not shown."""
    told, proof = request.query_params.get("done", ""), request.query_params.get("proof", "")
    return told[:_LONG] if told and request.app.state.auth.sessions.said(told, proof) else ""


def document(value: Mapping[str, Any]) -> Response:
    return JSONResponse(dict(value))


def _json_url(request: Request) -> str:
    path = request.url.path if request.url.path != "/" else "/fleet"
    kept = [(key, value) for key, value in request.query_params.multi_items() if key not in ("done", "proof")]
    return f"{quote(path)}.json" + (f"?{urlencode(kept)}" if kept else "")


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("lakewarden.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "age": age,
        "until": until,
        "moment": moment,
        "number": number,
        "size": size,
        "known_size": known_size,
        "percent": percent,
        "duration": duration,
        "dollars": dollars,
        "tone": tone,
        "grade": grade,
        "segment": segment,
        "query": query,
        "plain": plain,
        "time": time,
        "result": result,
        "policy_value": shown,
    }
    made.globals |= {
        "counted": counted,
        "advice": advice,
        "charts": charts,
        "action_line": action_line,
        "kind_of": kind_of,
        "table_url": table_url,
    }
    return made


def tone(state: object) -> str:
    """The colour of a run's state, or of a request's."""
    try:
        return _TONES[RunState(str(state))]
    except ValueError:
        return {"failed": "bad", "refused": "warn", "done": "good"}.get(str(state), "plain")


def grade(score: int) -> str:
    return "good" if score >= _GOOD else "warn" if score >= _FAIR else "bad"


def segment(text: object) -> str:
    """A name as one part of an address, whatever it holds."""
    return quote(str(text), safe="")


def table_url(name: object) -> str:
    return f"/tables/{segment(name)}"


def query(values: Mapping[str, str]) -> str:
    return f"?{urlencode(values)}" if values else "?"


def until(at: datetime, now: datetime) -> str:
    """`in 3 hours`, or how long ago."""
    if at <= now:
        return age(at, now)
    return "in " + age(at, now).removesuffix(" in the future") if (at - now).total_seconds() > 5 else "now"


def time(at: datetime | None, now: datetime, ahead: bool = False) -> Markup:
    """A moment in words, with the exact one for who points at it or copies it."""
    if at is None:
        return Markup('<span class="soft">–</span>')
    words = until(at, now) if ahead else age(at, now)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), moment(at), words)


def plain(value: Any) -> str:
    """A value of a journal or an action, short, and without what looks like a secret."""
    if isinstance(value, Mapping):
        told = ", ".join(f"{key} {plain(each)}" for key, each in value.items())
    elif isinstance(value, list | tuple):
        told = ", ".join(map(str, value[:5])) + (f" and {len(value) - 5:,} more" if len(value) > 5 else "")
    elif isinstance(value, bool) or value is None:
        told = json.dumps(value)
    else:
        told = number(value) if isinstance(value, int) else str(value)
    return redact_text(told if len(told) <= _LONG else told[: _LONG - 1] + "…")


_TABLE = "TABLE"


@dataclass(frozen=True, slots=True)
class Advice:
    """`command` is one to copy; TABLE in it stands for the table's name. Empty where none helps."""

    words: str
    command: str = ""

    def of(self, table: str) -> str:
        return self.command.replace(_TABLE, shlex.quote(table))


ADVICE: Mapping[str, Advice] = {
    WarningKind.DELETE_DEBT: Advice(
        "the next pass applies them; at once", "lakewarden run compact-deletes TABLE"
    ),
    WarningKind.MANIFEST_SPRAWL: Advice(
        "the next pass folds them; at once", "lakewarden run rewrite-manifests TABLE"
    ),
    WarningKind.SMALL_FILES: Advice("the next pass packs them; at once", "lakewarden run compact TABLE"),
    WarningKind.EXPIRY_LAGS: Advice(
        "see whether expiry is off, paused or refused", "lakewarden plan expire TABLE"
    ),
    WarningKind.TRASHED_BACKLOG: Advice("see what holds them, or who refuses", "lakewarden plan purge TABLE"),
    WarningKind.LINEAGE_GAPS: Advice("find which writer commits without it", "lakewarden audit gaps TABLE"),
    WarningKind.UNBOUNDED_LOG: Advice(
        "set write.metadata.delete-after-commit.enabled on the table; what lies there goes by",
        "lakewarden run sweep TABLE",
    ),
    WarningKind.ORPHANS: Advice(
        "purge deletes them when their grace is over; what they are", "lakewarden trash TABLE"
    ),
    WarningKind.COSTLY_HOLD: Advice("ask whoever holds it", "lakewarden holds TABLE"),
    WarningKind.FOREVER_HOLD: Advice(
        "give what has to stay an end", "lakewarden tag TABLE NAME --retain 365d"
    ),
    WarningKind.UNREADABLE: Advice(
        "mend its catalog or store, nothing is done to it meanwhile; where it is every table of a catalog",
        "lakewarden doctor",
    ),
    WarningKind.SUSPENDED: Advice("mend what the reason names, then", "lakewarden resume TABLE"),
    WarningKind.NO_LEADER: Advice(
        "no data is at risk; start a worker, and read the log of the last", "lakewarden worker"
    ),
}


def advice(kind: str) -> Advice | None:
    """None for a kind that a newer version wrote down."""
    return ADVICE.get(kind)
