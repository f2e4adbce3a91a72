"""Proves that expired files have an intact copy in the cold tier, before purge may delete the live files.

    promised   the cold table has the snapshots that expired with the file, or had them until its own retention was over
    exists     this cold table has a complete copy: every byte is read; in an archive, size and etag are compared
    repaired   a damaged copy is made again from the live file, because this is the last chance

If the process stops, a repaired copy without a record equals the live file, so the next run accepts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakewarden import clock
from lakewarden.jobs.cold.copies import in_tasks, place, record
from lakewarden.jobs.deps import JobDeps
from lakewarden.jobs.run_context import RunContext
from lakewarden.model.location import inside
from lakewarden.model.prices import ARCHIVED
from lakewarden.model.table import TableView
from lakewarden.policy.resolve import Policy
from lakewarden.rewrite.copy.copy import NEVER, Copied, CopyTask, copy, measure
from lakewarden.state.cold import ColdFile, ColdFiles, ColdSnapshots
from lakewarden.storage.archive import ObjectArchive
from lakewarden.tables.interface import ColdHome

_AGAIN = "it was written again after it was copied"


def unproven(
    context: RunContext,
    view: TableView,
    policy: Policy,
    deps: JobDeps,
    files: pa.Table,
    promised: Mapping[str, frozenset[int]],
) -> dict[str, str]:
    """The files (path, modified) that must not be deleted because their copy is missing or damaged, each with the reason.

    `promised` are the snapshots, by path, that the cold table must have: a copy that no table names is useless.
    """
    paths: list[str] = files["path"].to_pylist()
    home = context.format.cold_tier().find(view, policy.text("handoff_catalog"))
    if home is None:
        return dict.fromkeys(paths, "there is no cold table")
    gone = home.snapshots | ColdSnapshots(deps.state).left(view.uuid)
    reasons = {
        path: f"{home.ref} does not have snapshot {min(ids - gone)}"
        for path, ids in promised.items()
        if not ids <= gone
    }
    modified = dict(zip(paths, files["modified"].to_pylist(), strict=True))
    proof = _Proof(context, view, home, deps, policy.maybe_text("handoff_storage_class"))
    rest = [path for path in paths if path not in reasons]
    records = ColdFiles(deps.state)
    every, over = records.among(view.uuid, rest), records.let_go_among(view.uuid, rest)
    # Snapshots that cold retention has released need no copy any more.
    reasons |= proof.unknown([path for path in rest if path not in every and path not in over])
    here = {path: each for path, each in every.items() if inside(each.cold_path, home.location)}
    reasons |= {path: f"its copy is not in {home.ref}" for path in every if path not in here}
    doubtful = proof.doubtful(here)
    again = {path for path, each in here.items() if path not in doubtful and each.before(modified[path])}
    return reasons | proof.changed_since(here, again) | proof.mend(here, doubtful)


class _Proof:
    def __init__(
        self,
        context: RunContext,
        view: TableView,
        home: ColdHome,
        deps: JobDeps,
        storage_class: str | None,
    ) -> None:
        self.context, self.view, self.home, self.storage_class = context, view, home, storage_class
        self.state, self.tier = deps.state, context.format.cold_tier()

    def unknown(self, paths: Sequence[str]) -> dict[str, str]:
        """Files without a record, which may have been lost: a copy that equals the live file is accepted and recorded."""
        move = self.tier.rehome(self.view, self.home)
        places = {path: place(move, path) for path in paths}
        tasks = [
            CopyTask(path, there, self.view.io, self.home.io, known=NEVER)
            for path, there in places.items()
            if there is not None
        ]
        equal = self._mended(tasks)
        record(self.state, self.view, self.home, equal, self.context.run_id)
        proven = {each.source for each in equal}
        return {path: "no copy of it in the colder tier is on record" for path in paths if path not in proven}

    def doubtful(self, have: Mapping[str, ColdFile]) -> dict[str, str]:
        """The copies that changed since they were made, each with the reason. The others are recorded as read."""
        archived = {path: each for path, each in have.items() if in_archive(each)}
        wrong = changed([*archived.values()], self.home.io)
        reasons = {path: wrong[each.path] for path, each in archived.items() if each.path in wrong}
        tasks = [self._task(path, each) for path, each in have.items() if path not in archived]
        for copied in in_tasks(self.context, tasks, measure):
            known = have[copied.source]
            if copied.trouble:
                reasons[copied.source] = f"its copy {copied.target} cannot be read: {copied.trouble}"
            elif (copied.bytes, copied.checksum) != (known.size, known.checksum):
                reasons[copied.source] = f"its copy {copied.target} differs from what was copied"
        read = [task.source for task in tasks if task.source not in reasons]
        ColdFiles(self.state).prove(self.view.uuid, read, clock.now())
        return reasons

    def changed_since(self, have: Mapping[str, ColdFile], paths: Collection[str]) -> dict[str, str]:
        """Files that were overwritten after they were copied and now differ from their (intact) copies."""
        tasks = [replace(self._task(path, have[path]), known=NEVER) for path in paths]
        same = {each.source for each in self._mended(tasks)}
        # An archived copy cannot be read, but its checksum is in the record.
        live = [replace(task, target=task.source, target_io=self.view.io) for task in tasks]
        for each in in_tasks(self.context, [each for each in live if each.source not in same], measure):
            known = have[each.source]
            if (each.bytes, each.checksum) == (known.size, known.checksum):
                same.add(each.source)
        return {path: _AGAIN for path in paths if path not in same}

    def mend(self, have: Mapping[str, ColdFile], doubtful: Mapping[str, str]) -> dict[str, str]:
        """Repair damaged copies from the live files that have not changed since they were copied. Returns all with the reason."""
        tasks = [
            replace(
                self._task(path, have[path]),
                known=(have[path].size, have[path].checksum),
                # Metadata gets no storage class: it must stay readable.
                storage_class=self.storage_class if have[path].storage_class else None,
            )
            for path in doubtful
        ]
        reasons, mended = dict(doubtful), self._mended(tasks)
        new = [each for each in mended if each.written]
        record(self.state, self.view, self.home, new, self.context.run_id)
        for each in mended:
            if each.written:
                reasons[each.source] += "; it was made again from this file, and the next run checks it again"
            else:
                del reasons[each.source]
        return reasons

    def _task(self, path: str, copy_: ColdFile) -> CopyTask:
        return CopyTask(path, copy_.cold_path, self.view.io, self.home.io)

    def _mended(self, tasks: Sequence[CopyTask]) -> list[Copied]:
        """The files whose copy is intact now, after a repair if needed. Only the originally copied content is written."""
        plain = [each for each in in_tasks(self.context, tasks, copy) if not each.trouble]
        whole = {each.source for each in plain}
        # Some files were copied with changed paths. Their checksum identifies them; any other content is left alone.
        rest = [task for task in tasks if task.source not in whole and self.tier.may_name(task.source)]
        moves = (self.view.location, self.home.location)
        again = in_tasks(self.context, [replace(each, rehome=moves) for each in rest], copy)
        return plain + [each for each in again if not each.trouble]


def in_archive(record: ColdFile) -> bool:
    """Whether the copy cannot be read. Before the transition every byte was read and its etag was recorded."""
    return record.storage_class in ARCHIVED and record.etag is not None and record.proven_at is not None


def changed(records: Sequence[ColdFile], io: Mapping[str, str]) -> dict[str, str]:
    """For each damaged copy the reason, by the path of its live file. An archive gives only size and etag. That is enough: an
    object cannot change without one of them changing."""
    if not records:
        return {}
    states = ObjectArchive(io).look([each.cold_path for each in records])
    wrong: dict[str, str] = {}
    for copied, now in zip(records, states, strict=True):
        if now is None:
            wrong[copied.path] = f"its copy {copied.cold_path} does not exist"
        elif (now.size, now.etag) != (copied.size, copied.etag):
            wrong[copied.path] = f"its copy {copied.cold_path} differs from what was copied"
    return wrong
