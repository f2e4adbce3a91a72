"""Cases that only `make crash` runs, beside those that every set runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def nightly_except(always: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """All the cases, in their order: those that are not `always` have the marker `nightly`."""
    return [case if always(case) else _nightly(case) for case in cases]


def _nightly(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)
