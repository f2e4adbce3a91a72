"""`python -m tools.contracts [--check]` writes tests/contracts/: what users and other programs build on.

Names and types that must not change by accident when code moves: journal steps, state tables, lineage keys, policy keys,
settings, exit codes, metrics, and the keys of the `--json` documents. Tests compare the files with the code. A change on
purpose is made by running this command, and is seen in the diff of the commit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from enum import EnumType
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lakewarden"
FOLDER = ROOT / "tests" / "contracts"
LINEAGE_KEY = re.compile(r"[\"']((?:writer|input|trigger|lineage)\.[a-z_]+)[\"']")


def journal_steps() -> dict[str, list[str]]:
    """The names that a run's journal may hold: what recovery decides on."""
    hints = get_type_hints(import_module("lakewarden.jobs.run_context").RunContext.step)
    kinds = [
        each for each in getattr(hints["name"], "__args__", (hints["name"],)) if isinstance(each, EnumType)
    ]
    return {"steps": sorted(str(step) for kind in kinds for step in kind)}


def run_states() -> dict[str, int]:
    """Run states, with the exit code of each."""
    from lakewarden.model.run import RunState

    return {str(each): each.exit_code for each in RunState}


def jobs() -> dict[str, list[str]]:
    from lakewarden.model.run import Job

    return {"jobs": sorted(map(str, Job))}


def state_tables() -> dict[str, Any]:
    """Tables, columns and indexes of the state database, as PostgreSQL would have them."""
    from sqlalchemy.dialects import postgresql

    from lakewarden.state.schema import metadata

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return {
        table.name: {
            "columns": {
                column.name: column.type.compile(dialect) + ("" if column.nullable else " not null")
                for column in table.columns
            },
            "primary_key": [column.name for column in table.primary_key],
            "indexes": {
                str(index.name): [
                    *(["unique"] if index.unique else []),
                    *(str(each) for each in index.expressions),
                ]
                for index in sorted(table.indexes, key=lambda each: str(each.name))
            },
        }
        for table in sorted(metadata.tables.values(), key=lambda each: each.name)
    }


def lineage_keys() -> dict[str, list[str]]:
    """Every summary key that the source names: those that Lakewarden writes, and those that it reads."""
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.java")]
    found = {key for path in files for key in LINEAGE_KEY.findall(path.read_text("utf-8"))}
    return {"written": sorted(_written()), "named": sorted(found)}


def _written() -> set[str]:
    """What a commit of Lakewarden says when all is known."""
    from lakewarden.lineage.summary import Lineage
    from lakewarden.model.run import Trigger

    trigger = Trigger("manual", "ana", "OPS-1")
    whole = Lineage("compaction", "r", "p", trigger, (1,), 1, 1, digest="d", proof="p", settled="s")
    return set(whole.summary())


def policy_keys() -> dict[str, Any]:
    """Each key's type, default and limits, and what a table's own properties may set; the layers, least specific first."""
    from lakewarden.policy.keys import KEYS
    from lakewarden.policy.origin import Layer

    keys = KEYS.values() if isinstance(KEYS, Mapping) else KEYS
    return {
        "layers": [str(layer) for layer in Layer],
        "keys": {
            each.name: {
                "type": str(each.kind),
                "default": _plain(each.default),
                "limits": [_plain(limit) for limit in (each.least, each.most, each.above, each.call_least)],
                "choices": list(each.choices),
                "may_be_none": each.optional,
                "call_only": each.call_only,
                "table_property": str(each.by_property),
            }
            for each in sorted(keys, key=lambda each: each.name)
        },
    }


def settings() -> dict[str, Any]:
    from lakewarden.config.schema import SETTINGS

    return {f"{each.section}.{each.name}": [each.type, _plain(each.default)] for each in SETTINGS}


def exit_codes() -> dict[str, Any]:
    """By the name that `--json` prints of an error, and of how a run ended."""
    from lakewarden.cli.docs import EXIT_CODES, error_classes

    return {
        "codes": sorted(code for code, _ in EXIT_CODES),
        "errors": {each.__name__: [each.exit_code, each.retry] for each in error_classes()},
        "run_states": run_states(),
    }


def metrics() -> dict[str, Any]:
    """Of the worker and the console, and of the gateway."""
    from prometheus_client.metrics import MetricWrapperBase

    from lakewarden.health.metrics import METRICS

    found = {each.name: [each.kind, list(each.labels)] for each in METRICS}
    return {"console": dict(sorted(found.items())), "gateway": _gateway_metrics(MetricWrapperBase)}


def _gateway_metrics(kind: type[Any]) -> dict[str, Any]:
    """From an instance on a state database that nothing opens."""
    module = import_module("lakewarden.gateway.metrics")
    (owner,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__ and "State" in _wants(each)
    )
    made = [each for each in vars(owner(None)).values() if isinstance(each, kind)]
    return {
        each._name: [each._type, list(each._labelnames)] for each in sorted(made, key=lambda one: one._name)
    }


def _wants(kind: type) -> set[str]:
    hints = get_type_hints(kind.__init__) if "__init__" in vars(kind) else {}
    return {getattr(each, "__name__", "") for each in hints.values()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def json_documents() -> dict[str, Any]:
    """The keys of every `--json` document that the state database alone answers."""
    from tests.support.documents import key_trees

    with tempfile.TemporaryDirectory(prefix="contracts-") as folder:
        return key_trees(Path(folder))


CONTRACTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "exit_codes": exit_codes,
    "jobs": jobs,
    "json_documents": json_documents,
    "journal_steps": journal_steps,
    "lineage_keys": lineage_keys,
    "metrics": metrics,
    "policy_keys": policy_keys,
    "settings": settings,
    "state_tables": state_tables,
}


def frozen(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def as_text(contract: Mapping[str, Any]) -> str:
    """One line for each short list."""
    text = json.dumps(contract, indent=1, ensure_ascii=False)
    return _SHORT_LIST.sub(lambda found: re.sub(r"\n\s*", " ", found[0]), text) + "\n"


# Values only, with no list or object among them, and no bracket in a text.
_SHORT_LIST = re.compile(r"\[\n[^\[\]{}]{1,200}?\n\s*\]")


def differences(name: str, before: Any, now: Any) -> list[str]:
    """One line for each leaf that is gone, new or another."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    return [
        f"{name}: {path}: {old.get(path, 'not there')} -> {new.get(path, 'gone')}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path, _ABSENT) != new.get(path, _ABSENT)
    ]


_ABSENT = object()


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [leaf for key, each in value.items() for leaf in _leaves(each, f"{path}/{key}")]
    if isinstance(value, list) and path.rsplit("/", 1)[-1] in ("steps", "jobs", "named", "written", "codes"):
        return [(f"{path}/{each}", True) for each in value]
    return [(path, value)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.contracts", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 and list what differs")
    options = parser.parse_args(arguments)
    changed: list[str] = []
    FOLDER.mkdir(exist_ok=True)
    for name, make in CONTRACTS.items():
        path, now = FOLDER / f"{name}.json", as_text(make())
        before = path.read_text("utf-8") if path.exists() else "{}"
        changed += differences(name, json.loads(before), json.loads(now))
        if before != now and not options.check:
            path.write_text(now, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    print("\n".join(changed), file=sys.stderr, end="\n" if changed else "")
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
