"""Prices by storage class. The defaults are Amazon's list prices for us-east-1; settings may replace them."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.model.plain import Plain

GIB = 1 << 30
STANDARD = "STANDARD"
# Objects in these classes must be restored before they can be read, which takes time.
ARCHIVED = frozenset({"GLACIER", "DEEP_ARCHIVE"})


@dataclass(frozen=True, slots=True)
class Price(Plain):
    """In dollars. A smaller object is billed for `minimum_bytes`; one deleted earlier is billed for `minimum_days`.

    Each object is billed for `overhead_bytes` more than its size. `restore_per_1000` is for requests that restore objects.
    """

    storage_gb_month: float
    put_per_1000: float = 0.0
    get_per_1000: float = 0.0
    retrieval_gb: float = 0.0
    minimum_days: float = 0.0
    minimum_bytes: float = 0.0
    overhead_bytes: float = 0.0
    restore_per_1000: float = 0.0


@dataclass(frozen=True, slots=True)
class HandOffCost(Plain):
    """The cost of copying these files once, their monthly cost there, and the monthly saving.

    `padding_month`: the part that small objects cost beyond their bytes; compacting first would save it. `read_once`: the cost
    of reading all of it there. `leave_early`: the cost of deleting it on its first day.
    """

    files: int
    bytes: int
    requests: float
    month: float
    saved_month: float
    padding_month: float
    read_once: float
    leave_early: float


@dataclass(frozen=True, slots=True)
class AgeCost(Plain):
    """The cost of moving copies to a deeper class: requests, reading, and fees for leaving the old class early.

    `saved_month`: what each month then saves. A copy onto itself is billed as a read and a write.
    """

    requests: float
    retrieval: float
    early_fees: float
    saved_month: float


PRICES = {
    STANDARD: Price(0.023, 0.005, 0.0004),
    "STANDARD_IA": Price(0.0125, 0.01, 0.001, 0.01, 30, 128 << 10),
    "ONEZONE_IA": Price(0.01, 0.01, 0.001, 0.01, 30, 128 << 10),
    "GLACIER_IR": Price(0.004, 0.02, 0.01, 0.03, 90, 128 << 10),
    "GLACIER": Price(0.0036, 0.03, 0.0004, 0.01, 90, 0, 40 << 10, 0.05),
    "DEEP_ARCHIVE": Price(0.00099, 0.05, 0.0004, 0.02, 180, 0, 40 << 10, 0.10),
}
