"""Long lineage histories made from a few words: snapshots with summaries, and the rows they leave in the archive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakewarden.model.table import Snapshot, TableRef, TableView
from tests.support import tables

START = datetime(2024, 1, 1, tzinfo=UTC)


def snapshots(count: int, days: float, seed: int = 1, start: datetime = START) -> list[Snapshot]:
    """Commits spread evenly over the days: appends by two writers, compactions of ours, overwrites with a ticket."""
    dice = random.Random(seed)
    ids = dice.sample(range(1, 2**62), count)
    step = timedelta(days=days) / count
    made: list[Snapshot] = []
    for number, id_ in enumerate(ids):
        kind = number % 10
        inputs = dice.sample(ids[max(0, number - 20) : number], min(number, 2))
        at = start + step * number
        made.append(
            Snapshot(
                id_,
                ids[number - 1] if number else None,
                number + 1,
                at.replace(microsecond=at.microsecond // 1000 * 1000),
                "replace" if kind == 3 else "overwrite" if kind == 7 else "append",
                summary(number, kind, inputs),
            )
        )
    return made


def summary(number: int, kind: int, inputs: Sequence[int]) -> dict[str, str]:
    """As writers leave it: one in ten has no lineage at all."""
    counts = {
        "added-records": str(100 + number),
        "added-files-size": str(10_000 + number),
        "total-records": str(100 * number),
        "spark.app.id": f"local-{1_700_000_000_000 + number}",
        "changed-partition-count": "1",
        "engine-name": "spark",
        "engine-version": "4.1.0",
        "iceberg-version": "Apache Iceberg 1.11.0 (commit 0123456789abcdef0123456789abcdef01234567)",
    }
    if kind == 9:
        return counts
    told = {
        "writer.id": "lakewarden" if kind == 3 else f"etl-{number % 2}",
        "writer.host": "worker-7",
        "writer.commit_hash": f"{number // 50:040x}",
        "writer.invocation_id": f"run-{number}",
        "lineage.operation": {3: "compaction", 7: "overwrite"}.get(kind, "append"),
        "trigger.type": "incident-response" if kind == 7 else "schedule",
    }
    if kind in (3, 5):
        told["input.snapshot_ids"] = ",".join(map(str, inputs))
    if kind == 7:
        told |= {"trigger.operator": ("ana", "ben")[number % 2], "trigger.ticket": f"INC-{number}"}
    return counts | told


def view_of(live: Sequence[Snapshot], uuid: str = "u", ref: TableRef = tables.TABLE) -> TableView:
    head = live[-1].id if live else None
    return replace(tables.view(), ref=ref, uuid=uuid, snapshots=tuple(live), current_snapshot_id=head)
