"""Screenshots of the console over a real lake in trouble, made here: docs/images/console-*.png.

    python docs/images/console.py [FOLDER]

Needs Chromium (scripts/browser.sh) and Java. The lake is small and messy: streams that write tiny files, deletes that nobody
applied, snapshots that expired, pins and tags. Its tables, runs, doomed files, holds, numbers and warnings are what Lakewarden
itself found and did. Staged, as a worker would write it down: the week before, so that charts have one; who leads, when each
table had its last pass, and the failing one; and the run that is under way.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from lakewarden import Lakewarden, clock
from lakewarden.console.server import ConsoleServer
from lakewarden.model.run import RunState
from lakewarden.services.deps import read_trigger
from lakewarden.state.health import HealthRecords
from lakewarden.state.locks import Leases
from lakewarden.state.process import current_owner
from lakewarden.state.runs import ProgressPoint, RunProgress
from lakewarden.state.schedule import PASS, SEEN, TableSchedule, TableSchedules

HERE = Path(__file__).parent
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 375, "height": 740}


def config(folder: Path) -> dict[str, Any]:
    return {
        "state": {"url": f"sqlite:///{folder}/lakewarden.db"},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": str(folder / "warehouse")}},
        "spark": {"master": "local[2]", "conf": {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}},
        "schedule": {"mode": "cron"},
        "budgets": {"pause_compaction": ["Mon-Fri 09:00-17:00"], "pause_expiry": ["Fri 16:00-24:00"]},
        "health": {"small_files": 40, "manifests": 20},
        "policy": {"rewrite_min_input_files": 4, "tables": [{"pattern": "lake.shop.*", "snapshot_retention_hours": "14d"}]},
        "console": {"requests_per_s": 1000},
    }  # fmt: skip


# ------------------------------------------------------------ the lake


def make_lake(warden: Lakewarden) -> None:
    spark = warden.lake.spark
    for space in ("shop", "ops", "finance"):
        spark.sql(f"create namespace if not exists lake.{space}")
    stream(spark, "lake.shop.orders", 14, 6)
    stream(spark, "lake.shop.clicks", 6, 12)
    stream(spark, "lake.ops.telemetry", 4, 4)
    stream(spark, "lake.finance.ledger", 3, 2)
    deletes(spark, "lake.shop.orders")
    derived(spark, "lake.finance.revenue", "lake.shop.orders")
    derived(spark, "lake.shop.sessions", "lake.shop.clicks")
    derived(spark, "lake.finance.forecast", "lake.finance.revenue")


def stream(spark: Any, table: str, commits: int, files: int) -> None:
    """Every commit leaves so many tiny files."""
    spark.sql(
        f"create table {table} (id bigint, customer string, day date, amount double) using iceberg partitioned by (day)"
        " tblproperties ('write.delete.mode'='merge-on-read', 'write.distribution-mode'='none', 'format-version'='2')"
    )
    for commit in range(commits):
        rows = f"select id, concat('c-', id % 97) customer, date_add(date'2026-11-10', {commit} % 4) day, id * 1.5 amount from range({commit * 4000}, {commit * 4000 + 4000}, 1, {files})"
        writer = spark.sql(rows).writeTo(table)
        told = {"writer.id": "flink-orders", "writer.commit_hash": "9f2c1ab", "writer.invocation_id": f"job-{commit}", "lineage.operation": "append"}  # fmt: skip
        for key, value in told.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()


def deletes(spark: Any, table: str) -> None:
    for customer in range(6):
        spark.sql(f"delete from {table} where customer = 'c-{customer}'")


def derived(spark: Any, table: str, source: str) -> None:
    """Made from another table, and says so."""
    newest = spark.sql(
        f"select snapshot_id from {source}.snapshots order by committed_at desc limit 1"
    ).first()[0]
    spark.sql(f"create table {table} (customer string, amount double) using iceberg")
    spark.sql(f"select cast(1 as string) customer, sum(amount) amount from {source}").writeTo(table).option(
        "snapshot-property.input.snapshot_ids", f"{source}@{newest}"
    ).option("snapshot-property.writer.id", "airflow").option(
        "snapshot-property.lineage.operation", "append"
    ).append()


def trouble(warden: Lakewarden) -> None:
    """Runs that happened, files that wait for their end, a table that nobody could mend, and holds."""
    for job in ("compact", "expire"):
        warden.run(
            job,
            "lake.ops.telemetry",
            {"snapshot_retention_hours": "0h", "snapshot_min_retained": 1} if job == "expire" else None,
        )
    warden.run("expire", "lake.shop.clicks", {"snapshot_retention_hours": "0h", "snapshot_min_retained": 2})
    warden.run("compact", "lake.finance.ledger")
    snapshots = warden.view("lake.shop.orders").snapshots
    warden.holds.tag("lake.shop.orders", "month-end-2026-10", snapshots[3].id, forever=True)
    warden.pin("lake.shop.orders", snapshots[6].id, holder="bi-dashboard", purpose="board report", ttl="2d")
    warden.holds.heartbeat("lake.shop.clicks", "flink-clicks", host="stream-3", ttl="10m")
    warden.set_policy("lake.shop.orders", {"snapshot_retention_hours": "7d", "rewrite_strategy": "sort", "rewrite_sort_columns": "customer"}, operator="ana")  # fmt: skip
    warden.schedule.suspend(
        "lake.finance.ledger",
        "reap failed 10 times in a row: Access Denied (403) on s3://ledger/data",
        "worker",
    )
    warden.schedule.request("lake.shop.orders", {"type": "manual", "operator": "ana", "ticket": "OPS-412"})
    warden.health.look()


def past(warden: Lakewarden) -> None:
    """A week of looks that lead to what is there now."""
    records, now, chance = HealthRecords(warden.state), clock.now(), random.Random(7)
    for name in [each.table for each in warden.health.all()]:
        look = warden.health.of(name)
        assert look is not None
        for hour in range(168, 0, -1):
            share = (
                0.25
                + 0.75 * (168 - hour) / 168 * (0.7 + 0.3 * ((168 - hour) % 24) / 24)
                + chance.random() * 0.02
            )
            numbers = {
                each: int(getattr(look.numbers, each) * min(share, 1))
                for each in ("files", "small_files", "delete_files", "snapshots", "bytes", "records")
            }
            score = min(100, look.score + int((100 - look.score) * (1 - min(share, 1))))
            point = replace(
                look, at=now - timedelta(hours=hour), score=score, numbers=replace(look.numbers, **numbers)
            )
            records.put([point])
        records.put([look])
    standings = TableSchedules(warden.state)
    for place, health in enumerate(warden.health.all()):
        standings.put(TableSchedule(health.table, SEEN, now - timedelta(days=30)))
        ended = now - timedelta(minutes=17 + 23 * place)
        failed = health.table == "lake.finance.ledger"
        standings.put(
            TableSchedule(
                health.table,
                PASS,
                ended - timedelta(minutes=2),
                ended,
                "failed" if failed else "done",
                "Access Denied" if failed else "",
                10 if failed else 0,
            )
        )


@contextmanager
def working(warden: Lakewarden) -> Iterator[str]:
    """A leader, and a compaction that is under way while the pictures are taken."""
    owner = current_owner()
    lease = Leases(warden.state).take(owner, timedelta(hours=1))
    assert lease is not None
    plan = warden.plan("compact", "lake.shop.clicks").to_dict(doomed=False)
    run_id = f"{clock.now():%Y%m%d-%H%M%S}-c0ffee"
    warden.journal.start(
        run_id=run_id, table="lake.shop.clicks", job="compact", owner=owner, trigger=read_trigger({"type": "schedule"}),
        plan=plan, policy={}, now=clock.now() - timedelta(seconds=74),
    )  # fmt: skip
    total = sum(each["input_bytes"] for each in plan["actions"])
    moment = ProgressPoint("rewriting", total * 43 // 100, total, "group 2 of 4", clock.now())
    RunProgress(warden.state).put(run_id, moment)
    try:
        yield run_id
    finally:
        warden.journal.finish(run_id, RunState.INTERRUPTED, "", {}, (), clock.now())


# ------------------------------------------------------------ the pictures


@dataclass(frozen=True)
class View:
    name: str
    scheme: Literal["dark", "light"]
    path: str
    height: int


def shoot(browser: Browser, address: str, locked: str, run_id: str, folder: Path) -> None:
    table = "/tables/lake.shop.orders"
    downstream = f"/audit?question=downstream&table=lake.shop.orders&snapshot={_source(address, browser)}"
    views = (
        View("fleet", "dark", "/", 800),
        View("table", "light", table, 1500),
        View("snapshots", "dark", f"{table}?span=7d#snapshots", 700),
        View("policy", "light", f"{table}#policy", 700),
        View("run", "dark", f"/runs/{run_id}", 800),
        View("runs", "light", "/runs", 560),
        View("schedule", "light", "/schedule", 800),
        View("holds", "dark", "/holds", 560),
        View("audit", "dark", downstream, 700),
        View("suspended", "light", "/tables/lake.finance.ledger", 700),
    )
    for view in views:
        _photograph(browser, view, address, folder)
    _photograph(browser, View("login", "dark", "/login", 420), locked, folder)
    context = browser.new_context(viewport=PHONE, color_scheme="light", device_scale_factor=2)
    page = context.new_page()
    for name, path in (("fleet", "/"), ("table", table)):
        page.goto(address + path)
        page.screenshot(path=folder / f"console-{name}-phone.png")
    context.close()


def _photograph(browser: Browser, view: View, address: str, folder: Path) -> None:
    context = browser.new_context(
        viewport={"width": WIDE["width"], "height": view.height}, color_scheme=view.scheme
    )
    page = context.new_page()
    page.goto(address + view.path)
    page.screenshot(path=folder / f"console-{view.name}-{view.scheme}.png")
    context.close()


def _source(address: str, browser: Browser) -> str:
    page: Page = browser.new_page()
    page.goto(f"{address}/tables/lake.finance.revenue.json")
    found = page.evaluate("() => JSON.parse(document.body.innerText).portrait.snapshots[0].inputs")
    page.close()
    return str(found).rpartition("@")[2]


@contextmanager
def served(warden: Lakewarden) -> Iterator[str]:
    server = ConsoleServer(warden, port=0)
    try:
        yield server.start().address
    finally:
        server.stop()


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place, Lakewarden(config(Path(place)), environ={}) as warden:
        make_lake(warden)
        trouble(warden)
        past(warden)
        tokens = {"console": {"operate_tokens": ["ana=a-token-of-these-pictures"]}}
        with (
            Lakewarden({**config(Path(place)), **tokens}, environ={}) as guarded,
            served(warden) as address,
            served(guarded) as locked,
            working(warden) as run_id,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            if "--stay" in sys.argv:
                print(address, flush=True)
                threading.Event().wait()
            shoot(browser, address, locked, run_id, folder)
            browser.close()


if __name__ == "__main__":
    names = [each for each in sys.argv[1:] if not each.startswith("--")]
    main(Path(names[0]) if names else HERE)
