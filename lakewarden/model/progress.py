"""How long work tells that it is moving. Who shows it (a bar, lines, nothing) is handed in."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def begin(self, what: str, total_bytes: int) -> None:
        """Work of this size starts."""

    def advance(self, done_bytes: int) -> None:
        """This much more is done."""

    def note(self, text: str) -> None:
        """Something worth a line: a commit, a group that was skipped."""

    def end(self) -> None:
        """The work is over, one way or another."""


class Silent:
    def begin(self, what: str, total_bytes: int) -> None: ...

    def advance(self, done_bytes: int) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...
