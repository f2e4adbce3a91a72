"""Formats numbers for people: sizes with units, counts with separators, durations and ages."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_EXACT = (
    ("TiB", 2**40),
    ("GiB", 2**30),
    ("MiB", 2**20),
    ("TB", 10**12),
    ("GB", 10**9),
    ("MB", 10**6),
    ("KiB", 2**10),
)
_STEPS = ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))


def size(count: float) -> str:
    """`14.2 MB`: at most three digits; units are powers of 1,000, as in policy values."""
    value, unit = float(count), 0
    # 999.5 and more would round to 1,000 of the smaller unit.
    while abs(value) >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or abs(value) >= 99.95 else 1
    return f"{value:,.{digits}f} {_UNITS[unit]}"


def known_size(total: float, files: int, unsized: int | None = None) -> str:
    """The total size of `files` files, for example `7.5 MB (size of 9 files unknown)`. `unsized` is the
    number of files without a known size, where it was counted. Without it, a total of 0 means that no size is
    known: an Iceberg snapshot, for example, does not record the size of its manifest list."""
    unknown = (0 if total else files) if unsized is None else unsized
    if not unknown:
        return size(total)
    if unknown >= files:
        return "size unknown"
    return f"{size(total)} (size of {unknown:,} {'file' if unknown == 1 else 'files'} unknown)"


def exact_size(count: int) -> str:
    """`128MiB`: a size as a policy accepts it, in the largest unit without rounding."""
    for unit, length in _EXACT:
        if count and count % length == 0:
            return f"{count // length:,}{unit}".replace(",", "")
    return str(count)


def exact_hours(hours: float) -> str:
    """`30d`, `6h`: hours as a policy accepts them."""
    if hours and hours % 24 == 0:
        return f"{hours / 24:g}d"
    return f"{hours:g}h" if hours >= 1 or not hours else f"{hours * 60:g}m"


def number(count: int) -> str:
    """`1,234,567`"""
    return f"{count:,}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `1,234 files`"""
    return f"{count:,} {noun if count == 1 else plural or _plural(noun)}"


def _plural(noun: str) -> str:
    ends_like_branch = noun.endswith(("s", "x", "ch", "sh"))
    return noun + ("es" if ends_like_branch else "s")


def average(total: int, count: int) -> str:
    """The average size; a dash if the count is 0."""
    return size(total / count) if count else "–"


def duration(seconds: float) -> str:
    """`0.42 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`"""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    if whole < 86400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two(whole // 86400, "d", whole % 86400 // 3600, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large:,} {large_unit}" + (f" {small} {small_unit}" if small else "")


def age(then: datetime, now: datetime) -> str:
    """`3 hours ago`. A time in the future is shown as `… in the future`: then a clock is wrong."""
    seconds = (now - then).total_seconds()
    if seconds < -5:
        return f"{_span(-seconds)} in the future"
    return "just now" if seconds < 10 else f"{_span(seconds)} ago"


def _span(seconds: float) -> str:
    for length, noun in _STEPS:
        if seconds >= length:
            return counted(int(seconds // length), noun)
    return counted(int(seconds), "second")


def moment(at: datetime) -> str:
    """`2026-11-16 00:30:12 UTC`"""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def percent(part: float, whole: float) -> str:
    """`12 %`; a dash if the whole is 0."""
    return f"{100 * part / whole:.0f} %" if whole else "–"


def some(names: list[str], show: int = 3) -> str:
    """`a, b, c and 4 more`"""
    rest = len(names) - show
    return ", ".join(names[:show]) + (f" and {rest:,} more" if rest > 0 else "")
