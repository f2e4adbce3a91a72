"""The known losses, as written in the `*.toml` files beside this one.

A mutant names one file of the product, a text that occurs in it exactly once, and the text that puts a known loss back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "safety.md"
BEGIN, END = "<!-- mutants -->", "<!-- /mutants -->"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break the safety code, and the test that must notice."""

    subject: str
    name: str
    loss: str
    file: str
    find: str
    replace: str
    test: str

    @property
    def tests(self) -> list[str]:
        """The pytest node ids that must fail, at least one of them."""
        return self.test.split()

    def applied(self, text: str) -> str:
        """The file's text with the loss put back; ValueError where the text to replace is not there exactly once."""
        if (found := text.count(self.find)) != 1:
            raise ValueError(
                f"{self.name}: the text to replace occurs {found} times in {self.file}, not once"
            )
        return text.replace(self.find, self.replace)


def mutants() -> list[Mutant]:
    """Every mutant, in the order of the files and of the entries in them."""
    return [
        Mutant(file.stem, **entry)
        for file in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(file.read_text("utf-8")).get("mutant", [])
    ]


def faults(found: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the entries themselves: a text or a test that is gone, a name or a change given twice, and code that
    could only crash."""
    wrong: list[str] = []
    applied: list[tuple[Mutant, str]] = []
    names: set[str] = set()
    changes: dict[tuple[str, str, str], str] = {}
    for each in found:
        if each.name in names:
            wrong.append(f"{each.name}: the name is given twice")
        names.add(each.name)
        first = changes.setdefault((each.file, each.find, each.replace), each.name)
        if first != each.name:
            wrong.append(f"{each.name}: makes the same change as {first}")
        try:
            applied.append((each, each.applied((root / each.file).read_text("utf-8"))))
        except (OSError, ValueError) as error:
            wrong.append(f"{each.name}: {error}")
        wrong += [f"{each.name}: no test {test}" for test in each.tests if not _exists(root, test)]
    return wrong + _crashes(applied)


def _crashes(applied: Iterable[tuple[Mutant, str]]) -> list[str]:
    """Mutants that name something undefined or do not parse: any test is red then, whatever it asserts."""
    of: dict[str, Mutant] = {}
    with tempfile.TemporaryDirectory(prefix="lakewarden-mutants-") as folder:
        for mutant, text in applied:
            if mutant.file.endswith(".py"):
                file = Path(folder).resolve() / f"mutant_{len(of)}.py"
                file.write_text(text, "utf-8")
                of[str(file)] = mutant
        if not of:
            return []
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa"]
        command += [
            "--select",
            "F821,F822,F823",
            "--target-version",
            "py311",
            "--output-format",
            "json",
            folder,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):
        raise RuntimeError(f"cannot look for undefined names in mutants: {ended.stderr.strip()}")
    return [
        f"{of[str(Path(each['filename']).resolve())].name}: would only crash: {each['message']}"
        for each in json.loads(ended.stdout)
    ]


def _exists(root: Path, node: str) -> bool:
    path, *parts = node.split("::")
    file = root / path
    name = parts[-1].partition("[")[0] if parts else ""
    return file.is_file() and f"def {name}(" in file.read_text("utf-8")


def table(found: Iterable[Mutant]) -> str:
    """The table of docs/safety.md."""
    rows = [f"| {each.name} | {each.loss} | {_links(each)} |" for each in found]
    return "\n".join(
        ["| put back | what a user would lose | the test that turns red |", "|---|---|---|", *rows]
    )


def _links(mutant: Mutant) -> str:
    return "<br>".join(f"`{test.removeprefix('tests/')}`" for test in mutant.tests)


def filled(page: str, found: Iterable[Mutant]) -> str:
    """The page with its table of mutants as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(found)}\n{END}{after}"
