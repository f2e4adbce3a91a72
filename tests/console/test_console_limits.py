"""Buckets, waits and counts of the console's limits, and cookies, by the clock they are handed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lakewarden import clock
from lakewarden.config.schema import Token
from lakewarden.console import auth, limits
from lakewarden.console.answers import RequestDenied, status_of
from lakewarden.console.auth import Identity, Sessions, Tokens, check_form, from_here, is_local
from lakewarden.console.limits import Failures, Heavy, Notes, Rates
from lakewarden.errors import (
    Busy,
    CommitUnknown,
    ConfigError,
    LakewardenError,
    NoSuchTable,
    PolicyError,
    Refused,
)
from lakewarden.http_server import address_range


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    made = Time()
    monkeypatch.setattr(clock, "monotonic", made)
    yield made


def test_a_bucket_empties_and_fills(time: Time) -> None:
    rates = Rates(10)
    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    assert rates.take("a") == pytest.approx(0.1)
    assert rates.take("b") == 0.0, "another client has its own"
    time.now += 0.1
    assert rates.take("a") == 0.0
    assert rates.take("a") > 0
    time.now += 3600
    assert [rates.take("a") for _ in range(21)].count(0.0) == 20, (
        "it holds two seconds' worth, however long it rests"
    )


def test_what_is_turned_away_costs_more(time: Time) -> None:
    rates = Rates(10)
    guesses = 0
    while not rates.take("a"):
        rates.fine("a")
        guesses += 1
    assert guesses == 2
    time.now += 1.1
    assert rates.take("a") == 0.0


def test_a_flood_of_addresses_is_forgotten(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_CLIENTS", 100)
    rates, failures, notes = Rates(10), Failures(), Notes()
    for each in range(1000):
        rates.take(str(each))
        failures.add(str(each))
        notes.due(str(each))
        time.now += 61
    assert max(len(rates._buckets), len(failures._failed), len(notes._seen)) <= 100


def test_failed_logins_wait_twice_as_long_each_time(time: Time) -> None:
    failures = Failures()
    waits = []
    for _ in range(15):
        waits.append(failures.wait("a"))
        time.now += waits[-1]
        failures.add("a")
    assert waits[:6] == [0, 0, 0, 1, 2, 4] and waits[-1] == 300
    assert failures.wait("b") == 0
    failures.forget("a")
    assert failures.wait("a") == 0


def test_refusals_beyond_the_first_are_counted_and_told_later(time: Time) -> None:
    notes = Notes()
    told = [notes.due("a") for _ in range(limits.WRITTEN_PER_MINUTE + 5)]
    assert told == [0] * limits.WRITTEN_PER_MINUTE + [None] * 5
    time.now += 61
    assert notes.due("a") == 5
    assert notes.due("a") == 0


def held(heavy: Heavy, count: int, until: threading.Event) -> list[Future[None]]:
    """So many reads that do not end before `until`, all begun."""
    begun = threading.Semaphore(0)

    def ask() -> None:
        begun.release()
        assert until.wait(30)

    pool = ThreadPoolExecutor(count)
    made = [pool.submit(heavy.read, ask) for _ in range(count)]
    for _ in made:
        assert begun.acquire(timeout=30)
    pool.shutdown(wait=False)
    return made


def test_a_few_heavy_calls_at_once_and_a_place_for_operators() -> None:
    heavy, until = Heavy(), threading.Event()
    asked = held(heavy, limits._HEAVY_AT_ONCE, until)
    with pytest.raises(RequestDenied) as told:
        heavy.read(lambda: None)
    assert told.value.status == 503 and told.value.headers()["Retry-After"]
    assert heavy.act(lambda: "pinned") == "pinned", "readers do not block a pin"
    until.set()
    for each in asked:
        each.result(30)
    assert heavy.read(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        heavy.read(lambda: 1 // 0)
    assert heavy.read(lambda: 7) == 7


def test_a_heavy_call_has_a_deadline_and_gives_its_place_back() -> None:
    heavy, until = Heavy(seconds=0.05), threading.Event()
    for _ in range(limits._LEFT_BEHIND):
        with pytest.raises(RequestDenied) as told:
            heavy.read(lambda: until.wait(30))
        assert told.value.status == 504 and "spark_seconds" in told.value.hint
    with pytest.raises(RequestDenied, match="8 older ones have not ended"):
        heavy.read(lambda: None)
    assert heavy.act(lambda: "pinned") == "pinned"
    until.set()
    for _ in range(1000):
        if not heavy._left_behind:
            break
        threading.Event().wait(0.01)
    assert heavy.read(lambda: 7) == 7


def test_spark_is_revived_only_while_no_call_is_running() -> None:
    revived: list[int] = []
    heavy, until = Heavy(lambda: revived.append(1)), threading.Event()
    asked = held(heavy, 1, until)
    heavy.read(lambda: None)
    assert revived == [1]
    until.set()
    asked[0].result(30)
    heavy.read(lambda: None)
    assert revived == [1, 1]


# ------------------------------------------------------------ who


def test_tokens_are_found_by_their_secret_only() -> None:
    tokens = Tokens((Token("bob", "read", "a" * 16), Token("ana", "operate", "b" * 16)))
    assert tokens.find("b" * 16) == ("ana", "operate")
    assert [tokens.find(each) for each in ("", "a" * 15, "a" * 17, "bob", "\udcff")] == [None] * 5
    assert not Tokens(())


def test_a_session_says_who_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions()
    found = sessions.read(sessions.make("ana", "operate"))
    assert found is not None and (found["name"], found["role"]) == ("ana", "operate")
    assert Sessions().read(sessions.make("ana", "operate")) is None, "another process has another key"
    monkeypatch.setattr(auth, "SESSION_SECONDS", 0)
    assert sessions.read(sessions.make("ana", "operate")) is None


def test_one_signature_is_no_good_for_another_purpose() -> None:
    sessions = Sessions()
    body = sessions.make("ana", "operate").partition(".")[0]
    assert sessions.read(f"{body}.{sessions.csrf(body)}") is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("127.0.0.1:8480", True), ("localhost:8480", True), ("[::1]:8480", True),
        ("127.9.9.9", True), ("", False), ("evil.example", False), ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False), ("192.0.2.1", False), ("[::ffff:192.0.2.1]", False), ("@127.0.0.1", True),
    ],
)  # fmt: skip
def test_hosts_that_are_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({"host": "a:1"}, True),
        ({"host": "a:1", "origin": "http://a:1"}, True),
        ({"host": "a:1", "origin": "http://A:1"}, True),
        ({"host": "a:1", "origin": "http://a:2"}, False),
        ({"host": "a:1", "origin": "null"}, False),
        ({"host": "a:1", "origin": ""}, False),
        ({"host": "a:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "a:1", "sec-fetch-site": "none"}, True),
        ({"host": "a:1", "origin": "http://a:1", "sec-fetch-site": "cross-site"}, False),
    ],
)
def test_origins_that_are_ours(headers: dict[str, str], ours: bool) -> None:
    assert from_here(headers) is ours


def test_a_token_in_a_header_needs_no_form() -> None:
    check_form(Identity("ana", "operate"), "/x", {"origin": "https://evil.example"}, b"")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoSuchTable(table="t", reason="r"), 404),
        (Busy(job="j", table="t", run_id="r", owner="o", since="s"), 409),
        (Refused(action="a", target="t", reason="r"), 403),
        (PolicyError(key="k", reason="r"), 400),
        (ConfigError(key="k", where="w", reason="r"), 500),
        (CommitUnknown(table="t", reason="r"), 502),
        (LakewardenError(reason="r"), 500),
    ],
)
def test_every_error_has_its_status(error: LakewardenError, status: int) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("address", "share"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_addresses_of_one_network_share(address: str, share: str) -> None:
    assert address_range(address) == share
