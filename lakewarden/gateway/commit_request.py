"""Reads what a commit would change from its body. Pure.

Parses strictly: the same bytes are forwarded, and a body that another parser could read differently (a key
twice, another encoding, data after the end) would be judged as one commit and executed as another.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakewarden.gateway.request_kind import GatewayRoute, RouteKind, UnclearRequest, plain_name
from lakewarden.model.table import joined
from lakewarden.policy.resolve import PROPERTY_PREFIX

# The updates in Iceberg's specification. An unknown update may do anything, so it is refused.
KNOWN = frozenset(
    [
        "assign-uuid",
        "upgrade-format-version",
        "add-schema",
        "set-current-schema",
        "remove-schemas",
        "add-spec",
        "set-default-spec",
        "remove-partition-specs",
        "add-sort-order",
        "set-default-sort-order",
        "add-snapshot",
        "set-snapshot-ref",
        "remove-snapshots",
        "remove-snapshot-ref",
        "set-location",
        "set-properties",
        "remove-properties",
        "set-statistics",
        "remove-statistics",
        "set-partition-statistics",
        "remove-partition-statistics",
        "add-encryption-key",
        "remove-encryption-key",
        "enable-row-lineage",
    ]
)
# As sent, and decompressed. A commit states only changes, never the table's content: removing half a million snapshots fits.
MAX_BYTES = 16 << 20
# Objects and lists: each takes far more memory than its bytes.
_MOST_PARTS = 250_000
_NAME_LETTERS = 1000
# The property for the age of tags that set none themselves.
REF_AGE = "history.expire.max-ref-age-ms"


@dataclass(frozen=True, slots=True)
class RefChange:
    """A tag or branch that is set, or (without kind and snapshot) dropped."""

    name: str
    kind: str | None = None
    snapshot_id: int | None = None
    max_age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table's part of a commit, with the fields that are judged."""

    namespace: tuple[str, ...]
    table: str
    creates: bool = False
    added: frozenset[int] = frozenset()
    summaries: tuple[Mapping[str, str], ...] = ()
    removed: frozenset[int] = frozenset()
    refs: tuple[RefChange, ...] = ()
    properties: Mapping[str, str] | None = None
    unset: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    updates: int = 0  # the number of updates, judged or not

    @property
    def judged(self) -> bool:
        return bool(self.summaries or self.removed or self.refs or self.uuids or self.ruling)

    @property
    def ruling(self) -> frozenset[str]:
        """The properties among its changes that say how the table is kept."""
        named = (*(self.properties or {}), *self.unset)
        return frozenset(each for each in named if each.startswith(PROPERTY_PREFIX) or each == REF_AGE)

    @property
    def only_rules(self) -> bool:
        return not (self.summaries or self.removed or self.refs or self.uuids)

    def afterwards(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The table's properties after the commit."""
        kept = {name: each for name, each in properties.items() if name not in self.unset}
        return kept | dict(self.properties or {})

    @property
    def takes_turn(self) -> bool:
        """Whether it removes snapshots or names an existing one: such commits must not overtake each other."""
        named = (ref.snapshot_id for ref in self.refs if ref.kind is not None)
        return bool(self.removed) or any(each not in self.added for each in named)


def read(body: bytes, route: GatewayRoute, encoding: str = "", charset: str = "") -> tuple[TableChange, ...]:
    """Every table that the commit would change. Unreadable if that is not certain."""
    if charset and charset.lower() not in ("utf-8", "utf8"):
        raise UnclearRequest(f"the body is {charset}, not UTF-8")
    document = _object(_parsed(_plain(body, encoding)), "the body")
    if route.kind is RouteKind.COMMIT:
        return (_change(document, _same(document, route)),)
    changes = _list(document, "table-changes")
    read = tuple(
        _change(each, _identifier(each)) for each in (_object(one, "a table change") for one in changes)
    )
    if len({(each.namespace, each.table) for each in read}) != len(read):
        raise UnclearRequest("a table is named twice")
    return read


def _plain(body: bytes, encoding: str) -> bytes:
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip":
            return _gunzipped(body)
        case other:
            raise UnclearRequest(f"the body is encoded as {other}")


def _gunzipped(body: bytes) -> bytes:
    whole = zlib.decompressobj(wbits=31)
    try:
        plain = whole.decompress(body, MAX_BYTES)
    except zlib.error as error:
        raise UnclearRequest(f"the body is not gzip: {error}") from None
    if not whole.eof or whole.unused_data:
        raise UnclearRequest("the body is more, or less, than one piece of gzip, or too large")
    return plain


def _parsed(body: bytes) -> Any:
    if body.count(b"{") + body.count(b"[") > _MOST_PARTS:
        raise UnclearRequest(f"the body has more than {_MOST_PARTS} objects and lists")
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise UnclearRequest(f"the body is not JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise UnclearRequest("an object of the body has the same key twice")
    return mapping


def _no_number(text: str) -> None:
    raise UnclearRequest(f"{text} is not a number in JSON")


def _same(document: Mapping[str, Any], route: GatewayRoute) -> tuple[tuple[str, ...], str]:
    """The table in the path. A body that names another table is refused."""
    if document.get("identifier") is not None:
        namespace, name = _identifier(document)
        # Some clients put their own name of the catalog first.
        if name != route.table or namespace[-len(route.namespace) :] != route.namespace:
            named, meant = joined((*namespace, name)), joined((*route.namespace, route.table))
            raise UnclearRequest(f"the body is about {named}, the path about {meant}")
    return route.namespace, route.table


def _identifier(document: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    identifier = _object(document.get("identifier"), "an identifier")
    levels = [_text(each, "a namespace") for each in _list(identifier, "namespace")]
    name = _text(identifier.get("name"), "a table's name")
    names = (*levels, name)
    if not levels or not all(plain_name(each) for each in names) or sum(map(len, names)) > _NAME_LETTERS:
        raise UnclearRequest("a table is not named, or by a name that no path can have")
    return tuple(levels), name


def _change(document: Mapping[str, Any], table: tuple[tuple[str, ...], str]) -> TableChange:
    requirements = [_object(each, "a requirement") for each in _list(document, "requirements", missing=True)]
    updates = [_object(each, "an update") for each in _list(document, "updates", missing=True)]
    acting = [(_text(each.get("action"), "an action").lower(), each) for each in updates]
    for action, _ in acting:
        if action not in KNOWN:
            raise UnclearRequest(f"{action!r} is no update this version of Lakewarden knows; a newer one may")
    snapshots = [
        _object(each.get("snapshot"), "a snapshot") for name, each in acting if name == "add-snapshot"
    ]
    gone = [each for name, each in acting if name == "remove-snapshots"]
    properties, unset = _properties(acting)
    return TableChange(
        *table,
        creates=any(str(each.get("type")).lower() == "assert-create" for each in requirements),
        added=frozenset(_id(each.get("snapshot-id")) for each in snapshots),
        summaries=tuple(_texts(each.get("summary"), "a summary") for each in snapshots),
        removed=frozenset(_id(one) for each in gone for one in _list(each, "snapshot-ids")),
        refs=tuple(
            _ref(name, each) for name, each in acting if name in ("set-snapshot-ref", "remove-snapshot-ref")
        ),
        properties=properties,
        unset=unset,
        uuids=frozenset(_text(each.get("uuid"), "a uuid") for name, each in acting if name == "assign-uuid"),
        updates=len(acting),
    )


def _ref(action: str, update: Mapping[str, Any]) -> RefChange:
    name = _text(update.get("ref-name"), "a ref's name")
    if action == "remove-snapshot-ref":
        return RefChange(name)
    kind, age = _text(update.get("type"), "a ref's type").lower(), update.get("max-ref-age-ms")
    return RefChange(
        name, kind, _id(update.get("snapshot-id")), None if age is None else _whole(age, "an age")
    )


def _properties(
    acting: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[dict[str, str] | None, frozenset[str]]:
    """The properties that are set and removed in the end; None if no property changes."""
    changed, values, unset = False, dict[str, str](), set[str]()
    for action, update in acting:
        if action == "set-properties":
            changed = True
            changes = _texts(_either(update, "updates", "updated"), "properties")
            values.update(changes)
            unset.difference_update(changes)
        elif action == "remove-properties":
            changed = True
            names = _either(update, "removals", "removed")
            for name in [] if names is None else _list({"removals": names}, "removals"):
                values.pop(_text(name, "a property's name"), None)
                unset.add(name)
    return (values if changed else None), frozenset(unset)


def _either(update: Mapping[str, Any], name: str, older: str) -> Any:
    """The value under the specification's name, or under the name that older clients use."""
    if name in update and older in update and update[name] != update[older]:
        raise UnclearRequest(f"an update says one thing as {name} and another as {older}")
    return update.get(name, update.get(older))


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnclearRequest(f"{what} is not an object")
    return value


def _list(document: Mapping[str, Any], key: str, missing: bool = False) -> list[Any]:
    items = document.get(key, [] if missing else None)
    if not isinstance(items, list):
        raise UnclearRequest(f"{key} is not a list")
    return items


def _texts(value: Any, what: str) -> dict[str, str]:
    texts = {} if value is None else _object(value, what)
    if not all(isinstance(each, str) for each in texts.values()):
        raise UnclearRequest(f"{what} has a value that is not text")
    return texts


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UnclearRequest(f"{what} is not text")
    return value


def _id(value: Any) -> int:
    return _whole(value, "a snapshot's id")


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnclearRequest(f"{what} is not a whole number")
    return value
