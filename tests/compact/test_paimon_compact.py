"""compact on Paimon tables: the rows are the same by Paimon's own reader, and whoever else commits loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from unittest.mock import patch

import pytest
from py4j.protocol import Py4JError

from lakewarden.errors import PolicyError, UsageError
from lakewarden.model.run import Run, RunState
from lakewarden.tables.paimon import rewrite
from lakewarden.tables.paimon.commit import commit
from tests.support.paimon import PaimonLab

SMALL = {"rewrite_min_input_files": 2}


def compact(paimon: PaimonLab, table: str, job: str = "compact", **policy: object) -> Run:
    return paimon.lw.run(
        job, table, policy={**SMALL, **policy}, trigger={"type": "manual", "operator": "ana"}
    )


def summary(paimon: PaimonLab, table: str) -> dict[str, str]:
    snapshot = paimon.load(table).snapshotManager().latestSnapshot()
    told = dict(snapshot.properties() or {})
    return told | {"user": snapshot.commitUser(), "kind": snapshot.commitKind().toString()}


def reasons(paimon: PaimonLab, table: str, **policy: object) -> dict[str, int]:
    plan = paimon.lw.plan("compact", table, policy={**SMALL, **policy})
    return {each.reason: each.count for each in plan.skipped}


# --- rows and their types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"rewrite_digest": "rows"},
        {"rewrite_sort_columns": ["ts6 desc", "id"]},
        {"rewrite_zorder_columns": ["id", "vc"]},
        {"rewrite_strategy": "hilbert", "rewrite_zorder_columns": ["id", "vc", "ts6"]},
    ],
    ids=["pages", "decoded", "sorted", "zorder", "hilbert"],
)
def test_every_type_by_paimons_own_reader(paimon: PaimonLab, policy: dict[str, object]) -> None:
    table = paimon.typed()
    paimon.write(table, commits=6)
    before = paimon.texts(table)
    run = compact(paimon, table, **policy)
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert (run.counters["files_compacted"], run.counters["files_added"]) == (6, 2)
    assert paimon.texts(table) == before
    assert "253402300" not in str(paimon.files(table))  # INT96 has no bounds
    assert compact(paimon, table, **policy).state is RunState.NOTHING_TO_DO


def test_rows_are_not_ordered_by_what_has_no_order_here(paimon: PaimonLab) -> None:
    table = paimon.typed()
    paimon.write(table)
    plan = paimon.lw.plan("compact", table, policy={**SMALL, "rewrite_sort_columns": ["ts9"]})
    assert plan.empty
    assert "INT96 timestamps have no order as bytes" in plan.reason


def test_files_are_described_as_paimon_describes_its_own(paimon: PaimonLab) -> None:
    """Statistics, sequence numbers, schema, level and source: as its own compaction of a copy leaves them."""
    table = paimon.typed()
    paimon.write(table, commits=12)
    with paimon.twin(table) as (twin, _):
        paimon.maker.compact(twin)
        theirs = [dict(each) for each in _files(paimon, twin)]
    compact(paimon, table)
    ours = paimon.files(table)
    for each in (*ours, *theirs):
        assert each.pop("name").startswith("data-")
    assert ours == theirs


def _files(paimon: PaimonLab, loaded: object) -> list[dict[str, object]]:
    return sorted(json.loads(paimon.types.files(loaded)), key=lambda each: (each["place"], each["min"]))


def test_names_and_lineage(paimon: PaimonLab) -> None:
    table = paimon.create()
    paimon.append(table, 6)
    run = compact(paimon, table)
    told = summary(paimon, table)
    assert (told["user"], told["kind"]) == ("lakewarden", "COMPACT")
    assert told["lineage.run_id"] == run.id
    assert told["lineage.operation"] == "compaction"
    assert told["trigger.operator"] == "ana"
    assert {each["name"].split("-2")[0] for each in paimon.files(table)} == {"data-lakewarden"}
    assert len(run.snapshot_ids) == 3


@pytest.mark.parametrize("digest", ["auto", "rows"])
def test_nan_is_found_after_its_file_was_rewritten(paimon: PaimonLab, digest: str) -> None:
    """Paimon takes NaN for the largest number; bounds that leave it out would hide the whole file."""
    table = paimon.typed("floats")
    paimon.write(table, days=1)
    before = paimon.types.larger(paimon.load(table), 1e9)
    assert before.count("NaN") == 20
    assert compact(paimon, table, rewrite_digest=digest).state is RunState.DONE
    assert paimon.types.larger(paimon.load(table), 1e9) == before


@pytest.mark.main
def test_columns_that_came_went_and_changed(paimon: PaimonLab) -> None:
    table = paimon.typed("plain")
    paimon.write(table, 2, days=1)
    for what in ("evolve", "drop", "again"):
        paimon.change(table, what)
        paimon.write(table, 2, start=1_000, days=1)
    before = paimon.texts(table)
    run = compact(paimon, table)
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert paimon.texts(table) == before
    (file,) = paimon.files(table)
    assert file["schema"] == 3


def test_what_only_paimon_can_cast_is_left_to_its_writer(paimon: PaimonLab) -> None:
    table = paimon.typed("plain")
    paimon.write(table, 2, days=1)
    paimon.change(table, "cast")
    paimon.write(table, 2, start=1_000, days=1)
    before = paimon.texts(table)
    run = compact(paimon, table)
    assert run.state is RunState.DONE
    assert "by Paimon's own writer: column n is int32 in the file and string in the table" in run.reason
    assert paimon.texts(table) == before
    assert len(paimon.files(table)) == 1


def test_orc_is_left_to_paimons_writer(paimon: PaimonLab) -> None:
    table = paimon.typed("plain", file__format="orc")
    paimon.write(table)
    before = paimon.texts(table)
    run = compact(paimon, table)
    assert (run.state, run.counters["files_added"]) == (RunState.DONE, 2)
    assert "write.format.default is orc" in run.reason
    assert paimon.texts(table) == before


def test_partitions_of_any_name(paimon: PaimonLab) -> None:
    table = paimon.create()
    for day in ("a b", "x=y/z", "50%2F", "\u00fc:*?", "{}[]#", None):
        for start in (0, 100):
            paimon.maker.write(paimon.load(table), start, 20, day, False)
    before = paimon.texts(table)
    run = compact(paimon, table)
    assert (run.state, run.counters["files_added"], run.reason) == (RunState.DONE, 6, "")
    assert paimon.texts(table) == before


# --- buckets ------------------------------------------------------------------------------------------------


def test_buckets_are_kept_apart_and_in_order(paimon: PaimonLab) -> None:
    table = paimon.create(bucket="2", **{"bucket-key": "id", "write-only": "true"})
    paimon.append(table, 4, days=1)
    paimon.append(table, 1, rows=30_000, start=1_000, days=1)  # large: nothing may be merged across it
    paimon.append(table, 4, start=90_000, days=1)
    before, rows = paimon.files(table), paimon.texts(table, in_order=True)
    large = max(each["rows"] for each in before)
    run = compact(paimon, table, rewrite_small_bytes=8_000, rewrite_target_bytes=8_000)
    assert run.state is RunState.DONE, reasons(
        paimon, table, rewrite_small_bytes=8_000, rewrite_target_bytes=8_000
    )
    assert (run.state, run.counters["files_compacted"]) == (RunState.DONE, 16)
    after = paimon.files(table)
    assert len(after) == 6
    for place in {each["place"] for each in before}:
        had, has = ([each for each in files if each["place"] == place] for files in (before, after))
        assert [each["rows"] > large // 2 for each in has] == [False, True, False]
        assert (has[0]["min"], has[-1]["max"]) == (had[0]["min"], had[-1]["max"])
        assert all(one["max"] < other["min"] for one, other in pairwise(has))
    assert paimon.texts(table, in_order=True) == rows


def test_oversize_files_of_a_bucket_are_split_in_order(paimon: PaimonLab) -> None:
    table = paimon.create(bucket="1", **{"bucket-key": "id", "write-only": "true"})
    paimon.append(table, 2, rows=40_000, days=1)
    rows = paimon.texts(table, in_order=True)
    sizes = {"rewrite_small_bytes": 1_000, "rewrite_target_bytes": 40_000, "rewrite_max_bytes": 50_000}
    run = compact(paimon, table, **sizes)
    assert run.state is RunState.DONE, reasons(paimon, table, **sizes)
    assert (run.state, run.counters["files_added"] >= 4) == (RunState.DONE, True)
    after = paimon.files(table)
    assert all(one["max"] < other["min"] for one, other in pairwise(after))
    assert paimon.texts(table, in_order=True) == rows


def test_rows_of_ordered_buckets_are_not_sorted(paimon: PaimonLab) -> None:
    table = paimon.create(bucket="1", **{"bucket-key": "id", "write-only": "true"})
    paimon.append(table, 4, days=1)
    skipped = reasons(paimon, table, rewrite_sort_columns=["v"])
    assert skipped == {"rows of a bucket keep the order they came in": 4}


# --- what is left alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyed", "options", "why"),
    [
        (False, {"row-tracking.enabled": "true"}, "row-tracking.enabled is set"),
        (False, {"bucket": "2", "bucket-key": "id", "deletion-vectors.enabled": "true"}, "would be lost"),
    ],
)
def test_left_alone(paimon: PaimonLab, keyed: bool, options: dict[str, str], why: str) -> None:
    table = paimon.create(keyed=keyed, **options)
    paimon.append(table, 4)
    before = paimon.on_disk(table)
    for job in ("compact", "compact-deletes"):
        plan = paimon.lw.plan(job, table)
        assert plan.empty
        assert why in plan.reason
        assert why in plan.skipped[0].reason
        assert paimon.lw.run(job, table).state is RunState.NOTHING_TO_DO
    assert paimon.on_disk(table) == before


@pytest.mark.parametrize("policy", [{"rewrite_where": "id > 5"}, {"rewrite_branch": "b"}])
def test_what_cannot_be_asked_is_said(paimon: PaimonLab, policy: dict[str, str]) -> None:
    table = paimon.create()
    paimon.append(table, 2)
    paimon.maker.tag(paimon.load(table), "t", 1)
    paimon.load(table).createBranch("b", "t")
    with pytest.raises(PolicyError, match=next(iter(policy))):
        compact(paimon, table, **policy)


# --- deletion vectors ---------------------------------------------------------------------------------------


@pytest.mark.main
@pytest.mark.parametrize("wide", ["false", "true"])
def test_deletion_vectors_are_applied_by_compact_deletes(paimon: PaimonLab, wide: str) -> None:
    options = {"deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
    table = paimon.typed("plain", **options)
    paimon.write(table, 6, days=1)
    names = [each["name"] for each in paimon.files(table)]
    for name in names[:3]:
        paimon.types.strike(paimon.load(table), name, 5, 20)
    before = paimon.texts(table)
    assert len(before) == 300 - 60
    assert reasons(paimon, table)["carries deletes, which compact does not apply"] == 3
    assert compact(paimon, table).state is RunState.DONE
    assert paimon.texts(table) == before
    # One of the three keeps its vector, in an index file that it shared with the others.
    paimon.types.strike(paimon.load(table), names[0], 30, 10)
    before, few = paimon.texts(table), {"delete_compaction_min_deletes": 9}
    none = {**few, "delete_compaction_ratio": 0.9, "rewrite_min_input_files": 2}
    assert paimon.lw.plan("compact-deletes", table, none).empty, (
        "vectors are not merged: a file has one at most"
    )
    run = compact(paimon, table, "compact-deletes", **few, delete_compaction_ratio=0.5)
    assert (run.state, run.counters["rows_erased"]) == (RunState.DONE, 30)
    assert paimon.texts(table) == before
    run = compact(paimon, table, "compact-deletes", **few, delete_compaction_ratio=0.1)
    assert (run.state, run.counters["rows_erased"]) == (RunState.DONE, 40)
    assert paimon.texts(table) == before
    assert sum(each["rows"] for each in paimon.files(table)) == len(before)


def test_vectors_that_are_switched_off_are_left_where_they_are(paimon: PaimonLab) -> None:
    """Readers see the rows they strike, and may not see them one day: nothing may be made of such a file."""
    options = {"deletion-vectors.enabled": "true", "deletion-vectors.modifiable": "true"}
    table = paimon.typed("plain", **options)
    paimon.write(table, 4, days=1)
    paimon.types.strike(paimon.load(table), paimon.files(table)[1]["name"], 5, 20)
    kept = paimon.files(table)[1]["name"]
    paimon.change(table, "deletion-vectors.enabled=false")
    before = paimon.texts(table)
    assert len(before) == 200
    run = compact(paimon, table)
    assert (run.state, run.counters["files_compacted"]) == (RunState.DONE, 3)
    assert (
        compact(paimon, table, "compact-deletes", delete_compaction_ratio=0.01).state
        is RunState.NOTHING_TO_DO
    )
    assert kept in [each["name"] for each in paimon.files(table)]
    assert paimon.texts(table) == before


@pytest.mark.main
def test_a_delete_that_comes_meanwhile_is_not_lost(paimon: PaimonLab) -> None:
    table = paimon.typed("plain", **{"deletion-vectors.enabled": "true"})
    paimon.write(table, 6, days=1)
    name = paimon.files(table)[2]["name"]
    before = paimon.texts(table)
    with paimon.before_commit(lambda: paimon.types.strike(paimon.load(table), name, 5, 20)):
        run = compact(paimon, table)
    assert (run.state, run.counters["rows_erased"]) == (RunState.DONE, 20)
    after = paimon.texts(table)
    assert len(after) == len(before) - 20
    assert set(after) < set(before)


# --- others commit at the same time -------------------------------------------------------------------------


def test_append_meanwhile(paimon: PaimonLab) -> None:
    table = paimon.create()
    paimon.append(table, 6)
    with paimon.before_commit(lambda: paimon.append(table, 1, start=5_000)):
        run = compact(paimon, table)
    assert run.state is RunState.DONE
    assert len(paimon.rows(table)) == 140


@pytest.mark.parametrize(
    "what",
    [
        lambda lab, table: lab.maker.compact(lab.load(table)),
        lambda lab, table: lab.maker.dropPartition(lab.load(table), "2024-01-01"),
    ],
    ids=["compaction", "drop partition"],
)
def test_others_were_faster(paimon: PaimonLab, what: Callable[[PaimonLab, str], None]) -> None:
    table = paimon.create(**{"compaction.min.file-num": "2"})
    paimon.append(table, 12, days=1)
    with paimon.before_commit(lambda: what(paimon, table)):
        run = compact(paimon, table)
    assert run.state is RunState.LOST_RACE
    assert "not previously added" in run.reason or "conflicts" in run.reason
    assert not [each for each in paimon.on_disk(table) if "lakewarden" in each]
    left = paimon.rows(table)
    assert len(left) in (0, 240)


def test_answer_that_was_lost_is_asked_of_the_table(paimon: PaimonLab) -> None:
    table = paimon.create()
    paimon.append(table, 4, days=1)
    rows = paimon.rows(table)

    def silent(table, summary, attempt, find, lock):  # type: ignore[no-untyped-def]
        def then_fail() -> None:
            attempt()
            raise Py4JError("the connection went away")

        return commit(table, summary, then_fail, find, lock)

    with patch.object(rewrite, "commit", silent):
        run = compact(paimon, table)
    assert run.state is RunState.DONE
    assert paimon.rows(table) == rows


@pytest.mark.parametrize("committed", [True, False])
def test_crash_around_a_commit(paimon: PaimonLab, committed: bool) -> None:
    table = paimon.create()
    paimon.append(table, 4, days=1)
    rows = paimon.rows(table)

    def stops(table, summary, attempt, find, lock):  # type: ignore[no-untyped-def]
        if committed:
            attempt()
        raise RuntimeError("the process stops here")

    with patch.object(rewrite, "commit", stops), pytest.raises(RuntimeError):
        compact(paimon, table)
    run = compact(paimon, table)
    first = paimon.lw.runs(table)[-1]
    assert first.state is (RunState.DONE if committed else RunState.FAILED)
    assert run.state is (RunState.NOTHING_TO_DO if committed else RunState.DONE)
    assert paimon.rows(table) == rows
    assert len(paimon.files(table)) == 1


# --- proven again -------------------------------------------------------------------------------------------


def test_a_past_compaction_is_proven_again(paimon: PaimonLab) -> None:
    table = paimon.typed("plain", **{"deletion-vectors.enabled": "true"})
    paimon.write(table, 4, days=1)
    paimon.types.strike(paimon.load(table), paimon.files(table)[0]["name"], 5, 20)
    (one,) = compact(paimon, table, rewrite_digest="rows").snapshot_ids
    (other,) = compact(paimon, table, "compact-deletes", delete_compaction_ratio=0.1).snapshot_ids
    paimon.change(table, "evolve")
    paimon.write(table, 1, start=1_000)
    for snapshot_id in (one, other):
        found = paimon.lw.verify(table, snapshot_id)
        assert (found.state, found.removed.rows) == ("proven", found.added.rows), found.reason
    with pytest.raises(UsageError, match="its operation is append"):
        paimon.lw.verify(table, other + 1)
