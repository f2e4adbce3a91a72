"""A disk with the manners of a bad object store: it fails, is slow, loses answers, does things twice and lists late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.errors import Unreachable

_SOMETIMES = 0.08
# What was written this recently may be missing in a listing.
_LATE = timedelta(minutes=5)
# An answer may take this long: longer than a proof counts, and than a run may be silent.
_SLOW_SECONDS = 150.0


class FaultyDisk:
    """Wraps the real calls of a store. Nothing happens while it is `quiet`. `wait` lets seconds pass."""

    def __init__(
        self,
        rng: Random,
        now: Callable[[], datetime],
        counts: Counter[str],
        wait: Callable[[float], None],
    ) -> None:
        self._rng, self._now, self._counts, self._wait = rng, now, counts, wait
        self.quiet = False

    def list(self, real: Callable[..., Iterator[pa.RecordBatch]], folder: str) -> Iterator[pa.RecordBatch]:
        self._delay()
        late = self._happens("listings that came late")
        for batch in real(folder):
            if self._happens("listings that failed"):
                raise Unreachable(what=folder, reason="injected: the listing broke off")
            self._delay()
            yield batch.filter(pc.less(batch["modified"], self._now() - _LATE)) if late else batch

    def ask(self, real: Callable[..., Any], *asked: Any) -> Any:
        """For every call that may be made again: it looks, reads, or writes one whole file."""
        if self._happens("questions that failed"):
            raise Unreachable(what=_first(asked[0]), reason="injected: no answer")
        if self._happens("questions asked twice"):
            real(*asked)
        answer = real(*asked)
        self._delay()
        return answer

    def delete(self, real: Callable[[Sequence[str]], dict[str, str]], path: str) -> dict[str, str]:
        if self._happens("deletes that failed"):
            return {path: "injected: the store is busy"}
        failed = real([path])
        if self._happens("deletes done twice"):
            failed = real([path])
        self._delay()
        if self._happens("deletes whose answer was lost"):
            return {path: "injected: the answer was lost"}
        return failed

    def _delay(self) -> None:
        if self._happens("answers that took long"):
            self._wait(self._rng.random() * _SLOW_SECONDS)

    def _happens(self, what: str) -> bool:
        if self.quiet or self._rng.random() >= _SOMETIMES:
            return False
        self._counts[what] += 1
        return True


def _first(asked: str | Sequence[str]) -> str:
    if isinstance(asked, str):
        return asked
    return asked[0] if asked else "nothing"
