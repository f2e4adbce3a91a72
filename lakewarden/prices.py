"""What storage costs, by storage class: defaults are Amazon's list prices for us-east-1, settings may say otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

GIB = 1 << 30
STANDARD = "STANDARD"


@dataclass(frozen=True, slots=True)
class Price:
    """In dollars. An object smaller than `minimum_bytes` is billed as that, one deleted before `minimum_days` as if it had stayed."""

    storage_gb_month: float
    put_per_1000: float = 0.0
    get_per_1000: float = 0.0
    retrieval_gb: float = 0.0
    minimum_days: float = 0.0
    minimum_bytes: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


PRICES = {
    STANDARD: Price(0.023, 0.005, 0.0004),
    "STANDARD_IA": Price(0.0125, 0.01, 0.001, 0.01, 30, 128 << 10),
    "ONEZONE_IA": Price(0.01, 0.01, 0.001, 0.01, 30, 128 << 10),
    "GLACIER_IR": Price(0.004, 0.02, 0.01, 0.03, 90, 128 << 10),
    "GLACIER": Price(0.0036, 0.03, 0.0004, 0.01, 90, 40 << 10),
    "DEEP_ARCHIVE": Price(0.00099, 0.05, 0.0004, 0.02, 180, 40 << 10),
}
FIELDS = tuple(Price.__dataclass_fields__)
