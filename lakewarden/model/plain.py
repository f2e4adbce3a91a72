"""Plain values for JSON: what `--json`, the console's API, the journal and stored documents write.

A class lists its JSON keys in one text, `JSON_KEYS`, as `namedtuple` takes its fields. The keys are a contract: tools
read them. Without the list they are the fields of the dataclass.

- `table` is the attribute of that name
- `since=taken_at` has another name in JSON; `base=bounds.base_snapshot_id` follows the dots
- `files=len(paths)` is a length
- `debt:3` is rounded to three digits
- `error?` is null where the value is empty
- `**entry` inserts the keys of that value
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

_UNCHANGED = frozenset({str, int, float, bool, type(None)})


class Plain:
    """Adds `to_dict()` to a dataclass."""

    __slots__ = ()

    JSON_KEYS: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form. Keys may be added, never renamed."""
        kind: Any = type(self)
        return pick(self, keys_of(kind))


def to_plain(value: Any) -> Any:
    """The value as JSON has it: times as ISO text, enums by value, dataclasses by their keys."""
    kind: Any = type(value)
    return value if kind in _UNCHANGED else _writer(kind)(value)


@cache
def _writer(kind: Any) -> Callable[[Any], Any]:
    """How values of a class are written. Found once per class: a plan may have a million of one."""
    if hasattr(kind, "to_dict"):
        return lambda value: value.to_dict()
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, date):  # and datetime
        return lambda value: value.isoformat()
    if issubclass(kind, Mapping):
        return lambda value: {to_plain(key): to_plain(each) for key, each in value.items()}
    if issubclass(kind, Sequence) and not issubclass(kind, str | bytes):
        return lambda value: [to_plain(each) for each in value]
    if issubclass(kind, str | int | float):
        return lambda value: value
    if kind.__str__ is not object.__str__:  # table names, owners, paths
        return str
    keys = keys_of(kind)
    return lambda value: pick(value, keys)


def pick(value: Any, keys: str) -> dict[str, Any]:
    """These keys of one value, in this order."""
    picked: dict[str, Any] = {}
    for key, read, change in compiled(keys):
        found = read(value)
        if type(found) not in _UNCHANGED:  # most values; a call for each would double the time
            found = to_plain(found)
        if key == "**":
            picked.update(found)
        else:
            picked[key] = found if change is None else change(found)
    return picked


@cache
def keys_of(kind: type) -> str:
    listed: str = getattr(kind, "JSON_KEYS", "")
    if listed:
        return listed
    if not is_dataclass(kind):
        raise TypeError(f"cannot write {kind.__name__} as JSON: it is no dataclass")
    return " ".join(field.name for field in fields(kind))


_Change = Callable[[Any], Any] | None


@cache
def compiled(keys: str) -> tuple[tuple[str, Callable[[Any], Any], _Change], ...]:
    """Each key, how its value is read, and how that is changed."""
    return tuple(_compiled(entry) for entry in keys.split())


def _compiled(entry: str) -> tuple[str, Callable[[Any], Any], _Change]:
    if entry.startswith("**"):
        return "**", attrgetter(entry[2:]), None
    key, _, path = entry.partition("=")
    if path.startswith("len("):
        measured = attrgetter(path[4:-1])
        return key, lambda value: len(measured(value)), None
    source, _, digits = (path or key).partition(":")
    name = key.partition(":")[0].rstrip("?")
    read = attrgetter(source.rstrip("?"))
    if digits:
        return name, read, lambda number: None if number is None else round(number, int(digits))
    return name, read, (lambda found: found or None) if source.endswith("?") else None
