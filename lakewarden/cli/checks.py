"""`lakewarden verify` and `lakewarden fsck`: prove a past compaction again, and check a table for damage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lakewarden.cli.invocation import invocation
from lakewarden.cli.options import JsonFlag, Operator, TableName, table_ref
from lakewarden.cli.screen import Screen
from lakewarden.errors import UsageError
from lakewarden.formatting import counted, duration, moment, number, size
from lakewarden.jobs.fsck.findings import Finding, FsckResult, Severity
from lakewarden.lineage.summary import origin
from lakewarden.model.plain import Plain, pick
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.jobs.fsck.adopt_folder import Claim
    from lakewarden.jobs.verify.result import RewriteSide, Verification


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)
    app.command("fsck")(fsck)


def verify(
    ctx: typer.Context,
    table: TableName,
    snapshot: Annotated[
        int, typer.Argument(metavar="SNAPSHOT", help="Id of a snapshot that rewrote data files.")
    ],
    as_json: JsonFlag = False,
) -> int:
    """Prove a past compaction again, by any engine: the files it added contain the same rows as the files it
    removed.

    Never changes anything. It reads both sides completely, with deletes applied, so the removed files must
    still exist. The exit code is 0 if the rows are equal, 1 if rows differ, and 3 if files are missing or
    unreadable, so that nothing can be proven.

    Example: `lakewarden verify lake.db.events 5781947118336215154`
    """
    screen, ref = Screen(as_json), table_ref(table)
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        done = lakewarden.verify(ref, snapshot, screen.progress())
    screen.show(VerifyReport(done))
    return done.state.exit_code


NEXT = {
    "differs": "keep the old snapshots: stop expiry on this table, and read the snapshot before this one",
    "cannot-tell": "this is no sign of wrong rows; verify a compaction before its input files expire",
}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    done: Verification

    def to_dict(self) -> dict[str, Any]:
        done = self.done
        return {
            "table": str(done.table),
            **pick(done.snapshot, "snapshot_id=id parent_id committed_at operation"),
            "origin": origin(done.snapshot),
            **pick(done, "state reason file? removed added stored_digest stored_agrees seconds"),
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
            ("result", Text(done.reason, style=look.STATE_STYLES[done.state])),
            ("took", duration(done.seconds)),
        ]
        if done.state in NEXT:
            rows.append(("next", NEXT[done.state]))
        return rows


def _words(side: RewriteSide) -> str:
    files = f"{counted(side.files, 'file')}, {size(side.bytes)}"
    if side.rows is None or side.deleted is None:
        return f"{files}, not read"
    deleted = f", without {counted(side.deleted, 'deleted row')}" if side.deleted else ""
    return f"{files}, {counted(side.rows, 'row')}{deleted}"


def _digests(done: Verification) -> str:
    """The digest once if both sides and the stored one agree, otherwise each digest with its side."""
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
        return "the commit stored none" + (f", the run proved it by {proof}" if proof else "")
    words = {True: "agrees", False: "does not agree", None: "was not compared"}
    return f"the digest stored by the commit {words[done.stored_agrees]}"


def fsck(
    ctx: typer.Context,
    table: TableName,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            metavar="",
            help="Also decode every page of every Parquet file of the current snapshot, and count the rows.",
        ),
    ] = False,
    adopt_folder: Annotated[
        bool,
        typer.Option(
            "--adopt-folder",
            metavar="",
            help="Instead of checking, show the foreign metadata files that block sweep and purge; with --yes, mark them for deletion.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", metavar="", help="With --adopt-folder: mark the files for deletion.")
    ] = False,
    operator: Operator = None,
    as_json: JsonFlag = False,
) -> int:
    """Check a table for damage: missing or broken metadata, manifests, data files, delete files and
    statistics.

    Never changes anything, except with --adopt-folder --yes. It does not stop at the first error: it lists
    every error and how to repair it. The exit code is 0 if nothing is wrong, 3 if there is an error or a
    warning.

    Example: `lakewarden fsck lake.db.events --deep`
    """
    from lakewarden.services.deps import current_user

    screen, ref = Screen(as_json), table_ref(table)
    if yes and not adopt_folder:
        raise UsageError(
            reason="cannot use --yes: it needs --adopt-folder", hint="add --adopt-folder, or leave out --yes"
        )
    if adopt_folder:
        with invocation(ctx).open(screen, spark=True) as lakewarden:
            claim = lakewarden.holds.adopt_folder(ref, operator=operator or current_user(), confirm=yes)
        screen.show(AdoptReport(claim))
        return 0
    with invocation(ctx).open(screen, spark=True) as lakewarden:
        done = lakewarden.fsck(ref, deep=deep, progress=screen.progress())
    screen.show(FsckReport(done))
    return done.exit_code


_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "dim"}
# Files shown per finding; `--json` has up to 100.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FsckReport:
    done: FsckResult

    def to_dict(self) -> dict[str, Any]:
        done = self.done
        return {
            **pick(done, "table made_at snapshot_id metadata=metadata_location healthy"),
            "errors": len(done.of(Severity.ERROR)),
            "warnings": len(done.of(Severity.WARNING)),
            "notes": len(done.of(Severity.NOTE)),
            **pick(done, "findings looked_at=looked deep seconds"),
        }

    def render(self, width: int) -> RenderableType:
        done = self.done
        parts: list[RenderableType] = [
            Text.assemble(look.title("fsck", str(done.table)), "  ", _summary(done))
        ]
        for each in done.findings:
            parts += [Text(), *_told(each)]
        return look.stack(*parts, Text(), look.dim(_looked_at(done)))


@dataclass(frozen=True, slots=True)
class AdoptReport(Plain):
    """Foreign metadata files in the table's folder that were adopted, or that --yes would adopt."""

    claim: Claim

    JSON_KEYS = "**claim"

    def render(self, width: int) -> RenderableType:
        claim = self.claim
        parts: list[RenderableType] = [look.title("adopt folder", str(claim.table)), Text()]
        parts += [Text(f"{each.path}  uuid {each.uuid or 'unknown'}") for each in claim.files]
        return look.stack(*parts, Text(), look.dim(self._told()))

    def _told(self) -> str:
        claim, files = self.claim, counted(len(self.claim.files), "metadata file")
        if not claim.files:
            return "no foreign metadata in the table's own metadata folders"
        if claim.batch is None:
            return f"{files} can be adopted; nothing was changed. If no catalog uses these files, run it again with --yes to mark them for deletion"
        return (
            f"{files} marked for deletion by {claim.operator}: sweep and purge are no longer blocked. Purge deletes the files after orphan_grace_hours. "
            f"To undo this: `lakewarden restore '{claim.table}' --run {claim.batch}`"
        )


def _summary(done: FsckResult) -> Text:
    if done.healthy:
        return Text("nothing is wrong", style="bold green")
    errors, warnings = len(done.of(Severity.ERROR)), len(done.of(Severity.WARNING))
    said = [counted(errors, "error")] if errors else []
    said += [counted(warnings, "warning")] if warnings else []
    return Text(", ".join(said), style=_STYLES[Severity.ERROR if errors else Severity.WARNING])


def _told(finding: Finding) -> list[RenderableType]:
    title = Text.assemble("  ", (str(finding.severity), _STYLES[finding.severity]), "  ", str(finding.kind))
    rows: list[tuple[str, str | Text]] = [("what", finding.what)]
    shown = finding.paths[:_SHOWN]
    rows += [("file" if place == 0 else "", path) for place, path in enumerate(shown)]
    more = finding.count - len(shown)
    if shown and more > 0:
        rows.append(("", look.dim(f"… {number(more)} more; --json lists up to 100")))
    rows.append(("repair", finding.repair))
    return [title, look.facts(rows, indent=4)]


def _looked_at(done: FsckResult) -> str:
    looked = done.looked
    footers = f", {counted(looked.footers, 'data or delete file')} decoded" if done.deep else ""
    return (
        f"  checked {counted(looked.snapshots, 'snapshot')}, {counted(looked.manifests, 'manifest')}, "
        f"{counted(looked.files, 'file')} they name{footers}, and {counted(looked.listed, 'file')} in the table's folders, "
        f"in {duration(done.seconds)}; nothing was changed"
    )
