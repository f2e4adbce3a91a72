"""Validates that a commit states its origin, before the table is updated.

Pure, and takes microseconds: every committer (a job, a catalog, the gateway) calls it with the summary that it
is about to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakewarden.lineage.summary import TRIGGER_TYPES

OPERATION = "lineage.operation"
_TYPE, _OPERATOR, _TICKET = "trigger.type", "trigger.operator", "trigger.ticket"
_OVERWRITE, _APPEND = "overwrite", "append"
# The key where the format's library states what a commit does to the table's files.
LIBRARY = "operation"
# The library's operations by which rows leave the table.
_TAKES_ROWS = ("overwrite", "delete")
_SHOWN = 200
# The operations that keep every row.
_KEEPS_ROWS = ("append", "compaction", "manifest-rewrite")


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a table requires of every commit. None: no requirement."""

    keys: tuple[str, ...] = ()
    operations: frozenset[str] | None = None
    overwrite_operators: frozenset[str] | None = None


REQUIRED = "the table requires it of every commit"


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that the summary breaks. `value` is None if the key is missing."""

    key: str
    value: str | None
    rule: str
    required: bool = False  # required of every commit, independent of its operation

    def __str__(self) -> str:
        state = "is missing" if self.value is None else f"is {_short(self.value)!r}"
        return f"{self.key} {state}: {self.rule}"

    @property
    def of_every_commit(self) -> bool:
        """Whether the key is missing and required of every commit: reports on many commits then need no reason for each."""
        return self.required and self.value is None

    def to_dict(self) -> dict[str, str | None]:
        return {
            "key": self.key,
            "value": None if self.value is None else _short(self.value),
            "rule": self.rule,
        }


def validate(summary: Mapping[str, str], requirements: Requirements) -> tuple[Violation, ...]:
    """Every rule that is broken; empty if the commit may go ahead."""
    return validate_all((summary,), requirements)


def validate_all(summaries: Sequence[Mapping[str, str]], requirements: Requirements) -> tuple[Violation, ...]:
    """The same for a commit of several snapshots. If one removes rows and another adds rows, together they are an overwrite."""
    taken = [summary.get(LIBRARY) in _TAKES_ROWS for summary in summaries]
    together = any(taken) and any(summary.get(LIBRARY) == _APPEND for summary in summaries)
    violations: list[Violation] = []
    for summary in summaries:
        texts, odd = _texts(summary)
        violations += odd
        violations += _missing(texts, requirements)
        violations += _operation(texts, requirements)
        violations += _trigger(texts)
        violations += _overwrite(texts, requirements, together)
    return tuple(dict.fromkeys(violations))


def _texts(summary: Mapping[str, str]) -> tuple[Mapping[str, str], list[Violation]]:
    """A summary maps text to text. Readers cannot read any other type, so it does not count as lineage."""
    odd = [key for key, value in summary.items() if not isinstance(value, str)]
    if not odd:
        return summary, []
    texts = {key: value for key, value in summary.items() if isinstance(value, str)}
    return texts, [Violation(str(key), str(summary[key]), "it is not text") for key in odd]


def _missing(summary: Mapping[str, str], requirements: Requirements) -> Iterator[Violation]:
    for key in requirements.keys:
        if not _told(summary, key):
            yield Violation(key, summary.get(key), REQUIRED, required=True)


def _operation(summary: Mapping[str, str], requirements: Requirements) -> Iterator[Violation]:
    operation = summary.get(OPERATION)
    if operation is None:
        return
    allowed = requirements.operations
    if allowed is not None and operation not in allowed:
        yield Violation(OPERATION, operation, f"the table allows {', '.join(sorted(allowed))}")
    if operation in _KEEPS_ROWS and summary.get("operation") in _TAKES_ROWS:
        yield Violation(
            OPERATION, operation, f"the commit's own operation is {summary['operation']}: name what it does"
        )


def _trigger(summary: Mapping[str, str]) -> Iterator[Violation]:
    trigger = summary.get(_TYPE)
    if trigger is None:
        return
    if trigger not in TRIGGER_TYPES:
        yield Violation(_TYPE, trigger, f"it is one of {', '.join(TRIGGER_TYPES)}")
    if trigger == "manual" and not _told(summary, _OPERATOR):
        yield Violation(_OPERATOR, summary.get(_OPERATOR), "a manual commit names who triggered it")
    if trigger == "incident-response" and not _told(summary, _TICKET):
        yield Violation(_TICKET, summary.get(_TICKET), "a commit in response to an incident names its ticket")


def _overwrite(summary: Mapping[str, str], requirements: Requirements, together: bool) -> Iterator[Violation]:
    """An overwrite replaces existing rows: it must name a responsible person and a reason."""
    if not _overwrites(summary, requirements, together):
        return
    operator, allowed = summary.get(_OPERATOR), requirements.overwrite_operators
    if not _told(summary, _OPERATOR):
        yield Violation(_OPERATOR, operator, "an overwrite names who triggered it")
    elif allowed is not None and operator not in allowed:
        names = ", ".join(sorted(allowed))
        only = f"overwrites are allowed only for {names}" if names else "the table allows no overwrites"
        yield Violation(_OPERATOR, operator, only)
    if not _told(summary, _TICKET):
        yield Violation(_TICKET, summary.get(_TICKET), "an overwrite names its ticket")


def _overwrites(summary: Mapping[str, str], requirements: Requirements, together: bool) -> bool:
    """Whether the commit replaces rows, whatever its `lineage.operation` says, unless the table allows that word, e.g. `merge`."""
    word = summary.get(OPERATION, "").strip().lower()
    if word == _OVERWRITE:
        return True
    if requirements.operations is not None and summary.get(OPERATION) in requirements.operations:
        return False
    return together or summary.get(LIBRARY) == _OVERWRITE


def _told(summary: Mapping[str, str], key: str) -> bool:
    return bool(summary.get(key, "").strip())


def _short(value: str) -> str:
    """Shortened for a message: a text from another writer may have any length."""
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
