"""Rows put in order, by one task and by several: the same rows, in order, and no file overlaps another."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.jobs.quiet_windows import Paused
from lakewarden.rewrite import shuffle
from lakewarden.rewrite.exchange.blobs import TELL, BlobBuffer, Record, StoredBlob, content, stored
from lakewarden.rewrite.exchange.plan import Exchange, chunks, prepare, proof
from lakewarden.rewrite.exchange.receive import collect
from lakewarden.rewrite.exchange.send import spread_out
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.order.cluster import TooLarge, looks_too_large
from lakewarden.rewrite.order.sort_keys import Ordering, SortKey
from lakewarden.rewrite.task import RewriteTask
from lakewarden.spark.task_slots import TaskStopped
from tests.rewrite.test_rewrite_kernel import column, task, write

SCHEMA = pa.schema(
    [column("id", 1, pa.int64()), column("device", 2, pa.string()), column("value", 3, pa.float64())]
)
BY_DEVICE = Ordering("sort", (SortKey(2), SortKey(3, descending=True, nulls_first=False)))
ZORDER = Ordering("zorder", (SortKey(2), SortKey(3)))
Row = tuple[int, str | None, float | None]


def rows(count: int, seed: int = 1) -> list[Row]:
    pick = random.Random(seed)
    return [
        (
            n,
            None if n % 31 == 0 else f"device-{pick.randrange(40):02d}",
            None if n % 37 == 0 else pick.random(),
        )
        for n in range(count)
    ]


def work(
    tmp_path: Path, ordering: Ordering, outputs: int, files: int = 6, per_file: int = 500, **more: Any
) -> RewriteTask:
    every = rows(files * per_file)
    slices = [
        write(tmp_path / f"in-{n}.parquet", SCHEMA, every[n * per_file : (n + 1) * per_file])
        for n in range(files)
    ]
    made = task(tmp_path / "x", slices, SCHEMA, ordering=ordering, **more)
    return replace(made, outputs=tuple(str(tmp_path / f"out-{n}.parquet") for n in range(outputs)))


def read(path: str) -> list[Row]:
    table = pq.read_table(path)
    return list(zip(*(table.column(name).to_pylist() for name in SCHEMA.names), strict=True))


def key(row: Row) -> tuple[Any, ...]:
    """Device going up with nulls first, then value going down with nulls last."""
    return (row[1] is not None, row[1] or "", row[2] is None, -(row[2] or 0.0))


def shuffled(task: RewriteTask, at_least: int = 3, folder: Path | None = None) -> list[Any]:
    """What Spark does, without Spark: spread, bring together by output, collect. With a folder, blobs stay in its files."""
    exchange, row_bytes, _ = prepare(task)
    sent: dict[int, list[Record]] = defaultdict(list)
    for piece in chunks(task, row_bytes, at_least):
        records = spread_out(exchange, piece)
        for number, blob in stored(records, str(folder)) if folder else records:
            sent[exchange.output_of(number)].append((number, blob))
    return [collect(exchange, n, sent[n]) for n in range(len(task.outputs))]


def check_sorted(paths: list[str], expected: list[Row]) -> None:
    found = [read(path) for path in paths]
    together = [row for each in found for row in each]
    assert sorted(together, key=repr) == sorted(expected, key=repr)
    assert [key(row) for row in together] == sorted(key(row) for row in together)
    for one, other in pairwise(found):
        assert key(one[-1]) <= key(other[0])


@pytest.mark.parametrize("outputs", [1, 4, 7])
def test_one_task_sorts_a_partition_into_files_that_do_not_overlap(tmp_path: Path, outputs: int) -> None:
    made = work(tmp_path, BY_DEVICE, outputs)
    done = rewrite(made)
    assert len(done.files) == outputs
    assert done.read == done.written
    assert not done.parts
    check_sorted([file.path for file in done.files], rows(3000))


@pytest.mark.parametrize("outputs", [1, 4, 7])
def test_several_tasks_come_to_the_same(tmp_path: Path, outputs: int) -> None:
    made = work(tmp_path, BY_DEVICE, outputs)
    results = shuffled(made)
    check_sorted([file.path for done, _ in results for file in done.files], rows(3000))
    read, sent, erased = proof([told for _, list_ in results for told in list_])
    assert (sent, erased) == (3000, 0)
    written = sum((done.written for done, _ in results), start=type(read)())
    assert read == written


def test_blobs_that_stay_in_files_come_to_the_same(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 4)
    (tmp_path / "blobs").mkdir()
    results = shuffled(made, folder=tmp_path / "blobs")
    check_sorted([file.path for done, _ in results for file in done.files], rows(3000))
    kept = list((tmp_path / "blobs").iterdir())
    assert len(kept) == 3
    assert all(file.stat().st_size for file in kept)


def test_rows_are_stored_and_what_is_told_travels(tmp_path: Path) -> None:
    told, rows = pa.py_buffer(b"x"), pa.py_buffer(bytes(range(256)) * 1000)
    (_, first), (_, second), (_, third) = stored([(0, rows), (TELL, told), (2, rows)], str(tmp_path))
    assert isinstance(first, StoredBlob)
    assert isinstance(third, StoredBlob)
    assert second is told
    assert content(first).equals(rows)
    assert content(third).equals(rows)


def test_rows_wider_than_was_thought_are_sent_in_several_blobs(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 2, files=2, per_file=2000)
    exchange, _, _ = prepare(made)
    tight = replace(exchange, task=replace(exchange.task, memory_budget=100_000))
    sent = list(spread_out(tight, made.slices))
    assert len(sent) > 2 + tight.ranges, "several blobs of a range"
    to = [[each for each in sent if tight.output_of(each[0]) == output] for output in range(2)]
    results = [collect(exchange, output, records) for output, records in enumerate(to)]
    check_sorted([file.path for done, _ in results for file in done.files], rows(4000))
    read, count, _ = proof([told for _, list_ in results for told in list_])
    assert count == 4000
    assert read == results[0][0].written + results[1][0].written


def test_what_is_larger_on_disk_than_a_tasks_memory_is_not_tried(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 2)
    stored = sum(piece.size for piece in made.slices)
    assert made.stored_bytes == stored
    assert looks_too_large(replace(made, memory_budget=stored))
    assert not looks_too_large(replace(made, memory_budget=2 * stored))
    assert not looks_too_large(replace(made, memory_budget=stored, ordering=None))


def test_ranges_that_do_not_fit_memory_are_kept_on_disk_and_in_order(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 2, memory_budget=60_000)
    results = shuffled(made)
    check_sorted([file.path for done, _ in results for file in done.files], rows(3000))


def test_what_does_not_fit_is_too_large_before_anything_is_written(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 2, memory_budget=20_000)
    with pytest.raises(TooLarge, match="3000 rows"):
        rewrite(made)
    assert not list(tmp_path.glob("out-*"))


def test_a_curve_keeps_every_column_narrow(tmp_path: Path) -> None:
    made = work(tmp_path, ZORDER, 16, files=8, per_file=2000)
    for results in ([rewrite(made)], [done for done, _ in shuffled(made)]):
        spans = []
        for file in (file for done in results for file in done.files):
            values = [row[2] for row in read(file.path) if row[2] is not None]
            spans.append(max(values) - min(values))
        assert sum(file.rows for done in results for file in done.files) == 16_000
        assert sum(spans) / len(spans) < 0.3


def test_row_lineage_goes_with_its_row(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 3, row_lineage=True)
    slices = tuple(
        replace(piece, first_row_id=n * 500, data_sequence_number=n + 1)
        for n, piece in enumerate(made.slices)
    )
    made = replace(made, slices=slices)
    for results in ([rewrite(made)], [done for done, _ in shuffled(made)]):
        for file in (file for done in results for file in done.files):
            for row in pq.read_table(file.path).to_pylist():
                assert row["_row_id"] == row["id"]
                assert row["_last_updated_sequence_number"] == row["id"] // 500 + 1


def test_no_row_at_all_makes_no_file(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 2)
    exchange, _, _ = prepare(made)
    done, told = collect(exchange, 1, [])
    assert (done.files, told) == ((), [])
    assert isinstance(exchange, Exchange)


def test_blobs_beyond_the_limit_come_back_from_disk() -> None:
    def blob(n: int) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        batch = pa.record_batch({"n": [n] * 10})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    with BlobBuffer(limit=blob(0).size * 2) as held:
        for n in range(6):
            held.add(n % 2, blob(n))
        assert held.numbers() == [0, 1]
        assert [batch.column(0)[0].as_py() for batch in held.batches(1)] == [1, 3, 5]
        assert [batch.column(0)[0].as_py() for batch in held.batches(0)] == [0, 2, 4]


def test_a_file_too_large_for_one_task_is_read_by_several(tmp_path: Path) -> None:
    made = work(tmp_path, BY_DEVICE, 3, files=1, per_file=3000)
    parts = chunks(made, row_bytes=100.0, at_least=5)
    pieces = [piece for part in parts for piece in part]
    assert len(parts) > 1
    assert [(a.to_row, b.from_row) for a, b in pairwise(pieces) if a.to_row != b.from_row] == []
    assert sum(piece.wanted for piece in pieces) == 3000
    results = shuffled(made, at_least=5)
    check_sorted([file.path for done, _ in results for file in done.files], rows(3000))


# --- taking turns ---------------------------------------------------------------------------------------------


def caller(stopped: threading.Event, gate: Callable[[], None] = lambda: None) -> Any:
    return SimpleNamespace(stopped=stopped, gate=gate)


def test_a_group_that_waits_for_its_turn_can_be_stopped() -> None:
    first, other = caller(threading.Event()), caller(threading.Event())
    with shuffle._turn(first), shuffle._turn(first):
        other.stopped.set()
        with pytest.raises(TaskStopped), shuffle._turn(other):
            pytest.fail("there was no turn left")
    with shuffle._turn(first), shuffle._turn(first):
        pass  # both were given back


def test_a_gate_that_closed_meanwhile_gives_the_turn_back() -> None:
    def closed() -> None:
        raise Paused("paused")

    for _ in range(5):
        with pytest.raises(Paused), shuffle._turn(caller(threading.Event(), closed)):
            pytest.fail("the gate was closed")
