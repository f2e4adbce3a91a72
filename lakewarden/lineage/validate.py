"""The commit hook: whether a commit says where it comes from, before the table's pointer moves.

Pure, and microseconds: whoever commits (a job, a catalog, the gateway) calls it with the summary that is about to be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lakewarden.lineage.summary import TRIGGER_TYPES

OPERATION = "lineage.operation"
_TYPE, _OPERATOR, _TICKET = "trigger.type", "trigger.operator", "trigger.ticket"
_OVERWRITE = "overwrite"
# What the format's library says a commit is, where rows leave the table by it.
_TAKES_ROWS = ("overwrite", "delete")
# What says that every row stays.
_KEEPS_ROWS = ("append", "compaction", "manifest-rewrite")


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a table asks of every commit. None: anything goes."""

    keys: tuple[str, ...] = ()
    operations: frozenset[str] | None = None
    overwrite_operators: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that the summary breaks. `value` is None where the key is missing."""

    key: str
    value: str | None
    rule: str

    def __str__(self) -> str:
        found = "is missing" if self.value is None else f"is {self.value!r}"
        return f"{self.key} {found}: {self.rule}"

    def to_dict(self) -> dict[str, str | None]:
        return {"key": self.key, "value": self.value, "rule": self.rule}


def validate(summary: Mapping[str, str], requirements: Requirements) -> tuple[Violation, ...]:
    """Every rule that is broken, at once; nothing where the commit may go ahead."""
    found = [
        *_missing(summary, requirements),
        *_operation(summary, requirements),
        *_trigger(summary),
        *_overwrite(summary, requirements),
    ]
    return tuple(dict.fromkeys(found))


def _missing(summary: Mapping[str, str], requirements: Requirements) -> Iterator[Violation]:
    for key in requirements.keys:
        if not _told(summary, key):
            yield Violation(key, summary.get(key), "the table requires it of every commit")


def _operation(summary: Mapping[str, str], requirements: Requirements) -> Iterator[Violation]:
    operation = summary.get(OPERATION)
    if operation is None:
        return
    allowed = requirements.operations
    if allowed is not None and operation not in allowed:
        yield Violation(OPERATION, operation, f"the table allows {', '.join(sorted(allowed))}")
    if operation in _KEEPS_ROWS and summary.get("operation") in _TAKES_ROWS:
        yield Violation(
            OPERATION, operation, f"the commit itself is {summary['operation']}: say what it does"
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


def _overwrite(summary: Mapping[str, str], requirements: Requirements) -> Iterator[Violation]:
    """Rows that were there are replaced by others: somebody answers for that, and says why."""
    if summary.get(OPERATION) != _OVERWRITE:
        return
    operator, allowed = summary.get(_OPERATOR), requirements.overwrite_operators
    if not _told(summary, _OPERATOR):
        yield Violation(_OPERATOR, operator, "an overwrite names who triggered it")
    elif allowed is not None and operator not in allowed:
        yield Violation(_OPERATOR, operator, f"overwrites are for {', '.join(sorted(allowed)) or 'nobody'}")
    if not _told(summary, _TICKET):
        yield Violation(_TICKET, summary.get(_TICKET), "an overwrite names its ticket")


def _told(summary: Mapping[str, str], key: str) -> bool:
    return bool(str(summary.get(key) or "").strip())
