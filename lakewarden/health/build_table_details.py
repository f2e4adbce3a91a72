"""Builds a table's details for its page from what was read of the table. Pure and limited in size, so that every page loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from lakewarden.deletion.holds import Holds
from lakewarden.errors import LakewardenError
from lakewarden.health import table_details as lines
from lakewarden.health.numbers import FileNumbers
from lakewarden.health.score import Score
from lakewarden.health.table_details import (
    ColumnLine,
    DueLine,
    HoldLine,
    PartLine,
    PolicyLine,
    RefLine,
    SnapshotLine,
    TableDetails,
    short,
)
from lakewarden.jobs import manifests as folding
from lakewarden.jobs.expire import plan as expire
from lakewarden.lineage.audit import INPUTS
from lakewarden.lineage.summary import origin, told_number
from lakewarden.model.files import Manifest
from lakewarden.model.hold import Hold
from lakewarden.model.job_facts import JOBS
from lakewarden.model.plan import Plan
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import Snapshot, SortField, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.policy.values import show
from lakewarden.state.health import Numbers

MOST_BYTES = 100_000
_MAIN = "main"
_INPUTS = 500  # characters: a commit may name any number of inputs
_FAR = timedelta(days=365 * 1000)


@dataclass(frozen=True, slots=True)
class TableInputs:
    """Everything that one look read of a table."""

    view: TableView
    policy: Policy
    holds: Holds
    files: FileNumbers
    manifests: Sequence[Manifest]
    kept: Mapping[int, Reason]  # why each remaining snapshot is kept
    costs: Mapping[Hold, int | None]
    now: datetime


def build_details(inputs: TableInputs, numbers: Numbers) -> TableDetails:
    view, schema = inputs.view, json.loads(inputs.view.schema_json)
    columns = _columns(schema)
    holds = _holds(inputs)
    portrait = TableDetails(
        format=view.format,
        format_version=view.format_version,
        location=view.location,
        metadata_location=view.metadata_location,
        current_snapshot_id=view.current_snapshot_id,
        schema_id=view.schema_id,
        partition_by=_partition_by(view, schema),
        sort_by=_sort_by(view, schema),
        primary_keys=tuple(schema.get("primaryKeys", ())),
        columns=columns[: lines.COLUMNS],
        columns_total=len(columns),
        snapshots=tuple(_snapshots(inputs)),
        snapshots_total=len(view.snapshots),
        refs=_refs(inputs)[: lines.REFS],
        refs_total=len(view.refs),
        holds=holds[: lines.HOLDS],
        holds_total=len(holds),
        due=tuple(_due(inputs, numbers)),
        policy=tuple(
            PolicyLine(key, short(show(each.value)), str(each.origin))
            for key, each in inputs.policy.values.items()
        ),
        partitions=inputs.files.partitions,
        partitions_total=inputs.files.partitions_total,
        painted_at=inputs.now,
    )
    return _bounded(portrait)


def with_score(made: TableDetails, score: Score, numbers: Numbers) -> TableDetails:
    """The same details with the values that depend only on the state database: the parts of its score, and the
    files to purge.
    """
    parts = tuple(PartLine(each.name, each.weight, each.cost, short(each.sentence)) for each in score.parts)
    due = tuple(_purge(numbers) if each.job == Job.PURGE else each for each in made.due)
    return replace(made, score_parts=parts, debt_reason=score.debt.sentence, due=due)


def _bounded(portrait: TableDetails) -> TableDetails:
    """Limit the size: most of a large portrait is its snapshots, so the older half of them is dropped until it fits."""
    while len(json.dumps(portrait.to_dict())) > MOST_BYTES and (portrait.snapshots or portrait.columns):
        portrait = replace(
            portrait,
            snapshots=portrait.snapshots[: len(portrait.snapshots) // 2],
            columns=portrait.columns[: max(len(portrait.columns) // 2, 0)],
        )
    return portrait


# ------------------------------------------------------------ snapshots and what keeps them


def _snapshots(inputs: TableInputs) -> Iterator[SnapshotLine]:
    """The newest first. The end of a window is shown only if nothing else keeps the snapshot after it."""
    view = inputs.view
    newest = sorted(view.snapshots, key=lambda each: (each.committed_at, each.sequence_number), reverse=True)
    ends = max(expire.own_window(inputs.view), inputs.policy.hours("snapshot_retention_hours"))
    later = expire.reasons(view, inputs.policy, inputs.holds, inputs.now + _FAR) if ends else {}
    for each in newest[: lines.SNAPSHOTS]:
        kept = inputs.kept.get(each.id)
        in_window = kept is not None and kept.kind is ReasonKind.WINDOW and each.id not in later
        yield SnapshotLine(
            id=each.id,
            at=each.committed_at,
            operation=each.operation,
            origin=short(origin(each)),
            run_id=each.summary.get("lineage.run_id", ""),
            current=each.id == view.current_snapshot_id,
            kept="" if kept is None else short(kept.text),
            kept_kind="" if kept is None else str(kept.kind),
            expires_at=each.committed_at + ends if in_window else None,
            inputs=each.summary.get(INPUTS, "")[:_INPUTS],
            **_changes(each),
        )


_SUMMARY = {
    "added_files": "added-data-files",
    "removed_files": "deleted-data-files",
    "added_rows": "added-records",
    "removed_rows": "deleted-records",
    "added_bytes": "added-files-size",
    "removed_bytes": "removed-files-size",
}


def _changes(snapshot: Snapshot) -> dict[str, Any]:
    """The changes from its summary; Paimon states only by how many rows the table grew."""
    numbers = {name: told_number(snapshot.summary, key) for name, key in _SUMMARY.items()}
    grew = told_number(snapshot.summary, "delta-records")
    return numbers | ({"added_rows": grew} if grew > 0 else {"removed_rows": -grew} if grew < 0 else {})


def _refs(inputs: TableInputs) -> tuple[RefLine, ...]:
    ends = {(hold.kind.value, hold.name): hold.until for hold in inputs.holds.holds}
    return tuple(
        RefLine(short(ref.name), ref.kind, ref.snapshot_id, ends.get((ref.kind, ref.name)))
        for ref in sorted(inputs.view.refs, key=lambda ref: (ref.name != _MAIN, ref.kind, ref.name))
    )


def _holds(inputs: TableInputs) -> tuple[HoldLine, ...]:
    return tuple(
        HoldLine(
            each.kind.value,
            short(each.name),
            short(each.holder),
            short(each.purpose),
            each.snapshot_id,
            each.since,
            each.until,
            inputs.costs.get(each),
        )
        for each in inputs.holds.holds
    )


# ------------------------------------------------------------ what is due


def _due(inputs: TableInputs, numbers: Numbers) -> Iterator[DueLine]:
    """In the order of a pass. Expire and rewrite-manifests are planned, the others are estimated from numbers."""
    return (line for job in JOBS if (line := _due_line(job, inputs, numbers)) is not None)


def _due_line(job: Job, inputs: TableInputs, numbers: Numbers) -> DueLine | None:
    """None for a job that is never shown as due."""
    policy, files = inputs.policy, inputs.files
    match job:
        case Job.EXPIRE_PARTITIONS:
            return _switched(job, policy, True, "looks for old partitions in every pass")
        case Job.COMPACT_DELETES:
            least = policy.int("delete_compaction_min_deletes")
            text = f"{files.struck:,} data files carry {least} or more delete files"
            return _switched(job, policy, files.struck > 0, text)
        case Job.COMPACT:
            least = policy.int("rewrite_min_input_files")
            text = (
                f"{files.compactable:,} partitions have {least} or more of {files.small_files:,} small files"
            )
            return _switched(job, policy, files.compactable > 0, text)
        case Job.REWRITE_MANIFESTS:
            return _planned(job, lambda: folding.plan(inputs.view, inputs.manifests, policy, inputs.now))
        case Job.HANDOFF:
            text = f"{numbers.overdue_snapshots:,} snapshots are about to expire"
            return _switched(job, policy, numbers.overdue_snapshots > 0, text)
        case Job.EXPIRE:
            return _planned(job, lambda: _expire(inputs))
        case Job.PURGE:
            return _purge(numbers)
        case Job.SWEEP:
            return _switched(job, policy, True, "lists the table for orphans in every pass")
        case Job.COMPACT_HISTORY:
            return None
        case _:
            assert_never(job)


def _purge(numbers: Numbers) -> DueLine:
    text = f"{numbers.due_trashed_files:,} of {numbers.trashed_files:,} trashed files are past their grace"
    return DueLine(
        Job.PURGE, numbers.due_trashed_files > 0, text if numbers.trashed_files else "no file is in the trash"
    )


def _expire(inputs: TableInputs) -> Plan:
    expire.check(inputs.view, inputs.now)
    return expire.plan(inputs.view, inputs.policy, inputs.holds, inputs.now)


def _planned(job: Job, plan: Any) -> DueLine:
    try:
        planned: Plan = plan()
    except LakewardenError as error:  # the page shows why it cannot be planned
        return DueLine(job, False, short(error.message), exact=True, error=True)
    return DueLine(job, not planned.empty, short(planned.reason), exact=True, off=planned.off)


def _switched(job: Job, policy: Policy, due: bool, text: str) -> DueLine:
    key = JOBS[job].switch
    if key is not None and not policy.bool(key):
        return DueLine(job, False, f"switched off: {policy.explain(key)}", off=True)
    return DueLine(job, due, text)


# ------------------------------------------------------------ the schema


def _columns(schema: Mapping[str, Any]) -> tuple[ColumnLine, ...]:
    keys = set(schema.get("primaryKeys", ()))
    identifiers = set(schema.get("identifier-field-ids", ()))
    return tuple(
        ColumnLine(
            short(each["name"]),
            short(_type(each["type"])),
            bool(each.get("required")) or str(each["type"]).endswith("NOT NULL"),
            short(each.get("doc") or each.get("description") or ""),
            each["name"] in keys or each.get("id") in identifiers,
        )
        for each in schema.get("fields", ())
    )


def _type(type_: Any) -> str:
    """Nested types in Spark's form; Paimon's are text already."""
    if not isinstance(type_, Mapping):
        return str(type_).removesuffix(" NOT NULL")
    match type_.get("type"):
        case "list":
            return f"list<{_type(type_['element'])}>"
        case "map":
            return f"map<{_type(type_['key'])}, {_type(type_['value'])}>"
        case "struct":
            fields = (f"{each['name']}: {_type(each['type'])}" for each in type_["fields"])
            return f"struct<{', '.join(fields)}>"
        case other:  # Paimon's nested types
            return str(other).lower()


def _names(schema: Mapping[str, Any]) -> dict[int, str]:
    return {each["id"]: each["name"] for each in schema.get("fields", ()) if "id" in each}


def _partition_by(view: TableView, schema: Mapping[str, Any]) -> tuple[str, ...]:
    names = _names(schema)
    spec = next((each for each in view.specs if each.id == view.current_spec_id), None)
    return tuple(
        names.get(each.source_id, each.name)
        if each.transform == "identity"
        else f"{each.transform}({names.get(each.source_id, each.name)})"
        for each in (spec.fields if spec else ())
        if each.transform != "void"
    )


def _sort_by(view: TableView, schema: Mapping[str, Any]) -> tuple[str, ...]:
    names = _names(schema)
    order = next((each for each in view.sort_orders if each.id == view.current_sort_order_id), None)
    return tuple(_sorted(each, names) for each in (order.fields if order else ()))


def _sorted(field: SortField, names: Mapping[int, str]) -> str:
    column = names.get(field.source_id, str(field.source_id))
    term = column if field.transform == "identity" else f"{field.transform}({column})"
    return f"{term} {field.direction} {field.null_order.replace('-', ' ')}"
