"""Two spellings of one file are found as one; two places are one only where that is sure."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakewarden.model.location import (
    Location,
    all_inside,
    elsewhere,
    hashes,
    inside,
    local_path,
    normal,
    normals,
    same,
    scheme_of,
    shortest,
)

SURE = [
    ("file:/lake/t/x", "file:///lake/t/x"),
    ("/lake/t/x", "file:/lake/t/x"),
    ("/lake//t/x", "/lake/t/x"),
    ("/lake/./t/x/.", "/lake/t/x"),
    (
        "s3://b/t/x",
        "s3a://b/t/x",
    ),  # a table written through both schemes lost its files to a sweep (iceberg#4652)
    ("s3n://b/t/x", "S3://b/t/x"),
    ("s3://b/t/", "s3://b/t"),
    ("hdfs:///t/x", "hdfs:/t//x"),
    ("hdfs://node:8020/t/x", "hdfs://NODE/t/x"),
    ("abfs://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
    ("gcs://b/x", "gs://b/x"),
    ("wasbs://c@a.blob.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
]
UNSURE = [
    ("s3://b/t//x", "s3://b/t/x"),  # two keys in S3, one in Hadoop's Path
    ("hdfs://node:8020/t/x", "hdfs:///t/x"),  # the default authority may be this node or another
    ("hdfs://one/t/x", "hdfs://two/t/x"),  # two names of one cluster, or two clusters
    ("viewfs://cluster/t/x", "viewfs:///t/x"),
    ("/lake/t/../t/x", "/lake/t/x"),  # where t is a link, its parent is another folder
]
APART = [
    ("s3://b/t/x", "s3://c/t/x"),
    ("s3://b/t/x", "gs://b/t/x"),
    ("hdfs://node/t/x", "viewfs://node/t/x"),
    ("/lake/t/a%20b", "/lake/t/a b"),
    ("/lake/t/a+b", "/lake/t/a b"),
    ("/lake/t/x", "/lake/t/X"),
    ("/lake/t/.x", "/lake/t/x"),
]


@pytest.mark.parametrize(("one", "other"), SURE + UNSURE)
def test_what_may_be_one_file_is_found_as_one(one: str, other: str) -> None:
    """The safe mistake for "is it needed": equal."""
    assert normal(one) == normal(other)
    assert Location.of(one).may_be(Location.of(other))
    assert normals([one]).to_pylist() == normals([other]).to_pylist() == [normal(one)]
    assert hashes([one])[0] == hashes([other])[0]


@pytest.mark.parametrize(("one", "other"), SURE)
def test_what_is_surely_one_place_is_equal(one: str, other: str) -> None:
    assert Location.of(one) == Location.of(other) and same(one, other)
    assert inside(one + "/f", other) and all_inside([one + "/f"], [other]).to_pylist() == [True]


@pytest.mark.parametrize(("one", "other"), UNSURE + APART)
def test_what_may_be_two_places_is_not_equal(one: str, other: str) -> None:
    """The safe mistake for "is it mine to take": different."""
    assert Location.of(one) != Location.of(other) and not same(one, other)
    assert not inside(one + "/f", other) and all_inside([one + "/f"], [other]).to_pylist() == [False]


@pytest.mark.parametrize(("one", "other"), APART)
def test_different_files_stay_different(one: str, other: str) -> None:
    assert normal(one) != normal(other)
    assert hashes([one])[0] != hashes([other])[0]


part = st.text(st.sampled_from("ab .%+=é_-"), min_size=1, max_size=6)
heads = [
    "file:/",
    "file:///",
    "/",
    "s3://b/",
    "s3a://b/",
    "gs://b/",
    "hdfs:///",
    "hdfs://Node:8020/",
    "viewfs://c/",
]
drawn_paths = st.lists(st.tuples(st.sampled_from(heads), st.lists(part, min_size=1, max_size=4)), max_size=8)


@example([("hdfs:///", ["."])])  # the root itself is not below it
@given(drawn_paths)
def test_in_bulk_is_one_by_one(drawn: list[tuple[str, list[str]]]) -> None:
    paths = [head + "/".join(parts) for head, parts in drawn]
    column = pa.array(paths, pa.string())
    assert normals(column).to_pylist() == [normal(each) for each in paths]
    for folder in ("/a", "s3://b/a", "hdfs://node/a", "hdfs:///"):
        below = [inside(each, folder) and not same(each, folder) for each in paths]
        assert all_inside(column, [folder]).to_pylist() == below


@example([("file:/", [".", "."])])
@given(drawn_paths)
def test_surely_one_means_found_as_one(drawn: list[tuple[str, list[str]]]) -> None:
    places = [Location.of(head + "/".join(parts)) for head, parts in drawn]
    for one in places:
        assert Location.of(str(one)) == one
        assert normal(one.normal) == one.normal
        assert all(one.may_be(other) for other in places if other == one)


def test_folders() -> None:
    assert inside("/lake/t/x", "/lake/t") and not inside("/lake/t2/x", "/lake/t")
    lake, t, u = (Location.of(each) for each in ("/lake", "file:/lake/t/", "/lake/u"))
    assert lake.may_overlap(t) and t.may_overlap(lake) and not t.may_overlap(u)
    assert t.below(lake) == "t" and lake.below(lake) == "" and lake.below(t) is None
    assert Location.of("s3a://b/x/y").store == "s3://b" and t.store == "/"
    assert shortest(["/a/b", "file:/a", "/c"]) == ["/c", "file:/a"]
    assert shortest(["hdfs://one/a", "hdfs://two/a/b"]) == ["hdfs://one/a", "hdfs://two/a/b"]


@pytest.mark.parametrize("head", ["/lake", "s3://lake", "hdfs://lake"])
def test_two_dots_lead_out_of_a_folder(head: str) -> None:
    path = f"{head}/t/../other/x"
    assert not inside(path, f"{head}/t") and all_inside([path], [f"{head}/t"]).to_pylist() == [False]
    assert Location.of(path).may_be_inside(Location.of(f"{head}/other"))
    assert inside(f"{head}/t/a..b/x", f"{head}/t") and inside(f"{head}/t/../u/x", f"{head}/t/../u")
    assert all_inside([f"{head}/t/a..b/x"], [f"{head}/t"]).to_pylist() == [True]


def test_names_to_open() -> None:
    assert local_path("file:///lake/a%20b") == "/lake/a%20b" and local_path("s3://b/x") is None
    assert scheme_of("S3A://b/x") == "s3a" and scheme_of("/lake/dt=12:30") == "file"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("s3n://b/t/d/x", "s3://cold/t/d/x"),
        ("s3a://b/t/x", "s3://cold/t/x"),
        ("s3://b/t2/x", None),
        ("s3://b/t", None),
    ],
)
def test_the_same_name_below_another_folder(path: str, place: str | None) -> None:
    assert elsewhere(path, Location.of("s3://b/t/"), "s3://cold/t/") == place
