"""A worker lives for months: what one pass leaves behind in the process, a thousand passes leave a thousand times."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from py4j.finalizer import ThreadSafeFinalizer
from pyspark import accumulators

from tests.conformance.lakes import Lake

_WARM, _MORE = 3, 3
_POLICY = {
    "rewrite_min_input_files": "2",
    "delete_compaction_min_deletes": "1",
    "manifest_rewrite_min_manifests": "3",
    "snapshot_retention_hours": "0h",
    "snapshot_min_retained": "2",
    "delete_grace_hours": "0",
    "orphan_sweep_enabled": "true",
}


@dataclass(frozen=True)
class Left:
    """What a process has at one moment, once all garbage is gone."""

    java: int  # objects of the JVM that Python holds on to
    accumulators: int
    threads: int
    descriptors: int
    own: Counter[str]  # objects of our classes, by class

    @classmethod
    def now(cls) -> Left:
        gc.collect()
        ours = (type(each) for each in gc.get_objects())
        return cls(
            len(ThreadSafeFinalizer.finalizers),
            len(accumulators._accumulatorRegistry),
            len(threading.enumerate()),
            len(list(Path("/proc/self/fd").iterdir())),
            Counter(f"{each.__module__}.{each.__qualname__}" for each in ours if _is_ours(each)),
        )


def _is_ours(kind: type) -> bool:
    return str(getattr(kind, "__module__", "")).startswith("lakewarden.")


def test_a_pass_leaves_nothing_in_the_process(lake: Lake) -> None:
    lake.create()
    lake.lw.set_policy(lake.table, _POLICY)

    def passes(first: int, count: int) -> Left:
        for number in range(first, first + count):
            lake.append(4, first=number * 1_000)
            done = lake.lw.maintain(lake.table)
            assert "done" in {run.state for run in done}, "a pass that does nothing shows nothing"
        return Left.now()

    before = passes(0, _WARM)
    between = passes(_WARM, _MORE)
    after = passes(_WARM + _MORE, _MORE)

    # They are used again: there are as many as tasks ran at once, and not one for each pass.
    assert after.accumulators - before.accumulators < _MORE
    # What a leak leaves grows each time. What is kept once, such as a compiled statement, does not.
    assert (after.own - between.own) & (between.own - before.own) == Counter()
    # Threads of pools and of py4j come and go: none of them may be one for every pass.
    assert after.threads - before.threads < 2 * _MORE
    assert after.descriptors - before.descriptors < 2 * _MORE
    assert after.java - before.java < 2 * _MORE
