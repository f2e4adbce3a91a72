"""The commit hook: checks a commit against the table's policy, and rejects a commit without the required
lineage.

Callers run `check` right before the commit: it either passes, or it is counted and LineageRejected lists
everything that is wrong.
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
    """The requirements of a table's policy for every commit."""
    return Requirements(policy.columns(_KEYS), _names(policy, _OPERATIONS), _names(policy, _OPERATORS))


def asked_by(policy: Policy) -> tuple[str, ...]:
    """The same in words, each with its origin, so that a user can see who made a rule."""
    return tuple(
        str(policy.values[key]) for key in (_KEYS, _OPERATIONS, _OPERATORS) if policy[key] is not None
    )


def expiry_reserved(policy: Policy) -> bool:
    """Whether only Lakewarden may expire the table's snapshots."""
    return policy.bool("snapshot_expiry_reserved")


def _names(policy: Policy, key: str) -> frozenset[str] | None:
    return None if policy[key] is None else frozenset(policy.columns(key))


def rejection(table: object, violations: tuple[Violation, ...]) -> LineageRejected:
    """All violations of a commit, in one error."""
    return LineageRejected(
        target=table, reason="; ".join(str(violation) for violation in violations), violations=violations
    )


@dataclass(frozen=True, slots=True)
class Hook:
    """Checks commits that arrive one way, e.g. through the gateway; `door` is its label in the counts. Counts need a state database."""

    door: str
    state: State | None = None

    def check(self, table: object, asked: Requirements, *summaries: Mapping[str, str]) -> None:
        """Check all snapshots of one commit together."""
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
            # A commit is rejected whether or not the rejection can be counted.
            log.warning("a rejected commit to %s was not counted: %s", table, type(error).__name__)
