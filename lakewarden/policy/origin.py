"""A policy value and the layer it came from. Layers of the configuration apply to tables by patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from lakewarden.model.plain import Plain, pick, to_plain
from lakewarden.model.table import TableRef
from lakewarden.policy.keys import key
from lakewarden.policy.values import PolicyValue, show


class Layer(StrEnum):
    """The layers that set values, the least specific first."""

    DEFAULT = "default"
    TABLE_OPTION = "table option"
    ENVIRONMENT = "environment"
    FILE = "file"
    NAMESPACE = "namespace"
    TABLE_PROPERTY = "table property"
    TABLE = "table"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a policy value comes from: the layer, and its pattern or option. Prints as `default`, `namespace lake.db.*`
    or `table option snapshot.time-retained`.
    """

    layer: Layer
    detail: str = ""

    def __str__(self) -> str:
        is_named = self.layer in (Layer.NAMESPACE, Layer.TABLE_OPTION)
        return f"{self.layer} {self.detail}" if is_named else str(self.layer)


@dataclass(frozen=True, slots=True)
class IgnoredProperty(Plain):
    """A setting in a table's own properties that is not allowed, as written there, and why it is ignored."""

    key: str
    value: str
    origin: Origin
    reason: str


@dataclass(frozen=True, slots=True)
class Value:
    """One key's effective value; prints as `rewrite_small_bytes=33554432 (default)`."""

    key: str
    value: PolicyValue
    origin: Origin

    def __str__(self) -> str:
        return f"{self.key}={show(self.value)} ({self.origin})"

    def to_dict(self) -> dict[str, Any]:
        known = key(self.key)
        default = to_plain(known.default)
        return {
            **pick(self, "key value"),
            "default": default,
            "origin": str(self.origin),
            "sentence": known.sentence,
        }


_QUOTED = re.compile(r"`(?:[^`]|``)+`")


def matches(table: TableRef | str, pattern: str) -> bool:
    """Matches the table's text, `lake.db.events`. `table` as text must be the text that a TableRef prints."""
    return fnmatchcase(str(table), _printed(pattern))


@lru_cache(maxsize=4096)
def _printed(pattern: str) -> str:
    """The pattern in the printed form of names: without back-quotes around parts that need none."""
    return _QUOTED.sub(lambda match: _bare(match[0]), pattern)


def _bare(quoted: str) -> str:
    inner = quoted[1:-1]
    return quoted if "." in inner or "`" in inner else inner
