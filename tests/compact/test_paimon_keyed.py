"""compact on real Paimon tables with primary keys: merged by Paimon's own engine in Spark tasks, read by Paimon's own reader."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console

from lakewarden.model.files import Bucket
from lakewarden.model.run import Run, RunState
from lakewarden.report.plan import PlanReport
from lakewarden.report.run import RunReport
from lakewarden.tables.paimon import rewrite
from tests.support.paimon import PaimonLab

MERGE = {"rewrite_min_input_files": 3}
DAYS = ("2024-01-01", "2024-01-02")
KINDS = [
    pytest.param({}, id="deduplicate"),
    pytest.param({"merge-engine": "partial-update", "ignore-delete": "true"}, id="partial update"),
    pytest.param({"changelog-producer": "lookup"}, id="lookup changelog"),
    pytest.param({"changelog-producer": "full-compaction"}, id="full-compaction changelog"),
    pytest.param({"deletion-vectors.enabled": "true"}, id="deletion vectors"),
    pytest.param({"bucket": "-1"}, id="dynamic buckets"),
    pytest.param({"file.format": "orc"}, id="orc"),
]


def unmerged(lab: PaimonLab, rounds: int = 4, **options: str) -> tuple[str, list[str]]:
    """A table whose writers leave merging to others, with rows written again and again, and deleted; and what is in it."""
    table = lab.create("orders", keyed=True, **{"write-only": "true"}, **options)
    rows: set[tuple[int, str]] = set()
    for day in DAYS:
        for round_ in range(rounds):
            lab.maker.write(lab.load(table), round_ * 10, 30, day, False)
            rows |= {(key, day) for key in range(round_ * 10, round_ * 10 + 30)}
        lab.delete(table, 5, 10, day)
        if "ignore-delete" not in options:
            rows -= {(key, day) for key in range(5, 15)}
    return table, sorted(f"{key} v{key} {day}" for key, day in rows)


def buckets(lab: PaimonLab, table: str) -> tuple[Bucket, ...]:
    view = lab.lw.view(table)
    assert view.current_snapshot_id is not None
    return (
        lab.lw.lake.format_for(view.ref)
        .rewrites()
        .bucket_engine()
        .buckets(view, view.current_snapshot_id)
        .buckets
    )


def compact(lab: PaimonLab, table: str, **policy: object) -> Run:
    return lab.lw.run("compact", table, {**MERGE, **policy})


@pytest.mark.parametrize("options", KINDS)
def test_buckets_are_merged_and_the_rows_are_the_same(paimon: PaimonLab, options: dict[str, str]) -> None:
    table, rows = unmerged(paimon, **options)
    before = {each.id: paimon.rows(table, each.id) for each in paimon.lw.view(table).snapshots}
    run = compact(paimon, table, rewrite_merge="full")
    assert run.state is RunState.DONE, run.reason
    assert paimon.rows(table) == rows
    assert {id_: paimon.rows(table, id_) for id_ in before} == before
    assert all(each.runs == 1 and each.settled_bytes == each.bytes for each in buckets(paimon, table))
    assert (run.counters["buckets_merged"], run.counters["commits"]) == (4, 2)
    made = paimon.lw.view(table).snapshots[-2:]
    assert tuple(each.id for each in made) == tuple(sorted(run.snapshot_ids))
    assert {each.operation for each in made} == {"compact"}
    assert {each.summary["lineage.run_id"] for each in made} == {run.id}
    assert {each.summary["lineage.group"] for each in made} == {"0", "1"}
    assert {each.summary["lineage.proof"] for each in made} == {"count"}
    again = compact(paimon, table, rewrite_merge="full")
    assert again.state is RunState.NOTHING_TO_DO, again.reason


def test_a_minor_merge_leaves_fewer_runs_than_would_start_another(paimon: PaimonLab) -> None:
    """The large old run stays where it is."""
    table = paimon.create("orders", keyed=True, **{"write-only": "true", "bucket": "1"})
    paimon.maker.write(paimon.load(table), 0, 5_000, DAYS[0], False)
    assert compact(paimon, table, rewrite_min_input_files=1).state is RunState.NOTHING_TO_DO
    paimon.maker.write(paimon.load(table), 5_000, 1, DAYS[0], False)
    assert compact(paimon, table, rewrite_min_input_files=2).state is RunState.DONE
    settled = buckets(paimon, table)[0].settled_bytes
    assert settled
    for number in range(6):
        paimon.maker.write(paimon.load(table), number * 10, 3, DAYS[0], False)
    rows = paimon.rows(table)
    assert buckets(paimon, table)[0].runs == 7
    run = compact(paimon, table, rewrite_merge="minor")
    assert run.state is RunState.DONE, run.reason
    (left,) = buckets(paimon, table)
    assert left.runs < 3
    assert left.settled_bytes == settled, "the old run was not rewritten"
    assert paimon.rows(table) == rows
    assert compact(paimon, table, rewrite_merge="minor").state is RunState.NOTHING_TO_DO


@contextmanager
def before_the_first_commit(do: Callable[[], None]) -> Iterator[None]:
    """At the worst moment: the outputs are written, the commit has not begun."""
    real, done = rewrite.commit, []

    def commit(*given: Any) -> int:
        if not done:
            done.append(True)
            do()
        return real(*given)

    with patch.object(rewrite, "commit", commit):
        yield


@pytest.mark.main
def test_what_a_writer_commits_meanwhile_stays(paimon: PaimonLab) -> None:
    table, rows = unmerged(paimon)
    with before_the_first_commit(lambda: paimon.append(table, 1, rows=5, start=900)):
        run = compact(paimon, table)
    assert run.state is RunState.DONE, run.reason
    assert paimon.rows(table) == sorted([*rows, *(f"{key} v{key} {DAYS[0]}" for key in range(900, 905))])


def merged_by_itself(lab: PaimonLab, table: str) -> None:
    lab.maker.compact(lab.load(table).copy({"write-only": "false"}))


def test_who_comes_second_loses_and_cleans_up(paimon: PaimonLab) -> None:
    """Paimon's own compaction of the same buckets comes first: nothing of ours is committed, and nothing of it is left."""
    table, rows = unmerged(paimon)
    there: set[str] = set()

    def meanwhile() -> None:
        merged_by_itself(paimon, table)
        there.update(named_by(paimon, table))

    with before_the_first_commit(meanwhile):
        run = compact(paimon, table)
    assert run.state is RunState.LOST_RACE, run.reason
    assert run.state.exit_code == 13
    assert "not previously added" in run.reason or "conflicts" in run.reason
    assert paimon.rows(table) == rows
    data = {each for each in paimon.on_disk(table) if "/data-" in each}
    assert data == there, "the outputs that were not committed are gone, and no other file"


def named_by(lab: PaimonLab, table: str) -> set[str]:
    """Data files that any snapshot needs."""
    view = lab.lw.view(table)
    format_ = lab.lw.lake.format_for(view.ref)
    folder = f"{lab.folder(table)}/"
    every = [f"{folder}{each}" for each in lab.on_disk(table) if "/data-" in each]
    known = format_.reached(view).names(every)
    return {each.removeprefix(folder) for each, found in zip(every, known, strict=True) if found}


def test_a_dropped_partition_stays_dropped_and_the_others_are_merged(paimon: PaimonLab) -> None:
    table, rows = unmerged(paimon)
    with before_the_first_commit(lambda: paimon.maker.dropPartition(paimon.load(table), DAYS[0])):
        run = compact(paimon, table)
    assert run.state is RunState.PARTIAL, run.reason
    assert f"dt={DAYS[0]}" in run.reason
    assert paimon.rows(table) == [row for row in rows if DAYS[1] in row]
    assert all(each.runs == 1 for each in buckets(paimon, table))


def test_a_bucket_that_cannot_be_read_skips_its_partition_alone(paimon: PaimonLab) -> None:
    table, rows = unmerged(paimon)
    broken = next((paimon.folder(table) / f"dt={DAYS[0]}").rglob("data-*"))
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    run = compact(paimon, table)
    assert run.state is RunState.PARTIAL, run.reason
    assert f"dt={DAYS[0]}" in run.reason
    broken.write_bytes(whole)
    assert paimon.rows(table) == rows
    assert compact(paimon, table).state is RunState.DONE
    assert paimon.rows(table) == rows
    assert all(each.runs == 1 for each in buckets(paimon, table))


def test_the_plan_says_what_is_merged_and_why_the_rest_is_not(paimon: PaimonLab) -> None:
    table, _ = unmerged(paimon)
    paimon.maker.write(paimon.load(table), 0, 30, "2024-01-03", False)
    plan = paimon.lw.plan("compact", table, MERGE)
    assert [(each.partition, len(each.buckets), each.full) for each in plan.merges()] == [
        (f"dt={day}", 2, True) for day in DAYS
    ]
    assert {each.reason: each.count for each in plan.skipped} == {"one sorted run: nothing to merge": 2}
    assert paimon.lw.plan("compact", table, {"rewrite_min_input_files": 50}).empty
    assert "10 sorted runs in 2 buckets, full" in shown(PlanReport(plan, ""))
    assert "20 → 4" in shown(RunReport(compact(paimon, table)))


def shown(report: PlanReport | RunReport) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.render(200))
    return console.export_text()


def test_a_bound_on_commits_is_kept(paimon: PaimonLab) -> None:
    table, rows = unmerged(paimon)
    run = compact(paimon, table, rewrite_max_commits=1)
    assert (run.state, len(run.snapshot_ids), run.counters["groups_done"]) == (RunState.DONE, 1, 2)
    assert paimon.rows(table) == rows


def test_a_whole_pass_over_such_a_table(paimon: PaimonLab) -> None:
    table, rows = unmerged(paimon)
    paimon.lw.set_policy(table, MERGE)
    states = {run.job: run.state for run in paimon.lw.maintain(table)}
    assert states["compact"] is RunState.DONE
    assert set(states.values()) <= {RunState.DONE, RunState.NOTHING_TO_DO}, states
    assert paimon.rows(table) == rows


@pytest.mark.main
def test_a_merge_that_adds_rows_is_not_committed(paimon: PaimonLab) -> None:
    """Nothing else is known of it beforehand: that is why its proof is called a count."""
    table, rows = unmerged(paimon)
    before = paimon.lw.view(table).current_snapshot_id
    honest = rewrite.Keyed.merge

    def more(*arguments: Any) -> Any:
        merged = honest(*arguments)
        return replace(merged, rows_after=merged.rows_before + 1)

    with patch.object(rewrite.Keyed, "merge", more):
        run = compact(paimon, table, rewrite_merge="full")
    assert run.state is RunState.FAILED and "a merge must not add rows" in run.reason
    assert paimon.lw.view(table).current_snapshot_id == before
    assert paimon.rows(table) == rows
