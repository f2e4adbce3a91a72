"""What a table asks every commit to say, it asks of ours: one that does not say it never moves the pointer."""

from __future__ import annotations

import pytest

from lakewarden.errors import LineageRejected
from lakewarden.model.run import RunState
from lakewarden.policy.keys import key
from lakewarden.state.audit_log import Rejections
from tests.conformance.lakes import Lake
from tests.conformance.test_rewriting import POLICY, REWRITES

ALWAYS = list(key("lineage_required_keys").default)


def asking(*more: str) -> dict[str, object]:
    return {"lineage_required_keys": [*ALWAYS, *more]}


def turned_away(lake: Lake) -> int:
    return sum(each.count for each in Rejections(lake.lw.state).list(lake.table) if each.door == "job")


@pytest.mark.parametrize("job", REWRITES)
def test_what_a_run_cannot_say_is_told_before_anything_is_written(lake: Lake, job: str) -> None:
    lake.create()
    lake.append(6)
    before, head = lake.contents(), lake.head()
    policy = {**POLICY[job], **asking("trigger.ticket"), "lineage_allowed_operations": ["append", "cleaning"]}
    with pytest.raises(LineageRejected) as caught:
        lake.lw.run(job, lake.table, policy, trigger={"type": "manual", "operator": "ana"})

    told = caught.value.to_dict()
    assert told["exit_code"] == 12
    assert [each["key"] for each in told["violations"]] == ["trigger.ticket", "lineage.operation"]
    assert "trigger.ticket is missing: the table requires it of every commit" in told["message"]
    assert "the table allows append, cleaning" in told["message"]
    assert lake.contents() == before and lake.head() == head
    assert turned_away(lake) == 1
    (run,) = lake.lw.runs(lake.table)
    assert (run.state, run.reason) == (RunState.REFUSED, caught.value.message)

    ticket = {"type": "manual", "operator": "ana", "ticket": "OPS-7"}
    done = lake.lw.run(job, lake.table, {**POLICY[job], **asking("trigger.ticket")}, trigger=ticket)
    assert done.state is RunState.DONE and lake.head() != head
    assert turned_away(lake) == 1


@pytest.mark.parametrize("job", REWRITES)
def test_the_summary_itself_is_asked_right_before_the_commit(lake: Lake, job: str) -> None:
    """What only the written rows could tell: here nothing tells it, and what was written for the commit is removed."""
    lake.create()
    lake.append(6)
    before, head, rows = lake.files(), lake.head(), lake.rows()
    run = lake.run(job, **POLICY[job], **asking("lineage.load"))
    assert run.state in (RunState.FAILED, RunState.LOST_RACE)
    assert "lineage.load is missing" in run.reason
    assert lake.head() == head and lake.rows() == rows
    assert lake.files() == before
    assert turned_away(lake) >= 1
    assert lake.run(job, **POLICY[job]).state is RunState.DONE, "nothing is left open"


def test_a_run_with_nothing_to_do_is_not_turned_away(lake: Lake) -> None:
    lake.create()
    assert lake.run("compact", **asking("trigger.ticket")).state is RunState.NOTHING_TO_DO
    assert turned_away(lake) == 0
