"""How long something lasts, as people write it."""

from __future__ import annotations

from datetime import timedelta

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
