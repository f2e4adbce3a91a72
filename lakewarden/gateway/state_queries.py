"""Queries the state database about a table, in threads: a slow database delays commits, never the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from lakewarden import clock
from lakewarden.errors import LakewardenError
from lakewarden.gateway.judge import CurrentTable
from lakewarden.gateway.upstream import TableNow
from lakewarden.model.table import cold_properties
from lakewarden.model.table_name import TableRef
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State
from lakewarden.state.holds import Pins
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.run_queries import expiring_now
from lakewarden.state.runs import Journal

_THREADS = 8
_HEALTH_SECONDS = 2.0

T = TypeVar("T")


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
