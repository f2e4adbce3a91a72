"""Which files may belong to another table although they are in this table's own folders and no metadata names them.

sweep skips them: their owner may still need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.config.aliases import Aliases
from lakewarden.deletion.holds import known_age
from lakewarden.deletion.ownership import shared
from lakewarden.jobs.sweep.plan import FileOutcome, SortedListing, StoreListing
from lakewarden.model.location import Location, all_inside, normals
from lakewarden.model.table import TableView
from lakewarden.storage.objects import Objects
from lakewarden.tables.filenames import names_of
from lakewarden.tables.metadata_files import whose
from lakewarden.tables.places import Places


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
