"""Questions that the state database answers alone: quick, and their documents are a contract."""

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

from lakewarden import Lakewarden
from lakewarden.cli import main
from lakewarden.lineage.detail import month_of
from lakewarden.lineage.history import History
from lakewarden.model import Snapshot
from lakewarden.state.archive import Archive
from lakewarden.state.rejections import Rejections
from lakewarden.state.tables import SeenTables
from tests.support.lineage import START, snapshots, view_of

TABLE = "lake.db.events"
Shell = Callable[..., tuple[int, str, str]]
MADE = snapshots(60, days=60)
NOW = START + timedelta(days=90)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lakewarden]:
    """January is folded, February is in the archive."""
    for name in [name for name in os.environ if name.startswith("LAKEWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("lakewarden.toml").write_text("")
    with Lakewarden.open("lakewarden.toml") as lakewarden:
        state = lakewarden.state
        SeenTables(state).saw(view_of([]), NOW)
        Archive(state).add(view_of([]), MADE, "expire-1", NOW)
        ids = [each.id for each in MADE if month_of(each.committed_at) == "2024-01"]
        History(state).fold("2024-01", ids, table=TABLE, table_uuid="u", run_id="fold-1", now=NOW)
        yield lakewarden


@pytest.fixture
def shell(lake: Lakewarden, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--history-only"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def document(shell: Shell, *words: str) -> dict[str, Any]:
    code, out, err = shell(*words, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def one(number: int) -> Snapshot:
    return MADE[number]


def test_history(shell: Shell) -> None:
    found = document(shell, "history", TABLE, "--limit", "3")
    assert [each["snapshot_id"] for each in found["entries"]] == [each.id for each in MADE[:-4:-1]]
    assert found["counts"] == {"live": 0, "archived": 29, "folded": 31}
    (month,) = found["months"]
    assert (month["month"], month["detail"], month["kept_in"]) == ("2024-01", "fold-1-2024-01", "state")
    assert sum(each["entries"] for each in month["ranges"]) == month["entries"] == 31
    assert set(month["ranges"][0]) == {
        "operation", "format_operation", "writer", "entries", "rows", "bytes", "with_operator", "with_inputs",
        "first_id", "last_id", "min_id", "max_id", "first_at", "last_at",
    }  # fmt: skip
    code, out, _ = shell("history", TABLE)
    assert code == 0 and "0 live, 29 archived, 31 folded" in out and "fold-1-2024-01" in out


def test_ingested(shell: Shell) -> None:
    found = document(shell, "audit", "ingested", TABLE, "--snapshot", str(one(4).id))
    (commit,) = found["commits"]
    assert commit["writer"] == {
        "id": "etl-0", "host": "worker-7", "commit_hash": "0" * 40, "invocation_id": "run-4",
    }  # fmt: skip
    assert commit["committed_at"] == one(4).committed_at.isoformat()
    assert (commit["source"], commit["detail"], commit["found_by"]) == (
        "detail",
        "fold-1-2024-01",
        "snapshot",
    )
    rewrite = document(shell, "audit", "ingested", TABLE, "--snapshot", str(one(53).id))
    inputs = one(53).summary["input.snapshot_ids"].split(",")
    assert {str(each["snapshot_id"]) for each in rewrite["origins"]} == set(inputs)
    assert [each["only_read"] for each in rewrite["origins"]] == [True, True]
    assert "read at" in shell("audit", "ingested", TABLE, "--snapshot", str(one(53).id))[1]
    code, _, err = shell("audit", "ingested", TABLE, "--row-filter", "x = 1")
    assert code == 2 and "knows commits only" in err


def test_downstream(shell: Shell) -> None:
    start = int(one(53).summary["input.snapshot_ids"].split(",")[0])
    found = document(shell, "audit", "downstream", TABLE, str(start))
    assert one(53).id in [each["snapshot_id"] for each in found["affected"]]
    assert found["affected"][0]["via"] == f"{TABLE}@{start}"
    assert (found["tables_read"], found["snapshots_read"], found["unread"]) == (1, 60, [])
    code, _, err = shell("audit", "downstream", TABLE, "12345")
    assert code == 2 and "no commit names it" in err
    code, _, err = shell("audit", "downstream", TABLE, str(start), "--json", "--format", "dot")
    assert code == 2 and "two documents" in err
    assert "made from it" in shell("audit", "downstream", TABLE, str(start))[1]


def test_who(shell: Shell) -> None:
    found = document(shell, "audit", "who", TABLE, "--operation", "overwrite", "--since", "2024-01-20")
    expected = [each for each in reversed(MADE) if each.operation == "overwrite"]
    expected = [each for each in expected if each.committed_at >= START + timedelta(days=19)]
    assert [(each["snapshot_id"], each["trigger"]["ticket"]) for each in found["commits"]] == [
        (each.id, each.summary["trigger.ticket"]) for each in expected
    ]
    assert found["since"] == "2024-01-20T00:00:00+00:00"
    code, out, _ = shell("audit", "who", TABLE, "--operation", "overwrite")
    assert code == 0 and "incident-response" in out and "INC-57" in out


def test_gaps(shell: Shell, lake: Lakewarden) -> None:
    Rejections(lake.state).add(TABLE, "gateway", "writer.id is missing", NOW, 3)
    found = document(shell, "audit", "gaps", TABLE)
    assert [each["snapshot_id"] for each in found["gaps"]] == [one(place).id for place in range(59, 0, -10)]
    assert found["gaps"][0]["violations"][0]["key"] == "writer.id"
    assert (found["commits"], found["rejected"][0]["lineage_validation_failures_total"]) == (60, 3)
    code, out, _ = shell("audit", "gaps", TABLE)
    assert code == 0 and "6 of 60 commits" in out and "gateway" in out


def test_a_table_nobody_has_read(shell: Shell) -> None:
    code, _, err = shell("history", "lake.db.nosuch")
    assert code == 2 and "was ever read" in err


def test_no_spark_is_loaded_for_it(lake: Lakewarden) -> None:
    program = (
        "import sys; from lakewarden.cli import main; "
        f"assert main(['audit', 'who', '{TABLE}', '--history-only']) == 0; "
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
