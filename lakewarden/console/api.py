"""The REST API. The reading part has everything that the command line reads, with the fields of `--json`. Each
route of the acting part calls a function of `actions`, which records who did it.

Handlers are plain functions, so each runs on its own thread and does not block the others. Most read only the
state database. Those that read a table say so: they start Spark on the first call, and only a few of them run
at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Security
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.console import actions as console_actions
from lakewarden.console import queries
from lakewarden.console.answers import API, named
from lakewarden.console.auth import Identity, operator, reader, warden_of
from lakewarden.console.limits import Heavy, with_policy
from lakewarden.lineage.audit import Downstream
from lakewarden.model.table import printed
from lakewarden.policy.keys import KEYS
from lakewarden.report.audit import DownstreamReport, GapsReport, HistoryReport, IngestedReport, WhoReport
from lakewarden.report.cost import CostReport
from lakewarden.report.holds import HeartbeatsReport, HoldsReport, PinReport, PinsReport
from lakewarden.report.plan import PlanReport
from lakewarden.report.policy import PolicyReport
from lakewarden.report.run import RunReport, RunsReport
from lakewarden.report.snapshot_location import WhereReport
from lakewarden.report.table import TableReport
from lakewarden.report.trash import ReceiptsReport, RestoreReport, TrashedReport
from lakewarden.version import build

T = TypeVar("T")


def _heavy(request: Request) -> Heavy:
    found: Heavy = request.app.state.heavy
    return found


Warden = Annotated[Lakewarden, Depends(warden_of)]
Reader = Annotated[Identity, Depends(reader)]
Limit = Annotated[int, Query(ge=1, le=1000, description="return at most this many, newest first")]
# Snapshot ids of both formats fit into 64 bits.
SnapshotId = Annotated[int, Query(ge=0, lt=1 << 63)]
WhichSnapshot = Annotated[int, Path(ge=0, lt=1 << 63)]
# The table name in a path, in any spelling.
Named = Annotated[str, Path(), AfterValidator(printed)]
Live = Annotated[
    bool, Query(description="also read the live table, which needs Spark; otherwise only stored data")
]

router = APIRouter(
    prefix=API, dependencies=[Depends(reader), Security(HTTPBearer(auto_error=False, scheme_name="token"))]
)


def api_router() -> APIRouter:
    """The reading and the acting routes together."""

    whole = APIRouter()
    whole.include_router(router)
    whole.include_router(action_router)
    return whole


def listed(name: str, values: Iterable[Any]) -> JSONResponse:
    return JSONResponse({name: [each.to_dict() for each in values]})


# ------------------------------------------------------------ the whole lake


@router.get("/tables", tags=["tables"])
def tables(warden: Warden) -> JSONResponse:
    """Every known table that exists: health, open warnings, whether it is suspended."""
    with warden.state.one_look():
        return JSONResponse(queries.fleet(warden))


@router.get("/runs", tags=["runs"])
def runs(warden: Warden, table: str | None = None, limit: Limit = 50) -> JSONResponse:
    """Runs from the journal, newest first."""
    return JSONResponse(RunsReport(warden.runs(table, limit), clock.now()).to_dict())


@router.get("/runs/{run_id}", tags=["runs"])
def run(warden: Warden, run_id: str) -> JSONResponse:
    """One run with its plan and steps, and its progress while it is open."""
    with named():
        return JSONResponse(queries.run(warden, run_id))


@router.get("/requests", tags=["requests"])
def requests(warden: Warden, table: str | None = None, limit: Limit = 50) -> JSONResponse:
    """Requested passes and their outcome, newest first."""
    return listed("requests", warden.schedule.requests(table, limit))


@router.get("/requests/{request_id}", tags=["requests"])
def request(warden: Warden, request_id: str) -> JSONResponse:
    """One requested pass."""
    with named():
        return JSONResponse(warden.schedule.request_by_id(request_id).to_dict())


@router.get("/pins", tags=["holds"])
def pins(warden: Warden, table: str | None = None) -> JSONResponse:
    """Every pin, including expired ones."""
    return JSONResponse(PinsReport(warden.holds.pins(table), clock.now()).to_dict())


@router.get("/warnings", tags=["health"])
def warnings(
    warden: Warden, table: str | None = None, cleared: Annotated[int, Query(ge=0, le=1000)] = 0
) -> JSONResponse:
    """Open warnings, longest first; optionally also closed ones."""
    return listed("warnings", warden.health.warnings(table, cleared))


@router.get("/standings", tags=["worker"])
def standings(warden: Warden) -> JSONResponse:
    """The schedule's state of every table."""
    return listed("standings", warden.schedule.standings())


@router.get("/suspended", tags=["worker"])
def suspended(warden: Warden) -> JSONResponse:
    """Suspended tables with the reason; also dropped ones, which stay suspended if they are created again."""
    return listed("suspended", warden.schedule.suspended().values())


@router.get("/leader", tags=["worker"])
def leader(warden: Warden) -> JSONResponse:
    """The worker that leads; null if none ever did."""
    found = warden.schedule.leader()
    return JSONResponse({"leader": found.to_dict() if found else None})


@router.get("/schedule", tags=["worker"])
def schedule(warden: Warden) -> JSONResponse:
    """When tables are due, and when nothing is started."""
    budgets = warden.config.budgets
    return JSONResponse(
        {
            **warden.config.schedule.to_dict(),
            "pause_compaction": list(budgets.pause_compaction),
            "pause_expiry": list(budgets.pause_expiry),
        }
    )


@router.get("/actions", tags=["operators"])
def actions(warden: Warden, target: str | None = None, limit: Limit = 100) -> JSONResponse:
    """Operators' actions and rejected requests, newest first."""
    return listed("actions", queries.operator_actions(warden, target, limit))


@router.get("/config", tags=["operators"])
def config(warden: Warden) -> JSONResponse:
    """The current settings, without secrets."""
    return JSONResponse(warden.config.to_dict())


@router.get("/policy-keys", tags=["policy"])
def policy_keys() -> JSONResponse:
    """Every policy key with its type and meaning."""
    rows = [
        {
            "key": each.name,
            "default": each.default,
            "allowed": each.allowed(),
            "sentence": each.sentence,
            "by_property": each.by_property,
        }
        for each in KEYS
    ]
    return JSONResponse({"keys": rows})


@router.get("/me", tags=["operators"])
def me(who: Reader) -> JSONResponse:
    """The identity of the caller and its role. A script of a page sends `csrf` as X-CSRF-Token; it is null if
    the caller uses a token."""
    return JSONResponse({"name": who.name, "role": who.role, "csrf": who.csrf or None, "version": build()})


# ------------------------------------------------------------ one table


@router.get("/tables/{table}", tags=["tables"])
def table(warden: Warden, table: Named) -> JSONResponse:
    """One table as last seen, with its details, warnings and schedule state."""
    with warden.state.one_look():
        return JSONResponse(queries.table(warden, table))


@router.get("/tables/{table}/show", tags=["tables"])
def show(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """The table now, and what each job but sweep would do. Reads the table: needs Spark."""
    return JSONResponse(_heavy(request).read(lambda: TableReport.read(warden, table)).to_dict())


@router.get("/tables/{table}/plan/{job}", tags=["tables"])
def plan(request: Request, warden: Warden, table: Named, job: str) -> JSONResponse:
    """What a job would do to the table now, and what it would skip. Reads the table: needs Spark."""
    made = _heavy(request).read(lambda: warden.plan(job, table))
    return JSONResponse(PlanReport(made, "").to_dict())


@router.get("/tables/{table}/health", tags=["health"])
def health(
    warden: Warden,
    table: Named,
    days: Annotated[float, Query(gt=0, le=3650)] = 7,
    points: Annotated[int, Query(ge=1, le=5000, description="return at most this many, evenly spread")] = 500,
) -> JSONResponse:
    """Earlier health numbers of the table, oldest first."""
    return JSONResponse(queries.health_history(warden, table, days, points))


@router.get("/tables/{table}/policy", tags=["policy"])
def policy(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """Every policy key with its value and origin. Needs Spark if the table was never read."""
    found = with_policy(request, table, lambda: warden.policy(table))
    return JSONResponse(PolicyReport(found).to_dict())


@router.get("/tables/{table}/trash", tags=["deleting"])
def trashed(warden: Warden, table: Named, limit: Limit = 50) -> JSONResponse:
    """Files marked for deletion: why, and when they may be deleted."""
    ref = queries.known(warden, table)
    return JSONResponse(TrashedReport(str(ref), warden.trash(ref, limit), clock.now()).to_dict())


@router.get("/tables/{table}/receipts", tags=["deleting"])
def receipts(warden: Warden, table: Named, limit: Limit = 50) -> JSONResponse:
    """Files deleted from the table: when, why and by which run."""
    ref = queries.known(warden, table)
    return JSONResponse(ReceiptsReport(str(ref), warden.receipts(ref, limit), clock.now()).to_dict())


@router.get("/tables/{table}/holds", tags=["holds"])
def holds(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """The holds on the table's snapshots and files, and the bytes kept because of each. Reads the table:
    needs Spark."""
    found = _heavy(request).read(lambda: warden.holds.costs(table))
    kept, sizes = tuple(each for each, _ in found), tuple(cost for _, cost in found)
    return JSONResponse(HoldsReport(table, kept, clock.now(), sizes).to_dict())


@router.get("/tables/{table}/heartbeats", tags=["holds"])
def heartbeats(warden: Warden, table: Named) -> JSONResponse:
    """Every known writer, including inactive ones."""
    ref = queries.known(warden, table)
    return JSONResponse(HeartbeatsReport(str(ref), warden.holds.heartbeats(ref), clock.now()).to_dict())


@router.get("/tables/{table}/where", tags=["tables"])
def where(
    request: Request,
    warden: Warden,
    table: Named,
    snapshot: SnapshotId | None = None,
    as_of: str | None = None,
    tag: str | None = None,
) -> JSONResponse:
    """The catalog that has a snapshot, a time or a tag of the table. Reads the table: needs Spark."""
    found = _heavy(request).read(
        lambda: warden.tiers.where(table, snapshot_id=snapshot, as_of=as_of, tag=tag)
    )
    return JSONResponse(WhereReport(table, found).to_dict())


@router.get("/tables/{table}/cost", tags=["tables"])
def cost(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """What the table costs per month in each tier. Reads the table: needs Spark."""
    found = _heavy(request).read(lambda: warden.tiers.cost(table))
    return JSONResponse(CostReport(found).to_dict())


# ------------------------------------------------------------ a table's past


def _past(request: Request, live: bool, ask: Callable[[], T]) -> T:
    """Answers with live snapshots too need Spark."""
    return _heavy(request).read(ask) if live else ask()


@router.get("/tables/{table}/history", tags=["past"])
def history(
    request: Request, warden: Warden, table: Named, limit: Limit = 50, live: Live = False
) -> JSONResponse:
    """The table's commits, newest first, and folded ranges of expired ones."""
    found = _past(request, live, lambda: warden.history.of(table, limit, history_only=not live))
    return JSONResponse(HistoryReport(found).to_dict())


@router.get("/tables/{table}/audit/who", tags=["past"])
def audit_who(
    request: Request,
    warden: Warden,
    table: Named,
    operation: str | None = None,
    since: str | None = None,
    until: str | None = None,
    live: Live = False,
) -> JSONResponse:
    """Who triggered the table's commits."""
    found = _past(
        request,
        live,
        lambda: warden.history.who(
            table, operation=operation, since=since, until=until, history_only=not live
        ),
    )
    return JSONResponse(WhoReport(found).to_dict())


@router.get("/tables/{table}/audit/gaps", tags=["past"])
def audit_gaps(request: Request, warden: Warden, table: Named, live: Live = False) -> JSONResponse:
    """Commits without the lineage that the table's policy requires."""
    found = _past(request, live, lambda: warden.history.gaps(table, history_only=not live))
    return JSONResponse(GapsReport(found).to_dict())


@router.get("/tables/{table}/audit/ingested", tags=["past"])
def audit_ingested(
    request: Request,
    warden: Warden,
    table: Named,
    row_filter: str | None = None,
    file: str | None = None,
    snapshot: SnapshotId | None = None,
    live: Live = False,
) -> JSONResponse:
    """When data was added, and by which writer and commit."""
    found = _past(
        request,
        live,
        lambda: warden.history.ingested(
            table, row_filter=row_filter, file=file, snapshot_id=snapshot, history_only=not live
        ),
    )
    return JSONResponse(IngestedReport(found).to_dict())


@router.get("/tables/{table}/audit/downstream/{snapshot}", tags=["past"])
def audit_downstream(
    request: Request,
    warden: Warden,
    table: Named,
    snapshot: WhichSnapshot,
    carried: bool = False,
    live: Live = False,
) -> JSONResponse:
    """All snapshots derived from a snapshot, directly or indirectly. Reads every table's history: takes
    seconds with many tables."""

    def downstream() -> Downstream:
        with nullcontext() if live else warden.state.one_look():
            return warden.history.downstream(table, snapshot, carried=carried, history_only=not live)

    return JSONResponse(DownstreamReport(_heavy(request).read(downstream)).to_dict())


Operator = Annotated[Identity, Depends(operator)]
_TEXT = 2000

action_router = APIRouter(
    prefix=API,
    tags=["acting"],
    dependencies=[Depends(operator), Security(HTTPBearer(auto_error=False, scheme_name="token"))],
)


class _Body(BaseModel):
    """The base of request bodies. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class MaintainBody(_Body):
    ticket: str | None = Field(None, max_length=_TEXT, description="what the pass is for")


class PinBody(_Body):
    snapshot: int | None = Field(
        None, ge=0, lt=1 << 63, description="the snapshot to pin; default: the current one"
    )
    holder: str | None = Field(None, max_length=_TEXT, description="who needs it; default: the operator")
    purpose: str = Field("", max_length=_TEXT)
    ttl: str | None = Field(None, description="how long, such as 30m, 2h, 7d; default: forever")


class PolicyBody(_Body):
    set: dict[str, Any] = Field(default_factory=dict, description="policy keys and their new values")
    unset: list[str] = Field(default_factory=list, description="keys to remove")
    reset: bool = Field(False, description="first remove all values stored for the table")


class RestoreBody(_Body):
    path: str | None = Field(None, description="restore this file")
    run: str | None = Field(None, description="restore the files that this run trashed")
    everything: bool = Field(False, description="restore all trashed files")


class SuspendBody(_Body):
    reason: str = Field(max_length=_TEXT)


@action_router.post("/tables/{table}/requests", status_code=202)
def request_pass(
    warden: Warden, who: Operator, table: Named, body: MaintainBody | None = None
) -> JSONResponse:
    """Request a whole pass from the worker. A table has one pending request: asking again refreshes it."""
    made = console_actions.request_pass(warden, who, table, body.ticket if body else None)
    return JSONResponse(made.to_dict(), 202)


@action_router.post("/runs/{run_id}/cancel", status_code=202)
def cancel(warden: Warden, who: Operator, run_id: str) -> JSONResponse:
    """Ask the run's process to stop it cleanly; it ends as interrupted within seconds. 409 if it has ended."""
    with named(404 if warden.journal.get(run_id) is None else 409):
        return JSONResponse(RunReport(console_actions.cancel(warden, who, run_id)).to_dict(), 202)


@action_router.post("/tables/{table}/pins", status_code=201)
def pin(request: Request, warden: Warden, who: Operator, table: Named, body: PinBody) -> JSONResponse:
    """Pin a snapshot, so that it stays readable. Reads the table: needs Spark."""
    heavy: Heavy = request.app.state.heavy
    made = heavy.act(
        lambda: console_actions.pin(
            warden, who, table, body.snapshot, holder=body.holder, purpose=body.purpose, ttl=body.ttl
        )
    )
    return JSONResponse(PinReport(made, clock.now()).to_dict(), 201)


@action_router.api_route("/pins/{pin_id}", methods=["DELETE"])
def unpin(warden: Warden, who: Operator, pin_id: str) -> JSONResponse:
    """Remove a pin; its snapshot stays until it expires."""
    with named():
        gone = console_actions.unpin(warden, who, pin_id)
    return JSONResponse(PinReport(gone, clock.now(), removed=True).to_dict())


@action_router.patch("/tables/{table}/policy")
def set_policy(
    request: Request, warden: Warden, who: Operator, table: Named, body: PolicyBody
) -> JSONResponse:
    """Change the policy values stored for the table. If one value is wrong, none is changed."""
    before, after = with_policy(
        request,
        table,
        lambda: console_actions.set_policy(
            warden, who, table, body.set, unset=tuple(body.unset), reset=body.reset
        ),
        acts=True,
    )
    return JSONResponse(PolicyReport(after, before).to_dict())


@action_router.post("/tables/{table}/restore")
def restore(warden: Warden, who: Operator, table: Named, body: RestoreBody) -> JSONResponse:
    """Restore trashed files permanently: one, those of a run, or all."""
    found = console_actions.restore(
        warden, who, table, path=body.path, run=body.run, everything=body.everything
    )
    return JSONResponse(RestoreReport(table, found).to_dict())


@action_router.post("/tables/{table}/suspend")
def suspend(warden: Warden, who: Operator, table: Named, body: SuspendBody) -> JSONResponse:
    """Remove the table from the schedule until it is resumed. Requests and manual runs still work."""
    return JSONResponse(console_actions.suspend(warden, who, table, body.reason).to_dict())


@action_router.post("/tables/{table}/resume")
def resume(warden: Warden, who: Operator, table: Named) -> JSONResponse:
    """Put the table back into the schedule and reset its failure count."""
    return JSONResponse({"table": table, "was_suspended": console_actions.resume(warden, who, table)})
