"""The worker's commands that need only the state database, and how a turn's outcome is written down."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden import Lakewarden, clock
from lakewarden.cli import main
from lakewarden.config.schema import WorkerConfig
from lakewarden.console.pages.fleet import FleetQuery, fleet
from lakewarden.console.pages.schedule import ScheduleStates
from lakewarden.errors import Busy, NoSuchTable, Outage, Refused, Stopped, Unreachable, UsageError
from lakewarden.health.metrics import ExpectedJobs
from lakewarden.model.run import Job, Owner, Run, RunState, Trigger
from lakewarden.model.table import COLD_SOURCE, COLD_SOURCE_UUID
from lakewarden.services.schedule import JobEnded
from lakewarden.state.cold import ColdFile, ColdFiles
from lakewarden.state.locks import Leases
from lakewarden.state.process import current_owner
from lakewarden.state.requests import PassRequest, Requests, RequestState
from lakewarden.state.schedule import PASS, SEEN, TableSchedule, TableSchedules
from lakewarden.state.tables import SeenTables
from lakewarden.worker.passes import Pass, PassResult, answer, begin, standings, suspension
from lakewarden.worker.schedule import ScheduleRules, WaitReason, decide
from lakewarden.worker.tables import Tables
from tests.cli.test_cli_state import Shell
from tests.cli.test_cli_state import lake as lake
from tests.cli.test_cli_state import shell as shell
from tests.support.tables import NOW, TABLE
from tests.support.tables import view as table_view

NAME = str(TABLE)


def seen(lake: Lakewarden, *more: TableSchedule) -> None:
    TableSchedules(lake.state).put_all([TableSchedule(NAME, SEEN, NOW), *more])


# ------------------------------------------------------------ commands


def test_the_schedule_tells_who_is_due_and_who_leads(lake: Lakewarden, shell: Shell) -> None:
    assert "no worker has ever run here" in shell("schedule")[1]
    seen(lake)
    document = json.loads(shell("schedule", "--json")[1])
    assert document["leader"] is None and not document["waiting"]
    (due,) = document["due"]
    assert (
        due["table"] == NAME
        and due["why"] == "due"
        and "compact" in due["jobs"]
        and "sweep" not in due["jobs"]
    )
    assert Leases(lake.state).take(current_owner(), timedelta(seconds=60), {"version": "1"}) is not None
    lake.schedule.suspend(TABLE, "backfill", "ana")
    code, out = shell("schedule")
    assert code == 0 and "leads, term 1" in out and "suspended" in out and "backfill" in out
    document = json.loads(shell("schedule", "--json")[1])
    assert document["leader"]["live"] and document["waiting"][0]["why"] == WaitReason.SUSPENDED


def test_the_schedule_of_one_table(
    lake: Lakewarden, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    seen(lake, TableSchedule("lake.db.other", SEEN, NOW))
    (due,) = json.loads(shell("schedule", NAME, "--json")[1])["due"]
    assert due["table"] == NAME
    assert main(["schedule", "lake.db.evnets"]) == 10
    assert "no worker maintains a table of that name" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["runs", "requests", "trash", "receipts"])
def test_an_empty_list_of_a_table_that_nobody_knows_says_so(
    lake: Lakewarden, shell: Shell, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "lake.db.evnets"]) == 0
    assert "table lake.db.evnets is not known here" in capsys.readouterr().err
    assert main([command, "lake.db.evnets", "--json"]) == 0
    assert not capsys.readouterr().err
    seen(lake)
    assert main([command, NAME]) == 0
    assert not capsys.readouterr().err


def test_suspend_and_resume(lake: Lakewarden, shell: Shell) -> None:
    code, out = shell("suspend", NAME, "--reason", "backfill until Friday", "--operator", "ana", "--json")
    document = json.loads(out)
    assert code == 0 and document["suspended"] and document["by"] == "ana"
    assert json.loads(shell("resume", NAME, "--json")[1])["was_suspended"] is True
    assert "was not suspended" in shell("resume", NAME)[1]
    assert lake.schedule.suspended() == {}


def test_a_request_is_filed_without_a_worker_and_listed(lake: Lakewarden, shell: Shell) -> None:
    code, out = shell("maintain", NAME, "--no-wait", "--operator", "ana", "--json")
    document = json.loads(out)
    assert code == 0 and document["state"] == "pending" and document["led"] is False
    assert json.loads(shell("maintain", NAME, "--no-wait", "--json")[1])["id"] == document["id"]
    (listed,) = json.loads(shell("requests", NAME, "--json")[1])["requests"]
    assert listed["id"] == document["id"]
    assert document["id"] in shell("requests")[1]


def test_maintain_waits_for_the_worker_that_leads(lake: Lakewarden, shell: Shell) -> None:
    lease = Leases(lake.state).take(current_owner(), timedelta(seconds=60))
    assert lease is not None
    run_id = _journaled(lake)

    def work() -> None:
        requests = Requests(lake.state)
        while not (found := requests.waiting(lease.term)):
            clock.sleep(0.05)
        assert requests.claim(found[0].id, lease.term, clock.now())
        requests.end(found[0].id, lease.term, RequestState.DONE, [run_id], "", clock.now())

    thread = threading.Thread(target=work)
    thread.start()
    code, out = shell("maintain", NAME, "--json")
    thread.join(30)
    assert code == 3, "as the run ended: partial"
    assert [each["id"] for each in json.loads(out)["runs"]] == [run_id]


def test_maintain_does_not_wait_for_a_worker_that_is_gone(
    lake: Lakewarden, shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakewarden.cli.run._LEASES", 0.1)
    assert Leases(lake.state).take(current_owner(), timedelta(seconds=1)) is not None
    assert main(["maintain", NAME]) == 11
    told = capsys.readouterr().err
    assert "no worker has been running for 1 s" in told and f"`lakewarden requests {NAME}`" in told
    (request,) = lake.schedule.requests(TABLE)
    assert request.id in told and request.state is RequestState.PENDING


def test_who_stops_waiting_hears_that_the_request_stays(
    lake: Lakewarden, shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(_: float) -> None:
        raise KeyboardInterrupt

    assert Leases(lake.state).take(current_owner(), timedelta(seconds=60)) is not None
    monkeypatch.setattr("lakewarden.cli.run.clock.sleep", leave)
    assert main(["maintain", NAME]) == 130
    assert "stays filed" in capsys.readouterr().err
    assert lake.schedule.requests(TABLE)[0].state is RequestState.PENDING


def test_nobody_resumes_or_restores_a_table_that_nobody_knows(lake: Lakewarden, shell: Shell) -> None:
    assert shell("resume", "lake.db.evnets")[0] == 10
    assert shell("restore", "lake.db.evnets", "--all")[0] == 10


def test_a_request_for_a_table_that_nobody_knows_says_so_and_leaves_no_ghost(
    lake: Lakewarden, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["maintain", "lake.db.evnets", "--no-wait"]) == 0
    assert "table lake.db.evnets is not known here" in capsys.readouterr().err
    seen(lake, TableSchedule("lake.db.evnets", PASS, NOW, NOW, "failed", "no such table", 1))
    page = fleet(lake, FleetQuery(), ScheduleStates(lake).at(clock.now()), clock.now())
    assert page.not_looked_at == (NAME,)


def test_maintain_tells_a_request_that_failed(
    lake: Lakewarden, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = Leases(lake.state).take(current_owner(), timedelta(seconds=60))
    assert lease is not None
    request = lake.schedule.request(TABLE, Trigger("manual", "ana"))
    requests = Requests(lake.state)
    real = Requests.file

    def filed(self: Requests, *arguments: Any) -> PassRequest:
        made = real(self, *arguments)
        requests.claim(made.id, lease.term, clock.now())
        requests.end(made.id, lease.term, RequestState.FAILED, [], "find table: it is gone", clock.now())
        found = requests.get(made.id)
        assert found is not None
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Requests, "file", filed)
        assert main(["maintain", NAME]) == 1
    assert "it is gone" in capsys.readouterr().err
    assert lake.schedule.request_by_id(request.id).state is RequestState.FAILED


def _journaled(lake: Lakewarden) -> str:
    owner = current_owner()
    run = lake.journal.start(
        run_id="20261116-000000-abc123", table=NAME, job="compact", owner=owner, trigger=Trigger("manual", "ana"),
        plan={}, policy={"keys": []}, now=NOW,
    )  # fmt: skip
    lake.journal.finish(run.id, RunState.PARTIAL, "a part", {}, (), NOW, owner)
    return run.id


def test_a_run_that_is_over_cannot_be_cancelled_and_an_open_one_can(lake: Lakewarden, shell: Shell) -> None:
    over = _journaled(lake)
    assert shell("cancel", over)[0] == 2
    owner = current_owner()
    lake.journal.start(
        run_id="20261116-000001-abc123", table=NAME, job="compact", owner=owner, trigger=Trigger("manual", "ana"),
        plan={}, policy={"keys": []}, now=NOW,
    )  # fmt: skip
    code, out = shell("cancel", "20261116-000001-abc123", "--operator", "bo", "--json")
    assert code == 0 and json.loads(out)["cancelled_by"] == "bo"
    assert shell("cancel", "nobody")[0] == 2


# ------------------------------------------------------------ what comes of a turn

CONFIG = WorkerConfig(max_failures=2, retry_seconds=60)


def ended(
    *jobs: JobEnded, stopped: bool = False, trouble: Exception | None = None, asked: bool = False
) -> PassResult:
    request = PassRequest(
        "q", NAME, RequestState.CLAIMED, Trigger("manual", "ana"), NOW, NOW, NOW, 1, None, (), ""
    )
    turn = Pass(NAME, request=request if asked else None)
    return PassResult(turn, NOW, NOW + timedelta(seconds=5), jobs, trouble, stopped)


def job(
    state: RunState, name: Job = Job.COMPACT, reason: str = "", error: Exception | None = None
) -> JobEnded:
    run = Run("r", NAME, name, state, reason, NOW, NOW, Owner("h", 1, 1.0), Trigger())
    return JobEnded(name, NOW, run, error)


def stands(of: PassResult, failures: int = 0) -> dict[str, TableSchedule]:
    before = TableSchedule(NAME, PASS, failures=failures)
    return {each.slot: each for each in standings(of, before, CONFIG)}


@pytest.mark.parametrize("state", [RunState.DONE, RunState.PARTIAL, RunState.REFUSED, RunState.LOST_RACE])
def test_what_is_no_failure_forgets_earlier_ones(state: RunState) -> None:
    found = stands(ended(job(state)), failures=3)
    assert found[PASS].failures == 0 and found[PASS].retry_at is None and found["compact"].retry_at is None
    assert found[PASS].state == state


def test_a_failure_is_owed_and_the_tenth_suspends() -> None:
    bad = ended(job(RunState.FAILED, reason="the disk says no"), job(RunState.DONE, Job.EXPIRE))
    found = stands(bad, failures=1)
    assert found[PASS].failures == 2 and found["compact"].retry_at == bad.at + timedelta(seconds=120)
    assert found["expire"].retry_at is None
    assert suspension(bad, 1, CONFIG) is None
    held = suspension(bad, 2, CONFIG)
    assert held is not None and held.reason == (
        "it failed 2 times in a row, the last time with: compact: the disk says no; "
        f"mend the cause, then `lakewarden resume {NAME}`"
    )
    assert answer(bad) == (RequestState.FAILED, "compact: the disk says no")


def test_a_stop_leaves_what_it_stopped_owed_at_once_and_the_request_open() -> None:
    halted = ended(job(RunState.DONE), job(RunState.INTERRUPTED, Job.EXPIRE), stopped=True)
    found = stands(halted, failures=1)
    assert found[PASS].failures == 1 and found[PASS].retry_at is None
    assert found["expire"].retry_at == halted.at and found["compact"].retry_at is None
    assert answer(halted) is None
    cancelled = ended(job(RunState.INTERRUPTED, reason="cancelled by ana"))
    assert stands(cancelled)["compact"].retry_at is None, "who cancels it does not want it back at once"
    assert answer(cancelled) == (RequestState.FAILED, "compact: cancelled by ana")


def test_nobody_is_blamed_for_another_run_or_a_database_that_is_away() -> None:
    busy = Busy(job="compact", table=NAME, run_id="x", owner="h pid 1", since="now")
    waits = ended(JobEnded(Job.COMPACT, NOW, None, busy))
    found = stands(waits, failures=1)
    assert found[PASS].failures == 1 and found["compact"].retry_at == waits.at + timedelta(seconds=60)
    away = Unreachable(what="the state database x", reason="no", kind=Outage.STATE)
    assert stands(ended(trouble=away), failures=1)[PASS].failures == 1
    assert answer(ended(trouble=away)) is None
    store = Unreachable(what="s3://bucket", reason="no")
    assert stands(ended(trouble=store), failures=1)[PASS].failures == 2
    named = Unreachable(what="the state database bucket of the lake", reason="no")
    assert stands(ended(trouble=named), failures=1)[PASS].failures == 2, "its kind counts, not its name"
    assert suspension(waits, 5, CONFIG) is None


def test_a_catalog_that_is_away_for_a_night_suspends_nobody() -> None:
    """It backs off, and goes on by itself when the catalog is back: nobody has to resume thousands of tables."""
    silent = Unreachable(what="catalog lake", reason="connection refused")
    away = ended(*(JobEnded(each, NOW, None, silent) for each in (Job.COMPACT, Job.EXPIRE)))
    assert away.failed and suspension(away, 50, CONFIG) is None
    assert stands(away, failures=50)[PASS].retry_at == away.at + timedelta(seconds=CONFIG.retry_max_seconds)
    assert suspension(ended(trouble=silent), 50, CONFIG) is None
    own = ended(JobEnded(Job.COMPACT, NOW, None, silent), job(RunState.FAILED, Job.EXPIRE, error=OSError()))
    assert suspension(own, 2, CONFIG) is not None, "something of the table's own failed too"


def test_what_one_of_two_purges_left_undone_stays_owed() -> None:
    """The second is that of the cold table, which has no standing of its own."""
    for first, second in ((RunState.FAILED, RunState.DONE), (RunState.DONE, RunState.FAILED)):
        found = stands(ended(job(first, Job.PURGE), job(second, Job.PURGE)))["purge"]
        assert (found.state, found.retry_at is None) == ("failed", False)


def test_who_asks_for_what_is_not_there_hears_it_and_the_table_has_not_failed() -> None:
    for error in (NoSuchTable(table=NAME, reason="gone"), UsageError(reason="switched off")):
        vain = ended(trouble=error, asked=True)
        assert stands(vain, failures=1)[PASS].failures == 1
        assert answer(vain) == (RequestState.FAILED, error.message)
        assert stands(ended(trouble=error))[PASS].failures == 1


@pytest.mark.parametrize("fails", [None, OSError("the plan cannot be read")])
def test_a_run_that_somebody_else_began_meanwhile_is_not_taken_for_ours(
    lake: Lakewarden, fails: Exception | None
) -> None:
    """They began the same job by hand while ours was being planned: whatever ended ours, theirs goes on."""
    compacts: list[str] = []

    def run(job: Job, table: Any, *rest: Any, run_id: str, **named: Any) -> Run:
        def begin(name: str) -> Run:
            return lake.journal.start(
                run_id=name, table=str(table), job=job, owner=current_owner(), trigger=Trigger("manual", "ana"),
                plan={}, policy={"keys": []}, now=clock.now(),
            )  # fmt: skip

        if job is Job.COMPACT:
            compacts.append(begin("theirs").id)
            if fails is not None:
                raise fails
        mine = begin(run_id)
        if job is Job.PURGE:
            raise OSError("the answer to its commit is lost")
        return lake.journal.finish(mine.id, RunState.DONE, "", {}, (), clock.now(), mine.owner)

    with patch.object(lake.schedule, "_run_job", run):
        jobs = (Job.COMPACT, Job.EXPIRE, Job.PURGE, Job.SWEEP)
        found = {each.job: each for each in lake.schedule.pass_over(TABLE, jobs, Trigger("manual", "ana"))}
    assert compacts == ["theirs"]
    compact = found[Job.COMPACT]
    assert compact.run is None and compact.state is RunState.FAILED
    assert isinstance(compact.error, Busy if fails is None else OSError)
    assert found[Job.EXPIRE].state is RunState.DONE, "the pass goes on"
    own = found[Job.PURGE].run
    assert own is not None and own.job == Job.PURGE and found[Job.PURGE].state is RunState.UNKNOWN
    assert Job.SWEEP not in found, "one of ours of unknown outcome ends it"
    stood = stands(ended(*found.values()))
    assert stood["compact"].run_ids == () and "theirs" not in stood[PASS].run_ids


def test_a_job_without_a_run_tells_why() -> None:
    assert (
        JobEnded(Job.PURGE, NOW, None, Refused(action="purge", target="t", reason="r")).state
        is RunState.REFUSED
    )
    assert JobEnded(Job.PURGE, NOW, None, Stopped(reason="x")).state is RunState.INTERRUPTED
    assert JobEnded(Job.PURGE, NOW, None, OSError("no")).reason == "OSError: no"


# ------------------------------------------------------------ the tables


def test_the_roster_follows_policies_and_tables(lake: Lakewarden) -> None:
    tables = Tables(lake.state, lake.config)
    tables.load()
    assert tables.discovered([NAME, "lake.db.other"], NOW, None) == (2, 0)
    assert [each.table for each in tables.tracked_tables] == sorted([NAME, "lake.db.other"])
    first = next(each for each in tables.tracked_tables if each.table == NAME)
    assert Job.SWEEP not in first.jobs and Job.PURGE in first.jobs
    lake.set_policy(TABLE, {"orphan_sweep_enabled": True, "rewrite_enabled": False})
    tables.refresh()
    changed = next(each for each in tables.tracked_tables if each.table == NAME)
    assert Job.SWEEP in changed.jobs and Job.COMPACT not in changed.jobs
    lake.set_policy(TABLE, {"maintenance_enabled": False})
    tables.refresh()
    off = next(each for each in tables.tracked_tables if each.table == NAME)
    assert not off.jobs and "maintenance_enabled" in off.off
    assert tables.discovered([NAME], NOW, None) == (0, 1)
    assert [each.table for each in tables.tracked_tables] == [NAME]
    assert tables.discovered([NAME, "lake.db.other"], NOW, None) == (1, 0), "it came back"


def test_who_resumes_a_table_that_only_backs_off_is_heard_by_the_leader(lake: Lakewarden) -> None:
    tables, later = Tables(lake.state, lake.config), clock.now() + timedelta(hours=1)
    tables.load()
    tables.discovered([NAME], NOW, None)
    tables.put([TableSchedule(NAME, PASS, NOW, NOW, "failed", "why", 4, later)], None)
    assert (
        decide(tables.tracked_tables, tables.book(), ScheduleRules(), clock.now()).of(NAME).to_dict()["due"]
        is False
    )  # type: ignore[union-attr]
    assert not lake.schedule.resume(TABLE), "it was not suspended"
    tables.refresh()
    last = tables.of(NAME)
    assert last is not None and last.failures == 0
    assert (
        decide(tables.tracked_tables, tables.book(), ScheduleRules(), clock.now()).of(NAME).to_dict()["due"]
        is True
    )  # type: ignore[union-attr]


def test_a_table_of_the_colder_tier_has_no_turns_of_its_own(lake: Lakewarden) -> None:
    """Every job on it would be refused, pass after pass."""
    tables = Tables(lake.state, lake.config)
    tables.load()
    tables.discovered([NAME], NOW, None)
    assert tables.tracked_tables[0].jobs
    view = table_view(properties={COLD_SOURCE: "lake.db.live", COLD_SOURCE_UUID: "live"})
    SeenTables(lake.state).saw(view, NOW)
    duties = ExpectedJobs(lake.state, lake.config)
    tables.refresh()
    assert tables.tracked_tables[0].jobs and duties.of({NAME})[NAME], "only its properties say so"
    copy = ColdFile("s3://lake/a", f"{view.location}/data/a", 1, "x")
    ColdFiles(lake.state).add("live", [copy], "run", NOW)
    tables.refresh()
    assert not duties.of({NAME})[NAME]
    (cold,) = tables.tracked_tables
    assert not cold.jobs and cold.off == "it is the colder tier of lake.db.live, and looked after with it"
    told = decide(tables.tracked_tables, tables.book(), ScheduleRules(), NOW).of(NAME)
    assert told is not None and told.to_dict()["why"] == "switched-off"


def test_a_pass_that_was_left_open_is_tried_again_at_once_and_then_later(lake: Lakewarden) -> None:
    seen(lake, TableSchedule(NAME, PASS, NOW, None, "running"))
    tables = Tables(lake.state, lake.config)
    tables.load()
    assert tables.end_left_open([NAME], NOW, None) == ()
    assert tables.end_left_open([], NOW, None) == (NAME,)
    first = tables.of(NAME)
    assert first is not None and first.failures == 1 and first.retry_at == NOW
    tables.put([begin(Pass(NAME), first, NOW)], None)
    tables.end_left_open([], NOW, None)
    second = tables.of(NAME)
    assert second is not None and second.failures == 2 and second.retry_at == NOW + timedelta(seconds=120)
