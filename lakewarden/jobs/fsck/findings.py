"""The findings of fsck, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lakewarden.model.table import TableRef

# The maximum number of paths and snapshots that a finding names; all of them are counted.
NAMED = 100


class Severity(StrEnum):
    """`error`: reads fail or return wrong rows. `warning`: something is lost or may soon be. `note`: information."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Fault(StrEnum):
    """The kinds of damage; docs/fsck.md describes each."""

    UNREADABLE_TABLE = "unreadable-table"
    MISSING_METADATA = "missing-metadata"
    UNBOUNDED_LOG = "unbounded-metadata-log"
    VERSION_HINT = "version-hint"
    FOREIGN_METADATA = "foreign-metadata"
    BROKEN_REF = "broken-ref"
    BROKEN_CURRENT = "broken-current-snapshot"
    SNAPSHOT_CYCLE = "snapshot-cycle"
    EXPIRED_PARENT = "expired-parent"
    OFF_HISTORY = "off-history"
    BROKEN_PIN = "broken-pin"
    MISSING_LIST = "missing-manifest-list"
    UNREADABLE_LIST = "unreadable-manifest-list"
    SHORT_LIST = "short-manifest-list"
    REPEATED_MANIFEST = "repeated-manifest"
    MISSING_MANIFEST = "missing-manifest"
    TRUNCATED_MANIFEST = "truncated-manifest"
    UNREADABLE_MANIFEST = "unreadable-manifest"
    MISCOUNTED_MANIFEST = "miscounted-manifest"
    MISSING_FILE = "missing-file"
    WRONG_SIZE = "wrong-size"
    REPEATED_FILE = "repeated-file"
    UNREADABLE_FILE = "unreadable-file"
    WRONG_ROWS = "wrong-row-count"
    DANGLING_DELETES = "dangling-deletes"
    MISSING_STATISTICS = "missing-statistics"
    STALE_STATISTICS = "stale-statistics"
    TRASHED_AGAIN = "trashed-but-needed"
    ORPHANS = "orphans"
    NOT_CHECKED = "not-checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or note, and what to do about it. Equal problems are one finding with a count."""

    kind: Fault
    severity: Severity
    what: str
    repair: str
    count: int = 1
    paths: tuple[str, ...] = ()
    snapshot_ids: tuple[int, ...] = ()

    @property
    def path(self) -> str | None:
        """The first affected file."""
        return self.paths[0] if self.paths else None


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """How much was checked: files that snapshots name, files in the table's folders, and footers that were opened."""

    snapshots: int = 0
    manifests: int = 0
    files: int = 0
    listed: int = 0
    footers: int = 0


@dataclass(frozen=True, slots=True)
class FsckResult:
    """The result of fsck for one table. Nothing was changed."""

    table: TableRef
    made_at: datetime
    snapshot_id: int | None
    metadata_location: str
    findings: tuple[Finding, ...]
    looked: CheckCounts
    deep: bool
    seconds: float

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings with this severity."""
        return tuple(finding for finding in self.findings if finding.severity is severity)

    @property
    def healthy(self) -> bool:
        """True without errors and warnings; notes do not count."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return 0 if self.healthy else 3


_ORDER = list(Severity)


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sorted by severity, the worst first; otherwise in the order they were found."""
    return tuple(sorted(findings, key=lambda each: _ORDER.index(each.severity)))
