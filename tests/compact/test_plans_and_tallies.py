"""Small pure parts: manifests' plan, sealed periods, how groups add up to a run's state, lineage keys."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.config.schema import BudgetsConfig
from lakewarden.errors import UsageError
from lakewarden.jobs import manifests
from lakewarden.jobs.compact import plan as compact
from lakewarden.jobs.compact.execute import _chores, commit_units
from lakewarden.jobs.compact.partition_age import period_end
from lakewarden.jobs.compact.result import Result, outcome
from lakewarden.lineage.summary import checked
from lakewarden.model.actions import Bin, DropDeletes, RewriteGroup, Source
from lakewarden.model.files import Manifest
from lakewarden.model.plan import Plan
from lakewarden.model.run import RunState, Trigger
from lakewarden.model.table import PartitionField, PartitionSpec, TableRef
from lakewarden.policy.origin import matches
from lakewarden.rewrite.native import _rows_differ
from tests.support.tables import NOW, file, files, policy, view


def some(count: int, size: int = 1000, spec: int = 0, content: str = "data") -> list[Manifest]:
    return [Manifest(f"/m{n}", size, spec, content) for n in range(count)]


def test_few_manifests_are_left_alone() -> None:
    made = manifests.plan(view(), some(99), policy(), NOW)
    assert made.empty
    assert made.reason == "the table has 99 manifests: manifest_rewrite_min_manifests=100 (default)"


def test_many_small_manifests_are_folded_per_spec() -> None:
    made = manifests.plan(view(), some(80) + some(40, spec=1), policy(), NOW)
    assert [(a.to_dict()["spec_id"], a.to_dict()["output_manifests"]) for a in made.actions] == [
        (0, 1),
        (1, 1),
    ]


def test_manifests_that_have_their_size_are_not_folded_again_and_again() -> None:
    made = manifests.plan(view(), some(150, size=8_000_000), policy(), NOW)
    assert made.empty
    assert made.reason == "the manifests already have their size"


def test_data_and_delete_manifests_are_folded_apart() -> None:
    made = manifests.plan(view(), some(80) + some(40, content="deletes"), policy(), NOW)
    assert made.actions[0].to_dict()["output_manifests"] == 2


@pytest.mark.parametrize(
    ("transform", "value", "end"),
    [
        ("hour", 0, datetime(1970, 1, 1, 1, tzinfo=UTC)),
        ("day", 19783, datetime(2024, 3, 2, tzinfo=UTC)),
        ("month", 650, datetime(2024, 4, 1, tzinfo=UTC)),
        ("month", 11, datetime(1971, 1, 1, tzinfo=UTC)),
        ("year", 54, datetime(2025, 1, 1, tzinfo=UTC)),
        ("day", None, None),
        ("bucket[4]", 3, None),
        ("identity", 19783, datetime(2024, 3, 2, tzinfo=UTC)),
    ],
)
def test_when_a_period_ends(transform: str, value: int | None, end: datetime | None) -> None:
    spec = PartitionSpec(0, (PartitionField(1, 1000, "p", transform),))
    assert period_end(spec, (value,), {1: "date"}) == end
    assert period_end(spec, (value,), {1: "int"}) == (None if transform == "identity" else end)


def group(number: int, size: int = 100) -> RewriteGroup:
    source = Source(f"/f{number}", size, 10, 0, 10, 1, None)
    return RewriteGroup(number, 0, f"day={number}", 0, 0, (Bin((source,)),), "small")


@pytest.mark.parametrize(("rows", "wrong"), [(10, False), (9, True), (11, True)])
def test_rows_that_the_formats_own_writer_wrote_are_counted(rows: int, wrong: bool) -> None:
    trouble = _rows_differ(group(0), rows, "Iceberg")
    assert (trouble is not None) is wrong
    if trouble is not None:
        assert str(trouble) == f"expected 10 rows, Iceberg's own writer gave {rows}"


def ended(*states: RunState, interrupted: bool = False, cut_short: str = "") -> RunState:
    empty: Plan = compact.plan(view(), files([file(1)]), policy(), None, NOW)
    results = [Result(group(n), state, "why", snapshot_id=n) for n, state in enumerate(states)]
    return outcome(replace(empty, cut_short=cut_short), results, interrupted).state


def test_chores_a_quiet_window_keeps_back_make_a_run_partial() -> None:
    made = replace(
        compact.plan(view(), files([file(1)]), policy(), None, NOW), actions=(DropDeletes(("/d",), "why"),)
    )
    always = BudgetsConfig(pause_compaction=["00:00-12:00", "12:00-00:00"])
    scheduled = SimpleNamespace(budgets=always, trigger=Trigger("schedule"))
    chores = _chores(made, view(), files([]), cast(Any, scheduled))
    assert [each.state for each in chores] == [RunState.PARTIAL]
    ended = outcome(made, [], interrupted=False, chores=chores)
    assert ended.state is RunState.PARTIAL
    assert "pause_compaction" in ended.reason


def test_how_groups_add_up() -> None:
    done, lost, unknown = RunState.DONE, RunState.LOST_RACE, RunState.UNKNOWN
    assert ended(done, done) is RunState.DONE
    assert ended(done, lost) is RunState.PARTIAL
    assert ended(lost, lost) is RunState.LOST_RACE
    assert ended(done, unknown, lost) is RunState.UNKNOWN, "an open question outweighs everything"
    assert ended(RunState.FAILED) is RunState.FAILED
    assert ended(RunState.PARTIAL) is RunState.PARTIAL
    assert ended(done, interrupted=True) is RunState.INTERRUPTED
    assert ended(done, cut_short="limit") is RunState.PARTIAL


def test_commits_are_bounded_and_the_largest_unit_goes_first() -> None:
    groups = [group(n, size=100 * (n + 1)) for n in range(10)]
    assert [len(unit) for unit in commit_units(groups, None)] == [1] * 10
    assert commit_units(groups, None)[0][0].number == 9
    bounded = commit_units(groups, 3)
    assert len(bounded) == 3
    assert sorted(g.number for unit in bounded for g in unit) == list(range(10))


def test_triggers_say_what_their_type_must() -> None:
    assert checked(Trigger("schedule")).type == "schedule"
    for wrong in (Trigger("manual"), Trigger("incident-response", "ana"), Trigger("whim")):
        with pytest.raises(UsageError):
            checked(wrong)


def test_table_names() -> None:
    assert str(TableRef.parse("lake.a.b.events")) == "lake.a.b.events"
    assert TableRef.parse("lake.a.b.events").namespace == ("a", "b")
    assert TableRef.parse("lake.events") == TableRef("lake", (), "events"), "a table of no namespace"
    for wrong in ("events", "lake..events", "", ".a.b", "a.b.", "a.`b.c", "a.b`c.d", "a.``.b", "a.`b`c.d"):
        with pytest.raises(UsageError, match="it needs a catalog and a name"):
            TableRef.parse(wrong)


def test_two_tables_never_have_one_name() -> None:
    """`a`.`b.c` and `a.b`.`c` shared state, policies and runs."""
    one, other = TableRef("lake", ("a",), "b.c"), TableRef("lake", ("a.b",), "c")
    assert str(one) == "lake.a.`b.c`" and str(other) == "lake.`a.b`.c"
    assert TableRef.parse("`lake`.`a`.`b.c`") == one
    assert TableRef.parse("lake.`a``b`.c").namespace == ("a`b",)


def test_a_pattern_means_the_same_with_and_without_back_quotes() -> None:
    one, other = TableRef("lake", ("a",), "b.c"), TableRef("lake", ("a.b",), "c")
    assert matches(one, "lake.a.*") and not matches(other, "lake.a.*")
    assert matches(other, "lake.`a.b`.*") and not matches(one, "lake.`a.b`.*")
    assert not matches(one, "lake.a.b.c") and not matches(other, "lake.a.b.c")
    assert matches("lake.db.events", "`lake`.`db`.`ev*`")


@given(st.lists(st.text(min_size=1), min_size=2, max_size=5))
def test_a_name_reads_as_it_was_written(parts: list[str]) -> None:
    ref = TableRef(parts[0], tuple(parts[1:-1]), parts[-1])
    assert TableRef.parse(str(ref)) == ref
    if not any("." in part or "`" in part for part in parts):
        assert str(ref) == ".".join(parts), "plain names are the keys they always were"


def test_only_what_was_committed_is_counted() -> None:
    """iceberg#13783: a run of which one group lost its race told the files of that group as rewritten too."""
    states = (RunState.DONE, RunState.LOST_RACE, RunState.FAILED)
    results = [
        Result(group(n, size=100 * (n + 1)), state, "why", snapshot_id=n, output_files=1, output_bytes=50)
        for n, state in enumerate(states)
    ]
    plan = compact.plan(view(), files([file(1)]), policy(), None, NOW)
    told = outcome(plan, results, interrupted=False).counters
    wanted = {"files_compacted": 1, "files_added": 1, "bytes_before": 100, "bytes_after": 50, "rows": 10}
    wanted |= {"groups_done": 1, "groups_skipped": 2, "commits": 1}
    assert {name: told[name] for name in wanted} == wanted
