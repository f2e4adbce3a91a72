"""Holds on real tables: pins that hold or are refused, tags, writers, and loads that are adopted whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden import RunState, Trigger, clock
from lakewarden.cli import main
from lakewarden.errors import Busy, CommitLost, CommitUnknown, LakewardenError, Refused, UsageError
from lakewarden.jobs.recovery import IN_FLIGHT
from lakewarden.jobs.run_context import DeletingStep
from lakewarden.model.hold import HoldKind
from lakewarden.model.table import TableRef
from lakewarden.state.holds import LoadState
from lakewarden.state.runs import current_owner
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import BatchState
from lakewarden.tables.iceberg.format import Iceberg
from lakewarden.tables.iceberg.writer import IcebergWriter
from tests.support.lab import Lab

FIRST, SECOND = date(2024, 3, 1), date(2024, 3, 2)


def snapshot_ids(lab: Lab, table: str) -> list[int]:
    return [row.snapshot_id for row in lab.snapshots(table)]


def refs(lab: Lab, table: str) -> dict[str, Any]:
    return {ref.name: ref for ref in lab.lw.view(table).refs}


def expiring(lab: Lab, table: str, *ids: int, run_id: str = "e1") -> None:
    """An expiry of this process that says which snapshots are going, and then is not heard of."""
    owner = current_owner()
    lab.lw.journal.start(
        run_id=run_id, table=table, job="expire", owner=owner, trigger=Trigger("manual", "ana"), plan={},
        policy={}, now=clock.now(),
    )  # fmt: skip
    lab.lw.journal.step(run_id, owner, DeletingStep.EXPIRING, {"snapshot_ids": list(ids)}, clock.now())


# ------------------------------------------------------------ pins


@pytest.mark.main
def test_a_pin_holds_until_its_block_is_left(lab: Lab) -> None:
    table = lab.messy(files=2)
    first, current = snapshot_ids(lab, table)
    with lab.lw.pin(table, holder="report", purpose="month end", ttl="2h") as pin:
        assert pin.snapshot_id == current
        (held,) = [each for each in lab.lw.holds.of(table).holds if each.kind is HoldKind.PIN]
        assert (held.name, held.holder, held.purpose) == (pin.id, "report", "month end")
        assert held.until is not None and timedelta(hours=1) < held.until - clock.now() <= timedelta(hours=2)
        with pytest.raises(ZeroDivisionError), lab.lw.pin(table, first, holder="other"):
            assert len(lab.lw.holds.pins(table)) == 2
            raise ZeroDivisionError
        assert [each.id for each in lab.lw.holds.pins(table)] == [pin.id]
    assert lab.lw.holds.pins() == ()


def test_a_pin_is_renewed_while_it_counts(lab: Lab) -> None:
    table = lab.messy(files=1)
    pin = lab.lw.pin(table, holder="report", ttl="1h")
    pin.renew("7d")
    assert pin.expires_at is not None and pin.expires_at - clock.now() > timedelta(days=6)
    assert lab.lw.holds.pins(table)[0].expires_at == pin.expires_at
    lab.lw.holds.unpin(pin.id)
    with pytest.raises(Refused, match="may be gone"):
        pin.renew("7d")
    with pytest.raises(UsageError, match="no such pin"):
        lab.lw.holds.unpin(pin.id)


@pytest.mark.parametrize("ttl", ["soon", "-2h", "0m", "9999999999d", timedelta(0)])
def test_a_ttl_that_is_none_is_refused(lab: Lab, ttl: Any) -> None:
    with pytest.raises(UsageError, match="ttl"):
        lab.lw.pin(lab.table(), holder="report", ttl=ttl)


@pytest.mark.main
def test_a_pin_on_a_snapshot_that_is_gone_is_refused(lab: Lab) -> None:
    table = lab.messy(files=3)
    first = snapshot_ids(lab, table)[0]
    lab.sql(
        f"call {lab.catalog}.system.expire_snapshots(table => 'db.events', snapshot_ids => array({first}))"
    )
    with pytest.raises(Refused, match=f"snapshot {first}") as caught:
        lab.lw.pin(table, first, holder="report")
    assert caught.value.exit_code == 12
    assert lab.lw.holds.pins() == ()


def test_a_pin_that_comes_while_its_snapshot_goes_is_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has it when the pin is asked for, and not any more when its row is there."""
    table = lab.messy(files=3)
    first = snapshot_ids(lab, table)[0]
    real, looks = Iceberg.view, []

    def view(self: Iceberg, ref: TableRef) -> Any:
        looks.append(len(lab.lw.holds.pins()))
        if len(looks) == 2:
            lab.sql(
                f"call {lab.catalog}.system.expire_snapshots(table => 'db.events', snapshot_ids => array({first}))"
            )
        return real(self, ref)

    monkeypatch.setattr(Iceberg, "view", view)
    with pytest.raises(Refused, match="not any more"):
        lab.lw.pin(table, first, holder="report")
    assert looks == [0, 1], "the row is there before the table is looked at for the answer"
    assert lab.lw.holds.pins() == ()


def test_a_pin_on_a_snapshot_an_expiry_is_taking_is_refused(lab: Lab) -> None:
    table = lab.messy(files=3)
    first, second, _ = snapshot_ids(lab, table)
    expiring(lab, table, first)
    with pytest.raises(Refused, match="expire run e1"):
        lab.lw.pin(table, first, holder="report")
    with pytest.raises(Refused, match="expire run e1"):
        lab.lw.holds.tag(table, "keep", first, forever=True)
    assert lab.lw.holds.pins() == () and "keep" not in refs(lab, table)
    lab.lw.pin(table, second, holder="report").unpin()


@pytest.mark.parametrize("state", [RunState.UNKNOWN, RunState.FAILED])
def test_an_expiry_that_ended_unknown_may_still_take_it(lab: Lab, state: RunState) -> None:
    table = lab.messy(files=2)
    first = snapshot_ids(lab, table)[0]
    expiring(lab, table, first)
    lab.lw.journal.finish("e1", state, "", {}, (), clock.now())
    if state is RunState.FAILED:
        lab.lw.pin(table, first, holder="report")
        return
    with pytest.raises(Refused, match="expire run e1"):
        lab.lw.pin(table, first, holder="report")


def test_a_pin_of_a_table_without_a_snapshot_is_an_error(lab: Lab) -> None:
    with pytest.raises(UsageError, match="no snapshot yet"):
        lab.lw.pin(lab.create(), holder="report")


@pytest.mark.main
def test_a_mirrored_pin_is_a_tag_as_long_as_the_pin(lab: Lab) -> None:
    table = lab.messy(files=2)
    first = snapshot_ids(lab, table)[0]
    with lab.lw.pin(table, first, holder="report", ttl="2h", mirror=True) as pin:
        tag = refs(lab, table)[f"lakewarden-pin-{pin.id}"]
        assert (tag.kind, tag.snapshot_id) == ("tag", first)
        # Iceberg itself does not take it before the pin ends.
        lab.sql(f"call {lab.catalog}.system.expire_snapshots(table => 'db.events', retain_last => 1)")
        assert f"lakewarden-pin-{pin.id}" in refs(lab, table)
        pin.renew(None)
        assert refs(lab, table)[f"lakewarden-pin-{pin.id}"].max_age_ms == 2**63 - 1
    assert set(refs(lab, table)) == {"main"}


def test_a_mirrored_pin_of_a_table_that_was_dropped_can_be_taken_away(lab: Lab) -> None:
    table = lab.messy(files=1)
    pin = lab.lw.pin(table, holder="report", mirror=True)
    lab.sql(f"drop table {table}")
    pin.unpin()
    assert lab.lw.holds.pins() == ()


def test_a_mirror_that_cannot_be_taken_away_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.messy(files=1)
    pin = lab.lw.pin(table, holder="report", mirror=True)

    def away(*_: Any) -> None:
        raise CommitLost(table=table, reason="the catalog is away")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "drop_tag", away)
        with pytest.raises(LakewardenError, match="the catalog is away") as caught:
            pin.unpin()
    assert f"unpin {pin.id}" in caught.value.hint
    assert [each.id for each in lab.lw.holds.pins(table)] == [pin.id], "the next try finds both"
    lab.lw.holds.unpin(pin.id)
    assert set(refs(lab, table)) == {"main"} and lab.lw.holds.pins() == ()


@pytest.mark.main
def test_expiry_takes_nothing_that_is_held_and_everything_else(lab: Lab) -> None:
    table = lab.messy(files=5)
    pinned, tagged, free, other, current = snapshot_ids(lab, table)
    now = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
    pin = lab.lw.pin(table, pinned, holder="report")
    lab.lw.holds.tag(table, "q1", tagged, retain="1h")
    assert lab.lw.run("expire", table, policy=now).state is RunState.DONE
    assert set(snapshot_ids(lab, table)) == {pinned, tagged, current}
    assert len(lab.rows(f"{table}", f"version as of {pinned}")) == 200
    pin.unpin()
    lab.lw.holds.untag(table, "q1")
    lab.lw.run("expire", table, policy=now)
    assert snapshot_ids(lab, table) == [current]
    for gone in (pinned, free, other):
        with pytest.raises(Refused, match="not any more"):
            lab.lw.pin(table, gone, holder="report")


# ------------------------------------------------------------ tags


@pytest.mark.main
def test_a_tag_is_kept_as_long_as_it_was_told(lab: Lab) -> None:
    table = lab.messy(files=2)
    first, current = snapshot_ids(lab, table)
    lab.lw.holds.tag(table, "q1", first, retain="90d")
    lab.lw.holds.tag(table, "audit", forever=True)
    tags = {each.name: each for each in lab.lw.holds.of(table).holds if each.kind is HoldKind.TAG}
    assert (tags["q1"].snapshot_id, tags["audit"].snapshot_id) == (first, current)
    left = tags["q1"].until
    assert left is not None and timedelta(days=89) < left - clock.now() <= timedelta(days=90, seconds=1)
    assert tags["audit"].until is None and refs(lab, table)["audit"].max_age_ms == 2**63 - 1
    lab.lw.holds.untag(table, "q1")
    assert set(refs(lab, table)) == {"main", "audit"}


def test_what_is_wrong_with_a_tag_is_named(lab: Lab) -> None:
    table = lab.messy(files=1)
    lab.lw.holds.tag(table, "q1", retain="1d")
    for arguments, words in (
        ({"name": "q1", "retain": "1d"}, "a tag 'q1' already"),
        ({"name": "main", "retain": "1d"}, "a branch 'main' already"),
        ({"name": "q2", "snapshot_id": 42, "retain": "1d"}, "no snapshot 42"),
        ({"name": "q2"}, "exactly one way"),
        ({"name": "q2", "retain": "1d", "forever": True}, "exactly one way"),
    ):
        with pytest.raises(UsageError, match=words):
            lab.lw.holds.tag(table, **arguments)
    for name, words in (("q2", "no tag 'q2'"), ("main", "'main' is a branch")):
        with pytest.raises(UsageError, match=words):
            lab.lw.holds.untag(table, name)
    assert set(refs(lab, table)) == {"main", "q1"}


# ------------------------------------------------------------ loads: adopting


def staged(lab: Lab, name: str, rows: Mapping[str, list[Any]], schema: pa.Schema | None = None) -> str:
    """A Parquet file beside the table, written by another tool: no field ids."""
    folder = lab.warehouse / "staged"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    pq.write_table(pa.table(dict(rows), schema=schema), path)
    return str(path)


def day(lab: Lab, name: str, on: date, start: int = 0, rows: int = 3) -> str:
    ids = list(range(start, start + rows))
    return staged(lab, name, {"id": ids, "s": [f"n{each}" for each in ids], "d": [on] * rows})


def begun(lab: Lab, table: str, *paths: str, **more: Any) -> str:
    return lab.lw.holds.stage_begin(table, "ana", paths=paths, purpose="backfill", **more).id


@pytest.mark.main
def test_a_load_becomes_part_of_the_table_in_one_snapshot(lab: Lab) -> None:
    table = lab.messy(files=1, rows=10)
    before = lab.rows(table)
    paths = [day(lab, "a.parquet", FIRST, 100), day(lab, "b.parquet", SECOND, 200)]
    load = begun(lab, table, *paths)
    assert lab.lw.holds.of(table).covering(f"file:{paths[0]}", None)
    run = lab.lw.holds.stage_adopt(load, trigger={"type": "manual", "operator": "ana"})
    assert run.state is RunState.DONE, run.reason
    added = [(each, f"n{each}", FIRST) for each in range(100, 103)]
    added += [(each, f"n{each}", SECOND) for each in range(200, 203)]
    assert lab.rows(table) == sorted([*before, *added], key=repr)
    assert len(lab.rows(table, f"where d = date'{SECOND}' and id >= 100")) == 3, "pruning finds them"
    newest = lab.snapshots(table)[-1]
    assert run.snapshot_ids == (newest.snapshot_id,) and newest.operation == "append"
    keys = {"lineage.operation": "append", "lineage.run_id": run.id, "lineage.load": load, "input.row_count": "6", "trigger.operator": "ana"}  # fmt: skip
    assert keys.items() <= newest.summary.items()
    steps = [step.name for step in lab.lw.run_by_id(run.id)[1]]
    assert steps == [DeletingStep.ADOPTING, DeletingStep.ADOPTED]
    assert lab.lw.holds.of(table).covering(paths[0], None) is None
    verified = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert verified.state in (RunState.DONE, RunState.NOTHING_TO_DO)
    assert lab.rows(table) == sorted([*before, *added], key=repr), "a rewrite reads them as they are"


def by_an_unknown_writer(path: str, least: int | None = None, stated: int | None = None) -> str:
    """The file's footer with another writer's name and, instead of one bound of `id`, another."""
    file = Path(path)
    content = file.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:].replace(b"parquet-cpp-arrow version", b"parquet-someone version  ")
    if least is not None and stated is not None:
        assert least.to_bytes(8, "little") in footer
        footer = footer.replace(least.to_bytes(8, "little"), stated.to_bytes(8, "little"))
    file.write_bytes(content[:start] + footer)
    assert pq.read_metadata(path).created_by.startswith("parquet-someone")
    return path


def test_what_an_unknown_writer_says_of_its_values_is_compared_with_them(lab: Lab) -> None:
    """Bounds in footers become the table's: by a wrong one readers do not find rows, and deletes drop whole files."""
    table = lab.create()
    right = by_an_unknown_writer(day(lab, "a.parquet", FIRST, 100))
    wrong = by_an_unknown_writer(day(lab, "b.parquet", FIRST, 200), 200, 201)
    load = begun(lab, table, right, wrong)
    with pytest.raises(
        Refused, match=r"b\.parquet.*column id that it goes from 201 to 202.*200 to 202.*someone"
    ) as told:
        lab.lw.holds.stage_adopt(load)
    assert told.value.exit_code == 12 and not lab.snapshots(table)
    assert lab.lw.holds.stage_adopt(begun(lab, table, right)).counters["files_added"] == 1
    assert len(lab.rows(table)) == 3


@pytest.mark.main
def test_adopting_twice_changes_nothing_and_says_so(lab: Lab) -> None:
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    first = lab.lw.holds.stage_adopt(load)
    again = lab.lw.holds.stage_adopt(load)
    assert again.state is RunState.NOTHING_TO_DO
    assert first.id in again.reason and "already" in again.reason
    assert len(lab.snapshots(table)) == 1


def test_paths_may_be_named_when_they_are_known(lab: Lab) -> None:
    table = lab.create(partition="")
    load = lab.lw.holds.stage_begin(table, "ana", prefixes=[f"{lab.warehouse}/staged/"]).id
    path = day(lab, "a.parquet", FIRST)
    assert lab.lw.holds.of(table).covering(path, None)
    assert lab.lw.holds.stage_adopt(load, [path, f"file://{path}"]).counters["files_added"] == 1
    assert len(lab.rows(table)) == 3


def test_a_file_with_field_ids_of_its_own_is_read_by_them(lab: Lab) -> None:
    table = lab.create(partition="")
    field = lambda id_, name, type_: pa.field(name, type_, metadata={"PARQUET:field_id": str(id_)})  # noqa: E731
    schema = pa.schema([field(3, "x", pa.date32()), field(1, "y", pa.int64()), field(2, "z", pa.string())])
    path = staged(lab, "a.parquet", {"x": [FIRST], "y": [7], "z": ["s"]}, schema)
    lab.lw.holds.stage_adopt(begun(lab, table, path))
    assert lab.rows(table) == [(7, "s", FIRST)]
    assert "schema.name-mapping.default" not in lab.lw.view(table).properties


@pytest.mark.parametrize(
    ("partition", "rows", "expected"),
    [
        ("d", {"d": [FIRST, FIRST]}, "d=2024-03-01"),
        ("months(d)", {"d": [FIRST, SECOND]}, "d_month=2024-03"),
        ("truncate(2, s)", {"s": ["abc", "abd"]}, "s_trunc=ab"),
        ("bucket(4, id)", {"id": [7, 7]}, None),
        ("s", {"s": ["x" * 40, "x" * 40]}, "s=" + "x" * 40),
        ("d", {"d": [None, None]}, "d=null"),
        ("d, s", {"d": [FIRST, FIRST]}, "d=2024-03-01/s=null"),
    ],
)
def test_the_partition_is_read_from_the_footer(
    lab: Lab, partition: str, rows: dict[str, list[Any]], expected: str | None
) -> None:
    table = lab.create(partition=partition)
    types = {"id": pa.int64(), "s": pa.string(), "d": pa.date32()}
    schema = pa.schema([(name, types[name]) for name in rows])
    run = lab.lw.holds.stage_adopt(begun(lab, table, staged(lab, "a.parquet", rows, schema)))
    assert run.state is RunState.DONE
    (found,) = lab.lw.lake.format_for(TableRef.parse(table)).files(TableRef.parse(table), run.snapshot_ids[0], None).partitions  # fmt: skip
    assert expected is None or found.path == expected
    name, values = next(iter(rows.items()))
    told = "is null" if values[0] is None else f"= {values[0] if name == 'id' else repr(str(values[0]))}"
    assert len(lab.rows(table, f"where {name} {told}")) == values.count(values[0]), "pruning finds its rows"


@pytest.mark.parametrize(
    ("partition", "rows", "words"),
    [
        ("d", {"d": [FIRST, SECOND]}, "column d .* goes from 2024-03-01 to 2024-03-02"),
        ("months(d)", {"d": [FIRST, date(2024, 4, 1)]}, "from 2024-03 to 2024-04"),
        ("bucket(1, id)", {"id": [1, 2]}, "column id"),
        ("d", {"d": [FIRST, None]}, "both nulls and values"),
    ],
)
def test_a_file_of_several_partitions_is_refused(
    lab: Lab, partition: str, rows: dict[str, list[Any]], words: str
) -> None:
    """One bucket holds both ends, and says nothing of what lies between them."""
    table = lab.create(partition=partition)
    path = staged(lab, "a.parquet", rows)
    with pytest.raises(Refused, match=words) as caught:
        lab.lw.holds.stage_adopt(begun(lab, table, path))
    assert path in caught.value.message
    assert lab.snapshots(table) == []


def test_files_that_do_not_fit_are_refused_before_anything_is_committed(lab: Lab) -> None:
    table = lab.create(columns="id bigint not null, s string, d date", partition="d")
    good = day(lab, "good.parquet", FIRST)
    lab.lw.holds.stage_adopt(begun(lab, table, day(lab, "live.parquet", FIRST)))
    torn = Path(day(lab, "torn.parquet", FIRST))
    torn.write_bytes(torn.read_bytes()[:-9])
    d = pa.array([FIRST], pa.date32())
    for path, words in (
        (str(lab.warehouse / "staged" / "nowhere.parquet"), "does not exist"),
        (str(torn), "cannot be read as Parquet"),
        (f"file:{lab.warehouse}/staged/live.parquet", "part of the table already"),
        (staged(lab, "lacks.parquet", {"s": ["x"], "d": d}), "required column id"),
        (staged(lab, "null.parquet", {"id": pa.array([None], pa.int64()), "d": d}), "has 1 nulls"),
        (staged(lab, "type.parquet", {"id": ["x"], "d": d}), "do not fit: id"),
        (staged(lab, "other.parquet", {"a": [1]}), "required column id"),
        (staged(lab, "empty.parquet", {"id": pa.array([], pa.int64())}), "no rows"),
    ):
        load = begun(lab, table, good, path)
        with pytest.raises(Refused, match=words) as caught:
            lab.lw.holds.stage_adopt(load)
        assert path in caught.value.message
        run = lab.lw.runs(table)[0]
        assert (run.job, run.state) == ("adopt", RunState.REFUSED) and path in run.reason
    assert len(lab.snapshots(table)) == 1 and len(lab.rows(table)) == 3


def test_an_int_column_widens_to_the_tables_type(lab: Lab) -> None:
    table = lab.create(partition="truncate(10, id)")
    path = staged(lab, "a.parquet", {"id": pa.array([21, 27], pa.int32())})
    lab.lw.holds.stage_adopt(begun(lab, table, path))
    assert [row[0] for row in lab.rows(table, "where id > 20")] == [21, 27]


def test_floats_state_no_bounds_because_footers_do_not_count_nan(lab: Lab) -> None:
    table = lab.create(columns="id bigint, f double", partition="")
    path = staged(lab, "a.parquet", {"id": [1, 2], "f": [1.0, float("nan")]})
    lab.lw.holds.stage_adopt(begun(lab, table, path))
    (row,) = lab.sql(f"select lower_bounds, upper_bounds from {table}.files")
    assert set(row.lower_bounds) == set(row.upper_bounds) == {1}
    lab.sql(f"delete from {table} where f <= 1.0")
    assert [each[0] for each in lab.rows(table)] == [2]


def test_a_load_that_is_over_is_not_adopted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST), ttl="1h")
    later = clock.now() + timedelta(hours=2)
    monkeypatch.setattr(clock, "now", lambda: later)
    with pytest.raises(Refused, match="it has expired"):
        lab.lw.holds.stage_adopt(load)
    assert lab.snapshots(table) == []


def test_a_load_of_a_table_that_was_made_anew_is_not_adopted(lab: Lab) -> None:
    table = lab.create()
    lab.lw.view(table)
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    lab.sql(f"drop table {table} purge")
    lab.create()
    with pytest.raises(Refused, match="created again"):
        lab.lw.holds.stage_adopt(load)


def test_what_a_load_must_say(lab: Lab) -> None:
    for arguments, words in (
        ({}, "names no files"),
        ({"paths": ["data/x.parquet"]}, "it is relative"),
        ({"prefixes": ["data/"]}, "it is relative"),
        ({"paths": ["/lake/folder/"]}, "is a folder"),
    ):
        with pytest.raises(UsageError, match=words):
            lab.lw.holds.stage_begin("lake.db.events", "ana", **arguments)
    with pytest.raises(UsageError, match="no such load"):
        lab.lw.holds.stage_adopt("load-0")


# ------------------------------------------------------------ loads: races and crashes


def crash(lab: Lab, monkeypatch: pytest.MonkeyPatch, load: str, when: str) -> None:
    """The journal stays as a process leaves it that stops between ADOPTING and ADOPTED."""
    real = IcebergWriter.commit_adoption

    class Killed(BaseException):
        pass

    def commit(self: IcebergWriter, *arguments: Any) -> int:
        if when == "after":
            real(self, *arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "commit_adoption", commit)
        with pytest.raises(Killed):
            lab.lw.holds.stage_adopt(load)
    assert lab.lw.runs()[0].state is RunState.RUNNING


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_adopting_is_settled_by_the_next_try(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    crash(lab, monkeypatch, load, when)
    again = lab.lw.holds.stage_adopt(load)
    assert again.state is (RunState.DONE if when == "before" else RunState.NOTHING_TO_DO), again.reason
    assert len(lab.rows(table)) == 3 and len(lab.snapshots(table)) == 1
    died = lab.lw.runs(table)[-1]
    assert died.state is (RunState.UNKNOWN if when == "before" else RunState.DONE)


def test_a_commit_that_came_late_is_not_made_twice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was taken for dead commits after all, between our look at the table and our commit."""
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    late: list[Any] = []
    real = IcebergWriter.commit_adoption

    def dies(self: IcebergWriter, *arguments: Any) -> int:
        late.extend(arguments)
        raise CommitUnknown(table=table, reason="the line is dead")

    def beaten(self: IcebergWriter, *arguments: Any) -> int:
        real(self, *late)
        return real(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "commit_adoption", dies)
        assert lab.lw.holds.stage_adopt(load).state is RunState.UNKNOWN
    with monkeypatch.context() as patched:
        patched.setattr(IcebergWriter, "commit_adoption", beaten)
        assert lab.lw.holds.stage_adopt(load).state is RunState.LOST_RACE
    assert len(lab.rows(table)) == 3
    assert lab.lw.holds.stage_adopt(load).state is RunState.NOTHING_TO_DO
    assert {run.state for run in lab.lw.runs(table)} >= {RunState.DONE, RunState.LOST_RACE}
    assert len(lab.snapshots(table)) == 1


def test_other_writers_do_not_stop_an_adoption(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another append lands after the head was looked at: the commit is made again on top of it."""
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST, 1000))
    adoption = lab.lw.lake.format_for(TableRef.parse(table))._catalogs.adoption  # type: ignore[attr-defined]
    calls: list[int] = []

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(adoption, name)

        def append(self, *arguments: Any) -> None:
            calls.append(1)
            if len(calls) == 1:
                lab.append(table, files=1, rows=5)
            adoption.append(*arguments)

    catalogs = lab.lw.lake.format_for(TableRef.parse(table))._catalogs  # type: ignore[attr-defined]
    monkeypatch.setattr(catalogs, "adoption", Slow())
    assert lab.lw.holds.stage_adopt(load).state is RunState.DONE
    assert len(calls) == 2 and len(lab.rows(table)) == 8


def test_a_load_another_process_adopts_is_left_to_it(lab: Lab) -> None:
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    from lakewarden.model.run import Owner

    other = Owner("elsewhere", 1, 1.0, "t")
    lab.lw.journal.start(
        run_id="r1", table=table, job="adopt", owner=other, trigger=Trigger("manual", "ana"),
        plan={"load": load}, policy={}, now=clock.now(),
    )  # fmt: skip
    for act in (lab.lw.holds.stage_adopt, lab.lw.holds.stage_fail):
        with pytest.raises(Busy, match="r1"):
            act(load)


# ------------------------------------------------------------ loads: failing


@pytest.mark.main
def test_a_failed_load_trashes_its_registered_files_and_nothing_else(lab: Lab) -> None:
    table = lab.messy(files=1)
    path, beside = day(lab, "a.parquet", FIRST), day(lab, "beside.parquet", FIRST)
    load = lab.lw.holds.stage_begin(table, "ana", paths=[path], prefixes=[f"{lab.warehouse}/staged/"]).id
    disk = lab.on_disk()
    assert lab.lw.holds.stage_fail(load).state is LoadState.FAILED
    files = TrashedFiles(lab.lw.state).list(table)
    assert [each.path for each in files] == [path]
    batch = TrashedFiles(lab.lw.state).batch(load)
    assert batch is not None and (batch.cause, batch.state) == ("failed-load", BatchState.ACTIVE)
    assert lab.on_disk() == disk, "nothing is deleted here"
    assert lab.lw.holds.of(table).covering(beside, None) is None
    assert lab.lw.holds.stage_fail(load).state is LoadState.FAILED, "failing again changes nothing"
    with pytest.raises(Refused, match="it was failed"):
        lab.lw.holds.stage_adopt(load)


def test_files_of_a_failed_load_are_purged_after_the_orphan_grace(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lab.messy(files=1)
    folder = lab.warehouse / "db" / "events" / "data"
    paths = [shutil.move(day(lab, name, FIRST), folder / name) for name in ("a.parquet", "b.parquet")]
    load = lab.lw.holds.stage_begin(table, "ana", paths=[str(paths[0])]).id
    lab.lw.holds.stage_fail(load)
    real = clock.now
    for days, there in ((6, True), (8, False)):
        monkeypatch.setattr(clock, "now", lambda days=days: real() + timedelta(days=days))
        run = lab.lw.run("purge", table)
        assert run.state in (RunState.DONE, RunState.NOTHING_TO_DO), run.reason
        assert Path(paths[0]).exists() is there
    assert Path(paths[1]).exists(), "what was not registered is not touched"


def test_a_load_that_is_part_of_the_table_cannot_fail(lab: Lab) -> None:
    table = lab.create()
    path = day(lab, "a.parquet", FIRST)
    load, twin = begun(lab, table, path), begun(lab, table, f"file:{path}", day(lab, "b.parquet", FIRST))
    lab.lw.holds.stage_adopt(load)
    with pytest.raises(Refused, match="adopted already"):
        lab.lw.holds.stage_fail(load)
    lab.lw.holds.stage_fail(twin)
    assert [each.path for each in TrashedFiles(lab.lw.state).list(table)] == [
        f"{lab.warehouse}/staged/b.parquet"
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_load_whose_commit_may_have_happened_cannot_fail(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    crash(lab, monkeypatch, load, when)
    with pytest.raises(Refused, match="may still happen" if when == "before" else "adopted already"):
        lab.lw.holds.stage_fail(load)
    assert TrashedFiles(lab.lw.state).list(table) == ()
    later = clock.now() + IN_FLIGHT
    monkeypatch.setattr(clock, "now", lambda: later)
    if when == "before":
        assert lab.lw.holds.stage_fail(load).state is LoadState.FAILED
        assert lab.lw.runs(table)[0].state is RunState.FAILED
    else:
        with pytest.raises(Refused, match="adopted already"):
            lab.lw.holds.stage_fail(load)


def test_a_crash_while_failing_is_finished_by_the_next_try(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.create()
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    with monkeypatch.context() as patched:
        patched.setattr(TrashedFiles, "enforce", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lab.lw.holds.stage_fail(load)
    batch = TrashedFiles(lab.lw.state).batch(load)
    assert batch is not None and batch.state is BatchState.PENDING
    lab.lw.holds.stage_fail(load)
    batch = TrashedFiles(lab.lw.state).batch(load)
    assert batch is not None and batch.state is BatchState.ACTIVE


def test_a_trashed_file_is_not_adopted_until_it_is_restored(lab: Lab) -> None:
    table = lab.create()
    path = day(lab, "a.parquet", FIRST)
    lab.lw.holds.stage_fail(begun(lab, table, path))
    again = begun(lab, table, f"file:{path}")
    with pytest.raises(Refused, match="is in the trash"):
        lab.lw.holds.stage_adopt(again)
    TrashedFiles(lab.lw.state).restore(table, now=clock.now())
    assert lab.lw.holds.stage_adopt(again).state is RunState.DONE


def test_an_adoption_whose_snapshot_may_have_expired_is_not_repeated(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It committed, the process died, and before anyone asked its files were rewritten and its snapshot expired."""
    table = lab.create(partition="")
    load = begun(lab, table, day(lab, "a.parquet", FIRST))
    crash(lab, monkeypatch, load, "after")
    lab.append(table, files=1, rows=2)
    lab.lw.run("compact", table, policy={"rewrite_min_input_files": 1})
    lab.sql(
        f"call {lab.catalog}.system.expire_snapshots(table => 'db.events', older_than => timestamp'2999-01-01', retain_last => 1)"
    )
    rows = lab.rows(table)
    with pytest.raises(Refused, match="may have expired"):
        lab.lw.holds.stage_adopt(load)
    assert lab.rows(table) == rows


# ------------------------------------------------------------ the command line


@pytest.fixture
def shell(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """A command on the shared session: its exit code, and its document or its error."""
    config = tmp_path / "lakewarden.toml"
    config.write_text('[state]\nurl = "sqlite:///state.db"\n')

    def run(*words: str) -> tuple[int, Any]:
        code = main(["--config", str(config), *words, "--json"], spark=lab.spark)
        said = capsys.readouterr()
        return code, json.loads(said.out or said.err)

    return run


def test_holds_from_the_command_line(lab: Lab, shell: Callable[..., tuple[int, Any]]) -> None:
    table = lab.messy(files=2)
    first = snapshot_ids(lab, table)[0]
    code, pin = shell("pin", table, "--holder", "report", "--snapshot", str(first), "--ttl", "2h", "--mirror")
    assert code == 0 and (pin["snapshot_id"], pin["live"]) == (first, True)
    code, tags = shell("tag", table, "audit", "--forever")
    assert code == 0 and {each["name"] for each in tags["tags"]} == {"audit", pin["tag"]}
    code, held = shell("holds", table)
    assert code == 0 and {each["kind"] for each in held["holds"]} == {"pin", "tag", "branch"}
    assert all(each["bytes"] is None or each["bytes"] >= 0 for each in held["holds"])
    assert shell("untag", table, "audit")[1]["removed"] is True
    assert shell("unpin", pin["pin"])[1]["removed"] is True
    assert set(refs(lab, table)) == {"main"}
    code, error = shell("pin", table, "--holder", "report", "--snapshot", "42")
    assert (code, error["error"]) == (12, "Refused") and "snapshot 42" in error["message"]


def test_a_load_from_the_command_line(lab: Lab, shell: Callable[..., tuple[int, Any]]) -> None:
    table = lab.create()
    good, other = day(lab, "a.parquet", FIRST), day(lab, "b.parquet", FIRST)
    _, load = shell("stage", "begin", table, "--holder", "ana", "--path", good)
    code, error = shell("stage", "adopt", load["load"], "--path", "/nowhere.parquet")
    assert (code, error["error"]) == (12, "Refused")
    code, run = shell("stage", "adopt", load["load"])
    assert (code, run["state"], run["counters"]["files_added"]) == (0, "done", 1)
    assert shell("stage", "adopt", load["load"])[1]["state"] == "nothing-to-do"
    assert shell("run-show", run["id"])[1]["steps"][0]["name"] == "adopting"
    assert shell("stage", "fail", load["load"])[0] == 12
    _, load = shell("stage", "begin", table, "--holder", "ana", "--path", other)
    code, failed = shell("stage", "fail", load["load"])
    assert (code, failed["state"], failed["paths"]) == (0, "failed", [other])


def test_runs_of_adoptions_are_shown_like_others(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = lab.create()
    run = lab.lw.holds.stage_adopt(begun(lab, table, day(lab, "a.parquet", FIRST)))
    config = tmp_path / "lakewarden.toml"
    config.write_text('[state]\nurl = "sqlite:///state.db"\n')
    for words in (("runs", table), ("run-show", run.id), ("holds", table)):
        assert main(["--config", str(config), *words], spark=lab.spark) == 0
    assert "adopt" in capsys.readouterr().out
