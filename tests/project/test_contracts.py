"""Contracts do not change by accident: the committed files are what the code says now."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.support.documents import keys_of
from tools import contracts
from tools.contracts import CONTRACTS, FOLDER, PACKAGE, as_text, differences, frozen

AGAIN = (
    "users and other programs build on this. If the change is meant, run `python -m tools.contracts`, "
    "commit tests/contracts/ with it, and say it in CHANGELOG.md"
)


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_a_contract_is_what_was_agreed(name: str) -> None:
    now = json.loads(as_text(CONTRACTS[name]()))
    found = differences(name, frozen(name), now)
    assert not found and frozen(name) == now, "\n".join([*found, AGAIN])


def test_every_file_is_a_contract() -> None:
    assert {each.stem for each in FOLDER.glob("*.json")} == set(CONTRACTS)


def test_a_change_is_named() -> None:
    before = {"a": {"b": [1], "c": 2}, "steps": ["writing"]}
    now = {"a": {"b": [1, 2], "d": 2}, "steps": ["writing", "erased"]}
    assert differences("x", before, now) == [
        "x: /a/b: [1] -> [1, 2]",
        "x: /a/c: 2 -> gone",
        "x: /a/d: not there -> 2",
        "x: /steps/erased: not there -> True",
    ]
    assert differences("x", before, before) == []


def test_the_command_writes_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contracts, "FOLDER", tmp_path / "contracts")
    monkeypatch.setattr(contracts, "ROOT", tmp_path)
    monkeypatch.setattr(contracts, "CONTRACTS", {"one": lambda: {"key": "old"}})
    assert contracts.main(["--check"]) == 1
    assert contracts.main([]) == 0 and contracts.main(["--check"]) == 0
    monkeypatch.setattr(contracts, "CONTRACTS", {"one": lambda: {"key": "new"}})
    capsys.readouterr()
    assert contracts.main(["--check"]) == 1
    assert "one: /key: old -> new" in capsys.readouterr().err
    assert json.loads((tmp_path / "contracts" / "one.json").read_text()) == {"key": "old"}


def test_names_of_others_are_no_keys() -> None:
    document = {
        "runs": [{"id": 1, "counters": {"files": 2}}, {"why": "x"}],
        "summary": {"spark.app.id": "y"},
        "7": 1,
    }
    assert keys_of(document) == {
        "*": None,
        "runs": [{"counters": {"files": None}, "id": None, "why": None}],
        "summary": "by name",
    }


def test_lists_of_values_take_one_line() -> None:
    assert (
        as_text({"a": ["x", 1, None], "b": {"c": ["local[*]"]}}).splitlines()[1] == ' "a": [ "x", 1, null ],'
    )
    for contract in ({"a": ["x", 1], "b": []}, {"a": [{"b": [1, 2]}]}):
        assert json.loads(as_text(contract)) == contract


# ------------------------------------------------------------ each behind one module


def test_journal_steps_have_one_home() -> None:
    """No module journals a literal: recovery would not know it."""
    literal = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="step"), args=arguments):
                    texts = [each.value for each in arguments if isinstance(each, ast.Constant)]
                    literal += [
                        f"{path.relative_to(PACKAGE)}: {each}" for each in texts if isinstance(each, str)
                    ]
    assert not literal


def test_state_tables_have_one_home() -> None:
    """Tables are made in one module, and in the migrations that lead to it."""
    makes = re.compile(r"\bTable\(\s*\"")
    homes = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "versions" not in path.parts and makes.search(path.read_text("utf-8"))
    ]
    assert homes == ["state/schema.py"]


def test_documents_are_printed_in_one_place() -> None:
    """`--json` prints through the screen: one document, and nothing beside it. The worker's log lines are no document."""
    prints = []
    for path in (PACKAGE / "cli").glob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
        if any(ast.unparse(each.func) in ("json.dumps", "json.dump") for each in calls):
            prints.append(path.name)
    assert sorted(prints) == ["screen.py", "worker.py"]


def test_policy_keys_have_one_home() -> None:
    homes = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s+Key\(\"", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert homes == ["policy/keys.py"]
