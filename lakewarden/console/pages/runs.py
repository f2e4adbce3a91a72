"""The list of runs, and the page of one run: its plan, its steps and, while it is in progress, how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lakewarden.client import Lakewarden
from lakewarden.console import queries
from lakewarden.formatting import counted, number, size
from lakewarden.model.plain import Plain, pick
from lakewarden.model.run import Job, Run, RunState, Step
from lakewarden.report.run import RunReport, RunsReport, what_next
from lakewarden.state.runs import Cancel, ProgressPoint
from lakewarden.state.trash_batches import TrashedFile

PER_PAGE = 50
JOBS, STATES = tuple(map(str, Job)), tuple(map(str, RunState))
_RECEIPTS = 500


@dataclass(frozen=True, slots=True)
class RunsQuery:
    text: str = ""
    job: str = ""
    state: str = ""
    page: int = 1

    def but(self, **changes: Any) -> dict[str, str]:
        other = replace(self, **changes)
        asked = {"q": other.text, "job": other.job, "state": other.state}
        if other.page > 1:
            asked["page"] = str(other.page)
        return {name: value for name, value in asked.items() if value}


@dataclass(frozen=True, slots=True)
class RunsPage:
    now: datetime
    wish: RunsQuery
    runs: tuple[Run, ...]
    more: bool

    def to_dict(self) -> dict[str, Any]:
        return {**RunsReport(self.runs, self.now).to_dict(), "page": self.wish.page, "more": self.more}


def runs_page(warden: Lakewarden, wish: RunsQuery, now: datetime) -> RunsPage:
    start = (wish.page - 1) * PER_PAGE
    found = queries.find_runs(warden, wish.text, wish.job, wish.state, limit=PER_PAGE + 1, offset=start)
    return RunsPage(now, wish, found[:PER_PAGE], len(found) > PER_PAGE)


@dataclass(frozen=True, slots=True)
class RunPage:
    now: datetime
    run: Run
    steps: tuple[Step, ...]
    live: RunningRun | None
    cancel: Cancel | None
    receipts: tuple[TrashedFile, ...]  # the newest of them
    deleted: int

    @property
    def actions(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.run.plan.get("actions", ()))

    @property
    def skipped(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.run.plan.get("skipped", ()))

    @property
    def next(self) -> str:
        return what_next(self.run)

    def to_dict(self) -> dict[str, Any]:
        return {
            **RunReport(self.run, self.steps).to_dict(),
            **pick(self, "at=now live"),
            "cancel": pick(self.cancel, "by at") if self.cancel else None,
            "deleted": self.deleted,
            "receipts": [pick(each, "path size state") for each in self.receipts],
        }


def run_page(warden: Lakewarden, run_id: str, now: datetime) -> RunPage:
    run, steps = warden.run_by_id(run_id)
    live = RunningRun(run, warden.schedule.progress_of(run_id), now) if run.ended_at is None else None
    deletes = run.job == Job.PURGE
    return RunPage(
        now,
        run,
        steps,
        live,
        warden.schedule.cancelled(run_id),
        warden.receipts(run.table, _RECEIPTS, run_id) if deletes else (),
        queries.deleted_by(warden, run_id) if deletes else 0,
    )


def action_line(action: Mapping[str, Any]) -> tuple[str, str, str]:
    """Where, what changes, and how much: of an action as the journal has it."""
    where = str(action.get("partition") or "")
    if "spec_id" in action and not where:
        where = f"spec {action['spec_id']}"
    if action.get("batch"):
        where = f"deletion batch {action['batch']}"
    bytes_ = action.get("input_bytes", action.get("bytes"))
    return where or "the table", _change(action), "" if bytes_ is None else size(bytes_)


_COUNTED = (
    ("snapshots", "snapshot"),
    ("changelogs", "changelog"),
    ("buckets", "bucket"),
    ("files", "file"),
    ("input_files", "file"),
    ("input_manifests", "manifest"),
    ("delete_files", "delete file"),
    ("entries", "entry"),
    ("rows", "row"),
)


def _change(action: Mapping[str, Any]) -> str:
    kind = str(action.get("action", "")).replace("-", " ")
    if "output_files" in action:
        rows = f", {counted(action['rows'], 'row')}" if action.get("rows") else ""
        return f"{number(action['input_files'])} → {number(action['output_files'])} files{rows}"
    if "output_manifests" in action:
        return f"{number(action['input_manifests'])} → {number(action['output_manifests'])} manifests"
    parts = [
        counted(action[name], noun, "entries" if noun == "entry" else None)
        for name, noun in _COUNTED
        if isinstance(action.get(name), int)
    ]
    return f"{kind}: {', '.join(parts)}" if parts else kind


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
