"""The commit lock on real Paimon tables: who comes second changes nothing, and hears who is at it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from lakewarden import clock
from lakewarden.errors import CommitLost
from lakewarden.model.location import normal
from lakewarden.model.run import Owner, RunState
from lakewarden.state.locks import TTL, Locks
from lakewarden.state.schema import commit_locks
from lakewarden.tables.paimon.format import Paimon
from tests.support.paimon import PaimonLab

RUNS = {
    "expire": {"snapshot_retention_hours": 0, "snapshot_min_retained": 1},
    "rewrite-manifests": {"manifest_rewrite_min_manifests": 2},
    "compact": {"rewrite_min_input_files": 2},
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute and a half for users."""
    monkeypatch.setattr(Locks.__init__, "__defaults__", (TTL, timedelta(seconds=0.2)))


def busy(lab: PaimonLab) -> str:
    table = lab.create("orders", keyed=True, **{"write-only": "true"})
    lab.append(table, 8, days=2)
    lab.lw.holds.tag(table, "then", snapshot_id=3, forever=True)
    return table


def test_a_table_that_another_has_locked_is_left_as_it_is(paimon: PaimonLab) -> None:
    table = busy(paimon)
    view, before = paimon.lw.view(table), paimon.on_disk(table)
    tagging: list[Callable[[], Any]] = [
        lambda: paimon.lw.holds.tag(table, "now", snapshot_id=4, forever=True),
        lambda: paimon.lw.holds.untag(table, "then"),
    ]
    with Locks(paimon.lw.state, Owner("other", 7, 1.0)).held(view.ref, normal(view.location)):
        for job, policy in RUNS.items():
            run = paimon.lw.run(job, table, policy)
            assert run.state is RunState.LOST_RACE
            assert "another Lakewarden (other pid 7)" in run.reason
        for change in tagging:
            with pytest.raises(CommitLost, match=r"another Lakewarden \(other pid 7\)"):
                change()
        assert paimon.on_disk(table) == before
    rows = paimon.rows(table)
    for job in ("compact", "rewrite-manifests", "expire"):
        assert paimon.lw.run(job, table, RUNS[job]).state is RunState.DONE
    assert paimon.rows(table) == rows


@pytest.mark.parametrize("job", RUNS)
def test_a_lock_that_ran_out_stops_the_change_before_it_begins(
    paimon: PaimonLab, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """It was taken, and then the process stood still for too long."""
    table = busy(paimon)
    before = paimon.on_disk(table)
    real = Paimon._locked

    def late(self: Paimon, view: Any) -> Any:
        made = real(self, view)
        enter = made.__enter__

        def entered() -> Any:
            lock = enter()
            with paimon.lw.state.write() as connection:
                connection.execute(update(commit_locks).values(until=clock.now() - timedelta(seconds=1)))
            return lock

        class Late:
            def __enter__(self) -> Any:
                return entered()

            def __exit__(self, *what: Any) -> Any:
                return made.__exit__(*what)

        return Late()

    monkeypatch.setattr(Paimon, "_locked", late)
    run = paimon.lw.run(job, table, RUNS[job])
    assert run.state is RunState.LOST_RACE, run.reason
    assert "its lock expired before the commit began" in run.reason
    assert paimon.on_disk(table) == before
