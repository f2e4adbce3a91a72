"""Buckets of a Paimon table merged in a process of its own, on the Spark master given; prints what came out as one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from lakewarden import Lakewarden
from tests.support.paimon import PaimonLab


def main(master: str, folder: Path) -> None:
    config = {
        "state": {"url": f"sqlite:///{folder}/state.db"},
        "spark": {"master": master},
        "catalogs": {"pm": {"format": "paimon", "warehouse": str(folder / "paimon")}},
    }
    with Lakewarden(config, environ={}) as lw:
        spark = lw.lake.spark
        lab = PaimonLab(spark, folder / "paimon", lw)
        table = lab.create("orders", keyed=True, **{"write-only": "true"})
        for start in (0, 10, 20):
            lab.append(table, 3, rows=30, start=start)
        before = lab.rows(table)
        run = lw.run("compact", table, {"rewrite_min_input_files": 2})
        executors = spark._jsc.sc().statusTracker().getExecutorInfos()
        told = {
            "master": master,
            "state": run.state,
            "reason": run.reason,
            "rows": len(before),
            "equal": lab.rows(table) == before,
            "buckets": run.counters.get("buckets_merged"),
            "where": "executors" if len(executors) > 1 else "driver",
        }
        print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
