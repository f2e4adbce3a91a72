"""What pages are made of, without a browser: order, filters, words, and that a secret is not among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakewarden import Lakewarden, clock
from lakewarden.config.schema import ScheduleConfig
from lakewarden.console import queries
from lakewarden.console.pages.audit import AuditQuestion, audit_page
from lakewarden.console.pages.fleet import FleetPage, FleetQuery, fleet
from lakewarden.console.pages.holds import holds_page
from lakewarden.console.pages.render import environment, grade, plain, query, segment, time, tone
from lakewarden.console.pages.runs import RunsQuery, action_line
from lakewarden.console.pages.schedule import ScheduleStates, next_job_runs, schedule_page
from lakewarden.console.pages.table import kind_of
from lakewarden.health.table_details import SnapshotLine
from lakewarden.model.run import Job
from lakewarden.model.table import TableRef
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.retention import tidy
from lakewarden.state.schedule import PASS, SEEN, Suspension, TableSchedule, TableSchedules
from lakewarden.state.schema import archived_snapshots, requests
from lakewarden.state.tables import SeenTables
from tests.support.tables import policy, view

NOW = datetime(2026, 11, 17, 3, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def warden(tmp_path: Path) -> Iterator[Lakewarden]:
    config = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "catalogs": {"lake": {"type": "hadoop", "warehouse": str(tmp_path)}, "pond": {"format": "paimon", "warehouse": str(tmp_path)}},
        "schedule": {"mode": "cron"},
        "budgets": {"pause_compaction": ["22:00-06:00"]},
    }  # fmt: skip
    with Lakewarden(config, environ={}) as opened:
        yield opened


def put(warden: Lakewarden, table: str, debt: float, **numbers: int) -> None:
    look = TableHealth(table, table, NOW, "v", 100 - int(debt), debt, Numbers(**numbers))
    HealthRecords(warden.state).put([look])


def shown(warden: Lakewarden, **wish: object) -> FleetPage:
    return fleet(warden, FleetQuery(**wish), ScheduleStates(warden).at(NOW), NOW)  # type: ignore[arg-type]


def names(page: FleetPage) -> list[str]:
    return [row.table for row in page.rows]


def test_tables_stand_by_debt_and_by_whatever_is_asked_for(warden: Lakewarden) -> None:
    for table, debt, files in (("lake.db.a", 5, 7), ("lake.db.b", 50, 1), ("pond.db.c", 20, 3)):
        put(warden, table, debt, files=files)
    assert names(shown(warden)) == ["lake.db.b", "pond.db.c", "lake.db.a"]
    assert names(shown(warden, sort="files")) == ["lake.db.a", "pond.db.c", "lake.db.b"]
    assert names(shown(warden, sort="table", down=False)) == ["lake.db.a", "lake.db.b", "pond.db.c"]
    assert names(shown(warden, format="paimon")) == ["pond.db.c"]
    assert names(shown(warden, text="LAKE b")) == ["lake.db.b", "lake.db.a"]
    assert names(shown(warden, text="db.b")) == ["lake.db.b"]
    assert shown(warden, text="nothing").found == 0


def test_what_is_wrong_stands_above_what_is_healthy_unless_a_column_is_asked_for(warden: Lakewarden) -> None:
    for table, debt in (("lake.db.fine", 40), ("lake.db.held", 0), ("lake.db.warned", 10)):
        put(warden, table, debt)
    unread = TableHealth("lake.db.unread", "u", NOW, "", 0, 0.0, Numbers(), "its store is away")
    HealthRecords(warden.state).put([unread])
    HealthRecords(warden.state).warn([("lake.db.warned", "small-files", "many")], NOW)
    warden.schedule.suspend("lake.db.held", "moving", "ana")
    assert names(shown(warden)) == ["lake.db.held", "lake.db.unread", "lake.db.warned", "lake.db.fine"]
    assert names(shown(warden, sort="debt"))[:2] == ["lake.db.fine", "lake.db.warned"]


def test_what_the_collector_has_not_warned_of_is_told_all_the_same(warden: Lakewarden) -> None:
    put(warden, "lake.db.a", 5)
    warden.schedule.suspend("lake.db.a", "moving", "ana")
    page = shown(warden, only="suspended")
    assert [(each.kind, each.text, each.grave) for each in page.alarms] == [
        ("suspended", "by ana: moving", True)
    ]
    assert page.wrong == 1 and names(page) == ["lake.db.a"]
    assert page.to_dict()["tables"][0]["suspended"]["by"] == "ana"


def test_many_tables_come_in_pages(warden: Lakewarden) -> None:
    looks = [TableHealth(f"lake.db.t{n:04}", str(n), NOW, "v", 50, float(n), Numbers()) for n in range(250)]
    HealthRecords(warden.state).put(looks)
    page = shown(warden, page=3)
    assert (page.found, page.pages, len(page.rows)) == (250, 3, 50)
    assert names(page)[-1] == "lake.db.t0000"


def test_the_same_wish_but_for_one_thing_is_one_address() -> None:
    wish = FleetQuery(text="a b", only="wrong", page=4)
    assert wish.but(page=5) == {"q": "a b", "only": "wrong", "page": "5"}
    assert wish.by("debt") == {"q": "a b", "only": "wrong", "sort": "debt", "order": "down"}
    assert FleetQuery().but() == {} and query({}) == "?"
    assert RunsQuery("t", page=2).but(page=1) == {"q": "t"}


def test_a_job_has_its_own_times_or_the_reason_why_it_has_none() -> None:
    schedule = ScheduleConfig(mode="cron")
    standings = [
        TableSchedule("lake.db.events", SEEN, NOW - 99 * HOUR),
        TableSchedule("lake.db.events", "expire", NOW - 2 * HOUR),
        TableSchedule("lake.db.events", "compact", NOW - 2 * HOUR),
    ]
    found = {each.slot: each for each in next_job_runs(schedule, standings, policy(), NOW)}
    assert found["compact"].now and found["compact"].at == NOW - HOUR
    assert not found["expire"].now and found["expire"].at == datetime(2026, 11, 18, tzinfo=UTC)
    assert found["sweep"].at is None and "switches it off" in found["sweep"].why
    assert next_job_runs(ScheduleConfig(), standings, policy(), NOW) == ()
    owed = TableSchedule(
        "lake.db.events", "expire", NOW - 2 * HOUR, NOW - HOUR, "failed", retry_at=NOW - HOUR
    )
    found = {each.slot: each for each in next_job_runs(schedule, [*standings[:1], owed], policy(), NOW)}
    assert found["expire"].now and found["expire"].at == NOW - HOUR, (
        "what failed is tried again before its time"
    )


def test_no_job_of_a_table_whose_maintenance_is_off_has_a_time() -> None:
    schedule, seen_ = ScheduleConfig(mode="cron"), TableSchedule("lake.db.events", SEEN, NOW - 99 * HOUR)
    found = next_job_runs(schedule, [seen_], policy(maintenance_enabled=False), NOW)
    assert {each.slot for each in found} == set(Job)
    assert all(each.switched_off and each.at is None for each in found)


def test_tables_that_nobody_looked_at_yet_are_named_and_those_that_are_gone_are_not(
    warden: Lakewarden,
) -> None:
    put(warden, "lake.db.a", 5)
    TableSchedules(warden.state).put_all(
        [
            TableSchedule("lake.db.a", SEEN, NOW - HOUR),
            TableSchedule("lake.db.new", SEEN, NOW - HOUR),
            TableSchedule("lake.db.gone", SEEN, NOW - HOUR, NOW, "gone"),
        ]
    )
    page = shown(warden)
    assert (names(page), page.total, page.not_looked_at) == (["lake.db.a"], 1, ("lake.db.new",))


def test_a_table_that_was_dropped_is_not_shown_again_when_the_mark_of_that_goes(warden: Lakewarden) -> None:
    """What its expired snapshots said stays for good, and with it that it was once read."""
    now, days = clock.now(), timedelta(days=warden.config.health.keep_days)
    gone, read = "lake.db.gone", "lake.db.read"
    views = SeenTables(warden.state)
    for table, at in ((gone, now - 2 * days), (read, now - days / 2)):
        views.saw(replace(view(), ref=TableRef.parse(table), uuid=table), at)
    archived = {
        "table_uuid": gone, "snapshot_id": 1, "table_name": gone, "sequence_number": 1, "committed_at": NOW,
        "operation": "append", "summary": {}, "run_id": "r", "archived_at": NOW,
    }  # fmt: skip
    with warden.state.write() as connection:
        connection.execute(archived_snapshots.insert().values(archived))
    TableSchedules(warden.state).put(TableSchedule(gone, SEEN, NOW - 3 * days, now - 1.5 * days, "gone"))

    def told() -> tuple[object, ...]:
        page = fleet(warden, FleetQuery(), ScheduleStates(warden).at(now), now)
        return page.not_looked_at, tuple(each["table"] for each in queries.fleet(warden)["tables"])

    assert told() == ((read,), (read,)), "while it is marked"
    assert tidy(warden.state, now - days) == 1 and warden.schedule.standings(gone) == ()
    assert gone in queries.known_tables(warden), "audits find it still"
    assert told() == ((read,), (read,))


def test_a_suspended_table_that_was_dropped_is_no_alarm_until_it_is_made_anew(warden: Lakewarden) -> None:
    table = "lake.db.dropped"
    TableSchedules(warden.state).suspend(Suspension(table, NOW - 9 * HOUR, "ten failures", "worker"))
    SeenTables(warden.state).saw(replace(view(), ref=TableRef.parse(table)), NOW - 9 * HOUR)

    def told() -> tuple[object, ...]:
        page, listed = shown(warden), [each["table"] for each in queries.fleet(warden)["tables"]]
        metrics = warden.health.metrics()[0].decode()
        assert f"lakewarden_tables_suspended {float(len(page.suspended))}" in metrics
        warden.health._exposition = None  # it is kept for seconds
        return (
            page.wrong,
            [each.kind for each in page.alarms],
            [each.table for each in page.suspended],
            listed,
        )

    there = (1, ["suspended"], [table], [table])
    TableSchedules(warden.state).put(TableSchedule(table, SEEN, NOW - 10 * HOUR))
    assert told() == there
    TableSchedules(warden.state).put(TableSchedule(table, SEEN, NOW - 10 * HOUR, NOW - 8 * HOUR, "gone"))
    assert told() == (0, [], [], [])
    assert table in warden.schedule.suspended(), "and what somebody suspended stays so"
    TableSchedules(warden.state).put(TableSchedule(table, SEEN, NOW))
    assert told() == there


def test_a_page_beyond_the_last_is_the_last(warden: Lakewarden) -> None:
    put(warden, "lake.db.a", 5)
    page = shown(warden, page=99)
    assert (names(page), page.wish.page) == (["lake.db.a"], 1)


def test_every_request_that_waits_is_counted(warden: Lakewarden) -> None:
    first = warden.schedule.request("lake.db.t")
    with warden.state.write() as connection:
        row = dict(connection.execute(requests.select().where(requests.c.id == first.id)).one()._mapping)
        rows = [{**row, "id": f"r{each}", "table_name": f"lake.db.t{each}"} for each in range(300)]
        connection.execute(requests.insert(), rows)
    assert len(shown(warden).waiting) == 301


def test_what_came_of_a_snapshot_nobody_knows_is_said(warden: Lakewarden) -> None:
    page = audit_page(warden, AuditQuestion("downstream", "lake.db.typo", "1"), NOW)
    assert page.downstream is None and "neither its portrait nor its history has it" in page.error


def test_the_week_has_times_windows_and_who_is_next(warden: Lakewarden) -> None:
    TableSchedules(warden.state).put(TableSchedule("lake.db.a", SEEN, NOW - 99 * HOUR))
    TableSchedules(warden.state).put(TableSchedule("lake.db.a", PASS, NOW - HOUR))
    page = schedule_page(warden, ScheduleStates(warden).at(NOW).decision, NOW)
    assert page.first == datetime(2026, 11, 16, tzinfo=UTC)
    assert {each.kind for each in page.ticks} >= {"expire", "purge", "sweep"}
    assert page.closed == ("no compaction starts before 06:00 UTC",)
    assert [table for table, _ in page.next] == ["lake.db.a"]
    assert len(page.spans) == 8  # the night before Monday reaches into the week


def test_a_week_shows_what_it_has_and_explains_no_more(warden: Lakewarden) -> None:
    page = schedule_page(warden, ScheduleStates(warden).at(NOW).decision, NOW)
    words = [text for _, text in page.legend]
    assert "no compaction starts" in words and "no expiry starts" not in words and "expire" in words
    assert replace(page, spans=(), ticks=()).legend == ()
    assert [text for _, text in replace(page, ticks=()).legend] == ["no compaction starts"]


def test_a_decision_is_made_once_for_several_who_look(warden: Lakewarden) -> None:
    outlooks = ScheduleStates(warden)
    first = outlooks.at(NOW)
    assert outlooks.at(NOW + timedelta(milliseconds=500)) is first
    assert outlooks.at(NOW + timedelta(seconds=2)) is not first


def test_holds_of_all_tables_are_found_by_word_and_kind(warden: Lakewarden) -> None:
    warden.holds.heartbeat("lake.db.a", "flink-7", host="h", ttl="10m")
    page = holds_page(warden, "writer", "flink", NOW)
    assert [(each.table, each.hold.kind, each.hold.name) for each in page.rows] == [
        ("lake.db.a", "writer", "flink-7")
    ]
    assert holds_page(warden, "pin", "", NOW).rows == ()


@pytest.mark.parametrize(
    ("kept", "why", "kind"),
    [
        ("", "", "goes"),
        ("pinned by bi until 14:05", "pin", "held"),
        ("tag audit", "tag", "held"),
        ("Flink job job-7 restarts from it", "stream", "held"),
        ("history of branch audit", "history", "held"),
        ("after snapshot 7, which stays: tag audit", "after-held", "held"),
        ("after snapshot 7, which stays: inside the window", "after-kept", "window"),
        ("the current snapshot", "current", "window"),
        ("snapshot_min_retained=5 (default)", "min-retained", "least"),
        ("inside the window (snapshot_retention_hours=720, default)", "window", "window"),
    ],
)
def test_a_snapshot_has_the_colour_of_why_it_stays(kept: str, why: str, kind: str) -> None:
    assert kind_of(SnapshotLine(1, NOW, "append", "", kept=kept, kept_kind=why)) == kind


def test_words_of_a_reason_do_not_colour_a_snapshot() -> None:
    """`staging` has "tag" in it, and so has a pattern or a table that a policy names."""
    for kept, why, kind in (
        ("inside the window: snapshot_retention_hours=24 (table lake.staging.events)", "window", "window"),
        ("snapshot_min_retained=2 (pattern lake.staging.*)", "min-retained", "least"),
        ("history.expire.max-snapshot-age-ms of the table", "window", "window"),
    ):
        assert kind_of(SnapshotLine(1, NOW, "append", "", kept=kept, kept_kind=why)) == kind


def test_actions_of_a_journal_are_told_in_a_line() -> None:
    rewrite = {
        "action": "rewrite-files",
        "partition": "d=1",
        "input_files": 12,
        "output_files": 1,
        "input_bytes": 4096,
        "rows": 7,
    }
    assert action_line(rewrite) == ("d=1", "12 → 1 files, 7 rows", "4.1 KB")
    assert action_line({"action": "expire-snapshots", "snapshots": 3}) == (
        "the table",
        "expire snapshots: 3 snapshots",
        "",
    )
    manifests = {
        "action": "rewrite-manifests",
        "spec_id": 2,
        "input_manifests": 9,
        "output_manifests": 1,
        "input_bytes": 10,
    }
    assert action_line(manifests) == ("spec 2", "9 → 1 manifests", "10 B")


def test_words_on_pages() -> None:
    assert [grade(score) for score in (100, 80, 79, 49)] == ["good", "good", "warn", "bad"]
    assert [tone(state) for state in ("failed", "done", "running", "pending")] == [
        "bad",
        "good",
        "calm",
        "plain",
    ]
    assert segment("lake.db.a/b c<") == "lake.db.a%2Fb%20c%3C"
    assert "in 2 hours" in time(NOW + 2 * HOUR, NOW, True) and "2 hours ago" in time(NOW - 2 * HOUR, NOW)
    assert plain({"files": 1200, "ids": list(range(9))}) == "files 1,200, ids 0, 1, 2, 3, 4 and 4 more"
    assert len(plain("x" * 5000)) == 400


def test_a_secret_in_a_journal_is_not_shown() -> None:
    assert "hunter2" not in plain({"url": "postgresql://me:hunter2@db/x"})


def test_every_template_escapes() -> None:
    assert environment().autoescape is True
    assert not [name for name in environment().list_templates() if "|safe" in _source(name).replace(" ", "")]


def _source(name: str) -> str:
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]
