"""When a rewrite pauses: in quiet windows of the week, and while queries are slow (back-off).

Windows apply to scheduled runs only: a run that is started by hand, or for an incident, is wanted now. If a window
begins during a run, the run finishes and commits what is being written, starts nothing more, and ends `partial`.
Back-off applies to every run, like the other budgets.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from lakewarden import clock
from lakewarden.config.schema import BudgetsConfig
from lakewarden.config.types import DAYS, WINDOW
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Trigger
from lakewarden.redact import redact_text, redact_url

log = logging.getLogger(__name__)

_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)


class Paused(Exception):
    """A quiet window has begun; the message says which."""


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time that begins on these days of the week (Monday is 0), in UTC."""

    text: str
    days: frozenset[int]
    start: timedelta
    length: timedelta

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a text the settings have checked."""
        found = WINDOW.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"read window {text!r}: it is not HH:MM-HH:MM, with days if need be")
        start, end = _since_midnight(found["start"]), _since_midnight(found["end"])
        return cls(
            " ".join(text.replace("-", "–").split()),
            _days(found["first"], found["last"]),
            start,
            end - start if end > start else end - start + _DAY,
        )

    def closes_until(self, now: datetime) -> datetime | None:
        """The end of the window that is under way, which may have begun yesterday; None if none is."""
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        for day in (midnight, midnight - _DAY):
            begin = day + self.start
            if day.weekday() in self.days and begin <= now < begin + self.length:
                return begin + self.length
        return None


def _since_midnight(text: str) -> timedelta:
    hours, minutes = text.split(":")
    return timedelta(hours=int(hours), minutes=int(minutes))


def _days(first: str | None, last: str | None) -> frozenset[int]:
    """`Sat-Mon` goes over the end of the week."""
    if first is None:
        return frozenset(range(7))
    start = DAYS.index(first.lower())
    span = (DAYS.index((last or first).lower()) - start) % 7
    return frozenset((start + day) % 7 for day in range(span + 1))


@dataclass(frozen=True, slots=True)
class Windows:
    """When nothing new may start. Without windows it is always open. `setting` of `[budgets]` is where they come from."""

    windows: tuple[Window, ...] = ()
    setting: str = "pause_compaction"

    @classmethod
    def parse(cls, texts: Iterable[str], setting: str = "pause_compaction") -> Self:
        return cls(tuple(Window.parse(text) for text in texts), setting)

    @classmethod
    def for_run(cls, budgets: BudgetsConfig, trigger: Trigger) -> Self:
        """Those this run has to obey."""
        return cls.parse(budgets.pause_compaction if trigger.type == "schedule" else ())

    def closed(self, now: datetime) -> Reason | None:
        """Why nothing may start now; None when it may."""
        for window in self.windows:
            if window.closes_until(now) is not None:
                told = f"paused {window.text} UTC ([budgets] {self.setting})"
                return Reason(ReasonKind.QUIET_WINDOW, told)
        return None

    def opens_at(self, now: datetime) -> datetime | None:
        """When work may start: now, or at the end of adjoining windows. None means never."""
        moment = now
        while moment < now + _WEEK:
            ends = [end for window in self.windows if (end := window.closes_until(moment)) is not None]
            if not ends:
                return moment
            moment = max(ends)
        return None

    def check(self, now: datetime) -> None:
        """Raises Paused inside a window."""
        reason = self.closed(now)
        if reason is not None:
            raise Paused(reason.text)


class NoAnswer(Exception):
    """Prometheus did not say what the value is."""


class BackOff:
    """Lets a task start when the queries beside it are fast enough. One for a run; any of its threads may wait.

    If Prometheus does not answer or has no value, tasks start: a monitoring outage must not stop the maintenance that keeps
    queries fast. This is logged once, as a warning.
    """

    def __init__(
        self, url: str, query: str, above: float, poll_seconds: float, max_wait_seconds: float
    ) -> None:
        self._request = _request(url, query)
        self._server, self._query, self._above = redact_url(url), query, above
        self._poll, self._max_wait = poll_seconds, max_wait_seconds
        self._turn = threading.Lock()
        self._calm_until = -math.inf
        self.waited = 0.0
        self.trouble = ""

    @classmethod
    def of(cls, budgets: BudgetsConfig) -> Self | None:
        """None unless `backoff_url`, `backoff_query` and `backoff_above` are all set."""
        if budgets.backoff_url is None or budgets.backoff_query is None or budgets.backoff_above is None:
            return None
        return cls(
            budgets.backoff_url,
            budgets.backoff_query,
            budgets.backoff_above,
            budgets.backoff_poll_seconds,
            budgets.backoff_max_wait_seconds,
        )

    def wait(self, stop: threading.Event, note: Callable[[str], None]) -> float:
        """Return when a task may start, or the run is stopped; answers with the seconds slept.

        One thread asks and waits for all of them. The answer is valid until the next question is due.
        """
        with self._turn:
            if stop.is_set() or clock.monotonic() < self._calm_until:
                return 0.0
            slept = self._until_calm(stop, note)
            self._calm_until = clock.monotonic() + self._poll
            self.waited += slept
            return slept

    def _until_calm(self, stop: threading.Event, note: Callable[[str], None]) -> float:
        began = clock.monotonic()
        value = self._value(note)
        if value is None or value <= self._above:
            return 0.0
        note(f"waiting: {self._query} is {value:g}, above {self._above:g} ([budgets] backoff_above)")
        deadline = began + self._max_wait
        while value is not None and value > self._above and clock.monotonic() < deadline:
            if stop.wait(min(self._poll, max(0.0, deadline - clock.monotonic()))):
                break
            value = self._value(note)
        slept = clock.monotonic() - began
        note(f"going on after {slept:,.0f} s of waiting: {self._finding(value, stop)}")
        return slept

    def _finding(self, value: float | None, stop: threading.Event) -> str:
        if stop.is_set():
            return "the run is stopped"
        if value is None:
            return "Prometheus no longer answers"
        if value > self._above:
            return f"{self._query} is still {value:g} ([budgets] backoff_max_wait_seconds)"
        return f"{self._query} is {value:g}"

    def _value(self, note: Callable[[str], None]) -> float | None:
        try:
            return highest(_answer(self._request))
        except NoAnswer as error:
            self._tell(f"cannot back off: {self._server} {error}; rewriting without waiting", note)
            return None

    def _tell(self, trouble: str, note: Callable[[str], None]) -> None:
        if not self.trouble:
            self.trouble = trouble
            log.warning("%s", trouble)
            note(f"warning: {trouble}")


def highest(body: object) -> float:
    """The highest value of a vector or scalar in Prometheus' format, or NoAnswer.

    A quantile is NaN while there are no queries, so NaN counts as no value.
    """
    match body:
        case {"status": "success", "data": {"resultType": "scalar", "result": [_, value]}}:
            values: list[Any] = [value]
        case {"status": "success", "data": {"resultType": "vector", "result": [*series]}}:
            values = [each["value"][1] for each in series if _has_value(each)]
        case {"status": "success", "data": {"resultType": str(kind)}}:
            raise NoAnswer(f"answers with a {kind}, and a vector or a scalar is needed")
        case {"error": reason}:
            raise NoAnswer(f"refuses the query: {reason}")
        case _:
            raise NoAnswer("answers in another format than Prometheus'")
    numbers = [number for number in map(_number, values) if not math.isnan(number)]
    if not numbers:
        raise NoAnswer("has no value for the query")
    return max(numbers)


def _has_value(series: object) -> bool:
    match series:
        case {"value": [_, _]}:
            return True
        case _:
            return False


def _number(text: object) -> float:
    """Prometheus sends numbers as text, among them NaN and +Inf."""
    try:
        return float(str(text))
    except ValueError:
        return math.nan


_TIMEOUT_SECONDS = 5.0
_ANSWER_BYTES = 16 << 20


def _request(url: str, query: str) -> Request:
    """A name and password in the address become an HTTP header."""
    parts = urlsplit(url)
    _, _, host = parts.netloc.rpartition("@")
    plain = urlunsplit(
        (parts.scheme, host, parts.path.rstrip("/") + "/api/v1/query", urlencode({"query": query}), "")
    )
    request = Request(plain, headers={"Accept": "application/json"})
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    return request


def _answer(request: Request) -> object:
    try:
        return _fetched(request)
    except (OSError, HTTPException, ValueError, OverflowError) as error:  # the last: a port there cannot be
        raise NoAnswer(f"does not answer: {redact_text(str(error) or type(error).__name__)}") from error


def _fetched(request: Request) -> object:
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            return _decoded(response.read(_ANSWER_BYTES))
    except HTTPError as error:
        # A query that Prometheus cannot read comes as an error, with the reason in the body.
        with error:
            body = _decoded(error.read(_ANSWER_BYTES))
        return body if isinstance(body, dict) else {"error": f"HTTP {error.code} {error.reason}"}


def _decoded(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None
