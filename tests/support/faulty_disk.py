"""A disk with the manners of a bad object store: it fails, loses answers, does things twice and lists late."""

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


class FaultyDisk:
    """Wraps the real calls of a store. Nothing happens while it is `quiet`."""

    def __init__(self, rng: Random, now: Callable[[], datetime], counts: Counter[str]) -> None:
        self._rng, self._now, self._counts = rng, now, counts
        self.quiet = False

    def list(self, real: Callable[..., Iterator[pa.RecordBatch]], folder: str) -> Iterator[pa.RecordBatch]:
        late = self._happens("listings that came late")
        for batch in real(folder):
            if self._happens("listings that failed"):
                raise Unreachable(what=folder, reason="injected: the listing broke off")
            yield batch.filter(pc.less(batch["modified"], self._now() - _LATE)) if late else batch

    def ask(self, real: Callable[..., Any], paths: Sequence[str]) -> Any:
        if self._happens("questions that failed"):
            raise Unreachable(what=paths[0] if paths else "nothing", reason="injected: no answer")
        return real(paths)

    def delete(self, real: Callable[[Sequence[str]], dict[str, str]], path: str) -> dict[str, str]:
        if self._happens("deletes that failed"):
            return {path: "injected: the store is busy"}
        failed = real([path])
        if self._happens("deletes done twice"):
            failed = real([path])
        if self._happens("deletes whose answer was lost"):
            return {path: "injected: the answer was lost"}
        return failed

    def _happens(self, what: str) -> bool:
        if self.quiet or self._rng.random() >= _SOMETIMES:
            return False
        self._counts[what] += 1
        return True
