"""Grants permission to delete. `erase` accepts only a Permit, and only the functions here make one, each from
its own proof.

There are three kinds of permitted files: files that our own run wrote and that never became part of the table;
details of history that our index no longer names; and trashed files that no table names and no hold covers at
this moment.
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
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.reachability import ReachableFiles

# How long permission to erase trashed files is valid. Another process may take over a run that is silent for
# longer than a minute, and a process that was suspended in between must not act on its old proof.
GOOD_SECONDS = 30.0
# The maximum age of a table's reading when files are deleted by it: a process may have been suspended in
# between. Each table's own reading counts: in a lake that takes longer to read, the pointers are asked again.
PROOF_AGE = timedelta(minutes=2)

_KEY = object()


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to delete exactly these paths, valid until `until` (monotonic clock). Made only here, used once."""

    paths: tuple[str, ...]
    why: str
    _key: object
    until: float = math.inf

    def __post_init__(self) -> None:
        if self._key is not _KEY:
            raise Refused(
                action="erase", target=f"{len(self.paths)} files", reason="the permit was not granted"
            )


class TableMetadata(Protocol):
    """The questions that a table must answer about the files it names: its newest metadata, and every file on the way to it."""

    def view(self, table: TableRef) -> TableView: ...

    def reached(self, view: TableView) -> ReachableFiles: ...


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
    """Outputs of groups for which this process began no commit: nothing can name them. A journal is not evidence of that."""
    tried = sorted(begun & set(groups))
    if tried:
        raise Refused(
            action="erase", target=f"outputs of group {tried[0]}", reason="their commit may have happened"
        )
    return Unnamed(frozenset(paths), math.inf, _KEY)


def ask_table(
    metadata: TableMetadata, table: TableRef, uuid: str, paths: Sequence[str]
) -> tuple[Unnamed, tuple[str, ...]]:
    """Ask every snapshot of the table's newest metadata. Returns the outputs that no snapshot names, and those
    that one does name.

    `uuid` is the table that the outputs were written for. Refuses if the name now leads to another table: a
    renamed or new table proves nothing about the outputs.

    Compares places, not texts: a library may return another spelling of the name it was given. Raises if the
    table cannot be read: then the answer is unknown, and all files stay.
    """
    asked_at = clock.monotonic()
    view = metadata.view(table)
    if view.uuid != uuid:
        raise Refused(
            action="erase",
            target=f"{len(paths)} outputs of {table}",
            reason=f"they were written for table {uuid}, and the name leads to {view.uuid} now",
        )
    answers = metadata.reached(view).names(list(paths))
    named = tuple(path for path, is_named in zip(paths, answers, strict=True) if is_named)
    return Unnamed(frozenset(paths) - frozenset(named), asked_at + GOOD_SECONDS, _KEY), named


def for_uncommitted_outputs(run_id: str, outputs: Iterable[str], unnamed: Unnamed) -> Permit:
    """Permit deletion of a run's outputs whose names contain the run's id. A name without the id is refused."""
    paths = tuple(outputs)
    own = re.compile(rf"[/-]lakewarden-{re.escape(run_id)}-[^/]+\.parquet$")
    for path in paths:
        if not own.search(path):
            raise Refused(action="erase", target=path, reason=f"run {run_id} did not write it")
    return _for_outputs(run_id, paths, unnamed)


def for_native_outputs(run_id: str, outputs: Iterable[str], unnamed: Unnamed) -> Permit:
    """Permit deletion of outputs that the format's own writer named, as that writer reported in this process."""
    return _for_outputs(run_id, tuple(outputs), unnamed)


def _for_outputs(run_id: str, paths: tuple[str, ...], unnamed: Unnamed) -> Permit:
    for path in paths:
        if path not in unnamed.paths:
            raise Refused(action="erase", target=path, reason="their commit may have happened")
    return Permit(paths, f"written by run {run_id}, and the table does not name them", _KEY, unnamed.until)


def for_replaced_history(paths: Sequence[str], *, named: Collection[str]) -> Permit:
    """Permit deletion of folded history details that newer details replace; `named` is everything the index names now."""
    own = re.compile(r"/_lakewarden-history-[^/]+\.parquet$")
    for path in paths:
        if path in named:
            raise Refused(action="erase", target=path, reason="the index of the history names it")
        if not own.search(path):
            raise Refused(action="erase", target=path, reason="it is no detail of a history")
    return Permit(tuple(paths), "details of folded history that newer details replace", _KEY)


@dataclass(frozen=True, slots=True)
class TrashedObject:
    """A trashed file as it was just seen on the store. `modified` None: its age is unknown."""

    path: str
    modified: datetime | None


def for_trashed(batch: Sequence[TrashedObject], *, proof: Proof, holds: Holds, term: Term) -> Permit:
    """Permit deletion of trashed files whose grace period is over, or refuse and name the first file that is
    still needed.

    The term is checked last, so nothing else happens between that check and the deletion.
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
