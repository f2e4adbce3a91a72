"""The only key to deletion. `erase` accepts a Permit, and only the functions here make one, each from its own proof.

There are three kinds: files a run of ours wrote and that never became part of the table, details of history that our own
index names no more, and trashed files that, at this moment, no table names and no hold covers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from lakewarden import clock
from lakewarden.deletion.holds import Holds
from lakewarden.deletion.proof import Proof, Term
from lakewarden.errors import Refused
from lakewarden.model.table import TableView
from lakewarden.model.table_name import TableRef
from lakewarden.tables.reachability import Reached

# How long leave to erase trashed files lasts. A run that is silent for longer (a minute) may be taken over by another, and a
# process that stood still in between must not act on what it proved before.
GOOD_SECONDS = 30.0
# How old the reading of a table may be when files go by it: a process may have stood still in between. Every table's own
# counts: a lake that takes longer to read is asked for its pointers again.
PROOF_AGE = timedelta(minutes=2)

_KEY = object()


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to erase exactly these paths, until a moment of `clock.monotonic`. Made here, used once."""

    paths: tuple[str, ...]
    why: str
    _key: object
    until: float = math.inf

    def __post_init__(self) -> None:
        if self._key is not _KEY:
            raise Refused(
                action="erase", target=f"{len(self.paths)} files", reason="the permit was not granted"
            )


class Metadata(Protocol):
    """What it takes to ask a table which files it names: its newest metadata, and everything that leads to."""

    def view(self, table: TableRef) -> TableView: ...

    def reached(self, view: TableView) -> Reached: ...


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Evidence that no table names these outputs of a run. Only `never_sent` and `ask_table` make it."""

    paths: frozenset[str]
    until: float
    _key: object

    def __post_init__(self) -> None:
        if self._key is not _KEY:
            raise Refused(
                action="erase", target=f"{len(self.paths)} outputs", reason="the table was not asked"
            )


def never_sent(paths: Iterable[str], groups: Iterable[int], begun: Set[int]) -> Unnamed:
    """Outputs of groups for which this process began no commit: nothing can name them. A journal is no evidence of that."""
    tried = sorted(begun & set(groups))
    if tried:
        raise Refused(
            action="erase", target=f"outputs of group {tried[0]}", reason="their commit may have happened"
        )
    return Unnamed(frozenset(paths), math.inf, _KEY)


def ask_table(
    metadata: Metadata, table: TableRef, uuid: str, paths: Sequence[str]
) -> tuple[Unnamed, tuple[str, ...]]:
    """Ask every snapshot of the table's newest metadata; the outputs that none names, and those that one does.

    `uuid` is the table that the outputs were written for. Refused where the name leads to another one by now: a rename or a
    new table of that name says nothing about them.

    Places are compared, not texts: a library may return another spelling of the name it was given. Raises where the table
    cannot be read: then it cannot be told, and everything stays.
    """
    asked_at = clock.monotonic()
    view = metadata.view(table)
    if view.uuid != uuid:
        raise Refused(
            action="erase",
            target=f"{len(paths)} outputs of {table}",
            reason=f"they were written for table {uuid}, and the name leads to {view.uuid} now",
        )
    found = metadata.reached(view).names(list(paths))
    named = tuple(path for path, is_named in zip(paths, found, strict=True) if is_named)
    return Unnamed(frozenset(paths) - frozenset(named), asked_at + GOOD_SECONDS, _KEY), named


def for_uncommitted_outputs(run_id: str, outputs: Iterable[str], unnamed: Unnamed) -> Permit:
    """Outputs of a run under names of its own. A name without the run's id is not ours."""
    paths = tuple(outputs)
    own = re.compile(rf"[/-]lakewarden-{re.escape(run_id)}-[^/]+\.parquet$")
    for path in paths:
        if not own.search(path):
            raise Refused(action="erase", target=path, reason=f"run {run_id} did not write it")
    return _for_outputs(run_id, paths, unnamed)


def for_native_outputs(run_id: str, outputs: Iterable[str], unnamed: Unnamed) -> Permit:
    """Outputs the format's own writer named, told to us by that writer in this very process."""
    return _for_outputs(run_id, tuple(outputs), unnamed)


def _for_outputs(run_id: str, paths: tuple[str, ...], unnamed: Unnamed) -> Permit:
    for path in paths:
        if path not in unnamed.paths:
            raise Refused(action="erase", target=path, reason="their commit may have happened")
    return Permit(paths, f"written by run {run_id}, and the table does not name them", _KEY, unnamed.until)


def for_replaced_history(paths: Sequence[str], *, named: Collection[str]) -> Permit:
    """Details of folded history that others stand for now; `named` are all that the index names at this moment."""
    own = re.compile(r"/_lakewarden-history-[^/]+\.parquet$")
    for path in paths:
        if path in named:
            raise Refused(action="erase", target=path, reason="the index of the history names it")
        if not own.search(path):
            raise Refused(action="erase", target=path, reason="it is no detail of a history")
    return Permit(tuple(paths), "details of folded history that newer ones stand for", _KEY)


@dataclass(frozen=True, slots=True)
class Condemned:
    """A trashed file as it was found just now. `modified` None: its age is not known."""

    path: str
    modified: datetime | None


def for_trashed(batch: Sequence[Condemned], *, proof: Proof, holds: Holds, term: Term) -> Permit:
    """Files in the trash whose grace is over, or a refusal naming the first that is still needed.

    The term is asked last: between its answer and the deletion nothing else happens.
    """
    paths = tuple(each.path for each in batch)
    if not proof.reached or not proof.read_at:
        raise _still_needed(f"{len(paths)} files", "no table was looked at", term)
    stale = proof.stale(clock.now(), PROOF_AGE)
    if stale is not None:
        reason = f"{stale} was read at {proof.read_at[stale]}, too long ago"
        raise _still_needed(f"{len(paths)} files", reason, term)
    for path, named in zip(paths, proof.names(paths), strict=True):
        if named:
            raise _still_needed(path, f"{proof.named_by(path)} names it", term)
    for each in batch:
        hold = holds.covering(each.path, each.modified)
        if hold is not None:
            raise _still_needed(each.path, f"{hold.kind} {hold.name} holds it", term)
    asked_at, seconds = clock.monotonic(), term.seconds()
    if seconds <= 0:
        raise _still_needed(f"{len(paths)} files", f"run {term.run_id} is over or another process's", term)
    return Permit(
        paths,
        f"trashed, their grace over, and needed by nobody (run {term.run_id})",
        _KEY,
        asked_at + min(GOOD_SECONDS, seconds),
    )


def _still_needed(target: str, reason: str, term: Term) -> Refused:
    return Refused(
        action="erase",
        target=target,
        reason=reason,
        hint=f"nothing of this batch was deleted; see `lakewarden run-show {term.run_id}`",
    )
