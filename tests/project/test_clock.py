"""Threads that must live outlive whatever one of their rounds raises."""

from __future__ import annotations

import threading

from lakewarden import clock


def test_what_is_repeated_goes_on_after_any_failure() -> None:
    rounds, enough = [], threading.Event()

    def do() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 3:
            enough.set()
        raise (RuntimeError("once"), ValueError("twice"), KeyError("thrice"))[min(len(rounds) - 1, 2)]

    with clock.repeating(do, 0.01, "lakewarden-test"):
        assert enough.wait(10), f"it ended after {len(rounds)} rounds"
