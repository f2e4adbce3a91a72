"""What stands in for snapshots that a cold Paimon table never got."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.model.table import COLD_SOURCE_UUID, Ref
from lakewarden.storage.objects import Objects
from lakewarden.tables.paimon.cold import _NOTHING as NAMES_NOTHING
from lakewarden.tables.paimon.cold import gaps, tag_files
from lakewarden.tables.paimon.metadata import GAP, read_metadata


def snapshot(id_: int, at: int) -> dict[str, Any]:
    lists = {
        "baseManifestList": f"base-{id_}",
        "deltaManifestList": f"delta-{id_}",
        "indexManifest": f"index-{id_}",
    }
    return {"id": id_, "timeMillis": at, "schemaId": 1, **lists}


def found_by_halving(snapshots: dict[int, dict[str, Any]], at: int) -> int | None:
    """As Paimon finds the snapshot of a moment: it fails where one of those it looks at is missing."""
    low, high, found = min(snapshots), max(snapshots), None
    while low <= high:
        middle = (low + high) // 2
        if snapshots[middle]["timeMillis"] > at:
            high = middle - 1
        else:
            low, found = middle + 1, middle
    return found


TIMES = st.dictionaries(st.integers(1, 40), st.integers(1, 5), min_size=1)


@given(TIMES)
def test_every_moment_is_found_or_known_to_be_unknown(steps: dict[int, int]) -> None:
    at, have = 0, {}
    for id_ in sorted(steps):
        at += 10 * steps[id_]
        have[id_] = snapshot(id_, at)
    every = have | dict(gaps(have))
    assert sorted(every) == list(range(min(have), max(have) + 1))
    for id_, each in have.items():
        assert found_by_halving(every, each["timeMillis"]) == id_
        between = found_by_halving(every, each["timeMillis"] + 5)
        assert between == id_ or (id_ + 1 not in have and between not in have), (
            "never the rows of another moment"
        )


def test_it_names_nothing_that_is_there() -> None:
    have = {3: snapshot(3, 100), 6: snapshot(6, 400)}
    made = dict(gaps(have))
    assert sorted(made) == [4, 5]
    for id_, each in made.items():
        assert each["id"] == id_ and GAP in each["properties"] and "indexManifest" not in each
        assert each["baseManifestList"] == each["deltaManifestList"] == "expired-before-it-was-handed-off"


def test_a_tags_name_is_the_newest_snapshots_that_had_it() -> None:
    old, new = snapshot(2, 100), snapshot(4, 200)
    tag = Ref("then", "tag", 4)
    assert dict(tag_files([tag], {4: new}, {})) == {"tag/tag-then": new}
    assert dict(tag_files([tag], {4: new}, {"then": new})) == {"tag/tag-then": new}, "as often as it is told"
    made = list(tag_files([tag], {4: new}, {"then": old}))
    assert made == [("tag/tag-then-2", old), ("tag/tag-then", new)], "kept before its name is taken"


# ------------------------------------------------------------ what is no root


COMMIT = {"version": 3, "id": 1, "baseManifestList": "list-1", "deltaManifestList": "list-2", "timeMillis": 1}


def roots_of(folder: Path, files: Mapping[str, Mapping[str, object]]) -> set[tuple[str, str]]:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    store = SimpleNamespace(list=Objects({}).list, read=lambda path: Path(path).read_bytes())
    return {(each.kind, each.name) for each in read_metadata(cast(Any, store), str(folder), {}).roots}


def test_a_tag_that_is_called_like_a_mark_is_a_root(tmp_path: Path) -> None:
    """Its files were lost: by its name it was taken for Paimon's mark that a tag was made."""
    found = roots_of(
        tmp_path,
        {
            "schema/schema-0": {"id": 0, "options": {}},
            "tag/tag-success-file/x": COMMIT,
            "tag/tag-success-file/y_SUCCESS": COMMIT,
            "tag/tag-success-file/z_SUCCESS": {"creationTime": 1, "modificationTime": 1},
            "branch/branch-b/tag/tag-x/snapshot/LATEST": COMMIT,
        },
    )
    names = {"success-file/x", "success-file/y_SUCCESS", "x/snapshot/LATEST"}
    assert found == {("tag", name) for name in names}


@pytest.mark.parametrize("options", [{}, {COLD_SOURCE_UUID: "live"}], ids=["live", "cold"])
def test_a_gap_is_one_only_in_a_cold_table_and_where_it_names_nothing(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """Whoever commits may set the property: then the files of that snapshot were lost."""
    marked = {"properties": {GAP: "true"}}
    found = roots_of(
        tmp_path,
        {
            "schema/schema-0": {"id": 0, "options": options},
            "schema/schema-1": {"id": 1, "options": {COLD_SOURCE_UUID: "set by a writer"}},
            "snapshot/snapshot-1": {**COMMIT, **marked},
            "snapshot/snapshot-2": {**COMMIT, "id": 2, **NAMES_NOTHING, "indexManifest": "index-1"},
            "snapshot/snapshot-3": {**COMMIT, "id": 3, **NAMES_NOTHING},
        },
    )
    assert found == {("snapshot", str(id_)) for id_ in (1, 2, *([] if options else [3]))}
