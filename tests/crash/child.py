"""Runs a job in a process of its own and kills it, hard, before or after one journaled step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from lakewarden import Lakewarden
from lakewarden.rewrite.interface import GroupResult
from lakewarden.state.runs import Journal
from lakewarden.tables.iceberg.writer import IcebergWriter


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_around(step: str, when: str) -> None:
    real = Journal.step

    def stepping(self: Journal, run_id: str, owner: Any, name: str, *rest: Any) -> None:
        if name == step and when == "before":
            die()
        real(self, run_id, owner, name, *rest)
        if name == step and when == "after":
            die()

    Journal.step = stepping  # type: ignore[method-assign]


def lose_races() -> None:
    """Steps that only a lost race takes: another writer removes the sources first."""
    real = IcebergWriter.commit_rewrite

    def commit(self: IcebergWriter, rewrite: Any, incorporate: Any = None) -> int | None:
        self._spark.sql(f"delete from {rewrite.table} where id >= 0")
        return real(self, rewrite, incorporate)

    IcebergWriter.commit_rewrite = commit  # type: ignore[method-assign]


def let_deletes_arrive() -> None:
    """The step that only deletes which arrive meanwhile take."""
    real, done = IcebergWriter.commit_rewrite, []

    def commit(self: IcebergWriter, rewrite: Any, incorporate: Any = None) -> int | None:
        if not done:
            done.append(True)
            name = str(rewrite.table)
            self._spark.sql(f"alter table {name} set tblproperties ('write.delete.mode'='merge-on-read')")
            self._spark.sql(f"delete from {name} where id % 7 = 0")
        return real(self, rewrite, incorporate)

    IcebergWriter.commit_rewrite = commit  # type: ignore[method-assign]


def find_rows_changed() -> None:
    """The step that only a broken kernel takes."""
    GroupResult.differs = True  # type: ignore[assignment,method-assign]


def catalog(folder: str, table: str) -> dict[str, str]:
    if table.startswith("pm."):
        return {"format": "paimon", "warehouse": f"{folder}/paimon"}
    return {"type": "hadoop", "warehouse": f"{folder}/warehouse"}


def main(folder: str, table: str, job: str, step: str, when: str) -> None:
    config = {
        "state": {"url": f"sqlite:///{folder}/state.db"},
        "spark": {"master": "local[2]"},
        "catalogs": {table.split(".")[0]: catalog(folder, table)},
    }
    with Lakewarden(config, environ={}) as lw:
        _ = lw.lake
        if step in ("discarded", "skipped"):
            lose_races()
        if step == "carrying":
            let_deletes_arrive()
        if step == "evidence":
            find_rows_changed()
        die_around(step, when)
        run = lw.run(job, table, policy={"manifest_rewrite_min_manifests": 2})
    print(f"survived: {run.state} {run.reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
