"""Quiet windows of the week, and back-off against a server that speaks Prometheus' format."""

from __future__ import annotations

import base64
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.config.schema import BudgetsConfig
from lakewarden.jobs.quiet_windows import BackOff, NoAnswer, Paused, Windows, highest
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Trigger

# 2026-11-16 is a Monday.
WEEK = {name: 16 + number for number, name in enumerate(("mon", "tue", "wed", "thu", "fri", "sat", "sun"))}


def at(text: str) -> datetime:
    """`fri 21:59` of that week."""
    day, clock = text.split()
    hours, minutes = map(int, clock.split(":"))
    return datetime(2026, 11, WEEK[day], hours, minutes, tzinfo=UTC)


# ------------------------------------------------------------ windows


@pytest.mark.parametrize(
    ("window", "closed", "open_"),
    [
        ("09:00-17:00", ["mon 09:00", "sun 16:59"], ["mon 08:59", "mon 17:00", "sat 00:00"]),
        ("22:00-06:00", ["mon 22:00", "tue 00:00", "tue 05:59", "mon 03:00"], ["mon 21:59", "tue 06:00"]),
        ("Mon-Fri 09:00-17:00", ["mon 09:00", "fri 16:59"], ["sat 12:00", "sun 12:00", "fri 17:00"]),
        ("Fri 22:00-06:00", ["fri 22:00", "sat 05:59"], ["fri 05:00", "sat 22:00", "sat 06:00"]),
        ("Sun 22:00-06:00", ["sun 23:00", "mon 05:59"], ["mon 06:00", "sun 05:00"]),
        ("sat-MON 10:00–11:00", ["sat 10:00", "sun 10:30", "mon 10:59"], ["tue 10:00", "fri 10:00"]),
        ("Tue 00:00-24:00", ["tue 00:00", "tue 23:59"], ["mon 23:59", "wed 00:00"]),
        ("Wed 20:00 - 24:00", ["wed 20:00", "wed 23:59"], ["thu 00:00", "wed 00:00"]),
        ("Thu 18:00-00:00", ["thu 18:00", "thu 23:59"], ["fri 00:00", "thu 17:59"]),
    ],
)
def test_windows(window: str, closed: list[str], open_: list[str]) -> None:
    windows = Windows.parse([window])
    assert [each for each in closed if not windows.closed(at(each))] == []
    assert [each for each in open_ if windows.closed(at(each))] == []


def paused(text: str) -> Reason:
    return Reason(ReasonKind.QUIET_WINDOW, text)


def test_the_reason_names_the_window_and_the_setting() -> None:
    texts = ["22:00-06:00", "Mon-Fri  09:00-17:00"]
    windows = Windows.parse(texts)
    inside = "paused Mon–Fri 09:00–17:00 UTC ([budgets] pause_compaction)"
    assert windows.closed(at("mon 10:00")) == paused(inside)
    assert windows.closed(at("mon 23:00")) == paused("paused 22:00–06:00 UTC ([budgets] pause_compaction)")
    expiry = Windows.parse(texts, "pause_expiry")
    assert expiry.closed(at("mon 23:00")) == paused("paused 22:00–06:00 UTC ([budgets] pause_expiry)")
    assert windows.closed(at("sat 10:00")) is None
    windows.check(at("sat 10:00"))
    with pytest.raises(Paused, match="paused 22:00–06:00 UTC"):
        windows.check(at("mon 23:00"))


def test_when_it_opens_again() -> None:
    windows = Windows.parse(["09:00-17:00", "Fri 16:00-20:00", "Fri 20:00-02:00"])
    assert windows.opens_at(at("mon 08:00")) == at("mon 08:00")
    assert windows.opens_at(at("mon 09:30")) == at("mon 17:00")
    assert windows.opens_at(at("fri 09:30")) == at("sat 02:00")
    assert Windows().opens_at(at("mon 08:00")) == at("mon 08:00")
    assert Windows.parse(["00:00-24:00"]).opens_at(at("mon 08:00")) is None
    assert Windows.parse(["Mon-Sat 00:00-24:00"]).opens_at(at("mon 00:00")) == at("sun 00:00")
    assert Windows.parse(["Mon-Sat 00:00-24:00", "Sun 00:00-23:59"]).opens_at(at("mon 00:00")) == at(
        "sun 23:59"
    )


moments = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))
times = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59))
days = st.sampled_from(["", "Mon ", "Tue-Thu ", "Sat-Mon ", "Sun "])
texts = st.tuples(days, times, times).filter(lambda t: t[1] != t[2]).map(lambda t: f"{t[0]}{t[1]}-{t[2]}")


@given(st.lists(texts, max_size=4), moments)
def test_it_is_closed_until_it_opens_and_open_then(windows: list[str], now: datetime) -> None:
    found = Windows.parse(windows)
    opens = found.opens_at(now)
    assert (opens == now) == (found.closed(now) is None)
    if opens is None:
        return
    assert not found.closed(opens)
    if opens > now:
        assert found.closed(opens - timedelta(microseconds=1))


@given(texts, moments)
def test_a_window_and_its_opposite_cover_the_day(window: str, now: datetime) -> None:
    start, end = window.split()[-1].split("-")
    inside, outside = Windows.parse([f"{start}-{end}"]), Windows.parse([f"{end}-{start}"])
    assert bool(inside.closed(now)) != bool(outside.closed(now))


@pytest.mark.parametrize(
    "text", ["", "9:00-17:00", "09:00", "24:00-06:00", "09:00-09:00", "Mo 09:00-10:00", "x"]
)
def test_other_texts_are_no_windows(text: str) -> None:
    with pytest.raises(ValueError, match="read window"):
        Windows.parse([text])


def test_windows_bind_scheduled_runs_only() -> None:
    budgets = BudgetsConfig(pause_compaction=("00:00-24:00",))
    now = at("mon 12:00")
    assert Windows.for_run(budgets, Trigger("schedule")).closed(now)
    assert not Windows.for_run(budgets, Trigger("manual", "ann")).closed(now)
    assert not Windows.for_run(budgets, Trigger("incident-response", "ann", "T-1")).closed(now)


# ------------------------------------------------------------ Prometheus' format


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {"pod": str(n)}, "value": [1_700_000_000.1, each]} for n, each in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def scalar(value: str) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "scalar", "result": [1_700_000_000.1, value]}}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (vector("0.25"), 0.25),
        (vector("1", "7.5", "3"), 7.5),
        (vector("NaN", "2"), 2.0),
        (vector("+Inf", "2"), float("inf")),
        (vector("-3"), -3.0),
        (scalar("1e-3"), 0.001),
    ],
)
def test_values(body: object, value: float) -> None:
    assert highest(body) == value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (vector(), "has no value"),
        (vector("NaN"), "has no value"),
        (scalar("NaN"), "has no value"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "a matrix, and a vector or"),
        ({"status": "success", "data": {"resultType": "string", "result": [1, "a"]}}, "a string"),
        (
            {"status": "error", "errorType": "bad_data", "error": "parse error"},
            "refuses the query: parse error",
        ),
        ({"data": 1}, "another format"),
        ([], "another format"),
        (None, "another format"),
        ({"status": "success", "data": {"resultType": "vector", "result": ["x"]}}, "has no value"),
    ],
)
def test_what_is_no_value(body: object, words: str) -> None:
    with pytest.raises(NoAnswer, match=words):
        highest(body)


# ------------------------------------------------------------ against a server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the machine the tests run on has no business here."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Prometheus(ThreadingHTTPServer):
    """Answers with `answers` in turn, and with the last one from then on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[tuple[str, str]] = []
        self.asked_once = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def will_answer(self, *bodies: object, code: int = 200) -> None:
        self.answers = [(code, json.dumps(each).encode()) for each in bodies]


class Handler(BaseHTTPRequestHandler):
    server: Prometheus

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        self.server.asked_once.set()
        code, body = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    server = Prometheus()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


QUERY = 'histogram_quantile(0.95, rate(latency_bucket{job="trino"}[5m]))'


def backoff(url: str, poll: float = 0.02, max_wait: float = 10.0) -> BackOff:
    return BackOff(url, QUERY, 0.5, poll, max_wait)


def test_a_calm_lake_is_not_waited_for(prometheus: Prometheus) -> None:
    prometheus.will_answer(vector("0.5"))
    notes: list[str] = []
    assert backoff(prometheus.url).wait(threading.Event(), notes.append) == 0.0
    assert notes == []
    ((path, authorization),) = prometheus.asked
    assert urlsplit(path).path == "/api/v1/query"
    assert parse_qs(urlsplit(path).query) == {"query": [QUERY]}
    assert authorization == ""


def test_it_waits_until_the_value_is_low(prometheus: Prometheus) -> None:
    prometheus.will_answer(vector("0.75"), scalar("0.6"), vector("0.25"))
    waiting, notes = backoff(prometheus.url), []
    slept = waiting.wait(threading.Event(), notes.append)
    assert len(prometheus.asked) == 3
    assert 0.04 <= slept < 5 and waiting.waited == slept
    assert notes == [
        f"waiting: {QUERY} is 0.75, above 0.5 ([budgets] backoff_above)",
        f"going on after 0 s of waiting: {QUERY} is 0.25",
    ]
    assert waiting.trouble == ""


def test_it_waits_no_longer_than_it_may(prometheus: Prometheus) -> None:
    prometheus.will_answer(vector("9"))
    notes: list[str] = []
    slept = backoff(prometheus.url, max_wait=0.1).wait(threading.Event(), notes.append)
    assert 0.1 <= slept < 3
    assert "is still 9 ([budgets] backoff_max_wait_seconds)" in notes[-1]
    assert len(notes) == 2


def test_a_stop_ends_the_waiting_at_once(prometheus: Prometheus) -> None:
    prometheus.will_answer(vector("9"))
    stop, notes = threading.Event(), []
    with ThreadPoolExecutor(4) as threads:
        waiting = backoff(prometheus.url, poll=60, max_wait=600)
        began = time.monotonic()
        futures = [threads.submit(waiting.wait, stop, notes.append) for _ in range(4)]
        assert prometheus.asked_once.wait(10)
        stop.set()
        slept = [future.result(10) for future in futures]
    assert time.monotonic() - began < 10
    assert sorted(slept)[:3] == [0.0, 0.0, 0.0]
    assert len(prometheus.asked) == 1


def test_one_thread_asks_for_all(prometheus: Prometheus) -> None:
    """And what it learned holds until the next question is due."""
    prometheus.will_answer(vector("0.75"), vector("0.1"))
    waiting, notes = BackOff(prometheus.url, QUERY, 0.5, 0.3, 10), []
    with ThreadPoolExecutor(4) as threads:
        slept = list(threads.map(lambda _: waiting.wait(threading.Event(), notes.append), range(8)))
    assert len(prometheus.asked) == 2 and len(notes) == 2
    assert waiting.waited == sum(slept) == max(slept)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (vector(), 200, "has no value for the query"),
        ({"status": "error", "error": "unknown function"}, 400, "refuses the query: unknown function"),
        ("gone", 503, "refuses the query: HTTP 503 Service Unavailable"),
        ("<html>", 200, "another format"),
    ],
)
def test_a_server_that_does_not_tell_is_told_of_once(
    prometheus: Prometheus, body: object, code: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    prometheus.will_answer(body, code=code)
    waiting, notes = backoff(prometheus.url, poll=0.0), []
    with caplog.at_level(logging.WARNING):
        assert [waiting.wait(threading.Event(), notes.append) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert len(prometheus.asked) == 3
    assert notes == [f"warning: {waiting.trouble}"]
    assert words in waiting.trouble and waiting.trouble.startswith("cannot back off: http://127.0.0.1:")
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_an_unreachable_server_stops_nothing() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://ann:hunter2@127.0.0.1:{free.getsockname()[1]}"
        waiting, notes = backoff(url), []
        assert waiting.wait(threading.Event(), notes.append) == 0.0
    assert len(notes) == 1 and "does not answer" in notes[0]
    assert "http://ann:***@127.0.0.1" in notes[0] and "hunter2" not in notes[0]


def test_a_server_that_goes_away_while_waiting(prometheus: Prometheus) -> None:
    prometheus.will_answer(vector("9"), vector())
    waiting, notes = backoff(prometheus.url), []
    assert waiting.wait(threading.Event(), notes.append) > 0
    assert [each.split(":")[0] for each in notes] == ["waiting", "warning", "going on after 0 s of waiting"]
    assert notes[-1].endswith("Prometheus no longer answers")


def test_a_name_and_a_path_inside_the_address(prometheus: Prometheus) -> None:
    prometheus.will_answer(vector("0"))
    url = prometheus.url.replace("http://", "http://ann:s%40cret@") + "/mimir/"
    assert backoff(url).wait(threading.Event(), print) == 0.0
    ((path, authorization),) = prometheus.asked
    assert path.startswith("/mimir/api/v1/query?query=histogram")
    assert authorization == "Basic " + base64.b64encode(b"ann:s@cret").decode()


def test_from_the_settings() -> None:
    assert BackOff.of(BudgetsConfig()) is None
    assert (
        BackOff.of(BudgetsConfig(backoff_url="http://p", backoff_query="up", backoff_above=0.0)) is not None
    )
