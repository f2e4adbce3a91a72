"""What nobody asks for any more leaves the state database: requests and warnings that are long over, and tables that are long gone.

Runs, receipts, doomed files, operators' actions and the lineage of expired snapshots stay: they are the record of what was done.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, ColumnElement, and_, exists, func, select

from lakewarden.state.database import State
from lakewarden.state.schema import (
    archived_snapshots,
    health_history,
    history_details,
    requests,
    seen_tables,
    standings,
    suspensions,
    table_health,
    warnings,
)
from lakewarden.state.slices import take_out, take_out_where
from lakewarden.state.standings import GONE, SEEN


def tidy(state: State, before: datetime, most: int = 10_000) -> int:
    """Rows that went: of what was over, or gone, before then. At most so many of each kind: the next call goes on.

    A suspension stays as long as the rest of its table: one that is dropped and made anew is still what somebody suspended.
    """
    over = take_out_where(state, requests, requests.c.ended_at < before, most)
    over += take_out_where(state, warnings, warnings.c.cleared_at < before, most)
    over += _forgotten_points(state, before, most)
    parts = [
        take_out_where(state, suspensions, _gone(suspensions.c.table_name, before), most),
        take_out_where(
            state, seen_tables, and_(_gone(seen_tables.c.table_name, before), _without_past()), most
        ),
        take_out_where(
            state, standings, and_(standings.c.slot != SEEN, _gone(standings.c.table_name, before)), most
        ),
    ]
    if all(each < most for each in parts):  # what says that they are gone goes last
        parts.append(take_out_where(state, standings, _gone(standings.c.table_name, before), most))
    return over + sum(parts)


def _gone(table_name: Column[str], before: datetime) -> ColumnElement[bool]:
    """By its key, row by row. A table that a worker does not look after, but the collector sees, is not gone."""
    seen = standings.alias("seen")
    said = exists().where(
        seen.c.table_name == table_name,
        seen.c.slot == SEEN,
        seen.c.state == GONE,
        seen.c.ended_at < before,
    )
    return and_(said, _unseen(table_name))


def _unseen(table_name: Column[str]) -> ColumnElement[bool]:
    return ~exists().where(table_health.c.table_name == table_name)


def _without_past() -> ColumnElement[bool]:
    """Audits find what expired snapshots of a dropped table said by the id that is known of it here."""
    return and_(
        *(
            ~exists().where(each.c.table_uuid == seen_tables.c.uuid)
            for each in (archived_snapshots, history_details)
        )
    )


def _forgotten_points(state: State, before: datetime, most: int) -> int:
    """Numbers of tables that nobody sees any more, once the newest of them is old."""
    table, at = health_history.c.table_name, health_history.c.at
    lost = select(table).where(_unseen(table)).group_by(table).having(func.max(at) < before)
    wanted = select(table, at).where(table.in_(lost.subquery().select())).limit(most)
    with state.read() as connection:
        keys = [tuple(each) for each in connection.execute(wanted)]
    return take_out(state, health_history, keys, still=_unseen(table))
