"""Lakewarden: the lifecycle worker of a data lake."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakewarden.client import Lakewarden
    from lakewarden.errors import LakewardenError
    from lakewarden.lineage.writing import lineage
    from lakewarden.model.run import Run, RunState, Trigger
    from lakewarden.model.table import TableRef

__all__ = ["Lakewarden", "LakewardenError", "Run", "RunState", "TableRef", "Trigger", "lineage"]

_HOME = {
    "Lakewarden": "lakewarden.client",
    "LakewardenError": "lakewarden.errors",
    "Run": "lakewarden.model.run",
    "RunState": "lakewarden.model.run",
    "TableRef": "lakewarden.model.table",
    "Trigger": "lakewarden.model.run",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: every Spark worker imports this package, but needs only the
    rewrite code."""
    if name == "lineage":  # the folder itself can be called
        return import_module("lakewarden.lineage")
    if name not in _HOME:
        raise AttributeError(f"module 'lakewarden' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
