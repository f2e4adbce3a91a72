"""The REST API, reading: everything the command line reads, with the fields of `--json`.

Handlers are plain functions, so each runs on a thread of its own and none holds up the others. Most ask the state database
alone; those that read a table say so, start Spark when first called, and only a few of them run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Security
from fastapi.security import HTTPBearer
from pydantic import AfterValidator
from starlette.responses import JSONResponse

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.console import queries, reads
from lakewarden.console.answers import API, named
from lakewarden.console.auth import Identity, reader
from lakewarden.console.limits import Heavy, with_policy
from lakewarden.lineage.audit import Downstream
from lakewarden.model.table_name import printed
from lakewarden.policy.keys import KEYS
from lakewarden.report.audit import DownstreamReport, GapsReport, HistoryReport, IngestedReport, WhoReport
from lakewarden.report.cost import CostReport
from lakewarden.report.holds import HeartbeatsReport, HoldsReport, PinsReport
from lakewarden.report.plan import PlanReport
from lakewarden.report.policy import PolicyReport
from lakewarden.report.run import RunsReport
from lakewarden.report.table import TableReport
from lakewarden.report.trash import ReceiptsReport, TrashedReport
from lakewarden.report.where import WhereReport
from lakewarden.version import build

T = TypeVar("T")


def _heavy(request: Request) -> Heavy:
    found: Heavy = request.app.state.heavy
    return found


def the_lake(request: Request) -> Lakewarden:
    found: Lakewarden = request.app.state.warden
    return found


Warden = Annotated[Lakewarden, Depends(the_lake)]
Reader = Annotated[Identity, Depends(reader)]
Limit = Annotated[int, Query(ge=1, le=1000, description="the newest so many")]
# Ids of both formats fit 64 bits.
SnapshotId = Annotated[int, Query(ge=0, lt=1 << 63)]
WhichSnapshot = Annotated[int, Path(ge=0, lt=1 << 63)]
# A table in a path, however it was written there.
Named = Annotated[str, Path(), AfterValidator(printed)]
Live = Annotated[
    bool, Query(description="read the table too, which needs Spark; else only what was written down")
]

router = APIRouter(
    prefix=API, dependencies=[Depends(reader), Security(HTTPBearer(auto_error=False, scheme_name="token"))]
)


def api_router() -> APIRouter:
    """Reading and acting together."""
    from lakewarden.console.api_actions import router as acting

    whole = APIRouter()
    whole.include_router(router)
    whole.include_router(acting)
    return whole


def listed(name: str, values: Iterable[Any]) -> JSONResponse:
    return JSONResponse({name: [each.to_dict() for each in values]})


# ------------------------------------------------------------ the whole lake


@router.get("/tables", tags=["tables"])
def tables(warden: Warden) -> JSONResponse:
    """Every known table that is not gone: health, open warnings, whether it is suspended."""
    with warden.state.one_look():
        return JSONResponse(reads.fleet(warden))


@router.get("/runs", tags=["runs"])
def runs(warden: Warden, table: str | None = None, limit: Limit = 50) -> JSONResponse:
    """The journal, the newest first."""
    return JSONResponse(RunsReport(warden.runs(table, limit), clock.now()).to_dict())


@router.get("/runs/{run_id}", tags=["runs"])
def run(warden: Warden, run_id: str) -> JSONResponse:
    """One run with its plan and steps and, while it is under way, how far it is."""
    with named():
        return JSONResponse(reads.run(warden, run_id))


@router.get("/requests", tags=["requests"])
def requests(warden: Warden, table: str | None = None, limit: Limit = 50) -> JSONResponse:
    """Passes that were asked for and what became of them, the newest first."""
    return listed("requests", warden.schedule.requests(table, limit))


@router.get("/requests/{request_id}", tags=["requests"])
def request(warden: Warden, request_id: str) -> JSONResponse:
    """One request as it stands."""
    with named():
        return JSONResponse(warden.schedule.request_by_id(request_id).to_dict())


@router.get("/pins", tags=["holds"])
def pins(warden: Warden, table: str | None = None) -> JSONResponse:
    """Every pin, also those whose time is over."""
    return JSONResponse(PinsReport(warden.holds.pins(table), clock.now()).to_dict())


@router.get("/warnings", tags=["health"])
def warnings(
    warden: Warden, table: str | None = None, cleared: Annotated[int, Query(ge=0, le=1000)] = 0
) -> JSONResponse:
    """What is wrong, the longest first; and so many warnings that are over."""
    return listed("warnings", warden.health.warnings(table, cleared))


@router.get("/standings", tags=["worker"])
def standings(warden: Warden) -> JSONResponse:
    """How every table stands with the schedule."""
    return listed("standings", warden.schedule.standings())


@router.get("/suspended", tags=["worker"])
def suspended(warden: Warden) -> JSONResponse:
    """Tables the schedule leaves alone, with the reason; also dropped ones, which it will leave alone if they are made anew."""
    return listed("suspended", warden.schedule.suspended().values())


@router.get("/leader", tags=["worker"])
def leader(warden: Warden) -> JSONResponse:
    """Which worker leads; null where none ever did."""
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
    """What operators did, and what was turned away, the newest first."""
    return listed("actions", queries.operator_actions(warden, target, limit))


@router.get("/config", tags=["operators"])
def config(warden: Warden) -> JSONResponse:
    """The settings in force, without secrets."""
    return JSONResponse(warden.config.to_dict())


@router.get("/policy-keys", tags=["policy"])
def policy_keys() -> JSONResponse:
    """Every policy key: what it may be and what it means."""
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
    """Who asks, and what they may. `csrf` is what a script of ours sends as X-CSRF-Token; null where a token is shown."""
    return JSONResponse({"name": who.name, "role": who.role, "csrf": who.csrf or None, "version": build()})


# ------------------------------------------------------------ one table


@router.get("/tables/{table}", tags=["tables"])
def table(warden: Warden, table: Named) -> JSONResponse:
    """One table as it was last looked at, with its portrait, warnings and standings."""
    with warden.state.one_look():
        return JSONResponse(reads.table(warden, table))


@router.get("/tables/{table}/show", tags=["tables"])
def show(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """The table as it is now, and what each job but sweep would do. Reads the table: needs Spark."""
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
    points: Annotated[int, Query(ge=1, le=5000, description="at most so many, evenly chosen")] = 500,
) -> JSONResponse:
    """Earlier looks at the table, the oldest first."""
    return JSONResponse(reads.health_history(warden, table, days, points))


@router.get("/tables/{table}/policy", tags=["policy"])
def policy(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """Every policy key with its value and origin. Needs Spark where no one has read the table yet."""
    found = with_policy(request, table, lambda: warden.policy(table))
    return JSONResponse(PolicyReport(found).to_dict())


@router.get("/tables/{table}/trash", tags=["deleting"])
def trashed(warden: Warden, table: Named, limit: Limit = 50) -> JSONResponse:
    """Files that are marked for deletion, why, and when they may be deleted."""
    ref = reads.known(warden, table)
    return JSONResponse(TrashedReport(str(ref), warden.trash(ref, limit), clock.now()).to_dict())


@router.get("/tables/{table}/receipts", tags=["deleting"])
def receipts(warden: Warden, table: Named, limit: Limit = 50) -> JSONResponse:
    """What was deleted of the table, when, why and by which run."""
    ref = reads.known(warden, table)
    return JSONResponse(ReceiptsReport(str(ref), warden.receipts(ref, limit), clock.now()).to_dict())


@router.get("/tables/{table}/holds", tags=["holds"])
def holds(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """What keeps the table's snapshots and files, and the bytes that stay because of each. Reads the table: needs Spark."""
    found = _heavy(request).read(lambda: warden.holds.costs(table))
    kept, sizes = tuple(each for each, _ in found), tuple(cost for _, cost in found)
    return JSONResponse(HoldsReport(table, kept, clock.now(), sizes).to_dict())


@router.get("/tables/{table}/heartbeats", tags=["holds"])
def heartbeats(warden: Warden, table: Named) -> JSONResponse:
    """Every writer that was heard of; also those that fell silent."""
    ref = reads.known(warden, table)
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
    """Which catalog has a snapshot, a moment or a tag of the table. Reads the table: needs Spark."""
    found = _heavy(request).read(
        lambda: warden.tiers.where(table, snapshot_id=snapshot, as_of=as_of, tag=tag)
    )
    return JSONResponse(WhereReport(table, found).to_dict())


@router.get("/tables/{table}/cost", tags=["tables"])
def cost(request: Request, warden: Warden, table: Named) -> JSONResponse:
    """What the table costs a month in each tier. Reads the table: needs Spark."""
    found = _heavy(request).read(lambda: warden.tiers.cost(table))
    return JSONResponse(CostReport(found).to_dict())


# ------------------------------------------------------------ a table's past


def _past(request: Request, live: bool, ask: Callable[[], T]) -> T:
    """What is asked of live snapshots too needs Spark."""
    return _heavy(request).read(ask) if live else ask()


@router.get("/tables/{table}/history", tags=["past"])
def history(
    request: Request, warden: Warden, table: Named, limit: Limit = 50, live: Live = False
) -> JSONResponse:
    """The table's commits, the newest first, and what is folded into ranges."""
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
    """Commits without the lineage the table's policy asks for."""
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
    """When data came in and by which writer and commit."""
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
    """Everything that was made from a snapshot, at any remove. Reads every table's history: seconds where there are many."""

    def downstream() -> Downstream:
        with nullcontext() if live else warden.state.one_look():
            return warden.history.downstream(table, snapshot, carried=carried, history_only=not live)

    return JSONResponse(DownstreamReport(_heavy(request).read(downstream)).to_dict())
