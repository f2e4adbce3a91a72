"""The process that owns a run, and whether it is still alive."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from lakewarden.model.run import Owner, Run

BEAT_TTL = timedelta(seconds=60)
_OUTERMOST_PID_SPACE = 0xEFFFFFFC
# Start times are computed from the boot time, which changes a little when the clock is corrected.
_SAME_START_SECONDS = 2.0


def current_owner() -> Owner:
    """A new owner for this process."""
    return Owner(_host(), os.getpid(), psutil.Process().create_time(), secrets.token_hex(4))


def is_gone(run: Run, now: datetime, ttl: timedelta = BEAT_TTL) -> bool:
    """Whether the run's owner is dead. If unsure, the run counts as owned: waiting is safe, two owners are
    not."""
    silent = run.beat_at is None or now - run.beat_at > ttl
    if run.owner.host != _host():
        return silent
    match _started(run.owner.pid):
        case None:
            return True
        case started if abs(started - run.owner.started) <= _SAME_START_SECONDS:
            return False
        case _:
            # The id was reused by another process, or the clock jumped: the heartbeat decides.
            return silent


def _host() -> str:
    """The host and its process-id namespace: containers with the same host name have process ids of their
    own."""
    space = _pid_space()
    return socket.gethostname() + (f"/{space}" if space else "")


def _pid_space() -> int | None:
    try:
        found = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None  # not Linux: one namespace per host
    return None if found == _OUTERMOST_PID_SPACE else found


def _started(pid: int) -> float | None:
    """When the process with that id started; None if there is none, or only a zombie."""
    try:
        process = psutil.Process(pid)
        dead = process.status() == psutil.STATUS_ZOMBIE
        started: float = process.create_time()
    except psutil.NoSuchProcess:
        return None
    return None if dead else started
