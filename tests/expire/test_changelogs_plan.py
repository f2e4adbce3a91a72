"""Which changelogs go: the same that Paimon's rules let go, whatever the numbers, and never the newest."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakewarden.deletion.holds import Holds
from lakewarden.jobs.expire import plan
from lakewarden.jobs.expire.plan import outlived_changelogs
from lakewarden.model.table import Changelogs, Ref, Snapshot
from tests.support.tables import NOW, policy, view

HOUR = timedelta(hours=1)


def by_the_rules(kept: Changelogs, newest: int, consumer: int | None) -> range:
    """The rules one by one, counted in ids: [first, end) go."""
    first, last = min(kept.made_at), max(kept.made_at)
    end = min(newest - kept.at_least + 1, first + kept.at_once, last)
    if consumer is not None:
        end = min(end, consumer)
    for id_ in range(max(newest - kept.at_most + 1, first), end + 1):
        if id_ in kept.made_at and kept.made_at[id_] >= NOW - kept.retention:
            return range(first, id_)
    return range(first, end)


@given(
    count=st.integers(1, 12),
    first=st.integers(1, 5),
    snapshots=st.integers(1, 4),
    retention=st.integers(0, 20),
    at_least=st.integers(1, 20),
    more=st.integers(0, 10),
    at_once=st.integers(1, 12),
    consumer=st.none() | st.integers(1, 20),
)
def test_as_paimon_counts(
    count: int,
    first: int,
    snapshots: int,
    retention: int,
    at_least: int,
    more: int,
    at_once: int,
    consumer: int | None,
) -> None:
    newest = first + count + snapshots - 1
    made_at = {id_: NOW - HOUR * (newest - id_) for id_ in range(first, first + count)}
    kept = Changelogs(made_at, True, HOUR * retention, at_least, at_least + more, at_once)
    refs = () if consumer is None else (Ref("etl", "consumer", consumer),)
    table = replace(view(), current_snapshot_id=newest, refs=refs, changelogs=kept)
    found = outlived_changelogs(table, (), NOW)
    assert found.gone == tuple(by_the_rules(kept, newest, consumer))
    assert sorted((*found.gone, *found.stay)) == sorted(made_at)
    assert found.kept and max(made_at) in found.stay


def test_what_expiring_snapshots_leave_is_judged_with_the_rest() -> None:
    chain = tuple(Snapshot(id_, None, id_, NOW - HOUR * (20 - id_), "append", {}) for id_ in range(11, 21))
    old = {id_: NOW - HOUR * (20 - id_) for id_ in range(5, 11)}
    kept = Changelogs(old, True, HOUR * 7, 1, 99, 50)
    table = replace(view(), current_snapshot_id=20, snapshots=chain, changelogs=kept, in_order=True)
    made = plan.plan(table, policy(snapshot_retention_hours=4), Holds(), NOW)
    assert plan.snapshots_to_drop(made) == (11, 12, 13, 14, 15)
    assert plan.changelogs_to_drop(made) == tuple(range(5, 13))
    assert "8 changelogs expire" in made.reason
    (why,) = [each for each in made.skipped if "changelog" in each.reason]
    assert (why.count, why.reason.split("=")[0]) == (3, "inside the window: changelog.time-retained")
    apart = replace(table, changelogs=replace(kept, decoupled=False))
    assert plan.changelogs_to_drop(
        plan.plan(apart, policy(snapshot_retention_hours=4), Holds(), NOW)
    ) == tuple(range(5, 10)), "without a life of their own the snapshots leave none, and the newest stays"


def test_who_asks_for_snapshots_by_id_means_no_changelog() -> None:
    kept = Changelogs({1: NOW - HOUR * 9, 2: NOW - HOUR * 8}, True, HOUR, 1, 99, 50)
    chain = (Snapshot(3, None, 3, NOW - HOUR, "append", {}), Snapshot(4, 3, 4, NOW, "append", {}))
    table = replace(view(), current_snapshot_id=4, snapshots=chain, changelogs=kept, in_order=True)
    assert plan.changelogs_to_drop(plan.plan(table, policy(), Holds(), NOW)) == (1,)
    assert not plan.changelogs_to_drop(plan.plan(table, policy(snapshot_ids=[3]), Holds(), NOW))
