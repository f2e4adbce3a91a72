"""Filters are read by us: what is no comparison of a column with a literal never reaches an engine."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from lakewarden.errors import PolicyError, UsageError
from lakewarden.policy.filters import MOST_DEPTH, MOST_TERMS, WrongFilter, check, parse
from lakewarden.policy.keys import key
from lakewarden.tables.iceberg.filters import expression

TYPES = {
    "id": "int",
    "big": "long",
    "f": "double",
    "price": "decimal(9, 2)",
    "wide": "decimal(38, 6)",
    "small": "float",
    "name": "string",
    "ok": "boolean",
    "day": "date",
    "at": "timestamp",
    "then": "timestamptz",
    "key": "uuid",
    "raw": "binary",
}
SCHEMA = json.dumps(
    {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            *(
                {"id": number, "name": name, "required": False, "type": type_}
                for number, (name, type_) in enumerate(TYPES.items(), 1)
            ),
            {
                "id": 50,
                "name": "Place",
                "required": False,
                "type": {
                    "type": "struct",
                    "fields": [{"id": 51, "name": "city", "required": False, "type": "string"}],
                },
            },
        ],
    }
)


def bound(where: str, zone: str = "UTC") -> Any:
    return json.loads(expression(where, SCHEMA, zone))


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("levenshtein(repeat('a',100000000),repeat('b',100000000)) > 1", "levenshtein"),
        ("id > length(repeat('a', 100000000))", "length"),
        ("id = 1 or reflect('java.lang.Runtime', 'x') = 'y'", "reflect"),
        ("id = (select max(id) from t)", "("),
        ("id in (select 1)", "select"),
        ("id + 1 > 2", "+"),
        ("id > other", "other"),
        ("id = 1; drop table t", ";"),
        ("id = 1 -- more", "-"),
        ("id", "the end"),
        ("true", "the end"),
        ("exists (select 1)", "exists"),
        ("name like '%a%'", "%a%"),
        ("name like 'a_b%'", "a_b%"),
        ("name like '%'", "%"),
        ("name rlike 'a'", "rlike"),
        ("cast(id as string) = '1'", "cast"),
        ("case when id = 1 then true end", "when"),
        ("name = 'a' || 'b'", "|"),
        ('name = "a"', '"'),
        ("name = 'a\\b'", "backslash"),
        ("name = 'open", "'"),
        ("id <=> 1", ">"),
        ("id = 1 id = 2", "id"),
        ("(id = 1", "the end"),
        ("", "the end"),
    ],
)
def test_everything_else_is_refused_by_the_word_that_is_too_much(where: str, word: str) -> None:
    began = time.monotonic()
    with pytest.raises(WrongFilter) as refused:
        parse(where)
    assert word in str(refused.value)
    assert time.monotonic() - began < 1
    with pytest.raises(UsageError, match="row-filter"):
        check(where)
    with pytest.raises(PolicyError, match="rewrite_where"):
        key("rewrite_where").parse(where, "call")


@pytest.mark.parametrize(
    "where",
    [
        "(" * 100_000,
        "not " * (MOST_DEPTH + 1) + "id = 1",
        "(" * (MOST_DEPTH + 1) + "id = 1" + ")" * (MOST_DEPTH + 1),
        " or ".join(["id=1"] * (MOST_TERMS + 1)),
        f"id in ({','.join(['1'] * (MOST_TERMS + 1))})",
    ],
    ids=["long", "not", "nested", "terms", "in"],
)
def test_length_depth_and_terms_are_bounded(where: str) -> None:
    with pytest.raises(WrongFilter):
        parse(where)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("id = 1", {"type": "eq", "term": "id", "value": 1}),
        ("1 = id", {"type": "eq", "term": "id", "value": 1}),
        ("ID == '1'", {"type": "eq", "term": "id", "value": 1}),
        ("`place`.`CITY` = 'it''s'", {"type": "eq", "term": "Place.city", "value": "it's"}),
        ("f in (1, -2.5, 1e3)", {"type": "in", "term": "f", "values": [1.0, -2.5, 1000.0]}),
        ("wide = 12345678901234567890123456789012.3456", {"type": "eq", "term": "wide", "value": "12345678901234567890123456789012.345600"}),
        ("f = 1.7976931348623158e308", {"type": "eq", "term": "f", "value": 1.7976931348623157e308}),
        ("small = -3.4028235e38", {"type": "eq", "term": "small", "value": -3.4028235e38}),
        ("price = 1.5", {"type": "eq", "term": "price", "value": "1.50"}),
        ("ok = true", {"type": "eq", "term": "ok", "value": True}),
        ("day = '2024-03-01'", {"type": "eq", "term": "day", "value": "2024-03-01"}),
        ("day = DATE '2024-03-01'", {"type": "eq", "term": "day", "value": "2024-03-01"}),
        ("at = timestamp '2024-03-01 12:00:00'", {"type": "eq", "term": "at", "value": "2024-03-01T12:00:00"}),
        ("at = date'2024-03-01'", {"type": "eq", "term": "at", "value": "2024-03-01T00:00:00"}),
        ("then = '2024-03-01 12:00:00+02:00'", {"type": "eq", "term": "then", "value": "2024-03-01T10:00:00+00:00"}),
        ("name like 'a%'", {"type": "starts-with", "term": "name", "value": "a"}),
        ("name like 'a'", {"type": "eq", "term": "name", "value": "a"}),
        ("name is null", {"type": "is-null", "term": "name"}),
        ("name is not null", {"type": "not-null", "term": "name"}),
        ("not name is null", {"type": "not-null", "term": "name"}),
    ],
)  # fmt: skip
def test_a_literal_takes_the_form_of_its_column(where: str, told: dict[str, object]) -> None:
    assert bound(where) == told


def test_a_timestamp_without_a_zone_is_read_in_the_sessions() -> None:
    told = bound("then = timestamp '2024-03-01 12:00:00'", "Europe/Berlin")
    assert told["value"] == "2024-03-01T11:00:00+00:00"


@pytest.mark.parametrize(
    "where",
    [
        "nosuch = 1", "id = 'x'", "id = 1.5", "id = 3000000000", "day = 5", "day = '2024-13-01'", "name = 5",
        "day = timestamp '2024-03-01 12:00:00'", "at = '2024-03-01 12:00:00+02:00'", "ok = 'maybe'", "id = true",
        "raw = 'x'", "Place = 'x'", "key = 'x'", "price = 1.555", "id like 'a%'", "f = 1e999999999",
        "f = 1e400", "f > -1.8e308", "small in (1, 3.5e38)", f"wide = {'9' * 60}",
    ],
)  # fmt: skip
def test_what_does_not_fit_the_column_is_refused(where: str) -> None:
    with pytest.raises(WrongFilter, match="column"):
        bound(where)


_IDS = st.none() | st.integers(-3, 3)
_COMPARED = st.tuples(st.sampled_from(["id", "big"]), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.integers(-3, 3))  # fmt: skip
_SIMPLE = st.one_of(
    _COMPARED.map(lambda each: f"{each[0]} {each[1]} {each[2]}"),
    st.tuples(st.sampled_from(["", "not "]), st.integers(-3, 3)).map(
        lambda each: f"id {each[0]}in ({each[1]}, 2)"
    ),
    st.tuples(st.sampled_from(["", "not "]), st.integers(-3, 3)).map(
        lambda each: f"big {each[0]}between {each[1]} and 2"
    ),
    st.sampled_from(["id is null", "big is not null"]),
)
_WHERE = st.recursive(
    _SIMPLE,
    lambda inner: st.one_of(
        inner.map(lambda each: f"not ({each})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda each: f"({each[0]}) {each[1]} {each[2]}"
        ),
    ),
    max_leaves=6,
)


@given(_WHERE, _IDS, _IDS)
def test_a_filter_means_what_it_means_in_sql(where: str, one: int | None, other: int | None) -> None:
    """Judged by SQLite, three-valued logic and all."""
    import sqlite3

    with sqlite3.connect(":memory:") as database:
        expected = database.execute(
            f"select 1 from (select ? as id, ? as big) where {where}", (one, other)
        ).fetchone()
    told = BooleanExpression.model_validate(bound(where))
    keep = expression_evaluator(Schema.model_validate_json(SCHEMA), told, case_sensitive=True)
    assert keep(Record(one, other)) == (expected is not None)
