"""fsck says of a sound table that it is, and names what is wrong with one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewarden.model.location import normal
from tests.conformance.lakes import Lake


@pytest.mark.main
def test_a_busy_table_is_healthy_before_and_after_everything(lake: Lake) -> None:
    lake.busy()
    assert lake.lw.fsck(lake.table).healthy
    lake.do("compact", rewrite_min_input_files=2)
    lake.do("rewrite-manifests", manifest_rewrite_min_manifests=2)
    lake.expire()
    lake.purge()
    found = lake.lw.fsck(lake.table, deep=not lake.keyed)
    assert found.healthy, found.findings


def test_a_data_file_that_is_gone_is_named(lake: Lake) -> None:
    lake.create()
    lake.append(3)
    path = lake.format.files(lake.ref, lake.head(), None).files["path"][0].as_py()
    lost = Path(normal(path).removeprefix("file:"))
    lost.unlink()
    found = lake.lw.fsck(lake.table)
    assert not found.healthy
    assert any(lost.name in str(each) for each in found.findings)


def test_a_manifest_that_was_cut_short_is_named(lake: Lake) -> None:
    lake.create()
    lake.append(3)
    broken = lake.manifest()
    broken.write_bytes(broken.read_bytes()[:-20])
    found = lake.lw.fsck(lake.table)
    assert not found.healthy
    assert any(broken.name in str(each) for each in found.findings)
