"""sweep: which listed files no metadata names, and why each other file is skipped. Pure: arrays in, a plan out."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.deletion.holds import Holds, known_age
from lakewarden.errors import Refused
from lakewarden.model.actions import TrashFiles
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.location import Location, hashes
from lakewarden.model.plan import Bounds, ManyTrashed, Plan, count_skipped
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.tables.places import Names, names_of
from lakewarden.tables.streaming_writers import Uncommitted

REASON = "no metadata names it"

# A part of a path that tools ignore. A partition folder such as `_day=7` is not ignored.
_HIDDEN = re.compile(r"^\.|^_[^=]*$")
_RUN = re.compile(r"lakewarden-(\d{8}-\d{6}-[0-9a-f]{6})-")


class FileOutcome(StrEnum):
    """What happens to a listed file. Only the last is trashed; each has its own counter."""

    NAMED = "named"
    RESTORED = "restored"
    TRASHED = "in the trash already"
    HIDDEN = "hidden"
    FOREIGN = "foreign"
    EARLIER = "earlier"
    SHARED = "shared"
    DOUBTFUL = "doubtful"
    ACTIVE = "active"
    STAGED = "staged"
    STREAM = "stream"
    YOUNG = "young"
    ORPHAN = "orphan"


@dataclass(frozen=True)
class StoreListing:
    """Files as a store listed them: path, size, modified, stamp. Files written after `began_at` may be missing."""

    files: pa.Table
    began_at: datetime
    roots: tuple[str, ...]

    @cached_property
    def numbers(self) -> Any:
        """The hashes of the paths."""
        return hashes(self.files["path"])


@dataclass(frozen=True, slots=True)
class SortedListing:
    """The fate of every unnamed file. `orphans` are rows of the listing. `why`: this table's own reasons for a fate."""

    listed: int
    fates: Mapping[FileOutcome, tuple[int, int]]
    orphans: pa.Table
    why: Mapping[FileOutcome, Reason] = field(default_factory=dict)

    def skip(self, those: Any, fate: FileOutcome, why: str) -> SortedListing:
        """Give some of the orphans another fate: `those` has a boolean for each."""
        left, skipped = self.orphans.filter(pc.invert(those)), self.orphans.filter(those)
        fates = {**self.fates, FileOutcome.ORPHAN: _count(left), fate: _count(skipped)}
        told = Reason(_WHY[fate].kind, why)
        return replace(self, fates=fates, orphans=left, why={**self.why, fate: told})


def _count(files: pa.Table) -> tuple[int, int]:
    return files.num_rows, pc.sum(files["size"]).as_py() or 0


def judge(
    listing: StoreListing,
    *,
    named: Any,
    restored: Callable[[str], bool],
    trashed: Callable[[str], bool],
    holds: Holds,
    open_runs: Collection[str],
    young_since: datetime,
    names: Names,
    uncommitted: Uncommitted,
) -> SortedListing:
    """Decide the fate of every listed file. Only a file that is old enough and that nothing can need is an orphan."""
    unnamed = listing.files.filter(pa.array(~named))
    roots = [Location.of(root) for root in listing.roots]
    fates: list[FileOutcome] = []
    for path, modified in zip(unnamed["path"].to_pylist(), unnamed["modified"].to_pylist(), strict=True):
        fates.append(
            _fate(path, modified, roots, restored, trashed, holds, open_runs, young_since, names, uncommitted)
        )
    told = np.array([str(each) for each in fates], dtype=object)
    sizes = unnamed["size"].to_numpy()
    counts: dict[FileOutcome, tuple[int, int]] = {
        fate: (int((told == str(fate)).sum()), int(sizes[told == str(fate)].sum()))
        for fate in FileOutcome
        if fate is not FileOutcome.NAMED
    }
    total = pc.sum(listing.files["size"]).as_py() or 0
    counts[FileOutcome.NAMED] = (int(named.sum()), total - int(sizes.sum()))
    orphans = unnamed.filter(pa.array(told == str(FileOutcome.ORPHAN), pa.bool_()))
    return SortedListing(listing.files.num_rows, counts, orphans)


def _fate(
    path: str,
    modified: datetime | None,
    roots: Sequence[Location],
    restored: Callable[[str], bool],
    trashed: Callable[[str], bool],
    holds: Holds,
    open_runs: Collection[str],
    young_since: datetime,
    names: Names,
    uncommitted: Uncommitted,
) -> FileOutcome:
    place = Location.of(path)
    if restored(path):
        return FileOutcome.RESTORED
    if trashed(path):
        return FileOutcome.TRASHED
    if uncommitted.names(path):
        return FileOutcome.STREAM
    hold = holds.covering(path, modified)
    if hold is not None:
        return _held(hold)
    run = _RUN.search(path)
    if run is not None and run[1] in open_runs:
        return FileOutcome.ACTIVE
    if names.temporary is None or not names.temporary.search(place.normal):
        if _is_hidden(place, roots):
            return FileOutcome.HIDDEN
        if not names.ours.search(place.normal):
            return FileOutcome.FOREIGN
    known = known_age(modified)
    if known is None or known > young_since:
        return FileOutcome.YOUNG
    return FileOutcome.STREAM if uncommitted.may_include(known) else FileOutcome.ORPHAN


def _held(hold: Hold) -> FileOutcome:
    return FileOutcome.STAGED if hold.kind is HoldKind.LOAD else FileOutcome.ACTIVE


def _is_hidden(place: Location, roots: Sequence[Location]) -> bool:
    found = (place.below(root) for root in roots)
    below = next((each for each in found if each is not None), place.path)
    return any(_HIDDEN.match(part) for part in below.split("/"))


_NAMED = Reason(ReasonKind.NAMED, "named by the table's metadata")
_WHY = {
    FileOutcome.RESTORED: Reason(ReasonKind.RESTORED, "someone restored it"),
    FileOutcome.TRASHED: Reason(ReasonKind.TRASHED, "in the trash already: waits for purge"),
    FileOutcome.HIDDEN: Reason(ReasonKind.HIDDEN, "hidden: its name begins with a dot or an underscore"),
    FileOutcome.FOREIGN: Reason(ReasonKind.FOREIGN, "foreign: not a file a table's writer leaves behind"),
    FileOutcome.EARLIER: Reason(ReasonKind.OLDER_THAN_TABLE, "older than the table"),
    FileOutcome.SHARED: Reason(ReasonKind.OTHER_TABLE, "another table's writer names the folder"),
    FileOutcome.DOUBTFUL: Reason(ReasonKind.OTHER_TABLE, "another table may name the file by another path"),
    FileOutcome.ACTIVE: Reason(ReasonKind.WRITER, "active: a writer may be at it"),
    FileOutcome.STAGED: Reason(ReasonKind.LOAD, "staged: a load waits to be adopted"),
    FileOutcome.STREAM: Reason(
        ReasonKind.STREAM, "a streaming writer of the table's history may still commit it"
    ),
}


def plan(
    view: TableView,
    policy: Policy,
    judged: SortedListing,
    now: datetime,
    not_own: Mapping[str, str] | None = None,
) -> Plan:
    """Plan to put the orphans into the trash. All other unnamed files are skipped with a reason. Refuses if the share
    of orphans exceeds `orphan_max_percent`: then the listing and the metadata probably do not belong together.

    `not_own`: folders that only a table property names, with the property. They were not listed.
    """
    check_share(view, policy, judged)
    why = {
        **_WHY,
        FileOutcome.YOUNG: Reason(ReasonKind.YOUNG, f"young: {policy.explain('orphan_grace_hours')}"),
        **judged.why,
    }
    skipped = [
        ("file", count, size, why[fate])
        for fate, (count, size) in judged.fates.items()
        if fate not in (FileOutcome.NAMED, FileOutcome.ORPHAN)
    ]
    found = judged.orphans
    kinds = kinds_of(view, found)
    actions = tuple(
        TrashFiles(kind, count, size, REASON) for kind, count, size in _by_kind(found, kinds) if count
    )
    made = Plan(
        job=Job.SWEEP,
        table=view.ref,
        made_at=now,
        bounds=Bounds(view.current_snapshot_id, "main", 0),
        policy_hash=policy.hash(),
        reason=_summary(judged),
        actions=actions,
        skipped=count_skipped(
            [
                ("file", *judged.fates[FileOutcome.NAMED], _NAMED),
                *skipped,
                *(("place", 1, 0, _not_looked_at(view, *each)) for each in (not_own or {}).items()),
            ]
        ),
    )
    return replace(made, trash=ManyTrashed(found.select(["path", "size"]), REASON)) if actions else made


def _not_looked_at(view: TableView, name: str, place: str) -> Reason:
    return Reason(
        ReasonKind.NOT_OWN,
        f"{place} is named by {name}, which whoever writes the table can set; "
        f"if it is the table's own: `lakewarden policy '{view.ref}' --set own_places={place}` (also list the places that own_places has now: a new list replaces it)",
    )


def check_share(view: TableView, policy: Policy, judged: SortedListing) -> None:
    """The circuit breaker. Many orphans mean that the listing and the metadata do not belong together."""
    orphans, most = judged.orphans.num_rows, policy.float("orphan_max_percent")
    if orphans and orphans * 100 > most * judged.listed:
        share = 100 * orphans / judged.listed
        raise Refused(
            action="sweep",
            target=view.ref,
            reason=f"{orphans:,} of {judged.listed:,} listed files ({share:.0f} %) would be orphans; "
            f"{policy.explain('orphan_max_percent')}; the first is {judged.orphans['path'][0].as_py()}",
            hint=f"look at them with `lakewarden fsck {view.ref}`; if they are orphans, "
            f"allow it once: `--set orphan_max_percent={min(100, int(share) + 1)}`",
        )


def kinds_of(view: TableView, files: pa.Table) -> list[str]:
    metadata = names_of(view).metadata
    return ["metadata" if metadata.search(path) else "data" for path in files["path"].to_pylist()]


def _by_kind(files: pa.Table, kinds: Sequence[str]) -> list[tuple[str, int, int]]:
    sizes = files["size"].to_pylist()
    return [
        (kind, kinds.count(kind), sum(size for size, own in zip(sizes, kinds, strict=True) if own == kind))
        for kind in ("data", "metadata")
    ]


def _summary(judged: SortedListing) -> str:
    orphans = judged.orphans.num_rows
    if not orphans:
        return f"no orphans among {judged.listed:,} files"
    return f"{orphans:,} of {judged.listed:,} files are orphans"
