"""What never answers holds nobody up: a JVM that stands still, and a catalog that takes a question and says nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakewarden import Lakewarden, clock
from lakewarden.errors import Unreachable
from lakewarden.tables import jvm
from lakewarden.worker import spark_session
from lakewarden.worker.spark_session import Session
from tests.support.lab import Lab
from tests.support.ports import wait_until

# By which a call that has a deadline has ended, on a busy machine.
SOON = 30.0


def within(seconds: float, do: object) -> threading.Thread:
    """The call, on a thread of its own: a test must not hang with it."""
    thread = threading.Thread(target=do, daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(seconds)
    return thread


@contextmanager
def standing_still() -> Iterator[int]:
    """The JVM that all tests share, for a while."""
    pid = int(SparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_jvm_that_stands_still_holds_up_neither_a_standby_nor_a_console(lab: Lab) -> None:
    _ = lab.lw.lake
    ended = threading.Event()
    with (
        patch.object(spark_session, "PROBE_SECONDS", 2.0),
        patch.object(spark_session, "end_jvm", ended.set),
    ):
        kept = Session(lab.lw)
        with standing_still():
            asked = within(SOON, kept.revive)
            assert not asked.is_alive(), "who asks a console for a table waits for a JVM that does not answer"
            wait_until(lambda: bool(kept.watch() or ended.is_set()), "what waits for it hears of it", SOON)
        kept.leave()
    assert lab.lw.connections.lake_lives


@pytest.fixture
def silent(spark: SparkSession) -> Iterator[str]:
    """A REST catalog that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_catalog_that_never_answers_is_given_up(spark: SparkSession, silent: str, tmp_path: Path) -> None:
    alone = spark.newSession()
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "catalogs": {"silent": {"type": "rest", "uri": silent}},
    }
    failed: list[BaseException] = []

    def ask(lw: Lakewarden) -> None:
        try:
            lw.run("compact", "silent.db.t")
        except BaseException as error:
            failed.append(error)

    with patch.object(jvm, "ANSWER_SECONDS", 2), Lakewarden(config, spark=alone, environ={}) as lw:
        began = clock.monotonic()
        asked = within(2 * SOON, lambda: ask(lw))
        assert not asked.is_alive(), f"no answer after {clock.monotonic() - began:.0f} seconds"
    assert failed and isinstance(failed[0], Unreachable), failed
    assert "Read timed out" in failed[0].message
