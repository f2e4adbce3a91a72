"""Real Iceberg commits over years: made by its own library, then moved to the moments they are meant to have."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lakewarden.tables.jvm import bridge

START = datetime(2023, 1, 10, tzinfo=UTC)


@dataclass
class Told:
    """What was written down of a commit when it was made, apart from Lakewarden: an oracle."""

    id: int
    at: datetime
    number: int
    summary: dict[str, str]
    inputs: list[int] = field(default_factory=list)


def commit_all(spark: Any, table: str, count: int, days: float, start: datetime = START) -> list[Told]:
    """So many appends, spread over the days. One in thirteen has no lineage, one in eleven is an overwrite by its own word."""
    dice, made = random.Random(3), list[Told]()
    writer = bridge(spark, Path(__file__).with_name("LineageHistory.java"), "tests.LineageHistory")
    java = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
    writer.begin(java)
    for number in range(count):
        inputs = [each.id for each in dice.sample(made, 2)] if number % 7 == 6 else []
        summary = _summary(number, inputs)
        id_ = writer.append(number, json.dumps(summary))
        at = start + timedelta(days=days) * number / count
        inputs = inputs if summary else []
        made.append(Told(id_, at.replace(microsecond=at.microsecond // 1000 * 1000), number, summary, inputs))
    writer.commit()
    java.refresh()
    newest = java.operations().current().metadataFileLocation().removeprefix("file:")
    move(Path(newest), {each.id: round(each.at.timestamp() * 1000) for each in made})
    return made


def _summary(number: int, inputs: Sequence[int]) -> dict[str, str]:
    if number % 13 == 12:
        return {}
    summary = {
        "writer.id": f"etl-{number % 3}",
        "writer.host": "worker-7",
        "writer.commit_hash": f"{number // 10:040x}",
        "writer.invocation_id": f"call-{number}",
        "lineage.operation": "append",
        "trigger.type": "schedule",
    }
    if number % 11 == 10:
        summary |= {
            "lineage.operation": "overwrite",
            "trigger.type": "incident-response",
            "trigger.operator": f"op-{number % 4}",
            "trigger.ticket": f"INC-{number}",
        }
    if inputs:
        summary["input.snapshot_ids"] = ", ".join(map(str, inputs))
    return summary


def move(path: Path, moments: dict[int, int]) -> None:
    """A metadata file with other moments in it, in the same place."""
    metadata = json.loads(path.read_text("utf-8"))
    for each in metadata["snapshots"]:
        each["timestamp-ms"] = moments[each["snapshot-id"]]
    for each in metadata["snapshot-log"]:
        each["timestamp-ms"] = moments[each["snapshot-id"]]
    metadata["metadata-log"] = []
    metadata["last-updated-ms"] = max(moments.values())
    path.write_text(json.dumps(metadata), "utf-8")
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    for other in path.parent.glob("*.metadata.json"):
        if other != path:  # an ancestor that the log has forgotten is older all the same
            ancestor = json.loads(other.read_text("utf-8"))
            other.write_text(json.dumps({**ancestor, "last-updated-ms": min(moments.values())}), "utf-8")
            other.with_name(f".{other.name}.crc").unlink(missing_ok=True)


def below(made: Sequence[Told], start: int) -> dict[int, int]:
    """Everything made from a snapshot with how many steps it is away, by going over all commits until nothing changes."""
    found = {start: 0}
    while True:
        grown = dict(found)
        for each in made:
            near = [found[parent] + 1 for parent in each.inputs if parent in found]
            if near and each.id != start:
                grown[each.id] = min([*near, grown.get(each.id, 1 << 30)])
        if grown == found:
            return {id_: depth for id_, depth in found.items() if id_ != start}
        found = grown
