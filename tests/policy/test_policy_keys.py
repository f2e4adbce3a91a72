"""Every policy key: its default is valid, what is wrong is refused with what is right."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lakewarden.errors import PolicyError
from lakewarden.policy.keys import KEYS, Key, key
from lakewarden.policy.values import PolicyValue, ValueType, show


@pytest.mark.parametrize("each", KEYS, ids=lambda each: each.name)
def test_a_default_reads_back_to_itself(each: Key) -> None:
    assert each.parse(each.default, "default") == each.default
    assert each.parse(show(each.default), "default") == each.default
    assert len(each.sentence) > 10


@pytest.mark.parametrize("each", [each for each in KEYS if each.example], ids=lambda each: each.name)
def test_an_example_is_allowed(each: Key) -> None:
    assert each.parse(each.example, "call") is not None


@pytest.mark.parametrize("each", KEYS, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "found",
    [object(), "", {}, float("nan"), [], b"x"],
    ids=["object", "empty", "map", "nan", "list", "bytes"],
)
def test_nonsense_is_refused_by_every_key(each: Key, found: object) -> None:
    with pytest.raises(PolicyError) as caught:
        each.parse(found, "call")
    assert all(
        part in caught.value.message
        for part in (each.name, "(call)", "allowed: ", f"for example {each.name}=")
    )


def test_names_are_unique() -> None:
    assert len({each.name for each in KEYS}) == len(KEYS)


@pytest.mark.parametrize(
    ("name", "found", "value"),
    [
        ("rewrite_enabled", "false", False),
        ("rewrite_enabled", "ON", True),
        ("rewrite_target_bytes", "134217728", 134217728),
        ("rewrite_target_bytes", "128MiB", 134217728),
        ("rewrite_target_bytes", "128 mb", 128_000_000),
        ("rewrite_target_bytes", "1.5GiB", 1610612736),
        ("rewrite_max_group_bytes", "9007199254740993", 9007199254740993),
        ("snapshot_retention_hours", 720, 720),
        ("snapshot_retention_hours", 720.0, 720),
        ("snapshot_retention_hours", "30d", 720),
        ("snapshot_retention_hours", "12h", 12),
        ("snapshot_retention_hours", "90m", 1.5),
        ("snapshot_retention_hours", 0, 0),
        ("delete_compaction_ratio", "1", 1.0),
        ("orphan_max_percent", "10%", 10),
        ("orphan_max_percent", 2.5, 2.5),
        ("rewrite_strategy", "ZOrder", "zorder"),
        ("rewrite_engine", "iceberg", "iceberg"),
        ("rewrite_encodings", "modern", "modern"),
        ("rewrite_zorder_columns", "a, b", ("a", "b")),
        ("rewrite_zorder_columns", ["a,1", "b"], ("a,1", "b")),
        ("rewrite_zorder_columns", '["a,1", "b"]', ("a,1", "b")),
        ("rewrite_zorder_columns", "none", None),
        ("rewrite_sort_columns", "a, b  DESC nulls last", ("a", "b DESC nulls last")),
        ("rewrite_sort_columns", ["`my col` asc"], ("`my col` asc",)),
        ("rewrite_output_spec_id", "Current", "current"),
        ("rewrite_output_spec_id", "2", 2),
        ("rewrite_output_spec_id", 0, 0),
        ("snapshot_ids", [6342913400512931861, 2], (6342913400512931861, 2)),
        ("snapshot_ids", "1, 2, 1", (1, 2)),
        ("snapshot_ids", 42, (42,)),
        ("rewrite_where", " day > 3 ", "day > 3"),
        ("rewrite_max_commits", None, None),
    ],
)
def test_values_read_from_text_and_native_forms(name: str, found: object, value: PolicyValue) -> None:
    read = key(name).parse(found, "call")
    assert read == value
    assert type(read) is type(value)
    assert key(name).parse(show(read), "call") == value


@pytest.mark.parametrize(
    ("name", "found", "words"),
    [
        ("rewrite_target_bytes", 0, "at least 1"),
        ("rewrite_target_bytes", "12 apples", "for example rewrite_target_bytes=128MiB"),
        ("rewrite_target_bytes", -5, "at least 1"),
        ("rewrite_target_bytes", 1.5, "a size in bytes"),
        ("rewrite_target_bytes", 2**63, "a size in bytes"),
        ("rewrite_target_bytes", True, "a size in bytes"),
        ("rewrite_target_bytes", "none", "a size in bytes"),
        ("rewrite_enabled", 1, "true or false"),
        ("rewrite_enabled", "maybe", "true or false"),
        ("orphan_grace_hours", 23, "at least 24"),
        ("orphan_grace_hours", "23h", "at least 24"),
        ("snapshot_min_retained", 0, "at least 1"),
        ("snapshot_retention_hours", -1, "at least 0"),
        ("snapshot_retention_hours", "inf", "hours"),
        ("snapshot_retention_hours", 1e300, "hours"),
        ("delete_compaction_ratio", 0, "above 0 and at most 1"),
        ("delete_compaction_ratio", 1.01, "above 0 and at most 1"),
        ("orphan_max_percent", 101, "at least 0 and at most 100"),
        ("orphan_max_percent", -1, "at least 0"),
        ("rewrite_strategy", "fast", "one of auto, binpack, sort, zorder"),
        ("partition_expiry_strategy", "x", "one of values-time, update-time"),
        ("rewrite_zorder_columns", "a", "at least 2 and at most 4"),
        ("rewrite_zorder_columns", "a,b,c,d,e", "at least 2 and at most 4"),
        ("rewrite_zorder_columns", "a, a", "different column names"),
        ("rewrite_zorder_columns", "a,,b", "different column names"),
        ("rewrite_zorder_columns", ["a", 3], "different column names"),
        ("rewrite_zorder_columns", '["a", ', "different column names"),
        ("rewrite_sort_columns", "a downwards", "asc or desc"),
        ("rewrite_output_spec_id", -1, "current, keep, or the id"),
        ("rewrite_output_spec_id", "last", "current, keep, or the id"),
        ("snapshot_ids", [], "one or more snapshot ids"),
        ("snapshot_ids", "x", "one or more snapshot ids"),
    ],
)
def test_bad_values_say_what_is_allowed(name: str, found: object, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        key(name).parse(found, "file")
    assert caught.value.message.startswith(f"cannot set policy key {name}: found {found!r} (file); allowed: ")
    assert words in caught.value.message


def test_an_unknown_key_names_the_closest() -> None:
    with pytest.raises(
        PolicyError, match=r"rewrite_tagret_bytes: no such key \(call\); did you mean rewrite_target_bytes"
    ):
        key("rewrite_tagret_bytes")
    with pytest.raises(PolicyError, match="did you mean snapshot_min_retained"):
        key("snapshot-min-retained")
    with pytest.raises(PolicyError, match="every key is in"):
        key("qqq")


@given(st.integers(1, 2**63 - 1))
def test_a_size_reads_exactly(size: int) -> None:
    assert key("rewrite_target_bytes").parse(str(size), "call", call=True) == size


@example(key("lineage_allowed_operations"), {"["})
@example(key("lineage_allowed_operations"), {"none"})
@example(key("lineage_allowed_operations"), {"a,b"})
@given(
    st.sampled_from([each for each in KEYS if each.kind is ValueType.NAMES]),
    st.sets(st.text(min_size=1), min_size=1),
)
def test_lists_of_any_names_survive_text(each: Key, names: set[str]) -> None:
    wanted = {name.strip() for name in names} - {""}
    assume(wanted)
    read = each.parse(sorted(wanted), "call")
    assert each.parse(show(read), "table property") == read
