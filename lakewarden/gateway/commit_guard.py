"""Handles one commit: reads it, judges it, and forwards it once or rejects it.

The client's answer depends on how far the commit came:

    not understood, or against a rule                   400, 403: nothing was forwarded
    the catalog or the state database is unavailable    503: nothing was forwarded
    forwarded                                           the catalog's own answer, whatever it is
    forwarded, and no whole answer came                 500, unknown: never reported as failed, never sent again

The state database is queried in threads: a slow database delays commits, never the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import httpx
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from lakewarden import clock
from lakewarden.errors import CommitLost, LakewardenError, PolicyError, Unreachable
from lakewarden.gateway import commit_request as commits
from lakewarden.gateway import responses
from lakewarden.gateway.commit_order import CommitLocks, CommitOrder
from lakewarden.gateway.commit_request import TableChange
from lakewarden.gateway.judge import CommitRules, CurrentTable, Objection, PolicyCache, judge, looks_at_table
from lakewarden.gateway.metrics import Counts
from lakewarden.gateway.request_kind import GatewayRoute, RouteKind, UnclearRequest, table_path
from lakewarden.gateway.responses import EarlyResponse, GatewayResponse, Headers
from lakewarden.gateway.upstream import NOT_SENT, TableNow, Upstream, forwarded
from lakewarden.lineage.validate import Requirements
from lakewarden.model.table import TableRef, cold_properties, cold_source
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State
from lakewarden.state.holds import Pins
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.run_queries import expiring_now
from lakewarden.state.runs import Journal

log = logging.getLogger(__name__)

_EXPECTED = (LakewardenError, SQLAlchemyError)
# Bodies that take longer to parse are parsed outside the event loop, few at once: each takes many times its size in memory.
_LARGE_BYTES = 256 << 10
_READERS = 2
# As much of the client's input as is needed to recognise it.
_REASON_LETTERS = 300
_REASONS = 20
_HINT = "see `lakewarden policy {table}` and `lakewarden holds {table}`"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """A request with its complete body. `target` is path and query, as sent."""

    method: str
    target: bytes
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> str:
        """The header's value; several headers are joined to one list, as in HTTP."""
        return ",".join(value.decode("latin-1") for each, value in self.headers if each.lower() == name)


class GatewayCommitGuard:
    """`catalog` is Lakewarden's name for the catalog behind the gateway."""

    def __init__(
        self,
        catalog: str,
        upstream: Upstream,
        policies: PolicyCache,
        facts: Facts,
        turns: CommitOrder,
        counts: Counts,
    ) -> None:
        self._catalog = catalog
        self._upstream = upstream
        self._policies = policies
        self._facts = facts
        self._turns = turns
        self._counts = counts
        self._readers = ThreadPoolExecutor(_READERS, "lakewarden-read")

    def close(self) -> None:
        self._readers.shutdown()

    async def commit(self, request: GatewayRequest, route: GatewayRoute) -> GatewayResponse:
        try:
            return await self._judged(request, route, await self._read(request, route))
        except UnclearRequest as error:
            return responses.bad_request(
                f"Lakewarden's gateway does not let through what it cannot judge: {error}"
            )
        except EarlyResponse as ended:
            return ended.answer
        except PolicyError as error:
            return responses.forbidden(f"refusing to commit: {error.message}; {error.hint}")
        except CommitLost as error:
            return responses.unavailable(
                f"it is not the commit's turn, so nothing was forwarded: {error.message}"
            )
        except Exception as error:  # errors after forwarding never arrive here
            reason = _why(error)
            log.warning("a commit cannot be judged: %s", reason, exc_info=not isinstance(error, _EXPECTED))
            return responses.unavailable(
                f"Lakewarden's gateway cannot judge the commit now, so nothing was forwarded: {reason}"
            )

    async def _read(self, request: GatewayRequest, route: GatewayRoute) -> tuple[TableChange, ...]:
        encoding, charset = (
            request.header(b"content-encoding"),
            _charset(request.header(b"content-type")),
        )
        # A small compressed body may be large when decompressed.
        if len(request.body) <= _LARGE_BYTES and encoding in ("", "identity"):
            return commits.read(request.body, route, encoding, charset)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, commits.read, request.body, route, encoding, charset)

    async def _judged(
        self, request: GatewayRequest, route: GatewayRoute, changes: Sequence[TableChange]
    ) -> GatewayResponse:
        cases = [
            _Case(TableRef(self._catalog, each.namespace, each.table), each, _path(request, route, each))
            for each in changes
        ]
        rules = {each.ref: await self._rules(each, request.headers) for each in cases if each.change.updates}
        looking = [
            each for each in cases if each.ref in rules and looks_at_table(each.change, rules[each.ref])
        ]
        waiting = [each for each in looking if each.change.takes_turn]
        before = {each.ref: await self._seen(each, request.headers) for each in waiting}
        tables = [(ref, seen.uuid) for ref, seen in before.items() if seen is not None]
        answer: GatewayResponse | None = None
        try:
            async with self._turns.taken(tables) as turn:
                now = {each.ref: await self._now(each, request.headers, dict(tables)) for each in looking}
                _check_distinct(now)
                await self._refuse(cases, rules, now)
                answer = await self._forward(request, turn, any(each.change.removed for each in cases))
        except Exception as error:
            if answer is None:
                raise
            # The commit was forwarded and its outcome is known: no error may replace it.
            log.warning("after a commit was answered: %s", _why(error))
        for each in cases:
            if each.change.properties is not None:
                self._policies.forget(each.ref)
        return answer

    async def _rules(self, case: _Case, headers: Headers) -> CommitRules:
        async def properties() -> Mapping[str, str]:
            seen = await self._seen(case, headers)
            return case.change.afterwards({}) if seen is None else seen.properties

        if not case.change.judged:
            # Only whether the table may change at all: the state database is asked only if a property says it may not.
            return CommitRules(Requirements(), cold_of=cold_source(await properties()))
        if case.change.creates:
            return await self._policies.once(case.ref, await properties())
        try:
            return await self._policies.rules(case.ref, properties)
        except PolicyError:
            if not case.change.only_rules:
                raise
            # Otherwise a table with a wrong property could never be corrected.
            return await self._policies.once(case.ref, cold_properties(await properties()))

    async def _now(self, case: _Case, headers: Headers, uuids: Mapping[TableRef, str]) -> CurrentTable:
        seen = await self._seen(case, headers)
        if seen is None:
            return CurrentTable()
        if uuids.get(case.ref, seen.uuid) != seen.uuid:
            raise EarlyResponse(
                responses.conflict(f"{case.ref} was dropped and created again while the commit waited")
            )
        return await self._facts.now(case.ref, seen)

    async def _seen(self, case: _Case, headers: Headers) -> TableNow | None:
        """The table as its catalog shows it to this client; None if it is to be created.

        If the client may not read it, the answer is the catalog's own: a client that may not see the table
        changes nothing in it.
        """
        try:
            table = await self._upstream.table(case.path, headers, history=bool(case.change.removed))
        except (httpx.HTTPError, ValueError) as error:
            raise EarlyResponse(_unseen(case.ref, f"{type(error).__name__}: {error}")) from error
        if isinstance(table, TableNow):
            return await self._facts.believed(table)
        if table.status == 404 and case.change.creates:
            return None
        raise EarlyResponse(
            table if 400 <= table.status < 500 else _unseen(case.ref, f"it answered {table.status}")
        )

    async def _refuse(
        self,
        cases: Iterable[_Case],
        rules: Mapping[TableRef, CommitRules],
        now: Mapping[TableRef, CurrentTable],
    ) -> None:
        """End the request if a rule forbids any table's part of it. The message lists all objections."""
        reasons = []
        for case in cases:
            if case.ref not in rules:
                continue
            here = now.get(case.ref, CurrentTable())
            if case.change.ruling:
                before = here.properties
                await self._policies.check(case.ref, before, case.change.afterwards(before))
            objections = judge(case.change, rules[case.ref], here)
            if not objections:
                continue
            reason = _told(objections)
            message = f"refusing to commit to {case.ref}: {reason}"
            reasons.append(f"{message} ({_HINT.format(table=case.ref)})")
            counted_as = str(case.ref) if here.uuid or not case.change.creates else None
            self._counts.refused(counted_as, {each.rule for each in objections}, message)
        if reasons:
            raise EarlyResponse(responses.forbidden("; ".join(reasons)))

    async def _forward(self, request: GatewayRequest, turn: CommitLocks, removes: bool) -> GatewayResponse:
        await turn.forwarding(removes)
        began = clock.monotonic()
        try:
            answer = await self._upstream.whole(
                request.method, request.target, _sized(request.headers), request.body
            )
        except NOT_SENT as error:
            turn.settled()
            return responses.unavailable(
                f"the catalog cannot be reached, nothing was sent to it: {_words(error)}"
            )
        except Exception as error:  # whatever it is, the commit was sent: only "unknown" is a correct answer
            return responses.unknown(
                f"the catalog did not say whether the commit happened ({_words(error)}); check the table before you try again"
            )
        finally:
            self._counts.catalog_seconds.observe(clock.monotonic() - began)
        # An answer that leaves the outcome open leaves it open here too.
        if answer.status < 500:
            turn.settled()
        return answer


@dataclass(frozen=True, slots=True)
class _Case:
    ref: TableRef
    change: TableChange
    path: bytes


def _check_distinct(now: Mapping[TableRef, CurrentTable]) -> None:
    """A catalog may know one table by several names. Two changes of one table cannot each be judged by the
    state before both.
    """
    names: dict[str, TableRef] = {}
    for ref, here in now.items():
        if here.uuid and names.setdefault(here.uuid, ref) is not ref:
            raise UnclearRequest(f"{names[here.uuid]} and {ref} are the same table")


def _path(request: GatewayRequest, route: GatewayRoute, change: TableChange) -> bytes:
    """The path of the table: as the client wrote it, or as a transaction names it."""
    if route.kind is RouteKind.COMMIT:
        return request.target.partition(b"?")[0]
    return table_path(route.before, change.namespace, change.table)


def _sized(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Set the length to that of the judged bytes, and keep no other length header."""
    return [each for each in forwarded(headers) if each[0].lower() != b"content-length"]


def _charset(content_type: str) -> str:
    for part in content_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"')
    return ""


def _unseen(table: TableRef, reason: str) -> GatewayResponse:
    return responses.unavailable(f"the catalog did not show {table} ({reason}); the commit was not forwarded")


def _told(objections: Sequence[Objection]) -> str:
    """All objections; only the first ones if there are very many, and only the beginning of a very long one."""
    reasons = [_cut(each.reason) for each in objections[:_REASONS]]
    more = len(objections) - len(reasons)
    return "; ".join(reasons) + (f"; and {more} more" if more else "")


def _cut(reason: str) -> str:
    """Cut out the middle of a text that is too long: the client's input is there, and the rule is at the end."""
    if len(reason) <= _REASON_LETTERS:
        return reason
    half = _REASON_LETTERS // 2
    return f"{reason[:half]} … {reason[-half:]}"


def _why(error: Exception) -> str:
    """The reason that the client sees. A database's own message is not passed on: it may contain confidential values."""
    if isinstance(error, Unreachable | SQLAlchemyError):
        return "the state database does not answer as it should"
    if isinstance(error, LakewardenError):
        return error.message
    return f"an unexpected error ({type(error).__name__}); see the gateway's log"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_THREADS = 8
_HEALTH_SECONDS = 2.0


class Facts:
    def __init__(self, state: State) -> None:
        self._state = state
        self._looking: asyncio.Future[bool] | None = None
        self._pins = Pins(state)
        self._journal = Journal(state)
        self._policies = StoredPolicies(state)
        self._cold = ColdTables(state)
        self._threads = ThreadPoolExecutor(_THREADS, "lakewarden-facts")

    def close(self) -> None:
        self._threads.shutdown()

    async def stored(self, table: str) -> Mapping[str, object]:
        """The table's stored policy."""
        return await self._ask(lambda: self._policies.get(table))

    async def believed(self, seen: TableNow) -> TableNow:
        """The table without the properties of a colder tier, if hand-off recorded nothing in the table's
        folder.

        Otherwise one commit that sets such a property would block all later commits, even the one that removes
        it.
        """
        marks = cold_properties(seen.properties)
        if not marks:
            return seen
        live = await self._ask(lambda: self._cold.source(seen.properties, seen.uuid, seen.location))
        if live:
            return seen
        left = {name: each for name, each in seen.properties.items() if name not in marks}
        return replace(seen, properties=left)

    async def now(self, table: TableRef, seen: TableNow) -> CurrentTable:
        """The table as its catalog shows it, with the active pins and the snapshots that Lakewarden is expiring now."""

        def found() -> CurrentTable:
            at = clock.now()
            pins = self._pins.live(seen.uuid, at)
            going = expiring_now(self._journal, str(table))
            return CurrentTable(seen.refs, pins, going, seen.uuid, seen.properties, seen.snapshots, at)

        return await self._ask(found)

    async def answers(self) -> bool:
        """Whether the state database answers in time. Only one query runs at a time, however many callers
        wait."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._ask(self._reached))
        try:
            return await asyncio.wait_for(asyncio.shield(self._looking), _HEALTH_SECONDS)
        except TimeoutError:
            return False

    def _reached(self) -> bool:
        try:
            with self._state.read() as connection:
                connection.execute(select(1))
        except (LakewardenError, SQLAlchemyError):
            return False
        return True

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)
