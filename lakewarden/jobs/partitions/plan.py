"""Plans expire-partitions: which partitions expire, and why every other one stays. Pure.

A partition expires when it is older than the policy allows, counted from the end of its time range or from its last change. A
single call can also select partitions by name or by a filter. A partition whose time cannot be read stays and is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lakewarden.errors import PolicyError, Refused
from lakewarden.model.actions import DropPartition
from lakewarden.model.files import KeyKind, LivePartition, PartitionKey
from lakewarden.model.plan import Bounds, Plan, SkippedRow, count_skipped
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import TableView
from lakewarden.policy.periods import (
    Formatter,
    NoTime,
    Text,
    WrongFormat,
    as_text,
    by_name,
    counted_end,
    filled,
    references,
)
from lakewarden.policy.resolve import Policy
from lakewarden.tables.interface import PartitionSet

_MAIN = "main"
_SHOWN = 3
_TIMES = (KeyKind.YEAR, KeyKind.MONTH, KeyKind.DAY, KeyKind.HOUR, KeyKind.MOMENT)


@dataclass(frozen=True, slots=True)
class _Judged:
    """The decision for one partition: it expires (`goes`) or stays, because of `reason`. `kind` is why it stays."""

    partition: LivePartition
    goes: bool
    reason: str
    kind: ReasonKind
    at: datetime | None = None
    named: bool = False  # reported by name, not only counted, because its time cannot be read


Judge = Callable[[LivePartition], _Judged]


def switched_off(policy: Policy) -> str:
    """Why nothing can be planned for any table; empty if it is enabled."""
    if by_call(policy) or policy.bool("partition_expiry_enabled"):
        return ""
    return f"switched off: {policy.explain('partition_expiry_enabled')}"


def by_call(policy: Policy) -> bool:
    """Whether this call selects the partitions itself, so that age and the enabling switch do not matter."""
    return bool(policy.columns("partition_list")) or policy.maybe_text("partition_where") is not None


def plan(view: TableView, found: PartitionSet | None, policy: Policy, now: datetime) -> Plan:
    """Plan the partitions to expire; all others are skipped with a reason. `found` is None if the job is switched off."""
    empty = Plan(
        job=Job.EXPIRE_PARTITIONS,
        table=view.ref,
        made_at=now,
        bounds=Bounds(None if found is None else found.snapshot_id, _MAIN, 0),
        policy_hash=policy.hash(),
        reason="",
    )
    if found is None:
        return replace(empty, reason=switched_off(policy), off=True)
    if not found.partitions:
        return replace(empty, reason="the table is empty")
    if not any(partition.keys for partition in found.partitions):
        why = Reason(ReasonKind.NOT_PARTITIONED, "the table is not partitioned")
        whole = [("partition", 1, partition.bytes, why) for partition in found.partitions]
        return replace(empty, reason=why.text, skipped=count_skipped(whole))
    judge = _judge(view, found, policy, now)
    judged = [judge(partition) for partition in found.partitions]
    going = sorted((each for each in judged if each.goes), key=_oldest_first)
    _refuse_all(view, going, judged, policy)
    limit = policy.maybe_int("partition_expire_limit")
    chosen, rest = going[:limit], going[len(going[:limit]) :]
    left = policy.explain("partition_expire_limit")
    later = Reason(ReasonKind.LIMIT, f"left for the next run: {left}")
    return replace(
        empty,
        actions=tuple(_action(each) for each in chosen),
        skipped=count_skipped(
            [
                *_skipped(each for each in judged if not each.goes),
                *(("partition", 1, each.partition.bytes, later) for each in rest),
            ]
        ),
        reason=_summary(chosen, found, policy),
        cut_short=f"{len(rest)} more would expire: {left}" if rest else "",
    )


def only(made: Plan, earlier: Plan) -> Plan:
    """The new plan without partitions that the earlier one did not contain: a run never does more than was planned."""
    named = {(each.spec_id, each.partition) for each in drops(earlier)}
    kept = tuple(each for each in drops(made) if (each.spec_id, each.partition) in named)
    return replace(made, actions=kept)


def drops(made: Plan) -> list[DropPartition]:
    return [action for action in made.actions if isinstance(action, DropPartition)]


# ------------------------------------------------------------ decisions by call, change or time


def _judge(view: TableView, found: PartitionSet, policy: Policy, now: datetime) -> Judge:
    listed, where = policy.columns("partition_list"), policy.maybe_text("partition_where")
    if listed and where is not None:
        reason = (
            f"{policy.explain('partition_list')} and {policy.explain('partition_where')} cannot be combined"
        )
        raise PolicyError(key="partition_where", reason=reason)
    if listed:
        return _by_list(found, policy)
    if where is not None:
        return _by_filter(found, policy)
    if policy.text("partition_expiry_strategy") == "update-time":
        return _by_change(policy, now)
    return _by_value(view, found, policy, now)


def _by_list(found: PartitionSet, policy: Policy) -> Judge:
    requested = [frozenset(_parts(each)) for each in policy.columns("partition_list")]
    known = {part.partition("=")[0] for each in found.partitions for part in _names(each)}
    for item in policy.columns("partition_list"):
        for part in _parts(item):
            if "=" not in part or part.partition("=")[0] not in known:
                reason = f"found {item!r}; write a partition as {found.partitions[0].path}, or a part of that"
                raise PolicyError(key="partition_list", reason=reason)

    def judge(each: LivePartition) -> _Judged:
        names = _names(each)
        if any(item <= names for item in requested):
            return _Judged(each, True, "asked for by partition_list (call)", ReasonKind.NOT_ASKED)
        return _Judged(each, False, "not in partition_list (call)", ReasonKind.NOT_ASKED)

    return judge


def _parts(path: str) -> list[str]:
    return [each.strip() for each in path.split("/") if each.strip()]


def _names(each: LivePartition) -> frozenset[str]:
    """The parts of its path, in the path's spelling and with readable values."""
    plain = (f"{key.name}={'null' if as_text(key) is None else as_text(key)}" for key in each.keys)
    return frozenset([*_parts(each.path), *plain])


def _by_filter(found: PartitionSet, policy: Policy) -> Judge:
    matching = found.matching
    if matching is None:
        raise AssertionError("partitions were read without the filter")

    def judge(each: LivePartition) -> _Judged:
        goes = each.id in matching
        text = f"{'matches' if goes else 'does not match'} {policy.explain('partition_where')}"
        return _Judged(each, goes, text, ReasonKind.NOT_ASKED)

    return judge


def _by_change(policy: Policy, now: datetime) -> Judge:
    ttl, explained = policy.hours("partition_ttl_hours"), policy.explain("partition_ttl_hours")

    def judge(each: LivePartition) -> _Judged:
        if each.changed_at is None:
            return _Judged(each, False, "its last change is unknown", ReasonKind.NOT_KNOWN)
        goes = each.changed_at <= now - ttl
        words = f"{'unchanged for' if goes else 'changed within'} {explained}"
        return _Judged(each, goes, words, ReasonKind.YOUNG, each.changed_at)

    return judge


def _by_value(view: TableView, found: PartitionSet, policy: Policy, now: datetime) -> Judge:
    ttl, explained = policy.hours("partition_ttl_hours"), policy.explain("partition_ttl_hours")
    end_of = _reader(_newest_keys(view, found), found, policy)

    def judge(each: LivePartition) -> _Judged:
        if not each.keys:
            return _Judged(
                each, False, "written before the table was partitioned", ReasonKind.NOT_PARTITIONED
            )
        try:
            end = end_of(each)
        except NoTime as error:
            return _Judged(each, False, str(error), ReasonKind.NOT_KNOWN, named=True)
        goes = end <= now - ttl
        words = "its time has been over for" if goes else "its time has not been over for"
        return _Judged(each, goes, f"{words} {explained}", ReasonKind.YOUNG, end)

    return judge


def _newest_keys(view: TableView, found: PartitionSet) -> tuple[PartitionKey, ...]:
    """The partition columns of the current spec, or of the newest spec that still has files."""
    keyed = [partition for partition in found.partitions if partition.keys]
    newest = max(keyed, key=lambda each: (each.spec_id == view.current_spec_id, each.spec_id))
    return newest.keys


def _reader(
    newest: tuple[PartitionKey, ...], found: PartitionSet, policy: Policy
) -> Callable[[LivePartition], datetime]:
    """A function that returns the end of a partition's time range. NoTime for one partition, PolicyError if no column can work."""
    formatter = Formatter(policy.maybe_text("partition_time_formatter"))
    _check("partition_time_formatter", formatter.check)
    pattern = policy.maybe_text("partition_time_pattern")
    if pattern is not None:
        _check("partition_time_pattern", lambda: references(pattern, by_name(newest)))
        return lambda each: formatter.end(filled(pattern, each.keys))
    column = _time_column(newest, found, policy)
    return lambda each: _end_by(column, each, formatter)


def _check(key: str, reading: Callable[[], object]) -> None:
    try:
        reading()
    except (WrongFormat, NoTime) as error:
        raise PolicyError(key=key, reason=str(error)) from error


def _time_column(newest: tuple[PartitionKey, ...], found: PartitionSet, policy: Policy) -> str:
    """The table column with the time. Partitions of other specs may use another field name for it."""
    configured = policy.maybe_text("partition_time_column")
    if configured is None:
        return next((each.column for each in newest if each.kind in _TIMES), newest[0].column)
    known = {name: key.column for each in found.partitions for name, key in by_name(each.keys).items()}
    if configured not in known:
        reason = f"{policy.explain('partition_time_column')} is not a partition column; they are {', '.join(known)}"
        raise PolicyError(key="partition_time_column", reason=reason)
    return known[configured]


def _end_by(column: str, each: LivePartition, formatter: Formatter) -> datetime:
    keys = [key for key in each.keys if key.column == column]
    if not keys:
        raise NoTime(f"it was written under partition spec {each.spec_id}, which has no {column}")
    # With several fields, e.g. year and hour, the finest one ends first.
    return min(_end(key, formatter) for key in keys)


def _end(key: PartitionKey, formatter: Formatter) -> datetime:
    value = as_text(key)
    if key.value is None or value is None:
        raise NoTime(f"it has no value for {key.name}")
    typed = counted_end(key.kind, key.value) if isinstance(key.value, int) else None
    return formatter.end(Text.of(value)) if typed is None else typed


# ------------------------------------------------------------ reasons and limits


def _refuse_all(view: TableView, going: Sequence[_Judged], judged: Sequence[_Judged], policy: Policy) -> None:
    """Raises if all partitions would expire: a wrong clock, filter or pattern must not empty a table."""
    if not going or len(going) < len(judged) or policy.bool("partition_drop_all"):
        return
    every = f"all {len(going):,} partitions" if len(going) > 1 else "its only partition"
    raise Refused(
        action="expire partitions of",
        target=view.ref,
        reason=f"{every} would expire ({going[0].reason}), and the table would be empty",
        hint=f"if that is wanted: `lakewarden run expire-partitions {view.ref} --set partition_drop_all=true`",
    )


def _oldest_first(each: _Judged) -> tuple[float, str]:
    return (each.at.timestamp() if each.at else 0.0), each.partition.path


def _action(each: _Judged) -> DropPartition:
    part = each.partition
    return DropPartition(
        part.id, part.spec_id, part.path, part.files, part.rows, part.bytes, each.at, each.reason
    )


def _skipped(judged: Iterable[_Judged]) -> list[SkippedRow]:
    """The skipped partitions, counted by reason. Of those whose time cannot be read, the first few are named."""
    rows: list[SkippedRow] = []
    unread: dict[str, list[LivePartition]] = {}
    for each in judged:
        if each.named:
            unread.setdefault(each.reason, []).append(each.partition)
        else:
            rows.append(("partition", 1, each.partition.bytes, Reason(each.kind, each.reason)))
    for reason, partitions in unread.items():
        names = ", ".join(partition.path for partition in partitions[:_SHOWN])
        more = f" and {len(partitions) - _SHOWN:,} more" if len(partitions) > _SHOWN else ""
        why = Reason(ReasonKind.NOT_KNOWN, f"its time cannot be read, {reason}: {names}{more}")
        rows.append(("partition", len(partitions), sum(partition.bytes for partition in partitions), why))
    return rows


def _summary(chosen: Sequence[_Judged], found: PartitionSet, policy: Policy) -> str:
    total = len(found.partitions)
    if chosen:
        return f"{len(chosen):,} of {total:,} partitions expire"
    if policy.columns("partition_list"):
        return "no partition of the list exists"
    return f"none of {total:,} partitions is due"
