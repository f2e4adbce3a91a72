"""The only key to deletion. `erase` accepts a Permit, and only the functions here make one, each from its own proof.

So far there is one kind: files a run of ours wrote and that never became part of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lakewarden.errors import Refused

_KEY = object()


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to erase exactly these paths. Made here, used once."""

    paths: tuple[str, ...]
    why: str
    _key: object

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
