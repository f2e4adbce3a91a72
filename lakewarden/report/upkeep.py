"""Upkeep on the screen: the schedule, requests, suspended tables, a run that was told to stop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import age, counted, duration
from lakewarden.model.run import Run
from lakewarden.report import look
from lakewarden.state.leases import Lease
from lakewarden.state.requests import Request, RequestState
from lakewarden.state.schedule import Suspension

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.worker.schedule import Decision, Due, Waiting

_STYLES = {"due": "bold green", "at-work": "cyan", "suspended": "bold red", "backing-off": "bold yellow"}


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Who leads, who is due in which order, and of everybody else why not and when."""

    decision: Decision
    leader: Lease | None

    def to_dict(self) -> dict[str, Any]:
        return {"leader": self.leader.to_dict() if self.leader else None, **self.decision.to_dict()}

    def render(self, width: int) -> RenderableType:
        decision = self.decision
        rows = [_due(each) for each in decision.due] + [
            _waiting(each, decision.at) for each in decision.waiting
        ]
        if not rows:
            return look.stack(leading(self.leader), look.dim("no worker has found any table yet"))
        headings = ("table", "state", "when", "debt", "jobs", "why")
        table = look.lines(rows, look.left(len(headings)), headings, indent=0, wraps=(4, 5))
        return look.stack(leading(self.leader), table)


def leading(leader: Lease | None) -> Text:
    if leader is None:
        return look.dim("no worker has ever led here; start one with `lakewarden worker`")
    if not leader.live:
        return Text(f"no worker leads; the last was {leader.holder}, term {leader.term}", style="bold yellow")
    return look.dim(f"{leader.holder} leads, term {leader.term}")


def _due(each: Due) -> tuple[str | Text, ...]:
    left = "".join(f"; left out {told}" for told in each.left_out)
    state = Text("due", style=_STYLES["due"])
    return each.table, state, "now", f"{each.debt:.0f}", ", ".join(each.jobs), each.reason + left


def _waiting(each: Waiting, now: datetime) -> tuple[str | Text, ...]:
    state = Text(str(each.why), style=_STYLES.get(each.why, "dim"))
    when = "–" if each.next_at is None else f"in {duration(max(0.0, (each.next_at - now).total_seconds()))}"
    # A whole pass is what the reason says; its eight jobs in every line would say nothing more.
    jobs = "" if each.whole else ", ".join(each.jobs)
    return each.table, state, when, f"{each.debt:.0f}", jobs, each.reason


_REQUEST_STYLES = {
    RequestState.PENDING: "cyan",
    RequestState.CLAIMED: "cyan",
    RequestState.DONE: "bold green",
    RequestState.FAILED: "bold red",
}


@dataclass(frozen=True, slots=True)
class RequestsReport:
    requests: tuple[Request, ...]
    now: datetime

    def to_dict(self) -> dict[str, Any]:
        return {"requests": [each.to_dict() for each in self.requests]}

    def render(self, width: int) -> RenderableType:
        if not self.requests:
            return look.dim("no requests yet")
        rows = [
            (
                each.id,
                each.table,
                Text(str(each.state), style=_REQUEST_STYLES[each.state]),
                age(each.refreshed_at, self.now),
                each.trigger.operator or each.trigger.type,
                _what_came(each),
            )
            for each in self.requests
        ]
        headings = ("request", "table", "state", "asked", "by", "result")
        return look.lines(rows, look.left(len(headings)), headings, indent=0)


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One that was filed; `leader` is who will do it, if anybody leads."""

    request: Request
    leader: Lease | None

    def to_dict(self) -> dict[str, Any]:
        led = self.leader is not None and self.leader.live
        return {**self.request.to_dict(), "led": led}

    def render(self, width: int) -> RenderableType:
        request = self.request
        rows: list[tuple[str, str | Text]] = [
            ("request", request.id),
            ("state", Text(str(request.state), style=_REQUEST_STYLES[request.state])),
            ("worker", leading(self.leader)),
            ("next", f"see it with `lakewarden requests {request.table}`"),
        ]
        return look.stack(look.title("maintain", request.table), look.facts(rows))


def _what_came(each: Request) -> str:
    runs = counted(len(each.run_ids), "run") if each.run_ids else ""
    return "; ".join(part for part in (runs, each.reason) if part)


@dataclass(frozen=True, slots=True)
class SuspensionReport:
    """A table that was suspended, or resumed: then `suspension` is None, and `was` tells whether it had been."""

    table: str
    suspension: Suspension | None
    was: bool = True

    def to_dict(self) -> dict[str, Any]:
        held = self.suspension
        return {
            "table": self.table,
            "suspended": held is not None,
            "was_suspended": self.was,
            "since": held.since.isoformat() if held else None,
            "reason": held.reason if held else None,
            "by": held.by if held else None,
        }

    def render(self, width: int) -> RenderableType:
        if self.suspension is not None:
            back = f"back with `lakewarden resume {self.table}`"
            return Text(f"{self.table} is suspended: {self.suspension.reason}; {back}")
        said = "is back in the schedule" if self.was else "was not suspended"
        return Text(f"{self.table} {said}")


@dataclass(frozen=True, slots=True)
class CancelReport:
    """A run whose driver has been asked to stop it."""

    run: Run
    by: str

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.run.id, "table": self.run.table, "job": self.run.job, "cancelled_by": self.by}

    def render(self, width: int) -> RenderableType:
        return Text(
            f"{self.run.owner} is asked to stop {self.run.job} of {self.run.table}; it ends within seconds: "
            f"see `lakewarden run-show {self.run.id}`"
        )
