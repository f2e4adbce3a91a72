"""Reads the bodies of requests: each within a time limit, with a limit on the total held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from lakewarden.gateway import responses
from lakewarden.gateway.commit_request import MAX_BYTES
from lakewarden.gateway.responses import EarlyResponse

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

# The memory that all commits in progress may take, as sent.
MOST_BYTES = 256 << 20


class Bodies:
    """`seconds` is the time a client may take to send one body."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held = 0

    @asynccontextmanager
    async def whole(self, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, held as long as the request takes; Answered if it is too large, too slow, or one too many."""
        body = bytearray()
        try:
            async for part in self._parts(receive):
                self._held += len(part)
                body += part
                if len(body) > MAX_BYTES:
                    too_large = f"a commit of more than {MAX_BYTES >> 20} MiB is not read"
                    raise EarlyResponse(responses.too_large(too_large))
                if self._held > MOST_BYTES:
                    raise EarlyResponse(
                        responses.unavailable("too many large commits are in progress; nothing was forwarded")
                    )
            yield bytes(body)
        finally:
            self._held -= len(body)

    async def parts(self, receive: Receive) -> AsyncIterator[bytes]:
        """The parts as they arrive, to be forwarded."""
        async for part in self._parts(receive):
            if part:
                yield part

    async def _parts(self, receive: Receive) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until, more = loop.time() + self._seconds, True
        while more:
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                late = f"the body of the request was not there within {self._seconds:g} seconds"
                raise EarlyResponse(responses.too_slow(late)) from None
            if message["type"] == "http.disconnect":
                raise EarlyResponse(responses.bad_request("the request ended before its body did"))
            yield message.get("body", b"")
            more = message.get("more_body", False)
