"""The second engine: the format's own rewrite on Spark. It takes over where the kernel cannot, and serves as a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakewarden.model.actions import RewriteGroup
from lakewarden.rewrite.interface import GroupResult, Order, RewriteProblem
from lakewarden.spark.tasks import cancel
from lakewarden.tables.interface import RewriteSupport
from lakewarden.tables.jvm import JavaError, is_java, java_reason


class NativeEngine:
    def __init__(self, spark: Any, run_id: str, rewrites: RewriteSupport, name: str) -> None:
        self._spark = spark
        self._run_id = run_id
        self._rewrites = rewrites
        self.name = name

    def write(self, order: Order) -> Sequence[GroupResult]:
        self._spark.sparkContext.setJobGroup(
            self._run_id, f"lakewarden {order.view.ref}", interruptOnCancel=True
        )
        return [self._write(order, group) for group in order.groups]

    def cancel(self) -> None:
        cancel(self._spark, self._run_id)

    def _write(self, order: Order, group: RewriteGroup) -> GroupResult:
        plan = order.plan
        try:
            outputs = self._rewrites.rewrite_natively(
                order.view.ref, order.files, group, plan.strategy, plan.columns, plan.target_bytes
            )
        except JavaError as error:
            # When the format's writer fails it removes its output; nothing of the group is left to commit.
            missing = is_java(error, "NotFoundException", "FileNotFoundException")
            reason = java_reason(error)
            if group.engine_reason:  # why the kernel did not write it: fixing either cause is enough
                reason = f"{group.engine_reason}; {self.name}'s own writer, used instead, failed: {reason}"
            return GroupResult(
                group,
                (),
                RewriteProblem(False, "" if not missing else group.partition, reason),
                engine=self.name,
            )
        rows = sum(file.rows for file in outputs)
        return GroupResult(
            group,
            tuple(outputs),
            _rows_differ(group, rows, self.name),
            engine=self.name,
            erased=group.rows - rows,
        )


def _rows_differ(group: RewriteGroup, actual: int, writer: str) -> RewriteProblem | None:
    """Trouble if the row count changed: then it is no rewrite, whichever engine wrote it. Deletes may remove
    rows, never add.
    """
    if actual == group.rows or (group.deletes and actual < group.rows):
        return None
    return RewriteProblem(False, "", f"expected {group.rows} rows, {writer}'s own writer gave {actual}")
