"""Commands that need only the state database: their documents are a contract, their words fit a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakewarden import Lakewarden, RunState, Trigger
from lakewarden.cli import main
from lakewarden.state.runs import current_owner
from lakewarden.state.tables import SeenTables
from tests.support.tables import NOW, TABLE, view

Shell = Callable[..., tuple[int, str]]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lakewarden]:
    """A configuration in this folder, and one table that was seen with a property of ours."""
    for name in [name for name in os.environ if name.startswith("LAKEWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("lakewarden.toml").write_text(
        '[catalogs.lake]\ntype = "hadoop"\n[policy]\nrewrite_min_input_files = 4\n'
    )
    with Lakewarden.open("lakewarden.toml") as lakewarden:
        seen = view(
            properties={"lakewarden.snapshot_min_retained": "7", "lakewarden.delete_grace_hours": "0"}
        )
        SeenTables(lakewarden.state).saw(seen, NOW)
        yield lakewarden


@pytest.fixture
def shell(lake: Lakewarden, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*words: str) -> tuple[int, str]:
        code = main(words)
        return code, capsys.readouterr().out

    return run


def journaled(lake: Lakewarden, state: RunState, counters: dict[str, Any], reason: str = "") -> str:
    owner, run_id = current_owner(), f"run-{state}"
    lake.journal.start(
        run_id=run_id,
        table=str(TABLE),
        job="compact",
        owner=owner,
        trigger=Trigger("incident-response", "ana", "OPS-7"),
        plan={
            "reason": "10 files become 1",
            "skipped": [{"what": "file", "count": 3, "bytes": 5000, "reason": "busy"}],
        },
        policy={"keys": []},
        now=NOW,
    )
    lake.journal.step(run_id, owner, "writing", {"outputs": {"0": ["/a", "/b"]}}, NOW)
    lake.journal.finish(run_id, state, reason, counters, [42], NOW + timedelta(seconds=3), owner)
    return run_id


COUNTERS = {"files_compacted": 10, "files_added": 1, "bytes_before": 9000, "bytes_after": 6000, "rows": 1200, "groups_skipped": 0}  # fmt: skip


def test_policy_has_every_key_with_its_origin(shell: Shell) -> None:
    code, out = shell("policy", str(TABLE), "--json")
    document = json.loads(out)
    keys = {each["key"]: each for each in document["keys"]}
    assert code == 0
    assert set(document) == {"table", "hash", "keys", "changed", "ignored"}
    assert keys["rewrite_min_input_files"] == {
        "key": "rewrite_min_input_files",
        "value": 4,
        "default": 8,
        "origin": "file",
        "sentence": keys["rewrite_min_input_files"]["sentence"],
    }
    assert keys["snapshot_min_retained"]["origin"] == "table property"
    assert keys["delete_grace_hours"]["origin"] == "default"
    ignored = document["ignored"][0]
    assert (ignored["key"], ignored["value"], ignored["origin"]) == (
        "delete_grace_hours",
        "0",
        "table property",
    )
    assert "trust_table_properties" in ignored["reason"]
    assert "delete_grace_hours=24 (default) counts" in " ".join(shell("policy", str(TABLE))[1].split())
    assert keys["rewrite_target_bytes"]["origin"] == "default"


def test_policy_set_unset_reset(shell: Shell) -> None:
    name = str(TABLE)
    code, out = shell("policy", name, "--set", "rewrite_target_bytes=64MiB", "--set", "rewrite_enabled=no")
    assert code == 0
    assert "128MiB (default)" in out
    assert "64MiB (table)" in out
    assert json.loads(shell("policy", name, "--unset", "rewrite_enabled", "--json")[1])["changed"] == [
        "rewrite_enabled"
    ]
    assert "64MiB" in shell("policy", name)[1]
    assert json.loads(shell("policy", name, "--reset", "--json")[1])["changed"] == ["rewrite_target_bytes"]
    assert "nothing changed" in shell("policy", name, "--reset")[1]


def test_a_wrong_value_changes_none_of_the_others(shell: Shell) -> None:
    name = str(TABLE)
    assert shell("policy", name, "--set", "rewrite_enabled=no", "--set", "rewrite_target_bytes=big")[0] == 2
    assert shell("policy", name, "--unset", "rewrite_nothing")[0] == 2
    assert shell("policy", name, "--set", "rewrite_enabled=no", "--unset", "rewrite_enabled")[0] == 2
    keys = {each["key"]: each for each in json.loads(shell("policy", name, "--json")[1])["keys"]}
    assert keys["rewrite_enabled"]["origin"] == "default"


def test_runs_are_lines_and_a_document(shell: Shell, lake: Lakewarden) -> None:
    assert "no runs yet" in shell("runs")[1]
    run_id = journaled(lake, RunState.DONE, COUNTERS)
    code, out = shell("runs", str(TABLE), "--json")
    (run,) = json.loads(out)["runs"]
    assert code == 0
    assert set(run) == {
        "id", "table", "job", "state", "reason", "started_at", "ended_at", "owner", "trigger", "counters",
        "snapshot_ids", "seconds",
    }  # fmt: skip
    assert (run["id"], run["state"], run["seconds"]) == (run_id, "done", 3.0)
    assert "10 → 1 files" in shell("runs")[1]
    assert json.loads(shell("runs", "lake.db.other", "--json")[1]) == {"runs": []}


def test_a_run_with_its_steps(shell: Shell, lake: Lakewarden) -> None:
    run_id = journaled(lake, RunState.PARTIAL, {**COUNTERS, "groups_skipped": 2}, "day=1: a file is missing")
    code, out = shell("run-show", run_id)
    assert code == 0
    for words in (
        "partial",
        "10 → 1",
        "900 B → 6.0 KB",
        "33 % saved, 1,200 rows",
        "day=1: a file is missing",
        "2 groups of this plan",
        "snapshot 42",
        "incident-response by ana, ticket OPS-7",
        "run it again for the rest",
        "3 files",
        "writing",
    ):
        assert words in out, words
    document = json.loads(shell("run-show", run_id, "--json")[1])
    assert [step["name"] for step in document["steps"]] == ["writing"]
    assert document["plan"]["reason"] == "10 files become 1"
    assert document["policy"] == {"keys": []}
    assert document["next"]


def test_every_ending_says_what_happens_next(shell: Shell, lake: Lakewarden) -> None:
    for state in RunState:
        if state in (RunState.RUNNING, RunState.DONE, RunState.NOTHING_TO_DO):
            continue
        document = json.loads(shell("run-show", journaled(lake, state, {}, "so"), "--json")[1])
        assert document["next"], state


def test_an_unknown_run(shell: Shell) -> None:
    assert shell("run-show", "nope")[0] == 2


def test_migrate_twice(shell: Shell) -> None:
    document = json.loads(shell("migrate", "--json")[1])
    assert document["changed"] is False
    assert document["before"] == document["after"]
    assert "nothing to do" in shell("migrate")[1]
