"""sweep, in order: list the files, read what every table needs, decide, trash the orphans. Nothing is deleted.

The listing comes first: a file that is committed after it was listed is found in the references, which are
read later. In the other order it would count as an orphan.

The listing may come from an inventory instead of the store. Files that may belong to another table are
skipped: their owner may still need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewarden import clock
from lakewarden.config.aliases import Aliases
from lakewarden.deletion.foreign_metadata import settled, unclaimed
from lakewarden.deletion.holds import gather, known_age
from lakewarden.deletion.lake_index import Neighbours
from lakewarden.deletion.ownership import shared
from lakewarden.deletion.proof import Proof
from lakewarden.deletion.spelling import Spellings
from lakewarden.errors import LakewardenError, Refused, UsageError
from lakewarden.jobs.deps import JobDeps, places_of
from lakewarden.jobs.expire.plan import refuse_without_gc
from lakewarden.jobs.run_context import DeletingStep, Outcome, Prepared, RunContext
from lakewarden.jobs.sweep import plan as sweep
from lakewarden.jobs.sweep.plan import FileOutcome, SortedListing, StoreListing
from lakewarden.model.location import Location, all_inside, inside, normal, normals, parents, shortest
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.metadata.read_manifests import MetadataFile, read_metadata_files
from lakewarden.rewrite.read.store import Store
from lakewarden.state.runs import Journal
from lakewarden.state.trash import TrashedFiles
from lakewarden.storage.objects import LISTING, Objects
from lakewarden.tables.interface import TableFormat
from lakewarden.tables.lake_readings import named_files
from lakewarden.tables.metadata_files import METADATA, read_strays, whose
from lakewarden.tables.places import EXTERNAL, Places, names_of, roots
from lakewarden.tables.reachability import ReachableFiles, contains
from lakewarden.tables.reread import read_again
from lakewarden.tables.streaming_writers import Uncommitted, flink_manifests, uncommitted_since

CAUSE = "sweep"
# The clocks of a store and this machine may differ this much. A file further in the future means a wrong clock.
_FUTURE = timedelta(minutes=5)
# Files that metadata names but the listing lacks are looked up by name, this many at once.
_ASKED_AT_ONCE = 1_000
# Fates of files that may belong to another table.
_FOREIGN = (FileOutcome.FOREIGN, FileOutcome.EARLIER, FileOutcome.SHARED, FileOutcome.DOUBTFUL)
# How often the table may change while it is read.
_ATTEMPTS = 3


def prepare(deps: JobDeps, format_: TableFormat, view: TableView, policy: Policy, now: datetime) -> Prepared:
    refuse_without_gc("sweep", view)
    places = places_of(deps, policy)
    _refuse_moved(view, places)
    objects = Objects(view.io)
    neighbours = Neighbours("sweep", deps.lake, view, places=places)
    neighbours.check()  # the owner of the places is checked before they are listed
    listing = _listing(deps, objects, view, policy, places)
    strays = read_strays(objects, view, _metadata_files(listing), deps.lake.strays)
    strays = unclaimed(deps.state, view, strays)
    neighbours.strays = settled(objects, view, strays, lambda: format_.view(view.ref))
    for left in reversed(range(_ATTEMPTS)):
        fresh, proof = _proven(neighbours, listing, format_, objects)
        refuse_without_gc("sweep", fresh)
        judged = _judge(deps, listing, fresh, proof, policy, now)
        judged = without_foreign(
            judged, fresh, neighbours.others, places, partial(_began, listing, fresh, objects, places, now)
        )
        try:
            judged = _without_doubtful(format_, fresh, proof, listing, deps.lake.aliases, judged)
            break
        except Refused:
            raise
        except LakewardenError as error:  # another tool may have expired the metadata that we were reading
            read_again("sweep", fresh, lambda: format_.view(view.ref), error, last=not left)
    if policy.maybe_text("sweep_inventory") is not None:
        judged = _as_they_are_now(objects, judged, now - policy.hours("orphan_grace_hours"))
    made = sweep.plan(fresh, policy, judged, now, places.not_own(view))
    return Prepared(made, fresh, policy, more=judged)


def execute(prepared: Prepared, deps: JobDeps, context: RunContext) -> Outcome:
    """Write the deletion batch and put it in force. If the process stops in between, the next run voids the batch."""
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
    trashed = TrashedFiles(deps.state)
    detail = {"metadata": view.metadata_location, "listed": judged.listed}
    trashed.trash(context.run_id, str(view.ref), view.uuid, CAUSE, sweep.REASON, files, detail, clock.now())
    context.step(DeletingStep.TRASHING, {"batch": context.run_id, "files": files.num_rows})
    trashed.enforce(context.run_id, clock.now())
    context.step(DeletingStep.TRASHED, {"batch": context.run_id, "files": files.num_rows})
    return Outcome(RunState.DONE, "", counters(view, judged))


def counters(view: TableView, judged: SortedListing) -> dict[str, int]:
    """The result of a sweep, with a number for each fate."""
    kinds = sweep.kinds_of(view, judged.orphans)
    return {
        "files_listed": judged.listed,
        "files_trashed": len(kinds),
        "bytes_trashed": judged.fates[FileOutcome.ORPHAN][1],
        "orphan_data_files": kinds.count("data"),
        "orphan_metadata_files": kinds.count("metadata"),
        "skipped_young": judged.fates[FileOutcome.YOUNG][0],
        "skipped_active": judged.fates[FileOutcome.ACTIVE][0],
        "skipped_staged": judged.fates[FileOutcome.STAGED][0],
        "skipped_in_flight": sum(
            judged.fates[each][0]
            for each in (FileOutcome.YOUNG, FileOutcome.ACTIVE, FileOutcome.STAGED, FileOutcome.STREAM)
        ),
        "skipped_hidden": judged.fates[FileOutcome.HIDDEN][0],
        "skipped_foreign": sum(judged.fates[each][0] for each in _FOREIGN),
        "skipped_restored": judged.fates[FileOutcome.RESTORED][0],
        "already_trashed": judged.fates[FileOutcome.TRASHED][0],
    }


def _refuse_moved(view: TableView, places: Places) -> None:
    if places.is_own(view, view.location):
        return
    raise Refused(
        action="sweep",
        target=view.ref,
        reason=f"its location was {places.home(view)} when it was first seen and is {view.location} now; "
        "whoever writes the table can change it, so files there are not known to be the table's",
        hint=f"if that place is the table's own, confirm it: `lakewarden policy '{view.ref}' --set own_places={view.location}` (also list the places that own_places has now: a new list replaces it)",
    )


def _listing(
    deps: JobDeps, objects: Objects, view: TableView, policy: Policy, places: Places
) -> StoreListing:
    """All files under the table's own places, listed now or read from an inventory."""
    # Folders that the table's own option names may be shared: their files have no known owner and are not searched.
    own = [place for name, place in places.own(view).items() if not name.startswith(EXTERNAL)]
    folders = tuple(shortest(own))
    inventory = policy.maybe_text("sweep_inventory")
    if inventory is not None:
        return read_inventory(deps.lake, inventory, folders)
    began = clock.now()
    batches = [batch for folder in folders for batch in objects.list(folder)]
    return StoreListing(pa.Table.from_batches(batches, LISTING), began, folders)


def _began(
    listing: StoreListing, view: TableView, objects: Objects, places: Places, now: datetime
) -> datetime:
    return began(listing, view, objects, places.since.get(view.uuid, now))


def _metadata_files(listing: StoreListing) -> dict[str, str]:
    """Metadata files with their stamps; the stamp is empty if the inventory has none."""
    paths = listing.files["path"]
    found = listing.files.filter(pc.match_substring_regex(paths, METADATA))
    return dict(zip(found["path"].to_pylist(), pc.fill_null(found["stamp"], "").to_pylist(), strict=True))


def _proven(
    neighbours: Neighbours, listing: StoreListing, format_: TableFormat, objects: Objects
) -> tuple[TableView, Proof]:
    """Prove what every table needs, and check that it exists. If another tool expired files during the reading, ask again."""
    ref = neighbours.view.ref
    for left in reversed(range(_ATTEMPTS)):
        fresh, proof = neighbours.prove()
        try:
            _check_listing(listing, fresh, proof, format_, objects, neighbours.places)
            break
        except LakewardenError as error:
            read_again("sweep", fresh, lambda: format_.view(ref), error, last=not left)
    return fresh, proof


def _check_listing(
    listing: StoreListing,
    view: TableView,
    proof: Proof,
    format_: TableFormat,
    objects: Objects,
    places: Places,
) -> None:
    """Refuses if the listing lacks files that metadata names: it is incomplete or of another table, or the table is damaged."""
    if not listing.files.num_rows:
        raise _contradiction(view, "the listing is empty", "check that its location can be listed")
    newest = pc.max(listing.files["modified"]).as_py()
    if newest is not None and newest > clock.now() + _FUTURE:
        raise _contradiction(
            view,
            "a listed file was modified in the future",
            "set the clocks right: the ages of files are not known",
        )
    own = proof.reached[0]
    _check_lived_in(listing, view, own, places)
    unlisted = np.setdiff1d(own.numbers, listing.numbers)
    if own.hints is not None:
        unlisted = np.setdiff1d(unlisted, own.hints)
    if not len(unlisted):
        return
    folders = [Location.of(root) for root in listing.roots]
    for paths in format_.named_paths(view, unlisted):
        near = [
            path
            for path in paths.to_pylist()
            if any(Location.of(path).may_be_inside(each) for each in folders)
        ]
        for start in range(0, len(near), _ASKED_AT_ONCE):
            asked = near[start : start + _ASKED_AT_ONCE]
            gone = [path for path, stat in zip(asked, objects.stat(asked), strict=True) if stat is None]
            if gone:
                raise _contradiction(
                    view,
                    f"the metadata names {gone[0]}, which is not there",
                    f"`lakewarden fsck {view.ref}` shows what is missing",
                )


def _check_lived_in(listing: StoreListing, view: TableView, own: ReachableFiles, places: Places) -> None:
    """Refuses a place that has no file of the table, unless the operator has confirmed it."""
    named = pa.array(contains(own.numbers, listing.numbers))
    for root in listing.roots:
        if any(inside(root, each) for each in places.confirmed):
            continue
        here = all_inside(listing.files["path"], [root])
        if pc.any(here).as_py() and not pc.any(pc.and_(here, named)).as_py():
            raise _contradiction(
                view,
                f"{root} holds no file of the table",
                f"if that place is the table's own, confirm it: `lakewarden policy '{view.ref}' --set own_places={root}` (also list the places that own_places has now)",
            )


def _without_doubtful(
    format_: TableFormat,
    view: TableView,
    proof: Proof,
    listing: StoreListing,
    aliases: Aliases,
    judged: SortedListing,
) -> SortedListing:
    """Refuses if the metadata may name an orphan under another path. Skips orphans that another table may name so."""
    numbers = proof.reached[0].numbers
    if (
        len(shortest(roots(view).values())) == 1
    ):  # files that were listed in the only folder have their names there
        numbers = np.setdiff1d(numbers, listing.numbers)
    listed = parents(listing.files["path"])
    made = Spellings("sweep", view, lambda: named_files(format_, view, numbers), aliases, listed)
    made.check(judged.orphans["path"])
    doubtful = made.doubtful(judged.orphans["path"], proof.reached[1:])
    if not doubtful:
        return judged
    those = pc.is_in(judged.orphans["path"], pa.array(list(doubtful), pa.string()))
    return judged.skip(those, FileOutcome.DOUBTFUL, next(iter(doubtful.values())))


def _contradiction(view: TableView, reason: str, hint: str) -> Refused:
    return Refused(action="sweep", target=view.ref, reason=reason, hint=f"nothing was changed; {hint}")


def _judge(
    deps: JobDeps, listing: StoreListing, view: TableView, proof: Proof, policy: Policy, now: datetime
) -> SortedListing:
    known, aliases = TrashedFiles(deps.state), deps.lake.aliases
    named = proof.names(listing.files["path"], listing.numbers)
    unnamed = listing.files["path"].filter(pa.array(~named))
    restarts = policy.hours("snapshot_restart_hours")
    return sweep.judge(
        listing,
        named=named,
        restored=_among(known.restored_paths(view.uuid), aliases),
        trashed=_among(known.trashed_paths(view.uuid), aliases),
        holds=replace(gather(view, deps.state, now), aliases=aliases),
        open_runs=_open_runs(deps, view.ref),
        young_since=now - policy.hours("orphan_grace_hours"),
        names=names_of(view),
        uncommitted=uncommitted(view, unnamed.to_pylist(), restarts, now, aliases),
    )


def uncommitted(
    view: TableView, unnamed: Iterable[str], restarts: timedelta, now: datetime, aliases: Aliases
) -> Uncommitted:
    """Files that streaming writers may still commit: Flink's uncommitted manifests among these files, and the files they
    name.
    """
    manifests = flink_manifests(view, unnamed)
    unread: set[str] = set()

    def names() -> Iterator[str]:
        wanted = [MetadataFile(path, "manifest") for path in manifests]
        for read in read_metadata_files(wanted, Store(view.io)) if wanted else ():
            yield read.path
            if read.table is not None:
                yield from read.table["path"].to_pylist()
            else:  # such as half a file of a killed task: then no file since the job's last commit counts as an orphan
                unread.add(manifests[read.path])

    files = frozenset(normal(each) for path in names() for each in aliases.spellings(path))
    return Uncommitted(files, uncommitted_since(view, unread, restarts, now))


def _as_they_are_now(objects: Objects, judged: SortedListing, young_since: datetime) -> SortedListing:
    """An inventory may be days old: files that are gone or have changed since are no orphans."""
    found = judged.orphans
    now = objects.look(found["path"].to_pylist())
    ages = [known_age(each) for each in now["modified"].to_pylist()]
    old = pa.array([each is not None and each <= young_since for each in ages], pa.bool_())
    same = pc.and_(pc.fill_null(pc.equal(now["size"], found["size"]), False), old)
    files = found.filter(same).set_column(3, "stamp", now["stamp"].filter(same))
    fates = {**judged.fates, FileOutcome.ORPHAN: (files.num_rows, pc.sum(files["size"]).as_py() or 0)}
    return replace(judged, orphans=files, fates=fates)


def _among(pages: Iterable[pa.Array], aliases: Aliases) -> Callable[[str], bool]:
    """A function that answers for one path. It is called only for the few paths that no metadata names."""
    known = {plain for page in pages for plain in normals(page).to_pylist()}
    return lambda path: any(normal(each) in known for each in aliases.spellings(path))


def _open_runs(deps: JobDeps, table: TableRef) -> frozenset[str]:
    """Lakewarden's own runs that may still be writing."""
    found = Journal(deps.state).list(str(table), 1000)
    return frozenset(run.id for run in found if run.ended_at is None)


def without_foreign(
    judged: SortedListing,
    view: TableView,
    others: Sequence[TableView],
    places: Places,
    began: Callable[[], datetime],
) -> SortedListing:
    """Skip files in folders where other tables may write, and files that are older than the table.

    `began` is called only if needed: it may read files.
    """
    if not judged.orphans.num_rows:
        return judged
    judged = _without_shared(judged, shared(view, others, places), places.aliases)
    unsigned = _unsigned(judged.orphans, view, places)
    if not pc.any(unsigned).as_py():
        return judged
    since = began()
    older = pa.array([each < since for each in judged.orphans["modified"].to_pylist()], pa.bool_())
    earlier = pc.and_(unsigned, older)
    if not pc.any(earlier).as_py():
        return judged
    return judged.skip(
        earlier,
        FileOutcome.EARLIER,
        f"older than the table (its oldest known file is from {since:%Y-%m-%d %H:%M}), and named differently from files of its writers; "
        f"if they are the table's: `lakewarden policy '{view.ref}' --set own_places={view.location}` (also list the places that own_places has now)",
    )


def _without_shared(judged: SortedListing, folders: dict[str, str], aliases: Aliases) -> SortedListing:
    spelled = [name for each in folders for name in aliases.spellings(each)]
    theirs = all_inside(judged.orphans["path"], spelled)
    if not pc.any(theirs).as_py():
        return judged
    told = ", ".join(f"{place} ({who})" for place, who in sorted(folders.items()))
    return judged.skip(theirs, FileOutcome.SHARED, f"writers of other tables name the folder: {told}")


def _unsigned(orphans: pa.Table, view: TableView, places: Places) -> pa.Array:
    """Files whose names show no writer, in a place that the operator has not confirmed."""
    signed = names_of(view).signed
    named = pa.array(
        [signed.search(each) is not None for each in normals(orphans["path"]).to_pylist()], pa.bool_()
    )
    confirmed = [name for each in places.confirmed for name in places.aliases.spellings(each)]
    return pc.invert(pc.or_(named, all_inside(orphans["path"], confirmed)))


def began(listing: StoreListing, view: TableView, objects: Objects, seen: datetime) -> datetime:
    """A time when the table surely existed. The table may be older, but older files may be from before it.

    This is when it was first seen (`seen`), or the store's time of the oldest listed file that only this table can
    have written: a metadata file with its uuid, or a manifest list. Times inside metadata come from the writer.
    """
    paths, times = listing.files["path"], listing.files["modified"]
    metadata = pc.match_substring_regex(paths, r"\.avro$|\.metadata\.json(\.gz)?$")
    found = zip(paths.filter(metadata).to_pylist(), times.filter(metadata).to_pylist(), strict=True)
    ages = {path: known for path, modified in found if (known := known_age(modified)) is not None}
    lists = {Location.of(each.manifest_list) for each in view.snapshots if each.manifest_list}
    own = (at for path, at in ages.items() if path.endswith(".avro") and Location.of(path) in lists)
    oldest = min([seen, *own])
    for path, at in sorted(ages.items(), key=lambda each: each[1]):
        if at >= oldest:
            break
        told = None if path.endswith(".avro") else whose(path, objects.read)
        if told is not None and told.uuid == view.uuid:
            return at
    return oldest


_PATH = ("path", "file_path", "uri")
_SIZE = ("size", "length", "file_size", "size_in_bytes")
_MODIFIED = ("modified", "last_modified", "last_modified_date", "lastmodified", "mtime")
_STAMP = ("stamp", "etag", "e_tag")


def read_inventory(lake: Any, named: str, roots: Sequence[str]) -> StoreListing:
    """The part of the inventory that lies under the roots. `named` is a Parquet or CSV file, or a table or
    view of the session.

    One inventory may serve every table of a prefix. It needs a path (or a bucket and a key), a size and a
    time of change, under the names stores use for them. It may be old: files that were written since are
    not in it, and are not touched.
    """
    rows = _load(lake.spark, named)
    columns = {name.lower(): name for name in rows.column_names}
    path = _paths(rows, columns, named)
    modified = _timestamps(rows[_need(columns, _MODIFIED, named)])
    stamp = _optional(rows, columns, _STAMP)
    files = pa.Table.from_arrays(
        [path, rows[_need(columns, _SIZE, named)].cast(pa.int64()), modified, stamp], schema=LISTING
    )
    files = files.filter(all_inside(files["path"], roots))
    newest = pc.max(files["modified"]).as_py()
    if newest is None:
        raise UsageError(
            reason=f"read inventory {named}: it has no file under {', '.join(roots)}",
            hint="name an inventory that covers the table's location",
        )
    return StoreListing(files, newest, tuple(roots))


def _load(spark: Any, named: str) -> pa.Table:
    try:
        if named.endswith((".csv", ".csv.gz")):
            return spark.read.csv(named, header=True, inferSchema=True).toArrow()
        if named.endswith(".parquet") or "/" in named:
            return spark.read.parquet(named).toArrow()
        return spark.table(named).toArrow()
    except Exception as error:  # Spark has many ways to say that something is not there
        raise UsageError(
            reason=f"read inventory {named}: {str(error).splitlines()[0]}",
            hint="name a Parquet or CSV file with a header, or a table or view that Spark can read",
        ) from error


def _need(columns: dict[str, str], names: Sequence[str], named: str) -> str:
    for name in names:
        if name in columns:
            return columns[name]
    raise UsageError(
        reason=f"read inventory {named}: it has no column {' or '.join(names)}; it has {', '.join(columns)}",
        hint="rename its columns in a view, and name the view",
    )


def _paths(rows: pa.Table, columns: dict[str, str], named: str) -> Any:
    if "bucket" in columns and "key" in columns:
        bucket, key = (rows[columns[name]].cast(pa.string()) for name in ("bucket", "key"))
        return pc.binary_join_element_wise(pc.binary_join_element_wise("s3://", bucket, ""), key, "/")
    return rows[_need(columns, _PATH, named)].cast(pa.string())


def _timestamps(column: Any) -> Any:
    """Times in UTC. A time without a zone counts as UTC, and a number as milliseconds."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.timestamp("ms"))
    if pa.types.is_string(column.type):
        column = pc.strptime(column, format="%Y-%m-%dT%H:%M:%S", unit="us", error_is_null=False)
    return column.cast(pa.timestamp("us", "UTC"))


def _optional(rows: pa.Table, columns: dict[str, str], names: Sequence[str]) -> Any:
    name = next((columns[each] for each in names if each in columns), None)
    return pa.nulls(rows.num_rows, pa.string()) if name is None else rows[name].cast(pa.string())
