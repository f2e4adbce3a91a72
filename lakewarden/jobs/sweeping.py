"""sweep, told in order: list, then read what every table needs, judge, and doom what is left. Nothing is deleted.

The listing comes first: a file that is committed after it was listed is found in the references, which are read later. The
other way round it would be taken for an orphan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.engine.objects import LISTING, Objects
from lakewarden.errors import Refused
from lakewarden.formats.names import names_of
from lakewarden.formats.seam import TableFormat
from lakewarden.jobs import sweep
from lakewarden.jobs.context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.expire import refuse_without_gc
from lakewarden.jobs.grounds import Grounds
from lakewarden.jobs.inventory import read_inventory
from lakewarden.jobs.moved_on import moved_on
from lakewarden.jobs.neighbours import Neighbours
from lakewarden.jobs.strays import read_strays
from lakewarden.jobs.sweep import Fate, Judged, Listing
from lakewarden.model import RunState, TableRef, TableView
from lakewarden.paths import inside, normal, normals, shortest
from lakewarden.policy.resolve import Policy
from lakewarden.safety.holds import gather
from lakewarden.safety.ownership import EXTERNAL, roots
from lakewarden.safety.proof import Proof
from lakewarden.state.doomed import DoomedFiles
from lakewarden.state.runs import Journal

CAUSE = "sweep"
# A store's clock and ours: a file this far in the future was not written by anything that tells the time.
_FUTURE = timedelta(minutes=5)
# Files that metadata names and the listing does not are asked for one by one, so many at once.
_ASKED_AT_ONCE = 1_000
# How often a table may be another one after it was read than it was before.
_ATTEMPTS = 3


def prepare(
    grounds: Grounds, format_: TableFormat, view: TableView, policy: Policy, now: datetime
) -> Prepared:
    refuse_without_gc("sweep", view)
    objects = Objects(view.io)
    listing = _listing(grounds, objects, view, policy)
    strays = read_strays(objects, view, _metadata_files(listing), grounds.lake.strays)
    neighbours = Neighbours("sweep", grounds.lake, view, strays)
    fresh, proof = _proven(neighbours, listing, format_, objects)
    refuse_without_gc("sweep", fresh)
    judged = _judge(grounds, listing, fresh, proof, policy, now)
    if policy.maybe_text("sweep_inventory") is not None:
        judged = _as_they_are_now(objects, judged, now - policy.hours("orphan_grace_hours"))
    return Prepared(sweep.plan(fresh, policy, judged, now), fresh, policy, more=judged)


def execute(prepared: Prepared, grounds: Grounds, context: RunContext) -> Outcome:
    """Write the verdict down and put it in force. What happens between the two is undone by the next run."""
    context.stop.check()
    view, judged = prepared.view, prepared.more
    found = judged.orphans
    files = pa.table(
        {
            "path": found["path"],
            "kind": pa.array(sweep.kinds_of(view, found), pa.string()),
            "size": found["size"],
            "stamp": found["stamp"],
        }
    )
    doomed = DoomedFiles(grounds.state)
    detail = {"metadata": view.metadata_location, "listed": judged.listed}
    doomed.doom(context.run_id, str(view.ref), view.uuid, CAUSE, sweep.REASON, files, detail, clock.now())
    context.step(DeletingStep.DOOMING, {"verdict": context.run_id, "files": files.num_rows})
    doomed.enforce(context.run_id, clock.now())
    context.step(DeletingStep.DOOMED, {"verdict": context.run_id, "files": files.num_rows})
    return Outcome(RunState.DONE, "", counters(view, judged))


def counters(view: TableView, judged: Judged) -> dict[str, int]:
    """What a sweep found, each fate apart (S106)."""
    kinds = sweep.kinds_of(view, judged.orphans)
    return {
        "files_listed": judged.listed,
        "files_doomed": len(kinds),
        "bytes_doomed": judged.fates[Fate.ORPHAN][1],
        "orphan_data_files": kinds.count("data"),
        "orphan_metadata_files": kinds.count("metadata"),
        "skipped_young": judged.fates[Fate.YOUNG][0],
        "skipped_active": judged.fates[Fate.ACTIVE][0],
        "skipped_staged": judged.fates[Fate.STAGED][0],
        "skipped_in_flight": sum(judged.fates[each][0] for each in (Fate.YOUNG, Fate.ACTIVE, Fate.STAGED)),
        "skipped_hidden": judged.fates[Fate.HIDDEN][0],
        "skipped_foreign": judged.fates[Fate.FOREIGN][0],
        "skipped_restored": judged.fates[Fate.RESTORED][0],
        "already_doomed": judged.fates[Fate.DOOMED][0],
    }


def _listing(grounds: Grounds, objects: Objects, view: TableView, policy: Policy) -> Listing:
    """Everything under the table's folders, listed now or read from an inventory."""
    # What lies in folders that a table shares by an option of its own is not known to be its: not looked for orphans.
    own = [place for name, place in roots(view).items() if not name.startswith(EXTERNAL)]
    folders = tuple(shortest(own))
    inventory = policy.maybe_text("sweep_inventory")
    if inventory is not None:
        return read_inventory(grounds.lake, inventory, folders)
    began = clock.now()
    batches = [batch for folder in folders for batch in objects.list(folder)]
    return Listing(pa.Table.from_batches(batches, LISTING), began, folders)


def _metadata_files(listing: Listing) -> dict[str, str]:
    """Each with its stamp, empty where an inventory has none."""
    paths = listing.files["path"]
    found = listing.files.filter(pc.match_substring_regex(paths, r"\.metadata\.json|/schema/schema-"))
    return dict(zip(found["path"].to_pylist(), pc.fill_null(found["stamp"], "").to_pylist(), strict=True))


def _proven(
    neighbours: Neighbours, listing: Listing, format_: TableFormat, objects: Objects
) -> tuple[TableView, Proof]:
    """What every table needs, and that it is there. What somebody else expired while we looked is no damage: asked again."""
    ref = neighbours.view.ref
    for _ in range(_ATTEMPTS - 1):
        fresh, proof = neighbours.prove()
        try:
            _check_listing(listing, fresh, proof, format_, objects)
            return fresh, proof
        except Refused:
            if moved_on(fresh, lambda: format_.view(ref)) is None:
                raise
    fresh, proof = neighbours.prove()
    _check_listing(listing, fresh, proof, format_, objects)
    return fresh, proof


def _check_listing(
    listing: Listing, view: TableView, proof: Proof, format_: TableFormat, objects: Objects
) -> None:
    """A listing that lacks what metadata names is not of this table, or not whole, or the table is damaged: stop."""
    if not listing.files.num_rows:
        raise _contradiction(view, "the listing is empty", "check that its location can be listed")
    newest = pc.max(listing.files["modified"]).as_py()
    if newest is not None and newest > clock.now() + _FUTURE:
        raise _contradiction(
            view, "a listed file was modified in the future", "set the clocks right: ages cannot be told"
        )
    own = proof.reached[0]
    unlisted = np.setdiff1d(own.numbers, listing.numbers)
    if own.hints is not None:
        unlisted = np.setdiff1d(unlisted, own.hints)
    if not len(unlisted):
        return
    folders = [normal(root) for root in listing.roots]
    for paths in format_.named_paths(view, unlisted):
        near = [path for path in paths.to_pylist() if any(inside(normal(path), each) for each in folders)]
        for start in range(0, len(near), _ASKED_AT_ONCE):
            asked = near[start : start + _ASKED_AT_ONCE]
            gone = [path for path, stat in zip(asked, objects.stat(asked), strict=True) if stat is None]
            if gone:
                raise _contradiction(
                    view,
                    f"the metadata names {gone[0]}, which is not there",
                    f"`lakewarden fsck {view.ref}` tells what is missing",
                )


def _contradiction(view: TableView, reason: str, hint: str) -> Refused:
    return Refused(action="sweep", target=view.ref, reason=reason, hint=f"nothing was changed; {hint}")


def _judge(
    grounds: Grounds, listing: Listing, view: TableView, proof: Proof, policy: Policy, now: datetime
) -> Judged:
    known = DoomedFiles(grounds.state)
    return sweep.judge(
        listing,
        named=proof.holds(listing.numbers),
        restored=_among(known.restored_paths(view.uuid)),
        doomed=_among(known.doomed_paths(view.uuid)),
        holds=gather(view, grounds.state, now),
        open_runs=_open_runs(grounds, view.ref),
        young_since=now - policy.hours("orphan_grace_hours"),
        names=names_of(view),
    )


def _as_they_are_now(objects: Objects, judged: Judged, young_since: datetime) -> Judged:
    """An inventory may be days old: what is gone, has changed or was written again since is no orphan of it."""
    found = judged.orphans
    now = objects.look(found["path"].to_pylist())
    same = pc.and_(
        pc.fill_null(pc.equal(now["size"], found["size"]), False),
        pc.fill_null(pc.less_equal(now["modified"], pa.scalar(young_since, now["modified"].type)), False),
    )
    files = found.filter(same).set_column(3, "stamp", now["stamp"].filter(same))
    fates = {**judged.fates, Fate.ORPHAN: (files.num_rows, pc.sum(files["size"]).as_py() or 0)}
    return replace(judged, orphans=files, fates=fates)


def _among(pages: Iterable[pa.Array]) -> Callable[[str], bool]:
    """A question for one path: few are asked about, those that no metadata names."""
    known = {plain for page in pages for plain in normals(page).to_pylist()}
    return lambda path: normal(path) in known


def _open_runs(grounds: Grounds, table: TableRef) -> frozenset[str]:
    """Runs of ours that may still be writing."""
    found = Journal(grounds.state).list(str(table), 1000)
    return frozenset(run.id for run in found if run.ended_at is None)
