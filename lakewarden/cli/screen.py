"""Output: reports to standard output, errors and progress to standard error. With `--json` only one JSON
document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.text import Text

from lakewarden.errors import LakewardenError

if TYPE_CHECKING:
    from lakewarden.model.progress import Progress
    from lakewarden.report.interface import Report

# Output to a file or a pipe has no terminal width; lines are cut at this width instead.
_PIPE_WIDTH = 200


class Interrupted(LakewardenError):
    """interrupted"""

    exit_code = 130
    hint = "no table is left half changed: commits already made stay, and the next run cleans up the rest; see `lakewarden runs`"


@dataclass(frozen=True, slots=True)
class Screen:
    as_json: bool

    def show(self, report: Report) -> None:
        if self.as_json:
            _print_json(report.to_dict(), error=False)
        else:
            output = console()
            output.print(report.render(output.width))

    def say(self, words: RenderableType) -> None:
        """Print a part of a longer report. Silent with `--json`."""
        if not self.as_json:
            console().print(words)

    def nothing_of(self, table: object) -> None:
        """Warn next to an empty list that the table was never read: its name may be mistyped. Silent with
        `--json`."""
        if not self.as_json:
            words = f"table {table} is not known here; see `lakewarden tables` for the tables of the configured catalogs"
            console(stderr=True).print(Text(words, style="yellow"), soft_wrap=True)

    def error(self, error: LakewardenError) -> None:
        if self.as_json:
            _print_json(error.to_dict(), error=True)
            return
        output = console(stderr=True)
        output.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
        if error.hint:
            output.print(Text(f"  {error.hint}", style="yellow"), soft_wrap=True)

    @contextmanager
    def waiting(self, what: str, *, log: bool = False) -> Iterator[None]:
        """Show on a terminal what the program waits for; elsewhere print a line only if `log` is set."""
        output = console(stderr=True)
        if not self.as_json and output.is_terminal:
            with output.status(Text(what, style="dim")):
                yield
            return
        if log and not self.as_json:
            output.print(f"{what} ...")
        yield

    def progress(self) -> Progress:
        from lakewarden.cli.progress import progress_on

        return progress_on(None if self.as_json else console(stderr=True))


def console(*, stderr: bool = False) -> Console:
    plain = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if plain.is_terminal or "COLUMNS" in os.environ:
        return plain
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH)


def _print_json(document: dict[str, Any], *, error: bool) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False), file=sys.stderr if error else sys.stdout)
