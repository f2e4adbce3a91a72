"""Damaged delete files: a delete that is read wrongly brings a row back, or takes a live one. Nothing may be made of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.model.files import DeleteFile
from lakewarden.rewrite.arrow import _trouble
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.read.decode import Footer, FooterTask, check_footers
from lakewarden.rewrite.read.footer import trouble
from lakewarden.rewrite.read.project import Unfit
from lakewarden.rewrite.read.store import DamagedSource, MissingSource, Store
from lakewarden.rewrite.verify import look
from tests.rewrite.test_deletes import BY_ICEBERG, HELD, Lake, people
from tests.rewrite.test_pages import WIDE, metadata_of, refoot, source, task, wide

DATA = "/lake/0.parquet"
ROWS = 1_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path)
    found.data(people(ROWS))
    return found


def page(path: Path, column: str) -> tuple[int, int]:
    """Where the first page of a column has its body, and where that ends."""
    group = pq.read_metadata(path).row_group(0)
    (chunk,) = (each for n in range(group.num_columns) if (each := group.column(n)).path_in_schema == column)
    header, body = thrift.read(path.read_bytes(), chunk.dictionary_page_offset or chunk.data_page_offset)
    return body, body + thrift.value_of(header, 3)


def flip(path: Path, column: str) -> None:
    """One bit of a value in the middle of a page."""
    start, end = page(path, column)
    data = bytearray(path.read_bytes())
    data[(start + end) // 2 // 8 * 8] ^= 1
    path.write_bytes(bytes(data))


PLAIN = {"compression": "none", "use_dictionary": ["file_path"], "write_page_checksum": True}


def position(lake: Lake, rows: range = range(100), **more: Any) -> Path:
    lake.position([(DATA, n) for n in rows], **{**PLAIN, **more})
    return Path(lake.files[-1].path)


def equality(lake: Lake) -> Path:
    lake.equality([(n,) for n in range(100)], ids=(1,))
    path = Path(lake.files[-1].path)
    pq.write_table(
        pq.read_table(path),
        path,
        store_schema=False,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    return path


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_paths_that_are_encoded_as_differences_are_read(lake: Lake, encoding: str) -> None:
    """Arrow cannot read these into a dictionary. Writers of the second Parquet version use them."""
    position(lake, use_dictionary=False, column_encoding={"file_path": encoding})
    assert lake.erased() == [list(range(100))]


def test_a_store_that_does_not_answer_is_no_damage(lake: Lake) -> None:
    """Another engine may reach it, and nobody is sent to look for damage."""
    path = position(lake)
    size = path.stat().st_size

    class Away(io.RawIOBase):
        def read(self, _: int = -1) -> bytes:
            raise OSError("When reading 'k' in bucket 'b': AWS Error NETWORK_CONNECTION: Timeout was reached")

        def readable(self) -> bool:
            return True

        def seekable(self) -> bool:
            return True

        def seek(self, *_: int) -> int:
            return 0

        def tell(self) -> int:
            return size

    real = Store.open

    def away(store: Store, each: str) -> pa.NativeFile:
        return pa.PythonFile(Away(), "r") if each == str(path) else real(store, each)

    with patch.object(Store, "open", away), pytest.raises(MissingSource) as caught:
        lake.erased()
    with patch.object(Store, "open", away):
        assert [each.damaged for each in checked(lake.files[0])] == [False]
    assert not isinstance(caught.value, DamagedSource)
    error = OSError("AWS Error SLOW_DOWN during GetObject operation")
    assert not isinstance(trouble(error, "p"), DamagedSource)
    assert not isinstance(trouble(OSError(5, "Input/output error"), "p"), DamagedSource)
    assert isinstance(trouble(OSError("Couldn't deserialize thrift"), "p"), DamagedSource)


@pytest.mark.parametrize(("made", "column"), [(position, "pos"), (equality, "id")])
def test_a_bit_of_a_delete_file_is_found_by_its_checksum(
    lake: Lake, made: Callable[[Lake], Path], column: str
) -> None:
    path = made(lake)
    assert lake.erased() == [list(range(100))]
    flip(path, column)
    pq.read_table(path)  # it decodes: to another row
    with pytest.raises(DamagedSource, match="CRC") as caught:
        lake.erased()
    assert caught.value.path == str(path)
    found = _trouble(caught.value)
    assert not found.unfit and found.path == str(path) and "fsck" in found.reason


def test_a_damaged_deletion_vector_goes_to_no_other_engine(lake: Lake) -> None:
    blob = bytearray(BY_ICEBERG)
    blob[40] ^= 1
    lake.vector(bytes(blob), len(HELD), DATA)
    with pytest.raises(DamagedSource, match="its checksum differs") as caught:
        lake.erased()
    assert not _trouble(caught.value).unfit


def lie_about_paths(maker: bytes | None) -> Callable[[thrift.Struct], None]:
    """The footer says that no path is above `aaa`."""

    def change(footer: thrift.Struct) -> None:
        if maker is not None:
            footer[6] = thrift.binary(maker)
        statistics = thrift.value_of(metadata_of(footer, 0), 12)
        statistics.update({number: thrift.binary(b"aaa") for number in (1, 2, 5, 6) if number in statistics})

    return change


@pytest.mark.parametrize("maker", [b"homemade writer 0.1", b"parquet-rs version 53.0.0", b"", b"parquet-mr version 1.8.1"])  # fmt: skip
def test_bounds_of_an_unknown_writer_hide_no_delete(lake: Lake, maker: bytes) -> None:
    refoot(position(lake), lie_about_paths(maker))
    assert lake.erased() == [list(range(100))]


def test_bounds_of_a_known_writer_are_believed(lake: Lake) -> None:
    refoot(position(lake), lie_about_paths(None))
    assert lake.erased() == [[]]


@pytest.mark.parametrize("made", [position, equality])
def test_a_delete_file_of_fewer_rows_than_the_table_says_is_damaged(
    lake: Lake, made: Callable[[Lake], Path]
) -> None:
    path = made(lake)
    lake.files[0] = replace(lake.files[0], records=101)
    with pytest.raises(DamagedSource, match=r"100 rows.*101") as caught:
        lake.erased()
    assert caught.value.path == str(path)


def test_a_row_group_that_loses_rows_is_damaged(lake: Lake) -> None:
    """Arrow reads as many rows as the footer gives to a row group."""

    def change(footer: thrift.Struct) -> None:
        (group,) = thrift.value_of(footer, 4)
        group[3] = thrift.i64(36)

    path = position(lake)
    refoot(path, change)
    with pytest.raises(DamagedSource) as caught:
        lake.erased()
    assert caught.value.path == str(path)


def test_nulls_in_a_position_delete_file_are_damage(lake: Lake) -> None:
    schema = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
    path = lake.write(pa.table({"file_path": [DATA, None], "pos": [1, 2]}, schema=schema))
    lake.files.append(DeleteFile("d", "position", path, "parquet", 1, 2, 2))
    with pytest.raises(DamagedSource, match="nulls"):
        lake.erased()


@pytest.mark.parametrize(
    "tail", [b"not parquet", b"PAR1", b"", b"x" * 100 + b"PAR1", b"\x00\x00\x00\x7fPAR1"]
)
def test_a_footer_of_a_delete_file_that_does_not_parse_is_damage(lake: Lake, tail: bytes) -> None:
    path = position(lake)
    path.write_bytes(tail)
    with pytest.raises(DamagedSource) as caught:
        lake.erased()
    assert caught.value.path == str(path)


def test_what_is_gone_or_encrypted_is_not_damage(lake: Lake) -> None:
    path = position(lake)
    path.write_bytes(path.read_bytes()[:-4] + b"PARE")
    with pytest.raises(Unfit, match="encrypted") as unfit:
        lake.erased()
    assert unfit.value.path == str(path)
    path.unlink()
    with pytest.raises(MissingSource) as caught:
        lake.erased()
    assert caught.value.gone and not isinstance(caught.value, DamagedSource)


def with_deletes(tmp_path: Path) -> tuple[Any, Path]:
    data = source(tmp_path / "data.parquet", wide(0, ROWS))
    lake = Lake(tmp_path)
    lake.position([(str(data), n) for n in range(100)], **PLAIN)
    work = task(tmp_path / "out.parquet", [data], WIDE, digest=True)
    slices = tuple(replace(each, deletes=(0,)) for each in work.slices)
    return replace(work, slices=slices, deletes=tuple(lake.files)), Path(lake.files[0].path)


def test_a_rewrite_and_a_verification_stop_at_a_damaged_delete_file(tmp_path: Path) -> None:
    work, path = with_deletes(tmp_path)
    assert rewrite(work).erased == look(work).deleted == 100
    flip(path, "pos")
    (tmp_path / "out.parquet").unlink()
    for read in (rewrite, look):
        with pytest.raises(DamagedSource) as caught:
            read(work)
        assert caught.value.path == str(path)
    assert not (tmp_path / "out.parquet").exists()


# --- fsck --deep ------------------------------------------------------------------------------------------------------


def checked(file: DeleteFile) -> list[Any]:
    return check_footers(FooterTask((Footer(file.path, file.bytes, file.records, file),), {}))


def test_the_deep_check_decodes_delete_files(lake: Lake) -> None:
    path = position(lake)
    assert checked(lake.files[0]) == []
    flip(path, "pos")
    (found,) = checked(lake.files[0])
    assert found.path == str(path) and "CRC" in found.reason and found.delete and found.damaged
    (counted,) = checked(replace(lake.files[0], path=str(position(lake)), records=7))
    assert (counted.expected, counted.found, counted.delete) == (7, 100, True)


def test_the_deep_check_reads_deletion_vectors(lake: Lake) -> None:
    lake.vector(BY_ICEBERG, len(HELD), DATA)
    assert checked(lake.files[0]) == []
    path = Path(lake.files[0].path)
    data = bytearray(path.read_bytes())
    data[44] ^= 1
    path.write_bytes(bytes(data))
    (found,) = checked(lake.files[0])
    assert found.path == str(path) and "checksum differs" in found.reason and found.delete


# --- a copy of a delete file for another place ------------------------------------------------------------------------


def test_a_damaged_delete_file_is_not_written_again_elsewhere(lake: Lake) -> None:
    from lakewarden.rewrite.copy.copy import rehomed

    path = position(lake)
    with rehomed(Store({}), str(path), ("/lake", "/elsewhere")) as made:
        assert pq.read_table(made, page_checksum_verification=True).num_rows == 100
    flip(path, "pos")
    with pytest.raises(OSError, match="CRC"), rehomed(Store({}), str(path), ("/lake", "/elsewhere")):
        pass
