"""Which table properties the kernel follows, which it leaves to Iceberg, and how paths are spelled."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.model.location import is_local, local_path, split_url
from lakewarden.rewrite.read.project import leaves
from lakewarden.rewrite.read.store import MissingSource, Store
from lakewarden.rewrite.write.encoding import WriteOptions, choose, unfit_properties, writer_settings


def test_defaults_are_icebergs() -> None:
    assert WriteOptions.from_properties({}) == WriteOptions("zstd", None, 134217728, 1048576, 20000, 2097152)


def test_properties_are_read() -> None:
    props = {
        "write.parquet.compression-codec": "GZIP",
        "write.parquet.compression-level": "2",
        "write.parquet.row-group-size-bytes": "2000000",
        "write.parquet.page-size-bytes": "5000",
        "write.parquet.page-row-limit": "300",
        "write.parquet.dict-size-bytes": "4000",
    }
    assert WriteOptions.from_properties(props, "classic") == WriteOptions(
        "gzip", 2, 2_000_000, 5_000, 300, 4_000, "classic"
    )
    assert unfit_properties(props) is None


@pytest.mark.parametrize(
    ("props", "why"),
    [
        ({"write.format.default": "orc"}, "orc"),
        ({"encryption.key-id": "k1"}, "encrypted"),
        ({"write.parquet.compression-codec": "lz4"}, "lz4"),
        ({"write.parquet.bloom-filter-enabled.column.id": "true"}, "bloom filter"),
    ],
)
def test_what_cannot_be_honoured_is_said(props: dict[str, str], why: str) -> None:
    assert why in (unfit_properties(props) or "")


def test_a_bloom_filter_switched_off_is_no_reason() -> None:
    assert unfit_properties({"write.parquet.bloom-filter-enabled.column.id": "false"}) is None


@pytest.mark.parametrize(
    ("codec", "level", "found"),
    [
        ("zstd", None, {"a": 3, "f": 1, "s": 3}),
        ("zstd", 9, 9),
        ("gzip", None, 6),
        ("snappy", 5, None),
        ("uncompressed", None, None),
    ],
)
def test_levels_are_the_tables_or_those_of_the_java_writer(
    codec: str, level: int | None, found: object
) -> None:
    """Where the table names none, plain floats are compressed lightly: more effort gains them nothing."""
    options = WriteOptions(codec, level, 1, 1, 1, 1)
    encodings = choose(
        leaves(pa.schema([("a", pa.int64()), ("f", pa.float64()), ("s", pa.string())])), {}, options
    )
    assert writer_settings(encodings, options)["compression_level"] == found


@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy", "brotli", "lz4_raw", "uncompressed"])
def test_every_accepted_codec_writes(tmp_path: Path, codec: str) -> None:
    props = {"write.parquet.compression-codec": codec}
    assert unfit_properties(props) is None
    table = pa.table({"a": [1, 2, 3]})
    options = WriteOptions.from_properties(props)
    settings = writer_settings(choose(leaves(table.schema), {}, options), options)
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema, **settings) as writer:
        writer.write_table(table)
    assert pq.read_table(tmp_path / "x.parquet").equals(table)


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}"])
def test_local_names_are_literal(tmp_path: Path, spelling: str) -> None:
    path = spelling.format(tmp_path / "day=2024%2F03 x?y#z" / "f%20.parquet")
    store = Store({})
    with store.create(path) as sink:
        sink.write(b"here")
    assert Path(str(local_path(path))).read_bytes() == b"here"
    assert store.open(path).read() == b"here"
    store.remove(path)
    store.remove(path)
    with pytest.raises(MissingSource) as caught:
        store.open(path)
    assert caught.value.path == path


def test_object_stores_are_told_apart() -> None:
    assert is_local("/a:/b") and is_local("file:/a") and is_local("relative/x")
    assert not is_local("s3://bucket/key") and not is_local("hdfs:/x")
    assert split_url("s3a://bucket/a/b?c#d%20") == ("s3a", "bucket", "a/b?c#d%20")
