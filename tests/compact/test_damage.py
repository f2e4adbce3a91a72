"""A damaged file of a writer that leaves no checksums: its rows are lost already, those beside it must stay."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakewarden.jobs.fsck.findings import Fault
from lakewarden.model.location import normal
from lakewarden.model.run import RunState
from lakewarden.rewrite.pages import thrift
from tests.deletion.test_known_losses import add_back
from tests.support.lab import Lab

ROWS = 25_000


def files_of_pyarrow(lab: Lab, count: int) -> tuple[str, list[Path]]:
    """A table of `count` files, large enough that their pages would be copied, without a checksum."""
    table = lab.create("id bigint, v double, s string", partition="")
    lab.sql(f"insert into {table} values (0, 0, 'first')")
    (first,) = lab.data_files(table)
    lab.sql(f"delete from {table} where true")
    folder = Path(normal(first)).parent
    schema = pa.schema(
        [
            pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)})
            for id_, (name, kind) in enumerate(
                [("id", pa.int64()), ("v", pa.float64()), ("s", pa.string())], 1
            )
        ]
    )
    paths = []
    for number in range(count):
        ids = range(number * ROWS, (number + 1) * ROWS)
        rows = pa.table(
            [list(ids), [n / 7 for n in ids], [f"session-{n * 7919}" for n in ids]], schema=schema
        )
        paths.append(folder / f"{number}.parquet")
        pq.write_table(rows, paths[-1], use_dictionary=False, compression="zstd", store_schema=False)
        add_back(lab, table, str(paths[-1]))
    return table, paths


def damage(path: Path) -> None:
    """Four bytes of one page, so that it cannot be decompressed."""
    data = bytearray(path.read_bytes())
    _, body = thrift.read(data, pq.read_metadata(path).row_group(0).column(1).data_page_offset)
    data[body : body + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(bytes(data))


def test_damage_without_checksums_does_not_spread(lab: Lab) -> None:
    """Its page used to be copied beside those of three healthy files: after expire and purge no row was left."""
    table, paths = files_of_pyarrow(lab, 4)
    damage(paths[1])
    before = set(lab.data_files(table))
    run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.PARTIAL
    assert str(paths[1]) in run.reason and "fsck" in run.reason
    assert set(lab.data_files(table)) == before and not run.snapshot_ids
    # The rows of every healthy file are there to read, file by file.
    for number, path in enumerate(paths):
        if path != paths[1]:
            found = pq.read_table(path, columns=["id"]).column(0).to_pylist()
            assert found == list(range(number * ROWS, (number + 1) * ROWS))
    assert lab.sql(f"select count(v) from {table} where id >= {2 * ROWS}")[0][0] == 2 * ROWS

    assert [each.kind for each in lab.lw.fsck(table).findings] == []
    (finding,) = lab.lw.fsck(table, deep=True).findings
    assert finding.kind is Fault.UNREADABLE_FILE and normal(finding.path or "") == str(paths[1])


def test_healthy_files_without_checksums_are_compacted_and_proven_by_rows(lab: Lab) -> None:
    table, _ = files_of_pyarrow(lab, 2)
    before = lab.rows(table)
    run = lab.lw.run("compact", table, policy={"rewrite_min_input_files": 2})
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == before
    summary = lab.snapshots(table)[-1].summary
    assert summary["lineage.proof"] == "rows"
    assert summary["lineage.digest"].startswith(f"rows-v1:{2 * ROWS}:")
    (path,) = lab.data_files(table)
    pq.read_table(normal(path), page_checksum_verification=True)
