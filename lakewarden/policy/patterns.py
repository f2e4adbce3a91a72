"""Matches tables against patterns of the configuration."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

from lakewarden.model.table_name import TableRef

_QUOTED = re.compile(r"`(?:[^`]|``)+`")


def matches(table: TableRef | str, pattern: str) -> bool:
    """Matches the table's text, `lake.db.events`. `table` as text must be the text that a TableRef prints."""
    return fnmatchcase(str(table), _printed(pattern))


@lru_cache(maxsize=4096)
def _printed(pattern: str) -> str:
    """The pattern in the printed form of names: without back-quotes around parts that need none."""
    return _QUOTED.sub(lambda match: _bare(match[0]), pattern)


def _bare(quoted: str) -> str:
    inner = quoted[1:-1]
    return quoted if "." in inner or "`" in inner else inner
