"""A process of ours: a real Lakewarden on a real state database, which can be stopped, or kept waiting, at any moment.

A gate is such a moment: before and after every transaction, before a transaction's commit, around calls of the format
and of the store, before each delete. What happens at the gate of a given number, the history decides.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from lakewarden import Lakewarden
from lakewarden.config.schema import Config
from lakewarden.model.run import Owner
from lakewarden.state import database
from lakewarden.state.database import State

CONFIG = Config.from_dict({}, {})


class Crash(BaseException):
    """The process is gone: nothing it would still have done is done."""


class Gates:
    """The moments of one process, counted. Those of its helper threads come in no fixed order and do not count."""

    def __init__(self) -> None:
        self.count = 0
        self.crash_at = 0
        self.turn_at = 0
        self.turn: Callable[[], None] | None = None
        self.dead = False
        # Between a run's last look at its term and the end of its deletes nobody gets a turn: no check can come later.
        self.closed = False

    def at(self, *, crash_only: bool = False) -> None:
        if self.dead:
            raise Crash
        if threading.current_thread() is not threading.main_thread():
            return
        self.count += 1
        if self.count == self.crash_at:
            self.dead = True
            raise Crash
        if self.turn is not None and self.count >= self.turn_at and not crash_only and not self.closed:
            turn, self.turn = self.turn, None
            turn()


class GatedState(State):
    """The real database, with a gate on each side of every transaction and one before its commit."""

    gates: Gates

    def __init__(self, engine: Engine, gates: Gates) -> None:
        object.__setattr__(self, "engine", engine)
        object.__setattr__(self, "gates", gates)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        self.gates.at()
        with super().read() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        self.gates.at()
        with super().write() as connection:
            yield connection
            self.gates.at(crash_only=True)
        self.gates.at()


class Database:
    """One engine for all histories, so that statements are compiled once; each history has a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.db"
        State.open(f"sqlite:///{self._template}").close()
        self._path = self._template
        self.engine = create_engine("sqlite://", creator=self._connect, poolclass=QueuePool)
        event.listen(self.engine, "connect", database._on_connect)
        event.listen(self.engine, "begin", database._on_begin)

    def _connect(self) -> Any:
        return sqlite3.connect(self._path, timeout=database.BUSY_SECONDS, check_same_thread=False)

    def use(self, path: Path) -> None:
        """A new, empty database."""
        self.engine.dispose()
        shutil.copy(self._template, path)
        self._path = path

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """Past everything of ours."""
        raw = self.engine.raw_connection()
        try:
            driver: Any = raw.driver_connection
            return list(driver.execute(question, values).fetchall())
        finally:
            raw.close()


class Process:
    """A Lakewarden, who it says it is, and its gates."""

    def __init__(self, engine: Engine, lake: Any, host: str) -> None:
        self.host = host
        self.gates = Gates()
        self.lw = Lakewarden(CONFIG, environ={})
        self.lw.connections._state = GatedState(engine, self.gates)
        self.lw.connections._lake = lake
        self.lw.connections._made_lanes = [None]

    def owner(self) -> Owner:
        return Owner(self.host, 1, 0.0, secrets.token_hex(4))
