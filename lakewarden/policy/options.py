"""What a Paimon table's own options ask for, in the words of the policy. Every layer of ours wins over them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lakewarden.errors import PolicyError

_KEYS = {
    "snapshot.time-retained": "snapshot_retention_hours",
    "snapshot.num-retained.min": "snapshot_min_retained",
    "snapshot.num-retained.max": "snapshot_max_retained",
    "snapshot.expire.limit": "snapshot_expire_limit",
    "partition.expiration-time": "partition_ttl_hours",
    "partition.expiration-strategy": "partition_expiry_strategy",
    "partition.timestamp-formatter": "partition_time_formatter",
    "partition.timestamp-pattern": "partition_time_pattern",
    "partition.expiration-max-num": "partition_expire_limit",
}
_DURATIONS = ("snapshot.time-retained", "partition.expiration-time")
# A shorter time than the policy knows becomes the shortest one: nothing goes before the table would have it go.
_LEAST = {"partition.expiration-time": 1.0}
_DURATION = re.compile(r"^\s*(\d+)\s*([a-zµ]*)\s*$")
_HOURS = {
    **dict.fromkeys(("d", "day", "days"), 24.0),
    **dict.fromkeys(("h", "hour", "hours"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 1 / 60),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1 / 3_600),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1 / 3_600_000),
    **dict.fromkeys(("µs", "micro", "micros", "microsecond", "microseconds"), 1 / 3_600_000_000),
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1 / 3_600_000_000_000),
}


def from_options(properties: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Option, policy key and value, for every option that is set."""
    for option, key in _KEYS.items():
        if option in properties:
            found = properties[option]
            yield option, key, _hours(option, found) if option in _DURATIONS else found


def _hours(option: str, found: str) -> float:
    told = _DURATION.match(found.lower())
    if told is None or told[2] not in _HOURS:
        raise PolicyError(
            key=option, reason=f"found {found!r} in the table's options; write a duration such as 7 d or 36 h"
        )
    return max(int(told[1]) * _HOURS[told[2]], _LEAST.get(option, 0.0))
