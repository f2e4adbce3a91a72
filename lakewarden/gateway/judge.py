"""Judges a commit: finds every rule against it. `judge` is pure: the rules and the table's current state are
arguments. `PolicyCache` reads the rules of a table and caches them for seconds.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from weakref import WeakValueDictionary

from lakewarden import clock
from lakewarden.config.schema import PolicyConfig
from lakewarden.errors import PolicyError
from lakewarden.gateway.commit_request import REF_AGE, RefChange, TableChange
from lakewarden.lineage import writing
from lakewarden.lineage.validate import Requirements, validate_all
from lakewarden.model.table import Snapshot, TableRef, cold_properties, cold_source
from lakewarden.policy.origin import Layer, Origin, matches
from lakewarden.policy.resolve import PROPERTY_PREFIX, Layers, Policy, read_layer, resolve
from lakewarden.state.holds import MIRROR, Pin
from lakewarden.state.run_queries import ExpiringSnapshots
from lakewarden.tables.streaming_writers import RESTARTS, held_in

_SHOWN = 5
MAIN = "main"
_EVER = datetime.min.replace(tzinfo=UTC)

STORED_SECONDS = 2.0
PROPERTIES_SECONDS = 30.0

Stored = Callable[[str], Awaitable[Mapping[str, object]]]
Properties = Callable[[], Awaitable[Mapping[str, str]]]


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


_MOST = 10_000
# Keys with rules for all commits. If the operator has set one, the table's own properties cannot override it.
_RULING = ("protected_tags", "snapshot_expiry_reserved")
_LINEAGE = "lineage_"


@dataclass(frozen=True, slots=True)
class _Known:
    """A table's cached rules, and how long their inputs are valid."""

    rules: CommitRules
    properties: Mapping[str, str]
    properties_until: float
    until: float


class _Look:
    """A read of a table that is in progress. If the table is forgotten during the read, the result is not cached."""


class PolicyCache:
    """Reads the policy of a table for each commit, from the state database and the table, and caches it for
    seconds. `stored` reads the state database's policy for a table.

    Stored policies are at most two seconds old, the table's own `lakewarden.*` properties at most thirty; a
    change of properties that passes this gateway applies at once. Pins are never cached.
    """

    def __init__(self, config: PolicyConfig, stored: Stored) -> None:
        self._config = config
        self._stored = stored
        self._known: dict[TableRef, _Known] = {}
        self._looks: WeakValueDictionary[TableRef, _Look] = WeakValueDictionary()

    async def rules(self, table: TableRef, properties: Properties) -> CommitRules:
        """`properties` asks the catalog; it is called only if the cached value is too old."""
        known = self._known.get(table)
        now = clock.monotonic()
        if known is not None and now < known.until:
            return known.rules
        look = self._looks.setdefault(table, _Look())
        if known is not None and now < known.properties_until:
            own, own_until = known.properties, known.properties_until
        else:
            own, own_until = _kept(await properties()), now + PROPERTIES_SECONDS
        asked = clock.monotonic()
        resolved = await self.once(table, own)
        if self._looks.get(table) is look:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[table] = _Known(resolved, own, own_until, min(asked + STORED_SECONDS, own_until))
        return resolved

    async def once(self, table: TableRef, properties: Mapping[str, str]) -> CommitRules:
        """The rules for these properties, not cached: a table that is being created may never exist."""
        stored = await self._stored(str(table))
        resolved = rules(self._resolved(table, properties, stored), self._settled(table, stored))
        return replace(resolved, cold_of=cold_source(properties))

    async def check(self, table: TableRef, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """PolicyError if a change of properties would leave a table that cannot be judged any more.

        If the table is in that state already, each new value is judged alone, so that the table can be
        corrected step by step.
        """
        own, stored = _own(after), await self._stored(str(table))
        changed = {name: each for name, each in own.items() if before.get(name) != each}
        settings = {name.removeprefix(PROPERTY_PREFIX): each for name, each in changed.items()}
        read_layer(settings, Origin(Layer.TABLE_PROPERTY, str(table)))
        try:
            self._resolved(table, _own(before), stored)
        except PolicyError:
            return
        self._resolved(table, own, stored)

    def forget(self, table: TableRef | None = None) -> None:
        """Read this table, or all tables, again; a read in progress may already have the old answer."""
        if table is None:
            self._known.clear()
            self._looks.clear()
        else:
            self._known.pop(table, None)
            self._looks.pop(table, None)

    def _resolved(self, table: TableRef, own: Mapping[str, str], stored: Mapping[str, object]) -> Policy:
        return resolve(table, Layers.of(self._config, table_properties=_own(own), stored=stored))

    def _settled(self, table: TableRef, stored: Mapping[str, object]) -> frozenset[str]:
        config = self._config
        patterns = (keys for pattern, keys in config.patterns if matches(table, pattern))
        named = {name for layer in (config.environment, config.file, stored, *patterns) for name in layer}
        return frozenset(each for each in named if each in _RULING or each.startswith(_LINEAGE))


def rules(policy: Policy, settled: frozenset[str] = frozenset()) -> CommitRules:
    return CommitRules(
        writing.requirements(policy),
        writing.expiry_reserved(policy),
        policy.columns("protected_tags"),
        settled,
        restarts=policy.hours("snapshot_restart_hours"),
    )


def _kept(properties: Mapping[str, str]) -> dict[str, str]:
    """The cached part of a table's properties: policy keys, and the live table of a cold table."""
    return {**_own(properties), **cold_properties(properties)}


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(PROPERTY_PREFIX)}
