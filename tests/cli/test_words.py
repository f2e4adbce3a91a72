"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.formatting import (
    age,
    average,
    counted,
    duration,
    exact_hours,
    exact_size,
    known_size,
    moment,
    percent,
    size,
    some,
)
from lakewarden.policy.values import ValueType, read

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (20_140, "20.1 KB"),
        (99_949, "99.9 KB"),
        (99_960, "100 KB"),
        (999_400, "999 KB"),
        (999_600, "1.0 MB"),
        (134_217_728, "134 MB"),
        (1_500_000_000, "1.5 GB"),
        (2 * 10**18, "2,000 PB"),
    ],
)
def test_size(count: int, shown: str) -> None:
    assert size(count) == shown


@given(st.integers(0, 10**17))
def test_size_never_has_more_than_three_digits(count: int) -> None:
    digits = size(count).split(" ")[0].replace(".", "")
    assert len(digits) <= 3


@given(st.integers(1, 2**62))
def test_an_exact_size_is_read_back_as_the_same_number(count: int) -> None:
    assert read(ValueType.BYTES, exact_size(count)) == count


@pytest.mark.parametrize(
    ("hours", "shown"), [(0, "0h"), (6, "6h"), (24, "1d"), (720, "30d"), (36, "36h"), (0.5, "30m")]
)
def test_exact_hours_are_read_back(hours: float, shown: str) -> None:
    assert exact_hours(hours) == shown
    assert read(ValueType.HOURS, shown) == hours


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.424, "0.42 s"),
        (3.81, "3.8 s"),
        (59.4, "59 s"),
        (59.7, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (86400 * 3 + 3600 * 4, "3 d 4 h"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("ago", "shown"),
    [
        (timedelta(seconds=3), "just now"),
        (timedelta(seconds=56), "56 seconds ago"),
        (timedelta(minutes=1, seconds=30), "1 minute ago"),
        (timedelta(hours=3), "3 hours ago"),
        (timedelta(days=45), "1 month ago"),
        (timedelta(days=800), "2 years ago"),
        (timedelta(hours=-2), "2 hours in the future"),
    ],
)
def test_age(ago: timedelta, shown: str) -> None:
    assert age(NOW - ago, NOW) == shown


def test_counts_and_shares() -> None:
    assert counted(1, "file") == "1 file"
    assert counted(1234, "file") == "1,234 files"
    assert counted(2, "branch") == "2 branches"
    assert average(1000, 0) == "–"
    assert percent(1, 0) == "–"
    assert percent(40, 100) == "40 %"
    assert some(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert some(["a"]) == "a"


def test_moments_are_told_in_utc() -> None:
    assert moment(datetime.fromisoformat("2026-11-16T01:30:12+02:00")) == "2026-11-15 23:30:12 UTC"


def test_a_sum_of_sizes_that_nobody_knows_is_not_told_as_nothing() -> None:
    assert known_size(0, 15) == known_size(0, 15, 15) == "size unknown"
    assert known_size(1_500_000, 20, 15) == "1.5 MB (size of 15 files unknown)"
    assert known_size(1_500_000, 20) == known_size(1_500_000, 20, 0) == "1.5 MB"
    assert known_size(0, 0) == known_size(0, 3, 0) == "0 B", "no file, and files that are empty"
