"""Data files whose footers are damaged: each is named, and no other engine is asked to make rows of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.rewrite.arrow import _trouble
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.read.footer import read_footer
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.store import DamagedSource, MissingSource
from tests.rewrite.test_pages import WIDE, refoot, source, task, wide
from tests.rewrite.test_rewrite_kernel import column, whole

ROWS = 600


def footer_at(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return source(tmp_path / "in.parquet", wide(0, ROWS), write_page_checksum=False)


def rewritten(tmp_path: Path, path: Path, size: int) -> None:
    sound = source(tmp_path / "sound.parquet", wide(ROWS, ROWS), write_page_checksum=False)
    work = task(tmp_path / "out.parquet", [sound], WIDE, digest=True)
    bad = replace(whole(sound), path=str(path), size=size)
    rewrite(replace(work, slices=(*work.slices, bad)))


def spoilt(data: bytes) -> Iterator[bytes]:
    at = footer_at(data)
    yield data[:at] + b"\xff" * (len(data) - 8 - at) + data[-8:]
    yield data[:-8] + b"\xff\xff\xff\x7f" + data[-4:]
    yield data[:-8] + b"\x00\x00\x00\x00" + data[-4:]
    yield data[:-4] + b"PAX1"
    yield data[: len(data) // 2]
    yield b""


@pytest.mark.parametrize("number", range(6))
def test_a_footer_that_does_not_parse_goes_to_no_other_engine(
    tmp_path: Path, file: Path, number: int
) -> None:
    data = file.read_bytes()
    file.write_bytes(list(spoilt(data))[number])
    with pytest.raises(DamagedSource) as caught:
        rewritten(tmp_path, file, len(data))
    assert caught.value.path == str(file)
    found = _trouble(caught.value)
    assert not found.unfit and str(file) in str(found) and "fsck" in found.reason
    assert "\n" not in found.reason


def test_a_shape_that_arrow_does_not_read_goes_to_another_engine(tmp_path: Path) -> None:
    """Presto wrote maps with keys that may be null. Such a file is whole, and Iceberg reads it."""
    path = tmp_path / "in.parquet"
    kind = pa.map_(pa.string(), pa.int32())
    pq.write_table(pa.table({"m": pa.array([[("a", 1)]], kind)}), path, store_schema=False)

    def change(footer: thrift.Struct) -> None:
        (key,) = (each for each in thrift.value_of(footer, 2) if thrift.value_of(each, 4) == b"key")
        key[3] = thrift.i32(1)  # optional

    refoot(path, change)
    with pytest.raises(pa.ArrowInvalid, match="Map keys must"):
        pq.ParquetFile(path).schema_arrow  # noqa: B018
    with pytest.raises(Unfit), path.open("rb") as handle:
        read_footer(pa.PythonFile(handle), str(path))


def test_values_that_are_encoded_as_differences_in_one_file_of_many(tmp_path: Path) -> None:
    """The other files have dictionaries, and Arrow cannot read this one's values into one."""
    schema = pa.schema([column("id", 1, pa.int64()), column("s", 2, pa.string())])
    rows = pa.table([pa.array(range(2_000)), pa.array([f"v{n % 10}" for n in range(2_000)])], schema=schema)
    files = []
    for number in range(8):
        path = tmp_path / f"{number}.parquet"
        if number:
            pq.write_table(rows, path, store_schema=False, use_dictionary=["s"])
        else:
            pq.write_table(
                rows,
                path,
                store_schema=False,
                use_dictionary=False,
                column_encoding={"s": "DELTA_BYTE_ARRAY"},
            )
        files.append(path)
    done = rewrite(task(tmp_path / "out.parquet", files, schema, digest=True))
    assert done.rows == 16_000
    assert pq.read_table(tmp_path / "out.parquet")["s"].to_pylist() == rows["s"].to_pylist() * 8


def test_names_that_are_no_text_are_damage(tmp_path: Path, file: Path) -> None:
    size = file.stat().st_size

    def change(footer: thrift.Struct) -> None:
        thrift.value_of(footer, 2)[1][4] = thrift.binary(b"\xee\xff")

    refoot(file, change)
    with pytest.raises(DamagedSource) as caught:
        rewritten(tmp_path, file, size)
    assert caught.value.path == str(file)


def test_one_bit_of_a_footer_never_hands_the_file_to_another_engine_unless_it_still_parses(
    tmp_path: Path, file: Path
) -> None:
    """Bits whose flip aborts Arrow itself are left out: `footer.column` cannot be asked in this process then."""
    data = file.read_bytes()
    start, lucky = footer_at(data), random.Random(7)
    seen = set()
    for _ in range(300):
        spot, bit = lucky.randrange(start, len(data)), 1 << lucky.randrange(8)
        changed = bytearray(data)
        changed[spot] ^= bit
        file.write_bytes(bytes(changed))
        with pa.OSFile(str(file)) as handle:
            try:
                read_footer(handle, str(file))
            except (DamagedSource, Unfit) as error:
                seen.add(type(error))
                if isinstance(error, Unfit):
                    # A file that says it is encrypted, or of a kind that Arrow does not know.
                    assert "encrypted" in error.reason or "not" in error.reason.lower()
                assert error.path == str(file)
                with pytest.raises((OSError, pa.ArrowException, UnicodeDecodeError)):
                    pq.read_metadata(file)
    assert DamagedSource in seen


def test_a_store_that_does_not_answer_is_not_damage(tmp_path: Path, file: Path) -> None:
    handle = pa.OSFile(str(file))
    size = handle.size()

    class Silent:
        """A file whose bytes cannot be had."""

        def size(self) -> int:
            return size

        def read_at(self, count: int, at: int) -> bytes:
            raise OSError("connection reset")

    with pytest.raises(MissingSource, match="connection reset") as caught:
        read_footer(Silent(), str(file))  # type: ignore[arg-type]
    assert not isinstance(caught.value, DamagedSource) and _trouble(caught.value).unfit


@pytest.mark.parametrize("columns", [1, 3_000])
def test_footers_of_any_size_are_those_that_arrow_reads(tmp_path: Path, columns: int) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"column_{n}": [n] for n in range(columns)}), path)
    with pa.OSFile(str(path)) as handle:
        found = read_footer(handle, str(path))
        assert found.equals(pq.read_metadata(path))
        assert pq.ParquetFile(handle, metadata=found).read().num_columns == columns
