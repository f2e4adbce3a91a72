"""Which requests change a table, told from the method and the path alone. Pure.

The bytes of the path go on to the catalog as they came. A path that one server reads as a commit and another as something else
would be a way around the gateway, so whatever changes something must be written in the one plain way, or is refused.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

# Between the levels of a namespace, once its segment is decoded.
LEVELS = "\x1f"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Headers by which some servers let a request be another one than it says.
OVERRIDES = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
# Raw: parameters, backslashes, bytes outside of ASCII. Decoded: what would be a path again, or the end of one.
_UNPLAIN = re.compile(rb"[;\\\x00-\x20\x7f-\xff]")
_HIDDEN = re.compile(r"[\\\x00\ud800-\udfff]")


class Unreadable(Exception):
    """What was sent cannot be understood for certain; the message says why."""


class Kind(StrEnum):
    COMMIT = "commit"
    TRANSACTION = "transaction"
    CONFIG = "config"
    TABLES = "tables"  # tables come, go or change their names
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Route:
    """`before` is the path up to where namespaces or transactions begin, as sent. A commit names its table."""

    kind: Kind
    before: bytes = b""
    namespace: tuple[str, ...] = ()
    table: str = ""


def route(method: str, path: bytes) -> Route:
    """What the request is for. Unreadable where it may change a table and its path can be read in two ways."""
    if method in READING:
        return Route(Kind.CONFIG if method == "GET" and _asks_config(path) else Kind.OTHER)
    names = _segments(path)
    # As a server reads it that takes an escaped slash for a slash: some prefixes have one, and mean nothing by it.
    flat = [part for each in names for part in each.split("/") if part not in ("", ".")]
    kind = _kind(method, names)
    if _kind(method, flat) is not kind:
        raise Unreadable("its path is one thing with its slashes escaped, and another without")
    if kind is Kind.TRANSACTION:
        _plain(names[-2:])
        return Route(kind, _before(path, 2))
    if kind is Kind.COMMIT:
        _plain(names[-4::2])
        namespace, _, table = path.split(b"/")[-3:]
        return Route(kind, _before(path, 4), tuple(_name(namespace).split(LEVELS)), _name(table))
    return Route(kind)


def _asks_config(path: bytes) -> bool:
    """However it is written: its answer is the only one that is changed, so what may be it is taken for it."""
    plain = unquote_to_bytes(path).lower().replace(b"\\", b"/")
    names = posixpath.normpath(b"/".join(each.partition(b";")[0] for each in plain.split(b"/")))
    return names.endswith(b"/v1/config")


def _kind(method: str, names: list[str]) -> Kind:
    words = [each.lower() for each in names]
    of_table = len(words) >= 4 and words[-4] == "namespaces" and words[-2] == "tables"
    if words[-2:] == ["transactions", "commit"]:
        return Kind.TRANSACTION
    if of_table and method != "DELETE":
        return Kind.COMMIT
    changes = of_table or words[-1:] in (["tables"], ["register"]) or words[-2:] == ["tables", "rename"]
    return Kind.TABLES if changes else Kind.OTHER


def plain_name(name: str) -> bool:
    """Whether it is one segment of a path for every server, once it is escaped."""
    return bool(name) and name not in (".", "..") and "/" not in name and not _HIDDEN.search(name)


def table_path(before: bytes, namespace: tuple[str, ...], table: str) -> bytes:
    """The path of a table, where `before` is what goes ahead of `namespaces`."""
    return before + b"namespaces/" + _escaped(LEVELS.join(namespace)) + b"/tables/" + _escaped(table)


def _segments(path: bytes) -> list[str]:
    if not path.startswith(b"/") or _UNPLAIN.search(path) or _ESCAPE.search(path):
        raise Unreadable("the path has characters that servers read in different ways")
    parts = path[1:].split(b"/")
    try:
        names = [unquote_to_bytes(each).decode("utf-8") for each in parts]
    except UnicodeDecodeError:
        raise Unreadable("the path is not UTF-8") from None
    elsewhere = any(each in ("", ".") or ".." in each.split("/") or _HIDDEN.search(each) for each in names)
    if elsewhere and names != [""]:
        raise Unreadable("the path has an empty segment, or one that leads elsewhere")
    return names


def _name(segment: bytes) -> str:
    """A namespace or a table as Iceberg's clients write it and its servers read it: a plus is a space, %2B is a plus."""
    return unquote_to_bytes(segment.replace(b"+", b" ")).decode("utf-8")


def _plain(names: list[str]) -> None:
    words = [each.lower() for each in names]
    if names != words:
        raise Unreadable(f"the path says {'/'.join(names)} where {'/'.join(words)} is meant")


def _before(path: bytes, count: int) -> bytes:
    return b"/".join(path.split(b"/")[:-count]) + b"/"


def _escaped(name: str) -> bytes:
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    return b"".join(bytes([byte]) if byte in safe else b"%%%02X" % byte for byte in name.encode("utf-8"))
