"""Clients that mean no good, or behave as if: turned away, logged, written down, and nothing changed."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from lakewarden import http_server
from lakewarden.console import auth, limits, queries, refusals
from lakewarden.console.app import create_app
from lakewarden.errors import Unreachable
from lakewarden.state.audit_log import OperatorActions
from lakewarden.state.schema import suspensions
from tests.support import tls
from tests.support.console import AT, OPERATE, READ, TABLE, Running, console, said, see
from tests.support.ports import wait_until

pytestmark = pytest.mark.services

API = "/api/v1"
REQUESTS = f"{API}/tables/{TABLE}/requests"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with console(tmp_path) as found:
        see(found.warden)
        yield found


@pytest.fixture
def open_one(tmp_path: Path) -> Iterator[Running]:
    """Without tokens, on the loopback."""
    with console(tmp_path, tokens=False) as found:
        see(found.warden)
        yield found


def nothing_changed(running: Running) -> None:
    assert running.warden.schedule.requests() == ()
    assert running.warden.schedule.suspended() == {}
    assert not [
        each
        for each in queries.operator_actions(running.warden)
        if each.outcome == "done" and each.action != "login"
    ]


def refused(running: Running, answer: httpx.Response, status: int, error: str, who: str) -> None:
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text
    nothing_changed(running)
    found = running.refusals()[0]
    assert (found.who, found.outcome, found.address) == (who, "refused", "127.0.0.1")
    assert found.detail["reason"] == error and found.detail["status"] == status


# ------------------------------------------------------------ tokens


SHOWN = (None, "Bearer wrong-token-0123456789", "Bearer", f"Basic {OPERATE}", OPERATE, "Bearer \xfc")


@pytest.mark.main
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_token_and_a_wrong_one(running: Running, method: str, caplog: pytest.LogCaptureFixture) -> None:
    with running.client() as nobody, caplog.at_level(logging.WARNING, "lakewarden.console"):
        for shown in SHOWN:
            headers = {} if shown is None else {b"authorization": shown.encode("latin-1")}
            path = REQUESTS if method == "POST" else f"{API}/tables"
            answer = nobody.request(method, path, headers=headers)
            refused(running, answer, 401, "Unauthorized", "unknown")
            assert answer.headers["www-authenticate"].startswith("Bearer")
    assert caplog.text.count("Unauthorized") == len(SHOWN) == len(running.refusals())
    for kept in (caplog.text, str(running.refusals())):
        assert "wrong-token" not in kept and OPERATE not in kept


def acting(running: Running) -> list[tuple[str, str]]:
    document = create_app(running.warden).openapi()
    return [
        (method.upper(), re.sub(r"{table}", TABLE, path).replace("{run_id}", "r").replace("{pin_id}", "p"))
        for path, calls in document["paths"].items()
        for method in calls
        if method != "get"
    ]


@pytest.mark.main
def test_a_read_token_changes_nothing_anywhere(running: Running) -> None:
    calls = acting(running)
    assert len(calls) >= 8
    with running.client(READ) as bob:
        for method, path in calls:
            refused(running, bob.request(method, path, json={"reason": "x"}), 403, "Forbidden", "bob")


@pytest.mark.main
def test_every_route_asks_who_it_is(running: Running) -> None:
    """Of the application itself, so that a page somebody adds is among them."""
    open_to_all = {"/login", "/health", "/metrics"}
    found = 0
    with running.client() as nobody:
        for path in sorted({path for path in paths_of(running) if path not in open_to_all}):
            answer = nobody.get(path)
            assert answer.status_code == 401, (path, answer.status_code)
            found += 1
    assert found > 20


def paths_of(running: Running) -> Iterator[str]:
    def walk(routes: list[object], prefix: str = "") -> Iterator[str]:
        for route in routes:
            path = getattr(route, "path", None)
            if path is not None and "GET" in (getattr(route, "methods", None) or ()):
                yield re.sub(r"{[^}]*}", "x", prefix + path)
            inner = getattr(route, "routes", None)
            if inner:
                yield from walk(inner, prefix)

    app = create_app(running.warden)
    yield from app.openapi()["paths"]
    yield from walk(list(app.routes))


@pytest.mark.main
def test_a_session_is_signed_and_ends(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with running.browser() as ana:
        assert ana.get(f"{API}/me").json()["name"] == "ana"
        whole = ana.cookies["lakewarden"]
    body, _, signature = whole.partition(".")
    other = auth.Sessions().make("ana", "operate")
    for forged in (body, f"{body}.", f"{body}.{signature[:-2]}AA", f"{body}x.{signature}", other, "", "."):
        with running.client(Cookie=f"lakewarden={forged}") as client:
            assert client.get(f"{API}/me").status_code == 401, forged
    monkeypatch.setattr(auth, "SESSION_SECONDS", -1)
    with running.browser() as late:
        assert late.get(f"{API}/me").status_code == 401


def test_a_cookie_is_for_this_site_only(running: Running) -> None:
    with running.client(Origin=running.address) as client:
        shown = SimpleCookie(client.post("/login", data={"token": OPERATE}).headers["set-cookie"])[
            "lakewarden"
        ]
    assert shown["httponly"] and shown["samesite"] == "Strict" and shown["path"] == "/"
    assert OPERATE not in shown.value


def test_logging_in_leads_to_pages_of_ours(running: Running) -> None:
    with running.client(Origin=running.address) as client:
        for there in (
            "//evil.example", "https://evil.example/", "/\\evil.example", "\\\\evil", "x", "/a\r\nb: c", "javascript:1"
        ):  # fmt: skip
            answer = client.post("/login", data={"token": OPERATE, "next": there})
            assert (answer.status_code, answer.headers["location"]) == (303, "/"), there
        answer = client.post("/login", data={"token": OPERATE, "next": "/runs?limit=3"})
        assert answer.headers["location"] == "/runs?limit=3"


def test_logins_that_fail_have_to_wait(running: Running) -> None:
    with running.client(Origin=running.address) as client:
        codes = [client.post("/login", data={"token": f"guess-{each}"}).status_code for each in range(5)]
        assert codes[:3] == [401] * 3 and 429 in codes[3:]
        right = client.post("/login", data={"token": OPERATE})
        assert right.status_code == 429 and int(right.headers["retry-after"]) >= 1
    kinds = [(each.action, each.detail["reason"]) for each in running.refusals()]
    assert kinds.count(("login", "wrong token")) >= 3 and ("login", "too many failed") in kinds
    assert "guess-" not in str(running.refusals())


def test_a_person_is_led_to_the_form(running: Running) -> None:
    with running.client(Accept="text/html") as person:
        answer = person.get("/tables/x?y=1")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/tables/x%3Fy%3D1")
        page = person.get("/login", params={"next": '/"><script>'})
        assert page.status_code == 200 and "<script>" not in page.text
    assert running.refusals() == []


# ------------------------------------------------------------ other sites


@pytest.mark.main
def test_a_form_needs_its_csrf_field(running: Running) -> None:
    with running.browser() as ana:
        right = ana.get(f"{API}/me").json()["csrf"]
        for wrong in ({}, {"csrf": ""}, {"csrf": right[:-2] + "AA"}, {"csrf": right[:5]}):
            refused(
                running, ana.post("/logout", data=wrong, headers={"Accept": "*/*"}), 403, "WrongForm", "ana"
            )
            refused(running, ana.post(REQUESTS, data=wrong), 403, "WrongForm", "ana")
        assert ana.post(REQUESTS, headers={"X-CSRF-Token": right}).status_code == 202
        assert ana.post("/logout", data={"csrf": right}).headers["location"] == "/login"


def test_a_csrf_field_of_another_session_is_no_good(running: Running) -> None:
    with running.browser(READ) as bob, running.browser() as ana:
        of_bob = bob.get(f"{API}/me").json()["csrf"]
        refused(running, ana.post(REQUESTS, headers={"X-CSRF-Token": of_bob}), 403, "WrongForm", "ana")


def test_another_origin_is_turned_away_even_with_the_right_field(running: Running) -> None:
    with running.browser() as ana:
        right = ana.get(f"{API}/me").json()["csrf"]
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            answer = ana.post(REQUESTS, headers={"X-CSRF-Token": right, **headers})
            refused(running, answer, 403, "OtherOrigin", "ana")
            answer = ana.post("/login", data={"token": OPERATE}, headers={"Accept": "*/*", **headers})
            refused(running, answer, 403, "OtherOrigin", "ana")


def test_without_tokens_a_program_may_act_and_a_page_of_another_site_may_not(open_one: Running) -> None:
    with open_one.client() as program:
        refused(
            open_one,
            program.post(REQUESTS, headers={"Origin": "https://evil.example"}),
            403,
            "OtherOrigin",
            "local",
        )
        refused(
            open_one, program.post(REQUESTS, headers={"Origin": open_one.address}), 403, "WrongForm", "local"
        )
        refused(open_one, program.post("/logout"), 403, "WrongForm", "local")
        right = program.get(f"{API}/me").json()["csrf"]
        ours = {"Origin": open_one.address, "X-CSRF-Token": right}
        assert program.post(REQUESTS, headers=ours).status_code == 202
        assert program.post(REQUESTS).status_code == 202


def test_a_name_that_was_pointed_here_is_no_way_in(open_one: Running) -> None:
    for host in ("evil.example", "evil.example:8480", "127.0.0.1.evil.example", "", "192.0.2.1"):
        with open_one.client(Host=host) as page:
            refused(open_one, page.get(f"{API}/tables"), 403, "OtherHost", "local")
            refused(open_one, page.post(REQUESTS), 403, "OtherHost", "local")
            refused(open_one, page.get("/metrics"), 403, "OtherHost", "local")
    port = urlsplit(open_one.address).port
    with open_one.client(Host=f"localhost:{port}") as friend:
        assert friend.get(f"{API}/tables").status_code == 200


# As a browser and a proxy that ends TLS send it: the name that was typed, which no interface of this machine has.
PROXY_NAME = "console.example.com"
THROUGH_PROXY = {"Host": PROXY_NAME, "X-Forwarded-Proto": "https", "X-Forwarded-Host": PROXY_NAME}


def test_through_a_proxy_that_keeps_the_name_people_log_in_and_act(running: Running) -> None:
    with running.client(**THROUGH_PROXY, Accept="text/html") as ana:
        opened = ana.get("/")
        assert (opened.status_code, opened.headers["location"]) == (303, "/login?next=/")
        assert ana.get("/login").status_code == ana.get("/static/console.css").status_code == 200
        assert running.refusals() == [], "and none of it costs what all clients of the proxy share"
        ours = {"Origin": f"https://{PROXY_NAME}", "Sec-Fetch-Site": "same-origin"}
        assert ana.post("/login", data={"token": OPERATE}, headers=ours).status_code == 303
        assert ana.get("/").status_code == 200
        field = {"X-CSRF-Token": ana.get(f"{API}/me").json()["csrf"]}
        refused(running, ana.post(REQUESTS, headers=ours), 403, "WrongForm", "ana")
        for origin in ("https://evil.example", f"https://{PROXY_NAME}.evil.example", running.address, "null"):
            answer = ana.post(REQUESTS, headers={**ours, **field, "Origin": origin})
            refused(running, answer, 403, "OtherOrigin", "ana")
        assert ana.post(REQUESTS, headers={**ours, **field}).status_code == 202


def test_through_a_proxy_a_page_of_another_site_logs_nobody_in(running: Running) -> None:
    for origin in ("https://evil.example", f"https://{PROXY_NAME}:444", "null"):
        with running.client(**THROUGH_PROXY, Origin=origin) as page:
            answer = page.post("/login", data={"token": OPERATE})
            refused(running, answer, 403, "OtherOrigin", "unknown")
            assert "set-cookie" not in answer.headers


def test_a_proxy_that_hides_the_name_is_told_so(running: Running) -> None:
    with running.client(Origin=f"https://{PROXY_NAME}") as ana:
        answer = ana.post("/login", data={"token": OPERATE})
        refused(running, answer, 403, "OtherOrigin", "unknown")
        assert "forward the browser's Host header" in answer.json()["hint"]


def test_with_tokens_a_name_that_was_pointed_here_sees_what_a_stranger_sees(running: Running) -> None:
    """Its page reads answers and says where it comes from, but has no cookie of ours: that is kept for the name of the console."""
    for host in ("evil.example", "127.0.0.1.evil.example", "", "192.0.2.1"):
        with running.client(Host=host, Origin=f"http://{host}") as page:
            for path in ("/health", "/metrics", f"{API}/tables", f"{API}/openapi.json", "/fleet.json"):
                refused(running, page.get(path), 401, "Unauthorized", "unknown")
            refused(running, page.post(REQUESTS), 401, "Unauthorized", "unknown")
            refused(running, page.post("/logout"), 401, "Unauthorized", "unknown")
            assert page.post("/login", data={"token": ""}).status_code in (401, 429)
        with running.client(READ, Host=host) as scraper:
            assert scraper.get("/metrics").status_code == 200, "a token is one by every name"


def test_a_token_that_nobody_gave_out_is_no_way_around_the_name(open_one: Running) -> None:
    with open_one.client(OPERATE, Host="evil.example") as page:
        refused(open_one, page.get(f"{API}/tables"), 403, "OtherHost", "unknown")
        refused(open_one, page.get("/health"), 403, "OtherHost", "unknown")
        refused(open_one, page.post("/login", data={"token": OPERATE}), 403, "OtherHost", "unknown")


def test_no_other_site_may_read_or_frame_it(running: Running) -> None:
    with running.client(OPERATE, Origin="https://evil.example") as client:
        for path in (f"{API}/tables", "/login", "/nothing", f"{API}/docs"):
            headers = client.get(path).headers
            assert "access-control-allow-origin" not in headers
            assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "same-origin"
            policy = headers["content-security-policy"]
            assert (
                "default-src 'none'" in policy
                and "unsafe" not in policy
                and "frame-ancestors 'none'" in policy
            )
        preflight = client.options(REQUESTS, headers={"Access-Control-Request-Method": "POST"})
        assert "access-control-allow-methods" not in preflight.headers


# ------------------------------------------------------------ paths


PATHS_OUT = [
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e%2fapp.py",
    "/static/..%5capp.py",
    "/static/%252e%252e/app.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/./../../../../../../../../etc/passwd",
    "/static/robots.txt/../../app.py",
    "/static/robots.txt%00.py",
    "/static/",
    "/static",
    "/api/v1/../../static/../app.py",
]


@pytest.mark.main
def test_no_path_leads_out_of_the_static_files(running: Running) -> None:
    for path in PATHS_OUT:
        with running.wire() as wire:
            wire.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            told = said(wire)
        assert int(told.split(b" ", 2)[1]) in (307, 400, 401, 404, 405), (path, told)
        assert b"create_app" not in told and b"root:" not in told
    with running.client() as client:
        assert client.get("/static/robots.txt").status_code == 200


# ------------------------------------------------------------ too much


def test_a_body_that_says_it_is_too_large(running: Running) -> None:
    with running.wire() as wire:
        head = f"POST {REQUESTS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPERATE}\r\nContent-Length: 99999999\r\n\r\n"
        wire.sendall(head.encode())  # and not a byte of the body: it is refused for what it says
        told = said(wire)
    assert told.startswith(b"HTTP/1.1 413") and b"connection: close" in told.lower()
    nothing_changed(running)
    assert running.refusals()[0].detail["reason"] == "TooLarge"


def test_a_body_in_chunks_that_grows_too_large(running: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 4096

    with running.client(OPERATE) as client:
        try:
            answer = client.post(REQUESTS, content=endless())
        except httpx.WriteError:
            answer = None  # the connection went while it was still sending
    if answer is not None:
        assert answer.status_code == 413
    wait_until(lambda: bool(running.refusals()), "the refusal is written down")
    assert running.refusals()[0].detail["reason"] == "TooLarge"
    nothing_changed(running)


def test_a_body_just_within_the_limit_is_read(running: Running) -> None:
    with running.client(OPERATE) as client:
        body = b'{"ticket": "x"}' + b" " * (64 * 1024 - 15)
        answer = client.post(REQUESTS, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 202


@pytest.mark.parametrize(
    "head", [b"X-Long: " + b"x" * 70_000, b"\r\n".join(b"X-%d: y" % each for each in range(9000))]
)
def test_headers_that_are_too_long(running: Running, head: bytes) -> None:
    with running.wire() as wire:
        try:
            wire.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + b"\r\n\r\n")
            told = said(wire)
        except ConnectionError:
            told = b"HTTP/1.1 431"  # it did not even listen to the end
    assert told.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    with running.client() as other:
        assert other.get("/health").status_code == 200


def test_more_than_the_rate_is_told_to_wait(tmp_path: Path) -> None:
    with console(tmp_path, requests_per_s=5) as running, running.client(OPERATE) as client:
        answers = [client.get(f"{API}/leader") for _ in range(30)]
        late = [each for each in answers if each.status_code == 429]
        assert answers[0].status_code == 200 and len(late) >= 15
        assert int(late[0].headers["retry-after"]) >= 1
        assert late[0].json()["error"] == "TooFast" and late[0].json()["retry"] is True
        found = [each for each in running.refusals() if each.detail["reason"] == "TooFast"]
        assert 1 <= len(found) <= limits.WRITTEN_PER_MINUTE


def test_a_flood_of_refusals_does_not_fill_the_database(running: Running) -> None:
    with running.client("wrong-token-0123456789") as client:
        for _ in range(3 * limits.WRITTEN_PER_MINUTE):
            assert client.get(f"{API}/tables").status_code == 401
    assert len(running.refusals()) == limits.WRITTEN_PER_MINUTE


# ------------------------------------------------------------ too slow


def test_one_that_dribbles_its_headers_is_cut_off_and_others_are_served(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 1.0)
    with ExitStack() as stack:
        wires = [stack.enter_context(running.wire()) for _ in range(50)]
        for wire in wires:
            wire.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
        with running.client() as other:
            assert other.get("/health").status_code == 200
        told = [said(wire) for wire in wires]
    assert all(each.startswith(b"HTTP/1.1 408") for each in told)
    wait_until(lambda: bool(running.refusals()), "the refusal is written down")
    assert running.refusals()[0].target == "a connection"


def test_one_that_sends_nothing_at_all_is_cut_off(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.5)
    with running.wire() as silent, running.wire() as after:
        assert said(silent).startswith(b"HTTP/1.1 408")
        after.settimeout(10)
        assert said(after).startswith(b"HTTP/1.1 408")


def test_one_that_sends_empty_lines_after_its_answer_is_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.5)
    with running.wire() as wire:
        wire.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert wire.recv(65536).startswith(b"HTTP/1.1 200")
        wire.sendall(b"\r\n")
        assert said(wire).endswith(
            b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )


def test_one_address_has_so_many_connections(tmp_path: Path) -> None:
    with console(tmp_path, connections_per_address=5) as few, ExitStack() as stack:
        wires = [stack.enter_context(few.wire()) for _ in range(6)]
        assert said(wires[-1]).startswith(b"HTTP/1.1 429")
        wait_until(lambda: bool(few.refusals()), "the refusal is written down")
        assert few.refusals()[0].detail["reason"] == "more connections than one address may have"
        wires[0].close()
        with few.client(READ) as other:
            assert other.get(f"{API}/tables").status_code == 200


def test_connections_that_never_shake_hands_are_counted_and_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 3.0)
    settings = tls.pair(tmp_path)
    with (
        console(tmp_path, connections_per_address=5, **settings) as few,
        tls.elsewhere(settings) as other,
        ExitStack() as stack,
    ):
        wires = [stack.enter_context(few.wire()) for _ in range(15)]
        assert said(wires[-1]) == b"", "one too many ends at once"
        assert other.get(f"{few.address}/health").status_code == 200
        assert [said(wire) for wire in wires] == [b""] * len(wires)
        wait_until(lambda: len(few.refusals()) == 15, "all are written down")
        reasons = [each.detail["reason"] for each in few.refusals()]
        assert reasons.count("more connections than one address may have") == 10
        assert reasons.count("the TLS handshake did not end in time") == 5


def test_one_that_dribbles_its_body_is_cut_off_and_others_are_served(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 1.0)
    head = f"POST {REQUESTS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPERATE}\r\nContent-Length: 50\r\n\r\n{{"
    with ExitStack() as stack:
        wires = [stack.enter_context(running.wire()) for _ in range(50)]  # more than there are threads
        for wire in wires:
            wire.sendall(head.encode())
        with running.client(READ) as other:
            assert other.get(f"{API}/tables").status_code == 200
        told = [said(wire) for wire in wires]
    assert all(each.startswith(b"HTTP/1.1 408") for each in told)
    nothing_changed(running)
    assert {each.detail["reason"] for each in running.refusals()} == {"TooSlow"}


def test_one_that_does_not_take_its_answer_is_let_go(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STUCK_SECONDS", 0.5)
    with running.warden.state.write() as connection:
        rows = [
            {"table_name": f"lake.db.t{each}", "since": AT, "reason": "long " * 60, "by": "ana"}
            for each in range(3000)
        ]
        connection.execute(suspensions.insert(), rows)
    place = urlsplit(running.address)
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert place.hostname and place.port
        wire.connect((place.hostname, place.port))
        ask = f"GET {API}/tables HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPERATE}\r\n\r\n"
        wire.sendall(ask.encode() * 20)
        wire.settimeout(1)

        def is_gone() -> bool:
            try:
                wire.sendall(b"\r\n")
            except TimeoutError:
                return False
            except OSError:
                return True
            return False

        wait_until(is_gone, "it is let go")


# ------------------------------------------------------------ what nobody of good will sends


@pytest.mark.parametrize("host", [b"[", b"[::1", b"a/api?", b"x y", b"evil@127.0.0.1"])
def test_a_host_that_is_none_is_refused_with_all_headers(running: Running, host: bytes) -> None:
    for path in (b"/", b"/api/v1/tables", b"/login"):
        asked = (
            b"GET "
            + path
            + b" HTTP/1.1\r\nHost: "
            + host
            + b"\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
        )
        with running.wire() as wire:
            wire.sendall(asked)
            answer = said(wire)
        assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
        assert b"content-security-policy" in answer and b"Traceback" not in answer
    nothing_changed(running)


@pytest.mark.parametrize(
    "origin", ["http://[", "null", "file://", "http://127.0.0.1:1", "javascript:alert(1)", "//"]
)
def test_an_origin_that_is_none_of_ours(running: Running, origin: str) -> None:
    with running.client() as nobody:
        answer = nobody.post("/login", data={"token": OPERATE}, headers={"origin": origin})
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_form_of_a_thousand_fields_is_refused(running: Running) -> None:
    body = "&".join(f"a{each}=1" for each in range(500))
    form = {"content-type": "application/x-www-form-urlencoded"}
    with running.client() as nobody:
        assert nobody.post("/login", content=body, headers=form).status_code == 400
    with running.browser() as ana:
        assert ana.post("/do/resume", content=body, headers=form).status_code == 400
    nothing_changed(running)


def test_no_line_of_the_log_is_written_by_a_client(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with running.client() as nobody, caplog.at_level(logging.INFO, "lakewarden.console"):
        assert nobody.get(f"{API}/x%0d%0aERROR all is lost%1b[2J").status_code == 401
    assert "ERROR all is lost" in caplog.text
    assert not [each for each in caplog.messages if not each.isprintable()]
    assert running.refusals()[0].target == rf"GET {API}/x\r\nERROR all is lost\x1b[2J"


def test_numbers_that_are_none(running: Running) -> None:
    at = f"{API}/tables/{TABLE}/audit/downstream"
    with running.client(READ) as bob:
        for number in ("²", "9" * 19, "9" * 5000, "-1", "1e3"):
            assert bob.get(f"{at}/{number}").status_code == 400, number
            page = bob.get(
                "/audit", params={"question": "downstream", "table": TABLE, "snapshot": number[:300]}
            )
            assert page.status_code == 200 and "not a number" in page.text, number
        assert bob.get(f"{API}/runs/a%00b").status_code == 400
        assert bob.get("/runs", params={"q": "a\0b"}).status_code == 400


def test_who_logs_out_is_out_with_every_copy_of_the_cookie(running: Running) -> None:
    with running.browser() as ana, running.client() as thief:
        thief.headers["cookie"] = "; ".join(f"{name}={value}" for name, value in ana.cookies.items())
        assert thief.get(f"{API}/me").status_code == 200
        csrf = ana.get(f"{API}/me").json()["csrf"]
        assert ana.post("/logout", data={"csrf": csrf}).status_code == 303
        assert thief.get(f"{API}/me").status_code == 401


def test_a_page_of_another_site_makes_the_api_do_no_work(open_one: Running) -> None:
    with open_one.client() as browser:
        shown = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}
        assert browser.get(f"{API}/tables/{TABLE}/show", headers=shown).status_code == 403
        followed = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}
        assert browser.get(f"{API}/tables", headers=followed).status_code == 200
        assert browser.get(f"{API}/tables", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_a_link_puts_no_words_into_our_mouth(running: Running) -> None:
    with running.browser() as ana:
        assert (
            "send your token"
            not in ana.get("/", params={"done": "send your token to eve", "proof": "x"}).text
        )
        csrf = ana.get(f"{API}/me").json()["csrf"]
        led = ana.post("/do/resume", data={"csrf": csrf, "table": TABLE})
        assert "It was not suspended." in ana.get(led.headers["location"]).text


# ------------------------------------------------------------ written down


def test_an_action_is_written_down_before_it_is_done(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database takes the action, and goes away before its end is written."""

    def away(*_: object) -> None:
        raise Unreachable(what="the state database", reason="it went away")

    monkeypatch.setattr(OperatorActions, "end", away)
    with running.client(OPERATE) as ana:
        assert ana.post(f"{API}/tables/{TABLE}/suspend", json={"reason": "a\nb"}).status_code == 200
    found = queries.operator_actions(running.warden, TABLE)[0]
    assert (found.who, found.action, found.outcome) == ("ana", "suspend", "begun")
    assert found.detail == {"reason": r"a\nb"}


def test_refusals_of_strangers_are_bounded_and_what_operators_did_stays(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MOST", 5)
    monkeypatch.setattr(refusals, "_EVERY", 1)
    with running.client(OPERATE) as ana, running.client() as nobody:
        assert ana.post(REQUESTS).status_code == 202
        for _ in range(8):
            nobody.get(f"{API}/tables")
    found = queries.operator_actions(running.warden)
    assert [each.role for each in found].count("none") == 5
    assert [each.action for each in found if each.outcome == "done"] == ["request"]
