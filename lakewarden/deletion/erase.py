"""Deletes files and does nothing else. Every caller needs a Permit from deletion/permit.py."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden import clock
from lakewarden.deletion.permit import Permit
from lakewarden.storage.objects import Objects


def erase(permit: Permit, where: Objects | Mapping[str, str]) -> dict[str, str]:
    """Delete the files that the permit names. Return the files that may still exist, each with the reason. A
    missing file counts as erased.

    `where` is either connected stores or the properties to connect to them.
    """
    if clock.monotonic() > permit.until:
        return dict.fromkeys(permit.paths, "this process was suspended, and its permit has expired")
    objects = where if isinstance(where, Objects) else Objects(where)
    return objects.delete(permit.paths)
