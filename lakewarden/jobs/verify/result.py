"""The result of verifying a rewrite: the evidence, and the result that follows from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from lakewarden.model.table import Snapshot, TableRef
from lakewarden.rewrite.digest import Digest
from lakewarden.rewrite.interface import RewriteProblem
from lakewarden.rewrite.verify import FileContent, Miscounted
from lakewarden.tables.interface import FilesWithDeletes

DIGEST_KEY = "lineage.digest"


class VerifyResult(StrEnum):
    """The outcome. `cannot-tell` does not mean damage: the files for a proof are gone or cannot be read."""

    PROVEN = "proven"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot-tell"

    @property
    def exit_code(self) -> int:
        return {VerifyResult.PROVEN: 0, VerifyResult.DIFFERS: 1, VerifyResult.CANNOT_TELL: 3}[self]


@dataclass(frozen=True, slots=True)
class RewriteSide:
    """The removed or the added files of a rewrite. `rows` and `digest` are without deleted rows; None if not read."""

    files: int
    bytes: int
    rows: int | None = None
    deleted: int | None = None
    digest: str | None = None

    @classmethod
    def of(cls, files: FilesWithDeletes, seen: FileContent | None) -> RewriteSide:
        counted = cls(len(files.files), sum(file.bytes for file in files.files))
        if seen is None:
            return counted
        return cls(counted.files, counted.bytes, seen.rows.rows, seen.deleted, str(seen.rows))


@dataclass(frozen=True, slots=True)
class Verification:
    """The verification of a past rewrite. `file` is the damaged file, if there is one.

    `stored_agrees`: whether the added files still have the rows whose digest the commit stored; None if unknown.
    """

    table: TableRef
    snapshot: Snapshot
    state: VerifyResult
    reason: str
    removed: RewriteSide
    added: RewriteSide
    file: str = ""
    stored_digest: str | None = None
    stored_agrees: bool | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class VerifyEvidence:
    """The values that were read. A side is None if it was not read completely; `trouble` says why.

    `written` is the digest of all rows of the added files, including deleted rows, as a commit stores it.
    """

    removed: FileContent | None = None
    added: FileContent | None = None
    written: Digest | None = None
    stored: Digest | None = None
    trouble: RewriteProblem | None = None
    miscounted: tuple[Miscounted, ...] = ()

    @property
    def stored_agrees(self) -> bool | None:
        return None if self.stored is None or self.written is None else self.stored == self.written


def stored_digest(snapshot: Snapshot) -> Digest | None:
    """The digest that the commit stored; None if it stored none, or one of an unknown kind."""
    try:
        return Digest.parse(snapshot.summary.get(DIGEST_KEY, ""))
    except ValueError:
        return None


def judge(found: VerifyEvidence) -> tuple[VerifyResult, str, str]:
    """The result, the reason, and the damaged file. A proven difference outranks files that could not be read."""
    differences = list(_differences(found))
    if differences:
        file = found.miscounted[0].path if found.miscounted else ""
        return VerifyResult.DIFFERS, "; ".join(differences), file
    if found.trouble is not None:
        agrees = "; the files added still hold the rows whose digest the commit stored"
        return (
            VerifyResult.CANNOT_TELL,
            str(found.trouble) + (agrees if found.stored_agrees else ""),
            found.trouble.path,
        )
    agrees = ", and those whose digest the commit stored" if found.stored_agrees else ""
    return VerifyResult.PROVEN, f"the rows of the files added are the rows of the files removed{agrees}", ""


def _differences(found: VerifyEvidence) -> Iterator[str]:
    for each in found.miscounted:
        yield f"{each.path} has {each.found} rows, the table says {each.expected}"
    if found.removed is not None and found.added is not None and found.removed.rows != found.added.rows:
        yield _unequal(found.removed.rows, found.added.rows)
        if found.stored_agrees:
            yield "the files added still hold the rows whose digest the commit stored"
    if found.stored_agrees is False:
        yield (
            f"the files added do not hold the rows whose digest the commit stored: "
            f"they have digest {found.written} instead of {found.stored}"
        )


def _unequal(removed: Digest, added: Digest) -> str:
    more = (
        f"as many ({added.rows}), but not the same"
        if removed.rows == added.rows
        else f"{removed.rows} removed, {added.rows} added"
    )
    return (
        "the rows of the files added are not the rows of the files removed: "
        f"{more} (digest {added} instead of {removed})"
    )
