"""Runs on the screen: one run, the journal, and a whole pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import (
    age,
    average,
    counted,
    duration,
    known_size,
    moment,
    number,
    percent,
    size,
    some,
)
from lakewarden.model.plain import pick
from lakewarden.model.run import Job, Run, RunState, Step
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

# What to do next, where the state alone does not say it.
NEXT = {
    RunState.PARTIAL: "the committed part stays; run it again for the rest",
    RunState.LOST_RACE: "nothing changed: another writer rewrote the same files first; run it again",
    RunState.REFUSED: "nothing changed",
    RunState.UNKNOWN: "nothing was removed; the next run of this job reads the table and settles it",
    RunState.FAILED: "uncommitted files were removed; earlier commits of this run stay",
    RunState.INTERRUPTED: "commits of this run stay, uncommitted files were removed; run it again for the rest",
}

# The same for a purge.
_NEXT_OF_PURGE = {
    RunState.PARTIAL: "every deleted file has a receipt, the rest is still in the trash; run it again",
    RunState.FAILED: "every deleted file has a receipt, the rest is still in the trash; fix the cause and run it again",
    RunState.INTERRUPTED: "every deleted file has a receipt, the rest is still in the trash; run it again",
}


def what_next(run: Run) -> str:
    words = {**NEXT, **_NEXT_OF_PURGE} if run.job == Job.PURGE else NEXT
    return words.get(run.state, "")


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run. `steps` only if they were read from the journal."""

    run: Run
    steps: tuple[Step, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        document = {**self.run.to_dict(), "seconds": seconds(self.run), "next": what_next(self.run)}
        if self.steps is not None:
            document["steps"] = [pick(each, "seq name at detail") for each in self.steps]
            document["policy"] = dict(self.run.policy)
        return document

    def render(self, width: int) -> RenderableType:
        run = self.run
        return look.stack(
            Text.assemble(look.title(run.job, run.table), "  ", look.state(run.state)),
            look.facts(_facts(run, full=self.steps is not None)),
            _kept(run.plan),
            None if self.steps is None else _journal(self.steps),
        )


@dataclass(frozen=True, slots=True)
class PassReport:
    """Every run of one pass over a table."""

    table: str
    runs: tuple[Run, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of the first run that failed."""
        return next((run.state.exit_code for run in self.runs if run.state.exit_code), 0)

    def to_dict(self) -> dict[str, Any]:
        return {"table": self.table, "runs": [RunReport(run).to_dict() for run in self.runs]}

    def render(self, width: int) -> RenderableType:
        return look.stack(*(RunReport(run).render(width) for run in self.runs))


@dataclass(frozen=True, slots=True)
class RunsReport:
    runs: tuple[Run, ...]
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"runs": [_brief(run) for run in self.runs]}

    def render(self, width: int) -> RenderableType:
        if not self.runs:
            return look.dim("no runs yet")
        rows = [
            (run.id, run.table, run.job, look.state(run.state), age(run.started_at, self.now), result(run))
            for run in self.runs
        ]
        headings = ("run", "table", "job", "state", "started", "result")
        return look.lines(rows, look.left(len(headings)), headings, indent=0)


def seconds(run: Run) -> float | None:
    return None if run.ended_at is None else round((run.ended_at - run.started_at).total_seconds(), 2)


def result(run: Run) -> str:
    """One line: what the run changed, and its reason if it has one."""
    change = _change(run.counters)
    return "; ".join(part for part in (change, run.reason) if part)


def _change(counters: Mapping[str, Any]) -> str:
    if counters.get("files_compacted"):
        return f"{number(counters['files_compacted'])} → {number(counters['files_added'])} files"
    if counters.get("manifests_after"):
        return f"{number(counters['manifests_before'])} → {number(counters['manifests_after'])} manifests"
    return _cleaned(counters)


def _cleaned(counters: Mapping[str, Any]) -> str:
    """The result of jobs that trash and delete."""
    parts = []
    if counters.get("partitions_dropped"):
        files, bytes_ = counters["files_dropped"], counters["bytes_dropped"]
        parts.append(f"{counted(counters['partitions_dropped'], 'partition')} dropped")
        parts.append(f"{counted(files, 'file')}, {counted(counters['rows_dropped'], 'row')}, {size(bytes_)}")
    if "snapshots_handed_off" in counters:
        parts.append(
            f"{counted(counters['snapshots_handed_off'], 'snapshot')} handed off, "
            f"{counted(counters['files_copied'], 'file')} copied, {size(counters['bytes_copied'])}"
        )
    if counters.get("snapshots_expired"):
        parts.append(f"{counted(counters['snapshots_expired'], 'snapshot')} expired")
    if counters.get("changelogs_expired"):
        parts.append(f"{counted(counters['changelogs_expired'], 'changelog')} expired")
    if counters.get("files_trashed"):
        parts.append(_trashed(counters))
    if counters.get("files_erased"):
        parts.append(
            f"{counted(counters['files_erased'], 'file')} deleted, {size(counters['bytes_erased'])} free"
        )
    if counters.get("files_missing"):
        parts.append(f"{counted(counters['files_missing'], 'file')} already gone")
    if counters.get("entries_folded"):
        entries, months = counters["entries_folded"], counters["months_folded"]
        parts.append(f"{counted(entries, 'entry', 'entries')} of {counted(months, 'month')} folded")
    return ", ".join(parts)


def _trashed(counters: Mapping[str, Any]) -> str:
    files, bytes_, unsized = (
        counters.get(name) for name in ("files_trashed", "bytes_trashed", "files_trashed_unsized")
    )
    return f"{counted(files or 0, 'file')} trashed, {known_size(bytes_ or 0, files or 0, unsized)}"


def _brief(run: Run) -> dict[str, Any]:
    """A journal line; the plan can be long, and `run-show` has it."""
    document = {**run.to_dict(), "seconds": seconds(run)}
    del document["plan"]
    return document


def _facts(run: Run, *, full: bool) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    counters = run.counters
    if counters.get("files_compacted"):
        rows.extend(_files(counters))
    elif _change(counters):
        rows.append(("changed", _change(counters)))
    if run.reason:
        rows.append(
            ("why" if run.state in (RunState.DONE, RunState.NOTHING_TO_DO) else "what happened", run.reason)
        )
    if counters.get("groups_skipped"):
        rows.append(("left", f"{counted(counters['groups_skipped'], 'group')} of this plan"))
    if run.snapshot_ids:
        ids = some([str(each) for each in run.snapshot_ids])
        rows.append(("commits", f"{number(len(run.snapshot_ids))}: snapshot {ids}"))
    rows.append(("run", run.id + _took(run)))
    if full:
        rows.extend(_circumstances(run))
    if what_next(run):
        rows.append(("next", what_next(run)))
    return rows


def _files(counters: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
    before, after = counters["files_compacted"], counters["files_added"]
    old, new = counters["bytes_before"], counters["bytes_after"]
    saved = f", {percent(old - new, old)} saved" if new < old else ""
    return [
        ("files", f"{number(before)} → {number(after)}"),
        ("average", f"{average(old, before)} → {average(new, after)}"),
        ("data", f"{size(old)} → {size(new)}{saved}, {counted(counters['rows'], 'row')}"),
        *_deletes(counters),
        *_clustering(counters),
        *_exchanged(counters),
        *_pace(counters),
    ]


def _deletes(counters: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
    """Rows deleted before the rewrite, which it left out, and rows deleted during it, which it carried over."""
    parts = []
    if counters.get("rows_erased"):
        parts.append(f"{counted(counters['rows_erased'], 'deleted row')} left out")
    if counters.get("deletes_carried_over"):
        parts.append(
            f"{counted(counters['deletes_carried_over'], 'row')} deleted during the rewrite, carried over"
        )
    if counters.get("delete_files_dropped"):
        parts.append(f"{counted(counters['delete_files_dropped'], 'delete file')} dropped")
    return [("deletes", ", ".join(parts))] if parts else []


def _clustering(counters: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
    found = counters.get("clustering") or {}
    parts = [
        f"{name} {percent(each['before'], 1)} → {percent(each['after'], 1)}" for name, each in found.items()
    ]
    return [("one value", f"opens of a partition's files, by {', by '.join(parts)}")] if parts else []


def _exchanged(counters: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
    """Groups that more memory would make faster."""
    groups = counters.get("groups_exchanged")
    if not groups:
        return []
    return [
        (
            "memory",
            f"{counted(groups, 'group')} too large for one task ([engine] task_memory_mb), ordered by several",
        )
    ]


def _pace(counters: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
    """Only if a budget slowed the run down."""
    if not counters.get("throttled_seconds") and not counters.get("backoff_seconds"):
        return []
    rates = f"{counters['read_mb_per_s']:g} MB/s read, {counters['write_mb_per_s']:g} MB/s written"
    waited = counters.get("backoff_seconds")
    return [("pace", rates + (f", {duration(waited)} of back-off" if waited else ""))]


def _took(run: Run) -> str:
    took = seconds(run)
    if took is None:
        return ""
    cpu = run.counters.get("task_cpu_seconds")
    return f", {duration(took)}" + (f" ({duration(cpu)} CPU in tasks)" if cpu else "")


def _circumstances(run: Run) -> list[tuple[str, str | Text]]:
    trigger = run.trigger
    by = f" by {trigger.operator}" if trigger.operator else ""
    ticket = f", ticket {trigger.ticket}" if trigger.ticket else ""
    rows: list[tuple[str, str | Text]] = [
        ("trigger", f"{trigger.type}{by}{ticket}"),
        ("owner", str(run.owner)),
        ("started", moment(run.started_at)),
    ]
    if run.ended_at:
        rows.append(("ended", moment(run.ended_at)))
    if run.plan.get("reason"):
        rows.append(("plan", str(run.plan["reason"])))
    return rows


def _kept(plan: Mapping[str, Any]) -> RenderableType | None:
    rows = [
        (
            Text("keep", style="green"),
            counted(each["count"], each["what"]),
            size(each["bytes"]),
            each["reason"],
        )
        for each in plan.get("skipped", ())
    ]
    return look.lines(rows, ("left", "right", "right", "left")) if rows else None


def _journal(steps: tuple[Step, ...]) -> RenderableType:
    rows = [(f"{step.at:%H:%M:%S}", step.name, _detail(step.detail)) for step in steps]
    return look.stack(Text("  steps", style="dim"), look.lines(rows, ("left", "left", "left"), indent=4))


def _detail(detail: Mapping[str, Any]) -> str:
    """Lists of paths are counted here; `--json` has them."""
    return ", ".join(f"{key} {_short(value)}" for key, value in detail.items() if key != "summary")


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return counted(
            sum(len(each) if isinstance(each, list) else 1 for each in value.values()), "entry", "entries"
        )
    if isinstance(value, list):
        return ", ".join(map(str, value)) if len(str(value)) < 40 else number(len(value))
    return str(value)
