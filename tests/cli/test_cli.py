"""The command line on real tables: what it prints, what it changes, how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakewarden import Lakewarden
from lakewarden.cli import demo, main
from lakewarden.cli.demo import TABLE as DEMO_TABLE
from tests.support.lab import Lab


@dataclass
class Shell:
    """The command line in this process, on the shared session."""

    lab: Lab
    config: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(["--config", str(self.config), *words], spark=self.lab.spark)
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def document(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The one document on standard output, with nothing beside it."""
        found, out, err = self(*words, "--json")
        assert (found, err) == (code, "")
        document: dict[str, Any] = json.loads(out)
        return document


@pytest.fixture
def shell(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    monkeypatch.setenv("COLUMNS", "160")
    yield Shell(lab, configuration(lab, tmp_path), capsys)


def configuration(lab: Lab, folder: Path) -> Path:
    path = folder / "lakewarden.toml"
    path.write_text(
        f'[state]\nurl = "sqlite:///state.db"\n'
        f'[catalogs.{lab.catalog}]\ntype = "hadoop"\nwarehouse = "{lab.warehouse}"\n'
        '[spark]\nmaster = "local[2]"\n'
    )
    return path


@pytest.mark.main
def test_plan_run_and_run_again(shell: Shell) -> None:
    table = shell.lab.messy()
    rows, disk = shell.lab.rows(table), shell.lab.on_disk()

    code, out, _ = shell("plan", "compact", table)
    assert code == 0
    assert "10 → 1 files" in out
    assert f"run compact {table}" in out
    assert shell.lab.on_disk() == disk

    code, out, err = shell("run", "compact", table, "--operator", "ana", "--ticket", "OPS-1")
    assert code == 0
    assert "20 → 2" in out
    assert "done" in out
    assert "to read" in err
    assert shell.lab.rows(table) == rows
    assert len(shell.lab.data_files(table)) == 2

    code, out, _ = shell("run", "compact", table)
    assert code == 0
    assert "nothing-to-do" in out

    summary = shell.lab.snapshots(table)[-1].summary
    assert (summary["trigger.operator"], summary["trigger.ticket"]) == ("ana", "OPS-1")


def test_every_command_has_a_document(shell: Shell) -> None:
    table = shell.lab.messy()
    plan = shell.document("plan", "compact", table, "--set", "rewrite_min_input_files=2")
    assert plan["totals"]["input_files"] == 20
    assert plan["next_command"].endswith(f"run compact {table} --set rewrite_min_input_files=2")

    run = shell.document("run", "compact", table, "--trigger", "schedule")
    assert (run["state"], run["counters"]["files_added"]) == ("done", 2)
    assert run["trigger"] == {"type": "schedule", "operator": None, "ticket": None}

    passed = shell.document("maintain", table)
    assert [each["state"] for each in passed["runs"]] == ["nothing-to-do"] * len(passed["runs"])
    assert [each["id"] for each in shell.document("runs", table)["runs"]][-1] == run["id"]
    assert shell.document("run-show", run["id"])["steps"][0]["name"] == "writing"

    shown = shell.document("show", table)
    assert shown["counters"]["data_files"] == 2
    assert shown["counters"]["manifests"] > 0
    assert not any(each["due"] for each in shown["due"])
    assert shown["commits"][0]["summary"]["lineage.run_id"] == run["id"]
    assert {each["key"] for each in shell.document("policy", table)["keys"]} >= {"rewrite_target_bytes"}


def test_show_tells_health_lineage_and_what_is_due(shell: Shell) -> None:
    table = shell.lab.messy()
    shell.lab.sql(f"alter table {table} create tag audit")
    code, out, _ = shell("show", table)
    assert code == 0
    for words in (
        "20, ",
        "on average",
        "1 tag: audit",
        "due",
        "20 files in 2 partitions become 2",
        "no lineage",
    ):
        assert words in out, words


def test_show_goes_on_where_one_job_cannot_be_planned(shell: Shell) -> None:
    table = shell.lab.messy(files=1)
    shell("policy", table, "--set", "rewrite_branch=gone")
    due = {each["job"]: each for each in shell.document("show", table)["due"]}
    assert due["compact"]["error"]
    assert not due["rewrite-manifests"]["error"]


def test_an_empty_table(shell: Shell) -> None:
    table = shell.lab.create()
    assert shell.document("show", table)["current_snapshot_id"] is None
    assert "none yet" in shell("show", table)[1]
    assert shell.document("run", "compact", table)["state"] == "nothing-to-do"


def test_tables_lists_good_and_broken_ones(shell: Shell) -> None:
    good = shell.lab.messy(files=1)
    bad = good.replace("events", "broken")
    shell.lab.sql(f"create table {bad} (a int) using iceberg")
    newest = max((shell.lab.warehouse / "db" / "broken" / "metadata").glob("v*.metadata.json"))
    newest.write_text("{")
    code, out, _ = shell("tables", "--json")
    rows = {row["table"]: row for row in json.loads(out)["tables"]}
    assert code == 3
    assert rows[good]["counters"]["data_files"] == 2
    assert rows[bad]["error"]
    assert rows[bad]["counters"] is None


def test_policy_properties_of_the_table_show_after_a_refresh(shell: Shell) -> None:
    table = shell.lab.messy(files=1)
    shell("policy", table)
    shell.lab.sql(f"alter table {table} set tblproperties ('lakewarden.rewrite_min_input_files'='3')")

    def origin(*more: str) -> str:
        keys = {each["key"]: each for each in shell.document("policy", table, *more)["keys"]}
        return str(keys["rewrite_min_input_files"]["origin"])

    assert origin() == "default"
    assert origin("--refresh") == "table property"
    assert origin() == "table property"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (lambda lab: ("show", f"{lab.catalog}.db.nope"), 10, "has no such table"),
        (lambda lab: ("run", "compact", f"{lab.catalog}.db.nope"), 10, "has no such table"),
        (lambda lab: ("plan", "compact", "elsewhere.db.t"), 10, "no catalog elsewhere"),
        (lambda lab: ("plan", "compact", lab.table(), "--set", "rewrite_wher=x"), 2, "rewrite_where"),
        (lambda lab: ("plan", "compact", lab.table(), "--set", "rewrite_where=nope > 3"), 2, "rewrite_where"),
        (lambda lab: ("run", "compact", lab.table(), "--set", "rewrite_target_bytes=0"), 2, "at least 1"),
    ],
)
def test_mistakes_have_their_exit_codes(
    shell: Shell, words: Callable[[Lab], tuple[str, ...]], code: int, told: str
) -> None:
    shell.lab.messy(files=1)
    found, out, err = shell(*words(shell.lab))
    assert (found, out) == (code, "")
    assert told in err
    assert json.loads(shell(*words(shell.lab), "--json")[2])["exit_code"] == code


def test_a_table_whose_maintenance_is_off(shell: Shell) -> None:
    table = shell.lab.messy(files=1)
    shell("policy", table, "--set", "maintenance_enabled=false")
    code, _, err = shell("maintain", table)
    assert code == 2
    assert "maintenance_enabled=false (table)" in err


def test_the_doctor_on_a_good_and_on_a_bad_configuration(shell: Shell) -> None:
    shell.lab.create()
    good = shell.document("doctor")
    assert good["healthy"]
    assert {check["name"] for check in good["checks"]} >= {
        "python",
        "java",
        "jars",
        "spark",
        "state database",
    }
    assert any("Lakewarden trusts that" in check["found"] for check in good["checks"])
    shell.config.write_text("[state]\nurl = 'sqlite:////proc/nowhere/state.db'\n")
    bad = {check["name"]: check for check in shell.document("doctor", code=1)["checks"]}
    assert bad["state database"]["state"] == "fail"
    assert bad["state database"]["advice"]
    assert bad["spark"]["state"] == "ok"
    shell.config.write_text("[stat]\n")
    bad = {check["name"]: check for check in shell.document("doctor", code=1)["checks"]}
    assert (bad["configuration"]["state"], bad["spark"]["state"]) == ("fail", "skipped")


def listed(shell: Shell) -> set[str | None]:
    """What `tables` says of why, line by line, of this lab's catalog."""
    code, out, _ = shell("tables", "--json")
    mine = [each for each in json.loads(out)["tables"] if each["table"].startswith(f"{shell.lab.catalog}.")]
    assert (code != 0) == any(each["error"] for each in mine)
    return {each["error"] for each in mine}


def test_a_warehouse_whose_mount_is_gone_is_told_as_that_and_not_as_tables_that_were_dropped(
    shell: Shell, tmp_path: Path
) -> None:
    lab = shell.lab
    folder = str(lab.warehouse)
    said = f"cannot reach catalog {lab.catalog}: its warehouse {folder} does not exist"
    assert said in listed(shell), "of a lake that is new, the same"

    table = lab.create()
    lab.warehouse.rename(tmp_path / "away")
    code, _, err = shell("run", "compact", table)
    assert code == 2 and said in err and f"check that {folder} is mounted" in err
    shown = shell("health", table, "--refresh")[1]
    assert "".join(said.split()) in "".join(shown.split())  # a long path is broken into lines
    assert said in listed(shell)
    ill = {each["name"]: each for each in shell.document("doctor", code=1)["checks"]}
    found = ill[f"catalog {lab.catalog}"]
    assert (found["state"], found["found"]) == ("fail", said)
    assert folder in found["advice"] and "doctor" not in found["advice"]
    (tmp_path / "away").rename(lab.warehouse)
    assert listed(shell) == {None}, "nothing was lost"
    assert shell("run", "compact", f"{lab.catalog}.db.nosuch")[0] == 10


def test_ctrl_c_leaves_nothing_half_done(lab: Lab, tmp_path: Path) -> None:
    """A real process and a real SIGINT, sent once the first output is being written."""
    table = lab.table()
    readings = demo.Telemetry(lab.spark, table)
    readings.create()
    for commit in range(4):
        readings.append(commit)
    before = readings.content()
    slowly = configuration(lab, tmp_path)
    slowly.write_text(f"{slowly.read_text()}[budgets]\nwrite_mb_per_s = 0.2\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "lakewarden.cli", "--config", str(slowly),
         "run", "compact", table],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "160"},
        # A shell that runs the tests in the background lets them ignore Ctrl-C, and every child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with Lakewarden.open(tmp_path / "lakewarden.toml", spark=lab.spark) as lakewarden:
        wait_until(lambda: child.poll() is not None or any(lab.warehouse.rglob("lakewarden-*.parquet")))
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
        run = lakewarden.runs(table)[0]
    assert child.returncode == 130, err
    assert "interrupted" in out
    assert "Traceback" not in err
    assert run.state == "interrupted"
    assert run.ended_at is not None
    assert readings.content() == before
    assert len(lab.snapshots(table)) == 4 + len(run.snapshot_ids)
    assert lab.strays(table) == set()


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_the_demo_tells_its_story_twice(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "ROWS_PER_COMMIT", 24_000)
    child = [sys.executable, "-m", "lakewarden.cli", "demo"]
    told = subprocess.run(
        child, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"}
    )
    assert told.returncode == 0, told.stderr
    last = told.stdout.split("\ndemo  ")[1]
    assert len(last.splitlines()) <= 39
    for words in ("360", "before", "the rows are equal", "old snapshots still read", "try it yourself"):
        assert words in last, words
    config = tmp_path / "lakewarden-demo" / "lakewarden.toml"
    with Lakewarden.open(config, spark=lab.spark) as lakewarden:
        assert [run.state for run in lakewarden.runs()] == ["nothing-to-do", "done"]
        assert lakewarden.view(DEMO_TABLE).counters.data_files == demo.DAYS
    assert main(["demo", "--json"], spark=lab.spark) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(proof["held"] for proof in document["proofs"])
