"""trashed, restore and receipts: commands on the state database alone, their documents and their words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lakewarden import Lakewarden, clock
from lakewarden.cli import main
from lakewarden.errors import Refused, UsageError
from lakewarden.model.run import Trigger
from lakewarden.state.runs import current_owner
from lakewarden.state.tables import SeenTables
from lakewarden.state.trash import TrashedFiles
from tests.support.tables import TABLE, view

Shell = Callable[..., tuple[int, str, str]]
NAME = str(TABLE)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lakewarden]:
    for name in [name for name in os.environ if name.startswith("LAKEWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("lakewarden.toml").write_text(
        '[catalogs.lake]\ntype = "hadoop"\n[policy]\ndelete_grace_hours = 48\n'
    )
    with Lakewarden.open("lakewarden.toml") as lakewarden:
        yield lakewarden


@pytest.fixture
def shell(lake: Lakewarden, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        return code, *capsys.readouterr()

    return run


def trash(
    lake: Lakewarden,
    batch: str,
    *paths: str,
    enforce: bool = True,
    uuid: str = "u",
    size: int | None = 1_500_000,
) -> TrashedFiles:
    files = TrashedFiles(lake.state)
    table = pa.table(
        {
            "path": pa.array(paths, pa.string()),
            "kind": pa.array(["data"] * len(paths), pa.string()),
            "size": pa.array([size] * len(paths), pa.int64()),
            "stamp": pa.nulls(len(paths), pa.string()),
        }
    )
    files.trash(batch, NAME, uuid, "expire", "only expired snapshots need it", table, {}, clock.now())
    if enforce:
        files.enforce(batch, clock.now())
    return files


def erase(lake: Lakewarden, files: TrashedFiles, uuid: str = "u") -> None:
    owner = current_owner()
    lake.journal.start(
        run_id="purge-1",
        table=NAME,
        job="purge",
        owner=owner,
        trigger=Trigger(),
        plan={},
        policy={},
        now=clock.now(),
    )
    (page,) = files.due(uuid, {"expire": timedelta()}, clock.now() + timedelta(days=1))
    moved = files.begin_erasing(page.column("id").to_pylist(), "purge-1", owner, clock.now())
    files.finish_erasing("purge-1", clock.now(), erased=moved)


def test_what_is_trashed_and_until_when(shell: Shell, lake: Lakewarden) -> None:
    assert "no file is in the trash" in shell("trash", NAME)[1]
    trash(lake, "run-1", "s3://b/t/one.parquet", "s3://b/t/two.parquet")
    trash(lake, "run-2", "s3://b/t/three.parquet", enforce=False)
    code, out, _ = shell("trash", NAME, "--limit", "2")
    assert code == 0
    for words in (
        "run-1",
        "3.0 MB",
        "only expired snapshots need it",
        "s3://b/t/one.parquet",
        "1 more",
        "restore",
    ):
        assert words in out, words
    assert "not before its run has ended" in out
    document = json.loads(shell("trash", NAME, "--json")[1])
    first, second = document["batches"]
    assert (first["batch"], first["state"], second["state"]) == ("run-1", "active", "pending")
    assert first["tallies"] == {"trashed": {"files": 2, "bytes": 3_000_000}}
    assert second["due_at"] is None
    assert [each["path"].rpartition("/")[2] for each in document["files"]] == [
        "one.parquet",
        "two.parquet",
        "three.parquet",
    ]


def test_the_grace_is_that_of_the_policy(lake: Lakewarden) -> None:
    trash(lake, "run-1", "/t/a")
    ((batch_files, due),) = lake.trash(NAME).batches
    assert batch_files.batch.trashed_at is not None
    assert due == batch_files.batch.trashed_at + timedelta(hours=48)


def test_restore_one_file_in_another_spelling(shell: Shell, lake: Lakewarden) -> None:
    trash(lake, "run-1", "s3://b/t/one.parquet", "s3://b/t/two.parquet")
    code, out, _ = shell("restore", NAME, "s3a://b/t/one.parquet")
    assert code == 0
    assert "1 file, 1.5 MB" in out
    assert shell("restore", NAME, "s3a://b/t/one.parquet")[0] == 0, "restoring again changes nothing"
    assert [each.path for each in lake.trash(NAME).files] == ["s3://b/t/two.parquet"]
    assert shell("restore", NAME, "s3://b/t/none.parquet")[0] == 2


def test_restore_a_run_and_everything(shell: Shell, lake: Lakewarden) -> None:
    trash(lake, "run-1", "/t/a")
    trash(lake, "run-2", "/t/b", "/t/c")
    document = json.loads(shell("restore", NAME, "--run", "run-1", "--json")[1])
    assert document == {
        "table": NAME,
        "restored": 1,
        "bytes": 1_500_000,
        "already": 0,
        "erasing": 0,
        "gone": 0,
    }
    code, _, err = shell("restore", NAME, "--run", "nope")
    assert code == 2
    assert "run-1, run-2" in err
    assert json.loads(shell("restore", NAME, "--all", "--json")[1])["restored"] == 2
    assert lake.trash(NAME).files == ()


@pytest.mark.parametrize("words", [[], ["/t/a", "--all"], ["--run", "r", "--all"], ["/t/a", "--run", "r"]])
def test_restore_says_which_in_one_way(shell: Shell, lake: Lakewarden, words: list[str]) -> None:
    trash(lake, "run-1", "/t/a")
    assert shell("restore", NAME, *words)[0] == 2
    assert len(lake.trash(NAME).files) == 1


def test_what_is_gone_or_going_cannot_be_restored(lake: Lakewarden) -> None:
    files = trash(lake, "run-1", "/t/a")
    erase(lake, files)
    with pytest.raises(Refused, match="deleted"):
        lake.restore(NAME, "/t/a")
    with pytest.raises(UsageError, match="not trashed"):
        lake.restore(NAME, "/t/b")
    with pytest.raises(UsageError, match="no whole path"):
        lake.restore(NAME, "t/a")
    with pytest.raises(Refused, match="too late for each of the 1: 1 deleted"):
        lake.restore(NAME, everything=True)


def test_a_file_here_may_be_named_from_this_folder(shell: Shell, lake: Lakewarden) -> None:
    Path("one.parquet").write_bytes(b"1")
    trash(lake, "run-1", str(Path("one.parquet").absolute()))
    assert shell("restore", NAME, "one.parquet")[0] == 0


def test_receipts(shell: Shell, lake: Lakewarden) -> None:
    assert "nothing was deleted" in shell("receipts", NAME)[1]
    erase(lake, trash(lake, "run-1", "/t/a"))
    code, out, _ = shell("receipts", NAME)
    assert code == 0
    for words in ("/t/a", "purge-1", "deleted", "only expired snapshots need it", "run-show"):
        assert words in out, words
    (receipt,) = json.loads(shell("receipts", NAME, "--json")[1])["receipts"]
    assert set(receipt) == {
        "path", "kind", "size", "state", "batch", "note", "cause", "reason", "trashed_at", "erased_at", "run",
    }  # fmt: skip
    assert (receipt["batch"], receipt["run"], receipt["state"]) == ("run-1", "purge-1", "erased")


def test_a_renamed_table_keeps_what_was_trashed(lake: Lakewarden) -> None:
    trash(lake, "run-1", "/t/a", uuid="same")
    SeenTables(lake.state).saw(replace(view(), uuid="same"), clock.now())
    with lake.state.write() as connection:
        connection.exec_driver_sql("UPDATE trash_batches SET table_name = 'lake.db.old'")
    assert len(lake.trash(NAME).files) == 1
    assert lake.restore(NAME, "/t/a").files == 1


def test_a_size_that_nobody_knows_is_told_as_that(shell: Shell, lake: Lakewarden) -> None:
    trash(lake, "v1", "/t/metadata/snap-1.avro", size=None)
    assert "0 B" not in (said := shell("trash", NAME)[1]) and "size unknown" in said
    assert "1 file, size unknown" in shell("restore", NAME, "--all")[1]
