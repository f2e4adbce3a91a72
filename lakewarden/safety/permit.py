"""The only key to deletion. `erase` accepts a Permit, and only the functions here make one, each from its own proof.

There are three kinds: files a run of ours wrote and that never became part of the table, details of history that our own
index names no more, and doomed files that, at this moment, no table names and no hold covers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakewarden import clock
from lakewarden.errors import Refused
from lakewarden.safety.holds import Holds
from lakewarden.safety.proof import Proof, Term

# How long leave to erase doomed files lasts. A run that is silent for longer (a minute) may be taken over by another, and a
# process that stood still in between must not act on what it proved before.
GOOD_SECONDS = 30.0
# How old what was read of the tables may be when files go by it: a process may have stood still in between.
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


def for_uncommitted_outputs(
    run_id: str, outputs: Iterable[str], *, commit_tried: bool, commit_lost: bool
) -> Permit:
    """Outputs of a run whose commit was never tried, or was tried and is known to have changed nothing.

    An unknown outcome gives no permit: the table may name these files. A name without the run's id is not ours.
    """
    paths = tuple(outputs)
    if commit_tried and not commit_lost:
        raise Refused(
            action="erase", target=f"outputs of run {run_id}", reason="their commit may have happened"
        )
    own = re.compile(rf"[/-]lakewarden-{re.escape(run_id)}-[^/]+\.parquet$")
    for path in paths:
        if not own.search(path):
            raise Refused(action="erase", target=path, reason=f"run {run_id} did not write it")
    return Permit(paths, f"written by run {run_id} and never committed", _KEY)


def for_native_outputs(run_id: str, outputs: Iterable[str], *, commit_lost: bool) -> Permit:
    """Outputs the format's own writer named, told to us by that writer in this very process."""
    if not commit_lost:
        raise Refused(
            action="erase", target=f"outputs of run {run_id}", reason="their commit may have happened"
        )
    return Permit(
        tuple(outputs), f"written for run {run_id} by the format's own writer and never committed", _KEY
    )


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
    """A doomed file as it was found just now. `modified` None: its age is not known."""

    path: str
    modified: datetime | None


def for_doomed(batch: Sequence[Condemned], *, proof: Proof, holds: Holds, term: Term) -> Permit:
    """Doomed files whose grace is over, or a refusal naming the first that is still needed.

    The term is asked last: between its answer and the deletion nothing else happens.
    """
    paths = tuple(each.path for each in batch)
    if not proof.reached:
        raise _still_needed(f"{len(paths)} files", "no table was looked at", term)
    if clock.now() - proof.made_at > PROOF_AGE:
        raise _still_needed(
            f"{len(paths)} files", f"the tables were read at {proof.made_at}, too long ago", term
        )
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
        f"doomed, their grace over, and needed by nobody (run {term.run_id})",
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
