"""The command line without a lake: help, mistakes, exit codes, and that nothing heavy is loaded for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.main import get_command

from lakewarden.cli import DEBUG, main
from lakewarden.cli.app import GROUPS, app
from lakewarden.cli.options import TriggerType, complete_key, complete_setting
from lakewarden.lineage.summary import TRIGGER_TYPES
from lakewarden.policy.keys import KEYS

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]
NO_CONFIG_NEEDED = {"demo", "doctor"}
ARGUMENTS = {
    "show": ["lake.db.t"],
    "plan": ["compact", "lake.db.t"],
    "run": ["compact", "lake.db.t"],
    "maintain": ["lake.db.t"],
    "policy": ["lake.db.t"],
    "run-show": ["x"],
    "verify": ["lake.db.t", "1"],
    "cost": ["lake.db.t"],
    "where": ["lake.db.t", "--tag", "t"],
    "recall": ["lake.db.t", "--tag", "t"],
    "trash": ["lake.db.t"],
    "restore": ["lake.db.t", "--all"],
    "receipts": ["lake.db.t"],
    "holds": ["lake.db.t"],
    "pin": ["lake.db.t", "--holder", "h"],
    "unpin": ["p"],
    "tag": ["lake.db.t", "t", "--forever"],
    "untag": ["lake.db.t", "t"],
    "heartbeat": ["lake.db.t", "--writer", "w"],
    "stage": ["begin", "lake.db.t", "--holder", "h", "--path", "/x"],
    "audit": ["gaps", "lake.db.t"],
    "history": ["lake.db.t"],
    "suspend": ["lake.db.t", "--reason", "r"],
    "resume": ["lake.db.t"],
    "cancel": ["x"],
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("LAKEWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_program_has_its_commands() -> None:
    assert COMMANDS == [
        "audit", "cancel", "console", "cost", "demo", "doctor", "fsck", "gateway", "health", "heartbeat", "history", "holds", "maintain", "migrate", "pin", "pins", "plan", "policy",
        "recall", "receipts", "requests", "restore", "resume", "run", "run-show", "runs", "schedule", "show", "stage", "suspend", "tables", "tag", "trash", "unpin", "untag", "verify", "what-if", "where", "worker",
    ]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_says_what_it_never_does_and_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Never" in shown
    assert f"Example: lakewarden {command}" in shown
    assert "--json" in shown


def test_every_command_stands_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == COMMANDS


def test_help_shows_the_commands_in_their_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["--help"]) == 0
    lines = [line.strip("│╭╮─ ") for line in capsys.readouterr().out.splitlines()]
    panels = lines[lines.index("Start") :]
    heads = [word for line in panels if (word := line.split("  ")[0]) in GROUPS or word in COMMANDS]
    assert heads == [word for group, names in GROUPS.items() for word in (group, *names)]
    assert "Commands" not in lines


def test_no_command_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tabls"], "did you mean 'tables'"),
        (["plan", "compact"], "missing argument 'table'"),
        (
            ["plan", "compct", "lake.db.t"],
            "'compct' is not one of 'expire-partitions', 'compact-deletes', 'compact'",
        ),
        (["tables", "--nope"], "no such option: --nope"),
        (["runs", "--limit", "0"], "--limit"),
        (["run", "compact", "lake.db.t", "--trigger", "whim"], "--trigger"),
        (["plan", "compact", "events"], "a catalog and a name"),
        (["plan", "compact", "lake.db.t", "--set", "rewrite_where"], "not key=value"),
        (["plan", "compact", "lake.db.t", "--set", "rewrite_min_files=3"], "rewrite_min_input_files"),
        (["plan", "compact", "lake.db.t", "--set", "rewrite_min_input_files=few"], "a whole number"),
        (["run", "compact", "lake.db.t", "--trigger", "incident-response"], "needs a ticket"),
        (["tables"], "no lakewarden.toml"),
    ],
)
def test_mistakes_exit_2_and_say_what_to_do(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    first, hint, *_ = said.err.splitlines()
    assert first.startswith("error: ")
    assert told in said.err.lower()
    assert hint.startswith("  ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "words", [["tabls", "--json"], ["tables", "--json"], ["plan", "compact", "x", "--json"]]
)
def test_with_json_an_error_is_one_document_on_stderr(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert set(json.loads(said.err)) == {"error", "message", "hint", "exit_code", "retry"}
    assert json.loads(said.err)["exit_code"] == 2


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in NO_CONFIG_NEEDED])
def test_without_configuration_there_is_one_to_copy(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([command, *ARGUMENTS.get(command, [])]) == 2
    said = capsys.readouterr().err
    lines = [line.strip() for line in said.splitlines() if line.startswith("    ") or not line]
    example = tmp_path / "lakewarden.toml"
    example.write_text("\n".join(lines))
    # What it shows to copy is a configuration that works.
    assert main(["runs"]) == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[state", "not TOML"),
        ("[stat]\nurl = 'x'", "did you mean state"),
        ("[state]\nurl = 'mysql://x'", "sqlite:///PATH"),
        ("[policy]\nrewrite_enabled = 'perhaps'", "true or false"),
        ("[policy]\nrewrite_enable = true", "did you mean rewrite_enabled"),
    ],
)
def test_a_wrong_configuration_exits_2_and_names_the_place(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lake.toml").write_text(text)
    assert main(["--config", "lake.toml", "runs"]) == 2
    assert told in capsys.readouterr().err


def test_a_config_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "nope.toml", "runs"]) == 2
    assert "nope.toml" in capsys.readouterr().err


def test_config_after_the_command_is_told_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--config", "lake.toml"]) == 2
    assert "before the command" in capsys.readouterr().err


def test_the_environment_may_name_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere.toml").write_text("[state]\nurl = 'sqlite:///s.db'\n")
    monkeypatch.setenv("LAKEWARDEN_CONFIG", "elsewhere.toml")
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": []}
    assert (tmp_path / "s.db").is_file()


def test_an_unexpected_failure_is_one_line_and_the_traceback_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lakewarden.toml").write_text("")
    monkeypatch.setattr("lakewarden.client.Lakewarden.runs", lambda *_: [][1])
    assert main(["runs"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: unexpected IndexError")
    assert DEBUG in said
    assert "Traceback" not in said
    monkeypatch.setenv(DEBUG, "1")
    assert main(["runs"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_exits_130_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "lakewarden.toml").write_text("")
    monkeypatch.setattr("lakewarden.client.Lakewarden.runs", interrupt)
    assert main(["runs"]) == 130
    assert "no table is left half changed" in capsys.readouterr().err


def test_the_demo_does_not_overwrite_a_folder_it_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "lakewarden-demo"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    assert main(["demo"]) == 12
    assert (theirs / "thesis.txt").read_text() == "years of work"
    assert "not made by the demo" in capsys.readouterr().err


def test_triggers_are_those_of_the_lineage() -> None:
    assert set(get_args(TriggerType)) == set(TRIGGER_TYPES)


def test_the_shell_completes_keys_and_choices() -> None:
    assert [name for name, _ in complete_setting("")] == [f"{key.name}=" for key in KEYS]
    assert ("rewrite_strategy=zorder", "") in complete_setting("rewrite_strategy=")
    assert [name for name, _ in complete_key("manifest_t")] == ["manifest_target_bytes"]


@pytest.mark.parametrize(("typed", "jobs"), [("re", ["rewrite-manifests"]), ("pu", ["purge"])])
def test_the_shell_completes_jobs(typed: str, jobs: list[str]) -> None:
    environment = {
        **os.environ,
        "_LAKEWARDEN_COMPLETE": "complete_bash",
        "COMP_WORDS": f"lakewarden plan {typed}",
        "COMP_CWORD": "2",
    }
    asked = subprocess.run(
        [sys.executable, "-m", "lakewarden.cli"], env=environment, capture_output=True, text=True, check=False
    )
    assert asked.stdout.split() == jobs


HEAVY = ("pyspark", "pyarrow", "pyiceberg", "polars", "numpy", "alembic")


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [("--help", (*HEAVY, "sqlalchemy")), ("--version", (*HEAVY, "sqlalchemy")), ("runs", HEAVY)],
)
def test_light_commands_load_nothing_heavy(words: str, unwanted: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "lakewarden.toml").write_text("")
    main(["runs"])  # the first opening makes the database, which needs Alembic
    code = (
        "import sys; from lakewarden.cli import main; main(sys.argv[1:]); "
        f"print([m for m in {unwanted!r} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


@pytest.mark.parametrize("command", ["trash", "receipts", "runs"])
def test_a_table_that_nobody_knows_is_said_to_be_none(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lakewarden.toml").write_text('[catalogs.lake]\ntype = "hadoop"\nwarehouse = "w"\n')
    assert main([command, "lakee.db.events"]) == 10
    assert "no catalog lakee is configured; configured: lake" in capsys.readouterr().err
    assert main([command, "lake.db.events"]) == 0


def test_a_group_of_commands_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage"]) == 0
    shown = capsys.readouterr()
    assert "Usage: lakewarden stage" in shown.out and not shown.err
