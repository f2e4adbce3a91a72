"""Health of thousands of tables: the time of the first collection, of later ones, and of /metrics after that.

Each table has its own metadata file. All share the manifests of one table, so that they can be created in
seconds.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from pathlib import Path

import psutil

from bench.findings import Check, Found, Grid, Turn
from bench.lab import Lab
from bench.meter import measure
from bench.telemetry import CATALOG, Totals
from lakewarden import Lakewarden
from lakewarden.health.metrics import Exposition
from lakewarden.model.location import local_path
from lakewarden.model.table import TableRef

_NAMESPACE = "fleet"
_COMMITS = 10
_CHANGED = 50


def health(lab: Lab) -> Found:
    count = 5 * lab.scale.commits
    lab.say(f"{count:,} tables")
    tables = _make(lab, count)
    with lab.warden({}) as warden:
        before = _memory()
        first, looking = measure(lab.spark, lambda: warden.health.look(tables), lab.scale.patience)
        _, again = measure(lab.spark, lambda: warden.health.look(tables), lab.scale.patience)
        changed = tables[: max(1, count // _CHANGED)]
        _commit(lab, changed)
        third, busy = measure(lab.spark, lambda: warden.health.look(tables), lab.scale.patience)
        grown = _memory() - before
        text, scraping = measure(lab.spark, lambda: Exposition(warden.state, warden.config).text()[0], 0)
        _, reading = measure(lab.spark, warden.health.all, 0)
        state = _size(warden)
    if (first.tables, first.failed, third.changed) != (count, 0, len(changed)):
        raise AssertionError(f"collected {first}, then {third}: not every table was read correctly")
    seen = Totals(count, 0, 0)
    turns = (
        Turn("first collection", 1, looking, seen),
        Turn("nothing changed", 1, again, seen),
        Turn("one of fifty changed", 1, busy, seen),
        Turn("/metrics", 1, scraping, seen),
        Turn("the fleet's numbers", 1, reading, seen),
    )
    checks = (
        Check("collecting 5,000 unchanged tables", again.wall * 5_000 / count, most=60, unit="s"),
        Check("the same, per table", again.wall * 1_000 / count, unit="ms"),
        Check("the first collection, per table", looking.wall * 1_000 / count, unit="ms"),
        Check("memory this process kept, for 5,000 tables", grown * 5_000 / count / 1e6, unit="MB"),
        Check("/metrics for 5,000 tables", scraping.wall * 5_000 / count, most=10, unit="s"),
    )
    rows = (
        ("/metrics", f"{len(text) / 1e6:,.1f} MB, {len(text.splitlines()):,} lines"),
        ("state database", f"{state / 1e6:,.1f} MB"),
    )
    return Found(seen, turns, checks, (Grid(("what", "size"), rows),))


def _make(lab: Lab, count: int) -> list[TableRef]:
    """One table with a few commits; the others have copies of its metadata file with their own names,
    locations and uuids."""
    spark, namespace = lab.spark, f"{CATALOG}.{_NAMESPACE}"
    spark.sql(f"create namespace if not exists {namespace}")
    spark.sql(f"drop table if exists {namespace}.pattern")
    spark.sql(f"create table {namespace}.pattern (id bigint, day int) using iceberg partitioned by (day)")
    for number in range(_COMMITS):
        spark.sql(f"insert into {namespace}.pattern values ({number}, {number % 3})")
    spark.sql(f"create table if not exists {namespace}.described (id bigint) using iceberg")
    with sqlite3.connect(lab.folder / "catalog.db") as catalog:
        mine = (CATALOG, _NAMESPACE)
        catalog.execute("delete from iceberg_tables where catalog_name = ? and table_namespace = ? and table_name like 't%'", mine)  # fmt: skip
        [(where,)] = catalog.execute(
            "select metadata_location from iceberg_tables where catalog_name = ? and table_namespace = ? and table_name = 'pattern'", mine
        ).fetchall()  # fmt: skip
        pattern = json.loads(Path(local_path(where) or where).read_text("utf-8"))
        names = [f"t{number:05}" for number in range(count)]
        rows = [(*mine, name, _copy(lab.folder, name, pattern), None, "TABLE") for name in names]
        catalog.executemany("insert into iceberg_tables values (?, ?, ?, ?, ?, ?)", rows)
    return [TableRef(CATALOG, (_NAMESPACE,), name) for name in names]


def _copy(folder: Path, name: str, pattern: dict[str, object]) -> str:
    place = folder / "warehouse" / _NAMESPACE / name
    (place / "metadata").mkdir(parents=True, exist_ok=True)
    path = place / "metadata" / f"00010-{uuid.uuid4()}.metadata.json"
    path.write_text(json.dumps({**pattern, "table-uuid": str(uuid.uuid4()), "location": str(place)}), "utf-8")
    return str(path)


def _commit(lab: Lab, tables: list[TableRef]) -> None:
    """A new metadata file for each table, as any commit writes one."""
    for ref in tables:
        lab.spark.sql(f"alter table {ref} set tblproperties ('touched'='yes')")


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def _size(warden: Lakewarden) -> int:
    path = warden.state.engine.url.database
    return Path(path).stat().st_size if path else 0
