"""Parses the filters that people write: comparisons of columns with literals, and nothing that an engine would have to run.

    day >= date '2026-01-01' and (region in ('eu', 'us') or not name like 'test-%')

Function calls, arithmetic, subqueries and comparisons of two columns are refused; the message names the unsupported word.
So no filter can overload a driver. Its length, depth and number of terms are limited too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from lakewarden.errors import UsageError

MOST_LETTERS = 20_000
MOST_TERMS = 1_000
MOST_DEPTH = 50

ALLOWED = (
    "a filter compares columns with literals: =, <>, <, <=, >, >=, in, between, like 'prefix%', is null; "
    "joined by and, or, not"
)


class WrongFilter(ValueError):
    """A filter that this parser does not accept; its text names the unsupported word and what is allowed."""


class LiteralKind(StrEnum):
    """The kind of a literal."""

    TEXT = "text"
    NUMBER = "number"
    BOOL = "true or false"
    DATE = "date"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Literal:
    of: LiteralKind
    text: str


@dataclass(frozen=True, slots=True)
class Compare:
    """`operator` is one of = <> < <= > >=."""

    column: str
    operator: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class OneOf:
    column: str
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class StartsWith:
    column: str
    prefix: str


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class Not:
    term: Filter


@dataclass(frozen=True, slots=True)
class All:
    terms: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Any:
    terms: tuple[Filter, ...]


Filter = Compare | OneOf | StartsWith | IsNull | Not | All | Any

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>'(?:[^']|'')*')
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<name>(?:[^\W\d]\w*|`[^`]+`)(?:\.(?:[^\W\d]\w*|`[^`]+`))*)
    | (?P<sign><>|!=|<=|>=|==|[=<>(),+-])
    )""",
    re.VERBOSE,
)
_WORDS = frozenset({"and", "or", "not", "in", "between", "is", "null", "like", "true", "false"})
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SPELT = {"==": "=", "!=": "<>"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # string, number, name, word, sign, end
    text: str
    at: int


def parse(text: str) -> Filter:
    """The filter as a tree, or WrongFilter."""
    if len(text) > MOST_LETTERS:
        raise WrongFilter(f"it has {len(text):,} letters; at most {MOST_LETTERS:,} are read")
    return _Parser(list(_tokens(text))).whole()


def check(text: str) -> None:
    """Raises UsageError for a filter that cannot be parsed. Checks only the text: whether its columns exist
    depends on the table.
    """
    try:
        parse(text)
    except WrongFilter as error:
        raise wrong_filter(f"found {text[:200]!r}; {error}") from error


def wrong_filter(reason: str) -> UsageError:
    return UsageError(
        reason=f"read --row-filter: {reason}",
        hint="compare the table's columns with literals, such as \"day = date'2024-03-01'\"",
    )


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            rest = text[at:].lstrip()
            raise WrongFilter(
                f"{rest[:1]!r} at letter {len(text) - len(rest) + 1} is not understood; {ALLOWED}"
            )
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind == "name" and word.lower() in _WORDS:
            kind, word = "word", word.lower()
        yield _Token(kind, word, match.start(match.lastgroup) + 1)
        at = match.end()
    yield _Token("end", "the end", end + 1)


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._terms = 0

    def whole(self) -> Filter:
        tree = self._any()
        if self._now.kind != "end":
            raise self._wrong("is not expected here")
        return tree

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _wrong(self, what: str, token: _Token | None = None) -> WrongFilter:
        token = token or self._now
        return WrongFilter(f"{token.text!r} at letter {token.at} {what}; {ALLOWED}")

    def _take(self) -> _Token:
        token = self._now
        self._next += token.kind != "end"
        return token

    def _accept(self, *texts: str) -> bool:
        if self._now.kind in ("word", "sign") and self._now.text in texts:
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._wrong(f"was found, but {text!r} is expected")

    def _any(self) -> Filter:
        return _joined(Any, self._several("or", self._all))

    def _all(self) -> Filter:
        return _joined(All, self._several("and", self._not))

    def _several(self, word: str, one: Callable[[], Filter]) -> list[Filter]:
        parts = [one()]
        while self._accept(word):
            parts.append(one())
        return parts

    def _not(self) -> Filter:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise WrongFilter(f"it is nested more than {MOST_DEPTH} deep")
        try:
            if self._accept("not"):
                return Not(self._not())
            if self._accept("("):
                tree = self._any()
                self._expect(")")
                return tree
            return self._term()
        finally:
            self._depth -= 1

    def _count(self) -> None:
        self._terms += 1
        if self._terms > MOST_TERMS:
            raise WrongFilter(f"it has more than {MOST_TERMS:,} comparisons")

    def _term(self) -> Filter:
        self._count()
        if not self._is_column():
            literal = self._literal()
            operator = self._operator()
            return Compare(self._column(), _FLIPPED[operator], literal)
        column = self._column()
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("null")
            return Not(IsNull(column)) if negated else IsNull(column)
        if self._accept("not"):
            return Not(self._ranged(column))
        if self._now.kind == "word" and self._now.text in ("in", "between", "like"):
            return self._ranged(column)
        return Compare(column, self._operator(), self._literal())

    def _ranged(self, column: str) -> Filter:
        if self._accept("in"):
            self._expect("(")
            literals = [self._literal()]
            while self._accept(","):
                self._count()
                literals.append(self._literal())
            self._expect(")")
            return OneOf(column, tuple(literals))
        if self._accept("between"):
            least = self._literal()
            self._expect("and")
            return All((Compare(column, ">=", least), Compare(column, "<=", self._literal())))
        self._expect("like")
        return self._like(column)

    def _like(self, column: str) -> Filter:
        token, literal = self._now, self._literal()
        prefix = literal.text.removesuffix("%")
        if literal.of is not LiteralKind.TEXT or any(each in prefix for each in "%_") or not prefix:
            raise self._wrong("is not the beginning of a text: like 'prefix%'", token)
        is_whole = prefix == literal.text
        return Compare(column, "=", literal) if is_whole else StartsWith(column, prefix)

    def _is_column(self) -> bool:
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        typed = self._now.text.lower() in ("date", "timestamp") and following.kind == "string"
        return self._now.kind == "name" and not typed

    def _column(self) -> str:
        token = self._take()
        if token.kind != "name":
            raise self._wrong("stands where a column belongs", token)
        if self._now.kind == "sign" and self._now.text == "(":
            raise self._wrong("is called as a function", token)
        return re.sub(r"`([^`]+)`", r"\1", token.text)

    def _operator(self) -> str:
        token = self._take()
        operator = _SPELT.get(token.text, token.text)
        if token.kind != "sign" or operator not in _FLIPPED:
            raise self._wrong("stands where a comparison belongs", token)
        return operator

    def _literal(self) -> Literal:
        token = self._take()
        match token.kind:
            case "string":
                return Literal(LiteralKind.TEXT, _unquoted(token))
            case "number":
                return Literal(LiteralKind.NUMBER, token.text)
            case "sign" if token.text in "+-" and self._now.kind == "number":
                return Literal(LiteralKind.NUMBER, token.text.strip("+") + self._take().text)
            case "word" if token.text in ("true", "false"):
                return Literal(LiteralKind.BOOL, token.text)
            case "name" if token.text.lower() in ("date", "timestamp") and self._now.kind == "string":
                return Literal(LiteralKind(token.text.lower()), _unquoted(self._take()))
            case "name" if self._now.kind == "sign" and self._now.text == "(":
                raise self._wrong("is called as a function", token)
            case _:
                raise self._wrong("stands where a literal belongs (a text in '…', a number, date '…')", token)


def _unquoted(token: _Token) -> str:
    if "\\" in token.text:
        raise WrongFilter(
            f"{token.text} at letter {token.at} has a backslash, which engines read differently"
        )
    return token.text[1:-1].replace("''", "'")


def _joined(kind: type[All] | type[Any], terms: list[Filter]) -> Filter:
    return terms[0] if len(terms) == 1 else kind(tuple(terms))
