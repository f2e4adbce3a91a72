"""Reads and prints one policy value, from TOML, JSON, an environment variable, a table property or `--set k=v`.

Also translates a table's native options to policy keys, and parses durations and points in time as people
write them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from lakewarden import clock
from lakewarden.errors import PolicyError, UsageError
from lakewarden.policy.filters import WrongFilter, parse

PolicyValue = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None

REF_AGE = "history.expire.max-ref-age-ms"


class ValueType(StrEnum):
    """The type of a key's value; the enum values are the words of the docs and messages."""

    BOOL = "true or false"
    COUNT = "whole number"
    BYTES = "size"
    HOURS = "hours"
    RATIO = "ratio"
    PERCENT = "percent"
    CHOICE = "choice"
    TEXT = "text"
    FILTER = "filter"
    SPEC = "current, keep or a spec id"
    COLUMNS = "columns"
    SORT = "sort columns"
    NAMES = "names"
    IDS = "snapshot ids"


_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_HOUR_UNITS = {"": 1.0, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_QUANTITY = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_SORT_TERM = re.compile(r"(`[^`]+`|[^\s`]+)(\s+(asc|desc))?(\s+nulls\s+(first|last))?", re.IGNORECASE)


class InvalidValue(ValueError):
    """A value of the wrong form; the key turns it into a message with the allowed values."""


def read(kind: ValueType, found: object) -> PolicyValue:
    """The value in its one normal form, so that equal settings compare and hash alike."""
    return _READERS[kind](found)


def is_none(found: object) -> bool:
    """`none` unsets an optional key; TOML and table properties have no null."""
    return found is None or (isinstance(found, str) and found.strip().lower() == "none")


def show(value: PolicyValue) -> str:
    """A value as text that reads back to the same value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return _show_list(value)
    return str(value)


def _show_list(items: Sequence[str | int]) -> str:
    """Separated by commas if that reads back to the same names, else as JSON."""
    text = ", ".join(map(str, items))
    misread = text.startswith("[") or is_none(text) or any("," in str(each) for each in items)
    return json.dumps(list(items)) if misread else text


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = _text(value).lower()
    if text not in _TRUE | _FALSE:
        raise InvalidValue
    return text in _TRUE


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(_text(value))
    except ValueError as error:
        raise InvalidValue from error


def _bytes(value: object) -> int:
    if not isinstance(value, str):
        return _count(value)
    number, unit = _quantity(value, _UNITS)
    factor = _UNITS[unit]
    # Whole numbers stay integers: a float would round sizes above 2**53.
    return int(number) * factor if "." not in number else round(float(number) * factor)


def _hours(value: object) -> int | float:
    if not isinstance(value, str):
        return _number(value)
    number, unit = _quantity(value, _HOUR_UNITS)
    return _whole(float(number) * _HOUR_UNITS[unit])


def _quantity(text: str, units: Container[str]) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise InvalidValue
    return match[1].replace("_", ""), match[2].lower()


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidValue
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise InvalidValue from error
    if not math.isfinite(number):
        raise InvalidValue
    return _whole(number)


def _whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def _ratio(value: object) -> float:
    return float(_number(value))


def _percent(value: object) -> int | float:
    return _number(value.strip().removesuffix("%") if isinstance(value, str) else value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue
    return value.strip()


def _filter(value: object) -> str:
    text = _text(value)
    try:
        parse(text)
    except WrongFilter as error:
        raise InvalidValue(str(error)) from error
    return text


def _choice(value: object) -> str:
    return _text(value).lower()


def _spec(value: object) -> int | str:
    if isinstance(value, str) and value.strip().lower() in ("current", "keep"):
        return value.strip().lower()
    return _count(value)


def _items(value: object) -> Sequence[object]:
    """A list unchanged; text as a JSON list (for names with commas) or separated by commas."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    text = _text(value)
    if not text.startswith("["):
        return text.split(",")
    try:
        parsed: list[object] = json.loads(text)
    except ValueError as error:
        raise InvalidValue from error
    return parsed


def _names(value: object) -> tuple[str, ...]:
    names = tuple(_text(each) for each in _items(value))
    if not names or len(set(names)) != len(names):
        raise InvalidValue
    return names


def _sort(value: object) -> tuple[str, ...]:
    terms = tuple(" ".join(_text(each).split()) for each in _items(value))
    if not terms or not all(_SORT_TERM.fullmatch(term) for term in terms):
        raise InvalidValue
    return terms


def _ids(value: object) -> tuple[int, ...]:
    # An empty list is refused: read as "not set", it would mean every snapshot past the window.
    ids = tuple(_count(each) for each in _items(value))
    if not ids:
        raise InvalidValue
    return tuple(dict.fromkeys(ids))


_READERS: dict[ValueType, Callable[[object], PolicyValue]] = {
    ValueType.BOOL: _bool,
    ValueType.COUNT: _count,
    ValueType.BYTES: _bytes,
    ValueType.HOURS: _hours,
    ValueType.RATIO: _ratio,
    ValueType.PERCENT: _percent,
    ValueType.CHOICE: _choice,
    ValueType.TEXT: _text,
    ValueType.FILTER: _filter,
    ValueType.SPEC: _spec,
    ValueType.COLUMNS: _names,
    ValueType.SORT: _sort,
    ValueType.NAMES: _names,
    ValueType.IDS: _ids,
}

_KEYS = {
    REF_AGE: "snapshot_ref_retention_hours",
    "snapshot.time-retained": "snapshot_retention_hours",
    "snapshot.num-retained.min": "snapshot_min_retained",
    "snapshot.num-retained.max": "snapshot_max_retained",
    "snapshot.expire.limit": "snapshot_expire_limit",
    "partition.expiration-time": "partition_ttl_hours",
    "partition.expiration-strategy": "partition_expiry_strategy",
    "partition.timestamp-formatter": "partition_time_formatter",
    "partition.timestamp-pattern": "partition_time_pattern",
    "partition.expiration-max-num": "partition_expire_limit",
}
_DURATIONS = ("snapshot.time-retained", "partition.expiration-time")
# A time shorter than the policy allows becomes the shortest allowed one: nothing is dropped earlier than the table says.
_LEAST = {"partition.expiration-time": 1.0, REF_AGE: 1 / 60}
_MILLIS_OF_AN_HOUR = 3_600_000
_MANY_HOURS = 24 * 365 * 1000
_DURATION = re.compile(r"^\s*(\d+)\s*([a-zµ]*)\s*$")
_OPTION_HOURS = {
    **dict.fromkeys(("d", "day", "days"), 24.0),
    **dict.fromkeys(("h", "hour", "hours"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 1 / 60),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1 / 3_600),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1 / 3_600_000),
    **dict.fromkeys(("µs", "micro", "micros", "microsecond", "microseconds"), 1 / 3_600_000_000),
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1 / 3_600_000_000_000),
}


def from_options(properties: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Option, policy key and value, for every option that is set.

    The options are Paimon's, and the one Iceberg option that drops something; Iceberg's others only keep
    more, and expire reads them itself. Every layer of ours overrides them.
    """
    for option, key in _KEYS.items():
        if option in properties:
            text = properties[option]
            if option == REF_AGE:
                yield from _ref_age(text)
                continue
            yield option, key, _option_hours(option, text) if option in _DURATIONS else text


def _ref_age(text: str) -> Iterator[tuple[str, str, object]]:
    """An age longer than the policy can express means never. An unreadable one is ignored here: expire refuses it by name."""
    if not text.isdecimal() or not text.isascii() or not int(text):
        return
    hours = max(int(text) / _MILLIS_OF_AN_HOUR, _LEAST[REF_AGE])
    yield REF_AGE, _KEYS[REF_AGE], "none" if hours > _MANY_HOURS else hours


def _option_hours(option: str, text: str) -> float:
    match = _DURATION.match(text.lower())
    if match is None or match[2] not in _OPTION_HOURS:
        raise PolicyError(
            key=option, reason=f"found {text!r} in the table's options; write a duration such as 7 d or 36 h"
        )
    return max(int(match[1]) * _OPTION_HOURS[match[2]], _LEAST.get(option, 0.0))


# Longer than any table exists, and short enough to stay inside every calendar.
_LONGEST = timedelta(days=36_500)
_YEAR = re.compile(r"[0-9]{4}")


def duration(value: str | timedelta | None, what: str) -> timedelta | None:
    """Read a duration: `2h`, `30m`, `7d` or a timedelta. None stays None: no end. `what` names the value in the error."""
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
