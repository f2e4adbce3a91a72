"""Deleting files, and nothing else: whoever calls needs a Permit from deletion/permit.py."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden import clock
from lakewarden.deletion.permit import Permit
from lakewarden.storage.objects import Objects


def erase(permit: Permit, where: Objects | Mapping[str, str]) -> dict[str, str]:
    """Delete what the permit names; what may still be there, with the reason. A file that is not there is already erased.

    Through stores that are connected to already, or with the properties to connect to them.
    """
    if clock.monotonic() > permit.until:
        return dict.fromkeys(permit.paths, "this process stood still, and its leave to erase them is over")
    objects = where if isinstance(where, Objects) else Objects(where)
    return objects.delete(permit.paths)
