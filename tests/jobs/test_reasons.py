"""Reasons are values: a kind for code, a text for people, and no text decides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakewarden.console.pages.table import kind_of
from lakewarden.deletion.holds import Holds
from lakewarden.errors import LakewardenError, Outage, Unreachable, UsageError
from lakewarden.health.build_table_details import TableInputs, build_details
from lakewarden.health.numbers import FileNumbers
from lakewarden.health.table_details import SnapshotLine, TableDetails
from lakewarden.jobs.expire import plan
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.plan import count_skipped
from lakewarden.model.reason import HELD, Reason, ReasonKind
from lakewarden.model.table import Ref, Snapshot, TableRef, TableView
from lakewarden.policy.resolve import Layers, Policy, resolve
from lakewarden.state.health import Numbers
from tests.support.tables import NOW, view

DOCS = Path(__file__).resolve().parents[2] / "docs"
STAGING = TableRef.parse("lake.staging.events")
DAY = timedelta(days=1)


def staging(*refs: Ref) -> TableView:
    """Ten snapshots, one a day; the last is the current one."""
    chain = tuple(
        Snapshot(number, number - 1 if number > 1 else None, number, NOW - DAY * (10 - number), "append", {})
        for number in range(1, 11)
    )
    heads = (Ref("main", "branch", 10), *refs)
    return replace(view(), ref=STAGING, snapshots=chain, current_snapshot_id=10, refs=heads)


def of_namespace(**keys: object) -> Policy:
    """Set for all of lake.staging, so that the sentence of each key names it."""
    return resolve(STAGING, Layers(patterns=[("lake.staging.*", keys)]))


def lines(table: TableView, policy: Policy, holds: Holds) -> Mapping[int, SnapshotLine]:
    kept = plan.reasons(table, policy, holds, NOW)
    inputs = TableInputs(table, policy, holds, FileNumbers(), (), kept, {}, NOW)
    stored = TableDetails.read(build_details(inputs, Numbers()).to_dict())
    assert stored is not None
    return {each.id: each for each in stored.snapshots}


def test_the_name_of_a_table_does_not_make_its_snapshots_look_held() -> None:
    policy = of_namespace(snapshot_retention_hours=100, snapshot_min_retained=7)
    pin = Hold(HoldKind.PIN, "p", "inside the window", snapshot_id=2)
    tag = Ref("snapshot_min_retained", "tag", 1)
    found = lines(staging(tag), policy, Holds((pin,)))
    assert "lake.staging" in found[9].kept and "lake.staging" in found[4].kept
    assert {id_: kind_of(each) for id_, each in found.items()} == {
        **dict.fromkeys((10, 9, 8, 7, 6), "window"),
        **dict.fromkeys((5, 4), "least"),
        3: "goes",
        2: "held",
        1: "held",
    }


def test_an_expiry_date_is_for_what_the_window_alone_keeps() -> None:
    policy = of_namespace(snapshot_retention_hours=100, snapshot_min_retained=1)
    found = lines(staging(Ref("inside the window", "tag", 8)), policy, Holds())
    assert found[9].expires_at == NOW - DAY + timedelta(hours=100)
    assert found[8].expires_at is None and found[8].kept_kind == ReasonKind.TAG
    assert found[10].expires_at is None and found[10].kept_kind == ReasonKind.CURRENT
    own = replace(
        staging(), properties={"history.expire.max-snapshot-age-ms": str(int(DAY.total_seconds() * 8000))}
    )
    aged = lines(own, of_namespace(snapshot_retention_hours=1, snapshot_min_retained=1), Holds())
    assert aged[3].kept_kind == ReasonKind.WINDOW and aged[3].expires_at == NOW - 7 * DAY + 8 * DAY


def test_what_comes_after_a_held_snapshot_is_held_by_it() -> None:
    policy = of_namespace(snapshot_retention_hours=1, snapshot_min_retained=1)
    table = replace(staging(Ref("audit", "tag", 4)), format="paimon", in_order=True)
    kept = plan.reasons(table, policy, Holds(), NOW)
    assert kept[5] == Reason(ReasonKind.AFTER_HELD, "after snapshot 4, which stays: tag audit")


def test_a_plan_tells_the_kind_of_each_reason() -> None:
    made = plan.plan(staging(Ref("audit", "tag", 1)), of_namespace(snapshot_expire_limit=1), Holds(), NOW)
    told: list[dict[str, Any]] = made.to_dict()["skipped"]
    assert {each["kind"]: each["reason"] for each in told}["tag"] == "tag audit"
    assert all(list(each) == ["what", "count", "bytes", "kind", "reason"] for each in told)
    off = plan.plan(staging(), of_namespace(snapshot_expiry_enabled=False), Holds(), NOW)
    assert off.off and off.reason.startswith("switched off: ") and not made.off


def test_alike_reasons_are_counted_together() -> None:
    young, large = Reason(ReasonKind.YOUNG, "young"), Reason(ReasonKind.LARGE_ENOUGH, "large enough")
    rows = [("file", 1, 10, young), ("file", 2, 20, large), ("file", 3, 30, young), ("file", 0, 0, large)]
    assert [(each.count, each.bytes, each.kind) for each in count_skipped(rows)] == [
        (4, 40, ReasonKind.YOUNG),
        (2, 20, ReasonKind.LARGE_ENOUGH),
    ]


@pytest.mark.parametrize("kind", HoldKind)
def test_every_hold_is_a_kind_of_reason(kind: HoldKind) -> None:
    assert ReasonKind(kind.value) in HELD


def test_every_kind_is_in_the_contract() -> None:
    text = (DOCS / "json.md").read_text("utf-8").partition("## Kinds of reasons")[2].partition("\n## ")[0]
    told = re.findall(r"`([a-z-]+)`", text)
    assert sorted(told) == sorted(map(str, ReasonKind))


def test_an_outage_is_no_usage_error_and_says_what_is_away() -> None:
    assert not issubclass(Unreachable, UsageError) and issubclass(Unreachable, LakewardenError)
    away = Unreachable(what="the state database x", reason="refused", kind=Outage.STATE)
    assert (
        away.to_dict()["kind"] == "state-database"
        and away.message == "cannot reach the state database x: refused"
    )
    assert Unreachable(what="bucket b", reason="no").kind is Outage.STORE
    text = (DOCS / "json.md").read_text("utf-8")
    assert all(f"`{each}`" in text for each in Outage)
