"""Output: reports to standard output, errors and progress to standard error. With `--json` only one JSON
document.

Long work shows a bar on a terminal, a line every few seconds elsewhere, and nothing with `--json`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.text import Text

from lakewarden import clock
from lakewarden.errors import LakewardenError
from lakewarden.formatting import duration, percent, size
from lakewarden.model.run import Progress, Silent

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from lakewarden.model.run import Progress
    from lakewarden.report.look import Report


# Output to a file or a pipe has no terminal width; lines are cut at this width instead.
_PIPE_WIDTH = 200


class Interrupted(LakewardenError):
    """interrupted"""

    exit_code = 130
    hint = "no table is left half changed: commits already made stay, and the next run cleans up the rest; see `lakewarden runs`"


@dataclass(frozen=True, slots=True)
class Screen:
    as_json: bool

    def show(self, report: Report) -> None:
        if self.as_json:
            _print_json(report.to_dict(), error=False)
        else:
            output = console()
            output.print(report.render(output.width))

    def say(self, words: RenderableType) -> None:
        """Print a part of a longer report. Silent with `--json`."""
        if not self.as_json:
            console().print(words)

    def nothing_of(self, table: object) -> None:
        """Warn next to an empty list that the table was never read: its name may be mistyped. Silent with
        `--json`."""
        if not self.as_json:
            words = f"table {table} is not known here; see `lakewarden tables` for the tables of the configured catalogs"
            console(stderr=True).print(Text(words, style="yellow"), soft_wrap=True)

    def error(self, error: LakewardenError) -> None:
        if self.as_json:
            _print_json(error.to_dict(), error=True)
            return
        output = console(stderr=True)
        output.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
        if error.hint:
            output.print(Text(f"  {error.hint}", style="yellow"), soft_wrap=True)

    @contextmanager
    def waiting(self, what: str, *, log: bool = False) -> Iterator[None]:
        """Show on a terminal what the program waits for; elsewhere print a line only if `log` is set."""
        output = console(stderr=True)
        if not self.as_json and output.is_terminal:
            with output.status(Text(what, style="dim")):
                yield
            return
        if log and not self.as_json:
            output.print(f"{what} ...")
        yield

    def progress(self) -> Progress:

        return progress_on(None if self.as_json else console(stderr=True))


def console(*, stderr: bool = False) -> Console:
    plain = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if plain.is_terminal or "COLUMNS" in os.environ:
        return plain
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH)


def _print_json(document: dict[str, Any], *, error: bool) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False), file=sys.stderr if error else sys.stdout)


LINE_SECONDS = 5.0


def progress_on(console: Console | None) -> Progress:
    """The progress display for this console; None shows nothing."""
    if console is None:
        return Silent()
    return Bar(console) if console.is_terminal else Lines(console)


class Bar:
    """Bytes done and total, speed, time left. Removed when the work ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def begin(self, what: str, total_bytes: int) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(what, total=max(total_bytes, 1))

    def advance(self, done_bytes: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, done_bytes)

    def note(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task = None, None


class Lines:
    """For logs: a line at the start, every few seconds, and at the end. Safe to call from several threads."""

    def __init__(self, console: Console, every: float = LINE_SECONDS) -> None:
        self._console, self._every = console, every
        self._lock = threading.Lock()
        self._what, self._total, self._done = "", 0, 0
        self._began = self._said = 0.0

    def begin(self, what: str, total_bytes: int) -> None:
        self._what, self._total, self._done = what, total_bytes, 0
        self._began = self._said = clock.monotonic()
        self.note(f"{what}: {size(total_bytes)} to read")

    def advance(self, done_bytes: int) -> None:
        with self._lock:
            self._done += done_bytes
            now = clock.monotonic()
            if now - self._said < self._every:
                return
            self._said = now
        self.note(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        share = f"{size(self._done)} of {size(self._total)} ({percent(self._done, self._total)})"
        speed = self._done / max(seconds, 0.001)
        left = duration((self._total - self._done) / speed) if speed and self._done < self._total else "0 s"
        return f"{self._what}: {share}, {size(speed)}/s, {left} left"

    def note(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def end(self) -> None: ...
