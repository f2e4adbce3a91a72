"""Storage costs of a table in each tier, and the costs and savings of a hand-off. Pure: sizes and prices are parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lakewarden.errors import ConfigError
from lakewarden.model.plain import Plain, pick
from lakewarden.model.prices import ARCHIVED, GIB, STANDARD, AgeCost, HandOffCost, Price

_DAYS = 365.25 / 12


@dataclass(frozen=True, slots=True)
class TierCost(Plain):
    """The objects of one tier and their monthly cost. `padding_month` is the extra cost of small objects (minimum billed size).

    `read_once` is the cost of reading everything once, including an archive's recall. `leave_early` is the fee for deleting
    everything now, because the storage class has a minimum storage time.
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


@dataclass(frozen=True, slots=True)
class TableCost:
    """The costs by tier, and the cost of handing off the `snapshots` that expire next.

    `in_folders`: the table is on a file system, where none of this is billed.
    """

    table: str
    tiers: tuple[TierCost, ...]
    next: HandOffCost
    snapshots: int
    in_folders: bool = False

    @property
    def month(self) -> float:
        return sum(tier.month for tier in self.tiers)

    def to_dict(self) -> dict[str, Any]:
        return {
            **pick(self, "table dollars_a_month=month tiers"),
            "next_hand_off": pick(self, "snapshots **next"),
        }


def price_of(storage_class: str | None, prices: Mapping[str, Price]) -> Price:
    price = prices.get(storage_class or STANDARD)
    if price is None:
        raise ConfigError(
            key=f"prices.{storage_class}",
            where="the configuration",
            reason=f"there are no prices for it; known: {', '.join(sorted(prices))}",
        )
    return price


def tier_cost(
    tier: str,
    sizes: Sequence[int],
    storage_class: str | None,
    prices: Mapping[str, Price],
    days: Sequence[float] | None = None,
) -> TierCost:
    """The cost of objects in one storage class. `days` is the age of each object there; without it, all count as new."""
    price, every = price_of(storage_class, prices), np.asarray(sizes, dtype=np.int64)
    total, billed = _bytes(every), _billed(every, price)
    return TierCost(
        tier,
        storage_class or STANDARD,
        len(every),
        total,
        billed,
        _month(billed, price),
        _month(billed - total, price),
        _read_once(every, price),
        _left_early(every, price, days),
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
        _read_once(every, after),
        _left_early(every, after, None),
    )


@dataclass(frozen=True, slots=True)
class ColdCopy:
    """A copy in the cold tier: its size, its storage class, and the days since it came to that class."""

    size: int
    storage_class: str | None
    days: float


def age_cost(
    copies: Sequence[ColdCopy], deep: str, unread_bytes: int, prices: Mapping[str, Price]
) -> AgeCost:
    """The cost of a transition. `unread_bytes` must be read and verified before it, in addition to the copying."""
    after, requests, retrieval, saved = price_of(deep, prices), 0.0, 0.0, 0.0
    whole = sum(copy.size for copy in copies) or 1
    for price, sizes, _ in _by_class(copies, prices):
        requests += len(sizes) / 1000 * (after.put_per_1000 + price.get_per_1000)
        retrieval += _bytes(sizes) / GIB * price.retrieval_gb * (1 + unread_bytes / whole)
        saved += _month(_billed(sizes, price), price) - _month(_billed(sizes, after), after)
    return AgeCost(requests, retrieval, early_fees(copies, prices), saved)


def tiers_of(copies: Sequence[ColdCopy], prices: Mapping[str, Price]) -> list[TierCost]:
    """The costs of the cold tier by storage class. Archive classes form the deep tier."""
    tiers = []
    for storage_class in sorted({copy.storage_class or STANDARD for copy in copies}):
        these = [copy for copy in copies if (copy.storage_class or STANDARD) == storage_class]
        tier = "deep" if storage_class in ARCHIVED else "cold"
        sizes, days = [each.size for each in these], [each.days for each in these]
        tiers.append(tier_cost(tier, sizes, storage_class, prices, days))
    return sorted(tiers, key=lambda each: each.tier)


def early_fees(copies: Sequence[ColdCopy], prices: Mapping[str, Price]) -> float:
    """The fees if all copies were deleted now: the rest of the minimum storage time (GLACIER_IR 90 days, DEEP_ARCHIVE 180).

    The time counts from when an object came to its class: a transition starts it again.
    """
    return sum(_left_early(sizes, price, days) for price, sizes, days in _by_class(copies, prices))


def _by_class(
    copies: Sequence[ColdCopy], prices: Mapping[str, Price]
) -> Iterator[tuple[Price, Any, list[float]]]:
    for storage_class in dict.fromkeys(copy.storage_class for copy in copies):
        these = [copy for copy in copies if copy.storage_class == storage_class]
        sizes = np.asarray([each.size for each in these], dtype=np.int64)
        yield price_of(storage_class, prices), sizes, [each.days for each in these]


def _read_once(sizes: Any, price: Price) -> float:
    each = price.get_per_1000 + price.restore_per_1000
    return float(_bytes(sizes) / GIB * price.retrieval_gb + len(sizes) / 1000 * each)


def _left_early(sizes: Any, price: Price, days: Sequence[float] | None) -> float:
    been = np.zeros(len(sizes)) if days is None else np.asarray(days, dtype=float)
    rest = np.maximum(price.minimum_days - been, 0) / _DAYS
    return float((_each_billed(sizes, price) * rest).sum() / GIB * price.storage_gb_month)


def _bytes(sizes: Any) -> int:
    return int(sizes.sum())


def _billed(sizes: Any, price: Price) -> int:
    return int(_each_billed(sizes, price).sum())


def _each_billed(sizes: Any, price: Price) -> Any:
    return np.maximum(sizes, int(price.minimum_bytes)) + int(price.overhead_bytes)


def _month(size: int, price: Price) -> float:
    return size / GIB * price.storage_gb_month
