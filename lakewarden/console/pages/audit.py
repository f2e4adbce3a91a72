"""Questions about the past: who changed a table, which commits say nothing, what came of a snapshot, what operators did here.

Asked of the database: what was written down before snapshots expired, and what portraits tell of live ones. The command line reads
the tables themselves, and the page says how to ask it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakewarden.client import Lakewarden
from lakewarden.console import queries
from lakewarden.console.queries import snapshot_id
from lakewarden.errors import LakewardenError
from lakewarden.health.table_details import SnapshotLine, TableDetails
from lakewarden.lineage.audit import Downstream, Gaps
from lakewarden.lineage.history import Entry
from lakewarden.model.plain import pick
from lakewarden.state.audit_log import OperatorAction

QUESTIONS = ("actions", "who", "gaps", "downstream")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class AuditQuestion:
    question: str = "actions"
    table: str = ""
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Of the answers, only that to the question is there. `error` is why there is none."""

    now: datetime
    asked: AuditQuestion
    tables: tuple[str, ...]
    actions: tuple[OperatorAction, ...] = ()
    live: tuple[SnapshotLine, ...] = ()
    archived: tuple[Entry, ...] = ()
    gaps: Gaps | None = None
    downstream: Downstream | None = None
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self, "at=now question=asked.question table=asked.table? actions"),
            "live": [pick(each, "snapshot_id=id committed_at=at operation origin") for each in self.live],
            **pick(self, "archived gaps downstream error?"),
        }


def audit_page(warden: Lakewarden, asked: AuditQuestion, now: datetime) -> AuditPage:
    tables = queries.known_tables(warden)
    if asked.question == "actions":
        return AuditPage(now, asked, tables, queries.operator_actions(warden, asked.table or None, _SHOWN))
    if not asked.table:
        return AuditPage(now, asked, tables)
    try:
        return _answer(warden, asked, tables, now)
    except LakewardenError as error:  # a wrong name or number: said on the page, beside what was typed
        return AuditPage(now, asked, tables, error=error.message)


def _answer(warden: Lakewarden, asked: AuditQuestion, tables: tuple[str, ...], now: datetime) -> AuditPage:
    match asked.question:
        case "who":
            look = warden.health.of(asked.table)
            portrait = TableDetails.read(look.portrait) if look else None
            past = (
                warden.history.who(asked.table, history_only=True)
                if queries.was_read(warden, asked.table)
                else None
            )
            archived = past.entries[:_SHOWN] if past else ()
            return AuditPage(
                now, asked, tables, live=portrait.snapshots if portrait else (), archived=archived
            )
        case "gaps":
            return AuditPage(now, asked, tables, gaps=warden.history.gaps(asked.table, history_only=True))
        case _:
            if not asked.snapshot:
                return AuditPage(now, asked, tables)
            found = queries.downstream_known(warden, asked.table, snapshot_id(asked.snapshot))
            return AuditPage(now, asked, tables, downstream=found)
