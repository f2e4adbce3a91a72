"""The outcomes of `make interop`: what Lakewarden broke is red, and never a limit or a part that is not to be had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.interop import flink_cases, trino_cases
from tests.interop.places import FILE
from tests.interop.report import Outcome, Report


class Trino:
    """Answers in turn; an error is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def create_catalog(self, name: str, properties: Any) -> None:
        pass

    def sql(self, query: str) -> Any:
        answer = self.answers.pop(0) if query.startswith("select") else []
        if isinstance(answer, Exception):
            raise answer
        return answer


UNREADABLE = RuntimeError("cannot read deletion vectors")
RIGHT, WRONG = [[90, 4500]], [[100, 4950]]


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (UNREADABLE, RIGHT, Outcome.PASSED),
        (UNREADABLE, UNREADABLE, Outcome.RED),
        (RIGHT, RuntimeError("no such file"), Outcome.RED),
        (UNREADABLE, WRONG, Outcome.RED),
    ],
)
def test_trino_must_read_what_compact_deletes_left(
    spark: SparkSession, tmp_path: Path, before: Any, after: Any, outcome: Outcome
) -> None:
    report = Report(tmp_path / "red")
    with report.case("trino", "version 3", FILE) as result:
        result.text = trino_cases.vectors(spark, Trino(before, after), tmp_path / "lake", FILE)  # type: ignore[arg-type]
    assert result.outcome is outcome, result.text


def flink_run(report: Report, monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    """Every case of Flink meets a file that is missing: before Flink has started, or in the case itself."""

    def missing(*_: Any) -> str:
        raise FileNotFoundError("gone.parquet")

    @contextmanager
    def flink(folder: Path) -> Iterator[object]:
        yield object() if starts else missing()

    monkeypatch.setattr(flink_cases, "flink", flink)
    monkeypatch.setattr(flink_cases, "iceberg_case", missing)
    monkeypatch.setattr(flink_cases, "paimon_case", missing)
    flink_cases.run(report, object(), report.details.parent)  # type: ignore[arg-type]


def test_a_file_that_a_case_of_flink_misses_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(tmp_path / "red")
    flink_run(report, monkeypatch, starts=True)
    assert {each.outcome for each in report.results} == {Outcome.RED}


def test_a_flink_that_does_not_start_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Report(tmp_path / "red")
    flink_run(report, monkeypatch, starts=False)
    assert {each.outcome for each in report.results} == {Outcome.ABSENT} and not report.red
