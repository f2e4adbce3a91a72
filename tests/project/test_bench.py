"""Every benchmark works at a tiny scale; it raises by itself where a tool changes a row or compacts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from bench.__main__ import main
from bench.cases import BINPACK, CASES, Case
from bench.findings import Check, Found, Report, Turn
from bench.growth import Growth
from bench.lab import Lab, add_catalog
from bench.meter import Cost
from bench.report import chart, grids, markdown, text, to_json, with_figures
from bench.rows import fingerprint
from bench.scale import Scale
from bench.stage import even_outputs, groups_to_fill, on_stage
from bench.telemetry import Totals, reset, telemetry, totals
from bench.tools import MODERN, OURS, PEER, Site
from tests.support.nightly import nightly_except

SCALE = Scale(
    rows=100_000, files=10, outputs=5, rounds=1, small_repeats=1, delete_bytes=500_000, rate_mb=1, patience=0,
    commits=12, objects=300,
)  # fmt: skip
# These make tables of several times the scale.
SMALLER = {"growth", "budget"}
# The peer's turns on the same tables are covered by the other cases.
WITHOUT_PEER = {"sort", "sort-shuffle", "zorder-shuffle"}

# Of each kind of case one is measured every time, the others by `make crash`: minutes, for code that nobody's table meets.
QUICK = {"small", "zorder", "position-deletes", "sweep", "health", "paimon-expire", "paimon-sweep"}


def cases(*names: str) -> list[Any]:
    return nightly_except(QUICK.__contains__, names)


Measured = Callable[[str], Report]


@pytest.fixture(scope="module")
def lab(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("bench")
    add_catalog(spark, folder)
    return Lab(spark, folder, SCALE, lambda line: None)


@pytest.fixture(scope="module")
def measured(lab: Lab) -> Measured:
    """The report of a case, measured once."""

    @cache
    def measure(name: str) -> Report:
        (case,) = (each for each in CASES if each.name == name)
        rows = SCALE.rows // 5 if name in SMALLER else SCALE.rows
        scale = replace(SCALE, rows=rows, peer=name not in WITHOUT_PEER)
        return _less(case).run(replace(lab, scale=scale))

    return measure


def _less(case: Case) -> Case:
    """Growth takes five kinds of work on three tables each: one kind shows all of its code."""
    if not isinstance(case.measure, Growth):
        return case
    return replace(case, measure=Growth({"binpack": (telemetry, BINPACK)}))


def checks(report: Report) -> dict[str, Check]:
    return {check.name: check for check in report.found.checks}


@pytest.mark.parametrize("name", cases(*(case.name for case in CASES)))
def test_a_case_runs_and_can_be_read_back(measured: Measured, name: str) -> None:
    report = measured(name)
    assert report.found.turns
    for turn in report.found.turns:
        assert turn.cost.wall > 0
        # The system counts a process's time in ticks of 10 ms: a turn shorter than a few may be given none.
        assert turn.cost.cpu > 0 or turn.cost.wall < 0.05
        assert turn.cost.jvm_heap > 0
        assert turn.cost.jvm_rss > 0
        assert turn.made.files > 0
    read = json.loads(to_json(report))
    assert read["case"] == name
    assert set(read["summary"]["warm"]) == set(report.found.tools())
    assert f"{report.found.start.files} files" in markdown(report)
    assert text(report).startswith(name)


@pytest.mark.parametrize("name", cases("binpack", "small", "zorder", "position-deletes", "equality-deletes"))
def test_the_peer_takes_its_turn_on_the_same_table(measured: Measured, name: str) -> None:
    report = measured(name)
    assert {PEER, OURS} <= {*report.found.tools()}
    assert checks(report)["wall time, the other tool's divided by Lakewarden's"].found > 0
    made = {turn.tool: turn.made.files for turn in report.found.turns}
    assert made[PEER] == made[OURS] < report.found.start.files


@pytest.mark.nightly
def test_binpack_has_both_kinds_of_encodings(measured: Measured) -> None:
    turns = measured("binpack").found.turns
    assert [(turn.tool, turn.made.files) for turn in turns] == [(PEER, 5), (OURS, 5), (MODERN, 5)]
    told = turns[-1].told
    assert told is not None
    phases = told.phases
    assert phases.planning + phases.preparing + phases.writing + phases.last_commit == pytest.approx(
        turns[-1].cost.wall, rel=0.5
    )


@pytest.mark.parametrize(
    ("name", "shuffled"),
    nightly_except(
        lambda case: case[0] in QUICK,
        [("sort", 0), ("zorder", 0), ("sort-shuffle", 5), ("zorder-shuffle", 5)],
    ),
)
def test_ordering_takes_the_way_the_case_is_about(measured: Measured, name: str, shuffled: int) -> None:
    ours = [turn for turn in measured(name).found.turns if turn.tool == OURS]
    assert [turn.told.counters["groups_exchanged"] for turn in ours if turn.told] == [shuffled]


@pytest.mark.parametrize("name", cases("zorder", "zorder-shuffle"))
def test_a_day_in_sixteen_files_is_a_grid(measured: Measured, name: str) -> None:
    found = checks(measured(name))
    assert found["files of that day"].found == 16
    for column in ("device_id", "temperature"):
        span = found[f"{column}: share of its range in a file of one day, on the average"]
        assert 0.2 < span.found < 0.3


def test_queries_open_fewer_files_afterwards(measured: Measured) -> None:
    (grid,) = measured("zorder").found.grids
    assert grid.head == ("files a query opens", "before", PEER, OURS)
    opened = {row[0]: row[1:] for row in grid.rows}
    assert opened["device_id = one device"] == ("10.0", "5.0", "5.0")


@pytest.mark.parametrize(
    ("name", "delete_files"),
    nightly_except(lambda case: case[0] in QUICK, [("position-deletes", None), ("equality-deletes", 15)]),
)
def test_deletes_are_applied(measured: Measured, name: str, delete_files: int | None) -> None:
    """That the rows left are those that should be is checked by the turn itself."""
    report = measured(name)
    assert report.found.start.deletes == (delete_files or report.found.start.deletes) > 0
    ours = next(turn for turn in report.found.turns if turn.tool == OURS)
    assert ours.made.deletes == 0
    assert ours.told is not None
    assert ours.told.counters["rows_erased"] == pytest.approx(0.03 * SCALE.rows, rel=0.1)


@pytest.mark.nightly
def test_growth_is_told_per_row(measured: Measured) -> None:
    report = measured("growth")
    assert report.found.tools() == ["binpack 1x", "binpack 2x", "binpack 4x"]
    assert [turn.made.files for turn in report.found.turns] == [5, 5, 5]
    assert len(report.found.checks) == 2


@pytest.mark.nightly
def test_deletes_larger_than_a_table_strike_only_its_keys(measured: Measured) -> None:
    report = measured("fixed-memory")
    assert report.found.start.deletes == 12
    (turn,) = report.found.turns
    assert turn.told is not None
    erased, left = turn.told.counters["rows_erased"], checks(report)["rows left"].found
    assert erased * 50 == erased + left == 8 * SCALE.rows_per_file
    assert all(check.met for check in report.found.checks)


@pytest.mark.nightly
def test_a_budget_holds_tasks_back(measured: Measured) -> None:
    report = measured("budget")
    assert len(report.found.turns) == 4
    assert sum(turn.told.counters["throttled_seconds"] for turn in report.found.turns if turn.told) > 1
    for check in report.found.checks:
        assert check.most is None or check.found < 1.05 * SCALE.rate_mb or "system" in check.name


def test_the_chart_draws_what_was_compared(measured: Measured) -> None:
    drawn = ElementTree.fromstring(chart([to_json(measured(name)) for name in ("small", "zorder", "health")]))
    labels = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"small", "zorder"} <= labels
    assert "health" not in labels, "it has no peer"


def test_a_ratio_is_for_the_same_work_only() -> None:
    def turn(tool: str, wall: float) -> Turn:
        return Turn(tool, 1, Cost(wall, wall, 1, 1, 1, 1, 1, 1), Totals(1, 1, 0))

    found = Found(Totals(2, 1, 0), (turn(PEER, 8.0), turn(OURS, 2.0), turn("one day into 16", 1.0)))
    costs = {row[0]: row[3:5] for row in grids(found)[0].rows}
    assert costs == {"Iceberg": ("", ""), "Lakewarden": ("4.00", "4.00"), "one day into 16": ("", "")}


def test_figures_replace_only_what_is_between_the_markers_of_their_case() -> None:
    page = "\n".join(
        f"above\n<!-- figures of {name}: written by python -m bench -->\nold {name}\n<!-- end of figures -->\nbelow"
        for name in ("sort", "zorder")
    )
    assert with_figures(page, "zorder", "new") == page.replace("old zorder", "new")
    with pytest.raises(ValueError, match="needs the lines"):
        with_figures(page, "binpack", "new")


def test_the_page_has_a_place_for_every_case() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
    for case in CASES:
        assert "figures" in with_figures(page, case.name, "figures")


def test_help_lists_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for case in CASES:
        assert case.name in shown
        assert case.sentence in shown


class _Broken:
    """A tool that does something else to the table."""

    name, once = "broken", False

    def __init__(self, statement: str) -> None:
        self._statement = statement

    def work(self, site: Site) -> None:
        site.spark.sql(self._statement.format(table=site.table))

    def tell(self, site: Site, result: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE {table} SET error_code = 7 WHERE sequence = 11", "changed the rows"),
        ("DELETE FROM {table} WHERE sequence = 11", "changed the rows"),
        ("SELECT 1", "nothing was compacted"),
    ],
)
def test_a_turn_that_changes_rows_or_does_nothing_is_refused(lab: Lab, statement: str, reason: str) -> None:
    prepared = telemetry(lab.spark, SCALE)
    with (
        on_stage(lab, prepared, even_outputs(SCALE, 2)) as stage,
        pytest.raises(RuntimeError, match=reason),
    ):
        stage.turn(_Broken(statement), 1)
    reset(lab.spark, prepared.name)
    assert fingerprint(lab.spark, prepared.name) == prepared.rows


@pytest.mark.nightly
def test_a_turn_leaves_the_table_as_it_was(lab: Lab, measured: Measured) -> None:
    report = measured("binpack")
    table = telemetry(lab.spark, SCALE).name
    assert totals(lab.spark, table) == report.found.start
    assert len(lab.spark.sql(f"SELECT * FROM {table}.snapshots").collect()) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 0}, {"files": 12}, {"rows": 20_001}, {"outputs": 7}, {"outputs": 500}, {"rate_mb": 0.0}],
)
def test_a_scale_that_does_not_divide_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|divide"):
        Scale(**wrong)


def test_growth_keeps_the_size_of_files() -> None:
    sizes = Scale().growth()
    assert [(each.rows, each.files, each.outputs) for each in sizes.values()] == [
        (5_000_000, 125, 5),
        (10_000_000, 250, 10),
        (20_000_000, 500, 20),
    ]


def test_the_peer_gets_enough_groups_to_fill_the_cores() -> None:
    assert [groups_to_fill(cores, 4) for cores in (1, 2, 4, 5, 16)] == [1, 1, 1, 2, 4]


def test_the_scale_comes_from_the_environment() -> None:
    assert Scale.from_environment({}) == Scale()
    quick = Scale.from_environment(
        {"BENCH_ROWS": "1000000", "BENCH_FILES": "50", "BENCH_ROUNDS": "3", "BENCH_PEER": "no"}
    )
    assert (quick.rows, quick.files, quick.outputs, quick.rounds) == (1_000_000, 50, 5, 3)
    assert not quick.peer
