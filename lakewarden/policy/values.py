"""Reads and prints one policy value, from TOML, JSON, an environment variable, a table property or `--set k=v`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Sequence
from enum import StrEnum

from lakewarden.policy.filters import WrongFilter, parse

PolicyValue = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None


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
_HOURS = {"": 1.0, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
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
    number, unit = _quantity(value, _HOURS)
    return _whole(float(number) * _HOURS[unit])


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
