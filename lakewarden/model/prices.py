"""What storage costs, by storage class: defaults are Amazon's list prices for us-east-1, settings may say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.model.plain import Plain

GIB = 1 << 30
STANDARD = "STANDARD"
# What lies in these cannot be read before somebody has asked for it, and waited.
ARCHIVED = frozenset({"GLACIER", "DEEP_ARCHIVE"})


@dataclass(frozen=True, slots=True)
class Price(Plain):
    """In dollars. An object smaller than `minimum_bytes` is billed as that, one deleted before `minimum_days` as if it had stayed.

    Each object is billed for `overhead_bytes` more than it has. `restore_per_1000` is for asking an archive to make objects readable.
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
    """What copying these files once costs, what they then cost a month, and what that saves against where they are.

    `padding_month` is what small objects cost beyond their bytes, and compacting first would save; `read_once` what reading
    all of it there costs, `leave_early` what deleting it on its first day would still cost.
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
    """What it takes to move copies to a deeper class: requests, reading them out of theirs, and leaving that before its time.

    Then what each month saves. A copy onto itself is billed as reading the object and writing it.
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
FIELDS = tuple(Price.__dataclass_fields__)
