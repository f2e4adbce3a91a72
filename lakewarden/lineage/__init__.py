"""Lineage: the origin of a commit. The committing writer puts it into the snapshot's summary.

The package can be called: `with lakewarden.lineage(writer_id=...)` is `lineage.writing.lineage`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakewarden.lineage.writing import WriterLineage


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **keys: Any) -> WriterLineage:
        from lakewarden.lineage.writing import lineage

        return lineage(*arguments, **keys)


# The public function has the same name as this package, so the package itself is callable.
sys.modules[__name__].__class__ = _Callable
