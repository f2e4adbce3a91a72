"""One line a case as it ends, and the table of engines and cases at the end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.interop.parts import NotToBeHad


class Outcome(Enum):
    PASSED = "passed"
    RED = "RED"
    LIMIT = "limit"
    ABSENT = "not to be had"


class Limit(Exception):
    """The case is outside of what an engine or Lakewarden can do; the text says whose limit it is, and why."""


@dataclass
class Result:
    engine: str
    case: str
    location: str
    outcome: Outcome = Outcome.PASSED
    text: str = ""
    seconds: float = 0

    @property
    def line(self) -> str:
        said = f"{self.outcome.value}: {self.text}" if self.text else self.outcome.value
        return f"{self.engine:<11} {self.case:<44} {self.location:<9} {said} ({self.seconds:.0f} s)"


@dataclass
class Report:
    """What every case of a run came to. `details` is the file that stack traces of red cases go to."""

    details: Path
    results: list[Result] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def case(self, engine: str, case: str, location: str) -> Iterator[Result]:
        """Judge the block: an exception makes the case red and is not passed on, so that the next case runs."""
        result, started = Result(engine, case, location), time.monotonic()
        try:
            yield result
        except Limit as limit:
            result.outcome, result.text = Outcome.LIMIT, str(limit)
        except NotToBeHad as absent:
            result.outcome, result.text = Outcome.ABSENT, str(absent)
        except Exception as error:
            result.outcome, result.text = Outcome.RED, _one_line(error)
            with self.details.open("a") as details:
                details.write(f"--- {engine}  {case}  {location}\n{traceback.format_exc()}\n")
        result.seconds = time.monotonic() - started
        self.results.append(result)
        print(result.line, flush=True)

    def absent(self, engine: str, reason: str) -> None:
        with self.case(engine, "every case", "-"):
            raise NotToBeHad(reason)

    @property
    def red(self) -> bool:
        return any(result.outcome is Outcome.RED for result in self.results)

    def table(self) -> str:
        """Engines by outcomes, then every case that did not pass with its reason."""
        lines = [f"{'engine':<11} {'passed':>7} {'red':>5} {'limit':>6} {'not to be had':>14}"]
        for engine in dict.fromkeys(result.engine for result in self.results):
            counts = [self._count(engine, outcome) for outcome in Outcome]
            lines.append("{:<11} {:>7} {:>5} {:>6} {:>14}".format(engine, *counts))
        others = [result.line for result in self.results if result.outcome is not Outcome.PASSED]
        minutes = (time.monotonic() - self.started) / 60
        ending = f"{len(self.results)} cases in {minutes:.1f} minutes"
        return "\n".join([*lines, *(["", *others] if others else []), "", ending])

    def _count(self, engine: str, outcome: Outcome) -> int:
        return sum(each.engine == engine and each.outcome is outcome for each in self.results)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."
