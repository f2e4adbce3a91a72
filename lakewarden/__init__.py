"""Lakewarden: the lifecycle worker of a data lake."""

from __future__ import annotations

from lakewarden.api import Lakewarden
from lakewarden.errors import LakewardenError
from lakewarden.model import Run, RunState, TableRef, Trigger

__all__ = ["Lakewarden", "LakewardenError", "Run", "RunState", "TableRef", "Trigger"]
