"""Runs under way and how far each is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lakewarden.client import Lakewarden
from lakewarden.console import queries
from lakewarden.model.plain import Plain
from lakewarden.model.run import Run
from lakewarden.state.runs import ProgressPoint

# A run that says nothing for so long is told as silent; its owner may be gone.
_SILENT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class RunningRun(Plain):
    """`moment` is where it was when it last said so."""

    run: Run
    moment: ProgressPoint | None
    now: datetime

    JSON_KEYS = (
        "run=run.id table=run.table job=run.job started_at=run.started_at owner=run.owner "
        "progress=moment share:4 silent"
    )

    @property
    def share(self) -> float | None:
        """From 0 to 1; None where nobody knows how much there is."""
        if self.moment is None or not self.moment.total_bytes:
            return None
        return min(self.moment.done_bytes / self.moment.total_bytes, 1.0)

    @property
    def silent(self) -> bool:
        heard = max(
            filter(None, (self.run.beat_at, self.moment.at if self.moment else None)),
            default=self.run.started_at,
        )
        return (self.now - heard).total_seconds() > _SILENT_SECONDS


def running(warden: Lakewarden, now: datetime, table: str | None = None) -> tuple[RunningRun, ...]:
    found = [run for run in queries.running(warden) if table is None or run.table == table]
    return tuple(RunningRun(run, warden.schedule.progress_of(run.id), now) for run in found)
