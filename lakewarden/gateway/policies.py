"""Reads the policy of a table for each commit, from the state database and the table, and caches it for
seconds.

Stored policies are at most two seconds old, the table's own `lakewarden.*` properties at most thirty; a change
of properties that passes this gateway applies at once. Pins are never cached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from lakewarden import clock
from lakewarden.config.schema import PolicyConfig
from lakewarden.errors import PolicyError
from lakewarden.gateway.judge import CommitRules
from lakewarden.lineage import hook
from lakewarden.model.table import cold_properties, cold_source
from lakewarden.model.table_name import TableRef
from lakewarden.policy.origin import Layer, Origin
from lakewarden.policy.patterns import matches
from lakewarden.policy.resolve import PROPERTY_PREFIX, Layers, Policy, read_layer, resolve

STORED_SECONDS = 2.0
PROPERTIES_SECONDS = 30.0
_MOST = 10_000
# Keys with rules for all commits. If the operator has set one, the table's own properties cannot override it.
_RULING = ("protected_tags", "snapshot_expiry_reserved")
_LINEAGE = "lineage_"

Stored = Callable[[str], Awaitable[Mapping[str, object]]]
Properties = Callable[[], Awaitable[Mapping[str, str]]]


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
    """`stored` reads the state database's policy for a table."""

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
        hook.requirements(policy),
        hook.expiry_reserved(policy),
        policy.columns("protected_tags"),
        settled,
        restarts=policy.hours("snapshot_restart_hours"),
    )


def _kept(properties: Mapping[str, str]) -> dict[str, str]:
    """The cached part of a table's properties: policy keys, and the live table of a cold table."""
    return {**_own(properties), **cold_properties(properties)}


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(PROPERTY_PREFIX)}
