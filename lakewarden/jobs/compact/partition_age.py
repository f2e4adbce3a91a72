"""Whether a time partition is closed: its period ended so long ago that no writer uses it any more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lakewarden.model.files import KeyKind, Partition
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.table import PartitionSpec, TableView
from lakewarden.policy.periods import counted_end
from lakewarden.policy.resolve import Policy

_PERIODS = (KeyKind.YEAR, KeyKind.MONTH, KeyKind.DAY, KeyKind.HOUR)


def partition_open_reason(
    view: TableView, partition: Partition, policy: Policy, now: datetime
) -> Reason | None:
    """Why the partition is still open; None if it may be rewritten."""
    wait = policy.maybe_hours("rewrite_sealed_after_hours")
    if wait is None:
        return None
    spec = next(each for each in view.specs if each.id == partition.spec_id)
    types = {field["id"]: field["type"] for field in json.loads(view.schema_json).get("fields", ())}
    end = period_end(spec, partition.values, types)
    if end is None:
        return no_period(policy)
    if now < end + wait:
        still = f"the partition is still open: {policy.explain('rewrite_sealed_after_hours')}"
        return Reason(ReasonKind.OPEN_PARTITION, still)
    return None


def no_period(policy: Policy) -> Reason:
    """A partition without a time never ends, so it is never rewritten while the policy waits for the end."""
    told = f"has no time partition to seal: {policy.explain('rewrite_sealed_after_hours')}"
    return Reason(ReasonKind.OPEN_PARTITION, told)


def period_end(spec: PartitionSpec, values: tuple[Any, ...], types: Mapping[int, Any]) -> datetime | None:
    """When the partition's period is over; None without a time field or with a null value.

    With several time fields (year and hour, say) the finest one decides: it ends first.
    """
    ends = [
        _field_end(_period(field.transform, types.get(field.source_id)), value)
        for field, value in zip(spec.fields, values, strict=True)
    ]
    return min((end for end in ends if end is not None), default=None)


def _period(transform: str, type_: Any) -> str:
    """A date column that partitions as it is closes like a day."""
    return "day" if transform == "identity" and type_ == "date" else transform


def _field_end(period: str, value: Any) -> datetime | None:
    if not isinstance(value, int) or period not in _PERIODS:
        return None
    return counted_end(KeyKind(period), value)
