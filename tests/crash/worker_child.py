"""A worker in a process of its own. Told so, it dies, hard, in the middle of a job: see `deleting_child`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from lakewarden import Lakewarden
from lakewarden.cli.worker import _Plain
from lakewarden.worker.daemon import Worker
from tests.crash.deleting_child import Task, end_at

WORKER = {
    "lease_seconds": 3,
    "poll_seconds": 1,
    "retry_seconds": 1,
    "parallel_tables": 1,
    "drain_seconds": 60,
}


def config(told: dict[str, Any]) -> dict[str, Any]:
    folder, catalog = told["folder"], told["catalog"]
    catalogs = {catalog: {"type": "hadoop", "warehouse": f"{folder}/warehouse"}}
    if told.get("cold"):
        catalogs[told["cold"]] = {"type": "hadoop", "warehouse": f"{folder}/cold"}
    return {
        "state": {"url": told["url"]},
        "spark": {"master": "local[1]"},
        "worker": {**WORKER, "tables": [f"{catalog}.*"], **told.get("worker", {})},
        "catalogs": catalogs,
    }


def main(text: str) -> None:
    told = json.loads(text)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Plain())
    logger = logging.getLogger("lakewarden")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # py4j makes a handler of its own when a JVM is gone
    if told.get("place"):
        end_at(
            Task(
                told["folder"],
                "",
                "",
                told["place"],
                told["when"],
                told.get("nth", 1),
                told.get("end", "die"),
            )
        )
    with Lakewarden(config(told), environ={}) as lw:
        Worker(lw).run()


if __name__ == "__main__":
    main(sys.argv[1])
