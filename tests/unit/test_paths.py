"""Two spellings of one file compare equal; two files compare equal only where that keeps them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.paths import authority, hashes, inside, normal, normals, overlap, shortest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/lake/t/x", "file:///lake/t/x"),
        ("/lake/t/x", "file:/lake/t/x"),
        ("/lake//t/x", "/lake/t/x"),
        ("/lake/./t/../t/x", "/lake/t/x"),
        ("s3://b/t/x", "s3a://b/t/x"),
        ("s3n://b/t/x", "S3://b/t/x"),
        ("s3://b/t//x", "s3://b/t/x"),
        ("hdfs://node:8020/t/x", "hdfs:///t/x"),
        ("hdfs://node/t/x", "hdfs:/t/x"),
        ("abfs://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("s3://b/t/", "s3://b/t"),
        ("gcs://b/x", "gs://b/x"),
        ("wasbs://c@a.blob.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
    ],
)
def test_spellings_of_one_file_are_equal(one: str, other: str) -> None:
    assert normal(one) == normal(other)
    assert normals([one]).to_pylist() == normals([other]).to_pylist() == [normal(one)]
    assert hashes([one])[0] == hashes([other])[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/t/x", "s3://c/t/x"),
        ("s3://b/t/x", "gs://b/t/x"),
        ("/lake/t/a%20b", "/lake/t/a b"),
        ("/lake/t/a+b", "/lake/t/a b"),
        ("/lake/t/x", "/lake/t/X"),
        ("/lake/t/.x", "/lake/t/x"),
    ],
)
def test_different_files_stay_different(one: str, other: str) -> None:
    assert normal(one) != normal(other)
    assert hashes([one])[0] != hashes([other])[0]


part = st.text(st.sampled_from("ab .%+=é_-"), min_size=1, max_size=6)


@given(
    st.lists(
        st.tuples(st.sampled_from(["file:/", "file:///", "/", "s3://b/", "s3a://b/", "gs://b/", "hdfs:///"]),
                  st.lists(part, min_size=1, max_size=4)),
        max_size=8,
    )
)  # fmt: skip
def test_in_bulk_is_one_by_one(drawn: list[tuple[str, list[str]]]) -> None:
    paths = [head + "/".join(parts) for head, parts in drawn]
    assert normals(pa.array(paths, pa.string())).to_pylist() == [normal(each) for each in paths]


def test_folders() -> None:
    assert inside("/lake/t/x", "/lake/t") and not inside("/lake/t2/x", "/lake/t")
    assert overlap("/lake", "/lake/t") and overlap("/lake/t", "/lake") and not overlap("/lake/t", "/lake/u")
    assert authority("s3a://b/x/y") == "s3:/b" and authority("file:/x") == "/"
    assert shortest(["/a/b", "file:/a", "/c"]) == ["/c", "file:/a"]
