"""Where files of a partition are in order, a plan merges neighbours and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakewarden.jobs.compact import plan as compact
from tests.support.tables import file, files, policy, view

NOW = datetime(2024, 6, 1, tzinfo=UTC)


@given(st.lists(st.sampled_from([10, 900, 5_000, 60_000]), max_size=40))
def test_only_neighbours_become_one(sizes: list[int]) -> None:
    rows = [file(size, sequence_number=place, records=100) for place, size in enumerate(sizes)]
    ordered = replace(files(rows), ordered=True)
    wanted = policy(
        rewrite_min_input_files=2,
        rewrite_small_bytes=1_000,
        rewrite_target_bytes=4_000,
        rewrite_max_bytes=20_000,
    )
    made = compact.plan(view(), ordered, wanted, None, NOW)
    for group in made.groups():
        for bin_ in group.bins:
            places = [source.sequence_number for source in bin_.sources]
            assert all(one + 1 == other for one, other in pairwise(places)), places
    planned = sum(group.files for group in made.groups())
    assert planned + sum(each.count for each in made.skipped) == len(sizes)
