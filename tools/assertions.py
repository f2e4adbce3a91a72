"""`python -m tools.assertions [--tree FOLDER] [--cases]` prints what the tests assert, one line each.

A line has the name of the function and the expression, without the file: a test that moved to another file prints the same
line. The lines are sorted, and a line that occurs twice is printed twice. Compare two trees with

    python -m tools.assertions --tree ../before > before.txt
    python -m tools.assertions > after.txt
    diff before.txt after.txt

Helpers of the tests are read too, because they assert as well. `--cases` adds the values of `parametrize` and `given`.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# These calls fail by themselves where the code does not do what they name.
_CHECKS = {"raises", "warns", "fail", "wait_until", "assume"}
_CASES = {"parametrize", "given", "example"}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.assertions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout (default: this one)")
    parser.add_argument("--cases", action="store_true", help="print the values of parametrize and given too")
    asked = parser.parse_args(arguments)
    print("\n".join(assertions(asked.tree, cases=asked.cases)))


def assertions(tree: Path, *, cases: bool = False) -> list[str]:
    """Every assertion below `tests/`, as `function: expression`."""
    files = sorted((tree / "tests").rglob("*.py"))
    return sorted(line for path in files for line in _of_file(path, cases))


def _of_file(path: Path, cases: bool) -> Iterator[str]:
    yield from _of_body(ast.parse(path.read_text("utf-8")), "module", cases)


def _of_body(node: ast.AST, name: str, cases: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inside = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = child.name if name == "module" else f"{name}.{child.name}"
        if found := _text(child, cases):
            yield f"{inside}: {found}"
        yield from _of_body(child, inside, cases)


def _text(node: ast.AST, cases: bool) -> str:
    """The assertion that this node is, without its message; empty for any other node."""
    if isinstance(node, ast.Assert):
        return f"assert {ast.unparse(node.test)}"
    if isinstance(node, ast.Call) and _called(node) in _CHECKS | (_CASES if cases else set()):
        return ast.unparse(node)
    return ""


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


if __name__ == "__main__":
    main()
