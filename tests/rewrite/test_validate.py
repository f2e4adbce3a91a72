"""The commit hook: every rule, all violations at once, and nothing but its own answer whatever it is given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.lineage.summary import Lineage
from lakewarden.lineage.validate import Requirements, Violation, validate, validate_all
from lakewarden.model.run import Trigger
from lakewarden.policy.keys import key

DEFAULT = Requirements(key("lineage_required_keys").default)
FULL = {
    "writer.id": "ingest",
    "writer.commit_hash": "ab12",
    "writer.invocation_id": "run-7",
    "lineage.operation": "append",
}


def broken(summary: dict[str, str], requirements: Requirements = DEFAULT) -> dict[str, str]:
    return {each.key: each.rule for each in validate(summary, requirements)}


def test_a_commit_that_says_everything_goes_ahead() -> None:
    assert validate(FULL, DEFAULT) == ()
    assert validate({}, Requirements()) == ()


def test_our_own_commits_say_everything() -> None:
    for trigger in (
        Trigger("schedule"),
        Trigger("manual", "ana"),
        Trigger("incident-response", "ana", "INC-1"),
    ):
        lineage = Lineage("compaction", "run-1", "policy", trigger, [1], 10, 100)
        assert validate(lineage.summary(), DEFAULT) == ()


def test_every_missing_key_is_named_at_once() -> None:
    assert set(broken({})) == set(FULL)
    assert set(broken({**FULL, "writer.id": "  "})) == {"writer.id"}
    first = validate({}, DEFAULT)[0]
    assert str(first) == "writer.id is missing: the table requires it of every commit"
    assert first.to_dict() == {"key": "writer.id", "value": None, "rule": first.rule}


def test_operations_are_those_the_table_allows() -> None:
    only = Requirements(operations=frozenset({"append", "compaction"}))
    assert validate(FULL, only) == ()
    found = validate({**FULL, "lineage.operation": "truncate"}, only)
    assert found == (Violation("lineage.operation", "truncate", "the table allows append, compaction"),)


@pytest.mark.parametrize("operation", ["overwrite", "delete"])
def test_a_commit_that_takes_rows_is_no_append(operation: str) -> None:
    assert "name what it does" in broken({**FULL, "operation": operation})["lineage.operation"]
    assert not broken({**FULL, "operation": "append"})


def test_triggers_have_what_their_kind_needs() -> None:
    assert broken({**FULL, "trigger.type": "manual"}) == {
        "trigger.operator": "a manual commit names who triggered it"
    }
    assert set(broken({**FULL, "trigger.type": "incident-response"})) == {"trigger.ticket"}
    assert "schedule, manual" in broken({**FULL, "trigger.type": "mood"})["trigger.type"]
    assert not broken({**FULL, "trigger.type": "manual", "trigger.operator": "ana"})
    assert not broken({**FULL, "trigger.type": "schedule"})


def test_overwrites_are_for_permitted_operators_with_a_ticket() -> None:
    overwrite = {**FULL, "lineage.operation": "overwrite"}
    assert set(broken(overwrite)) == {"trigger.operator", "trigger.ticket"}
    ben = {**overwrite, "trigger.operator": "ben", "trigger.ticket": "INC-1"}
    assert not broken(ben)
    only_ana = Requirements(overwrite_operators=frozenset({"ana"}))
    assert broken(ben, only_ana) == {"trigger.operator": "overwrites are allowed only for ana"}
    assert not broken({**ben, "trigger.operator": "ana"}, only_ana)
    assert broken(ben, Requirements(overwrite_operators=frozenset())) == {
        "trigger.operator": "the table allows no overwrites"
    }


NAMES = (
    st.sampled_from([*FULL, "trigger.type", "trigger.operator", "trigger.ticket", "operation"]) | st.text()
)
VALUES = st.sampled_from(["manual", "incident-response", "overwrite", "append", "", " "]) | st.text()


@given(
    st.dictionaries(NAMES, VALUES),
    st.lists(NAMES).map(tuple),
    st.none() | st.frozensets(VALUES),
    st.none() | st.frozensets(VALUES),
)
def test_whatever_it_is_given_it_answers(
    summary: dict[str, str],
    keys: tuple[str, ...],
    operations: frozenset[str] | None,
    operators: frozenset[str] | None,
) -> None:
    requirements = Requirements(keys, operations, operators)
    found = validate(summary, requirements)
    assert len(set(found)) == len(found)
    for each in found:
        assert each.value == summary.get(each.key) and each.rule and each.key in str(each)
    missing = {each.key for each in found if each.rule.startswith("the table requires")}
    assert missing == {name for name in keys if not summary.get(name, "").strip()}


@pytest.mark.parametrize("word", ["overwrite", "Overwrite", " overwrite ", "backfill", "replay", "delete"])
def test_an_overwrite_is_one_by_whatever_word(word: str) -> None:
    commit = {**FULL, "operation": "overwrite", "lineage.operation": word}
    assert set(broken(commit)) >= {"trigger.operator", "trigger.ticket"}
    named = {**commit, "trigger.operator": "ana", "trigger.ticket": "INC-1"}
    assert broken(named) == {}


def test_a_word_that_the_table_lists_is_taken_at_its_word() -> None:
    merges = Requirements(DEFAULT.keys, frozenset({"append", "merge"}))
    assert broken({**FULL, "operation": "overwrite", "lineage.operation": "merge"}, merges) == {}
    both = Requirements(DEFAULT.keys, frozenset({"overwrite"}))
    assert broken({**FULL, "operation": "overwrite", "lineage.operation": "overwrite"}, both)


def test_rows_out_and_rows_in_are_an_overwrite_together() -> None:
    out = {**FULL, "operation": "delete", "lineage.operation": "delete"}
    into = {**FULL, "operation": "append"}
    assert validate(out, DEFAULT) == validate(into, DEFAULT) == ()
    assert {each.key for each in validate_all((out, into), DEFAULT)} == {"trigger.operator", "trigger.ticket"}


@given(
    st.dictionaries(
        st.text(max_size=20) | st.sampled_from([*FULL, "operation", "trigger.type", "trigger.operator"]),
        st.none()
        | st.integers()
        | st.lists(st.integers(), max_size=2)
        | st.dictionaries(st.text(), st.text(), max_size=1),
    )
)
def test_what_is_no_text_is_told_and_nothing_is_raised(odd: dict[str, Any]) -> None:
    strict = Requirements(DEFAULT.keys, frozenset({"append"}), frozenset({"ana"}))
    found = {each.key for each in validate(odd, strict)}
    assert {str(key) for key in odd} <= found


def test_a_message_has_an_end() -> None:
    (found,) = (each for each in validate({**FULL, "trigger.type": "x" * 10_000_000}, DEFAULT))
    assert len(str(found)) < 500 and len(found.to_dict()["value"] or "") < 300
