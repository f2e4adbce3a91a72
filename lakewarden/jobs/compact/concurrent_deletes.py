"""Deletes that arrive while their data files are being rewritten, carried over to the outputs.

A kernel that kept the order of the rows reports where each source's rows are in the outputs. So a deleted position in
a source is a position in an output, and an equality delete is looked up among the sources' keys. Both become
position deletes on the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from lakewarden.errors import CommitLost
from lakewarden.jobs.run_context import RunContext, StepName
from lakewarden.model.table import TableView
from lakewarden.rewrite.deletes.remap import RemapTask, remap
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.store import MissingSource
from lakewarden.rewrite.task import SlicePart
from lakewarden.spark.tasks import fan_out
from lakewarden.tables.interface import ConcurrentDelete


class ConcurrentDeletes:
    """Takes in deletes for one commit.

    `written`: all delete files that it wrote. `used`: those of the newest attempt. Delete files of failed attempts are not
    part of the table.
    """

    def __init__(
        self,
        context: RunContext,
        view: TableView,
        parts: Mapping[str, tuple[SlicePart, ...]],
        task: Callable[[str], RemapTask],
    ) -> None:
        """`task` makes the remapping of one output, before any delete is given to it."""
        self._context = context
        self._view = view
        self._parts = parts
        self._task = task
        self._number = count(1)
        self.written: list[str] = []
        self.used: list[str] = []
        self.rows = 0

    def positions(self, arrived: Sequence[ConcurrentDelete]) -> Mapping[str, Any]:
        tasks = [task for path in self._parts if (task := self._with(path, arrived)) is not None]
        self.rows = 0
        if not tasks:
            return {}
        # Its own job group: stopping the run must not stop a commit that has begun.
        group, what = f"{self._context.run_id}-deletes", f"lakewarden {self._view.ref}: deletes"
        found = fan_out(self._context.spark, _remap, tasks, group, what)
        troubled = next((each for each in found if isinstance(each, str)), None)
        if troubled is not None:
            raise CommitLost(table=self._view.ref, reason=f"new deletes cannot be carried over: {troubled}")
        struck = {task.output: each for task, each in zip(tasks, found, strict=True) if len(each)}
        self.rows = sum(len(each) for each in struck.values())
        return struck

    def _with(self, path: str, arrived: Sequence[ConcurrentDelete]) -> RemapTask | None:
        sources = {part.slice.path for part in self._parts[path]}
        applying = [each for each in arrived if sources.intersection(each.applies_to)]
        if not applying:
            return None
        return self._task(path).with_deletes(
            tuple(each.file for each in applying),
            [frozenset(each.applies_to) for each in applying],
        )

    def place(self, output: str, format_: str) -> str:
        """Beside the output, named after it, with a number: a second attempt never overwrites what a first one wrote."""
        stem = output.rsplit(".", 1)[0]
        path = f"{stem}-deletes-{next(self._number)}.{format_}"
        self.written.append(path)
        self._context.step(StepName.CARRYING, {"path": path})
        return path


def _remap(task: RemapTask) -> Any:
    """Runs in a Spark task. A failure is returned as its reason, because Spark would retry after an exception."""
    try:
        return remap(task)
    except (Unfit, MissingSource) as error:
        return str(error)
