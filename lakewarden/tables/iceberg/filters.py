"""Translates a filter into the JSON of Iceberg's expressions, with each literal in the type of its column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from math import inf
from typing import Any as Json
from typing import assert_never
from uuid import UUID
from zoneinfo import ZoneInfo

from lakewarden.policy.filters import (
    All,
    Any,
    Compare,
    Filter,
    IsNull,
    Literal,
    LiteralKind,
    Not,
    OneOf,
    StartsWith,
    WrongFilter,
    parse,
)

_OPERATORS = {"=": "eq", "<>": "not-eq", "<": "lt", "<=": "lt-eq", ">": "gt", ">=": "gt-eq"}
_OPPOSITES = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_WHOLE = {"int": 31, "long": 63}
# The smallest values (as doubles) that round to infinity in each type.
_INFINITE = {"float": 2.0**128 - 2.0**103, "double": inf}
# A decimal column has up to 38 digits; Python's default is 28.
_DIGITS = Context(prec=50)


def expression(where: str, schema_json: str, zone: str) -> str:
    """The JSON of the expression. `zone` applies to timestamps without a zone. WrongFilter if it does not fit the table."""
    columns = dict(_columns(json.loads(schema_json)["fields"]))
    return json.dumps(_Binder(columns, ZoneInfo(zone)).bind(parse(where)))


def _columns(fields: Sequence[Mapping[str, Json]], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All columns as (full name, type), including fields of structs, but not of lists and maps."""
    for field in fields:
        name, type_ = f"{prefix}{field['name']}", field["type"]
        if isinstance(type_, str):
            yield name, type_
        elif type_["type"] == "struct":
            yield name, "struct"
            yield from _columns(type_["fields"], f"{name}.")
        else:
            yield name, type_["type"]


class _Binder:
    def __init__(self, columns: Mapping[str, str], zone: ZoneInfo) -> None:
        self._columns = columns
        self._zone = zone

    def bind(self, term: Filter, *, negated: bool = False) -> Json:
        """Translates one term. Negations move down to the comparisons. As in SQL, a comparison with null is never true."""
        match term:
            case All(terms) | Any(terms):
                word = "and" if isinstance(term, All) != negated else "or"
                return _halves(word, [self.bind(term, negated=negated) for term in terms])
            case Not(inner):
                return self.bind(inner, negated=not negated)
            case IsNull(column):
                return {"type": "not-null" if negated else "is-null", "term": self._named(column)[0]}
            case StartsWith(column, prefix):
                name, type_ = self._named(column)
                if type_ != "string":
                    raise WrongFilter(f"column {name} is {type_}: only strings can be compared by prefix")
                return _of_values("starts-with", name, negated, value=prefix)
            case OneOf(column, literals):
                name, type_ = self._named(column)
                return _of_values(
                    "in", name, negated, values=[self._value(name, type_, literal) for literal in literals]
                )
            case Compare(column, operator, literal):
                name, type_ = self._named(column)
                value = self._value(name, type_, literal)
                symbol = _OPERATORS[_OPPOSITES[operator] if negated else operator]
                return _no_null(name, {"type": symbol, "term": name, "value": value})
            case _:
                assert_never(term)

    def _named(self, column: str) -> tuple[str, str]:
        """The column's name as the table spells it, and its type. Upper and lower case are the same, as in Spark."""
        if column in self._columns:
            return column, self._columns[column]
        alike = [each for each in self._columns if each.lower() == column.lower()]
        if len(alike) != 1:
            known = ", ".join(list(self._columns)[:20])
            raise WrongFilter(f"the table has no column {column}; it has {known}")
        return alike[0], self._columns[alike[0]]

    def _value(self, column: str, type_: str, literal: Literal) -> Json:
        try:
            return self._converted(type_, literal)
        except (ValueError, InvalidOperation, ArithmeticError):
            shown = f"{literal.of} {literal.text!r}" if literal.of is not LiteralKind.NUMBER else literal.text
            raise WrongFilter(
                f"column {column} is {type_}, and {shown} is not a value of that type"
            ) from None

    def _converted(self, type_: str, literal: Literal) -> Json:
        """The literal in the JSON form of the type. ValueError if it is not a value of that type."""
        text = literal.text.strip() if type_ != "string" else literal.text
        if type_ == "boolean" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if literal.of is LiteralKind.BOOL:
            raise ValueError
        if type_ == "string" and literal.of is not LiteralKind.NUMBER:
            return text
        if type_ in ("int", "long", "float", "double") or type_.startswith("decimal"):
            return _number(type_, literal, text)
        if literal.of is LiteralKind.NUMBER:
            raise ValueError
        if type_ == "date":
            return _day(text)
        if type_.startswith("timestamp"):
            return self._moment(type_, text)
        if type_ == "uuid":
            return str(UUID(text))
        raise ValueError

    def _moment(self, type_: str, text: str) -> str:
        parsed = datetime.fromisoformat(text)
        if type_.startswith("timestamptz"):
            moment = parsed if parsed.tzinfo else parsed.replace(tzinfo=self._zone)
            return moment.astimezone(UTC).isoformat()
        if parsed.tzinfo:
            raise ValueError
        return parsed.isoformat()


def _number(type_: str, literal: Literal, text: str) -> Json:
    if literal.of not in (LiteralKind.NUMBER, LiteralKind.TEXT):
        raise ValueError
    number = Decimal(text)
    if not number.is_finite() or abs(number.adjusted()) > 400:
        raise ValueError
    if type_ in _WHOLE:
        if number != number.to_integral_value() or not -(2 ** _WHOLE[type_]) <= number < 2 ** _WHOLE[type_]:
            raise ValueError
        return int(number)
    if type_ in _INFINITE:
        value = float(number)
        if abs(value) >= _INFINITE[type_]:  # JSON has no infinity
            raise ValueError
        return value
    scale = int(type_.rstrip(")").rpartition(",")[2])
    fitted = number.quantize(Decimal(1).scaleb(-scale), context=_DIGITS)
    if fitted != number:
        raise ValueError
    return f"{fitted:f}"


def _day(text: str) -> str:
    """The date in the text. A timestamp is accepted only if it is midnight."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo or (moment.hour, moment.minute, moment.second, moment.microsecond) != (0, 0, 0, 0):
        raise ValueError
    return date(moment.year, moment.month, moment.day).isoformat()


def _of_values(word: str, column: str, negated: bool, **values: Json) -> Json:
    return _no_null(column, {"type": f"not-{word}" if negated else word, "term": column, **values})


def _no_null(column: str, term: Mapping[str, Json]) -> Json:
    """Adds `is not null`: in the library, null is less than every value and unequal to it. Equality does not need it."""
    if term["type"] in ("eq", "in", "starts-with"):
        return term
    return {"type": "and", "left": {"type": "not-null", "term": column}, "right": term}


def _halves(word: str, terms: Sequence[Json]) -> Json:
    """Combines the terms into a balanced tree, so that its depth stays small."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return {"type": word, "left": _halves(word, terms[:half]), "right": _halves(word, terms[half:])}
