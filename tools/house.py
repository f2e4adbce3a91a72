"""`python -m tools.house [--json] [--tree FOLDER] [--no-walks] [--walk NAME]` measures the shape of the code.

The first part reads the source of `lakewarden/`: modules, lines, functions, folders, classes, forwarders. The second part
(`tools/walks.py`) runs five walks on tiny tables and counts the calls between files. `--tree` measures another checkout, for
example a worktree of an older commit, so that before and after can be compared.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "lakewarden"
FOLDER_LIMIT = 25
_CLASSES_SHOWN = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One Python file of the package. `name` is dotted, as an import names it."""

    name: str
    path: Path
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Local name to (module, name there), for every `from lakewarden… import …`."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                for alias in node.names:
                    found[alias.asname or alias.name] = (node.module or "", alias.name)
        return found

    def imports(self) -> Iterator[str]:
        """Dotted names this module may import: modules, or names in modules."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(tree: Path) -> list[Module]:
    """Every module of the package in this checkout; migrations are numbered scripts and do not count."""
    files = sorted(path for path in (tree / PACKAGE).rglob("*.py") if "versions" not in path.parts)
    return [
        Module(_dotted_name(tree, path), path.relative_to(tree), path.read_text("utf-8")) for path in files
    ]


def _dotted_name(tree: Path, path: Path) -> str:
    parts = path.relative_to(tree).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def function_lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_forwarder(function: Function) -> bool:
    """Whether the body only calls one other function with the same arguments. A docstring may stand before the call."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if len(body) != 1:
        return False
    match body[0]:
        case ast.Return(value=ast.Await(value=ast.Call() as call)) | ast.Return(value=ast.Call() as call):
            pass
        case ast.Expr(value=ast.Await(value=ast.Call() as call)) | ast.Expr(value=ast.Call() as call):
            pass
        case _:
            return False
    return _passed(call) == _parameters(function) and _names_a_function(call.func)


def _parameters(function: Function) -> list[str]:
    given = function.args
    named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    named += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
    return sorted(name for name in named if name not in ("self", "cls"))


def _passed(call: ast.Call) -> list[str] | None:
    """Names handed on, `self` apart; None when something else than a name is handed on."""
    values = [each.value if isinstance(each, ast.Starred) else each for each in call.args]
    values += [each.value for each in call.keywords]
    names = [each.id for each in values if isinstance(each, ast.Name)]
    return sorted(name for name in names if name != "self") if len(names) == len(values) else None


def _names_a_function(called: ast.expr) -> bool:
    """`f(…)`, `a.b.f(…)`: not the result of another call, and not a class, which is made rather than forwarded to."""
    last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    while isinstance(called, ast.Attribute):
        called = called.value
    return isinstance(called, ast.Name) and not last.lstrip("_")[:1].isupper()


def folder_sizes(found: Sequence[Module]) -> Counter[str]:
    """Python files right inside each folder, `__init__.py` too."""
    return Counter(str(each.path.parent) for each in found)


def public_methods(found: Sequence[Module]) -> dict[str, int]:
    """Class to its public methods and properties, those of its bases in the package too."""
    by_name = {each.name: each for each in found}
    return {
        f"{module.name}.{name}": len(_methods(by_name, module, name))
        for module in found
        for name in module.classes
    }


def _methods(by_name: Mapping[str, Module], module: Module, name: str) -> set[str]:
    node = module.classes[name]
    own = {each.name for each in node.body if isinstance(each, Function) and not each.name.startswith("_")}
    for base in node.bases:
        source, base_name = module.imported.get(_plain(base), (module.name, _plain(base)))
        if (
            source in by_name
            and base_name in by_name[source].classes
            and (source, base_name) != (module.name, name)
        ):
            own |= _methods(by_name, by_name[source], base_name)
    return own


def _plain(base: ast.expr) -> str:
    """The name of a base class without its type arguments."""
    base = base.value if isinstance(base, ast.Subscript) else base
    return base.id if isinstance(base, ast.Name) else ""


def repeated_class_names(found: Sequence[Module]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for module in found:
        for name in module.classes:
            if not name.startswith("_"):
                places[name].append(module.name)
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def importers(found: Sequence[Module]) -> dict[str, set[str]]:
    """Module to the modules of the package that import it or a name of it."""
    names = {each.name for each in found}
    users: dict[str, set[str]] = {name: set() for name in names}
    for module in found:
        for target in module.imports():
            # `from a.b import c` is yielded as a.b and a.b.c: where c is a module, c is imported and its package is not.
            users.get(target, set()).add(module.name)
        for package, name in module.imported.values():
            if f"{package}.{name}" in names and not _also_imports_a_name_of(module, package, names):
                users.get(package, set()).discard(module.name)
    return users


def _also_imports_a_name_of(module: Module, package: str, names: set[str]) -> bool:
    return any(
        source == package and f"{source}.{name}" not in names for source, name in module.imported.values()
    )


def shape(tree: Path) -> dict[str, Any]:
    """Every static measure of a checkout, as `--json` prints it."""
    found = modules(tree)
    lengths = {
        f"{module.name}.{function.name}": function_lines(function)
        for module in found
        for function in module.functions
    }
    largest_function = max(lengths, key=lengths.__getitem__)
    folders, methods = folder_sizes(found), public_methods(found)
    largest_classes = sorted(methods, key=lambda name: (-methods[name], name))[:_CLASSES_SHOWN]
    forwarders = [
        f"{module.name}.{each.name}" for module in found for each in module.functions if is_forwarder(each)
    ]
    all_lengths = [function_lines(each) for module in found for each in module.functions]
    return {
        "modules": len(found),
        "lines": sum(each.lines for each in found),
        "median_module_lines": median(each.lines for each in found),
        "functions": len(all_lengths),
        "median_function_lines": median(all_lengths),
        "largest_function": {"name": largest_function, "lines": lengths[largest_function]},
        "largest_folder": dict(folders.most_common(1)),
        "folders_over_limit": {name: size for name, size in folders.most_common() if size > FOLDER_LIMIT},
        "largest_classes": {name: methods[name] for name in largest_classes},
        "repeated_class_names": repeated_class_names(found),
        "forwarders": sorted(forwarders),
        "one_importer": sorted(name for name, users in importers(found).items() if len(users) == 1),
    }


def text(measured: Mapping[str, Any]) -> str:
    """The same for people: counts, and the names where there are few."""
    largest = measured["largest_function"]
    rows = [
        ("modules", measured["modules"]),
        ("lines", f"{measured['lines']:,}"),
        ("median lines per module", measured["median_module_lines"]),
        ("functions", f"{measured['functions']:,}"),
        ("median lines per function", measured["median_function_lines"]),
        ("largest function", f"{largest['lines']} lines, {largest['name']}"),
        ("largest folder", _listed(measured["largest_folder"])),
        (f"folders over {FOLDER_LIMIT}", _listed(measured["folders_over_limit"]) or "none"),
        ("public methods of the largest classes", _listed(measured["largest_classes"])),
        ("public class names in two or more modules", len(measured["repeated_class_names"])),
        ("functions that only forward", len(measured["forwarders"])),
        ("modules with one importer", len(measured["one_importer"])),
    ]
    lines = [f"{name:<44}{value}" for name, value in rows]
    for name, walk in measured.get("walks", {}).items():
        lines.append(f"{'walk: ' + name:<44}{_walk_text(walk)}")
    return "\n".join(lines)


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def _walk_text(walk: Mapping[str, Any]) -> str:
    if "error" in walk:
        return f"not measured: {walk['error']}"
    pairs, new = walk["pairs"], walk["new"]
    beside = f"{new['hops']} over {new['files']} not in compact; " if new["hops"] < walk["hops"] else ""
    return (
        f"{walk['hops']} hops over {walk['files']} files, {walk['back']} of them back into a file left before; "
        f"{beside}{pairs['hops']} pairs of caller and callee over {pairs['files']} files"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document, with all names and hops"
    )
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="the checkout to measure; this one by default"
    )
    parser.add_argument("--no-walks", action="store_true", help="only read the source; do not start Spark")
    parser.add_argument("--walk", metavar="NAME", help="only this walk, as `compact` or `table page`")
    options = parser.parse_args(arguments)
    tree = options.tree.resolve()
    measured = shape(tree)
    if not options.no_walks:
        # The walks import lakewarden and tests from the measured checkout. So do Spark's Python workers: they look in the
        # current folder first, then in PYTHONPATH.
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        sys.path.append(str(ROOT))
        from tools.walks import measure

        measured["walks"] = measure(tree, options.walk)
    print(json.dumps(measured, indent=2) if options.json else text(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
