"""Every job once, each with work to do, and the judge's digest before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lakewarden.model.run import RunState
from tests.interop.lake import Lake

Step = tuple[str, str, dict[str, object]]

STEPS: Sequence[Step] = (
    ("compact", "compact", {}),
    ("sort", "compact", {"rewrite_strategy": "sort", "rewrite_sort_columns": ["name"]}),
    ("z-order", "compact", {"rewrite_strategy": "zorder", "rewrite_zorder_columns": ["id", "amount"]}),
    ("compact-deletes", "compact-deletes", {}),
    ("rewrite-manifests", "rewrite-manifests", {}),
    ("expire", "expire", {}),
    ("purge", "purge", {}),
    ("sweep", "sweep", {}),
    ("purge after sweep", "purge", {}),
)
# These always have work here; one that had none would judge nothing.
MUST_WORK = ("compact", "compact-deletes", "rewrite-manifests", "expire", "sweep")


def through_every_job(
    lake: Lake, table: str, folder: Path, digest: Callable[[], object], write: Callable[[int], None]
) -> str:
    """`write` adds files and deletes rows before each rewrite; after each job the judge must see the same rows."""
    orphan = lake.plant_orphan(table, folder)
    for number, (name, job, policy) in enumerate(STEPS):
        if job in ("compact", "compact-deletes"):
            write(number)
        before = digest()
        run = lake.run(job, table, **policy)
        after = digest()
        assert after == before, f"after {name} the judge sees {after}, before {before}"
        assert job not in MUST_WORK or run.state is RunState.DONE, f"{name} had nothing to do: {run.reason}"
    assert not orphan.exists(), "an old orphan is still there after sweep and purge"
    return f"{len(STEPS)} jobs, equal after each"
