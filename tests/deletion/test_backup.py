"""A state database that was restored from a backup has forgotten what people wanted back: nothing is deleted by it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden.errors import Refused
from lakewarden.jobs.run_context import StepName
from lakewarden.model.location import local_path
from lakewarden.model.run import Owner, RunState
from lakewarden.state.generation import Generations
from lakewarden.state.runs import Journal
from lakewarden.storage.generation_file import WITNESS
from lakewarden.storage.objects import Objects
from tests.support.lab import Lab
from tests.support.paimon import PaimonLab

EXPIRE = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
# The floor of the grace is the caller's to lower; nothing else of the safety is.
AT_ONCE = {"delete_grace_hours": 0}


def expired(lab: Lab) -> str:
    table = lab.messy(files=2, days=2)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    assert lab.lw.run("expire", table, EXPIRE).state is RunState.DONE
    return table


def database(lab: Lab | PaimonLab) -> Path:
    return Path(str(lab.lw.state.engine.url.database))


def backed_up(lab: Lab | PaimonLab) -> Path:
    """As SQLite's own backup makes it, beside a running process."""
    copy = database(lab).with_suffix(".backup")
    with closing(sqlite3.connect(database(lab))) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def put_back(lab: Lab | PaimonLab, backup: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{database(lab)}{suffix}").unlink(missing_ok=True)
    shutil.copy(backup, database(lab))


@contextmanager
def put_back_whole(lab: Lab | PaimonLab) -> Iterator[None]:
    """What happens inside is forgotten: the folder of the database goes back, with the witness beside it."""
    backup, beside = backed_up(lab), Path(f"{database(lab)}-generation")
    content = beside.read_bytes() if beside.exists() else None
    yield
    lab.lw.state.engine.dispose()  # nobody has the file open that is replaced
    put_back(lab, backup)
    beside.unlink(missing_ok=True)
    if content is not None:
        beside.write_bytes(content)


def wanted(lab: Lab | PaimonLab, table: str) -> str:
    return next(each.path for each in lab.lw.trash(table, 1000).files if each.kind == "data")


def test_outputs_stay_whose_commit_a_restored_journal_forgot(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup was taken while the compaction wrote its files. The table, not the journal, knows that they were committed."""
    table = lab.messy(files=4)
    before, backups, journaled = lab.rows(table), [], Journal.step

    def step(journal: Journal, run_id: str, owner: Owner, name: str, *more: Any, **options: Any) -> Any:
        made = journaled(journal, run_id, owner, name, *more, **options)
        if name == StepName.WRITING and not backups:
            backups.append(backed_up(lab))
        return made

    monkeypatch.setattr(Journal, "step", step)
    small = {"rewrite_min_input_files": 2}
    assert lab.lw.run("compact", table, small).state is RunState.DONE
    lab.lw.state.engine.dispose()
    put_back(lab, backups[0])
    outputs = lab.on_disk()
    assert lab.lw.run("compact", table, small).state is RunState.NOTHING_TO_DO
    assert outputs.keys() <= lab.on_disk().keys() and lab.rows(table) == before


@pytest.mark.main
def test_a_file_restored_after_the_backup_is_not_deleted(lab: Lab) -> None:
    table = expired(lab)
    backup, path = backed_up(lab), wanted(lab, table)
    assert lab.lw.restore(table, path).files == 1
    put_back(lab, backup)
    before = lab.on_disk()
    with pytest.raises(Refused, match=r"restored from a backup.*file beside it has generation") as refused:
        lab.lw.run("purge", table, AT_ONCE)
    assert refused.value.exit_code == 12 and "restore and pin again" in refused.value.hint
    assert before.keys() <= lab.on_disk().keys()
    run = lab.lw.run("purge", table)
    assert run.state is RunState.NOTHING_TO_DO and "may go yet" in run.reason, "every grace starts again"
    assert lab.lw.restore(table, path).files == 1
    assert lab.lw.run("purge", table, AT_ONCE).state is RunState.DONE
    assert Path(str(local_path(path))).exists()


def test_the_tables_folder_knows_what_a_whole_restored_folder_forgot(lab: Lab) -> None:
    """A volume goes back with everything on it, the witness beside the database too."""
    table = expired(lab)
    path = wanted(lab, table)
    backup = backed_up(lab)
    lab.lw.restore(table, path)
    assert lab.lw.run("purge", table, AT_ONCE).state is RunState.DONE
    put_back(lab, backup)
    Path(f"{database(lab)}-generation").unlink()
    with pytest.raises(Refused, match="the table's folder has generation"):
        lab.lw.run("purge", table, AT_ONCE)
    assert Path(str(local_path(path))).exists()


def test_a_snapshot_pinned_after_the_backup_does_not_expire(lab: Lab) -> None:
    table = lab.messy(files=2, days=1)
    lab.append(table, 1)
    first = lab.snapshots(table)[0].snapshot_id
    backup = backed_up(lab)
    lab.lw.pin(table, snapshot_id=first, holder="report", ttl="2h")
    put_back(lab, backup)
    with pytest.raises(Refused, match="restored from a backup"):
        lab.lw.run("expire", table, EXPIRE)
    run = lab.lw.run("expire", table, EXPIRE)
    assert run.state is RunState.NOTHING_TO_DO and "pins made since that backup" in run.reason
    assert first in {each.snapshot_id for each in lab.snapshots(table)}
    assert lab.lw.run("expire", table, {**EXPIRE, **AT_ONCE}).state is RunState.DONE, "only who asks by name"


def test_a_paimon_table_is_no_different(paimon: PaimonLab) -> None:
    table = paimon.busy()
    assert paimon.lw.run("expire", table, EXPIRE).state is RunState.DONE
    backup, path = backed_up(paimon), wanted(paimon, table)
    assert paimon.lw.restore(table, path).files == 1
    put_back(paimon, backup)
    with pytest.raises(Refused, match="restored from a backup"):
        paimon.lw.run("purge", table, AT_ONCE)
    assert paimon.lw.restore(table, path).files == 1
    assert paimon.lw.run("purge", table, AT_ONCE).state is RunState.DONE
    assert Path(str(local_path(path))).exists() and (paimon.folder(table) / WITNESS).exists()
    assert paimon.rows(table)
    assert not paimon.own_orphans(table)


def test_the_witness_costs_one_file_and_is_nobodys_orphan(lab: Lab) -> None:
    table = expired(lab)
    assert lab.lw.run("purge", table, AT_ONCE).state is RunState.DONE
    witness = lab.warehouse / "db" / "events" / WITNESS
    assert witness.exists()
    run = lab.lw.run("sweep", table, {"orphan_sweep_enabled": True, "orphan_grace_hours": 24})
    assert run.state in (RunState.DONE, RunState.NOTHING_TO_DO) and str(witness) not in lab.trash(table)


@pytest.fixture
def either(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def trashed_table(lab: Any) -> str:
    if isinstance(lab, Lab):
        return expired(lab)
    table = str(lab.busy())
    assert lab.lw.run("expire", table, EXPIRE).state is RunState.DONE
    return table


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("either", ["lab", "paimon"], indirect=True)
def test_a_file_restored_before_the_whole_folder_goes_back_is_not_deleted(either: Any, before: bool) -> None:
    """No run deleted anything since: only the restore itself can have told the table's folder."""
    lab, table = either, trashed_table(either)
    if before:  # the folder knows a number of before the backup
        assert lab.lw.restore(table, wanted(lab, table)).files == 1
        assert (Path(str(local_path(lab.lw.view(table).location))) / WITNESS).exists()
    with put_back_whole(lab):
        path = wanted(lab, table)
        assert lab.lw.restore(table, path).files == 1
    with pytest.raises(Refused, match="the table's folder has generation"):
        lab.lw.run("purge", table, AT_ONCE)
    assert Path(str(local_path(path))).exists()
    assert lab.lw.restore(table, path).files == 1, "again"
    assert lab.lw.run("purge", table, AT_ONCE).state is RunState.DONE
    assert Path(str(local_path(path))).exists()


@pytest.mark.parametrize("next_call", ["pin", "restore", "stage"])
def test_a_forgotten_number_that_is_counted_again_hides_nothing(lab: Lab, next_call: str) -> None:
    """After the folder went back, keeping something reaches the very number of what was forgotten."""
    table = expired(lab)
    with put_back_whole(lab):
        path = wanted(lab, table)
        lab.lw.restore(table, path)
    if next_call == "pin":
        lab.lw.pin(table, holder="bi")
    elif next_call == "restore":
        other = next(e.path for e in lab.lw.trash(table, 1000).files if e.kind == "data" and e.path != path)
        lab.lw.restore(table, other)
    else:
        lab.lw.holds.stage_begin(table, "etl", paths=[str(lab.warehouse / "staged.parquet")])
    assert Generations(lab.lw.state).restored_at() is not None
    run = lab.lw.run("purge", table)
    assert run.state is RunState.NOTHING_TO_DO, "every grace started again"
    assert Path(str(local_path(path))).exists()


@pytest.mark.parametrize("kept", ["pin", "stage"])
def test_pins_and_staged_loads_tell_the_tables_folder_too(lab: Lab, kept: str) -> None:
    table = lab.messy(files=2, days=1)
    lab.append(table, 1)
    lab.lw.view(table)
    first = lab.snapshots(table)[0].snapshot_id
    with put_back_whole(lab):
        if kept == "pin":
            lab.lw.pin(table, snapshot_id=first, holder="report", ttl="2h")
        else:
            lab.lw.holds.stage_begin(table, "etl", paths=[str(lab.warehouse / "staged.parquet")])
    with pytest.raises(Refused, match="the table's folder has generation"):
        lab.lw.run("expire", table, EXPIRE)
    assert first in {each.snapshot_id for each in lab.snapshots(table)}


def test_a_folder_that_cannot_be_written_keeps_nobody_from_keeping(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    table = expired(lab)
    with patch.object(Objects, "write", side_effect=PermissionError("read only")):
        assert lab.lw.pin(table, holder="bi").id
        assert lab.lw.restore(table, wanted(lab, table)).files == 1
    assert caplog.text.count("lakewarden migrate --restored") == 2 and "read only" in caplog.text


def test_no_folder_is_made_for_a_table_that_is_gone(lab: Lab) -> None:
    table = expired(lab)
    folder = lab.warehouse / "db" / "events"
    shutil.rmtree(folder)
    assert lab.lw.restore(table, everything=True).files
    assert not folder.exists()
