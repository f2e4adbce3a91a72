"""compact-history: folds the archived entries of expired snapshots month by month into ranges that point to a detail.

Only entries outside the active window are folded, and none of a snapshot that the table still has. If a month has
new entries, it is folded again together with them. The table itself does not change. If the process stops:

    before a month's transaction   the entries are unchanged; a detail that was written to a file is not named
    after it                       the entries are in the detail only
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from lakewarden import clock
from lakewarden.errors import Refused, Unreachable
from lakewarden.jobs.compact.cleanup import discard_replaced_history
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.recovery import RunResult
from lakewarden.jobs.run_context import HistoryStep, Outcome, Prepared, RunContext
from lakewarden.jobs.units import run_units
from lakewarden.lineage.history import Folded, TableHistory, month_of
from lakewarden.model.actions import FoldHistory
from lakewarden.model.plan import Bounds, Plan, count_skipped
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job, Run, RunState
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.read.store import MissingSource, Store
from lakewarden.state.database import State
from lakewarden.state.history import FoldLost, HistoryIndex, SnapshotArchive
from lakewarden.tables.interface import TableFormat

log = logging.getLogger(__name__)

# The folder for details that are kept in the table's own location. Tools that look for orphans, including our
# sweep, ignore names that begin with an underscore.
_FOLDER = "metadata"
PREFIX = "_lakewarden-history-"


def plan(
    view: TableView,
    archived: Mapping[int, datetime],
    folded: Mapping[str, int],
    policy: Policy,
    now: datetime,
) -> Plan:
    """Plan the archived entries outside the window, by month. Every other entry is skipped, with its reason.

    `archived`: commit times by snapshot id. `folded`: how many entries the detail of each month already has.
    """
    empty = Plan(
        job=Job.COMPACT_HISTORY,
        table=view.ref,
        made_at=now,
        bounds=Bounds(view.current_snapshot_id, "main", 0),
        policy_hash=policy.hash(),
        reason="",
    )
    if not policy.bool("history_compaction_enabled"):
        return replace(
            empty, reason=f"switched off: {policy.explain('history_compaction_enabled')}", off=True
        )
    live = {each.id for each in view.snapshots}
    window = policy.explain("snapshot_retention_hours")
    since = now - policy.hours("snapshot_retention_hours")
    months: dict[str, list[int]] = defaultdict(list)
    live_still = Reason(ReasonKind.STILL_LIVE, "the table still has its snapshot")
    young = Reason(ReasonKind.WINDOW, f"inside the active window: {window}")
    skipped = []
    for id_, at in archived.items():
        if id_ in live:
            skipped.append(("entry", 1, 0, live_still))
        elif at >= since:
            skipped.append(("entry", 1, 0, young))
        else:
            months[month_of(at)].append(id_)
    why = f"older than {window}"
    actions = tuple(
        FoldHistory(month, tuple(sorted(months[month])), folded.get(month, 0), why)
        for month in sorted(months)
    )
    return replace(
        empty, actions=actions, skipped=count_skipped(skipped), reason=_summary(actions, len(archived))
    )


def _summary(actions: tuple[FoldHistory, ...], archived: int) -> str:
    if not actions:
        return f"none of {archived:,} archived entries is old enough" if archived else "no archived entries"
    return f"{sum(each.entries for each in actions):,} of {archived:,} archived entries are folded"


def prepare(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    archived = SnapshotArchive(deps.state).moments(view.uuid)
    folded = {each.month: each.entries for each in HistoryIndex(deps.state).details(view.uuid)}
    return Prepared(plan(view, archived, folded, policy, now), view, policy)


def history_of(state: State, view: TableView) -> TableHistory:
    """The table's history, including details in its own folder."""
    return TableHistory(state, lambda path: _fetch(Store(view.io), path))


def execute(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    """One transaction for each month."""
    view = prepared.view
    history = history_of(deps.state, view)
    keep = _keeper(view) if deps.history == "table" else None

    def fold(each: FoldHistory) -> Folded | FoldLost:
        context.step(HistoryStep.FOLDING, {"month": each.month, "entries": each.entries})
        try:
            made = history.fold(
                each.month,
                each.snapshot_ids,
                table=str(view.ref),
                table_uuid=view.uuid,
                run_id=context.run_id,
                now=clock.now(),
                keep=keep,
            )
        except FoldLost as error:
            return error
        context.step(HistoryStep.FOLDED, {"month": each.month, "detail": made.detail.id})
        _discard(deps.state, view, made)
        return made

    results = run_units(context, f"{prepared.plan.job} {view.ref}", folds(prepared.plan), fold)
    done = [each for each in results if isinstance(each, Folded)]
    lost = [str(each) for each in results if isinstance(each, FoldLost)]
    if not done:
        return Outcome(RunState.LOST_RACE, lost[-1])
    return Outcome(RunState.PARTIAL if lost else RunState.DONE, "".join(lost[-1:]), _counters(done))


def folds(made: Plan) -> list[FoldHistory]:
    return [action for action in made.actions if isinstance(action, FoldHistory)]


def settle(deps: JobDeps, run: Run) -> RunResult:
    """How a run ended whose process stopped: by the details that it made."""
    made, planned = HistoryIndex(deps.state).made_by(run.id), len(run.plan.get("actions", ()))
    if not made:
        return RunResult(RunState.FAILED, "nothing had been folded")
    if made < planned:
        return RunResult(RunState.PARTIAL, f"{made} of {planned} months had been folded")
    return RunResult(RunState.DONE, "every month had been folded")


def _counters(done: list[Folded]) -> dict[str, int]:
    return {
        "entries_folded": sum(each.entries for each in done),
        "months_folded": len(done),
        "ranges": sum(len(each.detail.ranges) for each in done),
        "detail_bytes": sum(each.detail.bytes for each in done),
    }


def _keeper(view: TableView) -> Callable[[str, bytes], str]:
    """Writes a detail under a name that no other run uses. The file is complete before the index names it."""

    def keep(name: str, content: bytes) -> str:
        path = f"{view.location.rstrip('/')}/{_FOLDER}/{PREFIX}{name}.parquet"
        with Store(view.io).create(path) as out:
            out.write(content)
        return path

    return keep


def _fetch(store: Store, path: str) -> bytes | None:
    try:
        with store.open(path) as source:
            return bytes(source.read())
    except MissingSource as error:
        if error.gone:
            return None
        raise Unreachable(what=path, reason=error.reason) from error


def _discard(state: State, view: TableView, made: Folded) -> None:
    """Remove the file of the replaced detail. If that fails, a file without use stays, and no harm is done."""
    if made.replaced is None or made.replaced.path is None:
        return
    named = [each.path for each in HistoryIndex(state).details(view.uuid) if each.path is not None]
    try:
        discard_replaced_history(view.io, [made.replaced.path], named)
    except (OSError, Refused) as error:
        log.warning("the replaced detail %s stays: %s", made.replaced.path, error)
