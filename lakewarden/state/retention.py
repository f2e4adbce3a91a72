"""Deletes old rows from the state database: records that ended long ago, and tables that were dropped long
ago or never existed.

A row is deleted only if nothing depends on it: no active hold, no file that is still to be deleted. Runs,
receipts, trashed files, operators' actions and the lineage of expired snapshots are kept: they are the record
of what was done.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import Column, ColumnElement, and_, exists, func, select

from lakewarden.state.database import State, take_out, take_out_where
from lakewarden.state.fleet import BY_WORKER
from lakewarden.state.schedule import GONE, SEEN
from lakewarden.state.schema import (
    archived_snapshots,
    health_history,
    heartbeats,
    history_details,
    loads,
    pins,
    requests,
    run_cancels,
    run_progress,
    runs,
    seen_tables,
    standings,
    suspensions,
    table_health,
    trash_batches,
    trashed,
    warnings,
)
from lakewarden.state.trash_batches import LIVE, BatchState
from lakewarden.state.trash_rows import in_states


def tidy(state: State, before: datetime, most: int = 10_000) -> int:
    """Delete rows that ended before `before`; returns how many. At most `most` of each kind: the next call
    continues.

    A suspension is kept as long as the rest of its table's rows: a table that is dropped and created again is
    still suspended.
    """
    over = {
        requests: requests.c.ended_at < before,
        warnings: warnings.c.cleared_at < before,
        pins: and_(pins.c.expires_at < before, pins.c.tag.is_(None)),
        loads: _settled(before),
        run_progress: _ended(run_progress.c.run_id, before),
        run_cancels: _ended(run_cancels.c.run_id, before),
        standings: and_(standings.c.ended_at < before, _never_was(standings.c.table_name)),
        suspensions: _in_vain(before),
    }
    count = sum(take_out_where(state, table, so, most) for table, so in over.items())
    count += _silent_writers(state, before, most) + _forgotten_points(state, before, most)
    return count + _tables_that_are_gone(state, before, most)


def _tables_that_are_gone(state: State, before: datetime, most: int) -> int:
    of_them = {
        suspensions: _gone(suspensions.c.table_name, before),
        seen_tables: and_(_gone(seen_tables.c.table_name, before), _without_past()),
        pins: _mirrored_in_nothing(before),
        standings: and_(standings.c.slot != SEEN, _gone(standings.c.table_name, before)),
    }
    parts = [take_out_where(state, table, so, most) for table, so in of_them.items()]
    if all(each < most for each in parts):  # last, because this row marks the table as gone
        over = and_(_gone(standings.c.table_name, before), ~_pinned(standings.c.table_name))
        parts.append(take_out_where(state, standings, over, most))
    return sum(parts)


def _pinned(table_name: Column[str]) -> ColumnElement[bool]:
    """Whether a pin with a mirror tag is left on the table. The pin's row can be deleted only while this row
    marks the table as gone, so this row is deleted after it."""
    return exists().where(pins.c.table_name == table_name, pins.c.tag.is_not(None), ~_renamed())


# ------------------------------------------------------------ what is over


def _silent_writers(state: State, before: datetime, most: int) -> int:
    """Delete writers whose heartbeat expired. A heartbeat after the selection keeps its row."""
    silent = heartbeats.c.beat_at < before
    columns = (*heartbeats.primary_key.columns, heartbeats.c.beat_at, heartbeats.c.ttl_seconds)
    with state.read() as connection:
        found = connection.execute(select(*columns).where(silent)).all()
    over = (
        (row.table_name, row.writer)
        for row in found
        if row.beat_at + timedelta(seconds=row.ttl_seconds) < before
    )
    return take_out(state, heartbeats, islice(over, most), still=silent)


def _mirrored_in_nothing(before: datetime) -> ColumnElement[bool]:
    """Expired pins of dropped tables: their mirror tags are gone too. Pins of a renamed table stay, because
    `unpin` needs their rows to find the tags under the table's new name."""
    return and_(pins.c.expires_at < before, _gone(pins.c.table_name, before), ~_renamed())


def _renamed() -> ColumnElement[bool]:
    return exists().where(table_health.c.table_uuid == pins.c.table_uuid)


def _settled(before: datetime) -> ColumnElement[bool]:
    """Loads that ended. A failed load stays until its deletion batch is active and its files are gone."""
    pending = exists().where(
        trash_batches.c.id == loads.c.id, trash_batches.c.state == BatchState.PENDING.value
    )
    waiting = exists().where(trashed.c.batch_id == loads.c.id, in_states(*LIVE))
    return and_(loads.c.ended_at < before, ~pending, ~waiting)


def _ended(run_id: Column[str], before: datetime) -> ColumnElement[bool]:
    """Whether the run has ended: progress is shown only while a run is open, and the run's reason says who
    cancelled it."""
    return exists().where(runs.c.id == run_id, runs.c.ended_at < before)


# ------------------------------------------------------------ tables that never existed, or were dropped


def _never_was(table_name: Column[str]) -> ColumnElement[bool]:
    """Whether no worker and no collector ever found a table of this name in a catalog."""
    seen = standings.alias("seen")
    return and_(~exists().where(seen.c.table_name == table_name, seen.c.slot == SEEN), _unseen(table_name))


def _in_vain(before: datetime) -> ColumnElement[bool]:
    """The worker's suspensions of names under which no table was ever read. Suspensions by an operator are
    kept."""
    read = exists().where(seen_tables.c.table_name == suspensions.c.table_name)
    return and_(
        suspensions.c.since < before,
        suspensions.c.by == BY_WORKER,
        _never_was(suspensions.c.table_name),
        ~read,
    )


def _gone(table_name: Column[str], before: datetime) -> ColumnElement[bool]:
    """Whether the table was dropped before then. A table that no worker maintains but the collector still
    sees is not gone."""
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
    """Tables without expired snapshots: audits need the table's uuid from here to find the expired snapshots
    of a dropped table."""
    return and_(
        *(
            ~exists().where(each.c.table_uuid == seen_tables.c.uuid)
            for each in (archived_snapshots, history_details)
        )
    )


def _forgotten_points(state: State, before: datetime, most: int) -> int:
    """Delete health points of tables that are gone, once their newest point is old."""
    table, at = health_history.c.table_name, health_history.c.at
    lost = select(table).where(_unseen(table)).group_by(table).having(func.max(at) < before)
    wanted = select(table, at).where(table.in_(lost.subquery().select())).limit(most)
    with state.read() as connection:
        keys = [tuple(each) for each in connection.execute(wanted)]
    return take_out(state, health_history, keys, still=_unseen(table))
