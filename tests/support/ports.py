"""Waiting for real services: a port to listen on, and a condition with a deadline."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(ready: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Return as soon as the condition holds; fail, naming it, when the deadline passes."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {seconds:g} s")
        time.sleep(0.05)


def answers(port: int) -> bool:
    """Whether someone accepts connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
