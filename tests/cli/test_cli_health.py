"""`health` and `what-if` from the database alone: no Spark, no table."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakewarden import Lakewarden, clock
from lakewarden.cli import main
from lakewarden.cli.health import sparkline
from lakewarden.health.table_details import DueLine, SnapshotLine, TableDetails
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.tables import SeenTables
from tests.support.lineage import view_of

TABLE = "lake.db.events"
NOW = clock.now()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakewarden.toml").write_text(
        f'[state]\nurl = "sqlite:///{tmp_path}/state.db"\n[catalogs.lake]\ntype = "hadoop"\nwarehouse = "{tmp_path}"\n'
    )
    return tmp_path


def seen(folder: Path, *, warned: bool = True, **numbers: Any) -> None:
    painted = TableDetails(
        "iceberg", 2, "/t", "/m", 3, 0,
        snapshots=tuple(
            SnapshotLine(each, NOW - timedelta(days=each), "append", "by hand", added_files=10, added_bytes=10**7)
            for each in range(20)
        ),
        due=(DueLine("compact", True, "2 partitions have small files"),),
    )  # fmt: skip
    with Lakewarden.open(folder / "lakewarden.toml") as lw:
        records = HealthRecords(lw.state)
        found = Numbers(files=2000, small_files=1500, bytes=10**9, snapshots=20, **numbers)
        records.put([TableHealth(TABLE, "u", NOW, "v", 77, 15.0, found, "", painted.to_dict())])
        SeenTables(lw.state).saw(view_of([]), NOW)
        if warned:
            records.warn([(TABLE, "small-files", "1,500 of 2,000 files are small")], NOW)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_the_fleet_with_what_is_wrong(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen(here)
    assert main(["health"]) == 3
    text = printed(capsys)
    assert TABLE in text and "77" in text and "small-files" in text
    assert main(["health", "--json"]) == 3
    told = json.loads(printed(capsys))
    assert (
        told["tables"][0]["numbers"]["small_files"] == 1500 and told["warnings"][0]["kind"] == "small-files"
    )
    assert told["sweep"] is None


def test_one_table_with_the_parts_of_its_score(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen(here, warned=False)
    assert main(["health", TABLE]) == 0
    text = printed(capsys)
    assert (
        "1,500 small files (15.00)" in text
        and "2 partitions have small files" in text
        and "no warnings" in text
    )
    assert main(["health", TABLE, "--json"]) == 0
    told = json.loads(printed(capsys))
    assert told["parts"][0]["name"] == "small-files" and told["portrait"]["snapshots_total"] == 0
    assert len(told["portrait"]["snapshots"]) == 20


def test_nobody_has_looked_yet(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health"]) == 0
    assert "--refresh" in printed(capsys)
    assert main(["health", TABLE]) == 2
    assert "its health was never recorded" in capsys.readouterr().err
    assert main(["what-if", TABLE, "--set", "snapshot_retention_hours=1d"]) == 2


def test_what_if_shows_both_policies(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen(here)
    assert main(["what-if", TABLE, "--set", "snapshot_retention_hours=2d", "--json"]) == 0
    told = json.loads(printed(capsys))
    assert (told["old"]["snapshots"], told["new"]["snapshots"]) == (20, 5)
    assert len(told["new"]["series"]) > 10
    assert main(["what-if", TABLE, "--set", "snapshot_retention_hours=2d"]) == 0
    text = printed(capsys)
    assert "snapshots kept" in text and "█" in text
    assert main(["what-if", TABLE]) == 2


def test_a_sparkline_shows_the_highest_of_each_stretch() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 7, 14]) == "▁▅█"
    long = sparkline([0] * 99 + [5])
    assert len(long) == 40 and long[-1] == "█"


def test_health_starts_no_spark(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    import subprocess
    import sys

    seen(here)
    script = (
        "import sys; from lakewarden.cli import main\n"
        f"code = main(['health', '{TABLE}', '--json'])\n"
        "print([m for m in sys.modules if m.split('.')[0] == 'pyspark'], file=sys.stderr)"
    )
    with caplog.at_level(logging.DEBUG):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=True
        )
    assert done.stderr.strip() == "[]"
