"""Checks that two policy keys agree. Each refusal names both, with their values and origins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakewarden.errors import PolicyError
from lakewarden.policy.origin import IgnoredProperty, Layer, Value

Values = Mapping[str, Value]

# (lower, upper): the first may not exceed the second.
ORDERED = (
    ("rewrite_small_bytes", "rewrite_max_bytes"),
    ("rewrite_target_bytes", "rewrite_max_bytes"),
    ("snapshot_min_retained", "snapshot_max_retained"),
)

# (key, value, other key): with that value the other key must be set.
NEEDS = (
    ("rewrite_strategy", "zorder", "rewrite_zorder_columns"),
    ("rewrite_strategy", "hilbert", "rewrite_zorder_columns"),
    ("partition_expiry_enabled", True, "partition_ttl_hours"),
    ("handoff_enabled", True, "handoff_catalog"),
)

_OWN_LAYERS = frozenset({Layer.TABLE_PROPERTY, Layer.TABLE, Layer.CALL})


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two values that cannot both apply. `short` says why, `advice` how to fix it."""

    values: tuple[Value, Value]
    short: str
    advice: str


def check(values: Values, ignored: Sequence[IgnoredProperty] = ()) -> None:
    """Raises PolicyError for the first pair that disagrees."""
    for disagreement in disagreements(values):
        first, second = disagreement.values
        unheard = (
            f"; {each.origin}={each.value} is ignored: {each.reason}"
            for each in ignored
            if each.key == second.key
        )
        reason = f"{disagreement.short}; {disagreement.advice}{next(unheard, '')}"
        raise PolicyError(key=first.key, reason=reason)
    _check_grace(values["delete_grace_hours"])


def disagreements(values: Values) -> Iterator[Disagreement]:
    for name, other in ORDERED:
        lower, upper = values[name], values[other]
        low, high = lower.value, upper.value
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Disagreement(
                (lower, upper), f"{lower} is more than {upper}", "lower the first or raise the second"
            )
    for name, wanted, other in NEEDS:
        value, needed = values[name], values[other]
        if value.value == wanted and needed.value is None:
            yield Disagreement(
                (value, needed), f"{value} needs {needed.key}, and that is {needed}", "set both"
            )


def _check_grace(grace: Value) -> None:
    """A grace of 0 must be set for one table: a pattern that covers many tables must not remove it from all of them."""
    below = isinstance(grace.value, int | float) and grace.value < 1
    if below and grace.origin.layer not in _OWN_LAYERS:
        reason = f"{grace} is below 1, which only the table's own policy or the call may ask for"
        raise PolicyError(key=grace.key, reason=reason)
