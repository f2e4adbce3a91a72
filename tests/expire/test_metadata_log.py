"""Iceberg's library deletes what falls off a table's metadata log, where a property asks for it. Its writers write that log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lakewarden.errors import CommitForbidden, CommitLost
from lakewarden.model.run import Run, RunState
from tests.deletion.test_known_losses import lab as lab
from tests.support.lab import Lab
from tests.support.witness import EXPIRE

DELETES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "1",
}


def _writer_commits(lab: Lab, table: str, file: str, **changed: object) -> None:
    """A version of the metadata by hand, whose log names this file."""
    folder = lab.warehouse / "db" / table.rsplit(".", 1)[1] / "metadata"
    hint = folder / "version-hint.text"
    version = int(hint.read_text())
    content = json.loads((folder / f"v{version}.metadata.json").read_text())
    before = {
        "timestamp-ms": content["last-updated-ms"],
        "metadata-file": str(folder / f"v{version}.metadata.json"),
    }
    content["metadata-log"] = [{"timestamp-ms": 1, "metadata-file": file}, *content["metadata-log"], before]
    content |= changed
    (folder / f"v{version + 1}.metadata.json").write_text(json.dumps(content))
    hint.write_text(str(version + 1))
    (folder / ".version-hint.text.crc").unlink(missing_ok=True)


def _compact(lab: Lab, table: str) -> Run:
    return lab.lw.run("compact", table, {"rewrite_min_input_files": 2})


def _tag(lab: Lab, table: str) -> None:
    lab.lw.holds.tag(table, "audit", forever=True)


COMMITS: dict[str, Callable[[Lab, str], object]] = {
    "compact": _compact,
    "rewrite-manifests": lambda lab, table: lab.lw.run(
        "rewrite-manifests", table, {"manifest_rewrite_min_manifests": 2}
    ),
    "expire": lambda lab, table: lab.lw.run("expire", table, EXPIRE),
    "tag": _tag,
}


@pytest.mark.parametrize("commit", COMMITS)
def test_a_commit_deletes_no_file_that_a_writer_named_in_the_metadata_log(
    lab: Lab, tmp_path: Path, commit: str
) -> None:
    table = lab.messy(files=4, days=1, **DELETES)
    victim = tmp_path / "victim.txt"
    victim.write_text("somebody else's")
    _writer_commits(lab, table, f"file:{victim}")
    before, rows = lab.on_disk(), lab.rows(table)
    try:
        run = COMMITS[commit](lab, table)
        assert isinstance(run, Run) and run.state is RunState.FAILED, run
        told = run.reason
    except CommitLost as error:
        assert isinstance(error, CommitForbidden)
        told = error.message
    assert victim.exists()
    assert f"the metadata log names file:{victim}, which is not a metadata file of the table" in told
    left = {path for path in set(lab.on_disk()) - set(before) if not path.endswith(".crc")}
    assert left == set() and lab.rows(table) == rows


@pytest.mark.parametrize("moved", [False, True])
def test_metadata_of_a_neighbour_is_not_the_tables_own(lab: Lab, moved: bool) -> None:
    """Neither in its own folder, nor where the table says that it lies now."""
    table = lab.messy(files=3, days=1, **DELETES)
    lab.lw.view(table)
    victim = lab.warehouse / "db" / "other" / "metadata" / "v1.metadata.json"
    victim.parent.mkdir(parents=True)
    victim.write_text("{}")
    location = {"location": str(victim.parent.parent)} if moved else {}
    _writer_commits(lab, table, str(victim), **location)
    with pytest.raises(CommitForbidden, match="other/metadata/v1"):
        lab.lw.holds.tag(table, "audit", forever=True)
    assert victim.exists()


def test_metadata_of_another_table_in_the_same_folder_stays(lab: Lab) -> None:
    table = lab.messy(files=3, days=1, **DELETES)
    folder = lab.warehouse / "db" / "events" / "metadata"
    found = json.loads(next(folder.glob("v*.metadata.json")).read_text())
    victim = folder / "00001-other.metadata.json"
    victim.write_text(json.dumps({**found, "table-uuid": "11111111-2222-3333-4444-555555555555"}))
    _writer_commits(lab, table, str(victim))
    done = _compact(lab, table)
    assert done.state is RunState.FAILED and victim.name in done.reason
    assert victim.exists()


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_table_with_that_property_is_looked_after_as_before(lab: Lab, codec: str) -> None:
    """Hadoop's tables have their metadata in one place; the log is as the library wrote it."""
    table = lab.messy(files=4, days=1, **DELETES)
    if codec == "gzip":
        lab.sql(f"alter table {table} set tblproperties ('write.metadata.compression-codec'='gzip')")
        lab.append(table, 2, days=1, start=10_000)
    rows = lab.rows(table)
    assert _compact(lab, table).state is RunState.DONE
    assert lab.lw.run("expire", table, EXPIRE).state is RunState.DONE
    lab.lw.holds.tag(table, "audit", forever=True)
    assert lab.rows(table) == rows
    metadata = list((lab.warehouse / "db" / "events" / "metadata").glob("v*.metadata.json"))
    assert len(metadata) == 2
