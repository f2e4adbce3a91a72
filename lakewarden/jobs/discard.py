"""Removing the outputs of a rewrite that did not become part of the table. The only caller of `erase`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakewarden.engine.erase import erase
from lakewarden.engine.kernels.storage import Store
from lakewarden.formats.seam import TableFormat
from lakewarden.model import TableRef
from lakewarden.safety.permit import for_native_outputs, for_uncommitted_outputs


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
    return erase(permit, io)


def discard_native(
    format_: TableFormat, table: TableRef, run_id: str, paths: Sequence[str], *, commit_lost: bool
) -> int:
    """Files the format's own writer named."""
    if not paths:
        return 0
    return erase(for_native_outputs(run_id, paths, commit_lost=commit_lost), format_.write_properties(table))
