"""The commit hook at a door: what a table's policy asks of its commits, and what happens to one that does not say it.

Whoever stands at the door calls `check` right before the commit: it passes, or it is counted and LineageRejected tells all
that is wrong with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from lakewarden import clock
from lakewarden.errors import LineageRejected, Unreachable
from lakewarden.lineage.validate import Requirements, Violation, validate_all
from lakewarden.policy.resolve import Policy
from lakewarden.state.audit_log import Rejections
from lakewarden.state.database import State

log = logging.getLogger(__name__)


_KEYS, _OPERATIONS, _OPERATORS = (
    "lineage_required_keys",
    "lineage_allowed_operations",
    "lineage_overwrite_operators",
)


def requirements(policy: Policy) -> Requirements:
    """What the policy of a table asks of every commit."""
    return Requirements(policy.columns(_KEYS), _names(policy, _OPERATIONS), _names(policy, _OPERATORS))


def asked_by(policy: Policy) -> tuple[str, ...]:
    """The same in words, each with its origin: who finds a rule strange learns who made it."""
    return tuple(
        str(policy.values[key]) for key in (_KEYS, _OPERATIONS, _OPERATORS) if policy[key] is not None
    )


def expiry_reserved(policy: Policy) -> bool:
    """Whether nobody but Lakewarden may expire the table's snapshots."""
    return policy.bool("snapshot_expiry_reserved")


def _names(policy: Policy, key: str) -> frozenset[str] | None:
    return None if policy[key] is None else frozenset(policy.columns(key))


def rejection(table: object, violations: tuple[Violation, ...]) -> LineageRejected:
    """All that is wrong with a commit, in one error."""
    return LineageRejected(
        target=table, reason="; ".join(str(each) for each in violations), violations=violations
    )


@dataclass(frozen=True, slots=True)
class Hook:
    """`door` names it in the counts. Without a state database nothing is counted."""

    door: str
    state: State | None = None

    def check(self, table: object, asked: Requirements, *summaries: Mapping[str, str]) -> None:
        """All snapshots of one commit together."""
        violations = validate_all(summaries, asked)
        if not violations:
            return
        error = rejection(table, violations)
        self._count(str(table), error.message)
        raise error

    def _count(self, table: str, reason: str) -> None:
        if self.state is None:
            return
        try:
            Rejections(self.state).add(table, self.door, reason, clock.now())
        except (Unreachable, SQLAlchemyError) as error:
            # A commit is turned away whether or not that can be counted.
            log.warning("a rejected commit to %s was not counted: %s", table, type(error).__name__)
