"""/metrics against the real Prometheus: its linter, a server that scrapes an endpoint, and alerts that fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event

from lakewarden import Lakewarden, clock
from lakewarden.config.schema import PolicyConfig, ScheduleConfig
from lakewarden.config.types import NEVER
from lakewarden.health.metrics import METRICS, Exposition, StateMetrics
from lakewarden.model.run import Job, Owner, RunState, Trigger
from lakewarden.state.audit_log import Rejections
from lakewarden.state.fleet import BY_WORKER, Fleet
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.locks import Leases
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.requests import Requests
from lakewarden.state.runs import Journal, current_owner
from lakewarden.state.schedule import GONE, PASS, SEEN, Suspension, TableSchedule, TableSchedules
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import Tally
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"
EVENTS, ORDERS = "lake.db.events", 'lake.db.or"de\\rs'
NOW = datetime.now(UTC)

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="needs prometheus and promtool: `sh scripts/prometheus.sh` installs them where it may",
)


pytestmark = pytest.mark.services


@pytest.fixture
def lw(url: str, tmp_path: Path) -> Iterator[Lakewarden]:
    settings = {
        "state": {"url": url},
        "budgets": {"read_mb_per_s": 50},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": str(tmp_path)}},
    }
    with Lakewarden(settings, environ={}) as made:
        yield made


def ran(lw: Lakewarden, run_id: str, job: Job, state: RunState, at: datetime = NOW, **counters: Any) -> None:
    journal = Journal(lw.state)
    journal.start(
        run_id=run_id, table=EVENTS, job=job, owner=current_owner(), trigger=Trigger(), plan={}, policy={},
        now=at - timedelta(seconds=30),
    )  # fmt: skip
    journal.finish(run_id, state, "", counters, (), at)


def in_trouble(lw: Lakewarden) -> None:
    """Two tables, one of them with everything that can be counted."""
    records = HealthRecords(lw.state)
    numbers = Numbers(
        files=12, delete_files=3, bytes=10**9, records=5000, snapshots=7, manifests=2, delete_ratio=0.25
    )
    records.put(
        [
            TableHealth(EVENTS, "u", NOW, "v", 80, 1.5, numbers),
            TableHealth(ORDERS, "w", NOW, "", 0, 0.0, Numbers(), error="it is gone"),
        ]
    )
    records.warn([(EVENTS, "small-files", "many")], NOW)
    ran(lw, "r1", Job.COMPACT, RunState.DONE, files_compacted=40, bytes_before=4000, read_mb_per_s=12.5)
    ran(lw, "r2", Job.EXPIRE, RunState.DONE, snapshots_expired=9)
    ran(lw, "r3", Job.COMPACT, RunState.FAILED)
    Rejections(lw.state).add(EVENTS, "gateway", "no writer.id", NOW, 4)
    Rejections(lw.state).add(EVENTS, "job", "no writer.id", NOW, 1)
    TableSchedules(lw.state).suspend(Suspension(ORDERS, NOW, "ten failures", BY_WORKER))
    assert Leases(lw.state).take(Owner("here", 1, 1.0, "t"), timedelta(seconds=60)) is not None


def values(lw: Lakewarden) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text, _ = Exposition(lw.state, lw.config, 0).text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.mark.main
def test_the_counters_and_gauges_say_what_the_database_has(lw: Lakewarden) -> None:
    in_trouble(lw)
    found = values(lw)
    assert found[of("files_compacted_total", table=EVENTS)] == 40
    assert found[of("snapshots_expired_total", table=EVENTS)] == 9
    assert found[of("orphans_cleaned_total", table=EVENTS)] == 0
    assert found[of("lineage_validation_failures_total", table=EVENTS)] == 5
    assert found[of("lakewarden_lake_files", table=EVENTS)] == 12
    assert found[of("lakewarden_lake_delete_ratio", table=EVENTS)] == 0.25
    assert found[of("lakewarden_lake_warnings", table=EVENTS, kind="small-files")] == 1
    assert found[of("lakewarden_lake_readable", table=ORDERS)] == 0
    assert found[of("lakewarden_lake_suspended", table=ORDERS, by="worker")] == 1
    assert found[of("lakewarden_run_duration_seconds_count", run_job="compact", state="failed")] == 1
    assert (
        found[of("lakewarden_run_duration_seconds_bucket", run_job="compact", state="done", le="60.0")] == 1
    )
    assert (
        found[of("lakewarden_run_duration_seconds_bucket", run_job="compact", state="done", le="15.0")] == 0
    )
    assert (
        found[of("lakewarden_last_success_timestamp_seconds", table=EVENTS, run_job="compact")]
        == NOW.timestamp()
    )
    assert found[of("lakewarden_budget_limit", budget="read_mb_per_s")] == 50
    assert found[of("lakewarden_budget_used", budget="read_mb_per_s")] == 12.5
    assert found[of("lakewarden_leader_live")] == 1 and found[of("lakewarden_leader_term")] == 1
    assert found[of("lakewarden_tables_in_debt")] == 1


def test_a_scheduled_job_with_nothing_to_do_has_ended_well_and_a_table_that_is_gone_tells_nothing(
    lw: Lakewarden,
) -> None:
    """It is in no journal. The alert about expiry that has stopped would go off for every table that rests."""
    in_trouble(lw)
    kept, name = StateMetrics(lw.state, lw.config), "lakewarden_last_success_timestamp_seconds"

    def told() -> dict[tuple[str, str], float]:
        samples = [each for family in kept.collect() for each in family.samples if each.name == name]
        return {(each.labels["table"], each.labels["run_job"]): each.value for each in samples}

    assert told()[EVENTS, "expire"] == NOW.timestamp()
    for days in (4, 8):
        later = NOW + timedelta(days=days)
        rested = TableSchedule(EVENTS, "expire", later, later, "nothing-to-do")
        failed = TableSchedule(EVENTS, "compact", later, later, "failed")
        TableSchedules(lw.state).put_all([rested, failed, TableSchedule(EVENTS, PASS, later, later, "done")])
        assert told()[EVENTS, "expire"] == later.timestamp()
        assert told()[EVENTS, "compact"] == NOW.timestamp()
    TableSchedules(lw.state).put(TableSchedule(EVENTS, SEEN, NOW, NOW, GONE))
    assert not told()


def test_counters_go_on_where_they_were_after_a_restart_and_count_each_run_once(lw: Lakewarden) -> None:
    in_trouble(lw)
    kept = StateMetrics(lw.state, lw.config)

    def compacted(metrics: StateMetrics) -> float:
        family = next(each for each in metrics.collect() if each.name == "files_compacted")
        return {sample.labels["table"]: sample.value for sample in family.samples}[EVENTS]

    assert compacted(kept) == compacted(kept) == 40
    ran(lw, "r4", Job.COMPACT, RunState.UNKNOWN, NOW + timedelta(seconds=1), files_compacted=2)
    assert compacted(kept) == 42
    Journal(lw.state).settle("r4", RunState.DONE, "", (), NOW + timedelta(seconds=2))
    ran(lw, "r5", Job.COMPACT, RunState.DONE, NOW - timedelta(minutes=5), files_compacted=3)  # told late
    assert compacted(kept) == 45
    assert compacted(StateMetrics(lw.state, lw.config)) == 45


def test_orphans_are_counted_from_their_receipts(lw: Lakewarden) -> None:
    fleet = Fleet(lw.state)
    files = TrashedFiles(lw.state)
    table = pa.table({"path": ["/a", "/b"], "kind": ["data"] * 2, "size": [1, 1], "stamp": ["", ""]})
    owner = current_owner()
    for batch, cause in (("s", "sweep"), ("e", "expire")):
        files.trash(batch, EVENTS, "u", cause, "why", table, {}, NOW)
        files.enforce(batch, NOW)
        [waits] = fleet.waiting()[EVENTS]
        assert (waits.batch.cause, waits.live) == (cause, Tally(2, 2))
        journal = Journal(lw.state)
        run = f"purge-{batch}"
        journal.start(run_id=run, table=EVENTS, job=Job.PURGE, owner=owner, trigger=Trigger(), plan={}, policy={}, now=NOW)  # fmt: skip
        ids = [row for page in files.due("u", {cause: timedelta()}, NOW + timedelta(days=1)) for row in page["id"].to_pylist()]  # fmt: skip
        begun = files.begin_erasing(ids, run, owner, NOW)
        files.finish_erasing(run, NOW, erased=begun)
        journal.finish(run, RunState.DONE, "", {}, (), NOW)
    assert values(lw)[of("orphans_cleaned_total", table=EVENTS)] == 2
    assert fleet.waiting() == {}


@contextmanager
def statements(lw: Lakewarden) -> Iterator[list[str]]:
    """What the database is asked meanwhile."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(" ".join(statement.split()))

    event.listen(lw.state.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(lw.state.engine, "before_cursor_execute", note)


def test_receipts_that_stay_for_ever_are_counted_once(lw: Lakewarden) -> None:
    """They are millions in the end, and every answer counted them all."""
    files, kept = TrashedFiles(lw.state), StateMetrics(lw.state, lw.config)

    def cleaned() -> dict[str, float]:
        family = next(each for each in kept.collect() if each.name == "orphans_cleaned")
        return {sample.labels["table"]: sample.value for sample in family.samples}

    def purged(number: int, batch: str) -> None:
        """One file of the sweep, in a run of its own."""
        run, owner, at = f"purge-{number}", current_owner(), NOW + timedelta(seconds=number)
        Journal(lw.state).start(run_id=run, table=EVENTS, job=Job.PURGE, owner=owner, trigger=Trigger(), plan={}, policy={}, now=at)  # fmt: skip
        due = files.due("u", {"sweep": timedelta()}, NOW + timedelta(days=1))
        ids = [row for page in due for row in page["id"].to_pylist()][:1]
        files.finish_erasing(run, at, erased=files.begin_erasing(ids, run, owner, at))
        Journal(lw.state).finish(run, RunState.DONE, "", {}, (), at)

    for batch, paths in (("one", ["/a", "/b"]), ("two", ["/c"])):
        table = pa.table({"path": paths, "kind": ["data"] * len(paths), "size": [1] * len(paths), "stamp": [""] * len(paths)})  # fmt: skip
        files.trash(batch, EVENTS, "u", "sweep", "why", table, {}, NOW)
        files.enforce(batch, NOW)
    assert cleaned().get(EVENTS, 0) == 0
    for number in (1, 2, 3):
        purged(number, "one")
        assert cleaned()[EVENTS] == number
        with statements(lw) as asked:
            assert cleaned()[EVENTS] == number
        assert not [each for each in asked if "FROM trash" in each]
    assert values(lw)[of("orphans_cleaned_total", table=EVENTS)] == 3


def test_a_journal_of_years_is_added_up_by_the_database_to_the_same_numbers(lw: Lakewarden) -> None:
    """A process that kept up with every run, and one that starts now and reads none of the old ones."""

    def told(metrics: StateMetrics) -> dict[object, float]:
        return {
            (each.name, *sorted(each.labels.items())): each.value
            for family in metrics.collect()
            for each in family.samples
            if "_seconds_left" not in each.name and "_look_" not in each.name
        }

    in_trouble(lw)
    kept = StateMetrics(lw.state, lw.config)
    jobs, endings = (Job.COMPACT, Job.EXPIRE, Job.COMPACT_HISTORY), (RunState.DONE, RunState.FAILED)
    for number in range(40):
        at = NOW + timedelta(hours=number, microseconds=number * 7)
        began = at - timedelta(seconds=(1, 60, 60.000001, 0.1, 20000)[number % 5])
        counters = {"files_compacted": number, "bytes_before": 2**33, "read_mb_per_s": number / 2}
        job, ending = jobs[number % 3], endings[number % 7 == 0]
        run, owner = f"old-{number}", current_owner()
        Journal(lw.state).start(run_id=run, table=EVENTS, job=job, owner=owner, trigger=Trigger(), plan={}, policy={}, now=began)  # fmt: skip
        Journal(lw.state).finish(run, ending, "", counters if job is Job.COMPACT else {}, (), at)
        if number == 3:
            ran(lw, "open", Job.COMPACT, RunState.UNKNOWN, at + timedelta(seconds=1), files_compacted=1000)
        told(kept)
    late = StateMetrics(lw.state, lw.config)
    with statements(lw) as asked:
        assert told(late) == told(kept)
    rows = [each for each in asked if each.startswith("SELECT runs.id, runs.table_name")]
    assert rows and all("runs.ended_at >=" in each for each in rows)
    # The outcome of that one becomes known a day later: what it did was counted already, by all of them.
    Journal(lw.state).settle("open", RunState.DONE, "", (), NOW + timedelta(hours=40))
    assert told(late) == told(kept)
    compacted = ("files_compacted_total", ("table", EVENTS))
    anew = told(StateMetrics(lw.state, lw.config))
    assert told(late)[compacted] == anew[compacted] == 1040 + sum(range(0, 40, 3))


def test_a_table_that_is_gone_is_told_no_longer_and_one_that_stays_keeps_its_numbers(lw: Lakewarden) -> None:
    """Tables that come and go for years would be series for ever."""
    in_trouble(lw)
    dropped, by_hand, long_ago = "lake.db.dropped", "lake.db.by_hand", "lake.db.long_ago"
    for number, (table, days) in enumerate({dropped: 1, by_hand: 1, long_ago: 60}.items()):
        at = clock.now() - timedelta(days=days)
        journal = Journal(lw.state)
        journal.start(run_id=f"t{number}", table=table, job=Job.COMPACT, owner=current_owner(), trigger=Trigger(), plan={}, policy={}, now=at)  # fmt: skip
        journal.finish(f"t{number}", RunState.DONE, "", {"files_compacted": 7}, (), at)
    TableSchedules(lw.state).put(TableSchedule(dropped, SEEN, NOW - timedelta(days=9)))

    def compacted() -> dict[str, float]:
        found = values(lw)
        return {
            dict(labels)["table"]: value
            for (name, labels), value in found.items()
            if name == "files_compacted_total"
        }

    before = compacted()
    assert before == {EVENTS: 40, ORDERS: 0, dropped: 7, by_hand: 7}
    Rejections(lw.state).add(dropped, "gateway", "no writer.id", NOW, 4)
    TableSchedules(lw.state).put(TableSchedule(dropped, SEEN, NOW - timedelta(days=9), NOW, GONE))
    assert compacted() == {table: value for table, value in before.items() if table != dropped}
    assert of("lineage_validation_failures_total", table=dropped) not in values(lw)
    TableSchedules(lw.state).put(TableSchedule(dropped, SEEN, NOW))  # made anew under the same name
    assert compacted() == before


def test_suspensions_say_whose_they_are_and_those_of_dropped_tables_are_over(lw: Lakewarden) -> None:
    """A table that an operator set aside, or that is gone, is nothing to be woken for."""
    in_trouble(lw)
    standings, dropped = TableSchedules(lw.state), "lake.db.dropped"
    standings.suspend(Suspension(EVENTS, NOW, "backfill until Friday", "ana"))
    standings.suspend(Suspension(dropped, NOW, "ten failures", BY_WORKER))
    standings.put(TableSchedule(dropped, SEEN, NOW, NOW, GONE))
    found = values(lw)
    told = {labels for name, labels in found if name == "lakewarden_lake_suspended"}
    assert told == {
        frozenset({("table", ORDERS), ("by", "worker")}),
        frozenset({("table", EVENTS), ("by", "operator")}),
    }
    assert found[of("lakewarden_tables_suspended")] == 2


def test_only_jobs_that_are_asked_for_can_be_late_and_one_that_never_ended_well_is(lw: Lakewarden) -> None:
    in_trouble(lw)
    name, never, since = "lakewarden_last_success_timestamp_seconds", "lake.db.never", NOW - timedelta(days=5)
    TableSchedules(lw.state).put(TableSchedule(never, SEEN, since))
    kept = StateMetrics(lw.state, lw.config)

    def told(metrics: StateMetrics = kept) -> dict[tuple[str, str], float]:
        samples = [each for family in metrics.collect() for each in family.samples if each.name == name]
        return {(each.labels["table"], each.labels["run_job"]): each.value for each in samples}

    assert told()[EVENTS, "expire"] == NOW.timestamp()
    assert told()[never, "expire"] == since.timestamp()
    assert (never, "handoff") not in told()
    for key in ("snapshot_expiry_enabled", "maintenance_enabled"):
        StoredPolicies(lw.state).set(EVENTS, {key: False}, "ana", NOW)
        assert (EVENTS, "expire") not in told()
        assert ((EVENTS, "compact") in told()) == (key == "snapshot_expiry_enabled")
        StoredPolicies(lw.state).unset(EVENTS, [key])
        assert (EVENTS, "expire") in told()
    policy = PolicyConfig(tables=[{"pattern": "*.never", "snapshot_expiry_enabled": False}])
    by_pattern = told(StateMetrics(lw.state, lw.config.model_copy(update={"policy": policy})))
    assert (never, "compact") in by_pattern and (never, "expire") not in by_pattern
    assert (EVENTS, "expire") in by_pattern
    nothing = {name.replace("-", "_"): NEVER for name in ScheduleConfig().times}
    compacting = ScheduleConfig(mode="cron", **{**nothing, "compact": "0 3 * * *"})
    cron = lw.config.model_copy(update={"schedule": compacting})
    assert {job for table, job in told(StateMetrics(lw.state, cron)) if table == never} == {"compact"}


def test_the_age_of_the_oldest_request_is_told(lw: Lakewarden) -> None:
    """How many wait says nothing: where requests never end, there is always one."""
    age = of("lakewarden_requests_oldest_pending_seconds")
    assert values(lw)[age] == 0
    requests, now = Requests(lw.state), clock.now()
    old = requests.file(EVENTS, Trigger(), now - timedelta(hours=2))
    requests.file(ORDERS, Trigger(), now - timedelta(minutes=1))
    assert 7200 <= values(lw)[age] < 7300
    assert requests.claim(old.id, 1, now)
    assert 60 <= values(lw)[age] < 160
    assert values(lw)[of("lakewarden_requests_pending")] == 1


def test_the_newest_look_is_told_beside_the_oldest(lw: Lakewarden) -> None:
    """A busy table that takes long to look at is left out now and then: only when none is looked at, nobody looks."""
    now = clock.now()
    looks = [TableHealth(table, "u", now - timedelta(hours=hours), "v", 80, 0.0, Numbers()) for table, hours in ((EVENTS, 2), (ORDERS, 1))]  # fmt: skip
    HealthRecords(lw.state).put(looks)
    found = values(lw)
    assert 3600 <= found[of("lakewarden_health_newest_look_seconds")] < 3700
    assert 7200 <= found[of("lakewarden_health_oldest_look_seconds")] < 7300


@pytest.mark.main
def test_every_metric_is_told_once_and_documented(lw: Lakewarden) -> None:
    in_trouble(lw)
    text, kind = Exposition(lw.state, lw.config).text()
    told = re.findall(r"^# TYPE (\S+) (\S+)$", text.decode(), re.MULTILINE)
    assert told == [(each.name, each.kind) for each in METRICS]
    assert kind.startswith("text/plain")
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \|", page, re.MULTILINE)
    assert rows == told


def test_alerts_and_dashboard_name_only_metrics_that_exist() -> None:
    known = {each.name for each in METRICS} | {
        f"{each.name}_{part}"
        for each in METRICS
        if each.kind == "histogram"
        for part in ("count", "sum", "bucket")
    }
    named = re.compile(r"\b(?:lakewarden|files|snapshots|orphans|lineage)_[a-z_]+\b")
    for path in (RULES / "alerts.yml", RULES / "alerts_test.yml", ROOT / "deploy/grafana/lakewarden.json"):
        found = set(named.findall(path.read_text("utf-8")))
        assert found and found <= known, f"{path.name} names {sorted(found - known)}"
    board = json.loads((ROOT / "deploy/grafana/lakewarden.json").read_text("utf-8"))
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"]) > 15


def test_whatever_is_asked_of_several_processes_is_counted_once() -> None:
    """Each tells of the whole database: before anything is added up, one is made of what they say."""
    board = json.loads((ROOT / "deploy/grafana/lakewarden.json").read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((RULES / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    asked += [each["expr"] for each in rules if each["alert"] != "LakewardenDown"]
    questions = re.findall(r"\| `(.*)` \|$", (ROOT / "docs/metrics.md").read_text("utf-8"), re.MULTILINE)
    asked += [each for each in questions if re.search(r"\b(sum|topk|count)\(", each)]
    assert len(asked) > 40
    metric = r"(?:lakewarden|files|snapshots|orphans|lineage)_[a-z_]+"
    once = rf"max (?:without \(instance, pod\)|by \(table\)) \((?:(?:increase|rate)\()?{metric}\b"
    for each in asked:
        assert len(re.findall(once, each)) == len(re.findall(rf"(?<!\w){metric}\b", each)) > 0, each


def test_two_that_ask_at_once_read_the_database_once(lw: Lakewarden) -> None:
    in_trouble(lw)
    served = Exposition(lw.state, lw.config, seconds=60)
    first, _ = served.text()
    ran(lw, "later", Job.COMPACT, RunState.DONE, files_compacted=1)
    assert served.text()[0] == first
    assert Exposition(lw.state, lw.config, seconds=60).text()[0] != first
    assert lw.health.metrics()[0].startswith(b"# HELP files_compacted_total")


# ------------------------------------------------------------ the real Prometheus


@needs_prometheus
def test_promtool_finds_nothing_to_say(lw: Lakewarden) -> None:
    in_trouble(lw)
    text, _ = lw.health.metrics()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@needs_prometheus
@pytest.mark.parametrize(
    "command",
    [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]],
    ids=" ".join,
)  # fmt: skip
def test_promtool_takes_rules_and_config(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], cwd=RULES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (RULES / "alerts.yml").read_text("utf-8")))
    tested = set(re.findall(r"alertname: (\w+)", (RULES / "alerts_test.yml").read_text("utf-8")))
    assert alerts == tested


@contextmanager
def endpoint(lw: Lakewarden) -> Iterator[str]:
    """What the console mounts: a plain callable behind a real HTTP server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, kind = lw.health.metrics()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[str]:
    """A real server with the shipped configuration, pointed at these endpoints and hurried: nobody waits for hours here."""
    folder.mkdir()
    shipped = (RULES / "prometheus.yml").read_text("utf-8")
    config = shipped.replace('"127.0.0.1:8480"', ", ".join(f'"{each}"' for each in targets)).replace(
        "30s", "1s"
    )
    (folder / "prometheus.yml").write_text(config)
    rules = re.sub(r"for: \w+", "for: 1s", (RULES / "alerts.yml").read_text("utf-8"))
    (folder / "alerts.yml").write_text(rules)
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield f"http://{address}/api/v1"
        finally:
            process.terminate()
            process.wait(30)


def eventually(ask: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = ask()
        except OSError:
            found = None
        if found or time.monotonic() > deadline:
            return found
        threading.Event().wait(0.2)


@needs_prometheus
def test_a_real_prometheus_scrapes_two_of_one_database_and_its_alerts_fire_once(
    lw: Lakewarden, tmp_path: Path
) -> None:
    in_trouble(lw)
    never = "lake.db.never"
    TableSchedules(lw.state).put(TableSchedule(never, SEEN, NOW - timedelta(days=5)))
    TableSchedules(lw.state).suspend(Suspension(EVENTS, NOW, "backfill until Friday", "ana"))
    with (
        endpoint(lw) as one,
        endpoint(lw) as two,
        prometheus(tmp_path / "prometheus", one, two) as api,
    ):

        def get(path: str) -> Any:
            with urllib.request.urlopen(f"{api}/{path}", timeout=5) as answer:
                return json.load(answer)["data"]

        def result(query: str) -> list[str]:
            found = get(f"query?query={urllib.parse.quote(query)}")["result"]
            return [each["value"][1] for each in found]

        compacted = f'files_compacted_total{{table="{EVENTS}"}}'
        assert eventually(lambda: result(compacted) == ["40", "40"])
        for number in range(4):  # both of them see none before, and four more from now on
            ran(lw, f"later-{number}", Job.COMPACT, RunState.FAILED, datetime.now(UTC))

        def firing() -> list[tuple[str, str]]:
            alerts = [each["labels"] for each in get("alerts")["alerts"] if each["state"] == "firing"]
            return sorted(
                (each["alertname"], each.get("table") or each.get("run_job", "")) for each in alerts
            )

        wanted = sorted(
            [
                ("LakewardenTableSuspended", ORDERS),
                ("LakewardenTableUnreadable", ORDERS),
                ("LakewardenWarning", EVENTS),
                ("LakewardenExpiryStopped", never),
                ("LakewardenRunsFail", "compact"),
            ]
        )
        eventually(lambda: wanted == firing())
        assert firing() == wanted
        [failed] = result(_expression("LakewardenRunsFail"))
        assert 3 < float(failed) < 7.5  # both together would be eight


def _expression(alert: str) -> str:
    found = re.search(rf"alert: {alert}\n +expr: (.+)", (RULES / "alerts.yml").read_text("utf-8"))
    assert found is not None
    return found[1]
