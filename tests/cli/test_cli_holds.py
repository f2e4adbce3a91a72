"""Commands about holds that need only the state database: quick, and their documents are a contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakewarden import Lakewarden, clock
from lakewarden.cli import main
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.report.holds import HoldsReport
from lakewarden.state.holds import Pin, Pins
from tests.support.tables import NOW

TABLE = "lake.db.events"
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lakewarden]:
    for name in [name for name in os.environ if name.startswith("LAKEWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("lakewarden.toml").write_text("")
    with Lakewarden.open("lakewarden.toml") as lakewarden:
        _ = lakewarden.state
        yield lakewarden


@pytest.fixture
def shell(lake: Lakewarden, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def document(shell: Shell, *words: str) -> dict[str, Any]:
    code, out, err = shell(*words, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def pinned(lake: Lakewarden, **more: Any) -> Pin:
    made = clock.now()
    pin = Pin("p1", TABLE, "u", 7, "report", "month end", made, made + timedelta(hours=2), **more)
    Pins(lake.state).add(pin)
    return pin


def test_pins_are_listed_and_taken_away(lake: Lakewarden, shell: Shell) -> None:
    pin = pinned(lake)
    (found,) = document(shell, "pins", TABLE)["pins"]
    assert found == {
        "pin": "p1", "table": TABLE, "snapshot_id": 7, "holder": "report", "purpose": "month end",
        "created_at": pin.created_at.isoformat(), "expires_at": pin.expires_at.isoformat(),  # type: ignore[union-attr]
        "live": True, "tag": None,
    }  # fmt: skip
    assert document(shell, "pins", "lake.db.other") == {"pins": []}
    assert "month end" in shell("pins")[1]
    assert document(shell, "unpin", "p1")["removed"] is True
    assert shell("pins")[1].strip() == "no pins"
    code, _, err = shell("unpin", "p1")
    assert code == 2 and "no such pin" in err and "lakewarden pins" in err


def test_a_pin_that_is_over_says_so(lake: Lakewarden, shell: Shell) -> None:
    Pins(lake.state).add(Pin("p1", TABLE, "u", 7, "report", "", NOW, NOW))
    assert document(shell, "pins")["pins"][0]["live"] is False
    assert "over" in shell("pins")[1]


def test_a_writer_beats_and_stops(shell: Shell) -> None:
    beat = document(shell, "heartbeat", TABLE, "--writer", "etl", "--prefix", "/lake/in/", "--ttl", "30m")
    (found,) = beat["heartbeats"]
    assert (found["writer"], found["prefixes"], found["live"]) == ("etl", ["/lake/in/"], True)
    again = document(shell, "heartbeat", TABLE, "--writer", "etl")["heartbeats"][0]
    assert again["started_at"] == found["started_at"] and again["prefixes"] == []
    assert "everything since it started" in shell("heartbeat", TABLE, "--writer", "etl")[1]
    assert document(shell, "heartbeat", TABLE, "--writer", "etl", "--stop")["heartbeats"] == []
    code, _, err = shell("heartbeat", TABLE, "--writer", "etl", "--stop")
    assert code == 2 and "there is no such writer" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("heartbeat", TABLE, "--writer", "etl", "--prefix", "in/"), "it is relative"),
        (("heartbeat", TABLE, "--writer", " "), "needs a name"),
        (("heartbeat", TABLE, "--writer", "etl", "--ttl", "soon"), "read ttl 'soon'"),
        (("stage", "begin", TABLE, "--holder", "ana"), "names no files"),
        (("stage", "begin", TABLE, "--holder", "ana", "--path", "/in/"), "is a folder"),
        (("stage", "begin", TABLE), "missing option '--holder'"),
        (("stage", "adpot", "x"), "no such command"),
    ],
)
def test_what_is_wrong_is_told_with_the_next_step(shell: Shell, words: tuple[str, ...], told: str) -> None:
    code, out, err = shell(*words)
    assert (code, out) == (2, "") and told in err.lower()
    assert err.splitlines()[1].startswith("  ")


def test_a_load_begins(shell: Shell) -> None:
    words = ("stage", "begin", TABLE, "--holder", "ana", "--path", "/in/1.parquet", "--prefix", "/in/more/")
    load = document(shell, *words, "--ttl", "2d")
    assert load["load"].startswith("load-") and load["state"] == "open"
    assert (load["paths"], load["prefixes"], load["run_id"]) == (["/in/1.parquet"], ["/in/more/"], None)
    out = shell(*words)[1]
    assert "lakewarden stage adopt load-" in out and "forever" in out


@pytest.mark.parametrize("words", [("stage", "begin"), ("stage", "adopt"), ("stage", "fail")])
def test_the_help_of_each_stage_has_an_example(shell: Shell, words: tuple[str, ...]) -> None:
    out = " ".join(shell(*words, "--help")[1].split())
    assert "Never" in out and f"Example: lakewarden {' '.join(words)}" in out and "--json" in out


def test_holds_leave_a_place_for_what_is_not_known() -> None:
    held = Hold(HoldKind.WRITER, "etl", "host", since=NOW, until=NOW)
    report = HoldsReport(TABLE, (held,), NOW)
    assert report.to_dict()["holds"][0]["bytes"] is None
    assert HoldsReport(TABLE, (held,), NOW, (5,)).to_dict()["holds"][0]["bytes"] == 5


def test_no_spark_and_no_arrow_is_loaded_for_them(lake: Lakewarden) -> None:
    pinned(lake)
    code = (
        "import sys; from lakewarden.cli import main\n"
        "for words in (['pins'], ['unpin', 'p1'], ['heartbeat', 'a.b.c', '--writer', 'w'],"
        " ['stage', 'begin', 'a.b.c', '--holder', 'h', '--path', '/x']): assert main(words) == 0\n"
        "print([m for m in ('pyspark', 'pyarrow', 'polars', 'numpy', 'alembic') if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"
