"""`python -m bench.console`: response times of the console with a thousand tables.

Fills a state database as months of work would. Then every GET route of the REST API that needs no Spark, and
every page, is requested over a socket, one after the other with changing tables. Times are the client's, so
they include sending and parsing. CPU time is that of client and server together, for machines with other
load.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from time import process_time
from typing import Any

import httpx
from sqlalchemy import Table

from bench.findings import Check
from lakewarden import Lakewarden, clock
from lakewarden.console.app import create_app
from lakewarden.console.pages import router
from lakewarden.console.server import ConsoleServer
from lakewarden.health.table_details import (
    ColumnLine,
    DueLine,
    HoldLine,
    PartitionLine,
    PolicyLine,
    RefLine,
    SnapshotLine,
    TableDetails,
)
from lakewarden.model.run import Job
from lakewarden.policy.keys import KEYS
from lakewarden.state import schema
from lakewarden.state.health import Numbers
from lakewarden.state.tables import hold_rows, input_rows

GOAL_MS = 200
# These read a live table.
_NEEDS_SPARK = re.compile(r"/(show|plan|holds|where|cost|ingested)(/|$)")
# This reads every table's history: measured without a goal.
_WHOLE_LAKE = "/audit/downstream/{snapshot}"
_RUNS, _STEPS, _POINTS, _WEEK, _SNAPSHOTS = 20, 8, 100, 10_080, 120
_BATCH = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--tables", type=int, default=1000, help="number of tables")
    parser.add_argument("--rounds", type=int, default=40, help="requests per route")
    parser.add_argument("--state", help="a state database to use instead of a new SQLite file")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="console-") as folder:
        found = measure(options.state or f"sqlite:///{folder}/state.db", options.tables, options.rounds)
    for each in found:
        goal = "" if each.most is None else f"   {'met' if each.met else 'missed'}"
        print(f"{each.name:<70}{each.found:>10.1f}{each.unit}{goal}")
    if options.out:
        options.out.write_text(json.dumps([asdict(each) for each in found], indent=2), "utf-8")
    return 0 if all(each.met for each in found) else 1


def measure(state: str, tables: int, rounds: int) -> tuple[Check, ...]:
    """p50 and p95 of every route."""
    with _site(state, tables) as (warden, client):
        checks = []
        for path in sorted(set(_paths(warden))):
            asked = list(_times(client, path, tables, 3 if path.endswith(_WHOLE_LAKE) else rounds))
            times, work = sorted(each for each, _ in asked), sorted(each for _, each in asked)
            checks.append(Check(f"{path}, processor", 1000 * work[len(work) // 2], unit=" ms"))
            checks.append(Check(f"{path}, p50", 1000 * times[len(times) // 2], unit=" ms"))
            late = times[min(len(times) - 1, int(0.95 * len(times)))]
            goal = None if path.endswith(_WHOLE_LAKE) else GOAL_MS
            checks.append(Check(f"{path}, p95", 1000 * late, most=goal, unit=" ms"))
    return tuple(checks)


def _times(client: httpx.Client, path: str, tables: int, rounds: int) -> Iterator[tuple[float, float]]:
    """For each request, the seconds until the answer, and the CPU seconds of this process."""
    for number in range(-2, rounds):  # the first requests load modules that are imported on first use
        asked = _filled(path, number % tables)
        began, worked = clock.monotonic(), process_time()
        answer = client.get(asked)
        if answer.status_code != 200:
            raise RuntimeError(f"{asked} was answered with {answer.status_code}: {answer.text[:200]}")
        if number >= 0:
            yield clock.monotonic() - began, process_time() - worked


def _filled(path: str, number: int) -> str:
    return re.sub(r"{(\w+)(:path)?}", lambda found: _value(found[1], number), path)


def _value(name: str, number: int) -> str:
    known = {"run_id": f"run-{number}-0", "request_id": f"request-{number}", "snapshot": str(1000 * number)}
    return known.get(name, _name(number))


def _paths(warden: Lakewarden) -> Iterator[str]:
    """The API's routes from its OpenAPI document, the pages' routes from their router."""
    app = create_app(warden)
    found = [path for path, calls in app.openapi()["paths"].items() if "get" in calls]
    pages = [each.path for each in router.routes if "GET" in (getattr(each, "methods", None) or ())]  # type: ignore[attr-defined]
    return (
        each
        for each in [*(each for each in found if not _NEEDS_SPARK.search(each)), *pages]
        if each != "/login"
    )


@contextmanager
def _site(state: str, tables: int) -> Iterator[tuple[Lakewarden, httpx.Client]]:
    config = {
        "state": {"url": state},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": "/nowhere"}},
        "console": {"requests_per_s": 100_000},
    }
    with Lakewarden(config, environ={}) as warden:
        began = clock.monotonic()
        fill(warden, tables)
        print(f"filled with {tables:,} tables in {clock.monotonic() - began:.0f} s", file=sys.stderr)
        server = ConsoleServer(warden, port=0, metrics=lambda: b"")
        try:
            with httpx.Client(base_url=server.start().address, timeout=60) as client:
                yield warden, client
        finally:
            server.stop()


# ------------------------------------------------------------ what months of work leave


def fill(warden: Lakewarden, tables: int) -> None:
    """Every kind of record that the console reads, for this many tables."""
    for table, rows in (
        (schema.seen_tables, _seen(tables)),
        (schema.table_health, _health(tables)),
        (schema.painted_holds, _painted(tables, hold_rows)),
        (schema.painted_inputs, _painted(tables, input_rows)),
        (schema.health_history, _points(tables)),
        (schema.warnings, _warnings(tables)),
        (schema.standings, _standings(tables)),
        (schema.suspensions, _suspensions(tables)),
        (schema.requests, _requests(tables)),
        (schema.runs, _runs(tables)),
        (schema.run_steps, _steps(tables)),
        (schema.trash_batches, _batches(tables)),
        (schema.trashed, _trashed(tables)),
        (schema.pins, _pins(tables)),
        (schema.archived_snapshots, _archive(tables)),
        (schema.operator_actions, _actions(tables)),
    ):
        _insert(warden, table, rows)


def _insert(warden: Lakewarden, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    batch: list[dict[str, Any]] = []
    with warden.state.write() as connection:
        for row in rows:
            batch.append(row)
            if len(batch) == _BATCH:
                connection.execute(table.insert(), batch)
                batch = []
        if batch:
            connection.execute(table.insert(), batch)


def _name(number: int) -> str:
    return f"lake.db{number % 10}.events_{number}"


def _numbers(number: int) -> dict[str, Any]:
    return Numbers(
        files=1000 + number, bytes=10**9 * number, records=10**7, snapshots=_SNAPSHOTS, manifests=40, small_files=number,
        holds=2,
    ).to_dict()  # fmt: skip


def _seen(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    for each in range(tables):
        yield {"table_name": _name(each), "uuid": f"uuid-{each}", "properties": {}, "seen_at": now}


def _health(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    for each in range(tables):
        yield {
            "table_name": _name(each), "table_uuid": f"uuid-{each}", "at": now, "version": f"v{each}",
            "score": each % 101, "debt": each / 7, "numbers": _numbers(each), "error": "",
            "portrait": _portrait(each).to_dict(),
        }  # fmt: skip


def _portrait(number: int) -> TableDetails:
    """Table details as the collector builds them: a day of commits, some with input snapshots."""
    now = clock.now()
    before = f"{_name(number - 1)}@{1000 * (number - 1)}" if number % 10 else ""
    snapshots = tuple(
        SnapshotLine(
            10**6 * (number + 1) + each, now - timedelta(minutes=12 * each), "append", "flink job orders, every minute",
            added_files=12, added_rows=120_000, added_bytes=10**7, current=each == 0,
            kept="within snapshot_retention_hours=720", expires_at=now + timedelta(days=30),
            inputs=before if each % 4 == 0 else "",
        )
        for each in range(_SNAPSHOTS)
    )  # fmt: skip
    tag = HoldLine("tag", "month-end", "", "", snapshots[-1].id, snapshots[-1].at, None, 10**8)
    pin = HoldLine("pin", f"pin-{number}", "report", "month end", number, now, None, 10**7)
    return TableDetails(
        "iceberg", 2, f"s3://lake/{_name(number)}", f"s3://lake/{_name(number)}/metadata/{number}.json", snapshots[0].id, 0,
        partition_by=("day(ts)",), columns=tuple(ColumnLine(f"column_{each}", "long") for each in range(40)),
        columns_total=40, snapshots=snapshots, snapshots_total=_SNAPSHOTS, refs=(RefLine("main", "branch", snapshots[0].id),),
        refs_total=1, holds=(tag, *(() if number % 5 else (pin,))), holds_total=1 if number % 5 else 2,
        due=tuple(DueLine(job, False, "nothing is due") for job in Job),
        policy=tuple(PolicyLine(key.name, str(key.default), "default") for key in KEYS),
        partitions=tuple(PartitionLine(f"day=2026-01-{each:02}", 9, 5, 0, 10**8, 10**6) for each in range(1, 11)),
        partitions_total=10, debt_reason="small files", painted_at=now,
    )  # fmt: skip


def _painted(
    tables: int, rows: Callable[[str, dict[str, Any]], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    for each in range(tables):
        yield from rows(_name(each), _portrait(each).to_dict())


def _points(tables: int) -> Iterator[dict[str, Any]]:
    """A week with a point per minute for some tables, fewer for the rest: what matters is the number of
    points per table."""
    now = clock.now()
    for each in range(tables):
        for point in range(_WEEK if each < 10 else _POINTS):
            at = now - timedelta(minutes=point)
            yield {"table_name": _name(each), "at": at, "score": point % 101, "numbers": _numbers(point)}


def _warnings(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    for each in range(tables):
        for kind, cleared in (("small-files", None), ("manifests", now)):
            yield {
                "table_name": _name(each), "kind": kind, "text": "more than there should be", "since": now,
                "seen_at": now, "cleared_at": cleared,
            }  # fmt: skip


def _standings(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    for each in range(tables):
        yield {
            "table_name": _name(each), "slot": "seen", "began_at": now - timedelta(days=90), "ended_at": None, "state": "",
            "reason": "", "failures": 0, "retry_at": None, "run_ids": [],
        }  # fmt: skip
        yield {
            "table_name": _name(each), "slot": "pass", "began_at": now - timedelta(minutes=each % 60), "ended_at": now,
            "state": "done", "reason": "", "failures": 0, "retry_at": None, "run_ids": [f"run-{each}-0"],
        }  # fmt: skip


def _suspensions(tables: int) -> Iterator[dict[str, Any]]:
    for each in range(0, tables, 20):
        yield {
            "table_name": _name(each),
            "since": clock.now(),
            "reason": "it failed ten times",
            "by": "worker",
        }


def _requests(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    for each in range(tables):
        yield {
            "id": f"request-{each}", "table_name": _name(each), "state": "pending" if each % 2 else "done",
            "trigger_type": "manual", "trigger_operator": "ana", "trigger_ticket": None, "made_at": now,
            "refreshed_at": now, "claimed_at": None, "term": None, "ended_at": None, "run_ids": [], "reason": "",
        }  # fmt: skip


def _runs(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    plan = {"reason": "small files", "actions": [{"group": each, "input_files": 9} for each in range(20)]}
    for each in range(tables):
        for run in range(_RUNS):
            yield {
                "id": f"run-{each}-{run}", "table_name": _name(each), "job": "compact", "slot": "compact",
                "state": "done", "reason": "", "started_at": now - timedelta(hours=run), "ended_at": now,
                "beat_at": now, "owner_host": "h", "owner_pid": 1, "owner_started": 0.0, "owner_token": "t",
                "trigger_type": "scheduled", "trigger_operator": None, "trigger_ticket": None, "plan": plan,
                "policy": {}, "counters": {"files_compacted": 90, "files_added": 3}, "snapshot_ids": [1],
                "last_step": _STEPS, "lease_term": 1,
            }  # fmt: skip


def _steps(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    for each in range(tables):
        for seq in range(1, _STEPS + 1):
            yield {
                "run_id": f"run-{each}-0",
                "seq": seq,
                "name": "writing",
                "at": now,
                "detail": {"group": seq},
            }


def _batches(tables: int) -> Iterator[dict[str, Any]]:
    now = clock.now()
    for each in range(tables):
        yield {
            "id": f"batch-{each}", "table_name": _name(each), "table_uuid": f"uuid-{each}", "cause": "expire",
            "reason": "30 days old", "state": "active", "made_at": now, "trashed_at": now, "detail": {},
        }  # fmt: skip


def _trashed(tables: int) -> Iterator[dict[str, Any]]:
    for each in range(tables):
        for file in range(100):
            yield {
                "batch_id": f"batch-{each}", "path": f"s3://lake/{each}/{file}.parquet", "kind": "data",
                "size": 10**6, "stamp": None, "state": "trashed" if file % 2 else "erased", "purge_run_id": None,
                "ended_at": None if file % 2 else clock.now(), "note": "",
            }  # fmt: skip


def _pins(tables: int) -> Iterator[dict[str, Any]]:
    for each in range(0, tables, 5):
        yield {
            "id": f"pin-{each}", "table_name": _name(each), "table_uuid": f"uuid-{each}", "snapshot_id": each,
            "holder": "report", "purpose": "month end", "created_at": clock.now(), "expires_at": None, "tag": None,
        }  # fmt: skip


def _archive(tables: int) -> Iterator[dict[str, Any]]:
    """A chain of tables: each was derived from the one before."""
    now = clock.now()
    for each in range(tables):
        for snapshot in range(20):
            made_from = f"{_name(each - 1)}@{1000 * (each - 1)}" if each % 10 and not snapshot else ""
            yield {
                "table_uuid": f"uuid-{each}", "snapshot_id": 1000 * each + snapshot, "table_name": _name(each),
                "parent_id": None, "sequence_number": snapshot, "committed_at": now - timedelta(hours=snapshot),
                "operation": "append", "summary": {"writer.id": "etl", "input.snapshot_ids": made_from},
                "run_id": "r", "archived_at": now,
            }  # fmt: skip


def _actions(tables: int) -> Iterator[dict[str, Any]]:
    for each in range(tables):
        yield {
            "at": clock.now(), "who": "ana", "role": "operate", "action": "request", "target": _name(each),
            "outcome": "done", "detail": {}, "address": "127.0.0.1",
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
