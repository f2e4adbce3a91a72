"""Removing files of ours that nothing names: outputs that did not become part of a table, details of history that were replaced.

OSError where a store keeps any of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lakewarden.engine.erase import erase
from lakewarden.engine.kernels.storage import Store
from lakewarden.formats.seam import TableFormat
from lakewarden.model import TableRef
from lakewarden.safety.permit import Permit, for_native_outputs, for_replaced_history, for_uncommitted_outputs


def discard_planned(
    format_: TableFormat,
    table: TableRef,
    run_id: str,
    prefixes: Iterable[str],
    *,
    commit_tried: bool,
    commit_lost: bool,
) -> int:
    """Whatever stands under the prefixes a run journaled before writing, whichever attempt of a task wrote it."""
    wanted = list(prefixes)
    if not wanted:
        return 0
    io = format_.write_properties(table)
    store = Store(io)
    paths = [path for prefix in wanted for path in store.under(prefix) if path.endswith(".parquet")]
    permit = for_uncommitted_outputs(run_id, paths, commit_tried=commit_tried, commit_lost=commit_lost)
    return _erase_all(permit, io)


def discard_native(
    format_: TableFormat, table: TableRef, run_id: str, paths: Sequence[str], *, commit_lost: bool
) -> int:
    """Files the format's own writer named."""
    if not paths:
        return 0
    permit = for_native_outputs(run_id, paths, commit_lost=commit_lost)
    return _erase_all(permit, format_.write_properties(table))


def discard_replaced_history(io: Mapping[str, str], paths: Sequence[str], named: Collection[str]) -> int:
    """Details in files that the index of the history names no more; `named` are those it does."""
    return _erase_all(for_replaced_history(paths, named=named), io)


def _erase_all(permit: Permit, io: Mapping[str, str]) -> int:
    """How many names are gone now: all of them, or OSError."""
    failed = erase(permit, io)
    for path, reason in failed.items():
        raise OSError(f"{len(failed)} of {len(permit.paths)} files, such as {path}: {reason}")
    return len(permit.paths)
