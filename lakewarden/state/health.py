"""Health of tables as last seen, earlier numbers for charts, and warnings with their start and end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from lakewarden.model.plain import Plain
from lakewarden.state.database import State, take_out, upsert
from lakewarden.state.schema import health_history, table_health, warnings
from lakewarden.state.tables import wipe, write_details

_AT_ONCE = 500
_A_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Numbers(Plain):
    """A table in numbers, from its metadata and the state database; no files are listed."""

    files: int = 0
    delete_files: int = 0
    bytes: int = 0
    records: int = 0
    snapshots: int = 0
    manifests: int = 0
    manifest_bytes: int = 0
    metadata_files: int = 0
    small_files: int = 0
    small_bytes: int = 0
    delete_ratio: float = 0.0
    deleted_rows: int = 0  # rows deleted by position deletes, and the rows of equality delete files
    overdue_snapshots: int = 0  # can expire but have not yet
    orphan_files: int = 0  # an estimate without listing: files from sweeps and failed loads that still exist
    orphan_bytes: int = 0
    trashed_files: int = 0
    trashed_bytes: int = 0
    due_trashed_files: int = 0  # trashed files whose grace period is over
    due_trashed_bytes: int = 0
    holds: int = 0
    held_bytes: int = 0  # bytes kept only because of holds; 0 if not computed
    held_forever_bytes: int = 0  # the part of it with holds that never end
    lineage_gaps: int = 0  # live snapshots that lack the lineage the policy requires
    lineage_asked: bool = False  # whether the policy requires lineage; if not, gaps are normal
    log_unbounded: bool = False  # old metadata files are never deleted, and each commit adds one
    added_files_per_day: float = 0.0
    added_bytes_per_day: float = 0.0
    commits_per_day: float = 0.0

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Numbers:
        """Numbers missing in an older version are 0; unknown numbers of a newer version are ignored."""
        if _NAMES.issuperset(stored):
            return cls(**stored)
        return cls(**{name: value for name, value in stored.items() if name in _NAMES})


_NAMES = frozenset(each.name for each in fields(Numbers))


@dataclass(frozen=True, slots=True)
class TableHealth(Plain):
    """One health check of one table. `error` is why the table could not be read; the numbers are then the
    last known ones.

    `score` goes from 0 (in trouble) to 100 (nothing to do). `debt` orders tables by how urgently they need
    work (0: not at all). `portrait` is what the table's page shows without reading the table: see
    `health/table_details.py`.
    """

    table: str
    uuid: str
    at: datetime
    version: str
    score: int
    debt: float
    numbers: Numbers
    error: str = ""
    portrait: Mapping[str, Any] = field(default_factory=dict)

    JSON_KEYS = "table at score debt:3 numbers error?"


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of an earlier health check."""

    at: datetime
    score: int
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class StoredWarning(Plain):
    """A warning of a table since `since`; `cleared_at` is None while it is open."""

    table: str
    kind: str
    text: str
    since: datetime
    cleared_at: datetime | None = None


class HealthRecords:
    def __init__(self, state: State) -> None:
        self._state = state

    def put(self, found: Sequence[TableHealth]) -> None:
        """Store all of them in one transaction. A history point is added if a number changed or a day has
        passed: charts draw a number until the next point."""
        with self._state.write() as connection:
            for each in found:
                upsert(connection, table_health, _row(each), ["table_name"])
                write_details(connection, each.table, each.portrait)
            told = [each for each in found if not each.error]
            newest = _newest_points(connection, [each.table for each in told])
            for each in told:
                before = newest.get(each.table)
                if before is None or _worth_a_point(before, each):
                    point = {name: _row(each)[name] for name in ("table_name", "at", "score", "numbers")}
                    upsert(connection, health_history, point, ["table_name", "at"])

    def touch(self, tables: Sequence[str], now: datetime) -> None:
        """These tables were checked again and have not changed."""
        with self._state.write() as connection:
            for start in range(0, len(tables), _AT_ONCE):
                some = table_health.c.table_name.in_(tables[start : start + _AT_ONCE])
                connection.execute(update(table_health).where(some).values(at=now))

    def all(self) -> tuple[TableHealth, ...]:
        """Every table, ordered by name, without its portrait."""
        columns = [each for each in table_health.c if each.name != "portrait"]
        with self._state.read() as connection:
            rows = connection.execute(select(*columns).order_by(table_health.c.table_name)).all()
        return tuple(_health(row, {}) for row in rows)

    def get(self, table: str) -> TableHealth | None:
        wanted = select(table_health).where(table_health.c.table_name == table)
        with self._state.read() as connection:
            row = connection.execute(wanted).one_or_none()
        return _health(row, row.portrait) if row else None

    def forget(self, tables: Sequence[str]) -> None:
        """Remove the newest health and the open warnings of dropped tables. Their history is kept until its
        retention ends."""
        with self._state.write() as connection:
            connection.execute(delete(table_health).where(table_health.c.table_name.in_(tables)))
            wipe(connection, tables)
            connection.execute(
                delete(warnings).where(warnings.c.table_name.in_(tables), warnings.c.cleared_at.is_(None))
            )

    def history(self, table: str, since: datetime, most: int | None = None) -> tuple[Point, ...]:
        """Earlier numbers, oldest first. With `most`, an even selection that always includes the newest: a
        week has ten thousand points."""
        mine = and_(health_history.c.table_name == table, health_history.c.at >= since)
        place = (func.row_number().over(order_by=health_history.c.at.desc()) - 1).label("place")
        numbered = select(health_history, place).where(mine).subquery()
        with self._state.read() as connection:
            count = connection.execute(select(func.count()).where(mine)).scalar_one()
            step = 1 if most is None else max(1, -(-count // most))
            wanted = select(numbered).where(numbered.c.place % step == 0).order_by(numbered.c.at)
            rows = connection.execute(wanted).all()
        return tuple(Point(row.at, row.score, Numbers.read(row.numbers)) for row in rows)

    def thin(self, tiers: Sequence[tuple[datetime, timedelta]], most: int = 50_000) -> int:
        """Before each time in `tiers`, keep only the last point of each step; returns how many were deleted.
        Deletes at most `most`: the next call continues.

        Points to delete are chosen table by table in read transactions, which block no writer: see `database.py`.
        With 1,000 tables of 592 points, one transaction for everything took 9 s and 340 MB, and the leader's
        renewal waited as long. This way takes 1 MB, and a renewal waits a few tenths of a second on a busy
        machine.
        """
        return take_out(self._state, health_history, islice(self._surplus(tiers), most))

    def _surplus(self, tiers: Sequence[tuple[datetime, timedelta]]) -> Iterator[tuple[str, datetime]]:
        old, name = health_history.c.at < max(before for before, _ in tiers), health_history.c.table_name
        table: str | None = ""
        while True:
            with self._state.read() as connection:
                # The next table by the primary key; DISTINCT would read every row.
                table = connection.execute(select(func.min(name)).where(name > table)).scalar()
                if table is None:
                    return
                mine = select(health_history.c.at).where(name == table, old).order_by(health_history.c.at)
                moments = connection.execute(mine).scalars().all()
            yield from ((table, at) for at in surplus(moments, tiers))

    # ------------------------------------------------------------ warnings

    def open_kinds(self) -> dict[str, dict[str, str]]:
        """The texts of all open warnings, by table and kind."""
        wanted = select(warnings.c.table_name, warnings.c.kind, warnings.c.text)
        found: dict[str, dict[str, str]] = {}
        with self._state.read() as connection:
            for row in connection.execute(wanted.where(warnings.c.cleared_at.is_(None))):
                found.setdefault(row.table_name, {})[row.kind] = row.text
        return found

    def warn(self, found: Sequence[tuple[str, str, str]], now: datetime) -> list[tuple[str, str, str]]:
        """Store warnings (table, kind, text) and return the new ones. If a warning is open already, only its
        text changes."""
        known = self.open_kinds()
        new = [each for each in found if each[1] not in known.get(each[0], {})]
        said = [each for each in found if known.get(each[0], {}).get(each[1], each[2]) != each[2]]
        if not new and not said:
            return []
        with self._state.write() as connection:
            for table, kind, text in said:
                connection.execute(update(warnings).where(_open(table, kind)).values(seen_at=now, text=text))
            fresh = []
            for table, kind, text in new:
                row = {"table_name": table, "kind": kind, "text": text, "since": now, "seen_at": now}
                if not connection.execute(
                    update(warnings).where(_open(table, kind)).values(text=text)
                ).rowcount:
                    connection.execute(insert(warnings).values(row))
                    fresh.append((table, kind, text))
        return fresh

    def clear(self, found: Sequence[tuple[str, str]], now: datetime) -> list[tuple[str, str]]:
        """Close warnings (table, kind) and return those that were open."""
        if not found:
            return []
        with self._state.write() as connection:
            return [
                (table, kind)
                for table, kind in found
                if connection.execute(
                    update(warnings).where(_open(table, kind)).values(cleared_at=now)
                ).rowcount
            ]

    def warnings(self, table: str | None = None, *, also_cleared: int = 0) -> tuple[StoredWarning, ...]:
        """Open warnings, longest first; then up to `also_cleared` closed ones, newest first."""
        mine = [] if table is None else [warnings.c.table_name == table]
        now_open = select(warnings).where(warnings.c.cleared_at.is_(None), *mine).order_by(warnings.c.since)
        over = select(warnings).where(warnings.c.cleared_at.is_not(None), *mine)
        over = over.order_by(warnings.c.cleared_at.desc()).limit(also_cleared)
        with self._state.read() as connection:
            rows = [*connection.execute(now_open), *(connection.execute(over) if also_cleared else ())]
        return tuple(
            StoredWarning(row.table_name, row.kind, row.text, row.since, row.cleared_at) for row in rows
        )


def _row(each: TableHealth) -> dict[str, Any]:
    return {
        "table_name": each.table,
        "table_uuid": each.uuid,
        "at": each.at,
        "version": each.version,
        "score": each.score,
        "debt": each.debt,
        "numbers": each.numbers.to_dict(),
        "error": each.error,
        "portrait": dict(each.portrait),
    }


def _newest_points(connection: Connection, tables: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table in tables:  # by the primary key: one lookup per table, from the end
        wanted = select(health_history).where(health_history.c.table_name == table)
        row = connection.execute(wanted.order_by(health_history.c.at.desc()).limit(1)).one_or_none()
        if row is not None:
            found[table] = row
    return found


def _worth_a_point(before: Any, each: TableHealth) -> bool:
    changed = (before.score, before.numbers) != (each.score, each.numbers.to_dict())
    return changed or each.at - before.at >= _A_DAY


def surplus(moments: Sequence[datetime], tiers: Sequence[tuple[datetime, timedelta]]) -> tuple[datetime, ...]:
    """Of ordered times, those that thinning removes: before each tier's time, only the last one of each step
    is kept."""
    found: set[datetime] = set()
    stamps = [at.timestamp() for at in moments]
    for before, step in tiers:
        seconds, count = step.total_seconds(), bisect_left(moments, before)
        old = [(at, stamp // seconds) for at, stamp in zip(moments[:count], stamps, strict=False)]
        found.update(at for (at, mine), (_, following) in pairwise(old) if mine == following)
    return tuple(sorted(found))


def _open(table: str, kind: str) -> ColumnElement[bool]:
    return and_(warnings.c.table_name == table, warnings.c.kind == kind, warnings.c.cleared_at.is_(None))


def _health(row: Any, portrait: Mapping[str, Any]) -> TableHealth:
    return TableHealth(
        row.table_name,
        row.table_uuid,
        row.at,
        row.version,
        row.score,
        row.debt,
        Numbers.read(row.numbers),
        row.error,
        portrait,
    )
