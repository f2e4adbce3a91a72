"""A table's policy on the screen: every key, its value and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.policy.keys import KEYS
from lakewarden.policy.origin import Layer, Value
from lakewarden.policy.resolve import Policy
from lakewarden.policy.values import show
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

# Below this many columns a sentence per key makes the list unreadable; `--json` always has it.
_WIDE = 110


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """`before` is the policy as it was, where the command changed it."""

    policy: Policy
    before: Policy | None = None

    def changes(self) -> list[tuple[Value, Value]]:
        if self.before is None:
            return []
        pairs = ((self.before.values[key.name], self.policy.values[key.name]) for key in KEYS)
        return [(old, new) for old, new in pairs if old != new]

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": str(self.policy.table),
            "hash": self.policy.hash(),
            "keys": self.policy.to_dict(),
            "changed": [new.key for _, new in self.changes()],
        }

    def render(self, width: int) -> RenderableType:
        title = look.title("policy", str(self.policy.table))
        if self.before is not None:
            return look.stack(title, self._changed())
        values = [self.policy.values[key.name] for key in KEYS]
        rows = [_line(value, sentence=width >= _WIDE) for value in values]
        return look.stack(title, look.lines(rows, ("left",) * len(rows[0])))

    def _changed(self) -> RenderableType:
        changes = self.changes()
        if not changes:
            return look.dim("  nothing changed: it was like this already")
        return look.lines(
            [
                (new.key, f"{show(old.value)} ({old.origin})", "→", f"{show(new.value)} ({new.origin})")
                for old, new in changes
            ],
            ("left",) * 4,
        )


def _line(value: Value, *, sentence: bool) -> tuple[str | Text, ...]:
    is_default = value.origin.layer is Layer.DEFAULT
    style = "" if is_default else "bold"
    parts = (
        Text(value.key, style=style),
        Text(show(value.value), style=style),
        look.dim(f"({value.origin})"),
    )
    return (*parts, look.dim(_sentence(value.key))) if sentence else parts


def _sentence(name: str) -> str:
    return next(key.sentence for key in KEYS if key.name == name)
