"""How long something lasts, and when something was, as people write it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakewarden import clock
from lakewarden.errors import UsageError
from lakewarden.policy.values import Kind, Unreadable, read

# Longer than any table lives, and short enough that no calendar ends before it does.
_LONGEST = timedelta(days=36_500)


def duration(value: str | timedelta | None, what: str) -> timedelta | None:
    """`2h`, `30m`, `7d`, or a timedelta; None is for ever."""
    if value is None:
        return None
    try:
        found = value if isinstance(value, timedelta) else _read(value)
        if not timedelta(0) < found <= _LONGEST:
            raise Unreadable
    except (Unreadable, OverflowError) as error:
        raise UsageError(
            reason=f"read {what} {value!r}: it is not how long something lasts",
            hint="write it as 30m, 2h or 7d",
        ) from error
    return found


def _read(text: str) -> timedelta:
    hours = read(Kind.HOURS, text)
    assert isinstance(hours, int | float)
    return timedelta(hours=hours)


def moment(told: str | datetime | None, name: str) -> datetime | None:
    """A moment as ISO 8601 (UTC where it names no zone), or how long ago: `2024-03-01`, `2024-03-01T12:00`, `90d`."""
    if told is None:
        return None
    if isinstance(told, datetime):
        return told if told.tzinfo else told.replace(tzinfo=UTC)
    try:
        found = datetime.fromisoformat(told)
    except ValueError:
        return clock.now() - _ago(told, name)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _ago(told: str, name: str) -> timedelta:
    try:
        return duration(told, name) or timedelta()
    except UsageError:
        raise UsageError(
            reason=f"read {name} {told!r}: it is no moment",
            hint="write it as 2024-03-01, 2024-03-01T12:00 (UTC), or how long ago: 90d",
        ) from None
