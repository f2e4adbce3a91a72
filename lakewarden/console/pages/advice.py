"""What to do about each kind of warning, in a line: the first step of its section in docs/runbook.md, which a test holds it to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from lakewarden.health.warnings import Kind

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
    Kind.DELETE_DEBT: Advice("the next pass applies them; at once", "lakewarden run compact-deletes TABLE"),
    Kind.MANIFEST_SPRAWL: Advice(
        "the next pass folds them; at once", "lakewarden run rewrite-manifests TABLE"
    ),
    Kind.SMALL_FILES: Advice("the next pass packs them; at once", "lakewarden run compact TABLE"),
    Kind.EXPIRY_LAGS: Advice("see whether expiry is off, paused or refused", "lakewarden plan expire TABLE"),
    Kind.TRASHED_BACKLOG: Advice("see what holds them, or who refuses", "lakewarden plan purge TABLE"),
    Kind.LINEAGE_GAPS: Advice("find which writer commits without it", "lakewarden audit gaps TABLE"),
    Kind.UNBOUNDED_LOG: Advice(
        "set write.metadata.delete-after-commit.enabled on the table; what lies there goes by",
        "lakewarden run sweep TABLE",
    ),
    Kind.ORPHANS: Advice(
        "purge deletes them when their grace is over; what they are", "lakewarden trash TABLE"
    ),
    Kind.COSTLY_HOLD: Advice("ask whoever holds it", "lakewarden holds TABLE"),
    Kind.FOREVER_HOLD: Advice("give what has to stay an end", "lakewarden tag TABLE NAME --retain 365d"),
    Kind.UNREADABLE: Advice(
        "mend its catalog or store, nothing is done to it meanwhile; where it is every table of a catalog",
        "lakewarden doctor",
    ),
    Kind.SUSPENDED: Advice("mend what the reason names, then", "lakewarden resume TABLE"),
    Kind.NO_LEADER: Advice(
        "no data is at risk; start a worker, and read the log of the last", "lakewarden worker"
    ),
}


def advice(kind: str) -> Advice | None:
    """None for a kind that a newer version wrote down."""
    return ADVICE.get(kind)
