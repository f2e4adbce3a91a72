"""One way to JSON: every kind of value, every mark of a list of keys, and every list names what exists."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import pytest

import lakewarden
from lakewarden.model.plain import Plain, compiled, keys_of, pick, to_plain
from lakewarden.model.table import TableRef

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Outer(Plain):
    table: TableRef
    at: datetime | None
    colour: Colour
    files: tuple[Inner, ...]
    share: float = 0.123456
    error: str = ""


@dataclass(frozen=True, slots=True)
class Listed(Outer):
    JSON_KEYS = "name=table since=at count=len(files) share:2 half=share:1 error? **first colour"

    @property
    def first(self) -> Inner:
        return self.files[0]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (AT, "2026-03-04T05:06:07+00:00"),
        (None, None),
        (True, True),
        (1.5, 1.5),
        (Colour.RED, "red"),
        (TableRef.parse("lake.db.`a.b`"), "lake.db.`a.b`"),
        (Path("/lake/x"), "/lake/x"),
        ((Inner("a", 1), [Colour.RED]), [{"path": "a", "size": 1}, ["red"]]),
        ({Colour.RED: Inner("a", 1)}, {"red": {"path": "a", "size": 1}}),
    ],
)
def test_a_value_as_json_has_it(value: object, plain: object) -> None:
    assert to_plain(value) == plain
    assert json.loads(json.dumps(to_plain(value))) == plain


def test_without_a_list_the_fields_are_the_keys() -> None:
    value = Outer(TableRef.parse("lake.db.t"), None, Colour.RED, (Inner("a", 1),))
    assert list(value.to_dict().items()) == [
        ("table", "lake.db.t"),
        ("at", None),
        ("colour", "red"),
        ("files", [{"path": "a", "size": 1}]),
        ("share", 0.123456),
        ("error", ""),
    ]
    assert not hasattr(value, "__dict__"), "it stays a class of slots"


def test_every_mark_of_a_list() -> None:
    value = Listed(TableRef.parse("lake.db.t"), AT, Colour.RED, (Inner("a", 1), Inner("b", 2)))
    assert list(value.to_dict().items()) == [
        ("name", "lake.db.t"),
        ("since", "2026-03-04T05:06:07+00:00"),
        ("count", 2),
        ("share", 0.12),
        ("half", 0.1),
        ("error", None),
        ("path", "a"),
        ("size", 1),
        ("colour", "red"),
    ]
    assert pick(value, "table=table.name first.path=first.path") == {"table": "t", "first.path": "a"}


def test_what_has_no_keys_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot write object as JSON"):
        to_plain(object())


def plain_classes(of: type = Plain) -> Iterator[type]:
    for each in of.__subclasses__():
        if each.__module__.startswith("lakewarden."):
            yield each
        yield from plain_classes(each)


def test_every_list_names_what_its_class_has() -> None:
    for module in pkgutil.walk_packages(lakewarden.__path__, "lakewarden."):
        if "migrations" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes = set(plain_classes())
    assert len(classes) > 50
    for each in classes:
        keys = keys_of(each)
        known = {field.name for field in fields(each)} | set(dir(each))  # type: ignore[arg-type]
        entries = [entry.partition("=")[2] or entry for entry in keys.split()]
        roots = {
            entry.removeprefix("**").removeprefix("len(").rstrip("?)").split(":")[0].split(".")[0]
            for entry in entries
        }
        assert roots <= known, f"{each.__name__} lists {sorted(roots - known)}"
        names = [key for key, *_ in compiled(keys) if key != "**"]
        assert len(names) == len(set(names)), each.__name__
