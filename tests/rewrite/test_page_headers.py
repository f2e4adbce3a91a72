"""Headers of pages, which no checksum covers: a flipped bit stops the rewrite by name, or is not in the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.pages.chunks import Doubtful, PagesDiffer
from lakewarden.rewrite.pages.copy import concatenate
from lakewarden.rewrite.read.sources import RowsDiffer
from lakewarden.rewrite.read.store import DamagedSource
from lakewarden.rewrite.task import Reading, RewriteTask
from tests.rewrite.test_pages import ROWS, by_duckdb, chunk_bytes, is_copied, pages_of, settled, source, task
from tests.rewrite.test_rewrite_kernel import column

# Columns of each kind, and how they are written. Without statistics headers are as Java's writer makes them.
KINDS: dict[str, tuple[pa.Field, dict[str, Any]]] = {
    "required long": (column("v", 1, pa.int64(), required=True), {"write_statistics": False}),
    "optional long": (column("v", 1, pa.int64()), {"write_statistics": False}),
    "double": (column("v", 1, pa.float64()), {}),
    "string": (column("v", 1, pa.string()), {"write_statistics": False}),
    "boolean": (column("v", 1, pa.bool_()), {"write_statistics": False}),
    "fixed": (column("v", 1, pa.binary(4)), {"write_statistics": False}),
    "dictionary": (column("v", 1, pa.string()), {"write_statistics": False, "use_dictionary": ["v"]}),
    "list": (
        column("v", 1, pa.list_(column("element", 3, pa.int32()))),
        {"write_statistics": False},
    ),
}


def value(kind: str, n: int) -> Any:
    if n % 7 == 0 and kind != "required long":
        return None
    values = {"double": n / 3, "string": f"name-{n}", "boolean": n % 3 == 0, "fixed": n.to_bytes(4, "big")}
    return values.get(
        kind, f"name-{n % 40}" if kind == "dictionary" else [n] * (n % 3) if kind == "list" else n
    )


def files(tmp_path: Path, kind: str) -> tuple[list[Path], pa.Table]:
    """Two files, and all their rows."""
    field, how = KINDS[kind]
    schema = pa.schema([field, column("n", 2, pa.int64())])
    numbers = range(2 * ROWS)
    rows = pa.table([pa.array([value(kind, n) for n in numbers], field.type), list(numbers)], schema=schema)
    paths = [source(tmp_path / f"{n}.parquet", rows.slice(n * ROWS, ROWS), **how) for n in range(2)]
    return paths, rows


def flips(path: Path) -> Iterator[bytes]:
    """The file with one bit flipped, for each bit of the first headers of the column `v`: a dictionary's and a page's."""
    data = path.read_bytes()
    chunk = pq.read_metadata(path).row_group(0).column(0)
    starts = {chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset}
    for start in sorted(starts):
        _, end = thrift.read(data, start)
        for at in range(start, end):
            for bit in range(8):
                changed = bytearray(data)
                changed[at] ^= 1 << bit
                yield bytes(changed)


def work_of(tmp_path: Path, paths: list[Path], rows: pa.Table) -> RewriteTask:
    return task(tmp_path / "out.parquet", paths, rows.schema, digest=True)


@dataclass(frozen=True)
class Case:
    """Two files with one kind of column, of which the second is damaged; and whether that column is always decoded."""

    work: RewriteTask
    rows: pa.Table
    paths: list[Path]
    decoded: bool

    @classmethod
    def of(cls, tmp_path: Path, kind: str) -> Case:
        paths, rows = files(tmp_path, kind)
        return cls(work_of(tmp_path, paths, rows), rows, paths, kind in ("dictionary", "list"))

    def outcome(self) -> str:
        """How the rewrite ends. Whatever it writes must be every row, for readers that did not write it."""
        bad, out = self.paths[1], Path(self.work.outputs[0])
        out.unlink(missing_ok=True)
        try:
            done = rewrite(self.work)
        except (DamagedSource, PagesDiffer, RowsDiffer) as error:
            assert error.path == str(bad) and not out.exists()
            return "stopped"
        assert done.read == done.written
        found = pq.read_table(out, page_checksum_verification=True)
        healthy, damaged = self.rows.slice(0, ROWS), self.rows.slice(ROWS)
        if self.decoded:
            # No reader notices one value more in a page: what they find in the file is what is carried over.
            damaged = pq.read_table(bad)
        assert found.slice(0, ROWS).equals(healthy) and found.slice(ROWS).equals(damaged)
        assert by_duckdb([str(out)]).cast(found.schema).equals(found)
        return "copied" if done.copied else "decoded"


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_a_page_header_does_not_reach_the_output(tmp_path: Path, kind: str) -> None:
    """One bit of a header used to make the rows of all files in the output unreadable, healthy ones too."""
    case = Case.of(tmp_path, kind)
    assert case.outcome() == "copied"
    ends: Counter[str] = Counter()
    for changed in flips(case.paths[1]):
        case.paths[1].write_bytes(changed)
        ends[case.outcome()] += 1
    assert ends["stopped"] > 50, ends


def with_header(path: Path, change: Any) -> None:
    """Another header for the first page of the column `v`, of the same length."""
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    header, end = thrift.read(data, at)
    changed = change(header, bytes(data[at:end]))
    assert len(changed) == end - at
    data[at:end] = changed
    path.write_bytes(bytes(data))


def test_a_dictionary_that_lacks_entries_is_named(tmp_path: Path) -> None:
    """Its header says how many entries it has. Arrow reads on behind the last one where strings stay dictionaries."""
    paths, rows = files(tmp_path, "dictionary")
    data = bytearray(paths[1].read_bytes())
    at = pq.read_metadata(paths[1]).row_group(0).column(0).dictionary_page_offset
    header, end = thrift.read(data, at)
    page = {**thrift.value_of(header, 7), 1: thrift.i32(thrift.value_of(thrift.value_of(header, 7), 1) - 8)}
    data[at:end] = thrift.write({**header, 7: thrift.structure(page)})
    paths[1].write_bytes(bytes(data))
    with pytest.raises(DamagedSource, match="column v: a value is not in its dictionary of 32") as caught:
        rewrite(work_of(tmp_path, paths, rows))
    assert caught.value.path == str(paths[1]) and not (tmp_path / "out.parquet").exists()


def of_another_type(header: thrift.Struct, _: bytes) -> bytes:
    """Readers skip a field of another type, and then miss it."""
    return thrift.write({**header, 2: thrift.i16(thrift.value_of(header, 2))})


def without_a_type(_: thrift.Struct, data: bytes) -> bytes:
    """Readers end the header there."""
    return bytes([data[0] & 0xF0]) + data[1:]


@pytest.mark.parametrize("change", [of_another_type, without_a_type])
def test_a_header_that_readers_understand_in_another_way_is_not_copied(tmp_path: Path, change: Any) -> None:
    paths, rows = files(tmp_path, "required long")
    with_header(paths[1], change)
    work = work_of(tmp_path, paths, rows)
    with pytest.raises(Doubtful, match=rf"{paths[1]}, column v: damaged page header"):
        concatenate(settled(Reading(work)))
    with pytest.raises(DamagedSource) as caught:
        rewrite(work)
    assert caught.value.path == str(paths[1]) and not (tmp_path / "out.parquet").exists()


def test_headers_are_written_again_and_sizes_follow(tmp_path: Path) -> None:
    """Sources with statistics in their headers, which the output does not have: its footer counts the new headers."""
    paths, rows = files(tmp_path, "double")
    assert all(5 in thrift.value_of(header, 5) for header, _ in pages_of(chunk_bytes(paths[0], 1)[0]))
    rewrite(work_of(tmp_path, paths, rows))
    out = tmp_path / "out.parquet"
    assert is_copied(out, paths, 1)
    (chunk,) = chunk_bytes(out, 1)
    found = pages_of(chunk)
    assert all(set(header) == {1, 2, 3, 4, 5} for header, _ in found)
    assert all(set(thrift.value_of(header, 5)) == {1, 2, 3, 4} for header, _ in found)
    stated = pq.read_metadata(out).row_group(0).column(0)
    headers = len(chunk) - sum(len(body) for _, body in found)
    assert stated.total_uncompressed_size == headers + sum(thrift.value_of(each, 2) for each, _ in found)


def test_no_bit_of_a_header_decides_between_two_encodings_of_levels(tmp_path: Path) -> None:
    """Where a column has no levels, writers name one encoding or the other; the output's headers name one."""
    paths, rows = files(tmp_path, "required long")

    def packed(header: thrift.Struct, _: bytes) -> bytes:
        page = {**thrift.value_of(header, 5), 3: thrift.i32(4), 4: thrift.i32(4)}
        return thrift.write({**header, 5: thrift.structure(page)})

    with_header(paths[1], packed)
    done = rewrite(work_of(tmp_path, paths, rows))
    out = tmp_path / "out.parquet"
    assert done.copied and pq.read_table(out).equals(rows)
    levels = {thrift.value_of(thrift.value_of(each, 5), 3) for each, _ in pages_of(chunk_bytes(out, 1)[0])}
    assert levels == {3}
    # Where there are levels, the header must say how they are encoded.
    loose, loose_rows = files(tmp_path, "optional long")
    with_header(loose[1], packed)
    with pytest.raises(Doubtful, match="column v"):
        concatenate(settled(Reading(replace(work_of(tmp_path, loose, loose_rows), digest=False))))
