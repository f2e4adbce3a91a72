"""Reads numbers from a table's own properties: texts that anyone who may alter the table can set to anything."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The ranges of Iceberg's int and long.
INT, LONG = 2**31 - 1, 2**63 - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)


class OddProperty(ValueError):
    """A property that is not a valid number."""

    def __init__(self, key: str, text: str, least: int, most: int) -> None:
        super().__init__(key, text, least, most)
        self.key, self.text = key, text
        self.allowed = f"a whole number between {least:,} and {most:,}"

    def __str__(self) -> str:
        return f"{self.key} must be {self.allowed}; got {self.text!r}"


def whole_number(properties: Mapping[str, str], key: str, least: int = 1, most: int = INT) -> int | None:
    """The number in a property, None if it is not set. Raises OddProperty if it is invalid."""
    text = properties.get(key)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        raise OddProperty(key, text, least, most)
    return int(text)
