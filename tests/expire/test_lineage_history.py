"""A real table's past: expired month by month, folded, and asked about every snapshot; an independent list knows the answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from unittest.mock import patch

from lakewarden import Lakewarden, clock
from lakewarden.lineage.audit import Node, downstream
from lakewarden.lineage.history import EntrySource
from lakewarden.model.run import RunState
from tests.support.lab import Lab
from tests.support.past import Told, below, commit_all

LINEAGE = ("writer.", "lineage.", "trigger.", "input.")


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    with patch.object(clock, "now", lambda: moment):
        yield


def check_every_answer(lw: Lakewarden, table: str, made: list[Told]) -> None:
    """The three questions, for each snapshot; and which commits say nothing."""
    live = {each.id for each in lw.view(table).snapshots}
    for each in made:
        gone = each.id not in live
        (commit,) = lw.history.ingested(table, snapshot_id=each.id, history_only=gone).commits
        assert commit.entry is not None
        snapshot = commit.entry.snapshot
        assert (snapshot.id, snapshot.committed_at) == (each.id, each.at)
        told = {key: value for key, value in snapshot.summary.items() if key.startswith(LINEAGE)}
        assert told == each.summary
        assert snapshot.summary["added-records"] == str(each.number + 1)
    entries = lw.history.of(table, limit=None).entries
    for each in made:
        found = downstream(entries, Node(table, each.id))
        assert {every.node.snapshot_id: every.depth for every in found.affected} == below(made, each.id)
    for each in made[::40]:
        assert lw.history.downstream(table, each.id) == downstream(entries, Node(table, each.id))
    who = lw.history.who(table, operation="overwrite")
    expected = [each for each in made if each.summary.get("lineage.operation") == "overwrite"]
    assert [
        (each.snapshot.id, each.told("trigger.operator"), each.told("trigger.ticket")) for each in who.entries
    ] == [(e.id, e.summary["trigger.operator"], e.summary["trigger.ticket"]) for e in reversed(expected)]
    gaps = lw.history.gaps(table)
    assert [each.entry.snapshot.id for each in gaps.gaps] == [e.id for e in reversed(made) if not e.summary]
    assert gaps.commits == len(made)


def test_every_snapshot_answers_after_two_years_of_expiry_and_folding(lab: Lab) -> None:
    table = lab.create("id bigint", "")
    made = commit_all(lab.spark, table, 96, days=730)
    for months in range(24, -1, -6):  # as if a pass had been made every half year
        policy = {"snapshot_retention_hours": f"{max(months * 30, 1)}d", "snapshot_min_retained": 1}
        with at(made[-1].at + timedelta(hours=1)):
            lab.lw.run("expire", table, policy)
            run = lab.lw.run("compact-history", table, policy)
        assert run.state in (RunState.DONE, RunState.NOTHING_TO_DO), run.reason
    view = lab.lw.view(table)
    assert len(view.snapshots) < 5
    found = lab.lw.history.of(table, limit=None)
    assert [each.snapshot.id for each in found.entries] == [each.id for each in reversed(made)]
    assert found.counts == {"live": len(view.snapshots), "archived": 0, "folded": 96 - len(view.snapshots)}
    assert {each.source for each in found.entries} == {EntrySource.LIVE, EntrySource.DETAIL}
    check_every_answer(lab.lw, table, made)
    assert lab.lw.run("compact-history", table).state is RunState.NOTHING_TO_DO
    gone = [each.id for each in reversed(made) if view.snapshot(each.id) is None]
    assert [each.snapshot.id for each in lab.lw.history.who(table, history_only=True).entries] == gone
