"""Repair instructions for findings, as commands of the table's format. Lakewarden does not run them."""

from __future__ import annotations

from collections.abc import Sequence

from lakewarden.jobs.fsck.findings import NAMED
from lakewarden.model.table import TableView
from lakewarden.tables.metadata_walk import WalkRoot

BACKUP = "restore it from a backup, or from an older object version if the bucket has versioning"


def roll_back(view: TableView, snapshot_id: int) -> str:
    """How to make an earlier snapshot current again."""
    if _is_paimon(view):
        call = f"`CALL sys.rollback(table => '{view.ref.short}', snapshot => {snapshot_id})`"
        return f"{call}, which deletes the newer ones; their files stay until a sweep"
    return f"`CALL {view.ref.catalog}.system.rollback_to_snapshot('{view.ref.short}', {snapshot_id})`"


def drop_files(view: TableView) -> str:
    """How to remove a lost file from the table."""
    if _is_paimon(view):
        call = f"`CALL sys.remove_unexisting_files(table => '{view.ref.short}')`"
        return f"{call} removes missing files, so that the rest can be read"
    return "`table.newDelete().deleteFile(path).commit()` drops it, so that the rest can be read"


def expire_or_drop(view: TableView, roots: Sequence[WalkRoot]) -> str:
    """How to remove all snapshots and refs that need a lost file, if the current snapshot does not need it."""
    ids = [root.snapshot_id for root in roots if not root.copy]
    copies = list(dict.fromkeys(root.copy for root in roots if root.copy_kind == "tag"))
    if not ids and not copies:
        return f"wait until {roots[0].copy} expires" if roots else "let it be"
    if any(ref.snapshot_id in ids and not ref.has_copy for ref in view.refs if ref.kind != "consumer"):
        copies.append("the tags that need it")
    drop = f"drop {', '.join(copies[:5])}{' …' if len(copies) > 5 else ''}" if copies else ""
    if not ids:
        return drop
    then = f"{drop}, then " if drop else ""
    return f"{then}expire the snapshots that need it: `lakewarden run expire {view.ref} {_only(view, ids)}`"


def _only(view: TableView, ids: Sequence[int]) -> str:
    """The policy for that expiry. If snapshots expire in order, older ones expire as well."""
    if not view.in_order:
        return f"--set snapshot_ids={','.join(str(each) for each in ids[:NAMED])}"
    newer = sum(snapshot.id > max(ids) for snapshot in view.snapshots)
    return f"--set snapshot_retention_hours=0 --set snapshot_min_retained={newer}"


def name_once(view: TableView) -> str:
    """How to repair a file that is named twice."""
    if _is_paimon(view):
        return "rewrite its partition with each row once: `INSERT OVERWRITE` the partition with its distinct rows"
    return "drop and add it again in one transaction: `newDelete().deleteFile(path)` removes all its entries, `newAppend().appendFile(…)` adds one"


def statistics(view: TableView) -> str:
    """How to compute statistics."""
    if _is_paimon(view):
        return f"`ANALYZE TABLE {view.ref.short} COMPUTE STATISTICS`"
    return f"`CALL {view.ref.catalog}.system.compute_table_stats('{view.ref.short}')`"


def _is_paimon(view: TableView) -> bool:
    return view.format == "paimon"
