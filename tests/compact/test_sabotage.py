"""A kernel that goes wrong inside Spark's workers: nothing it made is committed, and what it made is kept to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from lakewarden.model.run import RunState
from lakewarden.rewrite import arrow
from tests.support.lab import Lab

DUPLICATE_ONE_AND_DROP_ANOTHER = [0, 0]
DROP_ONE = [1]


@contextmanager
def sabotaged(first_rows: list[int], where: str = "") -> Iterator[None]:
    """The kernel with the first two rows of each file replaced by these, for tasks whose paths hold `where`.

    The wrapper travels to the workers by value, inside the closure each task runs, and breaks the real kernel there; it
    mends it afterwards, since workers are used again.
    """
    real = arrow.rewrite

    def broken(task: Any) -> Any:
        import pyarrow

        from lakewarden.rewrite.task import Reading

        honest = Reading._output_batch

        def spoilt(self: Any, *arguments: Any) -> Any:
            batch = honest(self, *arguments)
            return batch.take(pyarrow.array([*first_rows, *range(2, batch.num_rows)]))

        if where in task.slices[0].path:
            Reading._output_batch = spoilt  # type: ignore[method-assign]
        try:
            return real(task)
        finally:
            Reading._output_batch = honest  # type: ignore[method-assign]

    with patch.object(arrow, "rewrite", broken):
        yield


def compact(lab: Lab, table: str, **policy: object) -> Any:
    return lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2, **policy})


def steps(lab: Lab, run_id: str, name: str) -> list[Any]:
    _, found = lab.lw.run_by_id(run_id)
    return [step.detail for step in found if step.name == name]


@pytest.mark.main
@pytest.mark.parametrize("policy", [{}, {"rewrite_sort_columns": "s,id"}], ids=["in order", "clustered"])
def test_wrong_rows_are_never_committed_and_stay_as_evidence(lab: Lab, policy: dict[str, str]) -> None:
    table = lab.messy(files=3, days=2)
    before, count = lab.rows(table), len(lab.snapshots(table))
    with sabotaged(DUPLICATE_ONE_AND_DROP_ANOTHER):
        run = compact(lab, table, **policy)
    assert (run.state, run.state.exit_code) == (RunState.FAILED, 1)
    assert "the rows written are not the rows read" in run.reason
    assert (len(lab.snapshots(table)), run.snapshot_ids) == (count, ())
    assert lab.rows(table) == before

    evidence = steps(lab, run.id, "evidence")
    assert len(evidence) == 2
    assert all(each["read"] != each["written"] for each in evidence)
    kept = {path for each in evidence for path in each["outputs"]}
    assert kept == lab.strays(table)
    assert all(pq.read_metadata(path).num_rows == 300 for path in kept), "whole files, to look at"
    assert any(path in run.reason for path in kept)
    assert steps(lab, run.id, "committing") == []

    again = compact(lab, table, **policy)
    assert again.state is RunState.DONE, again.reason
    assert lab.rows(table) == before
    assert lab.strays(table) == kept, "what is evidence is not cleaned up by the way"


def test_only_the_partition_that_went_wrong_is_held_back(lab: Lab) -> None:
    table = lab.messy(files=3, days=2)
    before = lab.rows(table)
    with sabotaged(DUPLICATE_ONE_AND_DROP_ANOTHER, where="d=2024-03-02"):
        run = compact(lab, table)
    assert run.state is RunState.PARTIAL
    assert "d=2024-03-02: the rows written are not the rows read" in run.reason
    assert len(run.snapshot_ids) == 1
    assert lab.rows(table) == before
    (kept,) = lab.strays(table)
    assert "d=2024-03-02" in kept
    assert lab.lw.verify(table, run.snapshot_ids[0]).state == "proven"


def test_a_lost_row_is_found_by_its_count_and_nothing_is_committed(lab: Lab) -> None:
    table = lab.messy(files=3, days=1)
    before, count = lab.rows(table), len(lab.snapshots(table))
    with sabotaged(DROP_ONE):
        run = compact(lab, table)
    assert run.state is RunState.FAILED
    assert "rows-v1:597:" in run.reason
    assert "rows-v1:600:" in run.reason
    assert len(lab.snapshots(table)) == count
    assert lab.rows(table) == before


def test_without_digests_the_same_goes_unseen_until_it_is_verified(lab: Lab) -> None:
    """Why they are on unless somebody switches them off; and that verify needs none."""
    table = lab.messy(files=3, days=1)
    before = lab.rows(table)
    with sabotaged(DUPLICATE_ONE_AND_DROP_ANOTHER):
        run = compact(lab, table, rewrite_digest="off")
    assert run.state is RunState.DONE
    assert lab.rows(table) != before
    done = lab.lw.verify(table, run.snapshot_ids[0])
    assert (done.state, done.removed.rows, done.added.rows) == ("differs", 600, 600)
