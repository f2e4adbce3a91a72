"""A table's past: two years of snapshots, expired and folded month by month, then audited one by one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Table, select

from bench.findings import Check, Found, Grid, Turn
from bench.lab import Lab
from bench.meter import Cost, measure
from bench.telemetry import CATALOG, Totals
from lakewarden import Lakewarden, clock
from lakewarden.lineage.audit import Node, downstream
from lakewarden.lineage.history import Entry, EntrySource
from lakewarden.model.table import Snapshot
from lakewarden.state.schema import archived_snapshots, history_details, history_ranges
from tests.support.past import Told, below, commit_all

_DAYS = 730
_MONTH = 30
_RADIUS = 10_000
_TABLES = 5
_TRIGGER = ("trigger.type", "trigger.operator", "trigger.ticket")


def lineage(lab: Lab) -> Found:
    count = 2 * lab.scale.commits
    name = f"{CATALOG}.lineage.events"
    lab.spark.sql(f"create namespace if not exists {CATALOG}.lineage")
    lab.spark.sql(f"drop table if exists {name}")
    lab.spark.sql(f"create table {name} (id bigint) using iceberg")
    lab.say(f"{count:,} commits")
    start = clock.now() - timedelta(days=_DAYS)
    made = commit_all(lab.spark, name, count, _DAYS, start)
    with lab.warden({}) as warden:
        _, aging = measure(lab.spark, lambda: _age(warden, name), lab.scale.patience)
        before = _bytes(warden, archived_snapshots)
        _, folding = measure(lab.spark, lambda: warden.run("compact-history", name), lab.scale.patience)
        index, detail = _bytes(warden, history_ranges), _bytes(warden, history_details)
        entries, reading = measure(
            lab.spark, lambda: warden.history.of(name, None).entries, lab.scale.patience
        )
        wrong, asking = measure(lab.spark, lambda: _wrong(warden, name, made), lab.scale.patience)
    wrong |= _wrongly_followed(entries, name, made)
    told = [each.snapshot.id for each in entries] == [each.id for each in reversed(made)]
    radius, spreading = _radius(lab)
    seen = Totals(count, 0, 0)
    turns = (
        Turn("expire month by month", 1, aging, seen),
        Turn("fold", 1, folding, seen),
        Turn("read all", 1, reading, seen),
        Turn("when and who, of each", 1, asking, seen),
        Turn("blast radius", 1, spreading, Totals(_RADIUS, 0, 0)),
    )
    checks = (
        Check("snapshots that are missing, doubled or answered wrongly", len(wrong) + (not told), most=0),
        Check("reading 1,000 snapshots of the past", reading.wall * 1_000 / count, most=1, unit="s"),
        Check("asking when one snapshot came in", asking.wall * 1_000 / count, unit="ms"),
        Check(
            f"blast radius over {_RADIUS:,} snapshots of {_TABLES} tables", spreading.wall, most=2, unit="s"
        ),
        Check("snapshots in that radius", radius),
    )
    rows = (
        ("before: every entry in the archive", f"{before / 1e3:,.0f} KB"),
        ("after: the index", f"{index / 1e3:,.1f} KB"),
        ("after: details, opened when needed", f"{detail / 1e3:,.0f} KB"),
    )
    return Found(seen, turns, checks, (Grid(("history", "size"), rows),))


def _age(warden: Lakewarden, table: str) -> None:
    """Expire as passes do: month by month up to now."""
    for months in range(_DAYS // _MONTH, -1, -1):
        policy = {"snapshot_retention_hours": f"{max(1, months * _MONTH)}d", "snapshot_min_retained": 1}
        warden.run("expire", table, policy)


def _bytes(warden: Lakewarden, table: Table) -> int:
    """The bytes of a state table's rows."""
    with warden.state.read() as connection:
        rows = connection.execute(select(table)).all()
    return sum(_size(value) for row in rows for value in row)


def _size(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len((json.dumps(value) if isinstance(value, dict) else str(value)).encode())


def _wrong(warden: Lakewarden, table: str, made: Sequence[Told]) -> set[int]:
    """Snapshots with a wrong answer about when they were added, or who triggered them."""
    live = {each.id for each in warden.view(table).snapshots}
    who = {each.snapshot.id: each for each in warden.history.who(table).entries}
    wrong = set()
    for each in made:
        gone = each.id not in live
        (commit,) = warden.history.ingested(table, snapshot_id=each.id, history_only=gone).commits
        if (
            commit.entry is None
            or commit.entry.snapshot.committed_at != each.at
            or any(commit.entry.told(key) != value for key, value in each.summary.items())
            or any(who[each.id].told(key) != each.summary.get(key) for key in _TRIGGER)
        ):
            wrong.add(each.id)
    return wrong


def _wrongly_followed(entries: Sequence[Entry], table: str, made: Sequence[Told]) -> set[int]:
    """Snapshots with a wrong answer about what was derived from them."""
    wrong = set()
    for each in made:
        found = downstream(entries, Node(table, each.id))
        if {other.node.snapshot_id: other.depth for other in found.affected} != below(made, each.id):
            wrong.add(each.id)
    return wrong


def _radius(lab: Lab) -> tuple[int, Cost]:
    """Tables that are derived from each other, with diamonds and a cycle."""
    entries = tangle(_TABLES, _RADIUS)
    found, cost = measure(
        lab.spark,
        lambda: downstream(entries, Node(entries[0].table, entries[0].snapshot.id)),
        lab.scale.patience,
    )
    return len(found.affected), cost


def tangle(tables: int, count: int) -> list[Entry]:
    """Each snapshot is derived from up to three earlier ones, and sometimes from a later one."""
    dice, first = random.Random(7), 1 << 40
    nodes = [(f"lake.db.t{number % tables}", first + number) for number in range(count)]
    made = []
    for place, (table, id_) in enumerate(nodes):
        near = nodes[max(0, place - 40) : place]
        chosen = set(dice.sample(near, min(len(near), dice.randint(1, 3))))
        if place % 500 == 7:
            chosen.add(nodes[min(place + 300, count - 1)])
        inputs = ",".join(f"{name}@{each}" for name, each in sorted(chosen))
        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=place)
        snapshot = Snapshot(id_, None, place, at, "append", {"input.snapshot_ids": inputs})
        made.append(Entry(table, snapshot, EntrySource.LIVE))
    return made
