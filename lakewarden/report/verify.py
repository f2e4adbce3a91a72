"""A past rewrite that was looked at again: what it exchanged, and whether the rows are the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import counted, duration, moment, size
from lakewarden.jobs.verify.result import Side, Verdict, Verification
from lakewarden.lineage.summary import origin
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

NEXT = {
    Verdict.DIFFERS: "keep the old snapshots: expire nothing on this table, and read it as it was before this snapshot",
    Verdict.CANNOT_TELL: "this says nothing against the rows; verify a compaction before its inputs expire",
}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    done: Verification

    def to_dict(self) -> dict[str, Any]:
        done, snapshot = self.done, self.done.snapshot
        return {
            "table": str(done.table),
            "snapshot_id": snapshot.id,
            "parent_id": snapshot.parent_id,
            "committed_at": snapshot.committed_at.isoformat(),
            "operation": snapshot.operation,
            "origin": origin(snapshot),
            "state": str(done.state),
            "reason": done.reason,
            "file": done.file or None,
            "removed": _side(done.removed),
            "added": _side(done.added),
            "stored_digest": done.stored_digest,
            "stored_agrees": done.stored_agrees,
            "seconds": done.seconds,
            "next": NEXT.get(done.state, ""),
        }

    def render(self, width: int) -> RenderableType:
        done = self.done
        return look.stack(
            Text.assemble(look.title("verify", str(done.table)), "  ", look.state(done.state)),
            look.facts(self._facts()),
        )

    def _facts(self) -> list[tuple[str, str | Text]]:
        done, snapshot = self.done, self.done.snapshot
        rows: list[tuple[str, str | Text]] = [
            ("snapshot", f"{snapshot.id}, committed {moment(snapshot.committed_at)}"),
            ("operation", snapshot.operation),
            ("writer", origin(snapshot)),
            ("removed", _words(done.removed)),
            ("added", _words(done.added)),
            ("digest", _digests(done)),
            ("verdict", Text(done.reason, style=look.STATE_STYLES[done.state])),
            ("took", duration(done.seconds)),
        ]
        if done.state in NEXT:
            rows.append(("next", NEXT[done.state]))
        return rows


def _side(side: Side) -> dict[str, Any]:
    return {
        "files": side.files,
        "bytes": side.bytes,
        "rows": side.rows,
        "deleted": side.deleted,
        "digest": side.digest,
    }


def _words(side: Side) -> str:
    files = f"{counted(side.files, 'file')}, {size(side.bytes)}"
    if side.rows is None or side.deleted is None:
        return f"{files}, not read"
    deleted = f", {counted(side.deleted, 'deleted row')} left out" if side.deleted else ""
    return f"{files}, {counted(side.rows, 'row')}{deleted}"


def _digests(done: Verification) -> str:
    """Once where all agree, else each with whose it is."""
    found = {"removed": done.removed.digest, "added": done.added.digest}
    known = {name: digest for name, digest in found.items() if digest is not None}
    if len(known) == 2 and len(set(known.values())) == 1:
        text = f"{done.added.digest} on both sides"
    else:
        text = ", ".join(f"{digest} {name}" for name, digest in known.items()) or "not computed"
    return f"{text}; {_stored(done)}"


def _stored(done: Verification) -> str:
    if done.stored_digest is None:
        proof = done.snapshot.summary.get("lineage.proof")
        return "the commit stored none" + (f", it was proven by {proof} then" if proof else "")
    words = {True: "agrees", False: "does not agree", None: "was not compared"}
    return f"the one stored by the commit {words[done.stored_agrees]}"
