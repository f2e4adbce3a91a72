"""Decides which requests change a table, from the method and the path alone. Pure.

The bytes of the path go to the catalog unchanged. A path that one server reads as a commit and another as
something else would be a way around the gateway, so every request that changes something must be written in the
one plain form, or is refused.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

# Separates the levels of a namespace in a decoded segment.
LEVELS = "\x1f"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Headers with which some servers replace the method of a request.
OVERRIDES = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
# Raw: parameters, backslashes, non-ASCII bytes. Decoded: characters that would form another path, or end it.
_UNPLAIN = re.compile(rb"[;\\\x00-\x20\x7f-\xff]")
_HIDDEN = re.compile(r"[\\\x00\ud800-\udfff]")


class UnclearRequest(Exception):
    """The request cannot be interpreted with certainty; the message says why."""


class RouteKind(StrEnum):
    COMMIT = "commit"
    TRANSACTION = "transaction"
    CONFIG = "config"
    TABLES = "tables"  # tables are created, dropped or renamed
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """`before` is the path up to the namespaces or transactions, as sent. Only a commit names its table."""

    kind: RouteKind
    before: bytes = b""
    namespace: tuple[str, ...] = ()
    table: str = ""


def route(method: str, path: bytes) -> GatewayRoute:
    """The kind of the request. Unreadable if it may change a table and its path can be read in two ways."""
    if method in READING:
        return GatewayRoute(RouteKind.CONFIG if method == "GET" and _asks_config(path) else RouteKind.OTHER)
    names = _segments(path)
    # As read by a server that treats an escaped slash as a slash: some prefixes contain one without special meaning.
    flat = [part for each in names for part in each.split("/") if part not in ("", ".")]
    kind = _kind(method, names)
    if _kind(method, flat) is not kind:
        raise UnclearRequest("its path is one thing with its slashes escaped, and another without")
    if kind is RouteKind.TRANSACTION:
        _plain(names[-2:])
        return GatewayRoute(kind, _before(path, 2))
    if kind is RouteKind.COMMIT:
        _plain(names[-4::2])
        namespace, _, table = path.split(b"/")[-3:]
        return GatewayRoute(kind, _before(path, 4), tuple(_name(namespace).split(LEVELS)), _name(table))
    return GatewayRoute(kind)


def _asks_config(path: bytes) -> bool:
    """Whether the request is for the catalog's configuration, in any spelling. Every path that may be one
    counts, because only the answer is changed."""
    plain = unquote_to_bytes(path).lower().replace(b"\\", b"/")
    names = posixpath.normpath(b"/".join(each.partition(b";")[0] for each in plain.split(b"/")))
    return names.endswith(b"/v1/config")


def _kind(method: str, names: list[str]) -> RouteKind:
    words = [each.lower() for each in names]
    of_table = len(words) >= 4 and words[-4] == "namespaces" and words[-2] == "tables"
    if words[-2:] == ["transactions", "commit"]:
        return RouteKind.TRANSACTION
    if of_table and method != "DELETE":
        return RouteKind.COMMIT
    changes = of_table or words[-1:] in (["tables"], ["register"]) or words[-2:] == ["tables", "rename"]
    return RouteKind.TABLES if changes else RouteKind.OTHER


def plain_name(name: str) -> bool:
    """Whether the escaped name is one path segment for every server."""
    return bool(name) and name not in (".", "..") and "/" not in name and not _HIDDEN.search(name)


def table_path(before: bytes, namespace: tuple[str, ...], table: str) -> bytes:
    """The path of a table; `before` is the part in front of `namespaces`."""
    return before + b"namespaces/" + _escaped(LEVELS.join(namespace)) + b"/tables/" + _escaped(table)


def _segments(path: bytes) -> list[str]:
    if not path.startswith(b"/") or _UNPLAIN.search(path) or _ESCAPE.search(path):
        raise UnclearRequest("the path has characters that servers read in different ways")
    parts = path[1:].split(b"/")
    try:
        names = [unquote_to_bytes(each).decode("utf-8") for each in parts]
    except UnicodeDecodeError:
        raise UnclearRequest("the path is not UTF-8") from None
    elsewhere = any(each in ("", ".") or ".." in each.split("/") or _HIDDEN.search(each) for each in names)
    if elsewhere and names != [""]:
        raise UnclearRequest("the path has an empty segment, or one that leads elsewhere")
    return names


def _name(segment: bytes) -> str:
    """A namespace or table name as Iceberg's clients and servers encode it: a plus is a space, %2B is a plus."""
    return unquote_to_bytes(segment.replace(b"+", b" ")).decode("utf-8")


def _plain(names: list[str]) -> None:
    words = [each.lower() for each in names]
    if names != words:
        raise UnclearRequest(f"the path says {'/'.join(names)} where {'/'.join(words)} is meant")


def _before(path: bytes, count: int) -> bytes:
    return b"/".join(path.split(b"/")[:-count]) + b"/"


def _escaped(name: str) -> bytes:
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    return b"".join(bytes([byte]) if byte in safe else b"%%%02X" % byte for byte in name.encode("utf-8"))
