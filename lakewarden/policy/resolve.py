"""Resolves a table's policy: the value of every key and the layer it came from. Pure: uses only its arguments.

From the least to the most specific layer:

    default < table option (Paimon's) < environment < file < namespace pattern < table property < table (stored) < call

Patterns are matched on `catalog.namespace.table` in the order of the file; if several match, the last one wins.

Table options and table properties come from the writer. They may tune a rewrite or keep more than the layers below them;
other values are ignored, with the reason, unless the operator trusts the table with that key (`trust_table_properties`).

Two keys that disagree are refused. The message names both, with their values and origins.
"""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lakewarden.errors import PolicyError
from lakewarden.model.table import TableRef
from lakewarden.policy.keys import KEYS, Key, PropertyRule, key
from lakewarden.policy.origin import IgnoredProperty, Layer, Origin, Value, matches
from lakewarden.policy.values import PolicyValue, from_options, show

if TYPE_CHECKING:
    from lakewarden.config.schema import PolicyConfig  # pydantic, which resolving a policy does not need


PROPERTY_PREFIX = "lakewarden."
TRUST = "trust_table_properties"
_WRITERS = (Layer.TABLE_OPTION, Layer.TABLE_PROPERTY)

T = TypeVar("T")

Values = Mapping[str, Value]

# (lower, upper): the first may not exceed the second.
ORDERED = (
    ("rewrite_small_bytes", "rewrite_max_bytes"),
    ("rewrite_target_bytes", "rewrite_max_bytes"),
    ("snapshot_min_retained", "snapshot_max_retained"),
)

# (key, value, other key): with that value the other key must be set.
NEEDS = (
    ("rewrite_strategy", "zorder", "rewrite_zorder_columns"),
    ("rewrite_strategy", "hilbert", "rewrite_zorder_columns"),
    ("partition_expiry_enabled", True, "partition_ttl_hours"),
    ("handoff_enabled", True, "handoff_catalog"),
)


@dataclass(frozen=True, slots=True)
class Layers:
    """The settings of each layer, as written there. `table_properties` are all of the table's; `lakewarden.*`
    and Paimon's are used.
    """

    environment: Mapping[str, object] = field(default_factory=dict)
    file: Mapping[str, object] = field(default_factory=dict)
    patterns: Sequence[tuple[str, Mapping[str, object]]] = ()
    table_properties: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, object] = field(default_factory=dict)
    call: Mapping[str, object] = field(default_factory=dict)
    trusted: Sequence[tuple[str, Sequence[str]]] = ()

    @classmethod
    def of(
        cls,
        config: PolicyConfig,
        *,
        table_properties: Mapping[str, str] | None = None,
        stored: Mapping[str, object] | None = None,
        call: Mapping[str, object] | None = None,
    ) -> Layers:
        """The configured layers, with the layers of one table on top."""
        return cls(
            config.environment,
            config.file,
            config.patterns,
            table_properties or {},
            stored or {},
            call or {},
            config.trusted,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """One table's policy. Reading a key that is not in the table of keys is a bug in the code: KeyError."""

    table: TableRef
    values: Mapping[str, Value]
    ignored: tuple[IgnoredProperty, ...] = ()

    def __getitem__(self, name: str) -> PolicyValue:
        return self.values[name].value

    def origin(self, name: str) -> Origin:
        return self.values[name].origin

    def bool(self, name: str) -> builtins.bool:
        return _typed(self.values[name], builtins.bool)

    def int(self, name: str) -> builtins.int:
        return _typed(self.values[name], builtins.int)

    def maybe_int(self, name: str) -> builtins.int | None:
        return None if self[name] is None else self.int(name)

    def float(self, name: str) -> builtins.float:
        value = self.values[name]
        return (
            _typed(value, builtins.float)
            if isinstance(value.value, builtins.float)
            else builtins.float(self.int(name))
        )

    def hours(self, name: str) -> timedelta:
        return timedelta(hours=self.float(name))

    def maybe_hours(self, name: str) -> timedelta | None:
        return None if self[name] is None else self.hours(name)

    def text(self, name: str) -> str:
        return _typed(self.values[name], str)

    def maybe_text(self, name: str) -> str | None:
        return None if self[name] is None else self.text(name)

    def columns(self, name: str) -> tuple[str, ...]:
        """Names, in order; empty if the key is not set."""
        return () if self[name] is None else _typed(self.values[name], tuple)

    def ids(self, name: str) -> tuple[builtins.int, ...] | None:
        return None if self[name] is None else _typed(self.values[name], tuple)

    def explain(self, name: str) -> str:
        """`rewrite_small_bytes=33554432 (default)`"""
        return str(self.values[name])

    def hash(self) -> str:
        """Short, and equal for equal effective values, whatever layers they came from."""
        effective = {name: each.value for name, each in self.values.items()}
        return hashlib.sha256(json.dumps(effective, sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> list[dict[str, Any]]:
        """Every key in the order of the table of keys."""
        return [self.values[each.name].to_dict() for each in KEYS]


def resolve(table: TableRef, layers: Layers) -> Policy:
    """The effective policy. A wrong value in any layer is refused, even if a later layer overrides it."""
    values = {each.name: Value(each.name, each.default, Origin(Layer.DEFAULT)) for each in KEYS}
    operators = dict(values)
    ignored: list[IgnoredProperty] = []
    for origin, settings in _stack(table, layers):
        if origin.layer in _WRITERS:
            ignored += _read_writers(table, settings, origin, values, _trusted(table, layers))
        else:
            read = read_layer(settings, origin)
            values.update(read)
            operators.update(read)
    ignored += _settle(values, operators)
    check(values, ignored)
    return Policy(table, values, tuple(ignored))


def _settle(values: dict[str, Value], operators: Mapping[str, Value]) -> Iterator[IgnoredProperty]:
    """Removes from `values` the writer's values that conflict with another value, and yields them."""
    while theirs := [
        (each, disagreement.short)
        for disagreement in disagreements(values)
        for each in disagreement.values
        if each.origin.layer in _WRITERS
    ]:
        for each, why in theirs:
            if values[each.key] is each:
                values[each.key] = operators[each.key]
                yield IgnoredProperty(
                    each.key, show(each.value), each.origin, f"{why}; {operators[each.key]} counts"
                )


def _trusted(table: TableRef, layers: Layers) -> frozenset[str]:
    trusted = (keys for pattern, keys in layers.trusted if matches(table, pattern))
    return frozenset(each for keys in trusted for each in keys)


def _read_writers(
    table: TableRef,
    settings: Mapping[str, object],
    origin: Origin,
    values: dict[str, Value],
    trusted: frozenset[str],
) -> Iterator[IgnoredProperty]:
    """Adds the writer's permitted values to `values`; yields the rest."""
    for name, written in settings.items():
        known = key(name, _place(origin, name))
        operators = values[name]
        if known.call_only or (known.by_property is PropertyRule.NOTHING and name not in trusted):
            yield IgnoredProperty(
                name, str(written), origin, _why_ignored(known, PropertyRule.NOTHING, operators, table)
            )
            continue
        value = known.parse(written, _place(origin, name), call=True)
        is_set = operators.origin.layer not in (Layer.DEFAULT, Layer.TABLE_OPTION)
        if known.call_least is not None and isinstance(value, int) and value < (known.least or 0):
            yield IgnoredProperty(name, str(written), origin, f"must be {known.allowed()}")
        elif name in trusted:
            values[name] = Value(name, value, origin)
        elif known.may_say(value, operators.value, is_set=is_set):
            values[name] = Value(name, known.with_operators(value, operators.value), origin)
        elif value != operators.value:  # a value equal to the operator's needs no message
            yield IgnoredProperty(
                name, str(written), origin, _why_ignored(known, known.by_property, operators, table)
            )


def _why_ignored(known: Key, say: PropertyRule, operators: Value, table: TableRef) -> str:
    if known.call_only:
        return f"it is for one call only: `lakewarden run JOB {table} --set {known.name}=VALUE`"
    return (
        f"a table's properties may say {say} here; {operators} counts; the operator can set it with "
        f"`lakewarden policy {table} --set {known.name}=VALUE`, or trust the table with this key: [[policy.{TRUST}]]"
    )


def read_layer(found: Mapping[str, object], origin: Origin, where: str = "") -> dict[str, Value]:
    """One layer's values in their normal form, or the first PolicyError. `where` replaces the origin in messages."""
    return {name: _value(name, each, origin, where or str(origin)) for name, each in found.items()}


def validate(config: PolicyConfig, path: Path | None = None) -> None:
    """Read every configured layer once, so that a typo shows when Lakewarden opens, not when a pattern first matches."""
    file = f"[policy] of {path}" if path else ""
    read_layer(config.environment, Origin(Layer.ENVIRONMENT))
    read_layer(config.file, Origin(Layer.FILE), file)
    for pattern, settings in config.patterns:
        origin = Origin(Layer.NAMESPACE, pattern)
        read_layer(settings, origin, f"{file}, {origin}" if path else "")
    for pattern, keys in config.trusted:
        where = f"{TRUST} of {file or '[policy]'}, {pattern}"
        for name in keys:
            if key(name, where).call_only:
                raise PolicyError(
                    key=name, reason=f"it is for one call only, no property can set it ({where})"
                )


def _stack(table: TableRef, layers: Layers) -> Iterator[tuple[Origin, Mapping[str, object]]]:
    for option, name, value in from_options(layers.table_properties):
        yield Origin(Layer.TABLE_OPTION, option), {name: value}
    yield Origin(Layer.ENVIRONMENT), layers.environment
    yield Origin(Layer.FILE), layers.file
    for pattern, settings in layers.patterns:
        if matches(table, pattern):
            yield Origin(Layer.NAMESPACE, pattern), settings
    yield Origin(Layer.TABLE_PROPERTY, str(table)), _own_properties(layers.table_properties)
    yield Origin(Layer.TABLE, str(table)), layers.stored
    yield Origin(Layer.CALL), layers.call


def _own_properties(properties: Mapping[str, str]) -> dict[str, object]:
    named = (
        (name.removeprefix(PROPERTY_PREFIX), each)
        for name, each in properties.items()
        if name.startswith(PROPERTY_PREFIX)
    )
    return dict(named)


def _value(name: str, setting: object, origin: Origin, where: str) -> Value:
    known = key(name, _place(origin, name) or where)
    if known.call_only and origin.layer is not Layer.CALL:
        raise PolicyError(
            key=name, reason=f"it is for one call only, but is set in a layer that stays ({where})"
        )
    call = origin.layer is Layer.CALL
    return Value(name, known.parse(setting, _place(origin, name) or where, call=call), origin)


def _place(origin: Origin, name: str) -> str:
    """Which table to fix, if the layer belongs to one."""
    match origin.layer:
        case Layer.TABLE_PROPERTY:
            return f"table property {PROPERTY_PREFIX}{name} of {origin.detail}"
        case Layer.TABLE_OPTION:
            return f"table option {origin.detail}"
        case Layer.TABLE:
            return f"stored policy of {origin.detail}"
        case _:
            return ""


def _typed(value: Value, kind: type[T]) -> T:
    # isinstance treats bool as an int; reading a switch as a number is a bug in the code.
    if not isinstance(value.value, kind) or (isinstance(value.value, bool) and kind is not bool):
        raise TypeError(f"policy key {value.key} holds {value.value!r}, not {kind.__name__}")
    return value.value


_OWN_LAYERS = frozenset({Layer.TABLE_PROPERTY, Layer.TABLE, Layer.CALL})


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two values that cannot both apply. `short` says why, `advice` how to fix it."""

    values: tuple[Value, Value]
    short: str
    advice: str


def check(values: Values, ignored: Sequence[IgnoredProperty] = ()) -> None:
    """Raises PolicyError for the first pair that disagrees."""
    for disagreement in disagreements(values):
        first, second = disagreement.values
        unheard = (
            f"; {each.origin}={each.value} is ignored: {each.reason}"
            for each in ignored
            if each.key == second.key
        )
        reason = f"{disagreement.short}; {disagreement.advice}{next(unheard, '')}"
        raise PolicyError(key=first.key, reason=reason)
    _check_grace(values["delete_grace_hours"])


def disagreements(values: Values) -> Iterator[Disagreement]:
    for name, other in ORDERED:
        lower, upper = values[name], values[other]
        low, high = lower.value, upper.value
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Disagreement(
                (lower, upper), f"{lower} is more than {upper}", "lower the first or raise the second"
            )
    for name, wanted, other in NEEDS:
        value, needed = values[name], values[other]
        if value.value == wanted and needed.value is None:
            yield Disagreement(
                (value, needed), f"{value} needs {needed.key}, and that is {needed}", "set both"
            )


def _check_grace(grace: Value) -> None:
    """A grace of 0 must be set for one table: a pattern that covers many tables must not remove it from all of them."""
    below = isinstance(grace.value, int | float) and grace.value < 1
    if below and grace.origin.layer not in _OWN_LAYERS:
        reason = f"{grace} is below 1, which only the table's own policy or the call may ask for"
        raise PolicyError(key=grace.key, reason=reason)
