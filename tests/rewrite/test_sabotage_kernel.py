"""A kernel that goes wrong is caught by its own digests: whatever is done to the rows on their way, it is not committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.model.actions import RewriteGroup
from lakewarden.rewrite.exchange import plan as exchange
from lakewarden.rewrite.exchange import receive as collecting
from lakewarden.rewrite.exchange import send as spreading
from lakewarden.rewrite.exchange.blobs import Record
from lakewarden.rewrite.interface import GroupResult
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.order import cluster
from lakewarden.rewrite.order.sort_keys import Ordering, SortKey
from lakewarden.rewrite.read.project import Projection
from lakewarden.rewrite.read.sources import RowsDiffer, Slice
from lakewarden.rewrite.task import Reading, RewriteTask, TaskResult
from lakewarden.rewrite.write.encoding import WriteOptions

ROWS, FILES = 50, 3


def column(name: str, id_: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)})


EVENTS = pa.schema(
    [column("id", 1, pa.int64()), column("name", 2, pa.string()), column("value", 3, pa.float64())]
)
BY_NAME = Ordering("sort", (SortKey(2), SortKey(1)))


def source(folder: Path, number: int) -> Slice:
    ids = range(number * ROWS, number * ROWS + ROWS)
    columns = [pa.array(ids), pa.array([f"name-{i % 7}" for i in ids]), pa.array([i / 8 for i in ids])]
    path = folder / f"in-{number}.parquet"
    pq.write_table(pa.Table.from_arrays(columns, schema=EVENTS), path, store_schema=False)
    return Slice(str(path), path.stat().st_size, ROWS, 0, ROWS, 1, None)


def task(folder: Path, ordering: Ordering | None) -> RewriteTask:
    slices = tuple(source(folder, number) for number in range(FILES))
    outputs = tuple(str(folder / f"out-{number}.parquet") for number in range(1 if ordering is None else 2))
    schema = EVENTS.serialize().to_pybytes()
    return RewriteTask(outputs, slices, schema, '{"fields": []}', WriteOptions.from_properties({}), ordering=ordering)  # fmt: skip


# ------------------------------------------------------------ what may go wrong, as rows a column is taken from

Sabotage = Callable[[list[pa.Array]], list[pa.Array]]


def taken(columns: list[pa.Array], first: list[int], only: int | None = None) -> list[pa.Array]:
    """The first two rows replaced by these; the rest as they were."""
    places = pa.array([*first, *range(2, len(columns[0]))])
    return [
        each.take(places) if only in (None, number) and len(each) > 2 else each
        for number, each in enumerate(columns)
    ]


def drop_one(columns: list[pa.Array]) -> list[pa.Array]:
    return taken(columns, [1])


def change_one(columns: list[pa.Array]) -> list[pa.Array]:
    return taken(columns, [1, 1], only=1)


def duplicate_one_and_drop_another(columns: list[pa.Array]) -> list[pa.Array]:
    return taken(columns, [0, 0])


def swap_two_values(columns: list[pa.Array]) -> list[pa.Array]:
    return taken(columns, [1, 0], only=2)


def make_one_null(columns: list[pa.Array]) -> list[pa.Array]:
    places = pa.array([None, *range(1, len(columns[2]))], pa.int64())
    return [*columns[:2], columns[2].take(places)]


UNCOUNTED = [change_one, duplicate_one_and_drop_another, swap_two_values, make_one_null]


@pytest.fixture(params=["batch", "projection"])
def break_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sabotage], None]:
    """Break the making of output batches, or the projection below it, for the first batch that comes by."""

    def install(sabotage: Sabotage) -> None:
        batch, project = Reading._output_batch, Projection.apply
        done: list[bool] = []

        def once(columns: list[pa.Array]) -> list[pa.Array]:
            if done or len(columns) < len(EVENTS):  # keys that are only looked at are no rows to spoil
                return columns
            done.append(True)
            return sabotage(columns)

        def broken_batch(self: Reading, *arguments: Any) -> pa.RecordBatch:
            made = batch(self, *arguments)
            return pa.RecordBatch.from_arrays(once(made.columns), schema=made.schema)

        def broken_projection(self: Projection, *arguments: Any) -> list[pa.Array]:
            return once(project(self, *arguments))

        if request.param == "batch":
            monkeypatch.setattr(Reading, "_output_batch", broken_batch)
        else:
            monkeypatch.setattr(Projection, "apply", broken_projection)

    return install


def differs(done: TaskResult) -> bool:
    assert done.read is not None and done.written is not None, "the rows were hashed"
    group = RewriteGroup(0, 0, "", 0, 0, (), "")
    return GroupResult(group, (), None, read=done.read, written=done.written).differs


# ------------------------------------------------------------ one task


@pytest.mark.parametrize("ordering", [None, BY_NAME], ids=["in order", "clustered"])
def test_unbroken_it_proves_its_rows(tmp_path: Path, ordering: Ordering | None) -> None:
    done = rewrite(task(tmp_path, ordering))
    assert done.rows == ROWS * FILES
    assert not differs(done)


@pytest.mark.parametrize("sabotage", UNCOUNTED)
@pytest.mark.parametrize("ordering", [None, BY_NAME], ids=["in order", "clustered"])
def test_what_no_count_can_find_is_found_by_the_digest(
    tmp_path: Path,
    ordering: Ordering | None,
    sabotage: Sabotage,
    break_it: Callable[[Sabotage], None],
) -> None:
    break_it(sabotage)
    done = rewrite(task(tmp_path, ordering))
    assert done.rows == ROWS * FILES, "the count is right"
    assert differs(done)


@pytest.mark.parametrize("ordering", [None, BY_NAME], ids=["in order", "clustered"])
def test_a_dropped_row_is_found_by_its_count(
    tmp_path: Path, ordering: Ordering | None, break_it: Callable[[Sabotage], None]
) -> None:
    break_it(drop_one)
    done = rewrite(task(tmp_path, ordering))
    assert done.rows == ROWS * FILES - 1
    assert differs(done)
    break_it(drop_one)
    with pytest.raises(RowsDiffer, match=f"expected {ROWS * FILES} rows, found {ROWS * FILES - 1}"):
        rewrite(replace(task(tmp_path, ordering), digest=False))


def test_an_order_that_repeats_a_row_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cluster.permutation

    def repeating(*arguments: Any) -> Any:
        order = np.array(real(*arguments))
        order[0] = order[1]
        return order

    monkeypatch.setattr(cluster, "permutation", repeating)
    assert differs(rewrite(task(tmp_path, BY_NAME)))


# ------------------------------------------------------------ several tasks and a shuffle between them


def shuffled(work: RewriteTask, spoil: Callable[[Record], Iterator[Record]]) -> tuple[Any, Any]:
    """Digests in and out of a group that is spread and collected; `spoil` sits in the network between."""
    plan, row_bytes, _ = exchange.prepare(work)
    sent = [
        record
        for part in exchange.chunks(work, row_bytes, at_least=2)
        for each in spreading.spread_out(plan, part)
        for record in spoil(each)
    ]
    results = [
        collecting.collect(plan, n, (each for each in sent if plan.output_of(each[0]) == n))
        for n in range(len(work.outputs))
    ]
    read, _, _ = exchange.proof(told for _, list_ in results for told in list_)
    written = [done.written for done, _ in results]
    return read, written[0] + written[1]


def honest(record: Record) -> Iterator[Record]:
    yield record


def test_an_honest_shuffle_proves_its_rows(tmp_path: Path) -> None:
    read, written = shuffled(task(tmp_path, BY_NAME), honest)
    assert read == written
    assert read.rows == ROWS * FILES


@pytest.mark.parametrize("sabotage", UNCOUNTED)
def test_rows_spoilt_before_the_shuffle_are_found(
    tmp_path: Path, sabotage: Sabotage, break_it: Callable[[Sabotage], None]
) -> None:
    break_it(sabotage)
    read, written = shuffled(task(tmp_path, BY_NAME), honest)
    assert read.rows == written.rows
    assert read != written


def test_a_blob_delivered_twice_or_never_is_found(tmp_path: Path) -> None:
    def twice(record: Record) -> Iterator[Record]:
        yield record
        if record[0] == 0:
            yield record

    def never(record: Record) -> Iterator[Record]:
        if record[0] != 0:
            yield record

    for network in (twice, never):
        read, written = shuffled(task(tmp_path, BY_NAME), network)
        assert read != written
