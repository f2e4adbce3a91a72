"""Runs a job that marks or deletes in a process of its own, which dies, or stops, at the moment it is told.

The moment is a place and a word: `before` or `after` it, or `inside`: everything of the place's transaction is written,
and the database has not heard that it shall count. Places are journaled steps and the calls of PLACES, each the n-th time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from sqlalchemy import Engine, event

from lakewarden import Lakewarden
from lakewarden.deletion import permit
from lakewarden.jobs.cold import copies
from lakewarden.jobs.purge import execute as purging
from lakewarden.state.cold import ColdFiles, ColdSnapshots
from lakewarden.state.history import HistoryIndex
from lakewarden.state.holds import Loads
from lakewarden.state.runs import Journal
from lakewarden.state.trash import TrashedFiles
from lakewarden.storage import local
from lakewarden.storage.archive import ObjectArchive
from lakewarden.tables.iceberg.writer import IcebergColdWriter, IcebergWriter
from lakewarden.tables.paimon.cold import PaimonColdWriter
from lakewarden.tables.paimon.writer import PaimonWriter

BATCH = 3
# Half a minute for users; no test waits for that long.
PERMIT_SECONDS = 1.0
# Where a process may end besides its journaled steps.
PLACES: dict[str, tuple[Any, str]] = {
    "trash": (TrashedFiles, "trash"),
    "expire-commit": (IcebergWriter, "expire"),
    "drop": (PaimonWriter, "expire"),
    "enforce": (TrashedFiles, "enforce"),
    "begin-erasing": (TrashedFiles, "begin_erasing"),
    "erase": (purging, "erase"),
    "unlink": (local, "_unlink"),
    "receipts": (TrashedFiles, "finish_erasing"),
    "restore": (TrashedFiles, "restore"),
    "claim": (Loads, "claim"),
    "adopt-commit": (IcebergWriter, "commit_adoption"),
    "end-load": (Loads, "end"),
    "make-cold": (IcebergColdWriter, "make"),
    "copies": (ColdFiles, "add"),
    "rehome": (copies, "placed"),
    "register": (IcebergColdWriter, "register"),
    "release": (IcebergColdWriter, "release"),
    "let-go": (ColdFiles, "let_go"),
    "left": (ColdSnapshots, "leave"),
    "move": (ObjectArchive, "move"),
    "classes": (ColdFiles, "classed"),
    "make-cold-paimon": (PaimonColdWriter, "make"),
    "register-paimon": (PaimonColdWriter, "register"),
    "put": (PaimonColdWriter, "_put"),
    "fold": (HistoryIndex, "fold"),
    "finish": (Journal, "finish"),
}


@dataclass(frozen=True)
class Task:
    """What to do, and when to end. `end` is `die`, or `stop`: asleep until someone sends SIGCONT."""

    folder: str
    table: str
    job: str
    place: str
    when: str
    nth: int = 1
    end: str = "die"
    load: str = ""
    policy: tuple[tuple[str, object], ...] = ()
    format: str = "iceberg"
    history: str = "state"
    catalogs: str = ""  # a file with them, where they are others: they may hold credentials


def end(task: Task) -> None:
    os.kill(os.getpid(), signal.SIGKILL if task.end == "die" else signal.SIGSTOP)


def end_at(task: Task) -> None:
    if task.place in PLACES:
        owner, name = PLACES[task.place]
        setattr(owner, name, _ending(getattr(owner, name), task, lambda arguments: True))
    else:
        step = _ending(Journal.step, task, lambda arguments: arguments[3] == task.place)
        Journal.step = step  # type: ignore[method-assign]


def _ending(real: Callable[..., Any], task: Task, here: Callable[[Any], bool]) -> Callable[..., Any]:
    calls: list[int] = []

    def called(*arguments: Any, **named: Any) -> Any:
        if not here(arguments):
            return real(*arguments, **named)
        calls.append(1)
        if len(calls) != task.nth:
            return real(*arguments, **named)
        if task.when == "before":
            end(task)
        if task.when == "inside":
            event.listen(Engine, "commit", lambda connection: end(task))
        done = real(*arguments, **named)
        if task.when == "after":
            end(task)
        return done

    return called


def do(lw: Lakewarden, task: Task) -> str:
    if task.job == "restore":
        return f"{lw.restore(task.table, everything=True).files} restored"
    if task.job == "adopt":
        run = lw.holds.stage_adopt(task.load)
    elif task.job == "fail":
        return str(lw.holds.stage_fail(task.load).state)
    else:
        run = lw.run(task.job, task.table, policy=dict(task.policy))
    return f"{run.state} {run.reason}"


def catalog(task: Task) -> dict[str, str]:
    if task.format == "paimon":
        return {"format": "paimon", "warehouse": f"{task.folder}/paimon"}
    return {"type": "hadoop", "warehouse": f"{task.folder}/warehouse"}


def main(told: str) -> None:
    found = json.loads(told)
    task = Task(**{**found, "policy": tuple(found["policy"].items())})
    purging.LOCAL_BATCH = BATCH
    copies._PORTION_FILES = 2
    if task.end == "stop":
        permit.GOOD_SECONDS = (
            1.0  # what is half a minute for users, so that no test has to sleep for that long
        )
    config: dict[str, Any] = {
        "state": {"url": f"sqlite:///{task.folder}/state.db"},
        "spark": {"master": "local[1]"},
        "lineage": {"history": task.history},
        "catalogs": {task.table.split(".")[0]: catalog(task)},
    }
    cold = dict(task.policy).get("handoff_catalog")
    if task.catalogs:
        config["catalogs"] = json.loads(Path(task.catalogs).read_text("utf-8"))
    elif cold is not None:
        kind = {"format": "paimon"} if task.format == "paimon" else {"type": "hadoop"}
        config["catalogs"][str(cold)] = {**kind, "warehouse": f"{task.folder}/cold"}
    with Lakewarden(config, environ={}) as lw:
        if task.job != "restore":
            _ = lw.lake  # the session starts before anything is waited for
        end_at(task)
        try:
            print("survived:", do(lw, task))
        except Exception as error:  # what a process that was stopped and went on says of it
            print(f"raised: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
