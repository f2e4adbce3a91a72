"""Runs commits of one table one at a time if they remove snapshots or give a name to an existing snapshot.

Under the lock, the table is read, and the commit is judged, forwarded and answered. Without it, a tag could be
created between the reading and the removal, and would be lost with its snapshot. The lock is in the state
database, so it works across several gateways. Commits in one process wait inside the process, and only the
first of them waits for the database lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from lakewarden.errors import CommitLost
from lakewarden.model.table import TableRef
from lakewarden.state.locks import Lock, Locks, removal

log = logging.getLogger(__name__)

_THREADS = 32


@dataclass(slots=True)
class CommitLocks:
    """The locks of one commit. From `forwarding` to `settled` the catalog may be executing it."""

    locks: list[Lock]
    open: bool = False

    async def forwarding(self, removes: bool) -> None:
        """Renew the locks for their whole time, or raise CommitLost. Called right before the commit is
        forwarded.

        A late new name is harmless: the catalog refuses it if the snapshot is gone. A late removal would not
        be.
        """
        for lock in self.locks:
            await asyncio.to_thread(lock.check)
        self.open = removes

    def settled(self) -> None:
        """The catalog answered, or nothing was sent to it."""
        self.open = False


class CommitOrder:
    """`wait`: for how many seconds a commit waits for earlier commits in this process."""

    def __init__(self, locks: Locks, wait: float) -> None:
        self._locks = locks
        self._wait = wait
        self._here: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(_THREADS, "lakewarden-turn")

    def close(self) -> None:
        self._threads.shutdown()

    @asynccontextmanager
    async def taken(self, tables: Iterable[tuple[TableRef, str]]) -> AsyncIterator[CommitLocks]:
        """The turn for these tables, each with its uuid. CommitLost if it does not come in time."""
        async with AsyncExitStack() as stack:
            turn = CommitLocks([])
            # In one order everywhere, so that two transactions never wait for each other; a table with two
            # names has one lock.
            for uuid, table in sorted({uuid: table for table, uuid in tables}.items()):
                turn.locks.append(await stack.enter_async_context(self._one(table, uuid)))
            try:
                yield turn
            finally:
                if turn.open:
                    # The commit may still happen: until the lock expires, no commit may rely on a snapshot that it removes.
                    for lock in turn.locks:
                        lock.leave()

    @asynccontextmanager
    async def _one(self, table: TableRef, uuid: str) -> AsyncIterator[Lock]:
        here = self._here.setdefault(uuid, asyncio.Lock())
        loop = asyncio.get_running_loop()
        async with self._first(here, table):
            held = self._locks.held(table, removal(uuid))
            lock = await loop.run_in_executor(self._threads, held.__enter__)
            try:
                yield lock
            finally:
                await asyncio.shield(loop.run_in_executor(self._threads, _let_go, held, table))

    @asynccontextmanager
    async def _first(self, here: asyncio.Lock, table: TableRef) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._wait):
                await here.acquire()
        except TimeoutError:
            reason = f"other commits were ahead of it for {self._wait:g} seconds; nothing was done"
            raise CommitLost(table=table, reason=reason) from None
        try:
            yield
        finally:
            here.release()


def _let_go(held: AbstractContextManager[Lock], table: TableRef) -> None:
    try:
        held.__exit__(None, None, None)
    except Exception as error:
        # The commit's outcome is known by now, and no error may replace it; the lock expires by itself.
        log.warning(
            "cannot release the lock on %s, it stays until it expires: %s", table, type(error).__name__
        )
