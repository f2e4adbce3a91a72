"""What a survey tells of roots whose entries add up, against counting one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.tables.metadata_walk import (
    FileEntries,
    Lists,
    Manifests,
    UnreadableMetadata,
    WalkResult,
    WalkRoot,
)

Entries = Sequence[tuple[int, int]]
ENTRY = st.tuples(st.integers(1, 5), st.sampled_from([1, 1, 1, -1]))
MANIFESTS = st.lists(st.lists(ENTRY, max_size=5), min_size=1, max_size=5)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Entries], list[tuple[list[int], bool]], set[int]]:
    """Manifests, roots (the manifests each names, and whether it adds up), and which manifests cannot be read."""
    manifests = draw(MANIFESTS)
    named = st.lists(st.integers(0, len(manifests) - 1), unique=True)
    roots = draw(st.lists(st.tuples(named, st.booleans()), min_size=1, max_size=6))
    return manifests, roots, draw(st.sets(st.integers(0, len(manifests) - 1), max_size=1))


def surveyed(
    manifests: Sequence[Entries], roots: Sequence[tuple[list[int], bool]], unread: set[int]
) -> WalkResult:
    rows = [
        (number, sign, place)
        for place, entries in enumerate(manifests)
        if place not in unread
        for number, sign in entries
    ]
    numbers, signs, of = (
        np.array(each, dtype=np.int64) for each in (zip(*rows, strict=True) if rows else ([],) * 3)
    )
    paths = pa.array([f"/m{place}" for place in range(len(manifests))], pa.string())
    found = np.array([-1 if place in unread else len(each) for place, each in enumerate(manifests)])
    pairs = [(place, each) for place, (named, _) in enumerate(roots) for each in named]
    return WalkResult(
        Lists(
            tuple(WalkRoot(place, (f"/l{place}",), adds_up=adds) for place, (_, adds) in enumerate(roots)),
            np.array([place for place, _ in pairs], dtype=np.int32),
            np.array([each for _, each in pairs], dtype=np.int32),
        ),
        Manifests(paths, np.arange(len(paths)), found, found, found),
        FileEntries(
            numbers.astype(np.uint64),
            np.zeros(len(rows), dtype=np.int64),
            np.zeros(len(rows), dtype=np.int8),
            of.astype(np.int32),
            signs.astype(np.int8),
        ),
        tuple(UnreadableMetadata("manifest", f"/m{place}", "") for place in unread),
        (),
        lambda _: pa.array([], pa.string()),
    )


def counted(
    manifests: Sequence[Entries], named: Sequence[int], adds_up: bool, unread: set[int]
) -> Mapping[int, int]:
    """How often a root has each file; nothing is known where entries add up and not all of them were read."""
    if adds_up and unread & set(named):
        return {}
    often: Counter[int] = Counter()
    for place in named:
        for number, sign in () if place in unread else manifests[place]:
            often[number] += sign if adds_up else max(sign, 0)
    return often


@given(tables())
def test_what_is_live_needed_and_named_twice(
    table: tuple[list[Entries], list[tuple[list[int], bool]], set[int]],
) -> None:
    manifests, roots, unread = table
    survey = surveyed(manifests, roots, unread)
    truth = {
        root: counted(manifests, named, adds_up, unread)
        for root, (named, adds_up) in zip(survey.lists.roots, roots, strict=True)
    }
    live = {number for often in truth.values() for number, count in often.items() if count > 0}
    assert survey.live().tolist() == sorted(live)
    for number in range(1, 6):
        wanted = np.array([number], dtype=np.uint64)
        needing = [root for root, often in truth.items() if often.get(number, 0) > 0]
        assert list(survey.needing(wanted)) == needing
        for root in survey.lists.roots:
            if survey.is_whole(root):
                assert survey.needed_by(root, wanted).tolist() == [root in needing]
    twice = {
        root: sorted(number for number, count in often.items() if count > 1) for root, often in truth.items()
    }
    found = {root: numbers.tolist() for root, numbers in survey.named_twice().items()}
    assert found == {root: numbers for root, numbers in twice.items() if numbers}


def test_what_is_pruned_is_what_nothing_needs() -> None:
    survey = surveyed([[(1, 1), (2, 1)], [(1, -1)]], [([0, 1], True)], set())
    assert survey.live().tolist() == [2]
    assert survey.files.among(survey.live()).numbers.tolist() == [2]
