"""Writes the parts of docs/ that are generated from the code: `python -m lakewarden.cli.docs [--check]`.

A page marks such a part. Everything else on the page is written by hand and is not changed:

    <!-- generated:policy-keys -->
    ... replaced each time ...
    <!-- /generated -->
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, get_args

import lakewarden
from lakewarden.config.schema import SETTINGS, Setting
from lakewarden.errors import LakewardenError, UsageError
from lakewarden.model.job_facts import JOBS
from lakewarden.model.run import RunState
from lakewarden.policy.keys import KEYS, Key

PACKAGE = Path(lakewarden.__file__).parent
DOCS = PACKAGE.parent / "docs"
_PART = re.compile(
    r"(?P<open><!-- generated:(?P<name>[a-z-]+) -->\n).*?(?P<close><!-- /generated -->)", re.DOTALL
)

# The job of a policy key, by the prefix of its name; the first match wins.
JOBS_OF_KEYS = (
    *((prefix, str(job)) for job, facts in JOBS.items() for prefix in facts.key_prefixes),
    ("maintenance_", "the whole pass"),
    ("protected_", "the gateway"),
    ("lineage_", "the commit hook"),
)

EXIT_CODES = (
    (0, "done, or nothing to do"),
    (1, "something failed"),
    (2, "usage: the call or a setting is wrong, or a catalog or database does not answer; nothing was done"),
    (3, "partial: some of the work was done; the rest is listed with reasons"),
    (10, "no such table"),
    (11, "busy: another run of this job is in progress on the table"),
    (12, "refused by a safety rule"),
    (13, "lost the race: another writer changed the same files first; nothing changed"),
    (14, "unknown: the catalog did not say whether the commit happened; nothing was removed"),
    (130, "interrupted"),
)


def fill(text: str, page: str) -> str:
    """The page with every marked part generated again. An unknown marker is an error: its part would stay
    empty."""

    def part(found: re.Match[str]) -> str:
        make = PARTS.get(found["name"])
        if make is None:
            known = ", ".join(PARTS)
            raise UsageError(reason=f"cannot fill {found['name']!r} in {page}: known parts are {known}")
        return f"{found['open']}{make().strip()}\n{found['close']}"

    return _PART.sub(part, text)


def stale(folder: Path) -> Iterator[tuple[Path, str]]:
    """Pages whose generated parts differ from the code, each with its correct text."""
    for page in sorted(folder.rglob("*.md")):
        text = page.read_text("utf-8")
        wanted = fill(text, page.name)
        if wanted != text:
            yield page, wanted


# ------------------------------------------------------------ settings and policy


def settings() -> str:
    rows = [
        (f"`[{each.section}]`", f"`{each.name}`", each.type, _default(each), _variable(each), each.sentence)
        for each in SETTINGS
    ]
    return _table(("section", "name", "type", "default", "environment variable", "meaning"), rows)


def _default(each: Setting) -> str:
    return "–" if each.default in (None, {}, []) else f"`{each.default}`"


def _variable(each: Setting) -> str:
    if each.section.startswith("policy."):
        return "–"
    section = each.section.replace(".", "__").upper()
    return f"`LAKEWARDEN_{section}__{each.name.upper()}`"


_COLUMNS = ("key", "default", "allowed", "meaning", "a table property may say", "acted on")


def policy_keys() -> str:
    """One table per job, in the order of the policy keys."""
    acted_on = keys_in_use()
    parts = []
    for job in dict.fromkeys(job_of(key) for key in KEYS):
        mine = [key for key in KEYS if job_of(key) == job]
        rows = [
            (
                f"`{key.name}`",
                _policy_default(key),
                key.allowed(),
                key.sentence,
                str(key.by_property),
                "yes" if key.name in acted_on else "later",
            )
            for key in mine
        ]
        parts.append(f"### {job}\n\n" + _table(_COLUMNS, rows))
    return "\n\n".join(parts)


def job_of(key: Key) -> str:
    return next(job for prefix, job in JOBS_OF_KEYS if key.name.startswith(prefix))


def _policy_default(key: Key) -> str:
    from lakewarden.policy.origin import Layer, Origin, Value
    from lakewarden.report.policy import shown

    text = shown(Value(key.name, key.default, Origin(Layer.DEFAULT)))
    return "–" if text == "none" else f"`{text}`"


@cache
def keys_in_use() -> frozenset[str]:
    """Keys the code that does the work asks for by name: in jobs/, lineage/, gateway/, services/, client.py, the table of jobs, policy/fleet.py and policy/graces.py, and nowhere else."""
    names = {key.name for key in KEYS}
    doing = [
        *(PACKAGE / "jobs").rglob("*.py"),
        *(PACKAGE / "lineage").rglob("*.py"),
        *(PACKAGE / "gateway").rglob("*.py"),
        *(PACKAGE / "services").rglob("*.py"),
    ]
    asking = [PACKAGE / name for name in ("model/job_facts.py", "policy/fleet.py", "policy/graces.py")]
    files = [*sorted(doing), PACKAGE / "client.py", *asking]
    return frozenset(names & {text for path in files for text in _strings(path)})


def _strings(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


# ------------------------------------------------------------ commands


def commands() -> str:
    return "\n\n".join(_command(name, each) for name, each in _commands().items())


def _commands() -> dict[str, Any]:
    from typer.main import get_command

    from lakewarden.cli.app import app

    found: dict[str, Any] = getattr(get_command(app), "commands", {})
    return found


def global_options() -> str:
    from typer.main import get_command

    from lakewarden.cli.app import app

    return _parameters(get_command(app).params)


def _command(name: str, command: Any) -> str:
    """Usage, description, options and example of a command, from its `--help`."""
    paragraphs = [" ".join(each.split()) for each in str(command.help).split("\n\n")]
    example = next((each for each in paragraphs if each.startswith("Example: ")), "")
    words = [each for each in paragraphs if not each.startswith("Example: ")]
    parts = [f"### {name}", f"```\n{usage(name, command)}\n```", *words, _parameters(command.params)]
    if example:
        parts.append("```\n" + example.removeprefix("Example: ").strip("`") + "\n```")
    below = getattr(command, "commands", {})
    parts += [f"#{_command(f'{name} {each}', sub)}" for each, sub in below.items()]
    return "\n\n".join(part for part in parts if part)


def usage(name: str, command: Any) -> str:
    arguments = [_argument(each) for each in command.params if not _is_option(each)]
    return " ".join(["lakewarden", name, *arguments, "[OPTIONS]"])


def _argument(each: Any) -> str:
    label = str(each.metavar or each.name.upper())
    return label if each.required or label.startswith("[") else f"[{label}]"


def _is_option(each: Any) -> bool:
    return bool(each.opts[0].startswith("-"))


def _parameters(params: Iterable[Any]) -> str:
    rows = [(_label(each), _help(each)) for each in params if not each.hidden]
    return _table(("", ""), rows) if rows else ""


def _label(each: Any) -> str:
    if not _is_option(each):
        return f"`{each.metavar or each.name.upper()}`"
    choices = get_args(each.type_descriptor.annotation)
    value = "" if each.is_flag else each.metavar or "\\|".join(map(str, choices))
    return f"`{each.opts[0]}{' ' + value if value else ''}`"


def _help(each: Any) -> str:
    parts = [str(each.help or "")]
    if each.default not in (None, False, ()):
        parts.append(f"Default: `{each.default}`.")
    if each.envvar:
        parts.append(f"Also as `{each.envvar}`.")
    return " ".join(parts)


def exit_codes() -> str:
    states: dict[int, list[str]] = {}
    for state in RunState:
        states.setdefault(state.exit_code, []).append(f"`{state}`")
    rows = [(str(code), words, ", ".join(states.get(code, ())) or "–") for code, words in EXIT_CODES]
    return _table(("code", "meaning", "run states"), rows)


# ------------------------------------------------------------ errors


def error_classes() -> list[type[LakewardenError]]:
    """Every error a user can see, parents before children; last the one of the command line itself."""
    from lakewarden.cli.screen import Interrupted

    named = [kind for kind in _tree(LakewardenError) if kind.__module__ == LakewardenError.__module__]
    return [*named, Interrupted]


def _tree(kind: type[LakewardenError]) -> Iterator[type[LakewardenError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def errors() -> str:
    rows = [
        (
            f"`{kind.__name__}`",
            str(kind.exit_code),
            "yes" if kind.retry else "no",
            f"`{kind.__doc__}`",
            kind.hint or "–",
        )
        for kind in error_classes()
    ]
    return _table(("error", "exit code", "try again", "message", "hint"), rows)


# ------------------------------------------------------------ the Python API


def api() -> str:
    """Signatures and docstrings of `Lakewarden`, then of each service, in the order of the source."""
    client = _class(PACKAGE / "client.py", "Lakewarden")
    parts = [_call(node, "Lakewarden") for node in client.body if is_constructor(node)]
    parts += _calls(client, "lw")
    for name, class_ in SERVICES.items():
        service = _class(PACKAGE / "services" / f"{name}.py", class_)
        parts += [f"### lw.{name}", " ".join((ast.get_docstring(service) or "").split())]
        parts += _calls(service, f"lw.{name}")
    return "\n\n".join(parts)


SERVICES = {
    "holds": "HoldService",
    "history": "HistoryService",
    "tiers": "TierService",
    "schedule": "ScheduleService",
    "health": "HealthService",
}


def is_constructor(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _calls(class_: ast.ClassDef, owner: str) -> list[str]:
    functions = [each for each in class_.body if isinstance(each, ast.FunctionDef)]
    return [_call(each, owner) for each in functions if not each.name.startswith("_")]


def _call(node: ast.FunctionDef, owner: str) -> str:
    words = " ".join((ast.get_docstring(node) or "").split())
    return f"```python\n{signature(node, owner)}\n```\n\n{words}".rstrip()


def values() -> str:
    """The fields of the values that the API returns."""
    shown = (
        ("model/run", "Run"),
        ("model/plan", "Plan"),
        ("model/table", "TableRef"),
        ("model/run", "Trigger"),
        ("model/table", "TableView"),
        ("jobs/verify/result", "Verification"),
        ("jobs/verify/result", "RewriteSide"),
        ("jobs/fsck/findings", "FsckResult"),
        ("jobs/fsck/findings", "Finding"),
        ("state/health", "TableHealth"),
        ("state/health", "Numbers"),
        ("state/health", "StoredWarning"),
        ("health/table_details", "TableDetails"),
        ("health/collect", "Sweep"),
        ("health/what_if", "WhatIf"),
        ("health/what_if", "PolicyCurves"),
    )
    parts = []
    for module, name in shown:
        node = _class(PACKAGE / f"{module}.py", name)
        rows = [(f"`{field}`", f"`{kind}`".replace("|", "\\|")) for field, kind in _fields(node)]
        parts.append(f"### {name}\n\n{ast.get_docstring(node)}\n\n" + _table(("field", "type"), rows))
    return "\n\n".join(parts)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, ast.unparse(each.annotation)


def _class(path: Path, name: str) -> ast.ClassDef:
    body = ast.parse(path.read_text("utf-8")).body
    return next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)


def signature(node: ast.FunctionDef, owner: str) -> str:
    """The signature as a caller writes it: without `self`; class methods and the constructor under the
    class's name."""
    decorators = {ast.unparse(each) for each in node.decorator_list}
    owner = "Lakewarden" if "classmethod" in decorators else owner
    name = owner if node.name == "__init__" else f"{owner}.{node.name}"
    result = "" if node.name == "__init__" or node.returns is None else f" -> {ast.unparse(node.returns)}"
    if "property" in decorators:
        return f"{name}{result}"
    node.args.args = node.args.args[1:]
    line = f"{name}({ast.unparse(node.args)}){result}"
    return line if len(line) <= 100 else _broken(name, node.args, result)


def _broken(name: str, arguments: ast.arguments, result: str) -> str:
    """The signature with one parameter per line."""
    split = re.split(r", (?=[a-z_]+:|\*)", ast.unparse(arguments))
    return f"{name}(\n" + "".join(f"    {each},\n" for each in split) + f"){result}"


# ------------------------------------------------------------ Markdown


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(headings), _row(["---"] * len(headings)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(each.split()) for each in cells) + " |"


def metrics() -> str:
    from lakewarden.health.metrics import METRICS

    rows = [
        (f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels) or "–", each.sentence)
        for each in METRICS
    ]
    return _table(("metric", "kind", "labels", "what it is"), rows)


# ------------------------------------------------------------ the REST API


def rest_calls() -> str:
    from lakewarden.client import Lakewarden
    from lakewarden.console.app import create_app, routes

    found = routes(create_app(Lakewarden({}, environ={})).openapi())
    rows = [
        (
            f"`{each.method} {each.path}`",
            each.role,
            ", ".join(f"`{name}`" for name in each.takes),
            each.sentence,
        )
        for each in found
    ]
    return _table(("call", "token", "takes", "what it does"), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "policy-keys": policy_keys,
    "commands": commands,
    "global-options": global_options,
    "exit-codes": exit_codes,
    "errors": errors,
    "api": api,
    "values": values,
    "metrics": metrics,
    "rest-calls": rest_calls,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="lakewarden.cli.docs", description="Write the generated parts of docs/."
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; list stale pages and exit 1 if there are any"
    )
    parser.add_argument("--folder", type=Path, default=DOCS, help="folder of the pages")
    options = parser.parse_args(arguments)
    found = list(stale(options.folder))
    for page, wanted in found:
        if not options.check:
            page.write_text(wanted, "utf-8")
        print(f"{'stale' if options.check else 'wrote'} {page.relative_to(options.folder.parent)}")
    if found and options.check:
        print("run `make docs`", file=sys.stderr)
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
