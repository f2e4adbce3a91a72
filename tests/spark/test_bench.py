"""The benchmark's harness works at a tiny scale; it raises by itself where a tool changes a row or compacts nothing."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from bench.binpack import add_catalog, groups_to_fill, run, with_figures
from bench.report import MODERN, OURS, PEER, Report, chart, markdown, to_json
from bench.rows import fingerprint
from bench.scale import Scale
from bench.telemetry import reset, small_telemetry, telemetry, totals

SCALE = Scale(rows=20_000, files=10, outputs=5, rounds=1, small_repeats=1)


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    add_catalog(spark, folder)
    return folder


@pytest.fixture(scope="module")
def report(spark: SparkSession, folder: Path) -> Report:
    return run(spark, folder, SCALE, lambda line: None)


def test_both_tools_take_every_turn(report: Report) -> None:
    assert [(turn.tool, turn.made.files) for turn in report.turns] == [(PEER, 5), (OURS, 5), (MODERN, 5)]
    assert [turn.made.files for turn in report.small_turns] == [1, 1]
    assert report.start.files == 10
    assert report.small_start.files == 5


def test_costs_are_measured(report: Report) -> None:
    for turn in report.turns:
        assert turn.cost.wall > 0
        assert turn.cost.cpu > 0
        assert turn.cost.jvm_heap > 0
        assert turn.cost.jvm_rss > 0
    phases = report.turns[-1].phases
    assert phases is not None
    assert phases.planning + phases.preparing + phases.writing + phases.last_commit == pytest.approx(
        report.turns[-1].cost.wall, rel=0.5
    )


def test_a_figure_can_be_read_back(report: Report) -> None:
    read = json.loads(to_json(report))
    assert read["scale"]["rows"] == SCALE.rows
    assert set(read["summary"]["warm"]) == {PEER, OURS, MODERN}
    assert "wall ratio by round" in report.text()
    assert "0.02 million rows, 10 files" in markdown(report)
    ElementTree.fromstring(chart(report))


def test_figures_replace_only_what_is_between_the_markers() -> None:
    page = "above\n<!-- figures: written by python -m bench -->\nold\n<!-- end of figures -->\nbelow\n"
    assert with_figures(page, "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="needs the lines"):
        with_figures("a page without them", "new")


def test_a_turn_leaves_the_table_as_it_was(spark: SparkSession, report: Report) -> None:
    table = telemetry(spark, "bench_lake", SCALE)
    assert totals(spark, table) == report.start
    assert len(spark.sql(f"SELECT * FROM {table}.snapshots").collect()) == 1


def test_the_fingerprint_tells_a_changed_row(spark: SparkSession, report: Report) -> None:
    table = small_telemetry(spark, "bench_lake")
    before = fingerprint(spark, table)
    spark.sql(f"UPDATE {table} SET error_code = 7 WHERE sequence = 11")
    after = fingerprint(spark, table)
    assert before.rows == after.rows
    assert before != after
    reset(spark, table)
    assert fingerprint(spark, table) == before


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 0}, {"files": 12}, {"rows": 20_001}, {"outputs": 7}, {"outputs": 500}],
)
def test_a_scale_that_does_not_divide_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|divide"):
        Scale(**wrong)


def test_the_peer_gets_enough_groups_to_fill_the_cores() -> None:
    assert [groups_to_fill(cores, 4) for cores in (1, 2, 4, 5, 16)] == [1, 1, 1, 2, 4]


def test_the_scale_comes_from_the_environment() -> None:
    assert Scale.from_environment({}) == Scale()
    quick = Scale.from_environment({"BENCH_ROWS": "1000000", "BENCH_FILES": "50", "BENCH_ROUNDS": "3"})
    assert (quick.rows, quick.files, quick.outputs, quick.rounds) == (1_000_000, 50, 5, 3)
