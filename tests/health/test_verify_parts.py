"""Looking at rows again: the kernel on real files, how work is cut, what the result follows from, how it reads."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lakewarden.cli.checks import VerifyReport
from lakewarden.errors import UsageError
from lakewarden.jobs.verify.result import (
    RewriteSide,
    Verification,
    VerifyEvidence,
    VerifyResult,
    judge,
    stored_digest,
)
from lakewarden.jobs.verify.verify import (
    REMOVED,
    STRUCK,
    UNTOUCHED,
    WHOLE,
    VerifyInputs,
    added_up,
    chosen,
    chunks,
    field_ids,
    parts_to_read,
    task_bytes,
    tasks_for,
    unreadable,
)
from lakewarden.model.files import DeleteFile
from lakewarden.model.table import Snapshot
from lakewarden.rewrite.digest import Digest, digest
from lakewarden.rewrite.interface import RewriteProblem
from lakewarden.rewrite.read.sources import Slice
from lakewarden.rewrite.read.store import MissingSource, Store
from lakewarden.rewrite.task import RewriteTask
from lakewarden.rewrite.verify import FileContent, Miscounted, look, writers_schema
from lakewarden.rewrite.write.encoding import WriteOptions
from lakewarden.tables.interface import DataFile, FilesWithDeletes, ReplacedFiles
from tests.support.tables import MB, NOW, TABLE, view

DOCS = Path(__file__).resolve().parents[2] / "docs"


def column(name: str, id_: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)})


EVENTS = pa.schema([column("id", 1, pa.int64()), column("name", 2, pa.string())])


def events(first: int, rows: int) -> pa.Table:
    ids = range(first, first + rows)
    return pa.Table.from_arrays([pa.array(ids), pa.array([f"name-{i % 7}" for i in ids])], schema=EVENTS)


def write(path: Path, contents: pa.Table, **settings: Any) -> Slice:
    pq.write_table(contents, path, store_schema=False, **settings)
    rows = contents.num_rows
    return Slice(str(path), path.stat().st_size, rows, 0, rows, 1, None)


def task(slices: list[Slice], schema: pa.Schema = EVENTS, **more: Any) -> RewriteTask:
    options = WriteOptions.from_properties({})
    return RewriteTask((), tuple(slices), schema.serialize().to_pybytes(), '{"fields": []}', options, **more)


# ------------------------------------------------------------ the kernel


def test_the_rows_of_some_files_are_their_digest(tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    slices = [write(tmp_path / f"{n}.parquet", events(n * 50, 50)) for n in range(3)]
    seen = look(task(slices))
    assert seen == FileContent(digest(events(0, 150)), 0, sum(each.size for each in slices))
    assert len(sorted(tmp_path.iterdir())) == len(before) + 3, "nothing was written"
    assert pickle.loads(pickle.dumps(seen)) == seen


def test_order_and_grouping_do_not_matter_but_rows_do(tmp_path: Path) -> None:
    (whole,) = [write(tmp_path / "all.parquet", events(0, 100), row_group_size=7)]
    turned = write(tmp_path / "turned.parquet", events(0, 100).sort_by([("id", "descending")]))
    assert look(task([whole])).rows == look(task([turned])).rows
    twice = pa.concat_tables([events(0, 1), events(0, 1), events(2, 98)])
    assert look(task([write(tmp_path / "twice.parquet", twice)])).rows != look(task([whole])).rows


@pytest.mark.parametrize("row_group", [1, 9, 10, 33, 100])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_slices_of_a_file_read_every_row_group_once(tmp_path: Path, row_group: int, parts: int) -> None:
    """Also where the cuts, made without knowing the footer, fall inside row groups."""
    whole = write(tmp_path / "all.parquet", events(0, 100), row_group_size=row_group)
    pieces = [replace(whole, from_row=100 * n // parts, to_row=100 * (n + 1) // parts) for n in range(parts)]
    found = [look(task([piece])) for piece in pieces]
    total = sum(found, FileContent())
    assert total.rows == digest(events(0, 100))
    assert total.bytes_read <= whole.size, "no row group is read by two tasks"


def test_deleted_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    piece = write(tmp_path / "data.parquet", events(0, 100), row_group_size=40)
    deletes = pa.table({"file_path": [piece.path] * 3, "pos": pa.array([0, 41, 99], pa.int64())})
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    pq.write_table(deletes.cast(pa.schema(fields)), tmp_path / "deletes.parquet", store_schema=False)
    file = DeleteFile("d", "position", str(tmp_path / "deletes.parquet"), "parquet", 1, 3, 2)
    pieces = [replace(piece, from_row=a, to_row=b, deletes=(0,)) for a, b in ((0, 50), (50, 100))]
    total = sum((look(task([each], deletes=(file,))) for each in pieces), FileContent())
    rows = events(0, 100)
    kept = rows.filter(pa.array([n not in (0, 41, 99) for n in range(100)]))
    assert (total.rows, total.deleted) == (digest(kept), 3)


@pytest.mark.parametrize("said", [3, 100, 101, 140])
def test_a_file_of_another_count_is_read_as_it_is(tmp_path: Path, said: int) -> None:
    found = write(tmp_path / "data.parquet", events(0, 100), row_group_size=30)
    other = write(tmp_path / "other.parquet", events(500, 10))
    claimed = [replace(found, rows=said, from_row=said * n // 2, to_row=said * (n + 1) // 2) for n in (0, 1)]
    total = sum((look(task([other, each])) for each in claimed), FileContent())
    assert total.rows == digest(events(0, 100)) + digest(events(500, 10)) + digest(events(500, 10))
    expected = () if said == 100 else (Miscounted(found.path, said, 100),)
    assert total.miscounted == expected


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    piece = write(tmp_path / "data.parquet", events(0, 10))
    Path(piece.path).unlink()
    with pytest.raises(MissingSource) as caught:
        look(task([piece]))
    assert (caught.value.path, caught.value.gone) == (piece.path, True)


def test_the_schema_a_file_was_written_with(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "told.parquet", EVENTS) as writer:
        writer.add_key_value_metadata({"iceberg.schema": '{"fields": []}'})
    write(tmp_path / "untold.parquet", events(0, 1))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    found = [writers_schema(str(tmp_path / f"{name}.parquet"), Store({})) for name in ("told", "untold", "broken", "gone")]  # fmt: skip
    assert found == ['{"fields": []}', "", "", ""]


# ------------------------------------------------------------ what is read, by which task


def data(path: str, size: int = MB, **more: Any) -> DataFile:
    return DataFile(**{"path": path, "format": "parquet", "bytes": size, "records": 1000, "sequence_number": 1,
                       "spec_id": 0, "row_groups": 1, "encrypted": False, **more})  # fmt: skip


def delete(path: str, **more: Any) -> DeleteFile:
    return DeleteFile(**{"key": path, "kind": "position", "path": path, "format": "parquet", "bytes": 1,
                          "records": 1, "sequence_number": 2, **more})  # fmt: skip


files_of = st.lists(
    st.tuples(st.integers(1, 900), st.integers(0, 300), st.integers(1, 9)), min_size=1, max_size=40
)


@given(files_of, st.integers(50, 400))
def test_every_row_is_in_one_slice_and_tasks_are_small(found: list[tuple[int, int, int]], size: int) -> None:
    files = [
        data(f"/{n}", bytes_, records=rows, row_groups=groups)
        for n, (bytes_, rows, groups) in enumerate(found)
    ]
    cut = list(chunks(files, size))
    rows = [
        (piece.path, row) for chunk in cut for piece in chunk for row in range(piece.from_row, piece.to_row)
    ]
    assert sorted(rows) == sorted((each.path, row) for each in files for row in range(each.records))
    for chunk in cut:
        weight = sum(piece.size * piece.wanted // max(1, piece.rows) for piece in chunk)
        assert weight <= size or len(chunk) == 1
    for each in files:
        assert sum(piece.path == each.path for chunk in cut for piece in chunk) <= each.row_groups


def test_thousands_of_small_files_are_not_one_task() -> None:
    assert max(map(len, chunks([data(f"/{n}", 1) for n in range(1000)], MB))) == 256


@pytest.mark.parametrize(
    ("total", "deletes", "expected"),
    [
        (MB, 0, 16 * MB),
        (800 * MB, 0, 100 * MB),
        (800 * MB, 150 * MB, 150 * MB),
        (9000 * MB, 9000 * MB, 256 * MB),
    ],
)
def test_tasks_are_larger_than_the_deletes_they_read(total: int, deletes: int, expected: int) -> None:
    side = FilesWithDeletes(
        (data("/a", total),), (delete("/d", bytes=deletes), delete("/v", kind="vector", bytes=10**9))
    )
    assert task_bytes(side, cores=2) == expected


def test_each_task_is_sent_its_own_deletes_and_its_specs_columns() -> None:
    side = FilesWithDeletes(
        (
            data("/a", deletes=(2, 0)),
            data("/b", spec_id=1),
            data("/c", deletes=(1,), spec_id=1),
        ),
        (delete("/d0"), delete("/d1"), delete("/d2")),
    )
    made = list(tasks_for(view(transform="identity"), side, VerifyInputs(b"", {}, MB, 2)))
    assert [[piece.path for piece in each.slices] for each in made] == [["/a"], ["/b", "/c"]]
    assert [[file.path for file in each.deletes] for each in made] == [["/d0", "/d2"], ["/d1"]]
    assert [[piece.deletes for piece in each.slices] for each in made] == [[(1, 0)], [(), (0,)]]
    assert [each.partition_ids for each in made] == [frozenset({1}), frozenset()]
    assert all(each.digest for each in made)


REPLACED = ReplacedFiles(
    "{}",
    FilesWithDeletes((data("/in"),)),
    FilesWithDeletes((data("/out"), data("/struck", deletes=(0,))), (delete("/d"),)),
)


def test_outputs_that_carry_deletes_are_read_twice_for_a_stored_digest() -> None:
    parts, trouble = parts_to_read(REPLACED, None, stored=True)
    assert trouble is None
    assert {name: [each.path for each in files.files] for name, files in parts.items()} == {
        REMOVED: ["/in"], UNTOUCHED: ["/out"], STRUCK: ["/struck"], WHOLE: ["/struck"],
    }  # fmt: skip
    assert parts[STRUCK].files[0].deletes == (0,)
    assert parts[WHOLE].files[0].deletes == ()
    assert WHOLE not in parts_to_read(REPLACED, None, stored=False)[0]


def test_what_tells_nothing_is_not_read() -> None:
    gone = replace(REPLACED, missing="its parent snapshot 1 has expired")
    assert parts_to_read(gone, None, stored=False) == ({}, RewriteProblem(False, "", gone.missing))
    assert set(parts_to_read(gone, None, stored=True)[0]) == {UNTOUCHED, STRUCK, WHOLE}
    assert parts_to_read(REPLACED, "a variant column", stored=True)[0] == {}
    odd = replace(REPLACED, added=FilesWithDeletes((data("/out.orc", format="orc"),)))
    parts, trouble = parts_to_read(odd, None, stored=True)
    assert parts == {}
    assert trouble is not None and trouble.path == "/out.orc"


@pytest.mark.parametrize(
    ("side", "told"),
    [
        (FilesWithDeletes((data("/a"), data("/b.avro", format="avro"))), "/b.avro: an avro file"),
        (FilesWithDeletes((data("/a", encrypted=True),)), "/a: the file is encrypted"),
        (FilesWithDeletes((data("hdfs://h/a"),)), "hdfs://h/a: files on hdfs"),
        (FilesWithDeletes((data("/a", deletes=(1,)),), (delete("/x"), delete("/y", encrypted=True))), "/y: the file is encrypted"),
    ],
)  # fmt: skip
def test_what_the_kernel_cannot_read_is_known_beforehand(side: FilesWithDeletes, told: str) -> None:
    assert told in str(unreadable(side))


def test_a_delete_file_that_no_file_of_the_side_has_does_not_matter() -> None:
    assert unreadable(FilesWithDeletes((data("s3a://b/a"),), (delete("/x", encrypted=True),))) is None


def test_a_part_with_trouble_has_no_total_but_keeps_its_odd_counts() -> None:
    odd = Miscounted("/a", 2, 1)
    looked = added_up(
        [REMOVED, UNTOUCHED, STRUCK],
        [
            (REMOVED, FileContent(Digest(1, 1, 1), miscounted=(odd,))),
            (REMOVED, RewriteProblem(False, "/b", "no such file")),
            (REMOVED, FileContent(Digest(1, 1, 1))),
            (UNTOUCHED, FileContent(Digest(2, 2, 2), 3)),
            (UNTOUCHED, FileContent(Digest(2, 2, 2), 3)),
        ],
    )
    assert looked.total(REMOVED) is None
    assert looked.total(UNTOUCHED, STRUCK) == FileContent(Digest(4, 4, 4), 6)
    assert looked.total(UNTOUCHED, WHOLE) is None
    assert (str(looked.trouble), looked.miscounted) == ("/b: no such file", (odd,))


def test_ids_of_nested_columns_count() -> None:
    schema = """{"type": "struct", "fields": [
        {"id": 1, "name": "l", "type": {"type": "list", "element-id": 2, "element": "int"}},
        {"id": 3, "name": "m", "type": {"type": "map", "key-id": 4, "key": "int", "value-id": 5, "value":
            {"type": "struct", "fields": [{"id": 6, "name": "x", "type": "int"}]}}}]}"""
    assert field_ids(schema) == {1, 2, 3, 4, 5, 6}


# ------------------------------------------------------------ which snapshot


def snapshot(id_: int = 7, operation: str = "replace", **summary: str) -> Snapshot:
    return Snapshot(
        id_, 6, id_, NOW, operation, {key.replace("_", "-"): each for key, each in summary.items()}
    )


def test_only_rewrites_are_chosen_and_the_newest_are_listed() -> None:
    rewrites = [snapshot(n, deleted_data_files="3") for n in range(100, 120)]
    found = replace(view(), snapshots=(snapshot(1, "append"), snapshot(2), snapshot(3, ""), *rewrites))
    assert chosen(found, 2).id == 2
    for id_, told in ((1, "its operation is append"), (3, "it names no operation"), (4, "no such snapshot")):
        with pytest.raises(UsageError, match=told) as caught:
            chosen(found, id_)
        assert caught.value.hint.count(",") == 4
        assert not re.search(r"\b2\b", caught.value.hint), "that one rewrote manifests only"


# ------------------------------------------------------------ the result

ROWS, OTHERS = Digest(10, 1, 2), Digest(10, 1, 3)
SEEN = FileContent(ROWS)
GONE = RewriteProblem(False, "/a", "no such file")


@pytest.mark.parametrize(
    ("evidence", "result", "told"),
    [
        (VerifyEvidence(SEEN, SEEN), VerifyResult.PROVEN, "are the rows of the files removed"),
        (VerifyEvidence(SEEN, SEEN, ROWS, ROWS), VerifyResult.PROVEN, "and those whose digest the commit stored"),
        (VerifyEvidence(SEEN, FileContent(OTHERS)), VerifyResult.DIFFERS, "as many (10), but not the same"),
        (VerifyEvidence(SEEN, FileContent(Digest(9, 1, 2))), VerifyResult.DIFFERS, "10 removed, 9 added"),
        (VerifyEvidence(SEEN, SEEN, OTHERS, ROWS), VerifyResult.DIFFERS, f"digest {OTHERS} instead of {ROWS}"),
        (VerifyEvidence(FileContent(OTHERS), SEEN, ROWS, ROWS), VerifyResult.DIFFERS, "still hold the rows whose digest"),
        (VerifyEvidence(None, SEEN, trouble=GONE), VerifyResult.CANNOT_TELL, "/a: no such file"),
        (VerifyEvidence(None, SEEN, ROWS, ROWS, GONE), VerifyResult.CANNOT_TELL, "still hold the rows whose digest"),
        (VerifyEvidence(None, SEEN, OTHERS, ROWS, GONE), VerifyResult.DIFFERS, "do not hold the rows"),
        (VerifyEvidence(SEEN, SEEN, miscounted=(Miscounted("/a", 3, 2),)), VerifyResult.DIFFERS, "/a has 2 rows, the table says 3"),
    ],
)  # fmt: skip
def test_the_result_follows_from_the_evidence(
    evidence: VerifyEvidence, result: VerifyResult, told: str
) -> None:
    state, reason, file = judge(evidence)
    assert (state, told in reason) == (result, True), reason
    assert file == ("/a" if evidence.miscounted or state is VerifyResult.CANNOT_TELL else "")


digests = st.builds(Digest, st.integers(0, 2), st.integers(0, 2), st.integers(0, 1))
sides = st.none() | st.builds(FileContent, digests)


@given(sides, sides, st.none() | digests, st.none() | digests)
def test_proven_needs_both_sides_and_nothing_that_differs(
    removed: FileContent | None, added: FileContent | None, written: Digest | None, stored: Digest | None
) -> None:
    trouble = None if removed and added else GONE
    state, _, _ = judge(VerifyEvidence(removed, added, written, stored, trouble))
    both = removed is not None and added is not None
    equal = both and removed.rows == added.rows  # type: ignore[union-attr]
    stale = stored is not None and written is not None and stored != written
    assert (state is VerifyResult.PROVEN) == (equal and not stale)
    assert (state is VerifyResult.DIFFERS) == ((both and not equal) or stale)


def test_exit_codes_are_documented_ones() -> None:
    assert {each: each.exit_code for each in VerifyResult} == {"proven": 0, "differs": 1, "cannot-tell": 3}


@pytest.mark.parametrize("text", ["", "rows-v2:1:00", "rows-v1:x"])
def test_a_digest_of_another_kind_is_not_compared(text: str) -> None:
    assert stored_digest(replace(snapshot(), summary={"lineage.digest": text})) is None
    assert stored_digest(replace(snapshot(), summary={"lineage.digest": str(ROWS)})) == ROWS


# ------------------------------------------------------------ how it reads


def verification(evidence: VerifyEvidence, **summary: str) -> Verification:
    state, reason, file = judge(evidence)
    return Verification(
        TABLE,
        replace(snapshot(), summary=summary),
        state,
        reason,
        RewriteSide.of(FilesWithDeletes((data("/a"), data("/b"))), evidence.removed),
        RewriteSide.of(FilesWithDeletes((data("/c"),)), evidence.added),
        file,
        None if evidence.stored is None else str(evidence.stored),
        evidence.stored_agrees,
        1.5,
    )


def shown(report: VerifyReport) -> str:
    output = StringIO()
    Console(file=output, width=160, highlight=False, markup=False).print(report.render(160))
    return output.getvalue()


def test_a_proven_one_on_the_screen() -> None:
    out = shown(
        VerifyReport(
            verification(
                VerifyEvidence(FileContent(ROWS, 4), SEEN, ROWS, ROWS), **{"writer.id": "lakewarden"}
            )
        )
    )
    for words in (
        "verify  lake.db.events  proven",
        "7, committed 2024-03-15 12:00:00 UTC",
        "replace",
        "by lakewarden",
        "2 files, 2.1 MB, 10 rows, without 4 deleted rows",
        "1 file, 1.0 MB, 10 rows\n",
        f"{ROWS} on both sides; the digest stored by the commit agrees",
        "1.5 s",
    ):
        assert words in re.sub(r" +\n", "\n", out), words


def test_others_on_the_screen_say_what_to_do() -> None:
    out = shown(VerifyReport(verification(VerifyEvidence(SEEN, FileContent(OTHERS)))))
    assert "differs" in out and f"{ROWS} removed, {OTHERS} added; the commit stored none" in out
    assert "stop expiry" in out
    out = shown(VerifyReport(verification(VerifyEvidence(trouble=GONE), **{"lineage.proof": "pages"})))
    assert (
        "cannot-tell" in out
        and "not read" in out
        and "not computed" in out
        and "the run proved it by pages" in out
    )


def fields(value: Any) -> set[str]:
    return {
        name
        for key, each in value.items()
        for name in (key, *(fields(each) if isinstance(each, dict) else ()))
    }


def test_every_field_of_its_document_is_in_the_contract() -> None:
    told = set(re.findall(r"`([a-z_]+)`", (DOCS / "json.md").read_text("utf-8")))
    document = VerifyReport(verification(VerifyEvidence(SEEN, SEEN, ROWS, ROWS))).to_dict()
    assert fields(document) <= told, fields(document) - told
