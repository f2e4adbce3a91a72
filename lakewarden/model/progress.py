"""Progress of long work. The caller passes the display: a bar, lines or nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def begin(self, what: str, total_bytes: int) -> None:
        """Work of this size starts."""

    def advance(self, done_bytes: int) -> None:
        """This much more is done."""

    def note(self, text: str) -> None:
        """An event that deserves a line: a commit, a skipped group."""

    def end(self) -> None:
        """The work has ended, with or without success."""


class Silent:
    def begin(self, what: str, total_bytes: int) -> None: ...

    def advance(self, done_bytes: int) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...
