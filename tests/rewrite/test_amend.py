"""INT96 timestamps stay the bytes they are, and floats with a NaN state no bounds where readers take it for the largest."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.read.project import FIELD_ID
from lakewarden.rewrite.task import RewriteTask
from lakewarden.rewrite.write import encoding
from lakewarden.rewrite.write import footer_fixups as amend
from lakewarden.rewrite.write.encoding import WriteOptions
from lakewarden.rewrite.write.footer_fixups import INT96, amended, read_as_bytes
from lakewarden.tables.paimon import arrow_schema
from tests.rewrite.test_rewrite_kernel import whole

ROWS = 6_000
# Days counted as INT96 does; the last is far beyond what 64 bits of nanoseconds hold.
EPOCH, YEAR_9999 = 2_440_588, 5_373_484
MARKED = pa.schema(
    [
        pa.field("at", pa.binary(12), metadata={FIELD_ID: "1", INT96: "true"}),
        pa.field("f", pa.float64(), metadata={FIELD_ID: "2"}),
        pa.field(
            "r",
            pa.struct([pa.field("inner", pa.binary(12), metadata={FIELD_ID: "4", INT96: "true"})]),
            metadata={FIELD_ID: "3"},
        ),
    ]
)


def moments(start: int) -> list[bytes | None]:
    days = (EPOCH, EPOCH - 800_000, YEAR_9999)
    return [None if n % 7 == 0 else struct.pack("<qi", (start + n) * 1_001, days[n % 3]) for n in range(ROWS)]


def int96_file(path: Path, start: int, floats: list[float]) -> Path:
    """As Java's writers make them: the bytes of a fixed column are those of an INT96."""
    inner = pa.array([{"inner": each} for each in moments(start)], MARKED.field("r").type)
    rows = pa.table([pa.array(moments(start), pa.binary(12)), floats, inner], schema=MARKED)
    pq.write_table(
        rows, path, use_dictionary=False, compression="zstd", store_schema=False, write_page_checksum=True
    )
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = thrift.write(amended(thrift.read(data[-8 - size : -8])[0], ["at", "r.inner"], ()))
    path.write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert [pq.read_metadata(path).schema.column(n).physical_type for n in (0, 2)] == ["INT96", "INT96"]
    return path


def as_bytes(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as handle:
        return pq.ParquetFile(handle, metadata=read_as_bytes(handle)).read()


def run(output: Path, sources: list[Path], **more: Any) -> Any:
    schema = MARKED.serialize().to_pybytes()
    options = WriteOptions.from_properties({})
    task = RewriteTask((str(output),), tuple(map(whole, sources)), schema, "", options, **more)
    return rewrite(task)


@pytest.mark.parametrize("copy_pages", [True, False])
def test_int96_survives_whatever_the_year(tmp_path: Path, copy_pages: bool) -> None:
    """If Arrow made nanoseconds of them, the year 9999 would come out as 1816."""
    sources = [
        int96_file(tmp_path / f"{n}.parquet", n, [float(n * i) for i in range(ROWS)]) for n in range(2)
    ]
    done = run(tmp_path / "out.parquet", sources, copy_pages=copy_pages, digest=not copy_pages)
    assert done.copied is copy_pages
    footer = pq.read_metadata(tmp_path / "out.parquet")
    assert [footer.schema.column(n).physical_type for n in range(3)] == ["INT96", "DOUBLE", "INT96"]
    assert footer.row_group(0).column(0).statistics.has_min_max is False
    assert footer.row_group(0).column(0).statistics.null_count == 2 * sum(n % 7 == 0 for n in range(ROWS))
    found = as_bytes(tmp_path / "out.parquet")
    assert found.equals(pa.concat_tables([as_bytes(each) for each in sources]))
    assert found["at"][ROWS - 1].as_py() == moments(0)[-1]


@pytest.mark.parametrize("copy_pages", [True, False])
def test_float_with_nan_states_no_bounds(tmp_path: Path, copy_pages: bool) -> None:
    """A filter for what is larger than all numbers of the file would skip it, and its NaN is taken for larger."""
    sources = [
        int96_file(tmp_path / f"{n}.parquet", n, [math.nan if i == n else 1.5 for i in range(ROWS)])
        for n in range(2)
    ]
    more = {"copy_pages": copy_pages, "digest": not copy_pages}
    run(tmp_path / "out.parquet", sources, nan_in_bounds=True, **more)
    run(tmp_path / "iceberg.parquet", sources, **more)
    told = [
        pq.read_metadata(tmp_path / name).row_group(0).column(1).statistics
        for name in ("out.parquet", "iceberg.parquet")
    ]
    assert told[0] is None or not told[0].has_min_max
    assert told[1].has_min_max


def test_formats_and_kernels_use_the_same_words() -> None:
    """Neither may import the other."""
    assert (arrow_schema.INT96, arrow_schema.INT96_BYTES) == (amend.INT96, amend.INT96_BYTES)
    assert arrow_schema.UTC_TIMES == encoding.UTC_TIMES
