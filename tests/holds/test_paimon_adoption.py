"""Files that others wrote become part of a Paimon table, whole or not at all; Paimon's own reader says which rows it has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.errors import CommitLost, Refused
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef
from lakewarden.tables.paimon import adoption
from lakewarden.tables.paimon.writer import PaimonWriter
from tests.deletion.test_paimon_deleting import age
from tests.support.guard import Unasked
from tests.support.paimon import PaimonLab

PLAIN = pa.schema([("id", pa.int64()), ("v", pa.string()), ("dt", pa.string())])
DAY = "2024-01-01"
AT_ONCE = {"delete_grace_hours": 0}
NOW = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}


def staged(path: Path, start: int = 900, rows: int = 5, schema: pa.Schema = PLAIN, day: str = DAY) -> str:
    """A Parquet file of another tool: no field ids."""
    ids = range(start, start + rows)
    columns: dict[str, list[Any]] = {"id": list(ids), "v": [f"v{each}" for each in ids], "dt": [day] * rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    extra = {name: [1] * rows for name in schema.names if name not in columns}
    kept = {name: values for name, values in (columns | extra).items() if name in schema.names}
    pq.write_table(pa.table(kept, schema=schema), path)
    return str(path)


def told(start: int = 900, rows: int = 5, day: str = DAY) -> list[str]:
    return [f"{each} v{each} {day}" for each in range(start, start + rows)]


def begun(lab: PaimonLab, table: str, *paths: str) -> str:
    return lab.lw.holds.stage_begin(table, "ana", paths=paths).id


@pytest.mark.main
def test_files_anywhere_become_part_of_the_table_and_stay(paimon: PaimonLab, tmp_path: Path) -> None:
    table = paimon.create(**{"compaction.min.file-num": "2"})
    paimon.append(table, 2, days=1)
    rows, folder = paimon.rows(table), paimon.folder(table)
    outside = staged(tmp_path / "in" / "part-1.parquet")
    below = staged(folder / "in" / "part-2.parquet", 800, day="2024-01-09")
    placed = staged(folder / f"dt={DAY}/bucket-0/part-3.parquet", 700)
    run = paimon.lw.holds.stage_adopt(begun(paimon, table, outside, below, placed))
    assert run.state is RunState.DONE, run.reason
    everything = sorted([*rows, *told(), *told(800, day="2024-01-09"), *told(700)])
    assert paimon.rows(table) == everything
    newest = json.loads((folder / f"snapshot/snapshot-{run.snapshot_ids[0]}").read_text())
    assert newest["commitKind"] == "APPEND" and newest["commitUser"] == "lakewarden"
    assert newest["properties"]["lineage.run_id"] == run.id and newest["deltaRecordCount"] == 15
    checkup = paimon.lw.fsck(table, deep=True)
    assert not checkup.findings and checkup.looked.footers == 5, checkup.findings
    age(folder), age(tmp_path / "in")
    assert paimon.lw.plan("sweep", table).empty
    paimon.lw.run("expire", table, NOW)
    paimon.lw.run("purge", table, AT_ONCE)
    assert paimon.rows(table) == everything and Path(outside).exists()
    merged = paimon.lw.run("compact", table, {"rewrite_min_input_files": 2})
    assert merged.state is RunState.DONE, merged.reason
    assert paimon.rows(table) == everything, "a rewrite reads them as they are"
    paimon.lw.run("expire", table, NOW)
    paimon.lw.run("purge", table, AT_ONCE)
    assert paimon.rows(table) == everything and paimon.lw.fsck(table).healthy
    assert [path for path in (outside, below, placed) if Path(path).exists()] == [outside, below]
    paimon.lw.run("purge", table, {**AT_ONCE, "purge_outside_location": True})
    assert not Path(outside).exists() and Path(below).exists(), "the one was rewritten, the other is needed"
    assert paimon.rows(table) == everything and paimon.lw.fsck(table).healthy


@pytest.mark.main
def test_once_is_enough(paimon: PaimonLab, tmp_path: Path) -> None:
    table = paimon.create(**{"compaction.min.file-num": "2"})
    first, second = staged(tmp_path / "in/a.parquet"), staged(tmp_path / "in/b.parquet", 800)
    load = begun(paimon, table, first, second)
    assert paimon.lw.holds.stage_adopt(load).state is RunState.DONE
    assert paimon.lw.holds.stage_adopt(load).state is RunState.NOTHING_TO_DO
    with pytest.raises(Refused, match="part of the table already"):
        paimon.lw.holds.stage_adopt(begun(paimon, table, f"file://{first}"))
    paimon.maker.compact(paimon.load(table))
    rows = paimon.rows(table)
    with pytest.raises(Refused, match="Paimon treats it as deleted"):
        paimon.lw.holds.stage_adopt(begun(paimon, table, first))
    assert paimon.rows(table) == rows == sorted([*told(), *told(800)])


def test_columns_may_be_missing_or_required(paimon: PaimonLab, tmp_path: Path) -> None:
    table = paimon.create()
    strict = pa.schema([field.with_nullable(False) for field in PLAIN])
    paths = [
        staged(tmp_path / "a.parquet", schema=strict),
        staged(tmp_path / "b.parquet", 800, schema=pa.schema([PLAIN.field("dt"), PLAIN.field("id")])),
    ]
    paimon.lw.holds.stage_adopt(begun(paimon, table, *paths))
    found = paimon.texts(table)
    assert len(found) == 10 and sum("null" in each.lower() for each in found) == 5, found


def test_every_type_as_paimon_stores_it_and_no_other_way(paimon: PaimonLab, tmp_path: Path) -> None:
    source, table = paimon.typed(name="source"), paimon.typed(name="typed")
    paimon.write(source, 1)
    (data,) = paimon.folder(source).rglob("data-*.parquet")
    copy = tmp_path / "copy.parquet"
    shutil.copyfile(data, copy)
    paimon.lw.holds.stage_adopt(begun(paimon, table, str(copy)))
    assert paimon.texts(table) == paimon.texts(source)
    # Arrow stores nanoseconds as INT64, which Paimon would read as other moments.
    pq.write_table(pq.read_table(data, columns=["id", "dt", "i32", "ts9"]), tmp_path / "arrow.parquet")
    with pytest.raises(Refused, match=r"ts9 is stored as .*int64.*NANOS.*, by Paimon as .*int96"):
        paimon.lw.holds.stage_adopt(begun(paimon, table, str(tmp_path / "arrow.parquet")))


def numbered(first: int) -> pa.Schema:
    ids = enumerate(PLAIN, first)
    return pa.schema([field.with_metadata({"PARQUET:field_id": str(id_)}) for id_, field in ids])


def test_the_tables_own_field_ids_are_welcome(paimon: PaimonLab, tmp_path: Path) -> None:
    table = paimon.create()
    paimon.lw.holds.stage_adopt(begun(paimon, table, staged(tmp_path / "a.parquet", schema=numbered(0))))
    assert paimon.rows(table) == told()


UNFIT: list[tuple[str, Callable[[Path], str]]] = [
    ("does not exist", lambda at: str(at / "x.parquet")),
    ("cannot be read as Parquet", lambda at: garbage(at / "x.parquet")),
    (r"must|does not end in .parquet", lambda at: staged(at / "x.pq")),
    ("it has no rows", lambda at: staged(at / "x.parquet", rows=0)),
    ("column id is stored as", lambda at: staged(at / "x.parquet", schema=retyped("id", pa.int32()))),
    ("column v is stored as", lambda at: staged(at / "x.parquet", schema=retyped("v", pa.binary()))),
    (
        "it has a column extra",
        lambda at: staged(at / "x.parquet", schema=PLAIN.append(pa.field("extra", pa.int64()))),
    ),
    ("partition column dt", lambda at: staged(at / "x.parquet", schema=PLAIN.remove(2))),
    ("it spans partitions", lambda at: two_days(at / "x.parquet")),
    ("column id has field id 1, in the table 0", lambda at: staged(at / "x.parquet", schema=numbered(1))),
]


def retyped(name: str, kind: pa.DataType) -> pa.Schema:
    return pa.schema([field.with_type(kind) if field.name == name else field for field in PLAIN])


def garbage(path: Path) -> str:
    path.write_bytes(b"x" * 500)
    return str(path)


def two_days(path: Path) -> str:
    rows = {"id": [1, 2], "v": ["a", "b"], "dt": [DAY, "2024-01-02"]}
    pq.write_table(pa.table(rows, schema=PLAIN), path)
    return str(path)


def test_files_that_do_not_fit_are_refused_and_nothing_changes(paimon: PaimonLab, tmp_path: Path) -> None:
    table = paimon.create()
    paimon.append(table, 1)
    before = paimon.on_disk(table)
    for number, (reason, make) in enumerate(UNFIT):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(Refused, match=reason):
            paimon.lw.holds.stage_adopt(begun(paimon, table, staged(place / "good.parquet"), make(place)))
    twins = [staged(tmp_path / name / "same.parquet") for name in ("one", "two")]
    with pytest.raises(Refused, match="has the same name"):
        paimon.lw.holds.stage_adopt(begun(paimon, table, *twins))
    assert paimon.on_disk(table) == before


@pytest.mark.parametrize(
    ("keyed", "options", "why"),
    [
        (True, {}, "primary keys"),
        (False, {"bucket": "2", "bucket-key": "id"}, "2 buckets"),
        (False, {"row-tracking.enabled": "true"}, "row-tracking.enabled"),
    ],
    ids=["keys", "buckets", "row tracking"],
)
def test_tables_that_take_no_files_say_why(
    paimon: PaimonLab, tmp_path: Path, keyed: bool, options: dict[str, str], why: str
) -> None:
    table = paimon.create(keyed=keyed, **options)
    load = begun(paimon, table, staged(tmp_path / "a.parquet"))
    with pytest.raises(Refused, match=why) as refused:
        paimon.lw.holds.stage_adopt(load)
    assert "INSERT INTO db.events" in refused.value.hint
    assert paimon.lw.holds.stage_fail(load).state == "failed", (
        "its file is in the trash, and the table untouched"
    )


def test_a_crash_and_a_race(paimon: PaimonLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = paimon.create()
    real = PaimonWriter.commit_adoption

    def dies(self: PaimonWriter, *arguments: Any) -> int:
        real(self, *arguments)
        raise KeyboardInterrupt

    load = begun(paimon, table, staged(tmp_path / "a.parquet"))
    with monkeypatch.context() as patched:
        patched.setattr(PaimonWriter, "commit_adoption", dies)
        with pytest.raises(KeyboardInterrupt):
            paimon.lw.holds.stage_adopt(load)
    assert paimon.lw.holds.stage_adopt(load).state is RunState.NOTHING_TO_DO, (
        "the table tells that it happened"
    )
    path = staged(tmp_path / "b.parquet", 800)
    late, early = begun(paimon, table, path), begun(paimon, table, path)

    def beaten(self: PaimonWriter, *arguments: Any) -> int:
        patched.setattr(PaimonWriter, "commit_adoption", real)
        other = paimon.lw.lake.format_for(arguments[0]).writer(Unasked())
        assert other.commit_adoption(*arguments[:2], summary(arguments[2]))
        return real(self, *arguments)

    def summary(other: dict[str, str]) -> dict[str, str]:
        return {**other, "lineage.load": early, "lineage.run_id": "another"}

    with monkeypatch.context() as patched:
        patched.setattr(PaimonWriter, "commit_adoption", beaten)
        assert paimon.lw.holds.stage_adopt(late).state is RunState.LOST_RACE
    assert paimon.rows(table) == sorted([*told(), *told(800)])


def test_the_library_refuses_a_file_that_is_live(
    paimon: PaimonLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lost the lock and does not know it looked too early: the commit itself finds the file."""
    table = paimon.create()
    ref, path = TableRef.parse(table), staged(tmp_path / "a.parquet")
    paimon_format = paimon.lw.lake.format_for(ref)
    late = paimon_format.loads().check_adoption(ref, [path])
    paimon.lw.holds.stage_adopt(begun(paimon, table, path))
    catalogs = paimon_format._catalogs  # type: ignore[attr-defined]
    real = catalogs.adoption

    class Blind:
        messages = staticmethod(real.messages)

        def namesakes(self, *_: object) -> str:
            return "[]"

    monkeypatch.setattr(type(catalogs), "adoption", Blind())
    monkeypatch.setattr(adoption, "_ever_named", lambda *_: [])
    with pytest.raises(CommitLost, match="already in the the map"):
        paimon_format.writer(Unasked()).commit_adoption(ref, late, {"lineage.run_id": "late"})
    assert paimon.rows(table) == told()


def test_a_file_that_is_named_through_a_link_is_refused(paimon: PaimonLab, tmp_path: Path) -> None:
    """A sweep lists it under its own name, by which nothing would need it."""
    table = paimon.create()
    paimon.append(table, 2, days=1)
    rows, alias = paimon.rows(table), tmp_path / "alias"
    alias.symlink_to(paimon.warehouse)
    name = f"dt={DAY}/bucket-0/part-1.parquet"
    own = staged(paimon.folder(table) / name)
    with pytest.raises(Refused, match="is a symlink to") as refused:
        paimon.lw.holds.stage_adopt(begun(paimon, table, str(alias / "db.db" / "events" / name)))
    assert own in str(refused.value)
    elsewhere = staged(tmp_path / "in" / "part-2.parquet")
    (tmp_path / "other").symlink_to(tmp_path / "in")
    with pytest.raises(Refused, match=elsewhere):
        paimon.lw.holds.stage_adopt(begun(paimon, table, str(tmp_path / "other" / "part-2.parquet")))
    assert paimon.rows(table) == rows
    paimon.lw.holds.stage_adopt(begun(paimon, table, own, elsewhere))
    assert len(paimon.rows(table)) == len(rows) + 10
