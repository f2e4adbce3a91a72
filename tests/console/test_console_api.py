"""The REST API over a real socket: what it tells, what it does, and that everything done is written down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakewarden import clock
from lakewarden.console import queries
from lakewarden.console.app import create_app
from lakewarden.state import schema
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.runs import ProgressPoint, RunProgress
from tests.support.console import AT, OPERATE, READ, TABLE, Running, begin_run, console, end_run, see

pytestmark = [pytest.mark.services, pytest.mark.main]

API = "/api/v1"
# Their handlers read a table through Spark; tests/console/test_console_live.py calls them.
NEEDS_SPARK = ("/show", "/plan/", "/holds", "/where", "/cost")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with console(tmp_path) as found:
        see(found.warden)
        yield found


@pytest.fixture
def ana(running: Running) -> Iterator[httpx.Client]:
    with running.client(OPERATE) as client:
        yield client


def done(running: Running) -> list[tuple[str, str, str, str]]:
    return [
        (each.who, each.action, each.target, each.outcome)
        for each in queries.operator_actions(running.warden)
    ]


# ------------------------------------------------------------ reading


def test_the_fleet_has_every_known_table(running: Running, ana: httpx.Client) -> None:
    look = TableHealth("lake.db.sick", "u", AT, "1", 17, 3.5, Numbers(files=9))
    HealthRecords(running.warden.state).put([look])
    warned = {
        "table_name": "lake.db.sick",
        "kind": "small-files",
        "text": "too many",
        "since": AT,
        "seen_at": AT,
    }
    with running.warden.state.write() as connection:
        connection.execute(schema.warnings.insert().values(warned))
    see(running.warden, "lake.db.sick")
    running.warden.schedule.suspend("lake.db.sick", "it fails", "ana")
    found = {each["table"]: each for each in ana.get(f"{API}/tables").json()["tables"]}
    assert found["lake.db.sick"]["score"] == 17
    assert found["lake.db.sick"]["numbers"]["files"] == 9
    assert found["lake.db.sick"]["warnings"] == ["small-files"]
    assert found["lake.db.sick"]["suspended"] == "it fails"
    assert found[TABLE]["score"] is None


def test_a_table_tells_its_portrait_and_its_past(running: Running, ana: httpx.Client) -> None:
    now = clock.now()
    look = TableHealth(TABLE, "u", now, "1", 80, 0.5, Numbers(files=3), portrait={"refs": ["main"]})
    HealthRecords(running.warden.state).put([look])
    found = ana.get(f"{API}/tables/{TABLE}").json()
    assert (found["score"], found["portrait"], found["suspended"]) == (80, {"refs": ["main"]}, None)
    points = ana.get(f"{API}/tables/{TABLE}/health").json()["points"]
    assert [each["score"] for each in points] == [80]


def test_of_many_looks_some_are_told_and_the_newest_always(running: Running, ana: httpx.Client) -> None:
    now = clock.now()
    looks = [
        {"table_name": TABLE, "at": now - timedelta(minutes=100 - each), "score": each, "numbers": {}}
        for each in range(1, 101)
    ]
    with running.warden.state.write() as connection:
        connection.execute(schema.health_history.insert(), looks)

    def scores(**params: float) -> list[int]:
        found = ana.get(f"{API}/tables/{TABLE}/health", params=params).json()["points"]
        return [each["score"] for each in found]

    assert scores() == list(range(1, 101))
    assert scores(points=10) == list(range(10, 101, 10))
    assert scores(points=30) == list(range(4, 101, 4))
    assert scores(points=1) == [100]


def test_a_run_tells_how_far_it_is_until_it_ends(running: Running, ana: httpx.Client) -> None:
    run = begin_run(running.warden)
    RunProgress(running.warden.state).put(run, ProgressPoint("compact", 3, 9, "group 1", AT))
    found = ana.get(f"{API}/runs/{run}").json()
    assert found["state"] == "running" and found["progress"]["done_bytes"] == 3
    assert [each["id"] for each in ana.get(f"{API}/runs").json()["runs"]] == [run]
    end_run(running.warden, run)
    assert ana.get(f"{API}/runs/{run}").json()["progress"] is None


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/tables/lake.db.nosuch", 404, "NoSuchTable"),
        ("/tables/other.db.events/trash", 404, "NoSuchTable"),
        ("/tables/events", 400, "UsageError"),
        ("/runs/nosuch", 404, "UsageError"),
        ("/requests/nosuch", 404, "UsageError"),
        ("/runs?limit=0", 400, "UsageError"),
        ("/runs?limit=many", 400, "UsageError"),
        (f"/tables/{TABLE}/audit/who?since=yesterdayish", 400, "UsageError"),
        ("/nothing", 404, "NotFound"),
    ],
)
def test_an_error_has_its_status_and_the_fields_of_json(
    ana: httpx.Client, path: str, status: int, error: str
) -> None:
    answer = ana.get(API + path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "message", "hint", "exit_code", "retry"}
    assert answer.json()["error"] == error


def test_a_database_that_is_away_is_503(running: Running, ana: httpx.Client, tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    for each in tmp_path.glob("state.db*"):
        each.unlink()
    state.mkdir()
    answer = ana.get(f"{API}/leader")
    assert (answer.status_code, answer.json()["error"], answer.json()["retry"]) == (503, "Unreachable", True)
    assert ana.get("/health").status_code == 503


def paths(running: Running) -> list[str]:
    """Every GET of the document, with names filled in."""
    document = create_app(running.warden).openapi()
    names = {"table": TABLE, "job": "compact", "run_id": "run-1", "request_id": "r", "snapshot": "1"}
    found = [path for path, calls in document["paths"].items() if "get" in calls]
    return [re.sub(r"{(\w+)}", lambda each: names[each[1]], path) for path in found]


SECRETS = {
    "catalog": "s3cr3t-of-the-catalog",
    "spark": "s3cr3t-of-spark",
    "url": "s3cr3t-of-an-address",
    "operate": OPERATE,
    "read": READ,
}


def test_no_route_shows_a_secret(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "catalogs": {
            "lake": {
                "type": "hadoop",
                "warehouse": str(tmp_path),
                "s3.secret-access-key": SECRETS["catalog"],
                "token": SECRETS["catalog"],
            }
        },
        "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": SECRETS["spark"]}},
        "health": {"traces_url": f"http://u:{SECRETS['url']}@127.0.0.1:4318/v1/traces"},
        "lineage": {"openlineage_url": f"http://u:{SECRETS['url']}@127.0.0.1:9/api/v1/lineage"},
    }
    with console(tmp_path, config=config) as running, running.client(OPERATE) as ana:
        see(running.warden)
        begin_run(running.warden)
        ana.post(f"{API}/tables/{TABLE}/requests", json={})
        with running.client("wrong-token-0123456789") as wrong:
            wrong.get(f"{API}/tables")
        told = {path: ana.get(path) for path in [*paths(running), f"{API}/docs", f"{API}/openapi.json", "/"]
                if not any(each in path for each in NEEDS_SPARK)}  # fmt: skip
        assert len(told) > 20
        for path, answer in told.items():
            assert answer.status_code < 500, (path, answer.text)
            shown = [name for name, secret in SECRETS.items() if secret in answer.text]
            assert not shown, f"{path} shows {shown}"
            assert "wrong-token" not in answer.text
        assert "***" in told[f"{API}/config"].text


def test_every_get_answers_a_reader(running: Running) -> None:
    begin_run(running.warden)
    with running.client(READ) as bob:
        for path in paths(running):
            if any(each in path for each in NEEDS_SPARK):
                continue
            answer = bob.get(path)
            missing = ("/requests/r", "/metrics", "/downstream/1", "/ingested")
            assert answer.status_code == 200 or (
                path.endswith(missing) and answer.status_code in (400, 404)
            ), (
                path,
                answer.text,
            )


# ------------------------------------------------------------ acting


def test_a_request_is_filed_once_and_written_down(running: Running, ana: httpx.Client) -> None:
    first = ana.post(f"{API}/tables/{TABLE}/requests", json={"ticket": "OPS-1"})
    again = ana.post(f"{API}/tables/{TABLE}/requests")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert again.json()["trigger"]["operator"] == "ana"
    assert [each["id"] for each in ana.get(f"{API}/requests").json()["requests"]] == [first.json()["id"]]
    assert done(running) == [("ana", "request", TABLE, "done")] * 2
    told = ana.get(f"{API}/actions", params={"target": TABLE}).json()["actions"]
    assert told[-1]["detail"] == {"ticket": "OPS-1", "request": first.json()["id"]}
    assert told[0]["address"] == "127.0.0.1"


def test_a_policy_changes_whole_or_not_at_all(running: Running, ana: httpx.Client) -> None:
    path = f"{API}/tables/{TABLE}/policy"
    changed = ana.patch(path, json={"set": {"snapshot_min_retained": 7}})
    assert changed.json()["changed"] == ["snapshot_min_retained"]
    wrong = ana.patch(path, json={"set": {"snapshot_min_retained": 9, "rewrite_target_bytes": "soon"}})
    assert (wrong.status_code, wrong.json()["error"]) == (400, "PolicyError")
    found = {each["key"]: each for each in ana.get(path).json()["keys"]}
    assert found["snapshot_min_retained"]["value"] == 7
    assert ana.patch(path, json={}).status_code == 400
    assert ana.patch(path, json={"unset": ["snapshot_min_retained"]}).status_code == 200
    outcomes = [(action, outcome) for _, action, _, outcome in done(running)]
    assert outcomes == [("policy", "done"), ("policy", "refused"), ("policy", "refused"), ("policy", "done")]


def test_suspend_and_resume(running: Running, ana: httpx.Client) -> None:
    assert ana.post(f"{API}/tables/{TABLE}/suspend", json={"reason": " "}).status_code == 400
    assert ana.post(f"{API}/tables/{TABLE}/suspend", json={"reason": "a bad disk"}).json()["by"] == "ana"
    assert [each["reason"] for each in ana.get(f"{API}/suspended").json()["suspended"]] == ["a bad disk"]
    catalog, rest = TABLE.split(".", 1)
    quoted = ana.post(f"{API}/tables/`{catalog}`.{rest}/resume").json()
    assert quoted == {"table": TABLE, "was_suspended": True}, "however the name is written"
    assert ana.post(f"{API}/tables/{TABLE}/resume").json()["was_suspended"] is False


def test_cancel_asks_the_driver_and_knows_what_is_over(running: Running, ana: httpx.Client) -> None:
    run = begin_run(running.warden)
    assert ana.post(f"{API}/runs/{run}/cancel").status_code == 202
    cancel = RunProgress(running.warden.state).cancelled(run)
    assert cancel is not None and cancel.by == "ana"
    end_run(running.warden, run)
    assert ana.post(f"{API}/runs/{run}/cancel").status_code == 409
    assert ana.post(f"{API}/runs/nosuch/cancel").status_code == 404


def test_what_is_not_there_is_neither_unpinned_nor_restored(running: Running, ana: httpx.Client) -> None:
    assert ana.request("DELETE", f"{API}/pins/nosuch").status_code == 404
    assert ana.post(f"{API}/tables/{TABLE}/restore", json={}).status_code == 400
    answer = ana.post(f"{API}/tables/{TABLE}/restore", json={"path": "/nosuch"})
    assert answer.status_code in (400, 403), answer.text
    assert {each[3] for each in done(running)} == {"refused"}


def test_a_field_nobody_knows_is_refused(running: Running, ana: httpx.Client) -> None:
    answer = ana.post(f"{API}/tables/{TABLE}/requests", json={"tiket": "OPS-1"})
    assert (answer.status_code, "tiket" in answer.json()["message"]) == (400, True)
    assert ana.get(f"{API}/requests").json() == {"requests": []}


# ------------------------------------------------------------ described


def test_the_document_names_every_call_and_the_page_shows_them(running: Running, ana: httpx.Client) -> None:
    document = ana.get(f"{API}/openapi.json").json()
    assert document["paths"][f"{API}/tables/{{table}}/policy"]["patch"]["security"] == [{"token": []}]
    page = ana.get(f"{API}/docs").text
    assert all(path in page for path in document["paths"])
    assert not re.search(r"(src|href)=\"(https?:)?//", page), "something is loaded from elsewhere"


def test_probes(tmp_path: Path) -> None:
    with console(tmp_path, metrics=lambda: b"lakewarden_up 1\n") as running, running.client() as nobody:
        assert nobody.get("/health").json() == {"status": "ok", "leader": None}
        answer = nobody.get("/metrics")
        assert answer.text == "lakewarden_up 1\n"
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_what_fails_inside_is_told_without_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> bytes:
        secret = "s3cr3t"
        raise ValueError(f"postgresql://u:{secret}@host is away")

    with console(tmp_path, metrics=broken) as running, running.client() as nobody:
        answer = nobody.get("/metrics")
        assert (answer.status_code, answer.json()["error"]) == (500, "InternalError")
        assert "ValueError" in caplog.text
        assert "s3cr3t" not in answer.text + caplog.text
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert nobody.get("/health").status_code == 200
