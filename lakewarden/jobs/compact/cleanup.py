"""Removes Lakewarden's own files that nothing names: outputs that did not become part of a table, and replaced details
of history.

Raises OSError if a store keeps any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from lakewarden.deletion.erase import erase
from lakewarden.deletion.permit import (
    Permit,
    ask_table,
    for_native_outputs,
    for_replaced_history,
    for_uncommitted_outputs,
    never_sent,
)
from lakewarden.errors import Refused
from lakewarden.jobs.journaled_commit import CleanupResult
from lakewarden.jobs.run_context import RunContext, StepName
from lakewarden.model.table import TableRef, TableView
from lakewarden.rewrite.read.store import Store
from lakewarden.tables.interface import TableFormat

log = logging.getLogger(__name__)


def discard(
    format_: TableFormat,
    table: TableRef,
    uuid: str,
    run_id: str,
    begun: Set[int] | None,
    groups: Collection[int],
    *,
    prefixes: Iterable[str] = (),
    native: Sequence[str] = (),
) -> CleanupResult:
    """The only way to remove outputs of a run: files under the run's journaled prefixes, and files that the format's
    library named.

    `begun`: the groups whose commit this process began. If one of `groups` is among them, the table is asked first. It is
    always asked for the run of another process (None): a journal from a backup may lack the commit.
    """
    sent = begun is None or not begun.isdisjoint(groups)
    try:
        io = format_.write_properties(table)
        planned = _under(prefixes, io)
        wanted = [*planned, *native]
        if not wanted:
            return CleanupResult.GONE
        if begun is None or sent:
            unnamed, named = ask_table(format_, table, uuid, wanted)
        else:
            unnamed, named = never_sent(wanted, groups, begun), ()
    except Exception as error:
        if not sent:
            raise
        # Any error: without the table's answer all files stay.
        log.warning("outputs of run %s stay, because %s cannot be asked: %s", run_id, table, error)
        return CleanupResult.UNTOLD
    if named:
        return CleanupResult.COMMITTED
    _erase_all(for_uncommitted_outputs(run_id, planned, unnamed), io)
    _erase_all(for_native_outputs(run_id, native, unnamed), io)
    return CleanupResult.GONE


def discard_groups(
    context: RunContext,
    view: TableView,
    groups: Sequence[int],
    *,
    prefixes: Iterable[str] = (),
    native: Sequence[str] = (),
) -> CleanupResult:
    """`discard` for the run itself, with a step in its journal. A refusal is only logged: an orphan cannot damage the table."""
    run_id = context.run_id
    try:
        fate = discard(
            context.format,
            view.ref,
            view.uuid,
            run_id,
            context.begun,
            groups,
            prefixes=prefixes,
            native=native,
        )
    except (OSError, Refused) as error:
        log.warning("outputs of run %s stay as orphans: %s", run_id, error)
        return CleanupResult.GONE
    if fate is CleanupResult.GONE:
        context.step(StepName.DISCARDED, {"groups": groups})
    return fate


def discard_unnamed(
    format_: TableFormat, table: TableRef, uuid: str, run_id: str, paths: Sequence[str]
) -> None:
    """After a commit: remove those of these delete files that the table does not name. An error leaves them as orphans."""
    if not paths:
        return
    try:
        unnamed, named = ask_table(format_, table, uuid, paths)
        left = [path for path in paths if path not in named]
        _erase_all(for_native_outputs(run_id, left, unnamed), format_.write_properties(table))
    except Exception as error:  # the commit is done: files that cannot be removed now stay for a sweep
        log.warning("delete files of run %s stay as orphans: %s", run_id, error)


def names_any(format_: TableFormat, table: TableRef, paths: Sequence[str]) -> bool:
    """Whether any snapshot of the table names one of these files."""
    return bool(paths) and bool(format_.reached(format_.view(table)).names(list(paths)).any())


def _under(prefixes: Iterable[str], io: Mapping[str, str]) -> list[str]:
    """All files under the prefixes, from any attempt of a task."""
    wanted = list(prefixes)
    store = Store(io) if wanted else None
    return [path for prefix in wanted if store for path in store.under(prefix) if path.endswith(".parquet")]


def discard_replaced_history(io: Mapping[str, str], paths: Sequence[str], named: Collection[str]) -> int:
    """Remove details that the index of the history no longer names; `named` are those that it names."""
    return _erase_all(for_replaced_history(paths, named=named), io)


def _erase_all(permit: Permit, io: Mapping[str, str]) -> int:
    """Erase all of them and return their number, or raise OSError."""
    failed = erase(permit, io) if permit.paths else {}
    for path, reason in failed.items():
        raise OSError(f"{len(failed)} of {len(permit.paths)} files, such as {path}: {reason}")
    return len(permit.paths)
