"""Computes the time that a partition names, and when its period ends: a day partition ends with the day. Always
UTC.

Typed values (a date, a transform by hour) need no configuration. Text does: the formatter says how the time is
written, with the letters of Paimon and Java, and the pattern says how several columns form one text. The finest
part that a partition column fills is the length of its period: `$year-$month-01` names months, `$dt
$hour:00:00` hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

from lakewarden.model.files import KeyKind, PartitionKey

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The end of the calendar: a partition such as 9999-12-31 never ends.
_NEVER = datetime.max.replace(tzinfo=UTC)

_UNITS = ("year", "month", "day", "hour", "minute", "second", "fraction")
_LETTERS = dict(zip("yMdHmsS", _UNITS, strict=True)) | {"u": "year"}
_TOKEN = re.compile(
    r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>(?P<letter>[A-Za-z])(?P=letter)*)|(?P<other>.)", re.DOTALL
)
_WRITTEN_PLAINLY = re.compile(
    r"(?P<year>[0-9]{1,4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
    r"(?: (?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2}):(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
)


class NoTime(ValueError):
    """This partition names no readable time, and why. Such a partition is kept."""


class WrongFormat(ValueError):
    """The pattern or the formatter itself is wrong, for every partition."""


def counted_end(kind: KeyKind, value: int) -> datetime | None:
    """When the year, month, day or hour, counted from 1970, ends; None for a number that is no time."""
    try:
        match kind:
            case KeyKind.YEAR:
                return _month_start((value + 1) * 12)
            case KeyKind.MONTH:
                return _month_start(value + 1)
            case KeyKind.DAY:
                return _EPOCH + timedelta(days=value + 1)
            case KeyKind.HOUR:
                return _EPOCH + timedelta(hours=value + 1)
            case KeyKind.MOMENT:
                return _EPOCH + timedelta(microseconds=value)
            case _:
                return None
    except (OverflowError, ValueError):
        return _NEVER if value > 0 else None


def _month_start(months_since_epoch: int) -> datetime:
    years, month = divmod(months_since_epoch, 12)
    return datetime.combine(date(1970 + years, month + 1, 1), datetime.min.time(), UTC)


@dataclass(frozen=True, slots=True)
class Text:
    """The text to parse, and which of its letters come from a partition's values."""

    written: str
    varies: tuple[bool, ...]

    @classmethod
    def of(cls, value: str) -> Text:
        return cls(value, (True,) * len(value))


@dataclass(frozen=True)
class Formatter:
    """The format of a time; `letters` None is `2026-03-01` or `2026-03-01 12:00:00`."""

    letters: str | None

    def check(self) -> None:
        """Raises WrongFormat if its letters are not valid."""
        _ = self._expression

    def end(self, text: Text) -> datetime:
        """When the period that the text names ends. NoTime if it cannot be parsed so."""
        match = self._expression.fullmatch(text.written)
        if match is None:
            raise NoTime(f"its value is not written as {self.letters or '2026-03-01 or 2026-03-01 12:00:00'}")
        parts = {unit: digits for unit, digits in match.groupdict().items() if digits is not None}
        units = [unit for unit in parts if any(text.varies[slice(*match.span(unit))])]
        if not units:
            raise NoTime("its values have no part in the time")
        try:
            start = _start(parts)
        except ValueError as error:
            raise NoTime("its value is no date of the calendar") from error
        return _end(start, max(units, key=_UNITS.index))

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return _WRITTEN_PLAINLY if self.letters is None else _compiled(self.letters)


def _compiled(letters: str) -> re.Pattern[str]:
    parts: list[str] = []
    units: list[str] = []
    open_ended = after_number = False
    for token in _TOKEN.finditer(letters):
        if token["letters"] is None:
            parts.append(_literal(token, letters))
            after_number = False
            continue
        unit = _LETTERS.get(token["letter"])
        if unit is None or (unit not in ("year", "fraction") and len(token["letters"]) > 2):
            raise WrongFormat(
                f"{token['letters']!r} in {letters!r} is not understood; known are y M d H m s S"
            )
        if unit in units:
            raise WrongFormat(f"{letters!r} names the {unit} twice")
        width = len(token["letters"])
        if after_number and (open_ended or width == 1):
            raise WrongFormat(
                f"{letters!r} does not tell where the {unit} begins; write every part with all its digits"
            )
        parts.append(f"(?P<{unit}>{_digits(unit, width)})")
        units.append(unit)
        open_ended, after_number = width == 1, True
    if not units or sorted(units, key=_UNITS.index) != list(_UNITS[: len(units)]):
        raise WrongFormat(f"{letters!r} needs a year, and every part between that and its finest")
    try:
        return re.compile("".join(parts))
    except re.error as error:
        raise WrongFormat(f"{letters!r} has a bracket that is not closed, or not open") from error


def _literal(token: re.Match[str], letters: str) -> str:
    if token["quoted"] is not None:
        return re.escape(token["quoted"].replace("''", "'") or "'")
    match token["other"]:
        case "[":
            return "(?:"
        case "]":
            return ")?"
        case "'" | "{" | "}" | "#":
            raise WrongFormat(
                f"{token['other']!r} in {letters!r} is not understood; quote it as in yyyy'T'HH"
            )
        case other:
            return re.escape(other)


def _digits(unit: str, width: int) -> str:
    if width > 1:
        return f"[0-9]{{{width}}}"
    return "[0-9]{1,4}" if unit == "year" else "[0-9]{1,9}" if unit == "fraction" else "[0-9]{1,2}"


def _start(parts: Mapping[str, str]) -> datetime:
    numbers = {unit: int(digits) for unit, digits in parts.items()}
    return datetime(
        numbers["year"] + (2000 if len(parts["year"]) == 2 else 0),
        numbers.get("month", 1),
        numbers.get("day", 1),
        numbers.get("hour", 0),
        numbers.get("minute", 0),
        numbers.get("second", 0),
        tzinfo=UTC,
    )


def _end(start: datetime, unit: str) -> datetime:
    try:
        match unit:
            case "year":
                return start.replace(year=start.year + 1, month=1, day=1, hour=0, minute=0, second=0)
            case "month":
                return _month_start((start.year - 1970) * 12 + start.month)
            case "day":
                return start.replace(hour=0, minute=0, second=0) + timedelta(days=1)
            case "hour":
                return start.replace(minute=0, second=0) + timedelta(hours=1)
            case "minute":
                return start.replace(second=0) + timedelta(minutes=1)
            case _:
                return start + timedelta(seconds=1)
    except (OverflowError, ValueError):
        return _NEVER


def filled(pattern: str, keys: Sequence[PartitionKey]) -> Text:
    """The pattern with the partition's values in place of `$name`. NoTime if a value is null or missing."""
    written, varies, at = "", [], 0
    values = by_name(keys)
    for name, start, end in references(pattern, values):
        value = as_text(values[name])
        if value is None:
            raise NoTime(f"it has no value for {name}")
        written += pattern[at:start] + value
        varies += [False] * (start - at) + [True] * len(value)
        at = end
    rest = pattern[at:]
    return Text(written + rest, tuple(varies + [False] * len(rest)))


def references(pattern: str, known: Mapping[str, PartitionKey]) -> list[tuple[str, int, int]]:
    """Every `$name` of a pattern with its position: the longest name that fits. NoTime for an unknown name."""
    names = sorted(known, key=len, reverse=True)
    places = []
    for dollar in re.finditer(r"\$", pattern):
        name = next((each for each in names if pattern.startswith(each, dollar.end())), None)
        if name is None:
            asked = re.split(r"\W", pattern[dollar.end() :], maxsplit=1)[0]
            raise NoTime(f"it has no partition column {asked!r}")
        places.append((name, dollar.start(), dollar.end() + len(name)))
    return places


def by_name(keys: Sequence[PartitionKey]) -> dict[str, PartitionKey]:
    """The keys by the names of their columns and by their own names, which take precedence."""
    return {each.column: each for each in keys} | {each.name: each for each in keys}


def as_text(key: PartitionKey) -> str | None:
    """A value as people write it; None for null."""
    value = key.value
    if value is None or isinstance(value, str):
        return value
    try:
        match key.kind:
            case KeyKind.YEAR:
                return str(1970 + value)
            case KeyKind.MONTH:
                return f"{_month_start(value):%Y-%m}"
            case KeyKind.DAY:
                return f"{_EPOCH + timedelta(days=value):%Y-%m-%d}"
            case KeyKind.HOUR:
                return f"{_EPOCH + timedelta(hours=value):%Y-%m-%d-%H}"
            case KeyKind.MOMENT:
                return f"{_EPOCH + timedelta(microseconds=value):%Y-%m-%d %H:%M:%S}"
            case _:
                return str(value)
    except (OverflowError, ValueError):
        return str(value)
