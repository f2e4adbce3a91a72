"""compact-history's plan: what is folded, what is skipped and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakewarden.jobs.history import folds, plan
from lakewarden.lineage.history import month_of, month_span
from lakewarden.model.plan import Plan
from tests.support.lineage import snapshots, view_of
from tests.support.tables import policy

NOW = datetime(2024, 6, 15, tzinfo=UTC)


def planned(archived: dict[int, datetime], live: int = 0, **keys: object) -> Plan:
    made = snapshots(live, 1) if live else []
    return plan(view_of(made), archived, {"2024-03": 9}, policy(snapshot_retention_hours="30d", **keys), NOW)


def test_months_outside_the_window_are_folded_and_the_rest_is_skipped() -> None:
    archived = {
        1: datetime(2024, 3, 1, tzinfo=UTC),
        2: datetime(2024, 3, 31, 23, 59, 59, tzinfo=UTC),
        3: datetime(2024, 4, 1, tzinfo=UTC),
        4: NOW - timedelta(days=29),
    }
    made = planned(archived)
    assert [(each.month, each.snapshot_ids, each.folded) for each in folds(made)] == [
        ("2024-03", (1, 2), 9),
        ("2024-04", (3,), 0),
    ]
    assert [(each.count, each.reason) for each in made.skipped] == [
        (1, "inside the active window: snapshot_retention_hours=720 (call)")
    ]
    assert made.reason == "3 of 4 archived entries are folded"


def test_what_the_table_still_has_is_not_folded() -> None:
    (live,) = snapshots(1, 1)
    made = planned({live.id: live.committed_at}, live=1)
    assert made.empty and made.skipped[0].reason == "the table still has its snapshot"


def test_it_can_be_switched_off() -> None:
    made = planned({1: NOW - timedelta(days=99)}, history_compaction_enabled=False)
    assert made.empty and "history_compaction_enabled=false" in made.reason


@given(st.dictionaries(st.integers(1, 50), st.integers(-100, 100), max_size=30))
def test_planned_and_skipped_together_are_every_entry(days: dict[int, int]) -> None:
    archived = {id_: NOW - timedelta(days=age) for id_, age in days.items()}
    made = planned(archived)
    chosen = [id_ for each in folds(made) for id_ in each.snapshot_ids]
    assert len(chosen) + sum(each.count for each in made.skipped) == len(archived)
    assert all(month_of(archived[id_]) == each.month for each in folds(made) for id_ in each.snapshot_ids)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)))
def test_a_moment_is_in_its_month(at: datetime) -> None:
    moment = at.replace(tzinfo=UTC)
    begin, end = month_span(month_of(moment))
    assert begin <= moment < end
