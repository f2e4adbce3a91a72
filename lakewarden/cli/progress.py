"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere, nothing with `--json`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from lakewarden import clock
from lakewarden.formatting import duration, percent, size
from lakewarden.model.progress import Progress, Silent

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

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
