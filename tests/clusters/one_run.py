"""A whole run in a process of its own, on the Spark master given; prints what came out as one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from lakewarden import Lakewarden
from tests.support.lab import Lab


def main(master: str, folder: Path, conf: dict[str, str]) -> None:
    config = {
        "state": {"url": f"sqlite:///{folder}/state.db"},
        "spark": {"master": master, "conf": {"spark.sql.shuffle.partitions": "2", **conf}},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": str(folder / "warehouse")}},
    }
    with Lakewarden(config, environ={}) as lw:
        spark = lw.lake.spark
        lab = Lab(spark, "lake", folder / "warehouse", lw)
        table = lab.messy(files=8, rows=1000, days=2)
        before = lab.rows(table)
        run = lw.run("compact", table)
        executors = spark._jsc.sc().statusTracker().getExecutorInfos()
        print(
            json.dumps(
                {
                    "master": master,
                    "state": run.state,
                    "rows": len(before),
                    "equal": lab.rows(table) == before,
                    "files_compacted": run.counters["files_compacted"],
                    "files_added": run.counters["files_added"],
                    "where": "executors" if len(executors) > 1 else "driver",
                }
            )
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
