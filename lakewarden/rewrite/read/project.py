"""Projects a source file's schema to the table's, by field id.

A column may have been renamed, moved, dropped, added or promoted since the file was written. A column that
cannot be converted exactly is Unfit: the table's own engine rewrites it instead. Footers decide that, before a
row is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

FIELD_ID = b"PARQUET:field_id"
ROW_ID = 2147483540
LAST_UPDATED = 2147483539

_PLAIN_TYPES = (
    pt.is_boolean,
    pt.is_int8,
    pt.is_int16,
    pt.is_int32,
    pt.is_int64,
    pt.is_float32,
    pt.is_float64,
    pt.is_decimal128,
    pt.is_date32,
    pt.is_time32,
    pt.is_time64,
    pt.is_timestamp,
    pt.is_string,
    pt.is_binary,
    pt.is_fixed_size_binary,
)


class Unfit(Exception):
    """A file or table that this kernel cannot convert exactly. Nothing was written."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f"rewrite {self.path or 'this table'} with Arrow: {self.reason}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One Parquet column: its index in the file, and the Arrow field it decodes to."""

    index: int
    path: str
    field: pa.Field
    top: int

    @property
    def id(self) -> int | None:
        return field_id(self.field)


def field_id(field: pa.Field) -> int | None:
    """The Iceberg id in a field's metadata, if it has one."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


def is_nested(kind: pa.DataType) -> bool:
    return bool(pt.is_struct(kind) or pt.is_map(kind) or is_list(kind))


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields directly below a type: none for a plain type."""
    if pt.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if is_list(kind) else []


def repeats(field: pa.Field) -> bool:
    """Whether one row may have several values of this field: it is a list or a map, or contains one."""
    return is_list(field.type) or pt.is_map(field.type) or any(map(repeats, children(field.type)))


def leaves(schema: pa.Schema) -> list[Leaf]:
    """Every Parquet column of a schema, in file order, with its Parquet path."""
    found = [
        (top, path, leaf) for top, field in enumerate(schema) for path, leaf in _leaves(field.name, field)
    ]
    return [Leaf(index, path, leaf, top) for index, (top, path, leaf) in enumerate(found)]


def _leaves(path: str, field: pa.Field) -> Iterator[tuple[str, pa.Field]]:
    below = children(field.type)
    if not below:
        yield path, field
    elif pt.is_map(field.type):
        for name, child in zip(("key", "value"), below, strict=True):
            yield from _leaves(f"{path}.key_value.{name}", child)
    elif is_list(field.type):
        yield from _leaves(f"{path}.list.element", below[0])
    else:
        for child in below:
            yield from _leaves(f"{path}.{child.name}", child)


def output_schema(table: pa.Schema, row_lineage: bool) -> pa.Schema:
    """The schema of an output file: the table's, in the types Parquet decodes to, plus lineage columns.

    PyIceberg uses large Arrow types for strings and lists. Parquet reads into the small ones, so using those
    here saves a copy of every value.
    """
    fields = [_small(field) for field in table]
    if row_lineage:
        fields += [_lineage("_row_id", ROW_ID), _lineage("_last_updated_sequence_number", LAST_UPDATED)]
    for field in fields:
        _check_supported(field)
    return pa.schema(fields)


def _lineage(name: str, id_: int) -> pa.Field:
    return pa.field(name, pa.int64(), metadata={FIELD_ID: str(id_)})


def _small(field: pa.Field) -> pa.Field:
    kind = field.type
    if pt.is_large_string(kind):
        kind = pa.string()
    elif pt.is_large_binary(kind):
        kind = pa.binary()
    elif is_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif pt.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    elif pt.is_struct(kind):
        kind = pa.struct([_small(child) for child in children(kind)])
    return field.with_type(kind)


def _check_supported(field: pa.Field) -> None:
    if field_id(field) is None:
        raise Unfit(f"column {field.name} of the table has no field id")
    for child in children(field.type):
        _check_supported(child)
    if pt.is_struct(field.type) and not children(field.type):
        raise Unfit(f"column {field.name} is an empty struct")
    if not (is_nested(field.type) or is_uuid(field.type) or any(known(field.type) for known in _PLAIN_TYPES)):
        raise Unfit(f"column {field.name} has type {field.type}")


def is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)


def defaulted_ids(iceberg_schema_json: str) -> frozenset[int]:
    """Fields whose absence from a file does not mean null: those with an `initial-default`. Without a schema, none."""

    def walk(node: Any) -> Iterator[int]:
        if isinstance(node, dict):
            if node.get("initial-default") is not None:
                yield int(node["id"])
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    return frozenset(walk(json.loads(iceberg_schema_json or "{}")))


@dataclass(frozen=True)
class Projection:
    """How the columns of one file schema become the columns of the output."""

    source: pa.Schema
    target: pa.Schema

    @cached_property
    def origin(self) -> list[int | None]:
        """For each output column, its index in the file; None if the file does not have it."""
        places = {field_id(field): place for place, field in enumerate(self.source)}
        return [places.get(field_id(field)) for field in self.target]

    @cached_property
    def wanted(self) -> list[int]:
        """Indices of the file's columns that are still part of the table, in file order."""
        return sorted(place for place in self.origin if place is not None)

    @cached_property
    def leaves(self) -> list[Leaf]:
        return leaves(self.source)

    @property
    def columns(self) -> list[str] | None:
        """Parquet paths to read; None means all."""
        if len(self.wanted) == len(self.source):
            return None
        places = set(self.wanted)
        return [leaf.path for leaf in self.leaves if leaf.top in places]

    def columns_of(self, ids: frozenset[int]) -> list[str]:
        """Parquet paths of these top-level columns, as far as the file has them."""
        tops = {place for place, field in enumerate(self.source) if field_id(field) in ids}
        return [leaf.path for leaf in self.leaves if leaf.top in tops]

    @cached_property
    def dropped(self) -> frozenset[int]:
        """Ids of fields inside the file's columns that the table no longer has. They are read, but not written."""
        return ids_of(self.source.field(place) for place in self.wanted) - ids_of(self.target)

    def apply(self, batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
        """The batch's rows as output columns; `schema` is the output's, dictionaries included."""
        read = {place: batch.column(i) for i, place in enumerate(self.wanted)}
        columns = []
        for place, target, field in zip(self.origin, self.target, schema, strict=True):
            if place is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = _as_type(read[place], self.source.field(place), target, field.type)
            if not field.nullable and column.null_count:
                raise Unfit(f"column {field.name} is required but holds nulls")
            columns.append(column)
        return columns


def ids_of(fields: Iterable[pa.Field]) -> frozenset[int]:
    """The ids of these fields, and of all fields below them."""
    ids: set[int] = set()
    for field in fields:
        id_ = field_id(field)
        ids.update(ids_of(children(field.type)), () if id_ is None else (id_,))
    return frozenset(ids)


def projection(source: pa.Schema, target: pa.Schema, defaults: frozenset[int]) -> Projection:
    """The projection from a file's schema to the output's, or Unfit with the name of the column that prevents it."""
    for field in source:
        _check_ids(field)
    by_id = {field_id(field): field for field in source}
    if len(by_id) != len(source):
        raise Unfit("two columns share one field id")
    for field in target:
        _check(by_id.get(field_id(field)), field, defaults)
    return Projection(source, target)


def _check_ids(field: pa.Field) -> None:
    if field_id(field) is None:
        raise Unfit(f"column {field.name} has no field id")
    for child in children(field.type):
        _check_ids(child)


def _check(source: pa.Field | None, target: pa.Field, defaults: frozenset[int]) -> None:
    name = target.name
    if source is None:
        if field_id(target) in defaults:
            raise Unfit(f"column {name} is not in the file, and that does not mean null")
        if not target.nullable:
            raise Unfit(f"column {name} is required but missing")
        return
    if _same(source, target):
        return
    if is_nested(source.type) or is_nested(target.type):
        _check_nested(source, target, defaults)
    elif not promotes(_decoded(source.type), target.type):
        raise Unfit(f"column {name} is {source.type} in the file and {target.type} in the table")


def _check_nested(source: pa.Field, target: pa.Field, defaults: frozenset[int]) -> None:
    if _shape(source.type) != _shape(target.type):
        raise Unfit(f"column {target.name} is {source.type} in the file and {target.type} in the table")
    by_id = {field_id(child): child for child in children(source.type)}
    if pt.is_struct(target.type) and not any(field_id(child) in by_id for child in children(target.type)):
        raise Unfit(f"struct {target.name} shares no field with the file")
    for child in children(target.type):
        inner = by_id.get(field_id(child))
        if inner is None and not pt.is_struct(target.type):
            raise Unfit(f"elements of {target.name} have another field id in the file")
        if inner is not None and inner.nullable and not child.nullable:
            raise Unfit(f"field {child.name} of {target.name} is required but optional in the file")
        _check(inner, child, defaults)


def _shape(kind: pa.DataType) -> str:
    return (
        "list" if is_list(kind) else "map" if pt.is_map(kind) else "struct" if pt.is_struct(kind) else "plain"
    )


def _same(source: pa.Field, target: pa.Field) -> bool:
    """Equal in type, names, nullability below, and ids: the array can be passed on unchanged."""
    if not source.type.equals(target.type) or field_id(source) != field_id(target):
        return False
    pairs = zip(children(source.type), children(target.type), strict=True)
    return all(_same(*pair) for pair in pairs)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def promotes(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of one plain type is the same value in the other."""
    if source.equals(target):
        return True
    if pt.is_decimal128(source) and pt.is_decimal128(target):
        return bool(source.scale == target.scale and source.precision <= target.precision)
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        return source.tz == target.tz and (source.unit, target.unit) == ("ms", "us")
    if is_uuid(target):
        return bool(source.equals(target.storage_type))
    return any(source.equals(one) and target.equals(other) for one, other in _PROMOTIONS)


_PROMOTIONS = (
    (pa.int8(), pa.int16()),
    (pa.int8(), pa.int32()),
    (pa.int16(), pa.int32()),
    (pa.int8(), pa.int64()),
    (pa.int16(), pa.int64()),
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.time32("ms"), pa.time64("us")),
    (pa.large_string(), pa.string()),
    (pa.large_binary(), pa.binary()),
)


def _as_type(array: pa.Array, source: pa.Field, target: pa.Field, wanted: pa.DataType) -> pa.Array:
    """The array in the output's type; `wanted` differs from the target's type only by being a dictionary."""
    if pt.is_dictionary(wanted):
        return array if array.type.equals(wanted) else _convert(array, target.type).dictionary_encode()
    if _same(source, target) and array.type.equals(target.type):
        return array
    return _rebuild(array, source, target) if is_nested(target.type) else _convert(array, target.type)


def _convert(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_uuid(kind) and not is_uuid(array.type):
        return pa.ExtensionArray.from_storage(kind, array)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise Unfit(f"a value of type {array.type} does not fit {kind}: {error}") from error


def _rebuild(array: pa.Array, source: pa.Field, target: pa.Field) -> pa.Array:
    """A nested array with its children in the table's order, names and types; nulls stay in place."""
    if pt.is_struct(target.type):
        return _rebuild_struct(array, target)
    starts = array.offsets
    first, last = starts[0].as_py(), starts[-1].as_py()
    # A sliced array keeps the whole list of children: cut them, and count the offsets from zero.
    starts = pc.subtract(starts, pa.scalar(first, starts.type)).cast(pa.int32())
    if pt.is_map(target.type):
        keys, items = (
            _child(part.slice(first, last - first), inner, outer)
            for part, inner, outer in zip(
                (array.keys, array.items), children(source.type), children(target.type), strict=True
            )
        )
        return pa.MapArray.from_arrays(starts, keys, items, type=target.type, mask=array.is_null())
    values = _child(array.values.slice(first, last - first), source.type.value_field, target.type.value_field)
    return pa.ListArray.from_arrays(starts, values, type=target.type, mask=array.is_null())


def _rebuild_struct(array: pa.Array, target: pa.Field) -> pa.Array:
    places = {field_id(child): i for i, child in enumerate(children(array.type))}
    columns = []
    for child in children(target.type):
        place = places.get(field_id(child))
        if place is None:
            columns.append(pa.nulls(len(array), child.type))
        else:
            columns.append(_child(array.field(place), array.type.field(place), child))
    return pa.StructArray.from_arrays(columns, fields=children(target.type), mask=array.is_null())


def _child(array: pa.Array, source: pa.Field, target: pa.Field) -> pa.Array:
    return _as_type(array, source, target, target.type)
