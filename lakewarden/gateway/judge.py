"""Judges a commit: finds every rule against it. Pure: the rules and the table's current state are arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from lakewarden.gateway.commit_request import REF_AGE, RefChange, TableChange
from lakewarden.lineage.validate import Requirements, validate_all
from lakewarden.model.table import Snapshot, cold_source
from lakewarden.policy.resolve import PROPERTY_PREFIX
from lakewarden.state.holds import MIRROR, Pin
from lakewarden.state.run_queries import ExpiringSnapshots
from lakewarden.tables.streaming_writers import RESTARTS, held_in

_SHOWN = 5
MAIN = "main"
_EVER = datetime.min.replace(tzinfo=UTC)


class Rule(StrEnum):
    """Why a commit is rejected; the label in the metrics."""

    COLD = "cold"
    LINEAGE = "lineage"
    PIN = "pin"
    PROPERTY = "property"
    REF = "ref"
    RESERVED = "reserved"
    STREAM = "stream"
    TAG = "tag"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class CommitRules:
    """The rules of the table's policy for all commits. `settled` are the keys that the table may not set."""

    requirements: Requirements
    expiry_reserved: bool = False
    protected_tags: tuple[str, ...] = ()
    settled: frozenset[str] = frozenset()
    cold_of: str = ""  # the table whose colder tier this is
    restarts: timedelta = RESTARTS  # how long after its last commit a streaming writer may come back


@dataclass(frozen=True, slots=True)
class CurrentRef:
    kind: str
    snapshot_id: int
    max_age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CurrentTable:
    """The table's current state; without a uuid it does not exist yet. `expiring` are snapshots that Lakewarden is expiring."""

    refs: Mapping[str, CurrentRef] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    expiring: ExpiringSnapshots = field(default_factory=ExpiringSnapshots)
    uuid: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshots: tuple[Snapshot, ...] = ()  # only if snapshots are to be removed
    at: datetime = _EVER


@dataclass(frozen=True, slots=True)
class Objection:
    rule: Rule
    reason: str


def looks_at_table(change: TableChange, rules: CommitRules) -> bool:
    """Whether the table's current state is needed to judge the change. An append to a branch does not need it."""
    changes_it = (change.uuids or change.ruling) and not change.creates
    return bool(changes_it) or change.takes_turn or any(_guarded(ref.name, rules) for ref in change.refs)


def judge(change: TableChange, rules: CommitRules, now: CurrentTable) -> tuple[Objection, ...]:
    """Every objection to the change; empty if it may go to the catalog."""
    return (
        *_frozen(change, rules, now),
        *_lineage(change, rules),
        *_identity(change, now),
        *_properties(change, rules, now),
        *_removal(change, rules, now),
        *_tags(change, rules, now),
    )


def _frozen(change: TableChange, rules: CommitRules, now: CurrentTable) -> Iterator[Objection]:
    """No change is allowed, not even to the property that says so: a cold table has the only copy of expired data."""
    live = cold_source(now.properties) or rules.cold_of
    if live and change.updates:
        yield Objection(Rule.COLD, f"it is the colder tier of {live}, and read only")


def _lineage(change: TableChange, rules: CommitRules) -> Iterator[Objection]:
    violations = validate_all(change.summaries, rules.requirements)
    yield from (Objection(Rule.LINEAGE, str(each)) for each in violations)


def _identity(change: TableChange, now: CurrentTable) -> Iterator[Objection]:
    if not change.creates and any(each.lower() != now.uuid.lower() for each in change.uuids):
        yield Objection(
            Rule.UUID,
            "it gives the table another uuid (assign-uuid), so its pins would no longer apply",
        )


def _properties(change: TableChange, rules: CommitRules, now: CurrentTable) -> Iterator[Objection]:
    """A client that may change a table may not change properties that the operator's policy sets."""
    if not now.uuid:
        return
    left = change.afterwards(now.properties)
    for key in sorted(rules.settled):
        name = PROPERTY_PREFIX + key
        if left.get(name) != now.properties.get(name):
            yield Objection(
                Rule.PROPERTY,
                f"it changes property {name}, but {key} is set in Lakewarden's configuration or stored policy",
            )
    if rules.protected_tags and _kept_for(None, left) < _kept_for(None, now.properties):
        yield Objection(
            Rule.PROPERTY,
            f"it lets tags go earlier ({REF_AGE}), and the table has protected ones (protected_tags)",
        )


def _removal(change: TableChange, rules: CommitRules, now: CurrentTable) -> Iterator[Objection]:
    for pin in now.pins:
        if pin.snapshot_id in change.removed:
            until = "" if pin.expires_at is None else f" until {pin.expires_at:%Y-%m-%d %H:%M} UTC"
            yield Objection(
                Rule.PIN, f"snapshot {pin.snapshot_id} is pinned by {pin.holder}{until} (pin {pin.id})"
            )
    for name, ref in sorted(_afterwards(change, now).items()):
        if ref.snapshot_id in change.removed:
            yield Objection(Rule.REF, f"{ref.kind} {name} names snapshot {ref.snapshot_id}")
    foreign = change.removed - now.expiring.snapshots
    yield from _streams(foreign, rules, now)
    if rules.expiry_reserved and foreign:
        yield Objection(
            Rule.RESERVED,
            f"only Lakewarden expires this table's snapshots (snapshot_expiry_reserved), and it is not expiring {_ids(foreign)} now",
        )


def _streams(foreign: frozenset[int], rules: CommitRules, now: CurrentTable) -> Iterator[Objection]:
    """Objections on behalf of streaming writers. Such a writer walks from a branch's head to its last commit;
    if a snapshot in between is missing, it commits its data again."""
    heads = [each.snapshot_id for each in now.refs.values() if each.kind == "branch"]
    for hold in held_in("iceberg", now.snapshots, heads, rules.restarts, now.at):
        cut = foreign & {hold.snapshot_id, *hold.chain}
        if cut:
            yield Objection(
                Rule.STREAM,
                f"{hold.holder} {hold.name} finds its last commit ({hold.purpose}) through {_ids(each for each in cut if each is not None)} "
                f"when it restarts (snapshot_restart_hours)",
            )


def _afterwards(change: TableChange, now: CurrentTable) -> dict[str, CurrentRef]:
    """The refs after the commit: a ref that the commit drops protects nothing, unless it is a protected tag."""
    refs = dict(now.refs)
    for each in change.refs:
        if each.kind is None or each.snapshot_id is None:
            refs.pop(each.name, None)
        else:
            refs[each.name] = CurrentRef(each.kind, each.snapshot_id)
    return refs


def _tags(change: TableChange, rules: CommitRules, now: CurrentTable) -> Iterator[Objection]:
    mirrors = {pin.tag: pin for pin in now.pins if pin.tag is not None}
    for each in change.refs:
        does = _done_to_tag(each, change, now)
        if does is None:
            continue
        if each.name in mirrors:
            pin = mirrors[each.name]
            yield Objection(
                Rule.TAG, f"it {does} tag {each.name}, which mirrors the pin of {pin.holder} (pin {pin.id})"
            )
        elif _matches(each.name, rules) and not (each.kind is None and each.name in now.expiring.refs):
            # A tag whose own age is over is dropped by Lakewarden's expiry.
            yield Objection(Rule.TAG, f"it {does} tag {each.name}, which is protected (protected_tags)")


def _done_to_tag(ref: RefChange, change: TableChange, now: CurrentTable) -> str | None:
    """What happens to an existing tag; None if it stays for at least as long."""
    current = now.refs.get(ref.name)
    if current is None or current.kind != "tag":
        return None
    if ref.kind is None:
        return "drops"
    if (ref.kind, ref.snapshot_id) != ("tag", current.snapshot_id):
        return "moves"
    kept, was = (
        _kept_for(ref.max_age_ms, change.afterwards(now.properties)),
        _kept_for(current.max_age_ms, now.properties),
    )
    return "shortens the life of" if kept < was else None


def _kept_for(own_age: int | None, properties: Mapping[str, str]) -> float:
    """Milliseconds that a tag is kept: by its own value, else the table's default for tags, else forever."""
    if own_age is not None:
        return own_age
    try:
        return int(properties[REF_AGE])
    except KeyError:
        return math.inf
    except ValueError:
        return 0  # servers may interpret it in any way


def _guarded(name: str, rules: CommitRules) -> bool:
    """Whether it can be a protected tag. The branch main cannot be one, whatever the patterns say."""
    return name != MAIN and (name.startswith(MIRROR) or _matches(name, rules))


def _matches(name: str, rules: CommitRules) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in rules.protected_tags)


def _ids(ids: Iterable[int]) -> str:
    every = sorted(ids)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(str(each) for each in every[:_SHOWN]) + more
