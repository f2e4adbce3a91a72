"""fsck --deep, the part that runs in tasks: every page of a file is decoded, and its checksum compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.jobs.fsck.decode import _shares
from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.read.decode import Footer, FooterTask, WrongFooter, check_footers

ROWS = 5_000


def written(path: Path, **settings: Any) -> Path:
    rows = pa.table({"n": list(range(ROWS)), "s": [f"session-{n}" for n in range(ROWS)]})
    pq.write_table(rows, path, use_dictionary=False, **settings)
    return path


def checked(path: Path, rows: int = ROWS) -> list[WrongFooter]:
    return check_footers(FooterTask((Footer(str(path), path.stat().st_size, rows),), {}))


def damage(path: Path, column: int, at: int) -> None:
    """Four bytes of the first page of a column, so far into its body."""
    data = bytearray(path.read_bytes())
    _, body = thrift.read(data, pq.read_metadata(path).row_group(0).column(column).data_page_offset)
    data[body + at : body + at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(bytes(data))


def test_a_file_that_is_whole(tmp_path: Path) -> None:
    assert checked(written(tmp_path / "a.parquet")) == []


@pytest.mark.parametrize("column", [0, 1])
def test_a_page_that_cannot_be_decoded(tmp_path: Path, column: int) -> None:
    path = written(tmp_path / "a.parquet", compression="zstd")
    damage(path, column, 0)
    assert pq.read_metadata(path).num_rows == ROWS, "the footer is whole"
    (found,) = checked(path)
    assert found.path == str(path) and found.found is None and "ZSTD" in found.reason


def test_a_page_that_decodes_to_other_values_is_known_by_its_checksum(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", compression="none", write_page_checksum=True)
    damage(path, 0, 100)
    pq.read_table(path)
    (found,) = checked(path)
    assert found.found is None and "CRC" in found.reason
    # Without one, nobody can tell: the page says something else, and that is all there is.
    path = written(tmp_path / "b.parquet", compression="none")
    damage(path, 0, 100)
    assert checked(path) == []


def test_another_number_of_rows(tmp_path: Path) -> None:
    (found,) = checked(written(tmp_path / "a.parquet"), ROWS + 1)
    assert (found.expected, found.found) == (ROWS + 1, ROWS)


def test_a_task_gets_few_files_and_few_bytes() -> None:
    def sizes(files: list[int], cores: int) -> list[list[int]]:
        found = _shares([Footer("p", size, 1) for size in files], cores)
        return [[each.bytes for each in part] for part in found]

    assert sizes([1] * 4, 2) == [[1, 1], [1, 1]]
    assert sizes([1] * 1_000, 1) == [[1] * 500] * 2
    huge = 1 << 30
    assert sizes([huge, 1, huge, 1, 1], 1) == [[huge], [1], [huge], [1, 1]]
