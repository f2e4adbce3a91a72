"""Lakewarden: the lifecycle worker of a data lake."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakewarden.api import Lakewarden
    from lakewarden.errors import LakewardenError
    from lakewarden.model import Run, RunState, TableRef, Trigger

__all__ = ["Lakewarden", "LakewardenError", "Run", "RunState", "TableRef", "Trigger"]

_HOME = {
    "Lakewarden": "lakewarden.api",
    "LakewardenError": "lakewarden.errors",
    "Run": "lakewarden.model",
    "RunState": "lakewarden.model",
    "TableRef": "lakewarden.model",
    "Trigger": "lakewarden.model",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when first used: every Spark worker imports this package, and needs only a kernel of it."""
    if name not in _HOME:
        raise AttributeError(f"module 'lakewarden' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
