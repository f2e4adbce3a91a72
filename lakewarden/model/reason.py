"""Reasons as values. Code decides by `kind`; people read `text`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonKind(StrEnum):
    """Why something is skipped or kept. `--json` prints these words: they do not change when a sentence does."""

    # A ref, a reader or a writer holds it.
    CURRENT = "current"
    TAG = "tag"
    BRANCH = "branch"
    HISTORY = "history"  # history that the branch's own retention keeps
    CONSUMER = "consumer"
    PIN = "pin"
    STREAM = "stream"
    WRITER = "writer"
    LOAD = "load"
    # A setting or another snapshot keeps it.
    WINDOW = "window"
    MIN_RETAINED = "min-retained"
    AFTER_HELD = "after-held"  # it comes after a snapshot that is held, and snapshots leave oldest first
    AFTER_KEPT = "after-kept"  # the same, after a snapshot that a setting keeps
    # It has to wait.
    LIMIT = "limit"  # left for the next run
    HANDOFF = "handoff"  # its copy in the colder tier comes first
    GRACE = "grace"
    YOUNG = "young"
    RUN_NOT_ENDED = "run-not-ended"
    OPEN_PARTITION = "open-partition"
    STATE_RESTORED = "state-restored"  # the restored state database may miss pins; they have to be made again
    QUIET_WINDOW = "quiet-window"
    # The call or the policy does not ask for it.
    NOT_ASKED = "not-asked"
    SWITCHED_OFF = "switched-off"
    # There is nothing to gain.
    EMPTY = "empty"
    LARGE_ENOUGH = "large-enough"
    SETTLED = "settled"  # an earlier run has done it
    TOO_FEW = "too-few"
    NO_GAIN = "no-gain"
    HAS_DELETES = "has-deletes"
    NO_DELETES = "no-deletes"
    # The job cannot or must not act on it.
    UNFIT = "unfit"
    NOT_PARTITIONED = "not-partitioned"
    NOT_KNOWN = "not-known"  # an age or a record that the decision needs
    NAMED_TWICE = "named-twice"
    # A sweep found it, but it is no orphan; or another table still has it.
    NAMED = "named"
    RESTORED = "restored"
    TRASHED = "trashed"
    HIDDEN = "hidden"
    FOREIGN = "foreign"
    OLDER_THAN_TABLE = "older-than-table"
    OTHER_TABLE = "other-table"
    NOT_OWN = "not-own"
    STILL_LIVE = "still-live"
    SHARED = "shared"


# A ref, a reader or a writer must release it first; time alone does not.
HELD = frozenset(
    {
        ReasonKind.TAG,
        ReasonKind.BRANCH,
        ReasonKind.HISTORY,
        ReasonKind.CONSUMER,
        ReasonKind.PIN,
        ReasonKind.STREAM,
        ReasonKind.WRITER,
        ReasonKind.LOAD,
        ReasonKind.AFTER_HELD,
    }
)


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason. No decision is made on `text`."""

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return self.text
