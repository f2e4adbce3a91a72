"""The keys of each command's `--json` document, as far as the state database alone answers it: no Spark, within seconds."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakewarden import Lakewarden, clock
from lakewarden.cli import main
from lakewarden.jobs.compact import plan
from lakewarden.lineage.history import TableHistory, month_of
from lakewarden.model.run import Job, RunState, Trigger
from lakewarden.report.plan import PlanReport
from lakewarden.state.history import SnapshotArchive
from lakewarden.state.holds import Pin, Pins
from lakewarden.state.process import current_owner
from lakewarden.state.schedule import SEEN, TableSchedule, TableSchedules
from lakewarden.state.tables import SeenTables
from lakewarden.state.trash import TrashedFiles
from tests.support.lineage import snapshots, view_of
from tests.support.tables import MB, NOW, TABLE, file, files, policy, view

NAME = str(TABLE)
EXPIRED = snapshots(60, days=60)
_A_NAME = re.compile(r"[A-Za-z][\w./ -]*$")
# Below these is what others name: Iceberg, the table's owner, the store. `inputs` are keyed by snapshot.
_OF_OTHERS = frozenset({"summary", "properties", "detail"})


@dataclass
class Asker:
    config: Path
    trees: dict[str, Any] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def __call__(self, name: str, *words: str, code: int = 0) -> Any:
        """Notes the document under `name`; documents of one name are laid over each other."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main(["--config", str(self.config), *words, "--json"])
        if found != code:  # the others are asked all the same
            self.troubles.append(f"{' '.join(words)} ended with {found}: {err.getvalue()}")
        document = json.loads(out.getvalue() or err.getvalue())
        self.trees[name] = merged(self.trees.get(name), keys_of(document))
        return document


def keys_of(value: Any, key: str = "") -> Any:
    """Objects by their keys, lists as one item laid over all others; None for a value."""
    if isinstance(value, Mapping):
        if key in _OF_OTHERS:
            return "by name"
        tree: dict[str, Any] = {}
        for name, each in value.items():
            shown = name if _A_NAME.match(name) and "lake_" not in name else "*"
            tree[shown] = merged(tree.get(shown), keys_of(each, name))
        return dict(sorted(tree.items()))
    if isinstance(value, list):
        whole: Any = None
        for each in value:
            whole = merged(whole, keys_of(each, key))
        return [whole]
    return None


def merged(one: Any, other: Any) -> Any:
    """Two trees laid over each other. A value that may be missing, or be an object, is shown as the object."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: merged(one.get(name), other.get(name)) for name in sorted(one.keys() | other.keys())}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(one[0], other[0])]
    return other if one is None else one


def key_trees(folder: Path) -> dict[str, Any]:
    """By command, in the order of their names."""
    config = folder / "contracts.toml"
    config.write_text(
        '[state]\nurl = "sqlite:///contracts.db"\n[catalogs.lake]\ntype = "hadoop"\nwarehouse = "/t"\n'
    )
    ask = Asker(config)
    ask("migrate", "migrate")
    with Lakewarden.open(config) as lake:
        _fill(lake)
    for command in ("policy", "pins", "runs", "trash", "receipts", "history", "schedule"):
        ask(command, command, NAME, *(["--history-only"] if command == "history" else []))
    ask("policy --set", "policy", NAME, "--set", "rewrite_min_input_files=3")
    ask("policy --reset", "policy", NAME, "--reset")
    ask("run-show", "run-show", "run-over")
    ask("restore", "restore", NAME, "--run", "run-over")
    ask("suspend", "suspend", NAME, "--reason", "backfill", "--operator", "ana")
    ask("schedule", "schedule")
    ask("resume", "resume", NAME)
    ask("maintain --no-wait", "maintain", NAME, "--no-wait", "--operator", "ana")
    ask("requests", "requests", NAME)
    ask("cancel", "cancel", "run-open", "--operator", "bo")
    ask("error", "run-show", "nobody", code=2)
    first = str(EXPIRED[0].id)
    for question in (["gaps"], ["who"], ["ingested", "--snapshot", first], ["downstream", first]):
        ask(f"audit {question[0]}", "audit", question[0], NAME, *question[1:], "--history-only")
    ask.trees["plan compact"] = keys_of(json.loads(json.dumps(_a_plan().to_dict())))
    assert not ask.troubles, "\n".join(ask.troubles)
    return dict(sorted(ask.trees.items()))


def _a_plan() -> PlanReport:
    """Files to rewrite in two partitions, and files that are skipped."""
    rows = [file(MB, partition) for partition in range(2) for _ in range(10)]
    rows += [file(200 * MB), file(MB, position_deletes=1)]
    return PlanReport(plan.plan(view(), files(rows), policy(), None, NOW), "lakewarden run")


def _fill(lake: Lakewarden) -> None:
    """A table that a worker has seen, a run that is over and one that is open, a pin, and files in the trash and erased."""
    SeenTables(lake.state).saw(view(properties={"lakewarden.delete_grace_hours": "0"}), NOW)
    TableSchedules(lake.state).put_all([TableSchedule(NAME, SEEN, NOW)])
    SnapshotArchive(lake.state).add(view_of([]), EXPIRED, "run-over", NOW)
    ids = [each.id for each in EXPIRED if month_of(each.committed_at) == "2024-01"]
    TableHistory(lake.state).fold("2024-01", ids, table=NAME, table_uuid="u", run_id="fold-1", now=NOW)
    owner, now = current_owner(), clock.now()
    Pins(lake.state).add(Pin("p1", NAME, "u", 7, "report", "month end", now, now + timedelta(hours=2)))
    for run_id in ("run-over", "run-open"):
        job, trigger = (
            str(Job.EXPIRE if run_id == "run-over" else Job.COMPACT),
            Trigger("manual", "ana", "OPS-7"),
        )
        lake.journal.start(
            run_id=run_id, table=NAME, job=job, owner=owner, trigger=trigger, plan={}, policy={"keys": []}, now=NOW
        )  # fmt: skip
        if run_id == "run-over":
            lake.journal.step(run_id, owner, "trashing", {"files": 2}, NOW)
            lake.journal.finish(run_id, RunState.DONE, "", {"files": 2}, [42], NOW, owner)
    trash = TrashedFiles(lake.state)
    for batch, paths in (("run-over", ["s3://b/t/1", "s3://b/t/2"]), ("run-old", ["s3://b/t/3"])):
        count = len(paths)
        table = pa.table(
            {
                "path": pa.array(paths, pa.string()),
                "kind": pa.array(["data"] * count, pa.string()),
                "size": pa.array([1] * count, pa.int64()),
                "stamp": pa.nulls(count, pa.string()),
            }
        )
        trash.trash(batch, NAME, "u", "expire", "only expired snapshots need it", table, {}, now)
        trash.enforce(batch, now)
    pages = trash.due("u", {"expire": timedelta()}, now + timedelta(days=1))
    ids = [row["id"] for page in pages for row in page.to_pylist() if row["batch_id"] == "run-old"]
    purge = {"run_id": "purge-1", "table": NAME, "job": str(Job.PURGE), "owner": owner, "trigger": Trigger()}
    lake.journal.start(**purge, plan={}, policy={}, now=now)  # type: ignore[arg-type]
    trash.finish_erasing("purge-1", now, erased=trash.begin_erasing(ids, "purge-1", owner, now))
