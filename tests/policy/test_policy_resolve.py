"""The most specific layer wins, and every value knows where it came from."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.config.schema import Config, PolicyConfig
from lakewarden.errors import PolicyError
from lakewarden.model.table import TableRef
from lakewarden.policy.keys import KEYS
from lakewarden.policy.origin import Layer
from lakewarden.policy.resolve import Layers, Policy, resolve, validate

TABLE = TableRef.parse("lake.db.events")
ORIGINS = {
    "environment": "environment",
    "file": "file",
    "patterns": "namespace lake.db.*",
    "table_properties": "table property",
    "stored": "table",
    "call": "call",
}

# Free of cross-key rules, so that any mixture of layers is a valid policy.
FREE = {
    "rewrite_enabled": st.booleans(),
    "rewrite_min_input_files": st.integers(1, 1000),
    "manifest_target_bytes": st.integers(1, 2**40),
    "snapshot_retention_hours": st.integers(0, 10_000),
    "rewrite_branch": st.sampled_from(["main", "audit", "dev"]),
    "rewrite_where": st.none() | st.sampled_from(["a > 1", "b = 'x'"]),
}
layer = st.fixed_dictionaries({}, optional=FREE)
stacks = st.fixed_dictionaries(dict.fromkeys(ORIGINS, layer))


def layers_of(stack: Mapping[str, Mapping[str, object]]) -> Layers:
    properties = {
        f"lakewarden.{name}": _as_property(value) for name, value in stack["table_properties"].items()
    }
    return Layers(
        environment=stack["environment"],
        file=stack["file"],
        patterns=[("lake.db.*", stack["patterns"]), ("other.*", {"rewrite_branch": "never"})],
        table_properties={**properties, "write.format.default": "parquet"},
        stored=stack["stored"],
        call=stack["call"],
        trusted=[("lake.db.*", tuple(FREE))],  # untrusted ones are in test_policy_writer.py
    )


def _as_property(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")


def effective(policy: Policy) -> dict[str, object]:
    return {name: each.value for name, each in policy.values.items()}


@given(stacks)
def test_the_most_specific_layer_wins(stack: dict[str, dict[str, object]]) -> None:
    policy = resolve(TABLE, layers_of(stack))
    for name in FREE:
        said_by = [each for each in ORIGINS if name in stack[each]]
        if said_by:
            assert policy[name] == stack[said_by[-1]][name]
            assert str(policy.origin(name)) == ORIGINS[said_by[-1]]
        else:
            assert policy.origin(name).layer is Layer.DEFAULT


@given(stacks, st.sampled_from(sorted(FREE)))
def test_unsetting_restores_the_next_layer(stack: dict[str, dict[str, object]], name: str) -> None:
    without = {**stack, "stored": {}, "call": {}}
    unset = {each: {k: v for k, v in stack[each].items() if k != name} for each in ("stored", "call")}
    policy, below = resolve(TABLE, layers_of({**stack, **unset})), resolve(TABLE, layers_of(without))
    assert policy.values[name] == below.values[name]


@given(stacks, stacks)
def test_the_hash_changes_exactly_with_the_values(
    one: dict[str, dict[str, object]], two: dict[str, dict[str, object]]
) -> None:
    first, second = resolve(TABLE, layers_of(one)), resolve(TABLE, layers_of(two))
    assert (first.hash() == second.hash()) == (effective(first) == effective(second))


@given(stacks)
def test_the_hash_does_not_depend_on_the_layer(stack: dict[str, dict[str, object]]) -> None:
    policy = resolve(TABLE, layers_of(stack))
    said = {name: policy[name] for name in FREE}
    assert resolve(TABLE, Layers(call=said)).hash() == policy.hash()


@given(stacks)
def test_resolving_has_every_key_once(stack: dict[str, dict[str, object]]) -> None:
    rows = resolve(TABLE, layers_of(stack)).to_dict()
    assert [row["key"] for row in rows] == [each.name for each in KEYS]
    assert json.loads(json.dumps(rows)) == rows


def test_the_environment_is_below_the_file() -> None:
    policy = resolve(TABLE, Layers(environment={"rewrite_branch": "e"}, file={"rewrite_branch": "f"}))
    assert policy.explain("rewrite_branch") == "rewrite_branch=f (file)"


def test_of_two_patterns_that_match_the_later_wins() -> None:
    patterns = [
        ("lake.db.events", {"rewrite_branch": "a"}),
        ("lake.*", {"rewrite_branch": "b"}),
        ("x.*", {"rewrite_branch": "c"}),
    ]
    policy = resolve(TABLE, Layers(patterns=patterns))
    assert policy.explain("rewrite_branch") == "rewrite_branch=b (namespace lake.*)"


def test_patterns_tell_upper_from_lower_case() -> None:
    assert (
        resolve(TABLE, Layers(patterns=[("LAKE.*", {"rewrite_branch": "a"})])).text("rewrite_branch")
        == "main"
    )


def test_explain_and_to_dict() -> None:
    policy = resolve(TABLE, Layers(call={"rewrite_zorder_columns": ["a", "b"]}))
    assert policy.explain("rewrite_small_bytes") == "rewrite_small_bytes=33554432 (default)"
    assert policy.explain("rewrite_zorder_columns") == "rewrite_zorder_columns=a, b (call)"
    assert policy.explain("rewrite_where") == "rewrite_where=none (default)"
    row = next(row for row in policy.to_dict() if row["key"] == "rewrite_zorder_columns")
    assert row == {
        "key": "rewrite_zorder_columns",
        "value": ["a", "b"],
        "default": None,
        "origin": "call",
        "sentence": "columns to cluster by",
    }


def test_typed_access() -> None:
    policy = resolve(TABLE, Layers(call={"snapshot_retention_hours": "90m", "snapshot_ids": [4]}))
    assert policy.int("rewrite_target_bytes") == 134217728
    assert policy.bool("rewrite_enabled") is True
    assert policy.text("rewrite_branch") == "main"
    assert policy.float("delete_compaction_ratio") == 0.3
    assert policy.float("orphan_max_percent") == 25.0
    assert policy.hours("snapshot_retention_hours") == timedelta(minutes=90)
    assert policy.columns("rewrite_zorder_columns") == ()
    assert policy.columns("lineage_required_keys")[0] == "writer.id"
    assert policy.ids("snapshot_ids") == (4,)
    assert (policy.maybe_int("rewrite_max_commits"), policy.maybe_hours("partition_ttl_hours")) == (
        None,
        None,
    )
    assert policy.maybe_text("rewrite_where") is None


@pytest.mark.parametrize(
    "read",
    [
        lambda p: p.int("rewrite_enabled"),
        lambda p: p.int("rewrite_where"),
        lambda p: p.text("rewrite_max_bytes"),
    ],
)
def test_reading_a_key_as_what_it_is_not_is_a_mistake(read: object) -> None:
    with pytest.raises(TypeError, match="policy key rewrite_"):
        read(resolve(TABLE, Layers()))  # type: ignore[operator]


def test_a_policy_travels_to_other_processes() -> None:
    policy = resolve(TABLE, Layers(call={"rewrite_branch": "x"}))
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (Layers(call={"rewrite_target_bytes": "2GiB"}), ("rewrite_target_bytes=2147483648 (call)", "rewrite_max_bytes=1073741824 (default)")),
        (Layers(file={"rewrite_max_bytes": 1000}, call={"rewrite_target_bytes": 1}), ("rewrite_small_bytes=33554432 (default)", "rewrite_max_bytes=1000 (file)")),
        (Layers(stored={"snapshot_max_retained": 3}), ("snapshot_min_retained=5 (default)", "snapshot_max_retained=3 (table)")),
        (Layers(call={"rewrite_strategy": "zorder"}), ("rewrite_strategy=zorder (call)", "rewrite_zorder_columns=none (default)")),
        (Layers(call={"partition_expiry_enabled": True}), ("partition_expiry_enabled=true (call)", "partition_ttl_hours")),
        (Layers(call={"handoff_enabled": True}), ("handoff_enabled=true (call)", "handoff_catalog")),
        (Layers(file={"delete_grace_hours": 0}), ("delete_grace_hours=0 (file)", "only the table's own policy")),
        (Layers(patterns=[("lake.*", {"delete_grace_hours": "30m"})]), ("delete_grace_hours=0.5 (namespace lake.*)",)),
        (Layers(environment={"rewrite_tagret_bytes": "1"}), ("(environment)", "did you mean rewrite_target_bytes")),
        (Layers(table_properties={"lakewarden.xyz": "1"}), ("xyz", "table property lakewarden.xyz of lake.db.events")),
        (Layers(table_properties={"lakewarden.rewrite_enabled": "7"}), ("lakewarden.rewrite_enabled of lake.db.events", "true or false")),
        (Layers(stored={"rewrite_enabled": 7}), ("stored policy of lake.db.events",)),
        (Layers(stored={"snapshot_ids": [1]}), ("one call only",)),
        (Layers(file={"rewrite_branch": 3}, call={"rewrite_branch": "main"}), ("found 3 (file)",)),
    ],
)  # fmt: skip
def test_what_disagrees_is_refused_with_both_named(layers: Layers, words: tuple[str, ...]) -> None:
    with pytest.raises(PolicyError) as caught:
        resolve(TABLE, layers)
    assert all(each in caught.value.message for each in words), caught.value.message


@pytest.mark.parametrize(
    "layers",
    [
        Layers(
            table_properties={"lakewarden.delete_grace_hours": "0"}, trusted=[("*", ["delete_grace_hours"])]
        ),
        Layers(stored={"delete_grace_hours": 0}),
        Layers(call={"delete_grace_hours": "0h"}),
    ],
)
def test_no_grace_may_be_asked_for_one_table(layers: Layers) -> None:
    assert resolve(TABLE, layers).int("delete_grace_hours") == 0


def test_configured_layers_reach_the_policy_and_are_checked_early() -> None:
    values = {
        "policy": {"rewrite_branch": "f", "tables": [{"pattern": "lake.db.*", "snapshot_min_retained": 9}]}
    }
    config = Config.from_dict(values, {"LAKEWARDEN_POLICY__REWRITE_MIN_INPUT_FILES": "3"})
    validate(config.policy)
    policy = resolve(TABLE, Layers.of(config.policy, call={"rewrite_branch": "c"}))
    assert policy.explain("rewrite_branch") == "rewrite_branch=c (call)"
    assert policy.explain("snapshot_min_retained") == "snapshot_min_retained=9 (namespace lake.db.*)"
    assert policy.explain("rewrite_min_input_files") == "rewrite_min_input_files=3 (environment)"
    with pytest.raises(PolicyError, match=r"namespace never\.\*"):
        validate(PolicyConfig(tables=[{"pattern": "never.*", "rewrite_brunch": "x"}]))
    with pytest.raises(PolicyError, match=r"rewrite_brunch: no such key \(\[policy\] of lake.toml\)"):
        validate(PolicyConfig(file={"rewrite_brunch": "x"}), Path("lake.toml"))


def test_an_option_of_less_than_an_hour_does_not_stop_every_job() -> None:
    options = {"partition.expiration-time": "10 min", "snapshot.time-retained": "10 min"}
    keys = ("partition_ttl_hours", "snapshot_retention_hours")
    found = resolve(TABLE, Layers(table_properties=options, trusted=[("*", keys)]))
    assert found["partition_ttl_hours"] == 1
    assert found["snapshot_retention_hours"] == pytest.approx(1 / 6)
