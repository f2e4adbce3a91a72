"""The operator's word outranks the writer's: what a table's properties may say, and what is ignored with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO

import pytest
from rich.console import Console

from lakewarden.config.schema import Config, PolicyConfig
from lakewarden.errors import ConfigError, PolicyError
from lakewarden.model.table import TableRef
from lakewarden.policy.keys import KEYS, PropertyRule
from lakewarden.policy.resolve import Layers, Policy, resolve, validate
from lakewarden.report.policy import PolicyReport


def printed(report: PolicyReport) -> str:
    output = StringIO()
    Console(file=output, width=400, highlight=False, markup=False).print(report.render(400))
    return output.getvalue()


TABLE = TableRef.parse("lake.db.events")


def by_properties(file: Mapping[str, object] | None = None, /, **properties: str) -> Policy:
    own = {f"lakewarden.{name}": value for name, value in properties.items()}
    return resolve(TABLE, Layers(file=file or {}, table_properties=own))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("orphan_sweep_enabled", "true"),
        ("orphan_max_percent", "100"),
        ("orphan_grace_hours", "24"),
        ("delete_grace_hours", "0"),
        ("purge_outside_location", "true"),
        ("own_places", "/"),
        ("snapshot_retention_hours", "0"),
        ("snapshot_min_retained", "1"),
        ("snapshot_max_retained", "5"),
        ("snapshot_restart_hours", "1"),
        ("snapshot_ref_retention_hours", "1"),
        ("partition_expiry_enabled", "true"),
        ("partition_ttl_hours", "1"),
        ("partition_time_formatter", "ddMMyyyy"),
        ("handoff_enabled", "true"),
        ("handoff_catalog", "other"),
        ("handoff_storage_class", "DEEP_ARCHIVE"),
        ("cold_retention_hours", "1"),
        ("rewrite_where", "a = 1"),
        ("rewrite_digest", "off"),
        ("rewrite_engine", "iceberg"),
        ("rewrite_max_group_bytes", "1TiB"),
        ("lineage_required_keys", "none"),
    ],
)
def test_a_table_property_neither_deletes_nor_widens(name: str, value: str) -> None:
    policy, plain = by_properties(**{name: value}), resolve(TABLE, Layers())
    assert policy[name] == plain[name]
    assert policy.hash() == plain.hash()
    assert [(each.key, each.value) for each in policy.ignored] == [(name, value)]
    assert policy.ignored[0].reason


@pytest.mark.parametrize(
    ("file", "name", "value", "kept"),
    [
        ({}, "snapshot_retention_hours", "60d", 1440),
        ({"snapshot_retention_hours": 24}, "snapshot_retention_hours", "48", 48),
        ({}, "snapshot_min_retained", "50", 50),
        ({}, "delete_grace_hours", "48", 48),
        ({}, "orphan_grace_hours", "400", 400),
        ({}, "orphan_max_percent", "5", 5),
        ({"orphan_sweep_enabled": True}, "orphan_sweep_enabled", "false", False),
        ({}, "snapshot_expiry_enabled", "false", False),
        ({}, "maintenance_enabled", "false", False),
        ({}, "snapshot_expire_limit", "3", 3),
        ({}, "protected_tags", "audit-*", ("audit-*",)),
        ({}, "rewrite_target_bytes", "64MiB", 64 << 20),
        ({}, "rewrite_digest", "rows", "rows"),
        ({}, "rewrite_zorder_columns", "a, b", ("a", "b")),
    ],
)
def test_a_table_property_may_tune_a_rewrite_or_keep_more(
    file: dict[str, object], name: str, value: str, kept: object
) -> None:
    policy = by_properties(file, **{name: value})
    assert policy[name] == kept
    assert str(policy.origin(name)) == "table property"
    assert not policy.ignored


def test_less_than_the_operators_value_is_ignored_with_both_values() -> None:
    policy = by_properties({"snapshot_retention_hours": "10d"}, snapshot_retention_hours="5d")
    assert policy.explain("snapshot_retention_hours") == "snapshot_retention_hours=240 (file)"
    told = policy.ignored[0]
    assert "snapshot_retention_hours=240 (file)" in told.reason
    assert (told.value, str(told.origin)) == ("5d", "table property")


@pytest.mark.parametrize(
    "name",
    [
        "rewrite_enabled",
        "delete_compaction_enabled",
        "manifest_rewrite_enabled",
        "history_compaction_enabled",
        "snapshot_expiry_enabled",
        "maintenance_enabled",
    ],
)
def test_what_the_operator_switched_off_stays_off(name: str) -> None:
    policy = by_properties({name: False}, **{name: "true"})
    assert policy[name] is False and [each.key for each in policy.ignored] == [name]
    assert by_properties(**{name: "false"})[name] is False


def test_a_table_property_does_not_change_how_much_a_rewrite_proves() -> None:
    """Iceberg's own writer proves a count only, whatever the operator asks of `rewrite_digest`."""
    policy = by_properties({"rewrite_digest": "rows"}, rewrite_engine="iceberg")
    assert (policy["rewrite_engine"], policy["rewrite_digest"]) == ("arrow", "rows")
    assert by_properties({"rewrite_engine": "iceberg"}, rewrite_engine="arrow")["rewrite_engine"] == "arrow"


@pytest.mark.parametrize(("said", "counts"), [("none", 6), ("1", 6), ("12", 12)])
def test_partitions_are_sealed_no_sooner_than_the_operator_says(said: str, counts: int) -> None:
    policy = by_properties({"rewrite_sealed_after_hours": 6}, rewrite_sealed_after_hours=said)
    assert policy["rewrite_sealed_after_hours"] == counts
    assert by_properties(rewrite_sealed_after_hours="3")["rewrite_sealed_after_hours"] == 3


def test_names_of_a_table_property_are_added_to_the_operators() -> None:
    usual = resolve(TABLE, Layers()).columns("lineage_required_keys")
    assert by_properties(lineage_required_keys="team")["lineage_required_keys"] == (*usual, "team")
    ruled = by_properties({"lineage_required_keys": ["desk"]}, lineage_required_keys="team, desk")
    assert ruled["lineage_required_keys"] == ("desk", "team") and not ruled.ignored
    freed = by_properties({"lineage_required_keys": ["desk"]}, lineage_required_keys="none")
    assert freed["lineage_required_keys"] == ("desk",) and len(freed.ignored) == 1
    assert freed.explain("lineage_required_keys") == "lineage_required_keys=desk (file)"
    assert by_properties({"protected_tags": "a"}, protected_tags="b")["protected_tags"] == ("a", "b")


def test_the_stored_policy_and_the_call_may_shorten() -> None:
    layers = Layers(
        table_properties={"lakewarden.snapshot_retention_hours": "2000"},
        stored={"snapshot_retention_hours": 100},
    )
    assert (
        resolve(TABLE, layers).explain("snapshot_retention_hours") == "snapshot_retention_hours=100 (table)"
    )


def test_paimons_own_options_only_keep_more() -> None:
    options = {
        "snapshot.time-retained": "1 h",
        "snapshot.num-retained.min": "1",
        "snapshot.num-retained.max": "7",
        "partition.expiration-time": "1 d",
        "partition.timestamp-formatter": "ddMMyyyy",
    }
    policy, plain = resolve(TABLE, Layers(table_properties=options)), resolve(TABLE, Layers())
    assert policy.hash() == plain.hash()
    assert {str(each.origin) for each in policy.ignored} == {f"table option {each}" for each in options}
    more = {"snapshot.time-retained": "90 d", "snapshot.num-retained.min": "20"}
    kept = resolve(TABLE, Layers(table_properties=more))
    assert (kept["snapshot_retention_hours"], kept["snapshot_min_retained"]) == (2160, 20)


def test_the_operator_may_trust_tables_by_pattern_and_key() -> None:
    trusted = [("lake.db.*", ("snapshot_retention_hours", "orphan_sweep_enabled"))]
    own = {
        "lakewarden.snapshot_retention_hours": "1",
        "lakewarden.orphan_sweep_enabled": "true",
        "lakewarden.delete_grace_hours": "0",
        "snapshot.time-retained": "2 h",
    }
    policy = resolve(TABLE, Layers(table_properties=own, trusted=trusted))
    assert (policy["snapshot_retention_hours"], policy["orphan_sweep_enabled"]) == (1, True)
    assert [each.key for each in policy.ignored] == ["delete_grace_hours"]
    other = resolve(TableRef.parse("lake.raw.t"), Layers(table_properties=own, trusted=trusted))
    assert other["snapshot_retention_hours"] == 720


def test_what_is_trusted_is_read_from_the_file_and_checked_early() -> None:
    values = {
        "policy": {
            "trust_table_properties": [{"pattern": "lake.db.*", "keys": ["snapshot_retention_hours"]}],
            "rewrite_branch": "f",
        }
    }
    config = Config.from_dict(values)
    validate(config.policy)
    layers = Layers.of(config.policy, table_properties={"lakewarden.snapshot_retention_hours": "1"})
    assert resolve(TABLE, layers)["snapshot_retention_hours"] == 1
    assert config.to_dict()["policy"]["trust_table_properties"] == values["policy"]["trust_table_properties"]
    with pytest.raises(PolicyError, match="trust_table_properties"):
        validate(PolicyConfig(trust_table_properties=[{"pattern": "lake.*", "keys": ["snapshot_retention"]}]))
    with pytest.raises(PolicyError, match="one call only"):
        validate(PolicyConfig(trust_table_properties=[{"pattern": "lake.*", "keys": ["partition_list"]}]))
    for wrong in (
        "lake.*",
        [{"pattern": "lake.*"}],
        [{"keys": ["x"]}],
        [{"pattern": "a", "keys": "b", "x": 1}],
    ):
        with pytest.raises(ConfigError, match="trust_table_properties"):
            Config.from_dict({"policy": {"trust_table_properties": wrong}})


@pytest.mark.parametrize("layer", ["environment", "file", "stored"])
def test_outputs_of_less_than_a_mebibyte_only_by_a_call(layer: str) -> None:
    with pytest.raises(PolicyError, match="at least 1048576"):
        resolve(TABLE, Layers(**{layer: {"rewrite_target_bytes": "1MB"}}))  # type: ignore[arg-type]
    assert resolve(TABLE, Layers(call={"rewrite_target_bytes": 4000})).int("rewrite_target_bytes") == 4000


@pytest.mark.parametrize("trusted", [(), [("*", ("rewrite_target_bytes",))]])
def test_a_file_for_each_row_cannot_be_asked_for_by_a_property(trusted: list[tuple[str, tuple[str]]]) -> None:
    own = {"lakewarden.rewrite_target_bytes": "1"}
    policy = resolve(TABLE, Layers(table_properties=own, trusted=trusted))
    assert policy.explain("rewrite_target_bytes") == "rewrite_target_bytes=134217728 (default)"
    assert "at least 1048576" in policy.ignored[0].reason


def test_a_need_that_an_ignored_value_would_have_met_says_so() -> None:
    layers = Layers(
        table_properties={"partition.expiration-time": "7 d"}, call={"partition_expiry_enabled": True}
    )
    with pytest.raises(PolicyError, match=r"partition.expiration-time.*ignored"):
        resolve(TABLE, layers)


# Every key. Whoever writes a table must not weaken a proof, a hold, a window, a budget or an operator's `false` by one.
DIRECTIONS = {
    PropertyRule.ANY: {
        "rewrite_encodings",
        "rewrite_strategy",
        "rewrite_zorder_columns",
        "rewrite_sort_columns",
        "rewrite_branch",
        "rewrite_output_spec_id",
        "rewrite_target_bytes",
        "rewrite_small_bytes",
        "rewrite_max_bytes",
        "rewrite_min_input_files",
        "rewrite_merge",
        "delete_compaction_min_deletes",
        "delete_compaction_ratio",
        "manifest_rewrite_min_manifests",
        "manifest_target_bytes",
    },
    PropertyRule.MORE: {
        "rewrite_engine",
        "rewrite_sealed_after_hours",
        "rewrite_digest",
        "snapshot_retention_hours",
        "snapshot_min_retained",
        "snapshot_max_retained",
        "snapshot_restart_hours",
        "snapshot_ref_retention_hours",
        "partition_ttl_hours",
        "orphan_grace_hours",
        "delete_grace_hours",
        "cold_retention_hours",
    },
    PropertyRule.ADD: {"protected_tags", "lineage_required_keys"},
    PropertyRule.LESS: {
        "rewrite_max_group_bytes",
        "rewrite_max_bytes_per_run",
        "rewrite_max_commits",
        "snapshot_expire_limit",
        "partition_expire_limit",
        "orphan_max_percent",
    },
    PropertyRule.OFF: {
        "maintenance_enabled",
        "rewrite_enabled",
        "delete_compaction_enabled",
        "manifest_rewrite_enabled",
        "snapshot_expiry_enabled",
        "partition_expiry_enabled",
        "orphan_sweep_enabled",
        "purge_outside_location",
        "history_compaction_enabled",
    },
    PropertyRule.ON: {"snapshot_expiry_reserved"},
    PropertyRule.UNSET: {"lineage_allowed_operations", "lineage_overwrite_operators"},
    PropertyRule.NOTHING: {
        "rewrite_where",
        "snapshot_ids",
        "partition_time_column",
        "partition_time_pattern",
        "partition_time_formatter",
        "partition_expiry_strategy",
        "partition_list",
        "partition_where",
        "partition_drop_all",
        "sweep_inventory",
        "own_places",
        "handoff_enabled",
        "handoff_catalog",
        "handoff_storage_class",
        "handoff_retention_hours",
        "handoff_deep_storage_class",
    },
}


def test_every_key_says_what_a_property_may_do() -> None:
    found = {say: {each.name for each in KEYS if each.by_property is say} for say in PropertyRule}
    assert found == DIRECTIONS, "a new key needs its direction here"


def test_what_was_ignored_is_shown() -> None:
    report = PolicyReport(by_properties(delete_grace_hours="0", rewrite_min_input_files="3"))
    told = report.to_dict()["ignored"]
    assert [(each["key"], each["value"], each["origin"]) for each in told] == [
        ("delete_grace_hours", "0", "table property")
    ]
    text = printed(report)
    assert "ignored" in text and "delete_grace_hours=24 (default)" in text
    assert "ignored" not in printed(PolicyReport(by_properties()))


@pytest.mark.parametrize(
    ("own", "file", "counts"),
    [
        ({"snapshot_min_retained": "100"}, {"snapshot_max_retained": 10}, {"snapshot_min_retained": 5}),
        ({"rewrite_target_bytes": "8GiB"}, {}, {"rewrite_target_bytes": 128 << 20}),
        ({"rewrite_max_bytes": "2MiB"}, {}, {"rewrite_max_bytes": 1 << 30}),
        (
            {"rewrite_small_bytes": "8GiB", "rewrite_max_bytes": "4GiB"},
            {},
            {"rewrite_small_bytes": 32 << 20, "rewrite_max_bytes": 1 << 30},
        ),
        ({"rewrite_strategy": "zorder"}, {}, {"rewrite_strategy": "auto"}),
        (
            {"rewrite_zorder_columns": "none"},
            {"rewrite_strategy": "zorder", "rewrite_zorder_columns": ["id", "a"]},
            {"rewrite_zorder_columns": ("id", "a")},
        ),
    ],
)
def test_a_property_that_cannot_go_with_another_value_is_ignored(
    own: dict[str, str], file: dict[str, object], counts: dict[str, object]
) -> None:
    """It would stop every job of the table."""
    found = by_properties(file, **own)
    assert {name: found[name] for name in counts} == counts
    assert {each.key for each in found.ignored} == set(counts)
    assert all(" counts" in each.reason and "table property" in each.reason for each in found.ignored)


def test_an_operators_own_values_that_disagree_are_still_refused() -> None:
    with pytest.raises(PolicyError, match="snapshot_min_retained"):
        by_properties({"snapshot_max_retained": 3}, snapshot_min_retained="100")
