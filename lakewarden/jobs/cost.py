"""What a table costs where it lies, and what handing it off costs and saves. Pure: sizes and prices are handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lakewarden.errors import ConfigError
from lakewarden.prices import GIB, STANDARD, Price

_DAYS = 365.25 / 12


@dataclass(frozen=True, slots=True)
class TierCost:
    """One tier's objects and what they cost a month. `padding_month` is what small objects cost beyond their bytes.

    `read_once` is what reading all of it costs, `leave_early` what deleting it on its first day would still cost.
    """

    tier: str
    storage_class: str
    files: int
    bytes: int
    billed_bytes: int
    month: float
    padding_month: float
    read_once: float
    leave_early: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HandOffCost:
    """What copying these files once costs, what they then cost a month, and what that saves against where they are."""

    files: int
    bytes: int
    requests: float
    month: float
    saved_month: float
    padding_month: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableCost:
    """By tier, and what handing off the `snapshots` that expire next would come to."""

    table: str
    tiers: tuple[TierCost, ...]
    next: HandOffCost
    snapshots: int

    @property
    def month(self) -> float:
        return sum(each.month for each in self.tiers)

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "dollars_a_month": self.month,
            "tiers": [each.to_dict() for each in self.tiers],
            "next_hand_off": {"snapshots": self.snapshots, **self.next.to_dict()},
        }


def price_of(storage_class: str | None, prices: Mapping[str, Price]) -> Price:
    found = prices.get(storage_class or STANDARD)
    if found is None:
        raise ConfigError(
            key=f"prices.{storage_class}",
            where="the configuration",
            reason=f"there are no prices for it; known: {', '.join(sorted(prices))}",
        )
    return found


def tier_cost(
    tier: str, sizes: Sequence[int], storage_class: str | None, prices: Mapping[str, Price]
) -> TierCost:
    price, every = price_of(storage_class, prices), np.asarray(sizes, dtype=np.int64)
    total, billed = _bytes(every), _billed(every, price)
    month = _month(billed, price)
    return TierCost(
        tier,
        storage_class or STANDARD,
        len(every),
        total,
        billed,
        month,
        _month(billed - total, price),
        total / GIB * price.retrieval_gb + len(every) / 1000 * price.get_per_1000,
        month * price.minimum_days / _DAYS,
    )


def hand_off_cost(
    sizes: Sequence[int], live: str | None, cold: str | None, prices: Mapping[str, Price]
) -> HandOffCost:
    before, after = price_of(live, prices), price_of(cold, prices)
    every = np.asarray(sizes, dtype=np.int64)
    total, billed = _bytes(every), _billed(every, after)
    month = _month(billed, after)
    return HandOffCost(
        len(every),
        total,
        len(every) / 1000 * (after.put_per_1000 + before.get_per_1000),
        month,
        _month(_billed(every, before), before) - month,
        _month(billed - total, after),
    )


def _bytes(sizes: Any) -> int:
    return int(sizes.sum())


def _billed(sizes: Any, price: Price) -> int:
    return int(np.maximum(sizes, int(price.minimum_bytes)).sum())


def _month(size: int, price: Price) -> float:
    return size / GIB * price.storage_gb_month
