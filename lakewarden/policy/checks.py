"""What two keys must agree on. Each refusal names both, with their values and origins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakewarden.errors import PolicyError
from lakewarden.policy.origin import Ignored, Layer, Value

Values = Mapping[str, Value]

# (lower, upper): the first may not be more than the second.
ORDERED = (
    ("rewrite_small_bytes", "rewrite_max_bytes"),
    ("rewrite_target_bytes", "rewrite_max_bytes"),
    ("snapshot_min_retained", "snapshot_max_retained"),
)

# (key, its value, needs): with that value the other key must be set.
NEEDS = (
    ("rewrite_strategy", "zorder", "rewrite_zorder_columns"),
    ("rewrite_strategy", "hilbert", "rewrite_zorder_columns"),
    ("partition_expiry_enabled", True, "partition_ttl_hours"),
    ("handoff_enabled", True, "handoff_catalog"),
)

_OWN_LAYERS = frozenset({Layer.TABLE_PROPERTY, Layer.TABLE, Layer.CALL})


def check(values: Values, ignored: Sequence[Ignored] = ()) -> None:
    """Raises PolicyError for the first pair that disagrees."""
    for lower, upper in ORDERED:
        _check_order(values[lower], values[upper])
    for name, wanted, needed in NEEDS:
        _check_need(values[name], wanted, values[needed], ignored)
    _check_grace(values["delete_grace_hours"])


def _check_order(lower: Value, upper: Value) -> None:
    low, high = lower.value, upper.value
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise PolicyError(
            key=lower.key, reason=f"{lower} is more than {upper}; lower the first or raise the second"
        )


def _check_need(value: Value, wanted: object, needed: Value, ignored: Sequence[Ignored]) -> None:
    if value.value == wanted and needed.value is None:
        unheard = (
            f"; {each.origin}={each.value} is ignored: {each.reason}"
            for each in ignored
            if each.key == needed.key
        )
        reason = f"{value} needs {needed.key}, and that is {needed}; set both{next(unheard, '')}"
        raise PolicyError(key=value.key, reason=reason)


def _check_grace(grace: Value) -> None:
    """No grace is a decision about one table: a line that covers many must not take it from all of them."""
    below = isinstance(grace.value, int | float) and grace.value < 1
    if below and grace.origin.layer not in _OWN_LAYERS:
        reason = f"{grace} is below 1, which only the table's own policy or the call may ask for"
        raise PolicyError(key=grace.key, reason=reason)
