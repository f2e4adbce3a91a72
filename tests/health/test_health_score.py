"""Score, debt and warnings as pure functions: what they promise holds for any numbers."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewarden.config.schema import HealthConfig
from lakewarden.console.pages.render import ADVICE, advice
from lakewarden.health import warnings
from lakewarden.health.score import MaintenanceProblems, debt, judge
from lakewarden.health.table_details import (
    SNAPSHOTS,
    ColumnLine,
    DueLine,
    HoldLine,
    PartitionLine,
    PartLine,
    PolicyLine,
    RefLine,
    SnapshotLine,
    TableDetails,
)
from lakewarden.health.warnings import CLEARS_BELOW, Alarm, WarningKind, decide, no_leader, record
from lakewarden.health.what_if import WriterCommit, replay
from lakewarden.model.run import Owner
from lakewarden.model.table import TableRef
from lakewarden.policy.resolve import Layers, Policy, resolve
from lakewarden.state.database import State
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.locks import Leases

LIMITS = HealthConfig()
TABLE = "lake.db.events"
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
# What is worse the more of it there is; the others are sizes that a table may have of any kind.
BAD = (
    "small_files", "delete_files", "manifests", "overdue_snapshots", "due_trashed_files", "due_trashed_bytes", "lineage_gaps", "deleted_rows",
)  # fmt: skip

counts = st.integers(0, 10**9)
numbers = st.builds(
    Numbers,
    **{
        each.name: st.floats(0, 1e6) if each.type == "float" else st.booleans() if each.type == "bool" else counts
        for each in fields(Numbers)
    },
)  # fmt: skip
troubles = st.builds(
    MaintenanceProblems,
    st.sampled_from(["", "it is gone"]),
    st.sampled_from(["", "ten failures"]),
    st.integers(0, 100),
)


@settings(max_examples=100)
@given(numbers, troubles)
def test_a_score_is_between_0_and_100_and_its_parts_add_up(
    found: Numbers, trouble: MaintenanceProblems
) -> None:
    score = judge(found, LIMITS, trouble)
    assert 0 <= score.score <= 100 and score.debt.amount >= 0
    assert all(0 <= each.cost <= each.weight and each.sentence for each in score.parts)
    assert score.score == max(0, int(100 - sum(each.cost for each in score.parts)))
    assert sum(each.weight for each in score.parts if each.name != "trouble") == 100


@settings(max_examples=100)
@given(numbers, troubles, st.sampled_from(BAD), st.integers(1, 10**9))
def test_more_of_what_is_bad_is_never_better(
    found: Numbers, trouble: MaintenanceProblems, name: str, more: int
) -> None:
    worse = replace(found, **{name: getattr(found, name) + more})
    assert judge(worse, LIMITS, trouble).score <= judge(found, LIMITS, trouble).score
    assert debt(worse).amount >= debt(found).amount


@given(numbers, st.integers(0, 100))
def test_trouble_never_raises_a_score(found: Numbers, failures: int) -> None:
    calm = judge(found, LIMITS).score
    assert judge(found, LIMITS, MaintenanceProblems(failures=failures)).score <= calm
    assert (
        judge(found, LIMITS, MaintenanceProblems(suspended="ten failures", failures=failures)).score <= calm
    )
    assert judge(found, LIMITS, MaintenanceProblems(error="it is gone")).score == 0


def test_an_empty_table_is_well_and_owes_nothing() -> None:
    score = judge(Numbers(), LIMITS)
    assert (score.score, score.debt.amount, score.debt.sentence) == (100, 0.0, "nothing to do")


def test_half_of_the_points_are_gone_where_a_warning_is_raised() -> None:
    cost = {each.name: each.cost for each in judge(Numbers(files=2000, small_files=1000), LIMITS).parts}
    assert cost["small-files"] == 15


def kinds(
    found: Numbers, *still: WarningKind, trouble: MaintenanceProblems | None = None
) -> set[WarningKind]:
    return {
        each.kind
        for each in decide(found, LIMITS, trouble or MaintenanceProblems(), still, failed_before=True)
    }


@pytest.mark.parametrize(
    ("kind", "at", "below", "cleared"),
    [
        (WarningKind.DELETE_DEBT, {"files": 8, "delete_ratio": 0.3}, {"files": 8, "delete_ratio": 0.29}, {"files": 8, "delete_ratio": 0.2}),
        (WarningKind.MANIFEST_SPRAWL, {"manifests": 100}, {"manifests": 99}, {"manifests": 69}),
        (WarningKind.SMALL_FILES, {"small_files": 1000}, {"small_files": 999}, {"small_files": 699}),
        (WarningKind.EXPIRY_LAGS, {"overdue_snapshots": 100}, {"overdue_snapshots": 99}, {"overdue_snapshots": 69}),
        (WarningKind.TRASHED_BACKLOG, {"due_trashed_files": 50_000}, {"due_trashed_files": 49_999}, {"due_trashed_files": 34_999}),
        (WarningKind.ORPHANS, {"bytes": 10**10, "orphan_bytes": 10**9}, {"bytes": 10**10, "orphan_bytes": 10**9 - 1}, {"bytes": 10**10, "orphan_bytes": 6 * 10**8}),
        (WarningKind.COSTLY_HOLD, {"bytes": 2 * 10**9, "held_bytes": 10**9}, {"bytes": 2 * 10**10, "held_bytes": 9 * 10**9}, {"bytes": 2 * 10**10, "held_bytes": 6 * 10**9}),
        (WarningKind.FOREVER_HOLD, {"bytes": 4 * 10**9, "held_forever_bytes": 10**9}, {"bytes": 5 * 10**9, "held_forever_bytes": 10**9}, {"bytes": 10**10, "held_forever_bytes": 10**9}),
    ],
)  # fmt: skip
def test_a_warning_comes_at_its_threshold_and_goes_well_below(
    kind: WarningKind, at: dict[str, float], below: dict[str, float], cleared: dict[str, float]
) -> None:
    assert kind in kinds(Numbers(**at))  # type: ignore[arg-type]
    assert kind not in kinds(Numbers(**below))  # type: ignore[arg-type]
    assert kind in kinds(Numbers(**below), kind), "what is open stays open a little below"  # type: ignore[arg-type]
    assert kind not in kinds(Numbers(**cleared), kind)  # type: ignore[arg-type]


@given(numbers, st.sets(st.sampled_from(list(WarningKind))))
def test_what_was_wrong_before_is_never_a_reason_to_be_silent(
    found: Numbers, still: set[WarningKind]
) -> None:
    assert kinds(found) <= kinds(found, *still)


def test_few_files_with_deletes_are_no_debt() -> None:
    assert WarningKind.DELETE_DEBT not in kinds(Numbers(files=7, delete_ratio=1.0))


@pytest.mark.parametrize(
    ("kind", "at", "edge", "cleared"),
    [
        (WarningKind.DELETE_DEBT, {"files": 8, "delete_ratio": 1.0}, {"files": 7, "delete_ratio": 1.0}, {"files": 5, "delete_ratio": 1.0}),
        (WarningKind.TRASHED_BACKLOG, {"due_trashed_bytes": 10**9}, {"due_trashed_bytes": 9 * 10**8}, {"due_trashed_bytes": 6 * 10**8}),
        (WarningKind.ORPHANS, {"orphan_bytes": 10**8}, {"orphan_bytes": 9 * 10**7}, {"orphan_bytes": 6 * 10**7}),
        (WarningKind.COSTLY_HOLD, {"held_bytes": 10**9}, {"held_bytes": 9 * 10**8}, {"held_bytes": 6 * 10**8}),
        (WarningKind.FOREVER_HOLD, {"held_forever_bytes": 10**9}, {"held_forever_bytes": 9 * 10**8}, {"held_forever_bytes": 6 * 10**8}),
    ],
)  # fmt: skip
def test_at_the_size_that_is_worth_a_warning_it_does_not_come_and_go_either(
    records: HealthRecords,
    kind: WarningKind,
    at: dict[str, float],
    edge: dict[str, float],
    cleared: dict[str, float],
) -> None:
    told = []
    for each in (edge, at, edge, at, edge, cleared, edge):
        found = decide(Numbers(**each), LIMITS, MaintenanceProblems(), records.open_kinds().get(TABLE, {}))  # type: ignore[arg-type]
        told.append(record(records, {TABLE: found}, records.open_kinds(), NOW))
    assert kind in kinds(Numbers(**at))  # type: ignore[arg-type]
    assert told == [(0, 0), (1, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0)]


def test_one_look_that_failed_is_no_warning_yet() -> None:
    trouble = MaintenanceProblems("it timed out")
    assert decide(Numbers(), LIMITS, trouble, ()) == ()
    assert [each.kind for each in decide(Numbers(), LIMITS, trouble, (), failed_before=True)] == [WarningKind.UNREADABLE]  # fmt: skip


def test_states_are_warnings_too() -> None:
    assert kinds(Numbers(lineage_gaps=3)) == set(), "nobody asked for lineage"
    assert kinds(Numbers(lineage_gaps=3, lineage_asked=True)) == {WarningKind.LINEAGE_GAPS}
    assert kinds(Numbers(log_unbounded=True)) == {WarningKind.UNBOUNDED_LOG}
    both = MaintenanceProblems("it is gone", "ten failures", 10)
    assert kinds(Numbers(), trouble=both) == {WarningKind.SUSPENDED, WarningKind.UNREADABLE}


def test_each_kind_has_its_section_in_the_runbook() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text("utf-8")
    assert [each for each in WarningKind if f"\n## {each}\n" not in page] == []


def test_the_advice_of_the_console_is_the_runbooks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text("utf-8")
    sections = {each.partition("\n")[0]: each for each in page.split("\n## ")[1:]}
    assert set(ADVICE) == set(WarningKind)
    assert [kind for kind, each in ADVICE.items() if f"`{each.command}" not in sections[kind]] == []
    assert advice("suspended").of("lake.db.a b") == "lakewarden resume 'lake.db.a b'"  # type: ignore[union-attr]
    assert advice("of a later version") is None


# ------------------------------------------------------------ writing down


@pytest.fixture
def records(tmp_path: Path) -> HealthRecords:
    return HealthRecords(State.open(f"sqlite:///{tmp_path}/state.db"))


def test_a_warning_is_logged_once_when_it_comes_and_once_when_it_goes(
    records: HealthRecords, caplog: pytest.LogCaptureFixture
) -> None:
    def look(*alarms: Alarm) -> tuple[int, int]:
        return record(records, {TABLE: alarms}, records.open_kinds(), NOW)

    with caplog.at_level(logging.INFO, warnings.__name__):
        assert look(Alarm(WarningKind.SMALL_FILES, "1,000")) == (1, 0)
        assert look(Alarm(WarningKind.SMALL_FILES, "1,200")) == (0, 0)
        assert [(each.kind, each.text) for each in records.warnings()] == [("small-files", "1,200")]
        assert look() == (0, 1)
        assert look() == (0, 0)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", f"{TABLE}: small-files: 1,000"),
        ("INFO", f"{TABLE}: small-files is over"),
    ]
    assert records.warnings() == ()
    assert [each.cleared_at for each in records.warnings(also_cleared=5)] == [NOW]


def test_a_table_at_the_edge_does_not_come_and_go(records: HealthRecords) -> None:
    came = went = 0
    for small in (999, 1000, 990, 1001, 800, 999, 699, 800, 999):
        found = decide(
            Numbers(small_files=small), LIMITS, MaintenanceProblems(), records.open_kinds().get(TABLE, {})
        )
        new, over = record(records, {TABLE: found}, records.open_kinds(), NOW)
        came, went = came + new, went + over
    assert (came, went) == (1, 1)
    assert CLEARS_BELOW < 1


def test_no_leader_is_told_once_one_has_led(records: HealthRecords) -> None:
    leases = Leases(records._state)
    assert no_leader(leases.current()) is None
    assert leases.take(Owner("here", 1, 1.0, "t"), timedelta(seconds=60)) is not None
    assert no_leader(leases.current()) is None
    late = leases.current()
    assert late is not None
    told = no_leader(replace(late, live=False, seconds_left=-1))
    assert told is not None and told.kind == "no-leader" and "here pid 1" in told.text


def health(at: datetime, **changes: int) -> TableHealth:
    return TableHealth(TABLE, "u", at, "v", 90, 1.0, Numbers(files=1, **changes))


def test_history_has_a_point_where_something_changed_or_a_day_has_passed(records: HealthRecords) -> None:
    minute = timedelta(minutes=1)
    records.put([health(NOW)])
    records.put([health(NOW + minute)])
    records.put([health(NOW + 2 * minute, small_files=3)])
    records.put([health(NOW + timedelta(days=2), small_files=3)])
    records.put([replace(health(NOW + timedelta(days=3)), error="gone")])
    assert [each.at - NOW for each in records.history(TABLE, NOW)] == [
        timedelta(), 2 * minute, timedelta(days=2)
    ]  # fmt: skip
    records.touch([TABLE], NOW + timedelta(days=4))
    [found] = records.all()
    assert found.at == NOW + timedelta(days=4) and found.error == "gone"


def test_history_is_thinned_as_it_ages(records: HealthRecords) -> None:
    for number in range(96):
        records.put([health(NOW - timedelta(minutes=15 * number), small_files=number)])
    before = NOW - timedelta(hours=12)
    assert records.thin([(before, timedelta(hours=1)), (NOW - timedelta(hours=18), timedelta(hours=6))]) > 30
    left = [each.at for each in records.history(TABLE, NOW - timedelta(days=2))]
    young = [each for each in left if each >= before]
    assert len(young) == 49 and len(left) - len(young) == 7
    assert records.thin([(before, timedelta(hours=1))]) == 0


# ------------------------------------------------------------ portraits


def test_a_portrait_is_read_as_it_was_written() -> None:
    whole = TableDetails(
        format="iceberg", format_version=2, location="/t", metadata_location="/m", current_snapshot_id=7, schema_id=0,
        partition_by=("day(ts)",), columns=(ColumnLine("id", "long", True),), columns_total=1,
        snapshots=(SnapshotLine(7, NOW, "append", "by hand", current=True, kept="it is current", expires_at=NOW),), snapshots_total=1,
        refs=(RefLine("main", "branch", 7),), holds=(HoldLine("pin", "p", "h", until=NOW, bytes=3),),
        due=(DueLine("expire", True, "why"),), policy=(PolicyLine("k", "v", "default"),),
        partitions=(PartitionLine("d=1", 1, 1, 0, 1, 1),), score_parts=(PartLine("deletes", 20, 1.5, "some"),), painted_at=NOW,
    )  # fmt: skip
    assert TableDetails.read(whole.to_dict()) == whole
    assert TableDetails.read({}) is None
    assert TableDetails.read({**whole.to_dict(), "later": 1}) == whole, (
        "what a newer version added is passed over"
    )
    assert SNAPSHOTS == 200


# ------------------------------------------------------------ what-if


def policy(**values: object) -> Policy:
    return resolve(TableRef.parse(TABLE), Layers(call=values))


def hourly(count: int, files: int = 4, bytes_: int = 4_000_000) -> list[WriterCommit]:
    return [WriterCommit(NOW - timedelta(hours=count - each), files, bytes_, 0) for each in range(count)]


def test_a_shorter_window_keeps_fewer_snapshots_and_less_storage() -> None:
    commits = [replace(each, removed_bytes=1_000_000) for each in hourly(24 * 20)]
    answer = replay(TABLE, commits, (), Numbers(bytes=10**10), policy(), policy(snapshot_retention_hours="24h"), NOW - timedelta(days=30), NOW)  # fmt: skip
    assert (answer.old.snapshots, answer.new.snapshots) == (480, 23)
    assert answer.new.storage_bytes < answer.old.storage_bytes
    assert [each.at for each in answer.old.moments] == [each.at for each in answer.new.moments]
    assert [(each.key, each.replayed) for each in answer.changes] == [("snapshot_retention_hours", True)]


def test_more_input_files_rewrite_less_often() -> None:
    commits, since = hourly(24 * 10), NOW - timedelta(days=30)
    often, seldom = policy(rewrite_min_input_files=2), policy(rewrite_min_input_files=100)
    answer = replay(TABLE, commits, (), Numbers(bytes=10**9), often, seldom, since, NOW)
    assert answer.new.rewritten_bytes_per_day < answer.old.rewritten_bytes_per_day
    off = replay(TABLE, commits, (), Numbers(bytes=10**9), often, policy(rewrite_enabled=False), since, NOW)
    assert off.new.rewritten_bytes_per_day == 0
    assert off.new.small_files == sum(each.added_files for each in commits)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 50), st.integers(0, 10**9)), max_size=60), st.integers(1, 720), st.integers(1, 720))  # fmt: skip
def test_a_longer_window_never_keeps_less(found: list[tuple[int, int, int]], one: int, other: int) -> None:
    commits = sorted((WriterCommit(NOW - timedelta(hours=ago), files, size, size // 3) for ago, files, size in found), key=lambda each: each.at)  # fmt: skip
    short, long = policy(snapshot_retention_hours=min(one, other)), policy(snapshot_retention_hours=max(one, other))  # fmt: skip
    answer = replay(TABLE, commits, (), Numbers(bytes=10**12), short, long, NOW - timedelta(days=30), NOW)
    for before, after in zip(answer.old.moments, answer.new.moments, strict=True):
        assert before.snapshots <= after.snapshots and before.storage_bytes <= after.storage_bytes


def test_nothing_known_is_said_as_such() -> None:
    answer = replay(TABLE, (), (), Numbers(), policy(), policy(), NOW - timedelta(days=30), NOW)
    assert answer.old.snapshots == 0
    assert "nothing differs from the policy in force" in answer.notes
