"""A stream of Spark restarts beside Lakewarden: every row is there exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from lakewarden.model.run import RunState
from tests.support.lab import Lab

NOW = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
ROWS = 100


class Stream:
    """A query that appends every new file of a folder to the table, and ends."""

    def __init__(self, lab: Lab, table: str, folder: Path) -> None:
        self.lab, self.table = lab, table
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"

    def arrive(self, number: int) -> None:
        """The file with these rows: each number has its own."""
        ids = self.lab.spark.range(number * ROWS, (number + 1) * ROWS, 1, 1)
        ids.write.mode("append").parquet(str(self.source))

    def run(self) -> list[int]:
        """The batches that it committed, or believes it did, by their number."""
        found = self.lab.spark.readStream.schema("id bigint").parquet(str(self.source))
        written = found.writeStream.option("checkpointLocation", str(self.checkpoint))
        query = written.trigger(availableNow=True).toTable(self.table)
        assert query.awaitTermination(60), "the stream does not end"
        return [each.batchId for each in query.recentProgress if each.numInputRows]

    def forget_newest(self) -> None:
        """As if Spark had died between the commit to the table and the line in its own log."""
        log = self.checkpoint / "commits"
        newest = max(int(each.name) for each in log.iterdir() if each.name.isdigit())
        (log / str(newest)).unlink()
        (log / f".{newest}.crc").unlink(missing_ok=True)


def epochs(lab: Lab, table: str) -> list[str | None]:
    """The epoch of the stream that each snapshot says, oldest first."""
    return [each.summary.get("spark.sql.streaming.epochId") for each in lab.snapshots(table)]


def test_a_stream_that_restarts_commits_no_batch_twice(lab: Lab, tmp_path: Path) -> None:
    """Spark looks for its newest commit from the head, over inserts of others and compactions of ours."""
    table = lab.create("id bigint", partition="")
    stream = Stream(lab, table, tmp_path)
    for number in range(3):
        stream.arrive(number)
        assert stream.run() == [number]
    stream.forget_newest()
    for first in (-4, -2):
        lab.sql(f"insert into {table} values ({first})")
        lab.sql(f"insert into {table} values ({first + 1})")
        assert lab.lw.run("compact", table, {"rewrite_min_input_files": 2}).state is RunState.DONE
    assert lab.lw.run("expire", table, NOW).state is RunState.DONE
    assert lab.lw.run("purge", table, {"delete_grace_hours": 0}).counters["files_erased"]
    kept = epochs(lab, table)
    stream.arrive(3)
    assert stream.run() == [2, 3], "the batch whose line was lost comes again"
    assert Counter(row.id for row in lab.sql(f"select id from {table}")) == Counter(range(-4, 4 * ROWS))
    assert kept == ["2", *[None] * 6], "expire takes what Spark does not walk over"
