"""What to do about each kind of warning, in a line: the first step of its section in docs/runbook.md, which a test holds it to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from lakewarden.health.warnings import WarningKind

RUNBOOK = "docs/runbook.md"
_TABLE = "TABLE"


@dataclass(frozen=True, slots=True)
class Advice:
    """`command` is one to copy; TABLE in it stands for the table's name. Empty where none helps."""

    words: str
    command: str = ""

    def of(self, table: str) -> str:
        return self.command.replace(_TABLE, shlex.quote(table))


ADVICE: Mapping[str, Advice] = {
    WarningKind.DELETE_DEBT: Advice(
        "the next pass applies them; at once", "lakewarden run compact-deletes TABLE"
    ),
    WarningKind.MANIFEST_SPRAWL: Advice(
        "the next pass folds them; at once", "lakewarden run rewrite-manifests TABLE"
    ),
    WarningKind.SMALL_FILES: Advice("the next pass packs them; at once", "lakewarden run compact TABLE"),
    WarningKind.EXPIRY_LAGS: Advice(
        "see whether expiry is off, paused or refused", "lakewarden plan expire TABLE"
    ),
    WarningKind.TRASHED_BACKLOG: Advice("see what holds them, or who refuses", "lakewarden plan purge TABLE"),
    WarningKind.LINEAGE_GAPS: Advice("find which writer commits without it", "lakewarden audit gaps TABLE"),
    WarningKind.UNBOUNDED_LOG: Advice(
        "set write.metadata.delete-after-commit.enabled on the table; what lies there goes by",
        "lakewarden run sweep TABLE",
    ),
    WarningKind.ORPHANS: Advice(
        "purge deletes them when their grace is over; what they are", "lakewarden trash TABLE"
    ),
    WarningKind.COSTLY_HOLD: Advice("ask whoever holds it", "lakewarden holds TABLE"),
    WarningKind.FOREVER_HOLD: Advice(
        "give what has to stay an end", "lakewarden tag TABLE NAME --retain 365d"
    ),
    WarningKind.UNREADABLE: Advice(
        "mend its catalog or store, nothing is done to it meanwhile; where it is every table of a catalog",
        "lakewarden doctor",
    ),
    WarningKind.SUSPENDED: Advice("mend what the reason names, then", "lakewarden resume TABLE"),
    WarningKind.NO_LEADER: Advice(
        "no data is at risk; start a worker, and read the log of the last", "lakewarden worker"
    ),
}


def advice(kind: str) -> Advice | None:
    """None for a kind that a newer version wrote down."""
    return ADVICE.get(kind)
