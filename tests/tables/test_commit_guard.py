"""Nothing changes a table without asking the guard first: every method of every writer, and no way around the writers."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.errors import CommitLost, CommitRefused, LineageRejected
from lakewarden.jobs.commit_guard import OutsideRuns, RunGuard
from lakewarden.lineage.validate import Requirements
from lakewarden.model.table import TableRef
from lakewarden.tables.iceberg.writer import IcebergColdWriter, IcebergWriter
from lakewarden.tables.interface import ColdWriter, CommitGuard, TableWriter
from lakewarden.tables.paimon.cold import PaimonColdWriter
from lakewarden.tables.paimon.writer import PaimonWriter
from tests.test_architecture import dotted, imports, modules, part, tree_of

REF = TableRef("lake", ("db",), "events")
SUMMARY = {"lineage.run_id": "r1"}
WRITERS: tuple[tuple[type[Any], type[Any]], ...] = (
    (IcebergWriter, TableWriter),
    (IcebergColdWriter, ColdWriter),
    (PaimonWriter, TableWriter),
    (PaimonColdWriter, ColdWriter),
)
# Hands out another writer, behind the same guard.
HANDS_ON = "cold"


class Refused(Exception):
    pass


class Refusing:
    """A guard that lets nothing through, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[TableRef, Mapping[str, str] | None]] = []

    def check(self, table: TableRef, summary: Mapping[str, str] | None) -> None:
        self.asked.append((table, summary))
        raise Refused


def public(kind: type[Any]) -> set[str]:
    return {name for each in kind.__mro__[:-1] for name in vars(each) if not name.startswith("_")}


def committing(kind: type[Any]) -> list[str]:
    return sorted(public(kind) - {HANDS_ON})


def given(method: Callable[..., Any]) -> list[Any]:
    """Something for every argument. What a table, a view, a home or a rewrite is asked for its name has one."""
    named = SimpleNamespace(ref=REF, table=REF, summary=SUMMARY)
    known: dict[str, Any] = {"TableRef": REF, "Mapping[str, str]": SUMMARY, "str": REF.catalog}
    wanted = list(inspect.signature(method).parameters.values())[1:]
    return [known.get(str(each.annotation), named) for each in wanted]


def asks_first(kind: type[Any], name: str) -> tuple[TableRef, Mapping[str, str] | None]:
    """The writer has nothing but a guard: whoever touches anything else before it asks fails here."""
    guard, writer = Refusing(), object.__new__(kind)
    writer._guard = guard
    method = getattr(kind, name)
    with pytest.raises(Refused):
        method(writer, *given(method))
    (asked,) = guard.asked
    return asked


METHODS = [(kind, name) for kind, _ in WRITERS for name in committing(kind)]


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=[f"{kind.__name__}.{name}" for kind, name in METHODS])
def test_every_committing_method_asks_the_guard_first(kind: type[Any], name: str) -> None:
    table, summary = asks_first(kind, name)
    assert table in (REF, TableRef(REF.catalog, REF.namespace, REF.name))
    told = [str(each.annotation) for each in inspect.signature(getattr(kind, name)).parameters.values()]
    makes_a_snapshot = "Mapping[str, str]" in told or "Rewrite" in told
    assert summary == (SUMMARY if makes_a_snapshot else None), "the guard sees what the snapshot will say"


def test_a_method_that_forgets_the_guard_is_found() -> None:
    class Forgetful(IcebergWriter):
        def truncate(self, table: TableRef) -> None:
            self._catalogs.load(table)

        def late(self, table: TableRef) -> None:
            self._catalogs.load(table)
            self._guard.check(table, None)

    assert set(committing(Forgetful)) - set(committing(IcebergWriter)) == {"truncate", "late"}
    for name in ("truncate", "late"):
        with pytest.raises(AttributeError):
            asks_first(Forgetful, name)


@pytest.mark.parametrize(("kind", "protocol"), WRITERS)
def test_a_writer_has_what_its_protocol_has_and_no_more(kind: type[Any], protocol: type[Any]) -> None:
    assert public(kind) == {name for name in vars(protocol) if not name.startswith("_")}


def test_the_writer_of_cold_tables_has_the_same_guard() -> None:
    guard: CommitGuard = Refusing()
    for cold in (IcebergWriter(guard, None, Any).cold(), PaimonWriter(guard, Any, Any).cold()):  # type: ignore[arg-type]
        assert cold._guard is guard  # type: ignore[attr-defined]


# ------------------------------------------------------------ no way around the writers

# Calls after which a table may be another one, by their last two names.
DOORS = {
    "watching.watch",
    "watching.watchKeepingFiles",
    "catalogs.committing",
    "catalogs.make",
    "expiry.expire",
    "cold.make",
    "cold.replace",
    "cold.put",
    "commit.commit",
    "bridge.dropSnapshots",
    "bridge.dropChangelogs",
    *(f"{helper}.{do}Tag" for helper in ("refs", "bridge") for do in ("create", "retain", "drop")),
}
GUARDED = {kind.__name__ for kind, _ in WRITERS}
# One commit each, made and used up inside a committing function.
PARTS = {"Sending", "RewriteCommit"}
# Whatever it has that changes a table is itself a door: `catalogs.committing`, `catalogs.make`.
CATALOGS = {"IcebergCatalogs", "PaimonCatalogs"}
Name = tuple[str, str]


def functions(module: str, tree: ast.Module) -> Iterator[tuple[Name, str, ast.AST]]:
    """Every function and method: its name, its class, and its body."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield (module, node.name), "", node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    yield (module, f"{node.name}.{each.name}"), node.name, each


def known_names(module: str, tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def used(module: str, owner: str, node: ast.AST, known: Mapping[str, str]) -> Iterator[Name]:
    """Functions and classes that a body names, as (module, name)."""
    for statement in getattr(node, "body", ()):
        for each in ast.walk(statement):
            name = dotted(each) if isinstance(each, ast.Name | ast.Attribute) else ""
            first, _, rest = name.partition(".")
            if first == "self" and rest:
                yield module, f"{owner}.{rest}"
            elif first in known:
                source, _, last = f"{known[first]}.{rest}".rstrip(".").rpartition(".")
                yield source, last
            elif name:
                yield module, name


def opens(node: ast.AST) -> bool:
    calls = (dotted(each.func) for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(".".join(each.replace("_catalogs", "catalogs").split(".")[-2:]) in DOORS for each in calls)


def unguarded(trees: Mapping[str, ast.Module]) -> set[Name]:
    """Functions and methods that commit, or call one that does. Writers are not among them: they ask the guard."""
    bodies = [
        (name, owner, node)
        for module, tree in trees.items()
        for name, owner, node in functions(module, tree)
        if owner not in {*GUARDED, *CATALOGS}
    ]
    uses = {
        name: set(used(name[0], owner, node, known_names(name[0], trees[name[0]])))
        for name, owner, node in bodies
    }
    found = {name for name, _, node in bodies if opens(node)}
    while True:
        classes = {(module, name.split(".")[0]) for module, name in found if "." in name}
        more = {name for name in uses if uses[name] & (found | classes)} - found
        if not more:
            return found
        found |= more


def escaped(trees: Mapping[str, ast.Module]) -> set[str]:
    """Public methods that commit and belong to no writer."""
    return {
        name
        for _, name in unguarded(trees)
        if "." in name and name.split(".")[0] not in PARTS and not name.split(".")[1].startswith("_")
    }


def tables() -> dict[str, ast.Module]:
    return {each: tree_of(each) for each in modules() if each.startswith("lakewarden.tables.")}


def test_no_other_class_of_a_format_commits() -> None:
    assert escaped(tables()) == set()


def test_the_committing_functions_are_known() -> None:
    """What the search finds: were it to find nothing, the test above could not fail."""
    found = {f"{module.removeprefix('lakewarden.tables.')}.{name}" for module, name in unguarded(tables())}
    both = ("writer.expire", "adoption.commit_adoption", "partitions.drop_partitions")
    tags = tuple(f"writer.{each}_tag" for each in ("create", "retain", "drop"))
    assert {f"{each}.{name}" for each in ("iceberg", "paimon") for name in (*both, *tags)} <= found
    assert {
        "iceberg.commit.commit",
        "iceberg.rewrite.RewriteCommit.run",
        "paimon.rewrite.commit_rewrite",
    } <= found
    assert {"iceberg.cold.make", "iceberg.cold.register", "iceberg.cold.release"} <= found
    assert {"paimon.rewrite.fold", "paimon.rewrite.commit_merge"} <= found


@pytest.mark.parametrize(
    ("module", "body"),
    [
        ("lakewarden.tables.iceberg.format", "return commit(self._catalogs, table, {}, None, 4)"),
        ("lakewarden.tables.iceberg.format", "self._catalogs.refs.dropTag(table, 'a')"),
        ("lakewarden.tables.paimon.format", "self._catalogs.commit.commit(table, None, '', 1)"),
        ("lakewarden.tables.paimon.rewrite", "commit_merge(self._catalogs, table, 1, {}, 2, 3)"),
    ],
)
def test_a_committing_method_beside_the_writer_is_found(module: str, body: str) -> None:
    trees = tables()
    source = ast.unparse(trees[module])
    source += f"\nfrom {module.rpartition('.')[0]}.commit import commit\n"
    source += f"\nclass Beside:\n    def truncate(self, table):\n        {body}\n"
    trees[module] = ast.parse(source)
    assert escaped(trees) == {"Beside.truncate"}


def test_only_formats_make_writers_and_only_writers_are_used_outside() -> None:
    commits = {f"{module}.{name}" for module, name in unguarded(tables())}
    makers = {f"lakewarden.tables.{each}.format" for each in ("iceberg", "paimon")}
    makers |= {f"lakewarden.tables.{each}.writer" for each in ("iceberg", "paimon")}
    for module in modules():
        targets = set(imports(module))
        if part(module) != "tables":
            assert not targets & commits, f"{module} commits without a guard"
        if module not in makers:
            taken = {each for each in targets if each.rpartition(".")[2] in GUARDED}
            assert not taken, f"{module} makes its own writer: use format.writer(guard)"


# ------------------------------------------------------------ the guards themselves


class Hook:
    def __init__(self, error: LineageRejected | None = None) -> None:
        self.error, self.seen = error, 0

    def check(self, table: TableRef, asked: Requirements, summary: Mapping[str, str]) -> None:
        self.seen += 1
        if self.error:
            raise self.error


def guard(ours: bool, hook: Hook) -> RunGuard:
    return RunGuard("r1", lambda: ours, Requirements(), hook)  # type: ignore[arg-type]


def test_a_run_that_was_taken_over_commits_nothing() -> None:
    hook = Hook()
    with pytest.raises(CommitLost, match="run r1 was taken over"):
        guard(False, hook).check(REF, SUMMARY)
    assert not hook.seen, "its lineage is no matter any more"


def test_lineage_is_asked_of_what_makes_a_snapshot() -> None:
    hook = Hook(LineageRejected(target=REF, reason="lineage.trigger is missing"))
    with pytest.raises(CommitRefused, match=r"lineage: lineage\.trigger is missing"):
        guard(True, hook).check(REF, SUMMARY)
    guard(True, hook).check(REF, None)
    assert hook.seen == 1


def test_outside_of_runs_no_snapshot_is_made() -> None:
    OutsideRuns().check(REF, None)
    with pytest.raises(AssertionError):
        OutsideRuns().check(REF, SUMMARY)
