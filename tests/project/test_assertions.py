"""What `tools.assertions` prints, on a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.assertions import assertions, main

BEFORE = """
import pytest

def helper(found):
    assert found == 1, "a message is no part of it"

@pytest.mark.parametrize("n", [1, 2])
def test_it(n):
    with pytest.raises(ValueError, match="no"):
        work()
    assert n
    assert n

class TestMore:
    def test_it(self):
        assert True
"""
FOUND = [
    "TestMore.test_it: assert True",
    "helper: assert found == 1",
    "test_it: assert n",
    "test_it: assert n",
    "test_it: pytest.raises(ValueError, match='no')",
]


def _tree(folder: Path, *files: tuple[str, str]) -> Path:
    for name, text in files:
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def test_a_test_that_moved_prints_the_same_lines(tmp_path: Path) -> None:
    assert assertions(_tree(tmp_path / "before", ("unit/test_a.py", BEFORE))) == FOUND
    assert assertions(_tree(tmp_path / "after", ("purge/test_b.py", BEFORE))) == FOUND


def test_an_assertion_that_is_lost_is_seen(tmp_path: Path) -> None:
    less = BEFORE.replace("    assert n\n", "", 1)
    assert assertions(_tree(tmp_path, ("test_a.py", less))) == [*FOUND[:2], *FOUND[3:]]


def test_the_cases_are_printed_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--cases", "--tree", str(_tree(tmp_path, ("test_a.py", BEFORE)))])
    assert "test_it: pytest.mark.parametrize('n', [1, 2])" in capsys.readouterr().out.splitlines()
