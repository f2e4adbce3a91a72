"""Sorting and z-order on real tables: every row kept, files that do not overlap, order inside each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import total_ordering
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, TruncateTransform
from pyiceberg.types import LongType, StringType, TimestamptzType
from pyspark import SparkContext

from lakewarden import Lakewarden
from lakewarden.model.run import RunState
from lakewarden.rewrite import shuffle
from tests.compact.test_shapes import PLAIN, SCATTERED, everything, leftovers, rewritten
from tests.support.lab import Lab

Exchanging = Callable[[], AbstractContextManager[None]]

MOR = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}


# --- a second opinion on order ------------------------------------------------------------------------------


@total_ordering
@dataclass(frozen=True)
class Turned:
    """A value that sorts the other way round."""

    value: Any

    def __lt__(self, other: Turned) -> bool:
        return bool(other.value < self.value)


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class By:
    """A column to be in order by, its nulls first going up and last going down, unless said otherwise."""

    column: str
    descending: bool = False
    nulls_first: bool | None = None
    transform: Callable[[Any], Any] = same

    def key(self, value: Any) -> tuple[Any, ...]:
        value = None if value is None else self.transform(value)
        if value is None:
            first = not self.descending if self.nulls_first is None else self.nulls_first
            return (0 if first else 2,)
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, float):  # as Iceberg orders them: -0.0 before 0.0, NaN behind all
            value = (math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))
        return 1, Turned(value) if self.descending else value


@dataclass(frozen=True)
class Kept:
    """A file's keys, in the order of its rows."""

    path: str
    partition: str
    sort_order_id: int | None
    keys: list[tuple[Any, ...]]


def files_in_order(lab: Lab, table: str, by: Sequence[By]) -> list[Kept]:
    """Every file as it lies on disk, read without Spark and without us."""
    rows = [row.asDict() for row in lab.sql(f"select * from {table}.files")]
    found = []
    for row in rows:
        columns = [_plain(pq.read_table(row["file_path"], columns=[each.column]).column(0)) for each in by]
        keys = [
            tuple(b.key(v) for b, v in zip(by, values, strict=True)) for values in zip(*columns, strict=True)
        ]
        found.append(Kept(row["file_path"], str(row.get("partition")), row["sort_order_id"], keys))
    return sorted(found, key=lambda each: (each.partition, each.keys[0]))


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def assert_ordered(lab: Lab, table: str, by: Sequence[By], order_id: int, least_files: int) -> None:
    files = files_in_order(lab, table, by)
    assert len(files) >= least_files
    assert {each.sort_order_id for each in files} == {order_id}
    for each in files:
        assert each.keys == sorted(each.keys), f"{each.path} is not in order"
    for one, other in pairwise(files):
        if one.partition == other.partition:
            assert one.keys[-1] <= other.keys[0], f"{one.path} and {other.path} overlap"


@contextmanager
def several_machines() -> Iterator[None]:
    """Blobs travel through Spark's shuffle, as they do on a cluster, and leave nothing in Spark's temporary folder."""
    context = SparkContext._active_spark_context
    assert context is not None
    folder, made = Path(context._temp_dir), list[object]()
    before, real = set(folder.iterdir()), SparkContext.broadcast

    def noted(self: SparkContext, value: object) -> Any:
        made.append(value)
        return real(self, value)

    with (
        patch.object(shuffle, "on_one_machine", lambda spark: False),
        patch.object(SparkContext, "broadcast", noted),
    ):
        yield
    assert made and set(folder.iterdir()) <= before


@contextmanager
def blobs_in_files() -> Iterator[None]:
    """Blobs stay in files, which are gone afterwards."""
    kept: list[int] = []
    real = shuffle.shutil.rmtree

    def noted(folder: str, **more: Any) -> None:
        kept.extend(file.stat().st_size for file in Path(folder).iterdir())
        real(folder, **more)
        assert not Path(folder).exists()

    with patch.object(shuffle.shutil, "rmtree", noted):
        yield
    assert sum(kept) > 500_000, "the decoded rows of these tables take more"


EXCHANGES = pytest.mark.parametrize("exchange", [several_machines, blobs_in_files])


@contextmanager
def little_memory(lab: Lab, tmp_path: Path) -> Iterator[tuple[Lab, list[int]]]:
    """The lab with a Lakewarden whose tasks have 1 MiB, and the outputs of each shuffle it needed for that."""
    shuffles: list[int] = []
    real = shuffle.shuffled

    def noted(caller: Any, task: Any, what: str) -> Any:
        shuffles.append(len(task.outputs))
        return real(caller, task, what)

    config = {"state": {"url": f"sqlite:///{tmp_path}/small.db"}, "engine": {"task_memory_mb": 1}}
    with patch.object(shuffle, "shuffled", noted), Lakewarden(config, spark=lab.spark, environ={}) as small:
        yield replace(lab, lw=small), shuffles


def bytes_of(lab: Lab, table: str) -> int:
    (row,) = lab.sql(f"select sum(file_size_in_bytes) s from {table}.files")
    return int(row.s)


def mixed(lab: Lab, rows: int, start: int = 0, partition: str = "", **properties: str) -> str:
    """Rows in no order: a few distinct strings, NaNs, both zeros, nulls, times around 1970."""
    table = lab.create(
        "id bigint, s string, x double, ts timestamp, g int", partition, **SCATTERED, **properties
    )
    add_mixed(lab, table, rows, start)
    return table


def add_mixed(lab: Lab, table: str, rows: int, start: int = 0, files: int = 4) -> None:
    lab.sql(
        f"insert into {table} select (id * 7919) % 100003, if(id % 11 = 0, null, concat('näme-', (id * 31) % 97)), "
        "case when id % 13 = 0 then null when id % 13 = 1 then double('nan') when id % 13 = 2 then double('-0.0') "
        "when id % 13 = 3 then 0D else ((id * 37) % 501 - 250) / 7D end, "
        "if(id % 17 = 0, null, timestamp'1969-12-28' + make_dt_interval(0, cast((id * 53) % 211 as int))), cast(id % 2 as int) "
        f"from range({start}, {start + rows}, 1, {files})"
    )


# --- sort ---------------------------------------------------------------------------------------------------

BUCKET = BucketTransform(8).transform(LongType())
TRUNCATE = TruncateTransform(6).transform(StringType())
DAYS = DayTransform().transform(TimestamptzType())
ORDERS: list[tuple[str, list[By]]] = [
    ("s desc nulls last, id", [By("s", True), By("id")]),
    ("x nulls last, s desc nulls first", [By("x", nulls_first=False), By("s", True, True)]),
    ("bucket(8, id), ts", [By("id", transform=BUCKET), By("ts")]),
    ("days(ts) desc nulls first, id desc", [By("ts", True, True, DAYS), By("id", True)]),
    ("truncate(6, s), x", [By("s", transform=TRUNCATE), By("x")]),
]


def test_the_tables_sort_order_whatever_it_is(lab: Lab) -> None:
    """One table under one order after the other: files of another order are rows to be ordered anew."""
    table = mixed(lab, 800, partition="g", **{"format-version": "3"})
    target = bytes_of(lab, table) // 8
    for order_id, (order, by) in enumerate(ORDERS, 1):
        lab.sql(f"alter table {table} write ordered by {order}")
        rewritten(lab, table, rewrite_target_bytes=target)
        assert_ordered(lab, table, by, order_id, least_files=6)


def test_columns_of_the_policy_are_stamped_only_if_the_table_knows_their_order(lab: Lab) -> None:
    table = mixed(lab, 400)
    target = bytes_of(lab, table) // 4
    by = [By("s", True, True), By("id")]
    rewritten(lab, table, rewrite_sort_columns="s desc nulls first, id", rewrite_target_bytes=target)
    assert_ordered(lab, table, by, 0, least_files=3)
    lab.sql(f"alter table {table} write ordered by id")
    lab.sql(f"alter table {table} write ordered by s desc nulls first, id")
    add_mixed(lab, table, 400, start=400)
    rewritten(lab, table, rewrite_sort_columns="s desc nulls first, id", rewrite_target_bytes=target)
    assert_ordered(lab, table, by, 2, least_files=6)
    bounds = lab.sql(
        f"select readable_metrics.s.lower_bound low, readable_metrics.s.upper_bound high from {table}.files where "
        "readable_metrics.s.lower_bound is not null order by low, high"
    )
    assert all(one.high <= other.low for one, other in pairwise(bounds))


def test_an_order_by_a_nested_field_is_left_to_iceberg(lab: Lab) -> None:
    table = lab.create("id bigint, st struct<a: bigint>", "", **SCATTERED)
    lab.sql(f"insert into {table} select id, named_struct('a', (id * 7) % 40) from range(0, 40, 1, 4)")
    lab.sql(f"alter table {table} write ordered by st.a")
    rewritten(lab, table, engine="iceberg")
    values = [row.a for row in lab.sql(f"select st.a a, _pos from {table} order by _pos")]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("change", "policy"),
    [
        ("rename column s to label", {"rewrite_sort_columns": "label, id"}),
        ("add column late int", {"rewrite_zorder_columns": "late, id"}),
    ],
)
def test_an_order_by_a_column_that_changed_since_the_last_write(
    lab: Lab, change: str, policy: dict[str, str]
) -> None:
    table = mixed(lab, 40)
    lab.sql(f"alter table {table} {change}")
    rewritten(lab, table, **policy)


def test_one_huge_key_and_keys_that_are_all_null(lab: Lab) -> None:
    table = lab.create("id bigint, k string, n int", "", **SCATTERED)
    lab.sql(
        f"insert into {table} select id, if(id % 10 < 8, 'most', concat('k', id)), null from range(0, 600, 1, 4)"
    )
    target = bytes_of(lab, table) // 4
    rewritten(lab, table, rewrite_sort_columns="k, n", rewrite_target_bytes=target)
    assert_ordered(lab, table, [By("k"), By("n")], 0, least_files=3)
    rewritten(lab, table, rewrite_zorder_columns="n, k", rewrite_target_bytes=target)


# --- z-order ------------------------------------------------------------------------------------------------


def spread(lab: Lab, table: str, column: str) -> float:
    """How much of a column's range a file covers on average."""
    metric = f"readable_metrics.{column}"
    files = lab.sql(f"select {metric}.lower_bound low, {metric}.upper_bound high from {table}.files")
    low, high = min(file.low for file in files), max(file.high for file in files)
    return sum((file.high - file.low) / (high - low) for file in files) / len(files)


@pytest.mark.main
@pytest.mark.parametrize(
    "outputs",
    [
        16,
        20,
    ],
)
def test_sixteen_files_and_more_each_cover_less_than_a_third_of_both_columns(lab: Lab, outputs: int) -> None:
    table = lab.create("a bigint, b bigint, s string", "", **SCATTERED)
    lab.sql(
        f"insert into {table} select (id * 7919) % 100003, (id * 104729) % 99991, uuid() from range(0, 8000, 1, 6)"
    )
    target = -(-bytes_of(lab, table) // outputs)
    rewritten(lab, table, rewrite_zorder_columns="a, b", rewrite_target_bytes=target)
    # Of 20 files a z-order would make boxes of very different shape: the nearest power of two is taken.
    assert len(lab.data_files(table)) == 16
    assert spread(lab, table, "a") < 0.3
    assert spread(lab, table, "b") < 0.3


def test_z_order_on_columns_of_every_type(lab: Lab) -> None:
    table = lab.create(", ".join(f"{name} {kind}" for name, (kind, _) in PLAIN.items()), "", **SCATTERED)
    picked = ", ".join(
        f"element_at(array({', '.join(f'cast({v} as {kind})' for v in ('null', *vs))}), pmod(hash(id, {n}), {len(vs) + 1}) + 1)"
        for n, (kind, vs) in enumerate(PLAIN.values())
    )
    lab.sql(f"insert into {table} select {picked} from range(0, 300, 1, 4)")
    for columns in ("i, s", "x, dt, p", "ts, b, bin, l", "f, r", "tn, q"):
        rewritten(lab, table, rewrite_zorder_columns=columns, rewrite_target_bytes=bytes_of(lab, table) // 3)


# --- more rows than a task may hold -------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "exchange"), [("2", several_machines), ("3", blobs_in_files)])
def test_over_the_shuffle_a_sort_gives_the_same_guarantees(
    lab: Lab, tmp_path: Path, version: str, exchange: Exchanging
) -> None:
    table = lab.create(
        "id bigint, s string, x double, wide string", "", **{"format-version": version, **SCATTERED, **MOR}
    )
    lab.sql(
        f"insert into {table} select id, if(id % 11 = 0, null, concat('näme-', (id * 31) % 97)), "
        "if(id % 13 = 1, double('nan'), (id * 37) % 501), concat(id, repeat('w', 400)) from range(0, 4000, 1, 4)"
    )
    lab.sql(f"alter table {table} write ordered by s desc nulls last, x")
    target = bytes_of(lab, table) // 4
    with little_memory(lab, tmp_path) as (small, shuffles), exchange():
        with lab.before_commit(lambda: lab.sql(f"delete from {table} where id % 100 = 7")):
            run = small.lw.run(
                "compact", table, policy={"rewrite_min_input_files": 2, "rewrite_target_bytes": target}
            )
        assert run.state is RunState.DONE, run.reason
        assert len(shuffles) == 2, "the second time with the deletes that came"
        assert len(lab.rows(table)) == 3960
        assert lab.sql(f"select count(*) from {table}.delete_files") == [(0,)]
        assert_ordered(lab, table, [By("s", True), By("x")], 1, least_files=3)
        lab.sql(f"insert into {table} select id + 4000, s, x, wide from {table}")
        rewritten(small, table, rewrite_target_bytes=target)
    assert len(shuffles) == 3
    assert_ordered(lab, table, [By("s", True), By("x")], 1, least_files=6)


def test_a_range_of_rows_far_wider_than_the_others_is_in_order_too(lab: Lab, tmp_path: Path) -> None:
    """Ranges are cut by rows: one whose rows are wide is more than a task may hold."""
    table = lab.create("id bigint, k bigint, wide string", "", **SCATTERED)
    lab.sql(
        f"insert into {table} select id, (id * 7919) % 2003, if((id * 7919) % 2003 > 1800, repeat(sha2(cast(id as string), 256), 150), cast(id as string)) "
        "from range(0, 2000, 1, 4)"
    )
    lab.sql(f"alter table {table} write ordered by k")
    with little_memory(lab, tmp_path) as (small, shuffles):
        rewritten(small, table, rewrite_target_bytes=bytes_of(lab, table) // 3)
    assert shuffles
    assert_ordered(lab, table, [By("k")], 1, least_files=2)


@pytest.mark.main
@EXCHANGES
def test_over_the_shuffle_a_z_order_gives_the_same_guarantees(
    lab: Lab, tmp_path: Path, exchange: Exchanging
) -> None:
    table = lab.create("a bigint, b double, wide string", "", **{"format-version": "3", **SCATTERED})
    lab.sql(
        f"insert into {table} select if(id % 50 = 0, null, (id * 7919) % 100003), if(id % 40 = 0, double('nan'), "
        "((id * 104729) % 99991) / 7D), concat(uuid(), repeat('w', 400)) from range(0, 4000, 1, 6)"
    )
    with little_memory(lab, tmp_path) as (small, shuffles), exchange():
        rewritten(
            small, table, rewrite_zorder_columns="a, b", rewrite_target_bytes=-(-bytes_of(lab, table) // 16)
        )
    assert shuffles
    assert len(lab.data_files(table)) >= 16
    assert spread(lab, table, "a") < 0.3
    assert spread(lab, table, "b") < 0.3


# --- which files, and when ----------------------------------------------------------------------------------


def test_auto_follows_the_policys_columns_then_the_tables_order(lab: Lab) -> None:
    table = mixed(lab, 40)

    def planned(**policy: object) -> tuple[str, tuple[str, ...]]:
        plan = lab.lw.plan("compact", table, policy={"rewrite_min_input_files": 2, **policy})
        return plan.strategy, plan.columns

    assert planned() == ("binpack", ())
    assert planned(rewrite_sort_columns="id desc") == ("sort", ("id desc",))
    lab.sql(f"alter table {table} write ordered by id")
    assert planned() == ("sort", ())
    assert planned(rewrite_zorder_columns="id, x") == ("zorder", ("id", "x"))
    assert planned(rewrite_strategy="binpack", rewrite_zorder_columns="id, x") == ("binpack", ())


def test_little_that_is_new_is_ordered_alone_and_much_with_all(lab: Lab) -> None:
    table = mixed(lab, 2000)
    target = bytes_of(lab, table) // 4
    policy = {"rewrite_sort_columns": "id", "rewrite_target_bytes": target}
    rewritten(lab, table, **policy)
    old = set(lab.data_files(table))
    add_mixed(lab, table, 60, start=2000, files=2)
    plan = lab.lw.plan("compact", table, policy={"rewrite_min_input_files": 2, **policy})
    assert [group.files for group in plan.groups()] == [2]
    assert any("little has come since" in each.reason for each in plan.skipped)
    rewritten(lab, table, **policy)
    assert old < set(lab.data_files(table))
    add_mixed(lab, table, 2000, start=3000)
    rewritten(lab, table, **policy)
    assert not old & set(lab.data_files(table))
    assert_ordered(lab, table, [By("id")], 0, least_files=6)


def test_an_ordered_table_stays_in_order_when_its_deletes_are_applied(lab: Lab) -> None:
    table = mixed(lab, 800, **{"format-version": "2", **MOR})
    lab.sql(f"alter table {table} write ordered by s, id desc")
    by = [By("s"), By("id", True)]
    target = bytes_of(lab, table) // 4
    rewritten(lab, table, rewrite_target_bytes=target)
    lab.sql(f"delete from {table} where id % 3 = 0")
    plan = lab.lw.plan(
        "compact", table, policy={"rewrite_target_bytes": target, "rewrite_min_input_files": 2}
    )
    assert plan.empty, "files that carry deletes are left to compact-deletes"
    rewritten(lab, table, "compact-deletes", rewrite_target_bytes=target)
    assert lab.sql(f"select count(*) from {table}.delete_files") == [(0,)]
    assert_ordered(lab, table, by, 1, least_files=3)
    again = lab.lw.run(
        "compact", table, policy={"rewrite_target_bytes": target, "rewrite_min_input_files": 2}
    )
    assert again.state is RunState.NOTHING_TO_DO, again.reason


def test_deletes_that_come_while_rows_change_places_are_applied_to_them(lab: Lab) -> None:
    """Nobody can tell where a row went that was sorted away, so the group is written anew."""
    table = mixed(lab, 200, **MOR)
    expected: list[list[str]] = []

    def delete() -> None:
        lab.sql(f"delete from {table} where id < 1000")
        expected.append(everything(lab, table))

    before = everything(lab, table)
    with lab.before_commit(delete):
        run = lab.lw.run(
            "compact", table, policy={"rewrite_sort_columns": "id", "rewrite_min_input_files": 2}
        )
    assert run.state is RunState.DONE, run.reason
    assert expected == [everything(lab, table)]
    assert len(expected[0]) == len(before) - 3
    assert_ordered(lab, table, [By("id")], 0, least_files=1)
    assert leftovers(lab, table) == set()
