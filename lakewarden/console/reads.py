"""Documents the REST API and the pages both show: the fleet, one table, one run. From the state database alone."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.errors import NoSuchTable, UsageError
from lakewarden.model.table_name import TableRef
from lakewarden.report.run import RunReport
from lakewarden.state.fleet import Fleet
from lakewarden.state.tables import SeenTables


def fleet(warden: Lakewarden) -> dict[str, Any]:
    """Every table that is known and not gone: its health where a worker has looked, its open warnings, whether it is suspended."""
    health = {each.table: each.to_dict() for each in warden.health.all()}
    known, suspended = present(warden, clock.now()), Fleet(warden.state).suspensions()
    warned = defaultdict(list)
    for each in warden.health.warnings():
        warned[each.table].append(each.kind)
    names = sorted({*health, *known, *suspended})
    return {
        "tables": [
            {
                **health.get(name, {**_UNSEEN, "table": name}),
                "warnings": warned.get(name, []),
                "suspended": suspended[name].reason if name in suspended else None,
            }
            for name in names
        ]
    }


_UNSEEN = {"at": None, "score": None, "debt": None, "numbers": None, "error": None}


def present(warden: Lakewarden, now: datetime) -> set[str]:
    """Tables that a worker or a command knows, without those that were dropped and those nobody has heard of for `keep_days`."""
    return Fleet(warden.state).there(now - timedelta(days=warden.config.health.keep_days))


def table(warden: Lakewarden, name: str) -> dict[str, Any]:
    """One table with its portrait: what can be told without asking the table."""
    ref = known(warden, name)
    found = warden.health.of(ref)
    suspension = warden.schedule.suspended().get(str(ref))
    return {
        **(found.to_dict() if found else {**_UNSEEN, "table": str(ref)}),
        "portrait": dict(found.portrait) if found else None,
        "warnings": [each.to_dict() for each in warden.health.warnings(ref)],
        "standings": [each.to_dict() for each in warden.schedule.standings(ref)],
        "suspended": suspension.to_dict() if suspension else None,
    }


def known(warden: Lakewarden, name: str) -> TableRef:
    """A table that was ever read or looked at, or NoSuchTable."""
    ref = warden.names.checked(name)
    if SeenTables(warden.state).get(ref) is None and warden.health.of(ref) is None:
        raise NoSuchTable(
            table=ref, reason="neither the worker nor a command has read one of that name", hint=_LOOK
        )
    return ref


_LOOK = "the worker finds new tables within discover_seconds; `lakewarden show TABLE` reads one now"


def snapshot_id(text: str) -> int:
    """A number as both formats have them, 64 bits; UsageError where it is none. Digits of other scripts are not numbers here."""
    if not _ID.fullmatch(text) or int(text) >= 1 << 63:
        raise UsageError(
            reason=f"read snapshot {text[:40]!r}: it is not a number of a snapshot",
            hint="copy one from the list of snapshots",
        )
    return int(text)


_ID = re.compile("[0-9]{1,19}")


def health_history(warden: Lakewarden, name: str, days: float, most: int) -> dict[str, Any]:
    """Earlier looks, the oldest first: evenly chosen where there are more."""
    ref = known(warden, name)
    points = warden.health.history(ref, clock.now() - timedelta(days=days), most)
    return {
        "table": str(ref),
        "points": [
            {"at": each.at.isoformat(), "score": each.score, "numbers": each.numbers.to_dict()}
            for each in points
        ],
    }


def run(warden: Lakewarden, run_id: str) -> dict[str, Any]:
    """One run, its steps and, while it is under way, how far it is."""
    found, steps = warden.run_by_id(run_id)
    progress = warden.schedule.progress_of(run_id) if found.ended_at is None else None
    return {**RunReport(found, steps).to_dict(), "progress": progress.to_dict() if progress else None}
