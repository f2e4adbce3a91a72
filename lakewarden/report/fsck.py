"""A table looked over: what is wrong, whom it hurts, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakewarden.formatting import counted, duration, number
from lakewarden.jobs.fsck.adopt_folder import Claim
from lakewarden.jobs.fsck.findings import Checkup, Finding, Severity
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "dim"}
# So many of a finding's files are shown; `--json` has a hundred.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FsckReport:
    done: Checkup

    def to_dict(self) -> dict[str, Any]:
        done, looked = self.done, self.done.looked
        return {
            "table": str(done.table),
            "made_at": done.made_at.isoformat(),
            "snapshot_id": done.snapshot_id,
            "metadata": done.metadata_location,
            "healthy": done.healthy,
            "errors": len(done.of(Severity.ERROR)),
            "warnings": len(done.of(Severity.WARNING)),
            "notes": len(done.of(Severity.NOTE)),
            "findings": [_finding(each) for each in done.findings],
            "looked_at": {
                "snapshots": looked.snapshots,
                "manifests": looked.manifests,
                "files": looked.files,
                "listed": looked.listed,
                "footers": looked.footers,
            },
            "deep": done.deep,
            "seconds": done.seconds,
        }

    def render(self, width: int) -> RenderableType:
        done = self.done
        parts: list[RenderableType] = [
            Text.assemble(look.title("fsck", str(done.table)), "  ", _verdict(done))
        ]
        for each in done.findings:
            parts += [Text(), *_told(each)]
        return look.stack(*parts, Text(), look.dim(_looked_at(done)))


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """What is, or would be, claimed with a table's folder."""

    claim: Claim

    def to_dict(self) -> dict[str, Any]:
        return self.claim.to_dict()

    def render(self, width: int) -> RenderableType:
        claim = self.claim
        parts: list[RenderableType] = [look.title("adopt folder", str(claim.table)), Text()]
        parts += [Text(f"{each.path}  uuid {each.uuid or 'unknown'}") for each in claim.files]
        return look.stack(*parts, Text(), look.dim(self._told()))

    def _told(self) -> str:
        claim, files = self.claim, counted(len(self.claim.files), "metadata file")
        if not claim.files:
            return "nothing to claim in the table's own metadata folders"
        if claim.verdict is None:
            return f"{files} can be adopted; nothing was changed. If no catalog uses these files, add --yes: it marks them for deletion"
        return (
            f"{files} marked for deletion by {claim.operator}: sweep and purge work again; purge deletes the files after orphan_grace_hours. "
            f"`lakewarden restore '{claim.table}' --run {claim.verdict}` takes it back"
        )


def _verdict(done: Checkup) -> Text:
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
        rows.append(("", look.dim(f"… {number(more)} more; --json names a hundred")))
    rows.append(("repair", finding.repair))
    return [title, look.facts(rows, indent=4)]


def _looked_at(done: Checkup) -> str:
    looked = done.looked
    footers = f", {counted(looked.footers, 'data or delete file')} decoded" if done.deep else ""
    return (
        f"  looked at {counted(looked.snapshots, 'snapshot')}, {counted(looked.manifests, 'manifest')}, "
        f"{counted(looked.files, 'file')} they name{footers}, and {counted(looked.listed, 'file')} in the table's folders, "
        f"in {duration(done.seconds)}; nothing was changed"
    )


def _finding(each: Finding) -> dict[str, Any]:
    return {
        "kind": str(each.kind),
        "severity": str(each.severity),
        "what": each.what,
        "repair": each.repair,
        "count": each.count,
        "paths": list(each.paths),
        "snapshot_ids": list(each.snapshot_ids),
    }
