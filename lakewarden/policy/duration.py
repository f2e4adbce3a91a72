"""Parses durations and points in time as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.policy.values import InvalidValue, ValueType, read

# Longer than any table exists, and short enough to stay inside every calendar.
_LONGEST = timedelta(days=36_500)
_YEAR = re.compile(r"[0-9]{4}")


def duration(value: str | timedelta | None, what: str) -> timedelta | None:
    """`2h`, `30m`, `7d`, or a timedelta; None means forever."""
    if value is None:
        return None
    try:
        length = value if isinstance(value, timedelta) else _read(value)
        if not timedelta(0) < length <= _LONGEST:
            raise InvalidValue
    except (InvalidValue, OverflowError) as error:
        raise UsageError(
            reason=f"read {what} {value!r}: it is not how long something lasts",
            hint="write it as 30m, 2h or 7d",
        ) from error
    return length


def _read(text: str) -> timedelta:
    hours = read(ValueType.HOURS, text)
    assert isinstance(hours, int | float)
    return timedelta(hours=hours)


def moment(told: str | datetime | None, name: str) -> datetime | None:
    """A time in UTC from ISO 8601 (UTC without a zone), a year, or an age: `2024-03-01T12:00`, `2024`, `90d`."""
    if told is None:
        return None
    try:
        at = told if isinstance(told, datetime) else _moment(told.strip())
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (InvalidValue, ValueError, OverflowError):  # the last: in UTC it is outside the calendar
        raise UsageError(
            reason=f"read {name} {str(told)!r}: it is no moment",
            hint="write it as 2024, 2024-03-01, 2024-03-01T12:00 (UTC), or how long ago with its unit: 90d, 12h",
        ) from None


def _moment(text: str) -> datetime:
    if _YEAR.fullmatch(text):
        return datetime(int(text), 1, 1, tzinfo=UTC)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # A number alone could mean hours, days, or seconds since 1970.
        if text[-1:].isdigit():
            raise
    ago = _read(text)
    if not timedelta(0) < ago <= _LONGEST:
        raise InvalidValue
    return clock.now() - ago
