"""Reports of plans, tables, progress and the demo, from values alone, at a width of their own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from lakewarden.cli.demo import DemoPromise, DemoReport, Picture
from lakewarden.cli.doctor import Check, DoctorReport
from lakewarden.cli.screen import Bar, Lines, progress_on
from lakewarden.errors import PolicyError
from lakewarden.jobs.compact import plan as compact
from lakewarden.model.files import Manifest
from lakewarden.model.plan import Plan
from lakewarden.model.run import Owner, Run, RunState, Silent, Trigger
from lakewarden.model.table import Ref, Snapshot
from lakewarden.report.plan import PlanReport
from lakewarden.report.run import PassReport, result
from lakewarden.report.table import JobForecast, TableReport, TableRow, TablesReport
from tests.support.tables import MB, NOW, file, files, policy, view


def shown(report: RenderableType, width: int = 120) -> str:
    output = StringIO()
    Console(file=output, width=width, highlight=False, markup=False).print(report)
    return output.getvalue()


def a_plan(partitions: int = 3, **call: object) -> Plan:
    rows = [file(MB, partition) for partition in range(partitions) for _ in range(10)]
    rows += [file(200 * MB), file(40 * MB), file(MB, position_deletes=1)]
    return compact.plan(view(), files(rows), policy(**call), None, NOW)


def test_a_plan_tells_groups_totals_and_what_is_kept() -> None:
    report = PlanReport(a_plan(), "lakewarden run compact lake.db.events")
    out = shown(report.render(120))
    for words in (
        "compact  lake.db.events",
        "binpack, to files of 134 MB",
        "day=2  10 → 1 files  10.5 MB",
        "30 → 3 files, 31.5 MB",
        "2 files",
        "large enough: rewrite_small_bytes=33554432 (default)",
        "carries deletes",
        "this was a plan: nothing was changed",
        "lakewarden run compact lake.db.events",
    ):
        assert words in out, words
    document = report.to_dict()
    assert document["totals"]["input_files"] == 30
    assert document["totals"]["output_files"] == 3
    assert document["next_command"] == "lakewarden run compact lake.db.events"
    assert len(document["actions"]) == 3


def test_a_long_plan_is_cut_after_twenty_groups() -> None:
    out = shown(PlanReport(a_plan(50), "x").render(120))
    assert out.count("10 → 1 files") == 20
    assert "and 30 more" in out


def test_an_empty_plan_says_why_and_has_nothing_to_run() -> None:
    report = PlanReport(a_plan(rewrite_enabled=False), "lakewarden run")
    assert report.to_dict()["next_command"] is None
    assert "switched off: rewrite_enabled=false (call)" in shown(report.render(120))


def test_markup_in_names_is_not_markup() -> None:
    plan = replace(a_plan(1), reason="[red]local[*]")
    assert "[red]local[*]" in shown(PlanReport(plan, "x").render(120))


def test_tables_show_numbers_or_the_error() -> None:
    good = TableRow.of(view())
    report = TablesReport((good, TableRow("lake.db.bad", error="reach catalog lake: refused")), NOW)
    out = shown(report.render(120))
    assert "never" in out
    assert "reach catalog lake: refused" in out
    assert [row["error"] for row in report.to_dict()["tables"]] == [None, "reach catalog lake: refused"]
    assert report.to_dict()["tables"][1]["counters"] is None


def test_a_table_with_its_commits_and_what_is_due() -> None:
    ours = {
        "writer.id": "lakewarden", "lineage.operation": "compaction", "lineage.run_id": "r1",
        "trigger.type": "incident-response", "trigger.operator": "ana", "trigger.ticket": "OPS-1",
    }  # fmt: skip
    snapshots = (
        Snapshot(
            1, None, 1, NOW - timedelta(hours=3), "append", {"engine-name": "spark", "engine-version": "4.1"}
        ),
        Snapshot(2, 1, 2, NOW - timedelta(minutes=5), "replace", ours),
    )
    table = replace(
        view(),
        snapshots=snapshots,
        current_snapshot_id=2,
        refs=(Ref("main", "branch", 2), Ref("audit", "tag", 1)),
    )
    error = PolicyError(key="rewrite_branch", reason="no such branch")
    due = (JobForecast.of(a_plan()), JobForecast.failed("rewrite-manifests", error))
    report = TableReport(table, (Manifest("/m", 2000, 0, "data"),), due, NOW)
    out = shown(report.render(140), 140)
    for words in (
        "2, committed 5 minutes ago",
        "1 tag: audit",
        "due    compact",
        "error  rewrite-manifests",
        "compaction by lakewarden, incident-response, ana, ticket OPS-1, run r1",
        "by spark 4.1, no lineage",
        "1, 2.0 KB",
    ):
        assert words in out, words
    document = report.to_dict()
    assert [each["snapshot_id"] for each in document["commits"]] == [2, 1]
    assert document["counters"]["manifests"] == 1


def a_run(state: RunState) -> Run:
    return Run("r", "lake.db.t", "compact", state, "", NOW, NOW, Owner("h", 1, 0.0), Trigger("schedule"))


def test_a_pass_ends_as_its_first_bad_run() -> None:
    runs = (a_run(RunState.DONE), a_run(RunState.PARTIAL), a_run(RunState.FAILED))
    assert PassReport("lake.db.t", runs).exit_code == 3
    assert PassReport("lake.db.t", runs[:1]).exit_code == 0
    assert len(PassReport("lake.db.t", runs).to_dict()["runs"]) == 3


def test_the_doctor_is_ill_when_one_check_fails() -> None:
    report = DoctorReport(
        (
            Check("java", "fail", "no Java was found", "install Java 17"),
            Check("spark", "skipped", "needs java"),
        )
    )
    assert not report.healthy
    out = shown(report.render(80), 80)
    assert "install Java 17" in out
    assert "not ready: java" in out


def test_the_demos_last_screen_fits_a_terminal() -> None:
    old = Picture(8223665176775768503, 360, 7_200_000, 960_000, "b06de68f756abbd9-1", 0.7, 120)
    lineage = dict.fromkeys(
        ("writer.id", "writer.commit_hash", "lineage.operation", "lineage.run_id", "trigger.type", "trigger.operator", "input.row_count"),
        "0.1.0+920c4177d874",
    )  # fmt: skip
    proofs = tuple(
        DemoPromise("old snapshots still read", True, "version 8223665176775768503, the same rows")
        for _ in range(4)
    )
    config = "lakewarden-demo/lakewarden.toml"
    commands = tuple(
        (f"lakewarden --config {config} policy lake.demo.events", "every setting:") for _ in range(3)
    )
    report = DemoReport(
        "lake.demo.events", config, old, replace(old, files=6, query_files=2, query_seconds=0.28),
        a_run(RunState.DONE), lineage, proofs, commands,
    )  # fmt: skip
    lines = shown(report.render(80), 80).splitlines()
    assert len(lines) <= 39
    assert max(map(len, lines)) <= 80
    assert not replace(report, proofs=(DemoPromise("rows", False, ""),)).held


def test_progress_is_a_bar_on_a_terminal_lines_elsewhere_and_nothing_with_json() -> None:
    assert isinstance(progress_on(Console(file=StringIO(), force_terminal=True)), Bar)
    assert isinstance(progress_on(Console(file=StringIO())), Lines)
    assert isinstance(progress_on(None), Silent)


def test_lines_come_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("lakewarden.clock.monotonic", lambda: now[0])
    output = StringIO()
    lines = Lines(Console(file=output, width=200), every=5)
    lines.begin("compact lake.db.t", 100 * MB)
    for _ in range(10):
        now[0] += 1
        lines.advance(5 * MB)
    lines.end()
    assert output.getvalue().splitlines() == [
        "compact lake.db.t: 105 MB to read",
        "compact lake.db.t: 26.2 MB of 105 MB (25 %), 5.2 MB/s, 15 s left",
        "compact lake.db.t: 52.4 MB of 105 MB (50 %), 5.2 MB/s, 10 s left",
    ]


def test_a_bar_survives_notes_and_late_advances() -> None:
    output = StringIO()
    bar = Bar(Console(file=output, force_terminal=True, width=100))
    bar.begin("compact", 10)
    bar.advance(5)
    bar.note("skipped day=[1]: a file is missing")
    bar.end()
    bar.advance(5)
    assert "skipped day=[1]: a file is missing" in output.getvalue()


@pytest.mark.parametrize(
    ("counters", "told"),
    [
        ({"bytes_trashed": 0, "files_trashed_unsized": 15}, "15 files trashed, size unknown"),
        ({"bytes_trashed": 0}, "15 files trashed, size unknown"),
        (
            {"bytes_trashed": 9_600, "files_trashed_unsized": 13},
            "15 files trashed, 9.6 KB (size of 13 files unknown)",
        ),
        ({"bytes_trashed": 9_600, "files_trashed_unsized": 0}, "15 files trashed, 9.6 KB"),
        ({"snapshots_released": 2}, "15 files trashed, size unknown"),
    ],
)
def test_a_run_does_not_tell_a_size_that_nobody_knows(counters: dict[str, int], told: str) -> None:
    ran = replace(a_run(RunState.DONE), counters={"files_trashed": 15, **counters})
    assert result(ran) == told
