"""The compact protocol: what is read can be written again byte for byte, and damage is told, never guessed at."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.rewrite.pages import thrift
from lakewarden.rewrite.pages.thrift import Items, Malformed, Pairs, Struct


def plain_values(kind: int) -> st.SearchStrategy[Any]:
    return {
        thrift.TRUE: st.booleans(),
        thrift.BYTE: st.integers(-128, 127),
        thrift.I16: st.integers(-(2**15), 2**15 - 1),
        thrift.I32: st.integers(-(2**31), 2**31 - 1),
        thrift.I64: st.integers(-(2**63), 2**63 - 1),
        thrift.DOUBLE: st.floats(allow_nan=False),
        thrift.BINARY: st.binary(max_size=200),
        thrift.UUID: st.binary(min_size=16, max_size=16),
    }[kind]


PLAIN = st.sampled_from([1, 3, 4, 5, 6, 7, 8, 13])


@st.composite
def typed(draw: st.DrawFn, depth: int = 3) -> thrift.Typed:
    kind = draw(PLAIN | st.sampled_from([9, 10, 11, 12])) if depth else draw(PLAIN)
    if kind in (thrift.LIST, thrift.SET):
        element, value = draw(typed(depth - 1))
        # Elements of one type: repeats of one will do, and a count beyond the short form.
        return kind, Items(1 if element == thrift.FALSE else element, [value] * draw(st.integers(0, 17)))
    if kind == thrift.MAP:
        key, value = draw(PLAIN), draw(PLAIN)
        entries = draw(st.lists(st.tuples(plain_values(key), plain_values(value)), max_size=3))
        return kind, Pairs(key, value, entries) if entries else Pairs(0, 0, [])
    if kind == thrift.STRUCT:
        return kind, draw(structs(depth - 1))
    value = draw(plain_values(kind))
    return thrift.boolean(value) if kind == thrift.TRUE else (kind, value)


def structs(depth: int = 3) -> st.SearchStrategy[Struct]:
    return st.dictionaries(st.integers(1, 60) | st.integers(-5, 32767), typed(depth), max_size=6)


@given(structs(), st.binary(max_size=5))
def test_what_is_written_is_read(value: Struct, before: bytes) -> None:
    data = thrift.write(value)
    assert thrift.read(before + data + b"more", len(before)) == (value, len(before) + len(data))
    assert thrift.read(memoryview(data)) == (value, len(data))


@given(structs(), st.data())
def test_a_struct_cut_short_is_malformed(value: Struct, data: st.DataObject) -> None:
    whole = thrift.write(value)
    with pytest.raises(Malformed):
        thrift.read(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=300))
def test_noise_is_malformed_or_a_struct(noise: bytes) -> None:
    try:
        _, end = thrift.read(noise)
    except Malformed:
        return
    assert 0 < end <= len(noise)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        # By the protocol's own description: a field's byte is the distance from the last id, then the type.
        (b"\x15\x02\x00", {1: (thrift.I32, 1)}),
        (b"\x15\x01\x00", {1: (thrift.I32, -1)}),
        (b"\x11\x12\x00", {1: (thrift.TRUE, True), 2: (thrift.FALSE, False)}),
        (b"\x06\xa0\x01\xac\x02\x00", {80: (thrift.I64, 150)}),
        (b"\x18\x02ab\x00", {1: (thrift.BINARY, b"ab")}),
        (b"\x19\x25\x02\x04\x00", {1: (thrift.LIST, Items(thrift.I32, [1, 2]))}),
        (b"\x19\x22\x01\x02\x00", {1: (thrift.LIST, Items(thrift.FALSE, [True, False]))}),
        (b"\x1c\x00\x00", {1: (thrift.STRUCT, {})}),
        (b"\x1b\x01\x85\x01a\x02\x00", {1: (thrift.MAP, Pairs(8, 5, [(b"a", 1)]))}),
        (b"\x1b\x00\x00", {1: (thrift.MAP, Pairs(0, 0, []))}),
        (b"\x17" + struct.pack("<d", 1.5) + b"\x00", {1: (thrift.DOUBLE, 1.5)}),
        (b"\x13\xff\x00", {1: (thrift.BYTE, -1)}),
    ],
)
def test_bytes_of_the_protocol(data: bytes, value: Struct) -> None:
    assert thrift.read(data) == (value, len(data))
    assert thrift.write(value) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x18\xff\xff\xff\xff\x0fab",  # a string of 4 GB
        b"\x19\xfc\xff\xff\xff\xff\x0f\x00",  # a list of a billion structs
        b"\x16" + b"\xff" * 11 + b"\x00",  # a number without end
        b"\x1e\x00",  # a type there is not
        b"\x15\x02\x10\x00",  # type 0, where other readers end the struct
        b"\x15\x02\x05\x02\x04\x00",  # a field that is there twice
        b"\x15\x80\x80\x80\x80\x10\x00",  # more than 32 bits, of which others take the lowest
        b"\x14\x80\x80\x04\x00",  # more than 16 bits
        b"\x05\x80\x80\x04\x02\x00",  # a field id of more than 16 bits
        b"\x1c" * 100 + b"\x00" * 101,  # a hundred structs deep
        b"\x19\x19" + b"\x19" * 100 + b"\x00" * 101,  # and lists
    ],
)
def test_damage_is_told(data: bytes) -> None:
    with pytest.raises(Malformed):
        thrift.read(data)


def footer_bytes(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


@pytest.mark.parametrize("page_index", [True, False])
def test_an_arrow_footer_and_its_pages(page_index: bool) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"n": range(100), "s": [f"{n % 7}" for n in range(99)] + [None], "l": [[1, 2]] * 100})
    pq.write_table(table, sink, row_group_size=30, write_page_index=page_index)
    data = sink.getvalue().to_pybytes()
    footer = footer_bytes(data)
    value, end = thrift.read(footer)
    assert end == len(footer)
    assert thrift.write(value) == footer
    assert thrift.value_of(value, 3) == 100
    assert [thrift.value_of(group, 3) for group in thrift.value_of(value, 4)] == [30, 30, 30, 10]
    page, _ = thrift.read(data, 4)
    assert thrift.value_of(page, 1) == 2  # a dictionary page


def test_fields_we_do_not_know_survive() -> None:
    known = thrift.write({1: thrift.i32(7)})
    later = known[:-1] + b"\x0c\xa8\x46\x1c\x15\x02\x00\x00" + b"\x00"  # a struct under id 4500
    value, end = thrift.read(later)
    assert end == len(later)
    assert thrift.write(value) == later
    assert thrift.value_of(value, 9, default="none") == "none"


def test_a_field_of_another_type_is_malformed() -> None:
    """Readers that know the field skip it: what it says does not count."""
    value = {1: thrift.i32(7), 2: thrift.structure({})}
    assert (thrift.typed(value, 1, thrift.I32), thrift.typed(value, 3, thrift.I32)) == (7, None)
    for field, kind in ((1, thrift.I64), (1, thrift.STRUCT), (2, thrift.I32)):
        with pytest.raises(Malformed, match=f"field {field} has type"):
            thrift.typed(value, field, kind)
