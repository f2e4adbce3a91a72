"""Reads and writes Thrift's compact protocol, as far as Parquet's footers and page headers need it, without
their definitions.

A struct is a dict from field id to a typed value, so it can be written again byte for byte, including fields
that we do not know. Types are the protocol's own numbers; lists and maps state theirs.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)

Typed = tuple[int, Any]
Struct = dict[int, Typed]
Bytes = bytes | bytearray | memoryview

# Parquet nests about eight levels deep; deeper data is not Parquet.
_DEEPEST = 32
# A number of 64 bits takes at most ten bytes.
_LONGEST_SHIFT = 63
# The limits of each number type. A reader that cuts off the rest would see another number than this one.
_LIMITS = {I16: 1 << 15, I32: 1 << 31, I64: 1 << 63}
_UUID_BYTES = 16
# Sizes of lists and distances between field ids share a byte with a type, if they fit.
_SHORT = 15


class Malformed(ValueError):
    """Bytes that are not a struct of this protocol."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list or set: the type of its elements, and their values."""

    kind: int
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map: the types of keys and values, and the entries in their order."""

    key_kind: int
    value_kind: int
    entries: Sequence[tuple[Any, Any]]


def boolean(value: bool) -> Typed:
    return TRUE if value else FALSE, value


def i16(value: int) -> Typed:
    return I16, value


def i32(value: int) -> Typed:
    return I32, value


def i64(value: int) -> Typed:
    return I64, value


def binary(value: Bytes) -> Typed:
    return BINARY, bytes(value)


def structure(value: Struct) -> Typed:
    return STRUCT, value


def listed(kind: int, values: Iterable[Any]) -> Typed:
    return LIST, Items(kind, list(values))


def value_of(struct: Struct, field: int, default: Any = None) -> Any:
    """A field's value; lists as plain lists."""
    entry = struct.get(field)
    if entry is None:
        return default
    value = entry[1]
    return value.values if isinstance(value, Items) else value


def typed(struct: Struct, field: int, kind: int) -> Any:
    """A field's value, None if it is missing. Malformed if it has another type: readers skip such a field."""
    entry = struct.get(field)
    if entry is None:
        return None
    if entry[0] != kind:
        raise Malformed(f"field {field} has type {entry[0]}, expected {kind}")
    return entry[1]


def read(data: Bytes, start: int = 0) -> tuple[Struct, int]:
    """The struct that begins at `start`, and where it ends.

    It is read as strictly as by the strictest reader: bytes that two readers may understand differently are
    Malformed.
    """
    reader = _Reader(data, start)
    try:
        return reader.struct(0), reader.at
    except (IndexError, packing.error):
        raise Malformed(f"the struct at {start} goes beyond its {len(data)} bytes") from None


class _Reader:
    """A position in the bytes that moves with every read. Page headers are read here: keep it fast."""

    __slots__ = ("at", "data")

    def __init__(self, data: Bytes, at: int) -> None:
        self.data = data
        self.at = at

    def struct(self, depth: int) -> Struct:
        if depth > _DEEPEST:
            raise Malformed("structs nest too deep")
        fields: Struct = {}
        number = 0
        while head := self._byte():
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._number(I16)
            if not kind or number in fields:
                # Other readers end the struct at type 0, whatever the other four bits say.
                raise Malformed(f"field {number} has no type, or occurs twice")
            fields[number] = kind, self._value(kind, depth) if kind > FALSE else kind == TRUE
        return fields

    def _byte(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        return byte

    def _unsigned(self) -> int:
        byte = self._byte()
        if byte < 0x80:
            return byte
        number, shift = byte & 0x7F, 7
        while (byte := self._byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > _LONGEST_SHIFT:
                raise Malformed("a number is longer than 64 bits")
        return number | byte << shift

    def _number(self, kind: int) -> int:
        number = self._unsigned()
        number = (number >> 1) ^ -(number & 1)
        limit = _LIMITS[kind]
        if not -limit <= number < limit:
            raise Malformed(f"{number} does not fit into type {kind}")
        return number

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _LIMITS:
            return self._number(kind)
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind == BINARY:
            return self._bytes(self._unsigned())
        if kind in (LIST, SET):
            return self._items(depth)
        return self._rare(kind, depth)

    def _rare(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return self._byte() == TRUE
        if kind == BYTE:
            return packing.unpack("b", self._bytes(1))[0]
        if kind == DOUBLE:
            return packing.unpack("<d", self._bytes(8))[0]
        if kind == UUID:
            return self._bytes(_UUID_BYTES)
        if kind == MAP:
            return self._pairs(depth)
        raise Malformed(f"no type has the number {kind}")

    def _bytes(self, count: int) -> bytes:
        result = bytes(self.data[self.at : self.at + count])
        if len(result) != count:
            raise IndexError
        self.at += count
        return result

    def _items(self, depth: int) -> Items:
        head = self._byte()
        count = head >> 4 if head >> 4 < _SHORT else self._unsigned()
        self._check_count(count, depth)
        return Items(head & 0x0F, [self._value(head & 0x0F, depth + 1) for _ in range(count)])

    def _pairs(self, depth: int) -> Pairs:
        count = self._unsigned()
        self._check_count(count, depth)
        if not count:
            return Pairs(0, 0, [])
        head = self._byte()
        key, value = head >> 4, head & 0x0F
        return Pairs(
            key, value, [(self._value(key, depth + 1), self._value(value, depth + 1)) for _ in range(count)]
        )

    def _check_count(self, count: int, depth: int) -> None:
        """Every element takes at least a byte: a higher count is damage, and must not fill the memory."""
        if count > len(self.data) - self.at:
            raise IndexError
        if depth > _DEEPEST:
            raise Malformed("lists nest too deep")


def write(struct: Struct) -> bytes:
    """The struct's bytes, fields in the order of their ids."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number, (kind, value) in sorted(struct.items()):
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        if 0 < number - last <= _SHORT:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            _write_signed(out, number)
        if kind > FALSE:
            _write_value(out, kind, value)
        last = number
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I32, I64, I16):
        _write_signed(out, value)
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind == BINARY:
        _write_unsigned(out, len(value))
        out += value
    elif kind in (LIST, SET):
        _write_items(out, value)
    else:
        _write_rare(out, kind, value)


def _write_rare(out: bytearray, kind: int, value: Any) -> None:
    if kind in (TRUE, FALSE):
        out.append(TRUE if value else FALSE)
    elif kind == BYTE:
        out += packing.pack("b", value)
    elif kind == DOUBLE:
        out += packing.pack("<d", value)
    elif kind == UUID:
        out += value
    elif kind == MAP:
        _write_pairs(out, value)
    else:
        raise Malformed(f"no type has the number {kind}")


def _write_items(out: bytearray, items: Items) -> None:
    count = len(items.values)
    out.append(min(count, _SHORT) << 4 | items.kind)
    if count >= _SHORT:
        _write_unsigned(out, count)
    for value in items.values:
        _write_value(out, items.kind, value)


def _write_pairs(out: bytearray, pairs: Pairs) -> None:
    _write_unsigned(out, len(pairs.entries))
    if pairs.entries:
        out.append(pairs.key_kind << 4 | pairs.value_kind)
    for key, value in pairs.entries:
        _write_value(out, pairs.key_kind, key)
        _write_value(out, pairs.value_kind, value)


def _write_signed(out: bytearray, number: int) -> None:
    _write_unsigned(out, number << 1 if number >= 0 else (-number << 1) - 1)


def _write_unsigned(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
