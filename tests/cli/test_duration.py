"""Moments as people write them: a year is no number of hours, and what no calendar has is refused with the way out."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.policy.values import moment


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("2024", datetime(2024, 1, 1, tzinfo=UTC)),
        (" 2024 ", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-03-01", datetime(2024, 3, 1, tzinfo=UTC)),
        ("20240301", datetime(2024, 3, 1, tzinfo=UTC)),
        ("2024-03-01T12:00+02:00", datetime(2024, 3, 1, 10, tzinfo=UTC)),
        (datetime(2024, 3, 1), datetime(2024, 3, 1, tzinfo=UTC)),
    ],
)
def test_a_moment(told: str | datetime, meant: datetime) -> None:
    found = moment(told, "since")
    assert found == meant and found.tzinfo is UTC


def test_how_long_ago() -> None:
    found = moment("36h", "since")
    assert found is not None and abs(clock.now() - timedelta(hours=36) - found) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "told",
    ["90", "2024.5", "1_000", "20244", "0000", "\u0662\u0660\u0662\u0664", "0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00",
     datetime.fromisoformat("0001-01-01T00:00+14:00"), "99999999d", "-5d", "0d", "", "soon", "inf"],
)  # fmt: skip
def test_what_is_no_moment_is_refused_with_a_hint(told: str | datetime) -> None:
    with pytest.raises(UsageError, match=r"read since .* it is no moment") as refused:
        moment(told, "since")
    assert "90d, 12h" in str(refused.value.hint)


@given(st.text())
def test_any_text_is_a_moment_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert moment(text, "since") is not None
