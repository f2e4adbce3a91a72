"""A worker on a thread of the test, over the tables of a lab."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from lakewarden import Lakewarden
from lakewarden.state.schedule import PASS, TableSchedule
from lakewarden.worker.daemon import Worker
from tests.support.ports import wait_until

QUICK = {"lease_seconds": 3, "poll_seconds": 1, "retry_seconds": 1, "drain_seconds": 60}


def with_worker(
    spark: SparkSession, state_url: str, catalog: str, **sections: Mapping[str, Any]
) -> Lakewarden:
    """A Lakewarden whose worker looks after one catalog of the shared session."""
    worker = {**QUICK, "tables": [f"{catalog}.*"], **sections.pop("worker", {})}
    config = {"state": {"url": state_url}, "worker": worker, **sections}
    return Lakewarden(config, spark=spark, environ={})


@contextmanager
def working(lw: Lakewarden, **parts: Any) -> Iterator[Worker]:
    """While the body runs; afterwards it has drained."""
    with running(Worker(lw, **parts)) as worker:
        yield worker


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # shown by the test that started it
            raised.append(error)

    thread = threading.Thread(target=run, name="test-worker", daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.drain()
        thread.join(120)
    assert not raised, raised
    assert not thread.is_alive(), "it did not end after it was told to"


def slot(lw: Lakewarden, table: str, name: str = PASS) -> TableSchedule | None:
    return next((each for each in lw.schedule.standings(table) if each.slot == name), None)


def passed(lw: Lakewarden, table: str, name: str = PASS, seconds: float = 90) -> TableSchedule:
    """How the table stands once its pass, or this job, has ended."""

    def ended() -> bool:
        found = slot(lw, table, name)
        return found is not None and found.ended_at is not None

    wait_until(ended, f"{name} of {table} ends", seconds)
    found = slot(lw, table, name)
    assert found is not None
    return found
