"""What holds cover, as pure values: spellings of a path, ages of files, refs and Flink jobs of a view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.deletion.holds import Holds, gather
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.table import Ref, Snapshot, TableView
from lakewarden.state.database import State
from lakewarden.state.holds import Heartbeats, Load, Loads, LoadState, Pin, Pins
from tests.support.tables import NOW, TABLE, view

HOUR = timedelta(hours=1)
OLD = NOW - timedelta(days=400)


def writer(*prefixes: str, since: datetime | None = NOW) -> Hold:
    return Hold(HoldKind.WRITER, "etl", "host", prefixes=prefixes, since=since)


def load(*paths: str, prefixes: tuple[str, ...] = ()) -> Hold:
    return Hold(HoldKind.LOAD, "l1", "ana", paths=paths, prefixes=prefixes)


def snapshot(number: int, **summary: str) -> Snapshot:
    return Snapshot(number, None, number, NOW + number * HOUR, "append", summary)


def with_refs(*refs: Ref) -> TableView:
    return replace(view(), refs=refs, snapshots=(snapshot(1), snapshot(2)), current_snapshot_id=2)


# ------------------------------------------------------------ what is covered


@pytest.mark.parametrize(
    "written", ["file:/lake/t/data/new/", "/lake/t/data/new/", "file:///lake//t/data/new/"]
)
@pytest.mark.parametrize("path", ["file:///lake/t/data/new/a.parquet", "/lake/t/data/new/deep/b.avro"])
def test_a_prefix_covers_every_age_in_every_spelling(written: str, path: str) -> None:
    hold = writer(written)
    for modified in (OLD, NOW, None):
        assert Holds((hold,)).covering(path, modified) is hold


def test_a_prefix_is_how_names_begin() -> None:
    assert Holds((writer("s3a://b/t/data/part-"),)).covering("s3://b/t/data/part-7.parquet", OLD)
    assert not Holds((writer("s3a://b/t/data/part-"),)).covering("s3://b/t/data/other.parquet", NOW)
    assert not Holds((writer("s3://b/t/day=1/"),)).covering("s3://b/t/day=10/x.parquet", OLD)


def test_a_writer_with_prefixes_holds_nothing_else() -> None:
    assert Holds((writer("/lake/t/data/a/"),)).covering("/lake/t/data/b/x.parquet", NOW + HOUR) is None


def test_a_writer_without_prefixes_may_have_written_what_is_younger_than_it() -> None:
    holds = Holds((writer(),))
    assert holds.covering("/lake/t/x", NOW)
    assert holds.covering("/lake/t/x", NOW - HOUR), "its clock and the store's may differ"
    assert holds.covering("/lake/t/x", NOW - HOUR - timedelta(seconds=1)) is None
    assert holds.covering("/lake/t/x", None), "a file of unknown age may be its"
    assert Holds((writer(since=None),)).covering("/lake/t/x", OLD)


def test_a_load_covers_its_files_whatever_their_age() -> None:
    holds = Holds((load("s3a://b/in/1.parquet", prefixes=("s3n://b/in/more/",)),))
    assert holds.covering("s3://b/in/1.parquet", OLD)
    assert holds.covering("s3://b/in/more/2.parquet", OLD)
    assert holds.covering("s3://b/in/2.parquet", NOW) is None


def test_holds_on_snapshots_cover_no_files() -> None:
    pin = Hold(HoldKind.PIN, "p", "ana", snapshot_id=1, since=OLD)
    assert Holds((pin,)).covering("/lake/t/x", NOW) is None


def test_every_holder_of_a_snapshot_is_named() -> None:
    first = Hold(HoldKind.PIN, "p1", "ana", snapshot_id=1)
    second = Hold(HoldKind.TAG, "t", "", snapshot_id=1)
    other = Hold(HoldKind.TAG, "u", "", snapshot_id=2)
    assert Holds((first, second, other, writer())).snapshots() == {1: (first, second), 2: (other,)}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.lists(st.sampled_from("abc"), max_size=4))
def test_what_lies_in_a_held_folder_is_covered(folder: list[str], below: list[str]) -> None:
    held = "/lake/" + "/".join(folder) + "/"
    assert Holds((writer(held),)).covering(held + "/".join([*below, "x"]), OLD)


# ------------------------------------------------------------ what is gathered


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = State.open(f"sqlite:///{tmp_path}/state.db")
    yield opened
    opened.close()


def gathered(table: TableView, state: State, kind: HoldKind, now: datetime = NOW) -> list[Hold]:
    return [hold for hold in gather(table, state, now).holds if hold.kind is kind]


def test_every_tag_and_branch_is_a_hold(state: State) -> None:
    table = with_refs(Ref("main", "branch", 2), Ref("dev", "branch", 1), Ref("q1", "tag", 1, 3_600_000))
    branches = gathered(table, state, HoldKind.BRANCH)
    assert {(hold.name, hold.snapshot_id) for hold in branches} == {("main", 2), ("dev", 1)}
    (tag,) = gathered(table, state, HoldKind.TAG)
    assert (tag.name, tag.snapshot_id, tag.until) == ("q1", 1, NOW + 2 * HOUR)


def test_a_tag_for_ever_has_no_end(state: State) -> None:
    for age in (None, 2**63 - 1):
        (tag,) = gathered(with_refs(Ref("q1", "tag", 1, age)), state, HoldKind.TAG)
        assert tag.until is None


def test_main_is_held_where_the_metadata_has_no_refs(state: State) -> None:
    (main,) = gathered(with_refs(), state, HoldKind.BRANCH)
    assert (main.name, main.snapshot_id) == ("main", 2)


def test_the_newest_snapshot_of_each_flink_job_is_held(state: State) -> None:
    def flink(number: int, job: str, operator: str = "sink") -> Snapshot:
        keys = {"flink.job-id": job, "flink.operator-id": operator}
        return snapshot(number, **keys, **{"flink.max-committed-checkpoint-id": str(number)})

    made = (flink(3, "a"), flink(1, "a"), flink(2, "b"), flink(4, "a", "other"), snapshot(9))
    half = snapshot(10, **{"flink.job-id": "c"})
    table = replace(view(), snapshots=(*made, half), current_snapshot_id=9, refs=())
    held = gathered(table, state, HoldKind.STREAM)
    assert {(h.name, h.holder, h.snapshot_id) for h in held} == {
        ("a", "Flink job sink", 3),
        ("b", "Flink job sink", 2),
        ("a", "Flink job other", 4),
    }


FLINK = {
    "flink.job-id": "job",
    "flink.operator-id": "sink",
    "flink.max-committed-checkpoint-id": "7",
}
SPARK = {"spark.sql.streaming.queryId": "query", "spark.sql.streaming.epochId": "4"}
KAFKA = {"kafka.connect.offsets.control.group": '{"0":12}', "kafka.connect.commit-id": "c"}


def chained(*summaries: dict[str, str], **more: object) -> TableView:
    made = tuple(
        Snapshot(number, number - 1 if number > 1 else None, number, NOW - timedelta(days=20) + number * HOUR, "append", summary)
        for number, summary in enumerate(summaries, 1)
    )  # fmt: skip
    head = made[-1].id
    table = replace(view(), snapshots=made, current_snapshot_id=head, refs=(Ref("main", "branch", head),))
    return replace(table, **more)


@pytest.mark.parametrize("summary", [FLINK, SPARK, KAFKA])
def test_a_writer_that_walks_from_the_head_finds_its_newest_commit(
    state: State, summary: dict[str, str]
) -> None:
    table = chained({}, summary, {}, summary, {}, {}, {})
    (hold,) = gathered(table, state, HoldKind.STREAM)
    assert (hold.snapshot_id, set(hold.chain)) == (4, {7, 6, 5})
    assert set(Holds((hold,)).snapshots()) == {4, 5, 6, 7}


def test_each_branch_leads_to_the_newest_commit_on_it(state: State) -> None:
    """1 and 2 are main's, 3 and 4 are on `dev`, which left main at 1."""
    table = chained(FLINK, {}, FLINK, {})
    forked = tuple(replace(each, parent_id=1) if each.id == 3 else each for each in table.snapshots)
    refs = (Ref("main", "branch", 2), Ref("dev", "branch", 4))
    found = gathered(
        replace(table, snapshots=forked, refs=refs, current_snapshot_id=2), state, HoldKind.STREAM
    )
    assert {(hold.snapshot_id, hold.chain) for hold in found} == {(1, (2,)), (3, (4,))}


def test_a_job_is_waited_for_as_long_as_asked(state: State) -> None:
    table = chained(FLINK, {}, {})
    since = table.snapshots[0].committed_at
    for within, held in ((timedelta(days=30), 1), (timedelta(days=10), 0)):
        holds = [each for each in gather(table, state, NOW, within).holds if each.kind is HoldKind.STREAM]
        assert [each.until for each in holds] == [since + within] * held


def test_a_job_that_has_ended_is_not_waited_for(state: State) -> None:
    ended = {**FLINK, "flink.max-committed-checkpoint-id": str(2**63 - 1)}
    assert gathered(chained(ended, {}), state, HoldKind.STREAM) == []


def test_a_commit_behind_a_broken_chain_is_held_alone(state: State) -> None:
    table = chained(FLINK, {}, {})
    broken = tuple(replace(each, parent_id=None) if each.id == 3 else each for each in table.snapshots)
    (hold,) = gathered(replace(table, snapshots=broken), state, HoldKind.STREAM)
    assert (hold.snapshot_id, hold.chain) == (1, ())


def test_a_commit_user_of_paimon_is_found_by_its_newest_snapshot(state: State) -> None:
    user = {"commit-user": "job", "commit-identifier": "7"}
    batch = {"commit-user": "someone", "commit-identifier": str(2**63 - 1)}
    ours = {"commit-user": "lakewarden", "commit-identifier": "9"}
    (hold,) = gathered(chained(user, batch, ours, batch, format="paimon"), state, HoldKind.STREAM)
    assert (hold.name, hold.snapshot_id) == ("job", 1)


def test_what_is_over_holds_nothing(state: State) -> None:
    pins, beats, loads = Pins(state), Heartbeats(state), Loads(state)
    pins.add(Pin("p1", str(TABLE), "u", 1, "ana", "", NOW, NOW + HOUR))
    pins.add(Pin("p2", str(TABLE), "another table", 1, "ana", "", NOW))
    beats.beat(str(TABLE), "etl", "host", (), HOUR, NOW)
    for number, status in enumerate(LoadState):
        made = Load(f"l{number}", str(TABLE), "", "ana", "", status, ("/x",), (), NOW, NOW + HOUR)
        loads.begin(made)
    inside, after = NOW + timedelta(minutes=59), NOW + HOUR
    for kind, name in ((HoldKind.PIN, "p1"), (HoldKind.WRITER, "etl"), (HoldKind.LOAD, "l0")):
        assert [hold.name for hold in gathered(view(), state, kind, inside)] == [name]
        assert gathered(view(), state, kind, after) == []


def test_a_pin_without_an_end_stays(state: State) -> None:
    Pins(state).add(Pin("p1", "lake.db.old_name", "u", 7, "ana", "audit", NOW))
    (pin,) = gathered(view(), state, HoldKind.PIN, NOW + timedelta(days=9999))
    assert (pin.name, pin.holder, pin.purpose, pin.snapshot_id) == ("p1", "ana", "audit", 7)
