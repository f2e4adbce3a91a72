"""What a function reaches, from the source alone: the functions and classes of the package it names, and those they name.

Names in annotations are not followed. Of a class that a function names, or that an argument is annotated with, all methods
are followed: which of them is called is not known from the source.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "lakewarden"

# Libraries and modules that ask the world: the clock, files, processes, the network, the database, Spark and the JVM.
ASK_THE_WORLD = frozenset(
    {
        *("time", "os", "io", "pathlib", "shutil", "tempfile", "subprocess", "socket", "threading", "random", "uuid"),
        *("urllib", "httpx", "sqlalchemy", "alembic", "pyspark", "py4j", "obstore", "botocore", "pyarrow.parquet"),
        *("pyarrow.fs", "lakewarden.clock", "lakewarden.spark", "lakewarden.storage", "lakewarden.lake"),
        *("lakewarden.tables.jvm", "lakewarden.state.database", "lakewarden.client"),
    }
)  # fmt: skip
WORLDLY_CALLS = frozenset({"open", "input", "print", "exec", "eval", "__import__"})
ASKS_THE_TIME = re.compile(r"(^|\.)(clock|datetime|date)\.(now|utcnow|today)$")
OF_SPARK = frozenset({"_jvm", "_jdf", "_sc", "sparkContext"})

Callable = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A module's functions, classes and imports."""

    name: str
    tree: ast.Module
    top: dict[str, ast.AST]
    imports: dict[str, tuple[str, str]]  # local name to (module, name there or "")


@cache
def source(module: str) -> Source | None:
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return read(module, path.read_text("utf-8")) if path.exists() else None


def read(module: str, text: str) -> Source:
    tree = ast.parse(text)
    top: dict[str, ast.AST] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                top[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                top[name] = node
    imports: dict[str, tuple[str, str]] = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            for alias in each.names:
                imports[alias.asname or alias.name.split(".")[0]] = (alias.name, "")
        elif isinstance(each, ast.ImportFrom):
            for alias in each.names:
                imports[alias.asname or alias.name] = (each.module or "", alias.name)
    return Source(module, tree, top, imports)


def asks_the_world(start: Source, function: str) -> list[str]:
    """Everything that `function` reaches and that is no calculation, as `module.function: what`."""
    found: list[str] = []
    done: set[tuple[str, str]] = set()
    left = [(start, function)]
    while left:
        module, name = left.pop()
        if (module.name, name) in done or name not in module.top:
            continue
        done.add((module.name, name))
        node = module.top[name]
        for used in _used(node):
            reason, following = _follow(module, used)
            if reason:
                found.append(f"{module.name}.{name}: {reason}")
            if following is not None:
                left.append(following)
    return sorted(set(found))


def _used(node: ast.AST) -> Iterator[str]:
    """Dotted names in the body, and the classes that arguments are annotated with."""
    if isinstance(node, Callable):
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            yield from _names(argument.annotation)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            yield from _names(default)
        own = _locals(node)
        for part in (*node.decorator_list, *node.body):
            for name in _body(part):
                first, *rest = name.split(".")
                if first not in own or OF_SPARK & set(rest):
                    yield name
    elif isinstance(node, ast.ClassDef):
        for part in (*node.bases, *node.body):
            yield from _used(part) if isinstance(part, Callable) else _body(part)
    else:
        yield from _body(node)


def _locals(function: Callable) -> set[str]:
    given = function.args
    arguments = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    stored = (each for each in ast.walk(function) if isinstance(each, ast.Name))
    return arguments | {each.id for each in stored if isinstance(each.ctx, ast.Store)}


def _body(node: ast.AST) -> Iterator[str]:
    """Without the annotations of locals and of fields."""
    if isinstance(node, ast.Attribute | ast.Name):
        yield _dotted(node)
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name):
            yield from _body(node)
        return
    if isinstance(node, Callable):
        yield from _used(node)
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _body(each)


def _names(node: ast.AST | None) -> Iterator[str]:
    if node is not None:
        yield from (_dotted(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _follow(module: Source, used: str) -> tuple[str, tuple[Source, str] | None]:
    """Why the name asks the world, or where to read on."""
    first, *rest = used.split(".")
    if ASKS_THE_TIME.search(used) or OF_SPARK & set(rest):
        return used, None
    if first in module.top:
        return "", (module, first)
    if first in WORLDLY_CALLS and not rest and hasattr(builtins, first):
        return used, None
    if first not in module.imports:
        return "", None
    origin, name = module.imports[first]
    whole = f"{origin}.{name}" if name else origin
    if any(f"{whole}.".startswith(f"{each}.") for each in ASK_THE_WORLD):
        return f"{used} is of {whole}", None
    if not origin.startswith(f"{PACKAGE}.") and origin != PACKAGE:
        return "", None
    target = source(whole)
    if target is not None:  # a module was imported: its function comes behind the dot
        return "", (target, rest[0]) if rest else None
    target = source(origin)
    return "", None if target is None else (target, name)
