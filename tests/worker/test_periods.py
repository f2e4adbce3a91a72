"""When the time that a partition names is over."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.model.files import KeyKind, PartitionKey
from lakewarden.policy.periods import (
    Formatter,
    NoTime,
    Text,
    WrongFormat,
    as_text,
    counted_end,
    filled,
)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def end(text: str, letters: str | None = None) -> datetime:
    return Formatter(letters).end(Text.of(text))


def keys(**values: str | int | None) -> list[PartitionKey]:
    return [
        PartitionKey(name, name, KeyKind.NUMBER if isinstance(value, int) else KeyKind.TEXT, value)
        for name, value in values.items()
    ]


@pytest.mark.parametrize(
    ("letters", "text", "over"),
    [
        (None, "2024-03-01", at(2024, 3, 2)),
        (None, "2024-3-1", at(2024, 3, 2)),
        (None, "2024-03-01 05:06:07", at(2024, 3, 1, 5, 6, 8)),
        (None, "2024-03-01 05:06:07.123", at(2024, 3, 1, 5, 6, 8)),
        ("yyyyMMdd", "20240301", at(2024, 3, 2)),
        ("yyyyMMdd", "20240228", at(2024, 2, 29)),
        ("yyyyMMdd", "20240229", at(2024, 3, 1)),
        ("yyyyMMdd", "20230228", at(2023, 3, 1)),
        ("yyyyMMdd", "20231231", at(2024, 1, 1)),
        ("yyyyMMddHH", "2024030123", at(2024, 3, 2)),
        ("yyyy-MM-dd-HH", "2024-03-01-05", at(2024, 3, 1, 6)),
        ("yyyy-MM-dd'T'HH:mm", "2024-03-01T05:59", at(2024, 3, 1, 6)),
        ("yyyyMM", "202402", at(2024, 3, 1)),
        ("yyyyMM", "202412", at(2025, 1, 1)),
        ("yyyy", "2024", at(2025, 1, 1)),
        ("yy/M/d", "24/3/1", at(2024, 3, 2)),
        ("uuuu.MM.dd", "2024.03.01", at(2024, 3, 2)),
        ("yyyyMMdd[HH]", "20240301", at(2024, 3, 2)),
        ("yyyyMMdd[HH]", "2024030104", at(2024, 3, 1, 5)),
        ("yyyy-MM-'01'", "2024-02-01", at(2024, 3, 1)),
        ("yyyy''MM", "2024'05", at(2024, 6, 1)),
    ],
)
def test_the_end_of_the_period_counts(letters: str | None, text: str, over: datetime) -> None:
    assert end(text, letters) == over


@pytest.mark.parametrize(
    ("letters", "text"),
    [
        (None, "notadate"),
        (None, ""),
        (None, "__DEFAULT_PARTITION__"),
        (None, "20240301"),
        (None, "2024-03-01 05"),
        (None, "2023-02-29"),
        (None, "2024-13-01"),
        (None, "2024-03-01 24:00:00"),
        (None, " 2024-03-01"),
        (None, "2024-03-01\n"),
        (None, "٢٠٢٤-٠٣-٠١"),
        ("yyyyMMdd", "2024-03-01"),
        ("yyyyMMdd", "202403011"),
        ("yyyyMMdd", "20240230"),
    ],
)
def test_what_cannot_be_read_is_no_time(letters: str | None, text: str) -> None:
    with pytest.raises(NoTime):
        end(text, letters)


@pytest.mark.parametrize(
    "letters",
    ["EEE", "yyyy-MMM", "MM-dd", "yyyy-dd", "HH", "yyyyMd", "yyyyyyMM yyyy", "[yyyy", "yyyy#", "hello"],
)
def test_a_formatter_that_makes_no_sense_is_told(letters: str) -> None:
    with pytest.raises(WrongFormat):
        Formatter(letters).check()


def test_the_end_of_the_calendar_is_never_over() -> None:
    assert end("9999-12-31") == datetime.max.replace(tzinfo=UTC)
    assert counted_end(KeyKind.DAY, 10**9) == datetime.max.replace(tzinfo=UTC)
    assert counted_end(KeyKind.YEAR, 8029) == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "values", "over"),
    [
        ("$year-$month-$day", {"year": "2024", "month": "02", "day": "28"}, at(2024, 2, 29)),
        ("$year-$month-$day", {"year": 2024, "month": 2, "day": 29}, at(2024, 3, 1)),
        ("$year-$month-01", {"year": 2024, "month": 2}, at(2024, 3, 1)),
        ("$year-01-01", {"year": 2024}, at(2025, 1, 1)),
        ("$dt $hour:00:00", {"dt": "2024-03-01", "hour": "7"}, at(2024, 3, 1, 8)),
        ("$dt 00:00:00", {"dt": "2024-03-01"}, at(2024, 3, 2)),
        ("$d-$dd-$ddd", {"d": 2024, "dd": 1, "ddd": 31}, at(2024, 2, 1)),
    ],
)
def test_what_the_columns_fill_in_is_the_length_of_the_period(
    pattern: str, values: dict[str, str | int], over: datetime
) -> None:
    assert Formatter(None).end(filled(pattern, keys(**values))) == over


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("$year-$month-01", {"year": 2024, "month": None}),
        ("$nope-01-01", {"year": 2024}),
        ("2024-01-01", {"year": 1}),
    ],
)
def test_a_pattern_that_a_partition_cannot_fill(pattern: str, values: dict[str, int | None]) -> None:
    with pytest.raises(NoTime):
        Formatter(None).end(filled(pattern, keys(**values)))


@pytest.mark.parametrize(
    ("kind", "value", "over", "text"),
    [
        (KeyKind.HOUR, 474_977, at(2024, 3, 8, 18), "2024-03-08-17"),
        (KeyKind.DAY, 19_782, at(2024, 3, 1), "2024-02-29"),
        (KeyKind.DAY, -1, at(1970, 1, 1), "1969-12-31"),
        (KeyKind.MONTH, 649, at(2024, 3, 1), "2024-02"),
        (KeyKind.YEAR, 54, at(2025, 1, 1), "2024"),
        (KeyKind.MOMENT, 1_709_251_200_000_000, at(2024, 3, 1), "2024-03-01 00:00:00"),
    ],
)
def test_what_a_type_tells(kind: KeyKind, value: int, over: datetime, text: str) -> None:
    assert counted_end(kind, value) == over
    assert as_text(PartitionKey("k", "k", kind, value)) == text


@given(st.dates())
def test_text_and_type_agree(day: object) -> None:
    number = day.toordinal() - 719_163  # type: ignore[attr-defined]
    assert end(f"{day}") == counted_end(KeyKind.DAY, number)
