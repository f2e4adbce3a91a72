"""Translates a table's native options to policy keys. Every layer of ours overrides them.

They are Paimon's options, and the one Iceberg option that drops something; Iceberg's others only keep more, and
expire reads them itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lakewarden.errors import PolicyError

REF_AGE = "history.expire.max-ref-age-ms"
_KEYS = {
    REF_AGE: "snapshot_ref_retention_hours",
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
# A time shorter than the policy allows becomes the shortest allowed one: nothing is dropped earlier than the table says.
_LEAST = {"partition.expiration-time": 1.0, REF_AGE: 1 / 60}
_MILLIS_OF_AN_HOUR = 3_600_000
_MANY_HOURS = 24 * 365 * 1000
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
            text = properties[option]
            if option == REF_AGE:
                yield from _ref_age(text)
                continue
            yield option, key, _hours(option, text) if option in _DURATIONS else text


def _ref_age(text: str) -> Iterator[tuple[str, str, object]]:
    """An age longer than the policy can express means never. An unreadable one is ignored here: expire refuses it by name."""
    if not text.isdecimal() or not text.isascii() or not int(text):
        return
    hours = max(int(text) / _MILLIS_OF_AN_HOUR, _LEAST[REF_AGE])
    yield REF_AGE, _KEYS[REF_AGE], "none" if hours > _MANY_HOURS else hours


def _hours(option: str, text: str) -> float:
    match = _DURATION.match(text.lower())
    if match is None or match[2] not in _HOURS:
        raise PolicyError(
            key=option, reason=f"found {text!r} in the table's options; write a duration such as 7 d or 36 h"
        )
    return max(int(match[1]) * _HOURS[match[2]], _LEAST.get(option, 0.0))
