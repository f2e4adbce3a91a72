"""A table's own properties are texts that anyone who may alter the table can set: odd ones must not stop or loosen a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakewarden.deletion.holds import Holds
from lakewarden.errors import Refused
from lakewarden.jobs.expire import plan as expire
from lakewarden.model.table import Ref
from lakewarden.policy.resolve import Layers, Policy, resolve
from lakewarden.rewrite.kernel import rewrite
from lakewarden.rewrite.write.encoding import WriteOptions, odd_properties
from lakewarden.tables.paimon.arrow_schema import parquet_properties
from tests.expire.test_expire_plan import DAY, expired, snapshots, table
from tests.rewrite.test_pages import WIDE, source, task, wide
from tests.support.tables import NOW, TABLE, policy

GROUP = "write.parquet.row-group-size-bytes"
DEFAULTS = WriteOptions.from_properties({})
ODD = ["abc", "", "0", "-5", "1.5", "1e6", "1_000", " 7", "99999999999999999999", "٣"]


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize(
    "name", ["row-group-size-bytes", "page-size-bytes", "page-row-limit", "dict-size-bytes"]
)
def test_a_tuning_property_that_is_no_number_is_ignored_and_named(name: str, text: str) -> None:
    found = {f"write.parquet.{name}": text}
    assert WriteOptions.from_properties(found) == DEFAULTS
    (said,) = odd_properties(found)
    assert f"write.parquet.{name}" in said and repr(text) in said


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("row-group-size-bytes", 1 << 20),
        ("page-size-bytes", 4 << 10),
        ("page-row-limit", 100),
        ("dict-size-bytes", 1 << 10),
    ],
)
def test_a_tuning_property_has_a_floor(name: str, floor: int) -> None:
    fields = {"row-group-size-bytes": "row_group_bytes", "page-size-bytes": "page_bytes", "page-row-limit": "page_rows", "dict-size-bytes": "dictionary_bytes"}  # fmt: skip
    for told, used in ((1, floor), (floor - 1, floor), (floor, floor), (floor + 1, floor + 1)):
        found = {f"write.parquet.{name}": str(told)}
        assert getattr(WriteOptions.from_properties(found), fields[name]) == used
        assert bool(odd_properties(found)) == (told < floor)


@pytest.mark.parametrize(
    ("codec", "level", "used"),
    [("zstd", "abc", None), ("zstd", "9", 9), ("zstd", "400", None), ("gzip", "6", 6), ("gzip", "77", None)],
)
def test_a_level_that_the_codec_does_not_have_is_ignored(codec: str, level: str, used: int | None) -> None:
    found = {"write.parquet.compression-codec": codec, "write.parquet.compression-level": level}
    assert WriteOptions.from_properties(found).level == used
    assert bool(odd_properties(found)) == (used is None)


def test_a_codec_without_levels_ignores_one_in_silence() -> None:
    found = {"write.parquet.compression-codec": "snappy", "write.parquet.compression-level": "3"}
    assert odd_properties(found) == []


def test_row_groups_of_one_byte_are_not_written(tmp_path: Path) -> None:
    options = WriteOptions.from_properties({GROUP: "1"})
    rewrite(
        task(
            tmp_path / "out.parquet", [source(tmp_path / "in.parquet", wide(0, 5_000))], WIDE, options=options
        )
    )
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 1


def test_a_size_of_paimon_that_is_none_is_ignored() -> None:
    found = parquet_properties({"file.block-size": "many"})
    assert WriteOptions.from_properties(found).row_group_bytes == DEFAULTS.row_group_bytes
    assert any("'many'" in each for each in odd_properties(found))


# --- expire -----------------------------------------------------------------------------------------------------------

KEPT, AGE, REFS = (
    "history.expire.min-snapshots-to-keep",
    "history.expire.max-snapshot-age-ms",
    "history.expire.max-ref-age-ms",
)


def old(**properties: str) -> Any:
    return table(snapshots(20, DAY, newest=400 * DAY), Ref("t", "tag", 3), properties=properties)


def told(**properties: str) -> Policy:
    """The policy of a table with these properties; its operator said nothing."""
    return resolve(TABLE, Layers(table_properties=properties))


@pytest.mark.parametrize("key", [KEPT, AGE, REFS])
@pytest.mark.parametrize("text", [each for each in ODD if each != "0"])
def test_expire_refuses_a_retention_that_it_cannot_read(key: str, text: str) -> None:
    odd = old(**{key: text})
    with pytest.raises(Refused) as caught:
        expire.check(odd, NOW)
    said = caught.value.message
    assert f"its property {key} must be" in said and repr(text) in said and "expire" in said
    # Whoever plans without asking first keeps more, never less.
    made = expire.plan(odd, told(**{key: text}), Holds(), NOW)
    assert expired(made) <= expired(expire.plan(old(), policy(), Holds(), NOW))
    if key == REFS:
        assert not expire.refs_to_drop(made, odd)
    else:
        assert not expired(made)


def test_an_age_that_no_calendar_has_keeps_everything() -> None:
    """Iceberg reads a long: its largest is what people write for `never`."""
    never = old(**{AGE: str(2**63 - 1)})
    expire.check(never, NOW)
    assert not expired(expire.plan(never, policy(), Holds(), NOW))
    kept = old(**{REFS: str(2**63 - 1)})
    expire.check(kept, NOW)
    trusted = resolve(
        TABLE, Layers(table_properties=kept.properties, trusted=[("*", ["snapshot_ref_retention_hours"])])
    )
    assert not trusted.ignored
    assert not expire.refs_to_drop(expire.plan(kept, trusted, Holds(), NOW), kept)


def test_a_ref_age_of_nothing_is_refused() -> None:
    with pytest.raises(Refused, match=REFS):
        expire.check(old(**{REFS: "0"}), NOW)


def test_properties_that_make_sense_are_followed() -> None:
    expire.check(old(**{KEPT: "12", AGE: "0", REFS: "1"}), NOW)
    assert len(expired(expire.plan(old(**{KEPT: "12"}), policy(), Holds(), NOW))) == 7


def test_a_ref_age_of_the_table_drops_no_tag_unless_the_operator_says_so() -> None:
    """Anyone who writes the table can set it, and tags are the backups of the operator."""
    found = old(**{REFS: "1"})
    made = told(**found.properties)
    assert not expire.refs_to_drop(expire.plan(found, made, Holds(), NOW), found)
    assert 3 not in expired(expire.plan(found, made, Holds(), NOW))
    (ignored,) = made.ignored
    assert (ignored.key, str(ignored.origin)) == ("snapshot_ref_retention_hours", f"table option {REFS}")
    assert (
        "only more than the operator's value" in ignored.reason and "trust_table_properties" in ignored.reason
    )

    trusted = Layers(table_properties=found.properties, trusted=[("*", ["snapshot_ref_retention_hours"])])
    for rules in (resolve(TABLE, trusted), policy(snapshot_ref_retention_hours=24)):
        dropped = expire.plan(found, rules, Holds(), NOW)
        assert expire.refs_to_drop(dropped, found) == {"t": 3} and 3 in expired(dropped)
        assert "snapshot_ref_retention_hours=" in str(dropped.actions[0])


def test_a_ref_age_of_the_refs_own_counts_whatever_the_policy_says() -> None:
    chain = snapshots(20, DAY, newest=400 * DAY)
    ends = table(chain, Ref("t", "tag", 3, max_age_ms=1), Ref("u", "tag", 4, max_age_ms=2**63 - 1))
    for rules in (policy(), policy(snapshot_ref_retention_hours=24)):
        assert expire.refs_to_drop(expire.plan(ends, rules, Holds(), NOW), ends) == {"t": 3}


def test_what_the_operator_says_about_refs_is_about_tags_and_branches_of_iceberg() -> None:
    chain = snapshots(20, DAY, newest=400 * DAY)
    paimon = replace(table(chain, Ref("t", "tag", 3), Ref("job", "consumer", 3)), format="paimon")
    made = expire.plan(paimon, policy(snapshot_ref_retention_hours=24), Holds(), NOW)
    assert not expire.refs_to_drop(made, paimon)
