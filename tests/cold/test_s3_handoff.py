"""Hand-off on S3: by the store itself, in the storage class that the policy asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakewarden.model.run import RunState
from lakewarden.rewrite.copy import copy as copying
from lakewarden.rewrite.copy.copy import CopyTask, copy, measure
from tests.support.lab import Lab, lakewarden
from tests.support.s3 import S3, Bucket
from tests.support.spark import add_catalog
from tests.tables.test_s3_tables import catalog_properties

pytestmark = pytest.mark.services

POLICY = {
    "snapshot_retention_hours": 0,
    "snapshot_min_retained": 1,
    "handoff_enabled": True,
    "handoff_storage_class": "GLACIER_IR",
}


@pytest.fixture
def live(exact_s3: S3) -> Bucket:
    return exact_s3.bucket()


@pytest.fixture
def lab(spark: SparkSession, live: Bucket, tmp_path: Path) -> Iterator[Lab]:
    catalog = add_catalog(spark, catalog_properties(live, tmp_path))
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, tmp_path / "no-local-warehouse", lw)


def classes(bucket: Bucket) -> dict[str, str]:
    found: dict[str, str] = {}
    for page in bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name):
        found |= {each["Key"]: each.get("StorageClass", "STANDARD") for each in page.get("Contents", ())}
    return found


def test_data_files_are_in_the_class_that_was_asked_for(lab: Lab, exact_s3: S3, tmp_path: Path) -> None:
    table = lab.messy(files=3, days=1)
    rows = {
        row.snapshot_id: lab.rows(table, f"version as of {row.snapshot_id}") for row in lab.snapshots(table)
    }
    bucket = exact_s3.bucket()
    (tmp_path / "cold").mkdir()
    cold = add_catalog(lab.spark, catalog_properties(bucket, tmp_path / "cold"))
    run = lab.lw.run("handoff", table, {**POLICY, "handoff_catalog": cold})
    assert run.state is RunState.DONE, run.reason
    found = classes(bucket)
    data = {key: kind for key, kind in found.items() if "/data/" in key}
    assert data and set(data.values()) == {"GLACIER_IR"}
    assert {kind for key, kind in found.items() if "/metadata/" in key} == {"STANDARD"}
    assert lab.lw.run("expire", table, {**POLICY, "handoff_catalog": cold}).state is RunState.DONE
    head = lab.lw.view(table).current_snapshot_id
    for id_, expected in rows.items():
        if id_ != head:
            assert lab.rows(f"{cold}.db.events", f"version as of {id_}") == expected


def test_a_file_from_a_disk_is_streamed_in_parts(tmp_path: Path, exact_s3: S3, monkeypatch: Any) -> None:
    bucket = exact_s3.bucket()
    monkeypatch.setattr(copying, "PIECE", 5 << 20)
    for size in (0, 1, 5 << 20, (5 << 20) + 1, 17 << 20):
        file = tmp_path / f"{size}.bin"
        file.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
        target = f"{bucket.url}/copies/{size}.bin"
        task = CopyTask(str(file), target, {}, exact_s3.io(), storage_class="STANDARD_IA")
        done = copy(task)
        assert (done.bytes, done.written, done.trouble) == (size, True, "")
        assert copy(task).written is False
        assert measure(task).checksum == done.checksum
        body = bucket.client.get_object(Bucket=bucket.name, Key=f"copies/{size}.bin")["Body"].read()
        assert body == file.read_bytes()
    assert set(classes(bucket).values()) == {"STANDARD_IA"}


def test_a_store_that_is_away_is_told(tmp_path: Path, exact_s3: S3) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    task = CopyTask(str(tmp_path / "a"), "s3://no-such-bucket/a", {}, exact_s3.io(), storage_class="STANDARD")
    assert "NoSuchBucket" in copy(task).trouble or "does not exist" in copy(task).trouble
