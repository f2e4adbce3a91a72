"""Requested passes: filed by an operator, claimed by the leader, and ended with their runs.

A table has at most one pending request: asking again refreshes it. A claim has the leader's term; the next
leader takes over the claims of an earlier one, so no request is lost by a crash.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from lakewarden.model.plain import Plain
from lakewarden.model.run import Trigger
from lakewarden.state.database import State
from lakewarden.state.schema import requests

_ATTEMPTS = 5


class RequestState(StrEnum):
    PENDING = "pending"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PassRequest(Plain):
    id: str
    table: str
    state: RequestState
    trigger: Trigger
    made_at: datetime
    refreshed_at: datetime
    claimed_at: datetime | None
    term: int | None
    ended_at: datetime | None
    run_ids: tuple[str, ...]
    reason: str

    JSON_KEYS = "id table state trigger made_at refreshed_at claimed_at ended_at run_ids reason"

    @property
    def ended(self) -> bool:
        return self.state in (RequestState.DONE, RequestState.FAILED)


class Requests:
    def __init__(self, state: State) -> None:
        self._state = state

    def file(self, table: str, trigger: Trigger, now: datetime) -> PassRequest:
        """File a request for the table. If one is pending already, it is refreshed with the new trigger."""
        said = {
            "trigger_type": trigger.type,
            "trigger_operator": trigger.operator,
            "trigger_ticket": trigger.ticket,
            "refreshed_at": now,
        }
        pending = and_(requests.c.table_name == table, requests.c.state == RequestState.PENDING.value)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._state.write() as connection:
                    change = update(requests).where(pending).values(said).returning(requests.c.id)
                    found = connection.execute(change).scalar()
                    if found is None:
                        found = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
                        row: dict[str, Any] = {
                            **said,
                            "id": found,
                            "table_name": table,
                            "state": RequestState.PENDING.value,
                            "made_at": now,
                            "run_ids": [],
                            "reason": "",
                        }
                        connection.execute(insert(requests).values(row))
                return self._existing(found)
            except IntegrityError:
                # Another process filed a request between the two statements: refresh that one.
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("the loop above returns or raises")

    def claim(self, request_id: str, term: int, now: datetime) -> bool:
        """Claim the request for this leader. False if it ended, or a newer leader has it. A leader may claim
        its own again: see `waiting`."""
        change = (
            update(requests)
            .where(requests.c.id == request_id, _open_to(term))
            .values(state=RequestState.CLAIMED.value, term=term, claimed_at=now)
        )
        with self._state.write() as connection:
            return connection.execute(change).rowcount == 1

    def end(
        self,
        request_id: str,
        term: int,
        state: RequestState,
        run_ids: Sequence[str],
        reason: str,
        now: datetime,
    ) -> bool:
        """Mark the request done or failed. False if a newer leader has claimed it."""
        mine = and_(
            requests.c.id == request_id,
            requests.c.state == RequestState.CLAIMED.value,
            requests.c.term == term,
        )
        ending = {"state": state.value, "run_ids": list(run_ids), "reason": reason, "ended_at": now}
        with self._state.write() as connection:
            return connection.execute(update(requests).where(mine).values(ending)).rowcount == 1

    def waiting(self, term: int) -> tuple[PassRequest, ...]:
        """Requests for this leader, oldest first: pending ones, those an earlier leader claimed, and its own.

        The leader knows which of its own are in progress. The others were interrupted by a database outage
        and are run again.
        """
        wanted = select(requests).where(_open_to(term))
        with self._state.read() as connection:
            rows = connection.execute(wanted.order_by(requests.c.made_at, requests.c.id)).all()
        return tuple(_request(row) for row in rows)

    def get(self, request_id: str) -> PassRequest | None:
        with self._state.read() as connection:
            row = connection.execute(select(requests).where(requests.c.id == request_id)).one_or_none()
        return _request(row) if row else None

    def list(self, table: str | None = None, limit: int = 50) -> tuple[PassRequest, ...]:
        """Requests, newest first."""
        wanted = select(requests).order_by(requests.c.made_at.desc(), requests.c.id.desc()).limit(limit)
        if table is not None:
            wanted = wanted.where(requests.c.table_name == table)
        with self._state.read() as connection:
            return tuple(_request(row) for row in connection.execute(wanted))

    def _existing(self, request_id: str) -> PassRequest:
        found = self.get(request_id)
        assert found is not None, (
            "the request was just stored, and requests are removed only long after they end"
        )
        return found


def _open_to(term: int) -> ColumnElement[bool]:
    claimed = and_(requests.c.state == RequestState.CLAIMED.value, requests.c.term <= term)
    return or_(requests.c.state == RequestState.PENDING.value, claimed)


def _request(row: Row[Any]) -> PassRequest:
    return PassRequest(
        row.id,
        row.table_name,
        RequestState(row.state),
        Trigger(row.trigger_type, row.trigger_operator, row.trigger_ticket),
        row.made_at,
        row.refreshed_at,
        row.claimed_at,
        row.term,
        row.ended_at,
        tuple(row.run_ids),
        row.reason,
    )
