"""What a table's policy asks, at the pace of commits: read from the state database and the table, and remembered for moments.

Stored policies are at most two seconds old, the table's own `lakewarden.*` properties at most thirty; a change of properties that
passes this gateway counts at once. Pins are never remembered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from lakewarden import clock
from lakewarden.config import PolicyConfig
from lakewarden.lineage import hook
from lakewarden.lineage.gateway.judge import Rules
from lakewarden.model import TableRef
from lakewarden.policy.resolve import PROPERTY_PREFIX, Layers, Policy, resolve

STORED_SECONDS = 2.0
PROPERTIES_SECONDS = 30.0
_MOST = 10_000

Stored = Callable[[str], Awaitable[Mapping[str, object]]]
Properties = Callable[[], Awaitable[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class _Known:
    """A table's rules, and until when what they were made of may be used."""

    rules: Rules
    properties: Mapping[str, str]
    properties_until: float
    until: float


class Policies:
    """`stored` reads what the state database has for a table."""

    def __init__(self, config: PolicyConfig, stored: Stored) -> None:
        self._config = config
        self._stored = stored
        self._known: dict[TableRef, _Known] = {}

    async def rules(self, table: TableRef, properties: Properties) -> Rules:
        """`properties` asks the catalog; it is called only where what is known is too old."""
        known = self._known.get(table)
        now = clock.monotonic()
        if known is not None and now < known.until:
            return known.rules
        if known is not None and now < known.properties_until:
            own, own_until = known.properties, known.properties_until
        else:
            own, own_until = _own(await properties()), now + PROPERTIES_SECONDS
        return await self._learn(table, own, own_until)

    def forget(self, table: TableRef | None = None) -> None:
        """Ask anew about this table, or about all."""
        if table is None:
            self._known.clear()
        else:
            self._known.pop(table, None)

    async def _learn(self, table: TableRef, own: Mapping[str, str], own_until: float) -> Rules:
        asked = clock.monotonic()
        found = rules(await self._resolved(table, own))
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[table] = _Known(found, own, own_until, min(asked + STORED_SECONDS, own_until))
        return found

    async def _resolved(self, table: TableRef, own: Mapping[str, str]) -> Policy:
        stored = await self._stored(str(table))
        return resolve(table, Layers.of(self._config, table_properties=own, stored=stored))


def rules(policy: Policy) -> Rules:
    return Rules(hook.requirements(policy), hook.expiry_reserved(policy), policy.columns("protected_tags"))


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(PROPERTY_PREFIX)}
