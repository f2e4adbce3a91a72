"""A policy value and the layer it came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lakewarden.model.plain import Plain, pick, to_plain
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
    """A layer and its pattern, table or option; prints as `default`, `namespace lake.db.*` or `table option
    snapshot.time-retained`.
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
