"""Copies for the colder tier: what they may overwrite, and files that name others."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.puffin import PuffinFile

from lakewarden.model.table import Ref
from lakewarden.rewrite.copy.copy import CHANGED, OTHER, CopyTask, checksum, copy, measure, placed
from lakewarden.rewrite.copy.relocate_manifests import Outside, rehomed_manifest, same_records
from lakewarden.tables.iceberg.cold import merged

LIVE, COLD = "/lake/db/t/", "/cold/db/t/"


def task(source: Path, target: Path, **more: Any) -> CopyTask:
    return CopyTask(str(source), str(target), {}, {}, **more)


def test_another_file_of_that_name_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"the live file")
    (tmp_path / "b").write_bytes(b"what a cold snapshot reads")
    told = copy(task(tmp_path / "a", tmp_path / "b"))
    assert (told.trouble, told.written) == (OTHER, False)
    assert (tmp_path / "b").read_bytes() == b"what a cold snapshot reads"
    assert placed("a", str(tmp_path / "c"), b"x", {}).written


def test_a_copy_is_made_again_only_as_what_it_was(tmp_path: Path) -> None:
    live, cold = tmp_path / "a", tmp_path / "b"
    live.write_bytes(b"0123456789")
    known = (10, checksum(b"0123456789"))
    for harm in (b"0123x56789", b"", b"01234"):
        cold.write_bytes(harm)
        assert copy(task(live, cold, known=known)).written and cold.read_bytes() == b"0123456789"
    cold.unlink()
    assert copy(task(live, cold, known=known)).written
    cold.unlink()
    live.write_bytes(b"9876543210")
    assert copy(task(live, cold, known=known)).trouble == CHANGED
    assert not cold.exists(), "nothing that was never copied takes its place"


def test_a_source_that_breaks_off_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert copy(task(folder, tmp_path / "b")).trouble
    assert not (tmp_path / "b").exists()
    assert "no such file" in measure(task(folder, tmp_path / "b")).trouble


def position_deletes(path: Path, names: list[str], **options: Any) -> None:
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    schema = pa.schema(fields, {"delete-type": "position"})
    pq.write_table(pa.table({"file_path": names, "pos": range(len(names))}, schema=schema), path, **options)


MOVE = (LIVE, COLD)


def test_position_deletes_follow_their_files_however_these_are_spelled(tmp_path: Path) -> None:
    """As the copy's manifests spell them: readers compare texts, and a delete that names another text deletes nothing."""
    names = [
        f"{LIVE}data/ä b%20.parquet",
        f"file:{LIVE}data/1.parquet",
        f"file://{LIVE}data/2.parquet",
        f"{LIVE}/data//3.parquet",
    ]
    names = names * 300
    position_deletes(tmp_path / "a.parquet", names, row_group_size=100)
    told = copy(task(tmp_path / "a.parquet", tmp_path / "b.parquet", rehome=MOVE))
    assert not told.trouble and told.bytes == (tmp_path / "b.parquet").stat().st_size
    made = pq.ParquetFile(tmp_path / "b.parquet")
    assert made.num_row_groups == 12 and made.metadata.metadata[b"delete-type"] == b"position"
    rows = made.read()
    wanted = [f"{COLD}data/{each}.parquet" for each in ("ä b%20", "1", "2", "3")] * 300
    assert rows["file_path"].to_pylist() == wanted and rows["pos"].to_pylist() == list(range(1200))
    assert [each.metadata[b"PARQUET:field_id"] for each in rows.schema] == [b"2147483546", b"2147483545"]


def test_a_delete_file_of_another_writer_with_the_same_rows_is_left_as_it_is(tmp_path: Path) -> None:
    """As after a loss of the state database: manifests of the cold table tell this file's size."""
    position_deletes(tmp_path / "a.parquet", [f"{LIVE}1.parquet", f"{LIVE}2.parquet"])
    position_deletes(tmp_path / "b.parquet", [f"{COLD}1.parquet", f"{COLD}2.parquet"], compression="gzip")
    before = (tmp_path / "b.parquet").read_bytes()
    told = copy(task(tmp_path / "a.parquet", tmp_path / "b.parquet", rehome=MOVE))
    assert (told.trouble, told.written, told.bytes) == ("", False, len(before))
    position_deletes(tmp_path / "a.parquet", [f"{LIVE}1.parquet", f"{LIVE}3.parquet"])
    assert copy(task(tmp_path / "a.parquet", tmp_path / "b.parquet", rehome=MOVE)).trouble == OTHER
    assert (tmp_path / "b.parquet").read_bytes() == before
    pq.write_table(pa.table({"id": [1]}), tmp_path / "data.parquet")
    told = copy(task(tmp_path / "data.parquet", tmp_path / "d.parquet", rehome=MOVE))
    assert "not a position delete file" in told.trouble and not (tmp_path / "d.parquet").exists()
    position_deletes(tmp_path / "c.parquet", ["/elsewhere/1.parquet"])
    assert "outside" in copy(task(tmp_path / "c.parquet", tmp_path / "d.parquet", rehome=MOVE)).trouble


def puffin(names: list[str]) -> bytes:
    """Two deletion vectors that nobody decodes here."""
    blobs, body = [], b"PFA1"
    for name in names:
        blobs.append({
            "type": "deletion-vector-v1", "fields": [2147483645], "snapshot-id": -1, "sequence-number": -1,
            "offset": len(body), "length": 8, "properties": {"referenced-data-file": name, "cardinality": "1"},
        })  # fmt: skip
        body += name[-8:].encode()
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "test"}}).encode()
    return body + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"


def test_deletion_vectors_name_the_copies_of_their_data_files(tmp_path: Path) -> None:
    """PyIceberg goes by what the footer says."""
    live = puffin([f"{LIVE}data/one.parquet", f"file:{LIVE}data/two.parquet"])
    (tmp_path / "a.puffin").write_bytes(live)
    assert not copy(task(tmp_path / "a.puffin", tmp_path / "b.puffin", rehome=MOVE)).trouble
    footer = PuffinFile((tmp_path / "b.puffin").read_bytes()).footer
    named = [each.properties["referenced-data-file"] for each in footer.blobs]
    assert named == [f"{COLD}data/one.parquet", f"{COLD}data/two.parquet"]
    there = (tmp_path / "b.puffin").read_bytes()
    assert [there[each.offset : each.offset + each.length] for each in footer.blobs] == [b".parquet"] * 2
    (tmp_path / "a.puffin").write_bytes(live[:-3])
    assert (
        "not a Puffin file" in copy(task(tmp_path / "a.puffin", tmp_path / "c.puffin", rehome=MOVE)).trouble
    )


def avro(records: list[dict[str, Any]], codec: Any = "uncompressed") -> bytes:
    out = BytesIO()
    pl.DataFrame(records, schema=ENTRY, orient="row").write_avro(out, codec)
    return out.getvalue()


BOUNDS = pl.List(pl.Struct({"key": pl.Int32, "value": pl.Binary}))
ENTRY = {
    "status": pl.Int32,
    "data_file": pl.Struct(
        {
            "file_path": pl.String,
            "file_size_in_bytes": pl.Int64,
            "lower_bounds": BOUNDS,
            "upper_bounds": BOUNDS,
            "referenced_data_file": pl.String,
        }
    ),
}


def entry(
    path: str, status: int = 1, lower: str = "", upper: str = "", referenced: str | None = None
) -> dict[str, Any]:
    both = [
        [{"key": 2147483546, "value": each.encode()}, {"key": 1, "value": LIVE.encode()}]
        for each in (lower, upper)
    ]
    return {"status": status, "data_file": {
        "file_path": path, "file_size_in_bytes": 7, "lower_bounds": both[0], "upper_bounds": both[1],
        "referenced_data_file": referenced,
    }}  # fmt: skip


def rehome(path: str) -> str | None:
    return COLD + path.removeprefix(LIVE) if path.startswith(LIVE) else None


def files(content: bytes) -> list[dict[str, Any]]:
    return pl.read_avro(BytesIO(content))["data_file"].to_list()


def test_bounds_of_paths_and_references_are_of_the_copies() -> None:
    whole = entry(f"{LIVE}d.parquet", 1, f"{LIVE}a", f"{LIVE}z", f"{LIVE}a")
    # Some writers cut bounds off after sixteen letters, the upper one rounded up.
    cut = entry(f"{LIVE}d.parquet", 1, "/lake/d", "/lake/e")
    one, other = files(rehomed_manifest(avro([whole, cut], "deflate"), rehome, {f"{LIVE}d.parquet": 9}))
    assert one["file_path"] == f"{COLD}d.parquet" and one["file_size_in_bytes"] == 9
    assert one["referenced_data_file"] == f"{COLD}a"
    assert one["lower_bounds"] == [
        {"key": 2147483546, "value": f"{COLD}a".encode()},
        {"key": 1, "value": LIVE.encode()},
    ]
    lower, upper = other["lower_bounds"][0]["value"], other["upper_bounds"][0]["value"]
    assert lower <= f"{COLD}a".encode() <= f"{COLD}~~~".encode() <= upper


def test_a_file_outside_is_refused_unless_the_snapshot_removed_it() -> None:
    removed = avro([entry("/imported/1.parquet", status=2)])
    assert files(rehomed_manifest(removed, rehome, {}))[0]["file_path"] == "/imported/1.parquet"
    with pytest.raises(Outside, match=r"/imported/1\.parquet"):
        rehomed_manifest(avro([entry("/imported/1.parquet", status=0)]), rehome, {})


def test_metadata_that_says_the_same_in_other_bytes_is_left_as_it_is(tmp_path: Path) -> None:
    one, other = (avro([entry(f"{LIVE}a")], codec) for codec in ("uncompressed", "deflate"))
    assert one != other and same_records(one, other)
    (tmp_path / "m").write_bytes(one)
    assert placed("s", str(tmp_path / "m"), other, {}).bytes == len(one)
    assert placed("s", str(tmp_path / "m"), avro([entry(f"{LIVE}b")]), {}).trouble == OTHER
    assert (tmp_path / "m").read_bytes() == one


def metadata(ids: list[int], log: list[tuple[int, int]], **more: Any) -> dict[str, Any]:
    snapshots = [
        {
            "snapshot-id": each,
            "timestamp-ms": each * 10,
            "sequence-number": each,
            "manifest-list": f"{LIVE}{each}",
        }
        for each in ids
    ]
    return {
        "table-uuid": "u", "location": LIVE, "last-updated-ms": 999, "snapshots": snapshots,
        "snapshot-log": [{"timestamp-ms": at, "snapshot-id": id_} for at, id_ in log],
        "schemas": [{"schema-id": 3}], "partition-specs": [{"spec-id": 2}], "sort-orders": [{"order-id": 0}], **more,
    }  # fmt: skip


def tag(name: str, snapshot_id: int) -> Ref:
    return Ref(name=name, kind="tag", snapshot_id=snapshot_id)


def test_the_log_has_every_moment_also_of_what_is_not_there() -> None:
    """A rollback makes a snapshot current twice; a tag keeps one from its hand-off; the newest is still live."""
    cold = metadata([], [], **{"last-updated-ms": 5, "schemas": [{"schema-id": 0}]})
    live = metadata([1, 2, 3, 4], [(10, 1), (20, 2), (25, 1), (30, 3), (40, 4)])
    made = merged(cold, live, frozenset({1, 2}), [], lambda path: path, "before")
    assert [(each["timestamp-ms"], each["snapshot-id"]) for each in made["snapshot-log"]] == [
        (10, 1), (20, 2), (25, 1), (30, 3), (40, 4)]  # fmt: skip
    assert made["current-snapshot-id"] == 1 and [each["snapshot-id"] for each in made["snapshots"]] == [1, 2]
    assert made["schemas"] == [{"schema-id": 3}], "the numbers of an empty table are its own"
    again = merged(made, metadata([4], [(40, 4)]), frozenset({4}), [], lambda path: path, "before")
    assert len(again["snapshot-log"]) == 5 and again["current-snapshot-id"] == 4
    assert [each["snapshot-id"] for each in again["snapshots"]] == [1, 2, 4]


def test_a_tag_that_moved_is_the_newest_one_and_the_one_before_keeps_its_id() -> None:
    cold = metadata(
        [1], [(10, 1)], refs={"main": {"snapshot-id": 1}, "month": {"snapshot-id": 1, "type": "tag"}}
    )
    live = metadata([2, 3], [(20, 2), (30, 3)])
    made = merged(cold, live, frozenset({2}), [tag("month", 2)], lambda path: path, "before")
    assert {name: each["snapshot-id"] for name, each in made["refs"].items()} == {
        "main": 2,
        "month": 2,
        "month-1": 1,
    }


def test_a_cold_table_writes_nowhere_but_in_its_own_folder() -> None:
    cold = metadata([], [], properties={"gc.enabled": "false"})
    where = {
        "write.metadata.path": "/lake/db/t/meta",
        "write.data.path": "/x",
        "gc.enabled": "true",
        "owner": "a",
    }
    made = merged(
        cold, metadata([1], [(10, 1)], properties=where), frozenset({1}), [], lambda path: path, "before"
    )
    assert made["properties"] == {"gc.enabled": "false", "owner": "a"}
