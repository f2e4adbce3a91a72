"""The console through a real browser: what a person at 3 a.m. sees and presses, on a screen, on a phone, by keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from lakewarden import Lakewarden, clock
from lakewarden.console import queries
from lakewarden.health.table_details import DueLine, HoldLine, PartLine, RefLine, SnapshotLine, TableDetails
from lakewarden.model.run import Job, RunState, Trigger
from lakewarden.model.table import TableRef
from lakewarden.services.deps import read_trigger
from lakewarden.state.cold import ColdFile, ColdFiles
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.process import current_owner
from lakewarden.state.runs import ProgressPoint, RunProgress
from lakewarden.state.schedule import PASS, SEEN, TableSchedule, TableSchedules
from lakewarden.state.schema import homes
from lakewarden.state.tables import SeenTables
from lakewarden.state.trash import TrashedFiles
from tests.support.browser import PHONE, WIDE, chromium, page, widest
from tests.support.console import OPERATE, READ, TABLE, Running, console, end_run, see

pytestmark = pytest.mark.services

EVIL = "lake.db.<script>alert(1)</script>"
OTHER = "lake.db.orders"
PAGES = (
    "/",
    f"/tables/{TABLE}",
    "/tables/lake.db.%3Cscript%3Ealert(1)%3C%2Fscript%3E",
    "/runs",
    "/runs/run-1",
    "/holds",
    "/audit",
    f"/audit?question=who&table={TABLE}",
    f"/audit?question=gaps&table={TABLE}",
    f"/audit?question=downstream&table={TABLE}&snapshot=7000",
    "/schedule",
    "/tables/lake.db.evnts",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with console(
        tmp_path,
        config={"schedule": {"mode": "cron"}, "budgets": {"pause_compaction": ["Mon-Fri 09:00-17:00"]}},
    ) as found:
        fill(found.warden)
        yield found


@pytest.fixture
def ana(browser: Browser, running: Running) -> Iterator[Page]:
    with page(browser, running.address) as opened:
        login(opened, OPERATE)
        yield opened


def login(opened: Page, token: str) -> None:
    opened.goto("/login")
    opened.get_by_label("Token").fill(token)
    opened.get_by_role("button", name="Log in").click()
    opened.wait_for_url("**/")


def fill(warden: Lakewarden) -> None:
    """Three tables: one in trouble, one that was made from it, and one whose name is an attack."""
    now = clock.now()
    for table in (TABLE, OTHER, EVIL):
        see(warden, table)
    HealthRecords(warden.state).put([look(TABLE, 31), look(OTHER, 88, f"{TABLE}@7000"), look(EVIL, 99)])
    for hours in (9, 5, 2):
        earlier = replace(
            look(TABLE, 40 + hours), at=now - timedelta(hours=hours), numbers=Numbers(files=100 * hours)
        )
        HealthRecords(warden.state).put([earlier])
    HealthRecords(warden.state).put([look(TABLE, 31)])
    warden.schedule.suspend(OTHER, "the store says no <b>403</b>", "worker")
    TableSchedules(warden.state).put(TableSchedule(TABLE, PASS, now, now, "done"))
    begin(warden)
    trash(warden)


def look(table: str, score: int, inputs: str = "") -> TableHealth:
    now = clock.now()
    snapshots = tuple(
        SnapshotLine(
            7000 - place, now - timedelta(hours=place), "append", f"append by flink <{table}>", added_files=3, current=place == 0,
            kept="inside the window (snapshot_retention_hours=720, default)" if place < 4 else "", inputs=inputs,
        )
        for place in range(6)
    )  # fmt: skip
    portrait = TableDetails(
        "iceberg", 2, f"/wh/{table}", f"/wh/{table}/metadata/v1.json", 7000, 0,
        snapshots=snapshots, snapshots_total=6, refs=(RefLine("main", "branch", 7000), RefLine("audit", "tag", 6997)), refs_total=2,
        holds=(HoldLine("tag", "audit", "", "", 6997, now - timedelta(days=2), None, 5_000_000),), holds_total=1,
        score_parts=(PartLine("small files", 40, 35.0, "1,200 of 1,300 files are small"),),
    )  # fmt: skip
    numbers = Numbers(files=1300, small_files=1200, bytes=9_000_000_000, records=10**7, snapshots=6, holds=1)
    return TableHealth(
        table, f"uuid-{table}", now, "v", score, 100.0 - score, numbers, "", portrait.to_dict()
    )


def begin(warden: Lakewarden) -> None:
    plan = {"reason": "12 files → 1", "actions": [{"action": "rewrite-files", "partition": "day=2026-11-16", "input_files": 12, "output_files": 1, "input_bytes": 4096, "rows": 7, "reason": "small"}], "skipped": [{"what": "file", "count": 3, "bytes": 9, "reason": "large enough"}]}  # fmt: skip
    warden.journal.start(run_id="run-1", table=TABLE, job="compact", owner=current_owner(), trigger=read_trigger(None), plan=plan, policy={}, now=clock.now())  # fmt: skip
    say(warden, 25)


def say(warden: Lakewarden, done: int) -> None:
    RunProgress(warden.state).put(
        "run-1", ProgressPoint("rewriting", done * 10**6, 10**8, f"group {done}", clock.now())
    )


def trash(warden: Lakewarden) -> None:
    paths = [f"/wh/{TABLE}/data/{name}.parquet" for name in "abc"]
    rows = pa.table(
        {
            "path": pa.array(paths, pa.string()),
            "kind": pa.array(["data"] * 3, pa.string()),
            "size": pa.array([2_000_000] * 3, pa.int64()),
            "stamp": pa.array([None] * 3, pa.string()),
        }
    )
    files, now = TrashedFiles(warden.state), clock.now()
    files.trash("expire-1", TABLE, f"uuid-{TABLE}", "expire", "expired 3 snapshots", rows, {}, now)
    files.enforce("expire-1", now)


# ------------------------------------------------------------ looking


@pytest.mark.main
def test_the_fleet_says_what_is_wrong_and_since_when(ana: Page) -> None:
    wrong = ana.locator("#wrong")
    expect(wrong).to_contain_text("suspended")
    expect(wrong).to_contain_text("the store says no <b>403</b>")
    expect(wrong).to_contain_text("since just now")
    rows = ana.locator("#fleet tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text(OTHER)  # suspended
    expect(rows.nth(1)).to_contain_text(TABLE)  # the most debt
    ana.get_by_role("link", name="score").click()
    expect(ana.locator("#fleet tbody tr").first).to_contain_text(TABLE)
    ana.get_by_role("link", name="score ↑").click()
    expect(ana.locator("#fleet tbody tr").first).to_contain_text("<script>")
    expect(ana.locator("th[aria-sort=descending]")).to_contain_text("score")


def test_the_fleet_is_filtered_while_typing_and_by_the_form(ana: Page) -> None:
    ana.get_by_label("Name").press_sequentially("orders")
    expect(ana.locator("#fleet tbody tr:visible")).to_have_count(1)
    ana.get_by_label("Name").press("Enter")
    expect(ana).to_have_url(re.compile("q=orders"))
    expect(ana.locator("#fleet tbody tr")).to_have_count(1)
    ana.get_by_role("link", name="Show all").click()
    ana.get_by_label("Only").select_option("suspended")
    ana.get_by_role("button", name="Show").click()
    expect(ana.locator("#fleet tbody tr")).to_have_count(1)


def test_no_page_runs_what_a_name_holds_and_none_scrolls_sideways(browser: Browser, running: Running) -> None:
    for scheme, view in (("light", PHONE), ("dark", WIDE)):
        with page(browser, running.address, viewport=view, color_scheme=scheme) as opened:
            opened.on("dialog", lambda said: pytest.fail(f"a page ran a script: {said.message}"))
            login(opened, OPERATE)
            for path in PAGES:
                answer = opened.goto(path)
                assert answer is not None and answer.status == (404 if "evnts" in path else 200), path
                assert widest(opened) == 0, f"{path} at {view['width']} px"
                assert opened.locator("main h1").count() == 1, path


def test_every_page_is_also_data(running: Running) -> None:
    with running.client(OPERATE) as client:
        for path in PAGES[:-1]:
            bare, _, query = path.partition("?")
            address = ("/fleet" if bare == "/" else bare) + ".json" + (f"?{query}" if query else "")
            answer = client.get(address)
            assert answer.status_code == 200, address
            assert answer.headers["content-type"] == "application/json" and answer.json(), address


def test_a_table_that_is_not_there_has_near_names(ana: Page) -> None:
    answer = ana.goto("/tables/lake.db.evnts")
    assert answer is not None and answer.status == 404
    ana.get_by_role("link", name=TABLE).click()
    expect(ana.get_by_role("heading", level=1)).to_have_text(TABLE)


def test_charts_have_words_for_who_cannot_see_them(ana: Page) -> None:
    ana.goto(f"/tables/{TABLE}")
    chart = ana.get_by_role("img", name="data files")
    assert "now" in (chart.locator("desc").text_content() or "")
    ana.get_by_text("as numbers").click()
    expect(ana.get_by_role("region", name="Health as numbers")).to_contain_text("1,300")
    expect(ana.get_by_role("img", name="snapshots over time").locator("circle.mark-goes")).to_have_count(2)
    expect(ana.locator("#lineage")).to_contain_text(OTHER)


def test_colours_follow_the_system(browser: Browser, running: Running) -> None:
    found = {}
    for scheme in ("light", "dark"):
        with page(browser, running.address, color_scheme=scheme) as opened:
            login(opened, OPERATE)
            found[scheme] = opened.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert found["light"] != found["dark"], found


# ------------------------------------------------------------ pressing


@pytest.mark.main
def test_a_pass_is_asked_for(ana: Page, running: Running) -> None:
    ana.goto(f"/tables/{TABLE}")
    ana.get_by_role("button", name="Maintain now").click()
    expect(ana.get_by_role("status").first).to_contain_text("A pass was asked for")
    [request] = running.warden.schedule.requests(TABLE)
    assert request.trigger.operator == "ana"
    expect(ana.locator("#asked")).to_contain_text("pending")
    ana.reload()  # by GET: nothing is filed twice
    assert len(running.warden.schedule.requests(TABLE)) == 1


def test_a_run_is_watched_without_loading_the_page_again(ana: Page, running: Running) -> None:
    ana.goto("/runs/run-1")
    ana.evaluate("() => { window.same = true }")
    expect(ana.locator("progress")).to_have_attribute("value", "0.2500")
    say(running.warden, 75)
    expect(ana.locator("progress")).to_have_attribute("value", "0.7500", timeout=10_000)
    expect(ana.locator("#run")).to_contain_text("group 75")
    end_run(running.warden, "run-1")
    expect(ana.locator("#run .chip").first).to_have_text("done", timeout=10_000)
    expect(ana.get_by_role("button", name="Cancel")).to_have_count(0)
    assert ana.evaluate("() => window.same") is True


@pytest.mark.main
def test_a_run_is_cancelled(ana: Page, running: Running) -> None:
    ana.goto("/runs/run-1")
    ana.once("dialog", lambda said: said.dismiss())
    ana.get_by_role("button", name="Cancel").click()
    assert running.warden.schedule.cancelled("run-1") is None
    ana.once("dialog", lambda said: said.accept())
    ana.get_by_role("button", name="Cancel").click()
    expect(ana.get_by_role("button", name="Stopping")).to_be_disabled()
    found = running.warden.schedule.cancelled("run-1")
    assert found is not None and found.by == "ana"


@pytest.mark.main
def test_a_policy_is_changed_and_a_wrong_value_is_said_where_it_was_typed(
    ana: Page, running: Running
) -> None:
    ana.goto(f"/tables/{TABLE}")
    row = ana.locator("#key-snapshot_retention_hours")
    row.get_by_role("textbox").fill("soon")
    row.get_by_role("button", name="Set").click()
    row = ana.locator("#key-snapshot_retention_hours")
    expect(row.locator(".error")).to_contain_text("snapshot_retention_hours")
    expect(row.get_by_role("textbox")).to_have_value("soon")
    expect(row.get_by_role("textbox")).to_have_attribute("aria-invalid", "true")
    assert running.warden.policy(TABLE)["snapshot_retention_hours"] == 720
    row.get_by_role("textbox").fill("7d")
    row.get_by_role("button", name="Set").click()
    expect(ana.locator("#key-snapshot_retention_hours .chip")).to_have_text("table")
    assert running.warden.policy(TABLE)["snapshot_retention_hours"] == 168
    ana.locator("#key-snapshot_retention_hours").get_by_role("button", name="Unset").click()
    expect(ana.locator("#key-snapshot_retention_hours")).to_contain_text("default")
    assert running.warden.policy(TABLE)["snapshot_retention_hours"] == 720


@pytest.mark.main
def test_a_trashed_file_is_restored_and_then_all(ana: Page, running: Running) -> None:
    ana.goto(f"/tables/{TABLE}")
    trashed = ana.locator("#trashed")
    expect(trashed).to_contain_text("not before in")
    trashed.get_by_text("the first 3 of the files").click()
    trashed.get_by_role("button", name=f"Restore /wh/{TABLE}/data/b.parquet").click()
    expect(ana.get_by_role("status").first).to_contain_text("1 file (2.0 MB) restored")
    assert len(running.warden.trash(TABLE).files) == 2
    ana.get_by_role("button", name="Restore all 2").click()
    expect(ana.locator("#trashed")).to_contain_text("No file is in the trash")
    assert running.warden.trash(TABLE).files == ()


def test_a_table_is_resumed_and_suspended_with_a_reason(ana: Page, running: Running) -> None:
    ana.goto(f"/tables/{OTHER}")
    ana.get_by_role("button", name="Resume").click()
    expect(ana.locator("#wrong")).to_contain_text("Nothing")
    assert running.warden.schedule.suspended() == {}
    ana.get_by_text("Suspend it").click()
    ana.get_by_label("Reason").fill("moving it on Friday")
    ana.get_by_role("button", name="Suspend").click()
    expect(ana.locator("#wrong")).to_contain_text("by ana: moving it on Friday")
    ana.goto("/audit")
    expect(ana.locator("main tbody tr").first).to_contain_text("suspend")


@pytest.mark.main
def test_who_may_only_look_finds_nothing_to_press(browser: Browser, running: Running) -> None:
    with page(browser, running.address) as opened:
        login(opened, READ)
        opened.goto(f"/tables/{TABLE}")
        expect(opened.locator("main form[method=post]")).to_have_count(0)
        expect(opened.get_by_role("button", name="Maintain now")).to_have_count(0)


def test_everything_works_by_keyboard(browser: Browser, running: Running) -> None:
    with page(browser, running.address) as opened:
        opened.goto("/login")
        expect(opened.get_by_label("Token")).to_be_focused()  # a person sees the caret before typing
        opened.keyboard.type(OPERATE)
        opened.keyboard.press("Enter")
        opened.wait_for_url("**/")
        opened.keyboard.press("Tab")
        expect(opened.get_by_role("link", name="Skip to content")).to_be_focused()
        opened.keyboard.press("Enter")
        assert opened.evaluate("() => document.activeElement.id") == "main"
        opened.goto(f"/tables/{TABLE}")
        reach(opened, "Maintain now")
        outline = opened.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        opened.keyboard.press("Enter")
        expect(opened.get_by_role("status").first).to_contain_text("A pass was asked for")
    assert len(running.warden.schedule.requests(TABLE)) == 1


def reach(opened: Page, words: str) -> None:
    for _ in range(40):
        opened.keyboard.press("Tab")
        if opened.evaluate("() => document.activeElement.textContent.trim()") == words:
            return
    pytest.fail(f"{words!r} cannot be reached with the Tab key")


def test_pages_work_without_scripts(browser: Browser, running: Running) -> None:
    with page(browser, running.address, java_script_enabled=False) as opened:
        login(opened, OPERATE)
        opened.goto(f"/tables/{TABLE}")
        opened.get_by_role("button", name="Maintain now").click()
        expect(opened.get_by_role("status").first).to_contain_text("A pass was asked for")


def test_a_runs_page_tells_what_that_run_deleted(running: Running) -> None:
    state, now = running.warden.state, clock.now()
    for run_id, count in (("purge-old", 3), ("purge-new", 520)):
        files, owner = TrashedFiles(state), current_owner()
        paths = [f"/wh/{run_id}/{each}.parquet" for each in range(count)]
        columns = {"path": paths, "kind": ["data"] * count, "size": [10] * count}
        table = pa.table({**columns, "stamp": pa.array([None] * count, pa.string())})
        files.trash(f"trash-{run_id}", TABLE, f"uuid-{TABLE}", "expire", "expired", table, {}, now)
        files.enforce(f"trash-{run_id}", now)
        running.warden.journal.start(
            run_id=run_id, table=TABLE, job="purge", owner=owner, trigger=Trigger(), plan={}, policy={}, now=now
        )  # fmt: skip
        due = files.due(f"uuid-{TABLE}", {"expire": timedelta(0)}, now)
        ids = [row["id"] for each in due for row in each.to_pylist() if row["batch_id"] == f"trash-{run_id}"]
        files.finish_erasing(run_id, now, erased=files.begin_erasing(ids, run_id, owner, now))
        running.warden.journal.finish(run_id, RunState.DONE, "", {}, (), now)
    with running.browser() as ana:
        assert "3 files deleted by this run<" in ana.get("/runs/purge-old").text
        assert "520 files deleted by this run, the newest 100" in ana.get("/runs/purge-new").text
        old, new = (ana.get(f"/runs/purge-{each}.json").json() for each in ("old", "new"))
    assert (old["deleted"], len(old["receipts"])) == (3, 3)
    assert (new["deleted"], len(new["receipts"])) == (520, 500)


def test_who_is_logged_out_sees_nothing(ana: Page) -> None:
    ana.get_by_role("button", name="Log out").click()
    ana.goto("/")
    expect(ana).to_have_url(re.compile("/login"))


def test_what_is_turned_away_is_said_on_a_page(tmp_path: Path, running: Running) -> None:
    with running.browser(READ) as bob:
        answer = bob.post("/do/resume", data={"table": OTHER})
        assert (
            answer.status_code == 403 and "Not allowed" in answer.text and "may read, not act" in answer.text
        )
        assert OTHER in running.warden.schedule.suspended()
    with running.browser() as ana:
        answer = ana.post("/do/resume", data={"table": OTHER, "csrf": "made up"})
        assert answer.status_code == 403 and "Not allowed" in answer.text
        assert OTHER in running.warden.schedule.suspended()
        assert ana.get("/runs/nosuch").status_code == 404
        assert "Not found" in ana.get("/tables/nosuch").text
    (tmp_path / "slow").mkdir()
    with (
        console(tmp_path / "slow", tokens=False, requests_per_s=1) as slow,
        slow.client(Accept="text/html") as client,
    ):
        answers = [client.get("/schedule") for _ in range(15)]
    assert answers[0].status_code == 200
    assert answers[-1].status_code == 429 and "Too fast" in answers[-1].text


# ------------------------------------------------------------ at 3 a.m.


@pytest.fixture
def plain(tmp_path: Path, browser: Browser) -> Iterator[tuple[Lakewarden, Page]]:
    """A console that everybody here may use, on the interval schedule."""
    with console(tmp_path, tokens=False) as found, page(browser, found.address) as opened:
        yield found.warden, opened


def test_each_thing_that_is_wrong_has_its_next_step(ana: Page) -> None:
    for address in ("/", f"/tables/{OTHER}"):
        ana.goto(address)
        wrong = ana.locator("#wrong li", has_text="suspended")
        expect(wrong).to_contain_text("What to do: mend what the reason names")
        expect(wrong.locator("code")).to_have_text(f"lakewarden resume {OTHER}")
        expect(ana.locator("#wrong")).to_contain_text("docs/runbook.md")


def test_a_table_that_cannot_be_read_says_since_when_and_how_old_its_numbers_are(
    plain: tuple[Lakewarden, Page],
) -> None:
    warden, opened = plain
    now, records = clock.now(), HealthRecords(warden.state)
    see(warden, TABLE)
    records.put([replace(look(TABLE, 80), at=now - timedelta(hours=5), portrait={})])
    records.warn([(TABLE, "unreadable", "it cannot be looked at")], now - timedelta(hours=3))
    records.put([replace(look(TABLE, 0), portrait={}, error="its store is away")])
    opened.goto(f"/tables/{TABLE}")
    expect(opened.locator(".title")).to_contain_text(
        "could not be looked at since 3 hours ago; numbers of 5 hours ago"
    )
    expect(opened.locator(".title")).not_to_contain_text("just now")


def copied(warden: Lakewarden, cold: str) -> None:
    """As hand-off records a copy in the cold table's folder."""
    home = {
        "table_uuid": f"uuid-{cold}",
        "table_name": cold,
        "location": "/cold/events",
        "since": clock.now(),
    }
    with warden.state.write() as connection:
        connection.execute(homes.insert().values(home))
    ColdFiles(warden.state).add(
        f"uuid-{TABLE}", [ColdFile("/lake/a", "/cold/events/a", 1, "x")], "run-1", clock.now()
    )


def test_a_cold_table_is_shown_as_what_it_is(plain: tuple[Lakewarden, Page]) -> None:
    warden, opened = plain
    cold = "cold.db.events"
    see(warden, cold, **{"cold-tier.source": TABLE})
    see(warden, TABLE)
    seen = SeenTables(warden.state).get(TableRef.parse(cold))
    assert queries.cold_source(warden, seen) == "", "whoever writes a table can say so"
    copied(warden, cold)
    due = (DueLine("expire", False, "refusing to expire: gc.enabled=false", error=True),)
    for table in (TABLE, "cold.db.events"):
        found = look(table, 80)
        HealthRecords(warden.state).put(
            [replace(found, portrait={**found.portrait, "due": [asdict(each) for each in due]})]
        )
    opened.goto("/tables/cold.db.events")
    expect(opened.locator("main")).to_contain_text(f"The colder tier of {TABLE}")
    expect(opened.locator("main")).not_to_contain_text("gc.enabled")
    expect(opened.get_by_role("button", name="Maintain now")).to_have_count(0)
    opened.goto(f"/tables/{TABLE}")
    expect(opened.locator("main")).to_contain_text("gc.enabled")
    expect(opened.get_by_role("button", name="Maintain now")).to_have_count(1)


def test_a_week_without_times_and_windows_is_a_sentence(plain: tuple[Lakewarden, Page]) -> None:
    warden, opened = plain
    now = clock.now()
    see(warden, TABLE)
    TableSchedules(warden.state).put_all(
        [
            TableSchedule(TABLE, SEEN, now),
            *(TableSchedule(TABLE, str(each), now, now, "done") for each in (PASS, *Job)),
        ]
    )
    opened.goto("/schedule")
    expect(opened.locator("main svg.week, main .key")).to_have_count(0)
    expect(opened.locator("main")).to_contain_text("no quiet windows are set")
    expect(opened.locator("main")).to_contain_text("next: a whole pass")


def test_the_name_of_an_operator_stays_in_one_piece(ana: Page) -> None:
    ana.goto(f"/tables/{OTHER}")
    ana.get_by_role("button", name="Resume").click()
    ana.goto(f"/tables/{OTHER}")
    cell = ana.locator("td[data-label=who]").first
    expect(cell).to_have_text("ana")
    expect(cell).to_have_css("white-space", "nowrap")
