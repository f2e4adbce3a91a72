"""restore: take files out of the trash for good, as long as they exist."""

from __future__ import annotations

from datetime import datetime

from lakewarden.errors import Refused, UsageError
from lakewarden.model.location import is_absolute
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import RestoreResult


def restore(
    files: TrashedFiles,
    table: str,
    table_uuid: str | None,
    now: datetime,
    *,
    path: str | None,
    run: str | None,
    everything: bool,
    operator: str,
) -> RestoreResult:
    """Restore one file, the files of one run, or all files of the table. Refused for a file that is gone or being deleted."""
    if [path is not None, run is not None, everything].count(True) != 1:
        raise UsageError(
            reason=f"restore files of {table}: say which, in one way",
            hint="a PATH, the run that trashed them (--run ID), or all of them (--all); see "
            f"`lakewarden trash {table}`",
        )
    if run is not None:
        _check_run(files, table, table_uuid, run)
    done = files.restore(table, path=path, batch_id=run, table_uuid=table_uuid, operator=operator, now=now)
    if path is not None:
        _check_path(table, path, done)
    elif not done.files and not done.already and (late := done.gone + done.erasing):
        # The caller must not believe that the files are back.
        raise Refused(
            action="restore",
            target=f"files of {table}",
            reason=f"it is too late for each of the {late:,}: {done.gone:,} deleted, {done.erasing:,} being deleted",
            hint=f"see `lakewarden receipts {table}` for when and by which run",
        )
    return done


def _check_run(files: TrashedFiles, table: str, table_uuid: str | None, run: str) -> None:
    found = [each.batch.id for each in files.batches(table, table_uuid)]
    if run not in found:
        some = ", ".join(found[-3:]) or "none"
        raise UsageError(
            reason=f"restore what run {run} trashed: it trashed no files of {table}; runs that did: {some}",
            hint=f"see `lakewarden trash {table}`",
        )


def _check_path(table: str, path: str, done: RestoreResult) -> None:
    if done.files or done.already:
        return
    if done.erasing:
        raise Refused(
            action="restore",
            target=path,
            reason="a run is deleting it at this moment",
            hint="if that run has stopped, let another look which of its files are there, deleting none: "
            f"`lakewarden run purge {table} --set delete_grace_hours=720`; then restore",
        )
    if done.gone:
        raise Refused(
            action="restore",
            target=path,
            reason="it is deleted",
            hint=f"see `lakewarden receipts {table}` for when and by which run",
        )
    whole = is_absolute(path)
    reason = "it is not trashed" if whole else "it is no whole path, and none"
    raise UsageError(reason=f"restore {path}: {reason} for {table}", hint=f"see `lakewarden trash {table}`")
