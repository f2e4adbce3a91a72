"""Deleting files, and nothing else: whoever calls needs a Permit from safety/permit.py."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden.engine.kernels.storage import Store
from lakewarden.safety.permit import Permit


def erase(permit: Permit, io: Mapping[str, str]) -> int:
    """Delete what the permit names; how many names are gone now. A file that is not there is already erased."""
    store = Store(io)
    for path in permit.paths:
        store.remove(path)
    return len(permit.paths)
