"""Which Paimon tables are rewritten file by file, and how their options become the kernel's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lakewarden.model.table import TableView
from lakewarden.rewrite.write.encoding import WriteOptions, unfit_properties
from lakewarden.tables.paimon.arrow_schema import left_alone, parquet_properties
from tests.support import tables


def paimon_view(options: Mapping[str, str], keys: tuple[str, ...] = ()) -> TableView:
    schema = json.dumps({"id": 0, "fields": [], "primaryKeys": list(keys)})
    return replace(tables.view(), format="paimon", properties=options, schema_json=schema)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ("zstd", 1, 128 << 20, 1 << 20)),
        ({"file.compression": "snappy"}, ("snappy", None, 128 << 20, 1 << 20)),
        ({"file.compression.zstd-level": "9", "file.block-size": "64 mb"}, ("zstd", 9, 64 << 20, 1 << 20)),
        ({"parquet.compression": "GZIP", "parquet.page.size": "4096"}, ("gzip", None, 128 << 20, 4096)),
        ({"file.compression": "none", "parquet.block.size": "1g"}, ("uncompressed", None, 1 << 30, 1 << 20)),
    ],
)
def test_options_for_parquet(options: Mapping[str, str], wanted: tuple[object, ...]) -> None:
    found = parquet_properties(options)
    assert unfit_properties(found) is None
    made = WriteOptions.from_properties(found)
    assert (made.codec, made.level, made.row_group_bytes, made.page_bytes) == wanted
    assert made.utc_times


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"file.format": "orc"}, "orc"),
        ({"file.compression": "lz4"}, "lz4"),
        ({"file.format": "avro"}, "avro"),
    ],
)
def test_what_arrow_does_not_write(options: Mapping[str, str], why: str) -> None:
    assert why in (unfit_properties(parquet_properties(options)) or "")


@pytest.mark.parametrize(
    ("options", "keys", "why"),
    [
        ({"bucket": "2"}, ("id",), "Paimon's own compaction"),
        ({"data-evolution.enabled": "true"}, (), "data-evolution.enabled"),
        ({"clustering.incremental": "TRUE"}, (), "clustering.incremental"),
        ({"bucket": "4", "deletion-vectors.enabled": "true"}, (), "would be lost"),
        ({"bucket": "-1", "deletion-vectors.enabled": "true"}, (), None),
        ({"bucket": "4"}, (), None),
        ({}, (), None),
    ],
)
def test_left_alone(options: Mapping[str, str], keys: tuple[str, ...], why: str | None) -> None:
    found = left_alone(paimon_view(options, keys))
    assert found is None if why is None else why in (found or "")
