"""A Paimon table that is copied again and again, and what expire and purge make of it when nothing disturbs them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakewarden.model.run import RunState
from tests.support.paimon import PaimonLab

EXPIRE = {"snapshot_retention_hours": 0, "snapshot_min_retained": 3}
PURGE = {"delete_grace_hours": 0}
# Two changelogs outlive their snapshots; those of the others are made, and go in the same run.
CHANGELOGS = {
    "changelog-producer": "input",
    "snapshot.num-retained.min": "1",
    "changelog.num-retained.min": "5",
    "changelog.time-retained": "1 ms",
}


@dataclass
class Original:
    """A table that is copied for every fault, and what a run that nothing disturbs makes of it."""

    lab: PaimonLab
    table: str
    kept: dict[str, list[str]] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    @classmethod
    def make(cls, lab: PaimonLab) -> Original:
        table = lab.busy("original", keyed=True, **CHANGELOGS)
        lab.maker.tag(lab.load(table), "then", 3)
        lab.maker.tag(lab.load(table), "later", 7)
        lab.load(table).createBranch("side", "then")
        made, whole = cls(lab, table), stored(lab, table)
        with made.copied() as copy:
            both(lab, copy)
            made.files, made.kept = stored(lab, copy), readable(lab, copy)
        assert len(made.kept) == 3 + 2 + 1, "snapshots, tags and a branch"
        gone = whole - made.files
        assert any(each.startswith("snapshot/") for each in gone), "something went"
        assert len([each for each in made.files if each.startswith("changelog/")]) == 2
        return made

    @contextmanager
    def copied(self) -> Iterator[str]:
        """Alone in the lake: every other table would be read before anything is deleted."""
        original, aside = self.lab.folder(self.table), self.lab.warehouse.parent / "original"
        if original.exists():
            original.rename(aside)
        folder = original.with_name("copy")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(aside, folder)
        yield f"{self.lab.catalog}.db.copy"
        # The next copy will lie in the same place: nothing may be known of this one.
        with self.lab.lw.state.write() as connection:
            for name in ("trash", "trash_batches", "run_steps", "runs", "commit_locks", "archived_snapshots"):
                connection.exec_driver_sql(f"DELETE FROM {name}")

    def nothing_lost(self, copy: str) -> None:
        """Whatever is kept in the end is whole at every moment."""
        for name, rows in self.kept.items():
            kind, _, which = name.partition(" ")
            if kind == "snapshot":
                assert self.lab.rows(copy, int(which)) == rows
            elif kind == "tag":
                assert self.lab.rows(copy, tag=which) == rows
            else:
                assert self.lab.branch_rows(copy, which) == rows

    def intact(self, copy: str) -> None:
        """As if nothing had happened."""
        assert stored(self.lab, copy) == self.files
        assert readable(self.lab, copy) == self.kept


def stored(lab: PaimonLab, table: str) -> set[str]:
    """Every file but the hints, which Paimon works without."""
    return {each for each in lab.on_disk(table) if not each.endswith(("EARLIEST", "LATEST"))}


def readable(lab: PaimonLab, table: str) -> dict[str, list[str]]:
    """The rows of every snapshot, tag and branch, by Paimon's own reader."""
    view = lab.lw.view(table)
    found = {f"snapshot {each.id}": lab.rows(table, each.id) for each in view.snapshots}
    found |= {f"tag {ref.name}": lab.rows(table, tag=ref.name) for ref in view.refs if ref.kind == "tag"}
    return found | {"branch side": lab.branch_rows(table, "side")}


def both(lab: PaimonLab, table: str) -> None:
    """Expire, then purge at once."""
    for job, policy in (("expire", EXPIRE), ("purge", PURGE)):
        run = lab.lw.run(job, table, policy)
        assert run.state in (RunState.DONE, RunState.NOTHING_TO_DO), run.reason
