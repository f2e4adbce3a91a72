"""The lineage keys that Lakewarden writes into every snapshot it commits.

    writer.id, writer.host, writer.commit_hash, writer.invocation_id       who wrote
    input.snapshot_ids, input.row_count, input.bytes_compressed            the inputs
    trigger.type, trigger.operator, trigger.ticket                         who or what started it
    lineage.operation, lineage.run_id, lineage.group, lineage.policy       the run and its part
    lineage.load                                                           the staged load that an adoption brought in
    lineage.digest, lineage.proof, lineage.settled                         the rows' digest, how they were proven equal, the size
                                                                           and order they were written for

Iceberg's own `operation` (append, replace, …) is set by its library and says less: every rewrite is `replace`,
whatever its purpose.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakewarden.errors import UsageError
from lakewarden.model.run import Trigger
from lakewarden.model.table import Snapshot
from lakewarden.version import build

WRITER = "lakewarden"
TRIGGER_TYPES = ("schedule", "manual", "incident-response")


@dataclass(frozen=True, slots=True)
class Lineage:
    """One commit's origin; `summary()` is the part that goes into the snapshot."""

    operation: str
    run_id: str
    policy_hash: str
    trigger: Trigger
    input_snapshot_ids: Sequence[int]
    row_count: int
    bytes_compressed: int
    group: str = "0"
    digest: str = ""
    proof: str = ""
    settled: str = ""

    def summary(self) -> dict[str, str]:
        keys = {
            "writer.id": WRITER,
            "writer.host": socket.gethostname(),
            "writer.commit_hash": build(),
            "writer.invocation_id": self.run_id,
            "input.snapshot_ids": ",".join(str(each) for each in self.input_snapshot_ids),
            "input.row_count": str(self.row_count),
            "input.bytes_compressed": str(self.bytes_compressed),
            "trigger.type": self.trigger.type,
            "lineage.operation": self.operation,
            "lineage.run_id": self.run_id,
            "lineage.group": self.group,
            "lineage.policy": self.policy_hash,
        }
        if self.digest:
            keys["lineage.digest"] = self.digest
        if self.proof:
            keys["lineage.proof"] = self.proof
        if self.settled:
            keys["lineage.settled"] = self.settled
        if self.trigger.operator:
            keys["trigger.operator"] = self.trigger.operator
        if self.trigger.ticket:
            keys["trigger.ticket"] = self.trigger.ticket
        return keys


def checked(trigger: Trigger) -> Trigger:
    """The trigger, if it has the fields that its type requires; checked before any work is done."""
    if trigger.type not in TRIGGER_TYPES:
        allowed = ", ".join(TRIGGER_TYPES)
        raise UsageError(reason=f"read trigger type {trigger.type!r}: allowed are {allowed}")
    if trigger.type == "manual" and not trigger.operator:
        raise UsageError(
            reason="a manual trigger needs an operator", hint="add --operator NAME, in Python operator=NAME"
        )
    if trigger.type == "incident-response" and not trigger.ticket:
        raise UsageError(
            reason="an incident-response trigger needs a ticket", hint="add --ticket ID, in Python ticket=ID"
        )
    return trigger


def origin(snapshot: Snapshot) -> str:
    """Who made the commit and why, from its summary; engines that write no lineage are recognised by the keys they leave."""
    summary = snapshot.summary
    if "writer.id" not in summary:
        engine = " ".join(summary[key] for key in ("engine-name", "engine-version") if key in summary)
        return f"by {engine}, no lineage" if engine else "no lineage"
    parts = [f"{summary.get('lineage.operation', snapshot.operation)} by {summary['writer.id']}"]
    if summary.get("trigger.operator"):
        parts.append(f"{summary.get('trigger.type', 'manual')}, {summary['trigger.operator']}")
    elif summary.get("trigger.type"):
        parts.append(summary["trigger.type"])
    if summary.get("trigger.ticket"):
        parts.append(f"ticket {summary['trigger.ticket']}")
    if summary.get("lineage.run_id"):
        parts.append(f"run {summary['lineage.run_id']}")
    return ", ".join(parts)


def told_number(summary: Mapping[str, str], key: str) -> int:
    """A number in a summary; 0 if it is missing or unreadable: any writer may put anything into a summary."""
    try:
        return int(summary.get(key) or 0)
    except ValueError:
        return 0
