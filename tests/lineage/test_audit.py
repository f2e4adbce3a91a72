"""The audit on real tables: which commit a file or row came with, also behind rewrites; what is in a table's own folder."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from lakewarden import Lakewarden
from lakewarden.cli import main
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.jobs.history import PREFIX
from lakewarden.lineage.history import EntrySource
from lakewarden.model.run import RunState
from tests.support.lab import Lab
from tests.support.paimon import PaimonLab

AT_ONCE: dict[str, object] = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
OLD = 40 * 86_400


def ids(lab: Lab, table: str) -> list[int]:
    return [row.snapshot_id for row in lab.snapshots(table)]


def test_files_and_rows_lead_to_the_commits_that_brought_them(lab: Lab) -> None:
    table = lab.create("id bigint, d string", "d")
    for number, day in enumerate(["a", "a", "b"]):
        rows = lab.spark.sql(f"select {number}L as id, '{day}' as d").writeTo(table)
        rows.option("snapshot-property.writer.id", f"etl-{number}").append()
    first, second, third = ids(lab, table)

    found = lab.lw.history.ingested(table, row_filter="d = 'a'")
    assert {each.node.snapshot_id: each.files for each in found.commits} == {first: 1, second: 1}
    path = lab.sql(f"select file_path from {table}.files where partition.d = 'b'")[0].file_path
    (commit,) = lab.lw.history.ingested(table, file=path.removeprefix("file:")).commits
    assert commit.node.snapshot_id == third
    assert commit.entry is not None and commit.entry.told("writer.id") == "etl-2"
    with pytest.raises(UsageError, match="row-filter"):
        lab.lw.history.ingested(table, row_filter="nosuch = 1")
    with pytest.raises(UsageError, match="no snapshot that the table still has names it"):
        lab.lw.history.ingested(table, file="/nowhere/x.parquet")
    with pytest.raises(UsageError, match="one thing at a time"):
        lab.lw.history.ingested(table, file="x", snapshot_id=1)

    # A rewrite: the file holds rows of both, and manifests still tell. The manifests are folded too: entries stay theirs.
    old = lab.data_files(table)[0]
    assert lab.lw.run("compact", table, {"rewrite_min_input_files": 2}).state is RunState.DONE
    rewrite = ids(lab, table)[-1]
    new = lab.sql(f"select file_path from {table}.files where partition.d = 'a'")[0].file_path
    found = lab.lw.history.ingested(table, file=new)
    assert [each.node.snapshot_id for each in found.commits] == [rewrite]
    assert {each.node.snapshot_id for each in found.origins} == {first, second}
    assert {each.how for each in found.origins} == {"manifests"}
    by_rows = lab.lw.history.ingested(table, row_filter="d = 'a'")
    assert [each.node.snapshot_id for each in by_rows.commits] == [rewrite]
    assert {(each.node.snapshot_id, each.how) for each in by_rows.origins} == {
        (first, "manifests"),
        (second, "manifests"),
    }
    gone = lab.lw.history.ingested(table, file=old)
    assert [each.node.snapshot_id for each in gone.removed_by] == [rewrite]
    assert {
        each.node.snapshot_id for each in lab.lw.history.ingested(table, snapshot_id=rewrite).origins
    } == {
        first,
        second,
    }
    # Once its parent is gone, what it wrote down itself is all there is.
    lab.lw.run("expire", table, AT_ONCE)
    found = lab.lw.history.ingested(table, file=new)
    assert [(each.node.snapshot_id, each.how) for each in found.origins] == [(third, "input.snapshot_ids")]
    assert found.origins[0].entry is not None and found.origins[0].entry.source is EntrySource.ARCHIVE
    by_rows = lab.lw.history.ingested(table)
    assert {each.node.snapshot_id: each.rows for each in by_rows.commits} == {rewrite: 2, third: 1}
    assert [(each.node.snapshot_id, each.only_read) for each in by_rows.origins] == [(third, True)]


def test_details_in_the_tables_own_folder_are_never_swept(lab: Lab, tmp_path: Path) -> None:
    table = lab.messy(files=4, rows=5, days=1)
    every = ids(lab, table)
    config = {"state": {"url": f"sqlite:///{tmp_path}/state.db"}, "lineage": {"history": "table"}}
    with Lakewarden(config, spark=lab.spark, environ={}) as lw:
        lw.run("expire", table, {**AT_ONCE, "snapshot_min_retained": 2})
        assert lw.run("compact-history", table, AT_ONCE).state is RunState.DONE
        lw.run("expire", table, AT_ONCE)
        folder = lab.warehouse / "db" / "events" / "metadata"
        (first,) = folder.glob(f"{PREFIX}*")
        assert lw.run("compact-history", table, AT_ONCE).state is RunState.DONE
        (kept,) = folder.glob(f"{PREFIX}*")
        assert kept != first, "the month was folded anew, and the file it replaced is gone"
        for path in lab.warehouse.rglob("*"):
            os.utime(path, (time.time() - OLD, time.time() - OLD))
        lw.run("sweep", table, {"orphan_max_percent": 100})
        lab.sql(f"call {lab.catalog}.system.remove_orphan_files(table => '{table}')")
        assert kept.exists() and str(kept) not in lab.trash(table)
        found = lw.history.of(table, limit=None)
        assert {each.snapshot.id for each in found.entries} == set(every)
        assert [each.path for each in found.details] == [f"{lw.view(table).location}/metadata/{kept.name}"]
        with pytest.raises(LakewardenError, match="its detail is the file"):
            lw.history.who(table, history_only=True)
        assert lw.fsck(table).healthy
        kept.rename(kept.with_suffix(".away"))
        with pytest.raises(LakewardenError, match="is gone"):
            lw.history.who(table)
        kept.with_suffix(".away").write_bytes(b"no parquet")
        kept.with_suffix(".away").rename(kept)
        with pytest.raises(LakewardenError, match="sha256"):
            lw.history.who(table)


@pytest.mark.parametrize("kept", ["state", "table"])
def test_the_past_of_a_paimon_table(paimon: PaimonLab, tmp_path: Path, kept: str) -> None:
    table = paimon.create()
    for number in range(6):
        paimon.maker.write(paimon.load(table), number, 1, "2024-01-01", False)
    before = paimon.lw.view(table).snapshots
    config = paimon.lw.config
    paimon.lw.config = config.model_copy(
        update={"lineage": config.lineage.model_copy(update={"history": kept})}
    )
    assert paimon.lw.run("expire", table, AT_ONCE).state is RunState.DONE
    assert paimon.lw.run("compact-history", table, AT_ONCE).state is RunState.DONE
    for path in paimon.folder(table).rglob("*"):
        os.utime(path, (time.time() - OLD, time.time() - OLD))
    paimon.lw.run("sweep", table, {"orphan_max_percent": 100})
    assert not [path for path in paimon.own_orphans(table) if PREFIX in path]
    assert len(list(paimon.folder(table).glob(f"metadata/{PREFIX}*"))) == (kept == "table")
    found = paimon.lw.history.of(table, limit=None)
    assert [(each.snapshot.id, each.snapshot.summary) for each in found.entries] == [
        (each.id, each.summary) for each in reversed(before)
    ]
    assert found.counts == {"live": 1, "archived": 0, "folded": 5}
    (commit,) = paimon.lw.history.ingested(table, snapshot_id=before[0].id).commits
    assert commit.entry is not None and commit.entry.source is EntrySource.DETAIL
    assert paimon.lw.history.downstream(table, before[0].id).affected == ()
    assert len(paimon.lw.history.gaps(table).gaps) == 6
    with pytest.raises(UsageError, match="Paimon's manifests do not record"):
        paimon.lw.history.ingested(table)
    with pytest.raises(UsageError, match="neither the table nor its history"):
        paimon.lw.history.ingested(table, snapshot_id=99)


def test_a_paimon_table_that_was_renamed_is_one_and_one_that_was_copied_is_two(paimon: PaimonLab) -> None:
    table = paimon.create()
    paimon.append(table, commits=2)
    assert paimon.lw.run("expire", table, AT_ONCE).state is RunState.DONE
    renamed = paimon.rename(table, "renamed")
    for name in (table, renamed):
        found = paimon.lw.history.downstream(name, 1)
        assert (found.start.table, found.tables, found.snapshots) == (renamed, 1, 2)
        assert found.entry is not None and found.entry.written_as == table

    copy = f"{paimon.catalog}.db.copied"
    shutil.copytree(paimon.folder(renamed), paimon.folder(copy))
    assert paimon.lw.view(copy).uuid == paimon.lw.view(renamed).uuid
    told = {}
    for each in (renamed, copy):
        paimon.append(each, commits=3)
        told[each] = {one.id: (one.committed_at, one.summary) for one in paimon.lw.view(each).snapshots}
    assert told[renamed][4] != told[copy][4]
    for job in ("expire", "compact-history"):
        for each in (renamed, copy):
            assert paimon.lw.run(job, each, AT_ONCE).state in (RunState.DONE, RunState.NOTHING_TO_DO)
        for each in (renamed, copy):
            past = [one.snapshot for one in paimon.lw.history.of(each, limit=None).entries]
            assert {one.id: (one.committed_at, one.summary) for one in past if one.id > 1} == told[each]
            assert paimon.lw.history.downstream(each, 4).tables == 3


def test_the_blast_radius_crosses_tables_and_their_pasts(lab: Lab) -> None:
    source = lab.messy(files=2, rows=5, days=1)
    lab.sql(f"create table {lab.catalog}.db.copy (id bigint) using iceberg")
    bad = ids(lab, source)[0]
    copy = f"{lab.catalog}.db.copy"
    frame = lab.spark.range(3).writeTo(copy)
    frame.option("snapshot-property.input.snapshot_ids", f"{source}@{bad}").append()
    lab.spark.range(3).writeTo(copy).append()
    (made, _) = ids(lab, copy)
    lab.lw.run("expire", copy, AT_ONCE)
    lab.lw.run("compact-history", copy, AT_ONCE)
    found = lab.lw.history.downstream(source, bad)
    assert [(str(each.node), each.depth, each.entry.source) for each in found.affected] == [
        (f"{copy}@{made}", 1, EntrySource.DETAIL)
    ]
    lab.sql(f"drop table {copy}")
    again = lab.lw.history.downstream(source, bad)
    assert [each.node for each in again.affected] == [each.node for each in found.affected]


def test_a_table_that_was_created_again_has_a_past_of_its_own(lab: Lab) -> None:
    table = lab.messy(files=3, rows=5, days=1)
    lab.lw.run("expire", table, AT_ONCE)
    lab.sql(f"drop table {table} purge")
    lab.messy(files=1, rows=5, days=1)
    assert len(lab.lw.history.of(table, limit=None).entries) == 1


@pytest.mark.main
def test_the_commands(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = lab.messy(files=3, rows=5, days=1)
    file = tmp_path / "lakewarden.toml"
    file.write_text(f'[state]\nurl = "sqlite:///{tmp_path}/state.db"\n')
    lab.lw.run("expire", table, AT_ONCE)
    lab.lw.run("compact-history", table, AT_ONCE)
    first, head = lab.lw.history.of(table, limit=None).entries[-1].snapshot.id, ids(lab, table)[-1]

    def said(*words: str, code: int = 0) -> str:
        assert main(["--config", str(file), *words], spark=lab.spark) == code
        return capsys.readouterr().out

    assert str(first) in said("history", table)
    assert len(json.loads(said("history", table, "--limit", "2", "--json"))["entries"]) == 2
    assert json.loads(said("history", table, "--history-only", "--json"))["counts"]["folded"] == 2
    assert str(head) in said("audit", "ingested", table)
    document = json.loads(
        said("audit", "ingested", table, "--snapshot", str(first), "--history-only", "--json")
    )
    assert document["commits"][0]["source"] == "detail"
    assert json.loads(said("audit", "downstream", table, str(first), "--json"))["affected"] == []
    assert said("audit", "downstream", table, str(first), "--format", "mermaid").startswith("flowchart LR")
    assert "digraph" in said("audit", "downstream", table, str(first), "--format", "dot", "--history-only")
    assert str(first) in said("audit", "who", table, "--since", "90d")
    assert json.loads(said("audit", "who", table, "--until", "2001-01-01", "--json"))["commits"] == []
    assert len(json.loads(said("audit", "gaps", table, "--json"))["gaps"]) == 3
    assert "3 of 3 commits" in said("audit", "gaps", table)
    assert main(["--config", str(file), "audit", "who", table, "--since", "soon"], spark=lab.spark) == 2
    assert "it is no moment" in capsys.readouterr().err
    assert "would fold" not in said("plan", "compact-history", table)
