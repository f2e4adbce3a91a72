"""The plan of expire: every snapshot expires or is skipped, and the reason is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewarden.deletion.holds import Holds
from lakewarden.errors import Refused
from lakewarden.jobs.expire import plan as expire
from lakewarden.model.actions import ExpireRefs
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.table import Ref, Snapshot, TableView
from tests.support.tables import NOW, policy, view

DAY = timedelta(days=1)


def snapshots(count: int, every: timedelta = timedelta(hours=1), newest: timedelta = timedelta()) -> Any:
    """A chain; the last one is the newest."""
    return tuple(
        Snapshot(number, number - 1 if number > 1 else None, number, NOW - newest - every * (count - number), "append", {})
        for number in range(1, count + 1)
    )  # fmt: skip


def table(chain: tuple[Snapshot, ...], *refs: Ref, **more: Any) -> TableView:
    head = chain[-1].id if chain else None
    return replace(
        view(),
        snapshots=chain,
        current_snapshot_id=head,
        refs=(*((Ref("main", "branch", head),) if head else ()), *refs),
        **more,
    )


def expired(made: Any) -> set[int]:
    return set(expire.snapshots_to_drop(made))


def reasons(made: Any) -> dict[str, int]:
    return {each.reason: each.count for each in made.skipped}


def test_a_thousand_snapshots_are_classified_exactly() -> None:
    """1,000 snapshots, one every 90 minutes (62 days), a 30-day window, tags and a branch outside of it."""
    chain = snapshots(1000, timedelta(minutes=90))
    tags = (Ref("incident", "tag", 17), Ref("audit", "tag", 200), Ref("quarter", "tag", 999))
    dev = Ref("dev", "branch", 300, min_snapshots=4)
    made = expire.plan(table(chain, *tags, dev), policy(), Holds(), NOW)
    outside = {each.id for each in chain if NOW - each.committed_at >= 30 * DAY}
    assert len(outside) == 520
    kept = {17, 200, 300, 299, 298, 297}
    assert expired(made) == outside - kept
    told = reasons(made)
    assert told["tag incident"] == told["tag audit"] == told["branch dev"] == 1
    assert told["history of branch dev"] == 3
    assert sum(told.values()) + len(expired(made)) == 1000


def test_the_newest_stay_however_old_they_are() -> None:
    chain = snapshots(20, newest=400 * DAY)
    made = expire.plan(table(chain), policy(), Holds(), NOW)
    assert expired(made) == set(range(1, 16))
    assert reasons(made)["snapshot_min_retained=5 (default)"] == 4


def test_a_broken_chain_still_keeps_as_many(  # iceberg#13568: ancestry that ends too early
) -> None:
    chain = snapshots(20, newest=400 * DAY)
    broken = tuple(replace(each, parent_id=None) if each.id == 19 else each for each in chain)
    assert expired(expire.plan(table(broken), policy(), Holds(), NOW)) == set(range(1, 16))
    circle = tuple(replace(each, parent_id=20) if each.id == 19 else each for each in chain)
    assert 20 not in expired(expire.plan(table(circle), policy(), Holds(), NOW))


def test_holds_win_over_named_snapshots() -> None:
    chain = snapshots(10, DAY)
    pinned = Hold(HoldKind.PIN, "p", "bi", snapshot_id=3, until=NOW + timedelta(hours=2))
    flink = Hold(HoldKind.STREAM, "job-7", "Flink job", snapshot_id=4)
    made = expire.plan(
        table(chain, Ref("t", "tag", 2)), policy(snapshot_ids="1,2,3,4,5,10"), Holds((pinned, flink)), NOW
    )
    assert expired(made) == {1, 5}
    assert reasons(made)["pinned by bi until 2024-03-15 14:00 UTC"] == 1
    assert reasons(made)["Flink job job-7 restarts from it"] == 1
    assert reasons(made)["not asked for: snapshot_ids"] == 4


def test_the_chain_to_a_checkpoint_stays_with_it() -> None:
    """A restarted job walks from the head, parent by parent: without the ones between it would commit again."""
    chain = snapshots(60, DAY)
    flink = Hold(HoldKind.STREAM, "job-7", "Flink job", snapshot_id=3, chain=tuple(range(60, 3, -1)))
    made = expire.plan(table(chain), policy(), Holds((flink,)), NOW)
    assert expired(made) == {1, 2}
    assert reasons(made)["Flink job job-7 restarts from it"] == 1


def test_refs_end_with_their_own_retention_and_main_never() -> None:
    chain = snapshots(60, DAY)
    week = int(timedelta(days=7).total_seconds() * 1000)
    refs = (Ref("old", "tag", 10, max_age_ms=week), Ref("young", "tag", 55, max_age_ms=week))
    made = expire.plan(table(chain, *refs), policy(), Holds(), NOW)
    assert [each.names for each in made.actions if isinstance(each, ExpireRefs)] == [("old",)]
    assert 10 in expired(made) and 55 not in expired(made)
    everything = table(chain, properties={"history.expire.max-ref-age-ms": "1"})
    assert not [
        each
        for each in expire.plan(everything, policy(), Holds(), NOW).actions
        if isinstance(each, ExpireRefs)
    ]


def test_a_pin_keeps_the_snapshot_of_a_ref_that_ends() -> None:
    chain = snapshots(60, DAY)
    made = expire.plan(
        table(chain, Ref("old", "tag", 10, max_age_ms=1)),
        policy(),
        Holds((Hold(HoldKind.PIN, "p", "bi", snapshot_id=10),)),
        NOW,
    )
    assert 10 not in expired(made)


def test_limit_takes_the_oldest_and_says_so() -> None:
    made = expire.plan(table(snapshots(60, DAY)), policy(snapshot_expire_limit=3), Holds(), NOW)
    assert expired(made) == {1, 2, 3}
    assert "27 more would expire" in made.cut_short


def test_switched_off_and_empty_tables_plan_nothing() -> None:
    off = expire.plan(table(snapshots(60, DAY)), policy(snapshot_expiry_enabled=False), Holds(), NOW)
    assert off.empty and "snapshot_expiry_enabled=false" in off.reason
    assert expire.plan(table(()), policy(), Holds(), NOW).empty


def test_a_clock_that_disagrees_is_refused() -> None:
    with pytest.raises(Refused, match="clock"):
        expire.check(table(snapshots(3, newest=-timedelta(hours=1))), NOW)
    expire.check(table(snapshots(3, newest=-timedelta(minutes=1))), NOW)


@pytest.mark.parametrize("value", ["false", "FALSE", "no", "0", "off"])
def test_gc_enabled_false_is_refused(value: str) -> None:
    with pytest.raises(Refused, match=r"gc\.enabled"):
        expire.check(table(snapshots(3), properties={"gc.enabled": value}), NOW)


def test_a_table_in_nessie_is_left_to_nessies_own_gc() -> None:
    owned = table(snapshots(3), properties={"gc.enabled": "false", "nessie.commit.id": "4f1a"})
    with pytest.raises(Refused, match="it is in Nessie") as refused:
        expire.check(owned, NOW)
    assert "SET TBLPROPERTIES" not in refused.value.hint, "Nessie's branches are not seen from here"


def test_what_the_table_asks_to_keep_is_kept() -> None:
    few = table(snapshots(20, newest=400 * DAY), properties={"history.expire.min-snapshots-to-keep": "12"})
    assert expired(expire.plan(few, policy(), Holds(), NOW)) == set(range(1, 9))
    age = str(int(timedelta(days=405).total_seconds() * 1000))
    young = table(
        snapshots(20, DAY, newest=400 * DAY), properties={"history.expire.max-snapshot-age-ms": age}
    )
    assert expired(expire.plan(young, policy(), Holds(), NOW)) == set(range(1, 16))


def test_a_branch_keeps_its_past_up_to_the_last_it_keeps_whatever_clocks_said() -> None:
    """The writer of 2 had a clock that was ahead: without 3 nothing would lead to it from the branch in the next run."""
    ages = {1: 90 * DAY, 2: DAY, 3: 80 * DAY, 4: 70 * DAY, 5: timedelta(0)}
    chain = [
        Snapshot(number, number - 1 or None, number, NOW - age, "append", {}) for number, age in ages.items()
    ]
    held = policy(snapshot_retention_hours=0, snapshot_min_retained=1)
    branch = Ref("b", "branch", 4, max_snapshot_age_ms=2 * 86_400_000)
    made = expire.plan(table(chain, branch), held, Holds(), NOW)
    assert expired(made) == {1}
    assert expire.plan(table(chain[1:], branch), held, Holds(), NOW).empty


@st.composite
def histories(draw: st.DrawFn) -> tuple[TableView, Holds, dict[str, Any]]:
    count = draw(st.integers(1, 25))
    chain = [
        Snapshot(
            number,
            draw(st.one_of(st.none(), st.integers(1, max(1, number - 1)))),
            number,
            NOW - timedelta(hours=draw(st.integers(0, 2000))),
            "append",
            {},
        )
        for number in range(1, count + 1)
    ]
    ids = st.integers(1, count)
    refs = [
        Ref(
            f"r{place}",
            draw(st.sampled_from(["tag", "branch"])),
            draw(ids),
            draw(st.one_of(st.none(), st.integers(0, 10**10))),
            draw(st.one_of(st.none(), st.integers(1, 5))),
            draw(st.one_of(st.none(), st.integers(0, 10**10))),
        )
        for place in range(draw(st.integers(0, 4)))
    ]
    pins = tuple(
        Hold(HoldKind.PIN, f"p{place}", "x", snapshot_id=draw(ids))
        for place in range(draw(st.integers(0, 3)))
    )
    found = replace(
        view(), snapshots=tuple(chain), current_snapshot_id=count, refs=(Ref("main", "branch", count), *refs)
    )
    call: dict[str, Any] = {
        "snapshot_retention_hours": draw(st.integers(0, 2000)),
        "snapshot_min_retained": draw(st.integers(1, 8)),
    }
    if draw(st.booleans()):
        call["snapshot_expire_limit"] = draw(st.integers(1, 10))
    return found, Holds(pins), call


@settings(max_examples=400)
@given(histories())
def test_whatever_the_history(drawn: tuple[TableView, Holds, dict[str, Any]]) -> None:
    found, holds, call = drawn
    made = expire.plan(found, policy(**call), holds, NOW)
    gone = expired(made)
    dropped = expire.refs_to_drop(made, found)
    assert len(gone) + sum(each.count for each in made.skipped) == len(found.snapshots), "each has its fate"
    assert found.current_snapshot_id not in gone
    assert not gone & set(holds.snapshots()), "a held snapshot never expires"
    assert not gone & {ref.snapshot_id for ref in found.refs if ref.name not in dropped}
    after = replace(
        found,
        snapshots=tuple(each for each in found.snapshots if each.id not in gone),
        refs=tuple(ref for ref in found.refs if ref.name not in dropped),
    )
    assert len(after.snapshots) >= min(call["snapshot_min_retained"], len(found.snapshots))
    if "snapshot_expire_limit" not in call:
        assert expire.plan(after, policy(**call), holds, NOW).empty, "a second run has nothing to do"


def test_a_protected_tag_stays_whatever_its_age() -> None:
    chain = snapshots(10, DAY, newest=60 * DAY)
    old = (Ref("audit-1", "tag", 2, max_age_ms=1), Ref("other", "tag", 3, max_age_ms=1))
    made = expire.plan(table(chain, *old), policy(protected_tags=["audit-*"]), Holds(), NOW)
    assert [each.names for each in made.actions if isinstance(each, ExpireRefs)] == [("other",)]
    assert 2 not in expired(made) and 3 in expired(made)
    of_table = table(chain, Ref("audit-1", "tag", 2), properties={"history.expire.max-ref-age-ms": "1"})
    assert 2 not in expired(expire.plan(of_table, policy(protected_tags=["audit-*"]), Holds(), NOW))


def test_a_tag_whose_time_is_over_waits_for_the_hand_off_of_its_snapshot() -> None:
    """Its name goes along; and where the snapshot expired before, it has the last copy."""
    over = {"max_age_ms": 1, "has_copy": True}
    tags = [Ref(name, "tag", id_, **over) for name, id_ in (("handed", 2), ("going", 3), ("staying", 9))]
    gone = Ref("gone", "tag", 99, has_copy=True, ends_at=NOW - DAY)
    chain = snapshots(10, DAY)
    old = policy(
        snapshot_retention_hours=24 * 5, snapshot_min_retained=1, handoff_enabled=True, handoff_catalog="cold"
    )
    found = table(chain, *tags, gone, in_order=True)

    def dropped(handed_off: set[int] | None) -> set[str]:
        made = expire.plan(found, old, Holds(), NOW, handed_off)
        assert sum(each.count for each in made.skipped if each.what == "tag") == 4 - len(
            expire.refs_to_drop(made, found)
        )
        return set(expire.refs_to_drop(made, found))

    assert dropped(None) == {"handed", "going", "staying", "gone"}
    assert dropped({1, 2}) == {"handed", "staying"}
    assert dropped({1, 2, 3, 99}) == {"handed", "going", "staying", "gone"}
