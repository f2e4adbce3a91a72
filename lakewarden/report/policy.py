"""A table's policy on the screen: every key, its value and its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import exact_hours, exact_size
from lakewarden.model.plain import to_plain
from lakewarden.policy.keys import KEYS, key
from lakewarden.policy.origin import Layer, Value
from lakewarden.policy.resolve import Policy
from lakewarden.policy.values import ValueType, show
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

# On a narrower screen the sentence of each key is left out; `--json` always has it.
_WIDE = 110


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """`before` is the previous policy, if the command changed it."""

    policy: Policy
    before: Policy | None = None

    def changes(self) -> list[tuple[Value, Value]]:
        if self.before is None:
            return []
        pairs = ((self.before.values[each.name], self.policy.values[each.name]) for each in KEYS)
        return [(old, new) for old, new in pairs if old != new]

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": str(self.policy.table),
            "hash": self.policy.hash(),
            "keys": self.policy.to_dict(),
            "changed": [new.key for _, new in self.changes()],
            "ignored": to_plain(self.policy.ignored),
        }

    def render(self, width: int) -> RenderableType:
        title = look.title("policy", str(self.policy.table))
        if self.before is not None:
            return look.stack(title, self._changed(), *self._ignored())
        values = [self.policy.values[each.name] for each in KEYS]
        rows = [_line(value, sentence=width >= _WIDE) for value in values]
        # Without sentences the value wraps: lists of names can be long.
        return look.stack(
            title,
            look.lines(rows, look.left(len(rows[0])), wraps=(1, 3) if width >= _WIDE else (1,)),
            *self._ignored(),
        )

    def _ignored(self) -> list[RenderableType]:
        """Settings in the table's own properties that are not allowed there."""
        if not self.policy.ignored:
            return []
        rows = [
            (Text(each.key), Text(each.value), look.dim(f"({each.origin})"), Text(each.reason))
            for each in self.policy.ignored
        ]
        return [
            Text("ignored: table properties may not set these values"),
            look.lines(rows, look.left(4), wraps=(1, 3)),
        ]

    def _changed(self) -> RenderableType:
        changes = self.changes()
        if not changes:
            return look.dim("  nothing changed: it was like this already")
        return look.lines(
            [
                (new.key, f"{shown(old)} ({old.origin})", "→", f"{shown(new)} ({new.origin})")
                for old, new in changes
            ],
            look.left(4),
        )


def _line(value: Value, *, sentence: bool) -> tuple[str | Text, ...]:
    is_default = value.origin.layer is Layer.DEFAULT
    style = "" if is_default else "bold"
    parts = (
        Text(value.key, style=style),
        Text(shown(value), style=style),
        look.dim(f"({value.origin})"),
    )
    return (*parts, look.dim(key(value.key).sentence)) if sentence else parts


def shown(value: Value) -> str:
    """Sizes and times with their units, as they may be typed; other values unchanged."""
    kind = key(value.key).kind
    if kind is ValueType.BYTES and isinstance(value.value, int):
        return exact_size(value.value)
    if kind is ValueType.HOURS and isinstance(value.value, int | float):
        return exact_hours(value.value)
    return show(value.value)
