"""A server in a process of its own, with its output in a file; it is killed when its block ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import wait_until

# A server of the tests lives for minutes: a quick start is worth more than quick code.
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass
class Server:
    """One process, which can be killed and started again with the same command."""

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, ready: Callable[[], bool] = lambda: True, seconds: float = 120) -> None:
        """Return when it is ready; a process that ended before that is an error with its last lines."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
            )
        wait_until(lambda: not self.running or ready(), f"{self.name} answers", seconds)
        if not self.running:
            raise RuntimeError(f"{self.name} ended while it started: {self.last_lines()}")

    def kill(self) -> None:
        """By SIGKILL, as a crash would end it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def last_lines(self, count: int = 5) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-count:])
