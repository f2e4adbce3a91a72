"""Tables on the screen: the list, and one table with its due jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden import clock
from lakewarden.errors import LakewardenError
from lakewarden.formatting import age, average, counted, number, size
from lakewarden.lineage.summary import origin
from lakewarden.model.files import Manifest
from lakewarden.model.job_facts import JOBS
from lakewarden.model.plain import Plain, pick, to_plain
from lakewarden.model.plan import Plan
from lakewarden.model.run import Job
from lakewarden.model.table import Counters, Snapshot, TableRef, TableView
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.client import Lakewarden

SHOWN_COMMITS = 5


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the list: numbers, or the error why there are none."""

    table: str
    format: str = ""
    counters: Counters | None = None
    last_commit: datetime | None = None
    error: str = ""

    @classmethod
    def of(cls, view: TableView) -> TableRow:
        head = _head(view)
        return cls(str(view.ref), _format(view), view.counters, head.committed_at if head else None)

    def to_dict(self) -> dict[str, Any]:
        numbers = None if self.counters is None else _numbers(self.counters)
        return {**pick(self, "table format?"), "counters": numbers, **pick(self, "last_commit error?")}


@dataclass(frozen=True, slots=True)
class TablesReport(Plain):
    rows: tuple[TableRow, ...]
    now: datetime

    JSON_KEYS = "tables=rows"

    def render(self, width: int) -> RenderableType:
        if not self.rows:
            return look.dim("no tables in the configured catalogs")
        headings = ("table", "files", "average", "data", "deletes", "snapshots", "last commit")
        return look.lines(
            [self._line(row) for row in self.rows], ("left", *("right",) * 5, "left"), headings, indent=0
        )

    def _line(self, row: TableRow) -> tuple[str | Text, ...]:
        numbers = row.counters
        if numbers is None:
            return (row.table, *("–",) * 5, Text(row.error, style="red"))
        return (
            row.table,
            number(numbers.data_files),
            average(numbers.bytes, numbers.data_files),
            size(numbers.bytes),
            number(numbers.delete_files),
            number(numbers.snapshots),
            age(row.last_commit, self.now) if row.last_commit else "never",
        )


@dataclass(frozen=True, slots=True)
class JobForecast(Plain):
    """What one job would do now, in one sentence. `error`: it cannot be planned."""

    job: str
    due: bool
    reason: str
    error: bool = False

    @classmethod
    def planned(cls, lakewarden: Lakewarden, job: Job, table: str | TableRef) -> JobForecast:
        try:
            return cls.of(lakewarden.plan(job, table))
        except LakewardenError as error:  # a wrong policy of one job must not hide the rest of the table
            return cls.failed(job, error)

    @classmethod
    def of(cls, plan: Plan) -> JobForecast:
        return cls(str(plan.job), not plan.empty, plan.reason)

    @classmethod
    def failed(cls, job: str, error: LakewardenError) -> JobForecast:
        return cls(job, False, error.message, True)

    def line(self) -> tuple[Text, str, str]:
        if self.error:
            return Text("error", style="bold red"), self.job, self.reason
        return (
            Text("due", style="bold yellow") if self.due else Text("fine", style="green"),
            self.job,
            self.reason,
        )


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table as it is now, with what each job would do. `lakewarden show` and the REST API print it."""

    view: TableView
    manifests: tuple[Manifest, ...]
    due: tuple[JobForecast, ...]
    now: datetime

    @classmethod
    def read(cls, lakewarden: Lakewarden, table: str | TableRef) -> TableReport:
        """Reads the table. A job whose planning would list the whole table is left out."""
        view = lakewarden.health.counted(lakewarden.view(table))
        jobs = (job for job, facts in JOBS.items() if not facts.lists_table)
        due = tuple(JobForecast.planned(lakewarden, job, table) for job in jobs)
        return cls(view, lakewarden.health.manifests(view), due, clock.now())

    def to_dict(self) -> dict[str, Any]:
        view = self.view
        return {
            **pick(view, "table=ref format format_version uuid location current_snapshot_id"),
            "counters": {
                **_numbers(view.counters),
                "manifests": len(self.manifests),
                "manifest_bytes": sum(each.bytes for each in self.manifests),
            },
            "refs": [pick(each, "name kind snapshot_id") for each in view.refs],
            "commits": [_commit(each) for each in _newest(view)],
            "due": to_plain(self.due),
        }

    def render(self, width: int) -> RenderableType:
        return look.stack(
            look.title(str(self.view.ref), _format(self.view)),
            look.facts(self._facts()),
            Text("\ndue", style="bold"),
            look.lines([each.line() for each in self.due], ("left", "left", "left")),
            Text("\nnewest commits", style="bold") if self.view.snapshots else None,
            self._commits(),
        )

    def _facts(self) -> list[tuple[str, str | Text]]:
        numbers, head = self.view.counters, _head(self.view)
        sizes = f"{size(numbers.bytes)}, {average(numbers.bytes, numbers.data_files)} on average"
        manifests = f"{number(len(self.manifests))}, {size(sum(each.bytes for each in self.manifests))}"
        current = "none yet" if head is None else f"{head.id}, committed {age(head.committed_at, self.now)}"
        return [
            ("data files", f"{number(numbers.data_files)}, {sizes}"),
            ("delete files", number(numbers.delete_files)),
            ("rows", number(numbers.records)),
            ("snapshots", number(numbers.snapshots)),
            ("manifests", manifests),
            *_refs(self.view),
            ("current", current),
            ("location", self.view.location),
        ]

    def _commits(self) -> RenderableType | None:
        rows = [
            (age(each.committed_at, self.now), str(each.id), each.operation, origin(each))
            for each in _newest(self.view)
        ]
        return look.lines(rows, look.left(4)) if rows else None


def _refs(view: TableView) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    for kind, label in (("branch", "branches"), ("tag", "tags")):
        names = sorted(ref.name for ref in view.refs if ref.kind == kind)
        if names:
            rows.append((label, f"{counted(len(names), kind)}: {', '.join(names)}"))
    return rows


def _head(view: TableView) -> Snapshot | None:
    return None if view.current_snapshot_id is None else view.snapshot(view.current_snapshot_id)


def _newest(view: TableView) -> list[Snapshot]:
    return sorted(view.snapshots, key=lambda each: (each.committed_at, each.sequence_number), reverse=True)[
        :SHOWN_COMMITS
    ]


def _format(view: TableView) -> str:
    return f"{view.format} v{view.format_version}"


def _numbers(counters: Counters) -> dict[str, Any]:
    average_bytes = counters.bytes // counters.data_files if counters.data_files else 0
    return {
        **pick(counters, "data_files delete_files records bytes"),
        "average_file_bytes": average_bytes,
        "snapshots": counters.snapshots,
    }


def _commit(snapshot: Snapshot) -> dict[str, Any]:
    told = pick(snapshot, "snapshot_id=id parent_id committed_at operation")
    return {**told, "origin": origin(snapshot), "summary": dict(snapshot.summary)}
