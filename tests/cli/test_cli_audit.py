"""Questions that the state database answers alone: quick, and their documents are a contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakewarden import Lakewarden
from lakewarden.cli import main
from lakewarden.lineage.history import TableHistory, month_of
from lakewarden.model.table import Snapshot, TableRef
from lakewarden.state.audit_log import Rejections
from lakewarden.state.history import SnapshotArchive
from lakewarden.state.schema import history_details
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
        SnapshotArchive(state).add(view_of([]), MADE, "expire-1", NOW)
        ids = [each.id for each in MADE if month_of(each.committed_at) == "2024-01"]
        TableHistory(state).fold("2024-01", ids, table=TABLE, table_uuid="u", run_id="fold-1", now=NOW)
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
    assert (
        "added by them or by earlier commits"
        in shell("audit", "ingested", TABLE, "--snapshot", str(one(53).id))[1]
    )
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
    assert code == 2 and "only one document is printed" in err
    assert "made from it" in shell("audit", "downstream", TABLE, str(start))[1]


def test_a_detail_of_another_table_that_cannot_be_read_is_named(shell: Shell, lake: Lakewarden) -> None:
    """Its file cannot be reached without the table, or its bytes are not those that were written."""
    state, start = lake.state, one(53).summary["input.snapshot_ids"].split(",")[0]
    whole = document(shell, "audit", "downstream", TABLE, start)
    other = view_of([], uuid="gone", ref=TableRef.parse("lake.db.gone"))
    made = snapshots(40, days=40, seed=8)
    made[-1] = replace(made[-1], summary={"input.snapshot_ids": f"{TABLE}@{start}"})
    SeenTables(state).saw(other, NOW)
    SnapshotArchive(state).add(other, made, "expire-2", NOW)
    ids = [each.id for each in made if month_of(each.committed_at) == "2024-01"]
    named = {"table": "lake.db.gone", "table_uuid": "gone", "run_id": "fold-2", "now": NOW}
    TableHistory(state).fold("2024-01", ids, **named, keep=lambda name, content: f"/gone/{name}")  # type: ignore[arg-type]
    code, out, _ = shell("audit", "downstream", TABLE, start, "--json")
    found = json.loads(out)
    assert code == 3 and [each["table"] for each in found["unread"]] == ["lake.db.gone"]
    assert "its detail is the file /gone/fold-2-2024-01" in found["unread"][0]["reason"]
    ours = {each["snapshot_id"] for each in whole["affected"]}
    assert {each["snapshot_id"] for each in found["affected"]} == ours | {made[-1].id}, (
        "what is not folded is told"
    )

    with state.write() as connection:
        broken = history_details.update().where(history_details.c.table_uuid == "gone")
        connection.execute(broken.values(path=None, content=b"no parquet"))
    code, out, _ = shell("audit", "downstream", TABLE, start, "--json")
    assert code == 3 and "sha256" in json.loads(out)["unread"][0]["reason"]
    code, _, err = shell("audit", "downstream", "lake.db.gone", str(made[-1].id))
    assert code == 1 and "sha256" in err, "of the table in question it is an error"


def test_a_table_that_was_renamed_is_one(shell: Shell, lake: Lakewarden) -> None:
    """Whichever of its names is asked for, and whichever a commit names it by."""
    renamed, start = view_of([], ref=TableRef.parse("lake.db.renamed")), one(2).id
    before = document(shell, "audit", "downstream", TABLE, str(start))
    reader = view_of([], uuid="reader", ref=TableRef.parse("lake.db.reader"))
    SeenTables(lake.state).saw(renamed, NOW)
    SeenTables(lake.state).saw(reader, NOW)
    by_names = [
        Snapshot(place, None, place, NOW, "append", {"input.snapshot_ids": told})
        for place, told in enumerate([str(start), f"{TABLE}@{start}", f"lake.db.renamed@{start}"], 1)
    ]
    SnapshotArchive(lake.state).add(reader, by_names, "expire-3", NOW)
    for name in (TABLE, "lake.db.renamed"):
        found = document(shell, "audit", "downstream", name, str(start))
        affected = [(each["table"], each["snapshot_id"]) for each in found["affected"]]
        assert {id_ for table, id_ in affected if table == "lake.db.reader"} == {1, 2, 3}
        assert len(affected) == len(before["affected"]) + 3
        assert (found["tables_read"], found["snapshots_read"]) == (2, 63)


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
    line = next(each for each in out.splitlines() if str(one(59).id) in each)
    assert "missing: writer.id" in line and "requires" not in line, "a line a commit"
    assert out.count("lineage_required_keys=") == 1 and "(default)" in out, "where the rule comes from, once"


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
