"""rewrite-manifests on real Paimon tables: few manifests, the same rows everywhere, and a snapshot that tells who made it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from lakewarden.model.run import RunState
from lakewarden.tables.paimon import rewrite
from tests.support.paimon import PaimonLab

FEW = {"manifest_rewrite_min_manifests": 2}
KINDS = [
    pytest.param(False, {}, id="append"),
    pytest.param(True, {}, id="primary key"),
    pytest.param(True, {"changelog-producer": "input"}, id="primary key, changelog"),
    pytest.param(True, {"deletion-vectors.enabled": "true"}, id="primary key, deletion vectors"),
]


@pytest.mark.parametrize(("keyed", "options"), KINDS)
def test_manifests_are_folded_and_every_snapshot_reads_the_same(
    paimon: PaimonLab, keyed: bool, options: dict[str, str]
) -> None:
    table = paimon.busy(keyed=keyed, **options)
    paimon.maker.tag(paimon.load(table), "then", 4)
    before = {each.id: paimon.rows(table, each.id) for each in paimon.lw.view(table).snapshots}
    plan = paimon.lw.plan("rewrite-manifests", table, FEW)
    run = paimon.lw.run("rewrite-manifests", table, FEW)
    assert run.state is RunState.DONE, run.reason
    assert run.counters["manifests_before"] == plan.to_dict()["actions"][0]["input_manifests"] > 2
    assert run.counters["manifests_after"] == 1
    after = paimon.lw.view(table)
    newest = after.snapshots[-1]
    assert (newest.id,) == run.snapshot_ids
    assert (newest.summary["lineage.run_id"], newest.summary["lineage.operation"]) == (
        run.id,
        "manifest-rewrite",
    )
    assert newest.summary["commit-user"] == "lakewarden"
    assert newest.summary["delta-records"] == "0"
    assert {id_: paimon.rows(table, id_) for id_ in before} == before
    assert paimon.rows(table) == before[max(before)]
    again = paimon.lw.run("rewrite-manifests", table, FEW)
    assert again.state is RunState.NOTHING_TO_DO, again.reason
    assert paimon.lw.view(table).current_snapshot_id == newest.id


def test_what_follows_says_nothing_of_our_run(paimon: PaimonLab) -> None:
    """A writer's next commit, and our own next one, have properties of their own."""
    table = paimon.busy()
    first = paimon.lw.run("rewrite-manifests", table, FEW)
    paimon.append(table, 4, start=9_000)
    second = paimon.lw.run("rewrite-manifests", table, FEW)
    told = [each.summary.get("lineage.run_id") for each in paimon.lw.view(table).snapshots[-6:]]
    assert told == [first.id, None, None, None, None, second.id]


def test_a_commit_that_comes_first_is_folded_too(paimon: PaimonLab) -> None:
    table = paimon.busy()
    real = rewrite.commit

    def commit(*given: Any) -> int:
        paimon.append(table, 1, start=7_000)
        return real(*given)

    with patch.object(rewrite, "commit", commit):
        run = paimon.lw.run("rewrite-manifests", table, FEW)
    assert run.state is RunState.DONE
    assert run.counters["manifests_after"] == 1
    assert sum(int(row.split()[0]) >= 7_000 for row in paimon.rows(table)) == 20


def test_few_manifests_stay_as_they_are(paimon: PaimonLab) -> None:
    table = paimon.busy()
    plan = paimon.lw.plan("rewrite-manifests", table)
    assert plan.empty
    assert "manifest_rewrite_min_manifests=100" in plan.reason
    head = paimon.lw.view(table).current_snapshot_id
    assert paimon.lw.run("rewrite-manifests", table).state is RunState.NOTHING_TO_DO
    assert paimon.lw.view(table).current_snapshot_id == head


def test_expiry_after_folding_leaves_what_is_needed(paimon: PaimonLab) -> None:
    """Snapshots before the fold go with their manifests, those after it stay whole."""
    table = paimon.busy(keyed=True)
    rows = paimon.rows(table)
    assert paimon.lw.run("rewrite-manifests", table, FEW).state is RunState.DONE
    now = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
    assert paimon.lw.run("expire", table, now).state is RunState.DONE
    assert paimon.lw.run("purge", table, {"delete_grace_hours": 0}).state is RunState.DONE
    assert paimon.rows(table) == rows
    paimon.append(table, 1, start=8_000)
    assert len(paimon.rows(table)) == len(rows) + 20
