"""Trashed files: marked in a deletion batch (called batch in code), restored, or deleted with a receipt.

    batch   pending ──> active            the grace period starts here
                    └───> void              the change that would make its files unneeded did not happen

    file      trashed ──> erasing ──> erased | missing     the receipt; never removed, never changed
                 │          └──────> trashed               the delete failed, or its process died
                 ├─────> kept                             needed again or changed: this batch never deletes it
                 └─────> restored                         an operator wants it back: permanently

Every method is one transaction. A row leaves `trash` by one conditional UPDATE, so if a restore and
a delete meet, one gets the file and the other sees that it did not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from lakewarden.errors import Refused
from lakewarden.model.run import Owner
from lakewarden.state.database import State, upsert
from lakewarden.state.generation import protecting
from lakewarden.state.runs import fence
from lakewarden.state.schema import trash_batches, trashed
from lakewarden.state.trash_batches import (
    CLAIMED,
    LIVE,
    RECEIPTS,
    BatchFiles,
    BatchState,
    FileState,
    RestoreResult,
    Tally,
    TrashBatch,
    TrashedFile,
)
from lakewarden.state.trash_rows import (
    PAGE,
    among,
    as_arrow,
    as_batch,
    as_file,
    as_tally,
    in_states,
    insert_trashed,
    leave_to_others,
    pages,
)

if TYPE_CHECKING:  # commands that only list need no Arrow
    import pyarrow as pa

_AT_ONCE = 500


class TrashedFiles:
    def __init__(self, state: State) -> None:
        self._state = state

    # ------------------------------------------------------------ deletion batches

    def trash(
        self,
        batch_id: str,
        table: str,
        table_uuid: str,
        cause: str,
        reason: str,
        files: pa.Table,
        detail: Mapping[str, Any],
        now: datetime,
    ) -> Tally:
        """Store a pending deletion batch with its files (path, kind, size, stamp; the last two may be null).
        Nothing is deleted because of it yet.

        A second call replaces a pending or void batch. An active batch is never replaced: Refused.
        """
        row = {
            "id": batch_id,
            "table_name": str(table),
            "table_uuid": table_uuid,
            "cause": str(cause),
            "reason": reason,
            "state": BatchState.PENDING.value,
            "made_at": now,
            "detail": dict(detail),
        }
        with self._state.write() as connection:
            _clear(connection, batch_id)
            upsert(connection, trash_batches, row, ["id"])
        # In parts: a million files in one transaction blocked other SQLite writers for seven seconds, and a leader that cannot
        # renew its lease for that long loses it. A batch with a missing part never becomes active.
        for start in range(0, files.num_rows, PAGE):
            with self._state.write() as connection:
                _still_pending(connection, batch_id)
                insert_trashed(connection, batch_id, files.slice(start, PAGE))
        with self._state.read() as connection:
            return _tally(connection, batch_id, (FileState.TRASHED,))

    def enforce(self, batch_id: str, now: datetime) -> TrashBatch:
        """Make the batch active; if it is active already, its time is not changed. Refused if it is void or
        unknown.

        A file belongs to one batch and has one receipt. This batch takes over files that earlier active
        batches still have: the file was needed until now, so its grace period starts again. Files that a run
        is deleting right now stay with the earlier batch.
        """
        with self._state.write() as connection:
            batch = _batch_for_update(connection, batch_id)
            if batch.state is BatchState.ACTIVE:
                return batch
            if batch.state is BatchState.VOID:
                raise Refused(action="activate", target=f"deletion batch {batch_id}", reason="it is void")
            leave_to_others(connection, batch)
            active = {"state": BatchState.ACTIVE.value, "trashed_at": now}
            connection.execute(update(trash_batches).where(trash_batches.c.id == batch_id).values(active))
            return replace(batch, state=BatchState.ACTIVE, trashed_at=now)

    def void(self, batch_id: str) -> None:
        """Void a pending batch: its files were never trashed. Refused if the batch is active."""
        with self._state.write() as connection:
            batch = _batch_for_update(connection, batch_id)
            if batch.state is BatchState.ACTIVE:
                raise Refused(
                    action="void",
                    target=f"deletion batch {batch_id}",
                    reason="it is active",
                    hint=f"restore its files: `lakewarden restore {batch.table} --run {batch_id}`",
                )
            connection.execute(
                delete(trashed).where(trashed.c.batch_id == batch_id, in_states(FileState.TRASHED))
            )
            void = update(trash_batches).where(trash_batches.c.id == batch_id)
            connection.execute(void.values(state=BatchState.VOID.value))

    def batch(self, batch_id: str) -> TrashBatch | None:
        with self._state.read() as connection:
            row = connection.execute(
                select(trash_batches).where(trash_batches.c.id == batch_id)
            ).one_or_none()
        return None if row is None else as_batch(row)

    def pending(self, table: str) -> tuple[TrashBatch, ...]:
        """Pending batches of the table, oldest first: their runs have not yet made them active or void."""
        wanted = select(trash_batches).where(
            trash_batches.c.table_name == str(table), trash_batches.c.state == BatchState.PENDING.value
        )
        with self._state.read() as connection:
            rows = connection.execute(wanted.order_by(trash_batches.c.made_at, trash_batches.c.id)).all()
        return tuple(as_batch(row) for row in rows)

    def batches(self, table: str, table_uuid: str | None = None) -> tuple[BatchFiles, ...]:
        """Every deletion batch of the table with its totals. With `table_uuid` the batches are found even
        after a rename."""
        wanted = (
            select(trash_batches)
            .where(_of(table, table_uuid))
            .order_by(trash_batches.c.made_at, trash_batches.c.id)
        )
        totals = (
            select(trashed.c.batch_id, trashed.c.state, *_COUNTED)
            # Not a join: SQLite would start with the files of all tables, including all receipts.
            .where(trashed.c.batch_id.in_(select(trash_batches.c.id).where(_of(table, table_uuid))))
            .group_by(trashed.c.batch_id, trashed.c.state)
        )
        with self._state.read() as connection:
            found = [as_batch(row) for row in connection.execute(wanted)]
            counted = connection.execute(totals).all()
        tallies: dict[str, dict[FileState, Tally]] = {}
        for row in counted:
            tallies.setdefault(row.batch_id, {})[FileState(row.state)] = as_tally(row)
        return tuple(BatchFiles(each, tallies.get(each.id, {})) for each in found)

    # ------------------------------------------------------------ purging

    def due(
        self, table_uuid: str, graces: Mapping[str, timedelta], now: datetime, page: int = PAGE
    ) -> Iterator[pa.Table]:
        """Trashed files of active batches whose grace period is over: id, path, size, stamp, batch,
        trashed_at.

        By batch, oldest first, in pages. A cause that is missing in `graces` has no due files.
        """
        wanted = select(trash_batches).where(
            trash_batches.c.table_uuid == table_uuid, trash_batches.c.state == BatchState.ACTIVE.value
        )
        with self._state.read() as connection:
            active = [
                as_batch(row)
                for row in connection.execute(wanted.order_by(trash_batches.c.trashed_at, trash_batches.c.id))
            ]
        for batch in active:
            grace = graces.get(batch.cause)
            since = batch.waits_since
            if grace is not None and since is not None and since + grace <= now:
                yield from self._trashed_of(batch, page)

    def _trashed_of(self, batch: TrashBatch, page: int) -> Iterator[pa.Table]:
        columns = (trashed.c.id, trashed.c.path, trashed.c.size, trashed.c.stamp)
        wanted = select(*columns).where(trashed.c.batch_id == batch.id, in_states(FileState.TRASHED))
        for rows in pages(self._state.read, wanted, page):
            yield as_arrow(rows, batch)

    def begin_erasing(self, ids: Sequence[int], run_id: str, owner: Owner, now: datetime) -> list[int]:
        """Mark files as being deleted by this run and return their ids. Files that were restored in the
        meantime are left out.

        RunTaken, in the same transaction, if the run ended or another process owns it.
        """
        in_force = select(trash_batches.c.id).where(trash_batches.c.state == BatchState.ACTIVE.value)
        with self._state.write() as connection:
            fence(connection, run_id, owner, now)
            change = (
                update(trashed)
                .where(among(connection, ids), in_states(FileState.TRASHED), trashed.c.batch_id.in_(in_force))
                .values(state=FileState.ERASING.value, purge_run_id=run_id)
            )
            if connection.execute(change).rowcount == len(ids):
                return list(ids)  # nearly always all of them, and then no query is needed
            mine = select(trashed.c.id).where(
                among(connection, ids), in_states(FileState.ERASING), trashed.c.purge_run_id == run_id
            )
            return [row.id for row in connection.execute(mine.order_by(trashed.c.id))]

    def finish_erasing(
        self,
        run_id: str,
        now: datetime,
        *,
        erased: Sequence[int] = (),
        missing: Sequence[int] = (),
        failed: Mapping[int, str] | None = None,
    ) -> None:
        """Store the receipts of a batch. Files that could not be deleted go back to the trash, with the
        reason, for the next run.

        Rows that another run took over are left to it: it finds the file gone and writes the one receipt.
        """
        with self._state.write() as connection:
            _end(connection, run_id, erased, FileState.ERASED, "", now)
            _end(connection, run_id, missing, FileState.MISSING, "it was gone already", now)
            back = (
                update(trashed)
                .where(
                    trashed.c.id == bindparam("row"),
                    in_states(FileState.ERASING),
                    trashed.c.purge_run_id == run_id,
                )
                .values(state=FileState.TRASHED.value, note=bindparam("why"))
            )
            if failed:
                rows = [{"row": each, "why": f"not deleted: {why}"} for each, why in failed.items()]
                connection.execute(back, rows)

    def note_missing(self, ids: Sequence[int], run_id: str, owner: Owner, now: datetime) -> int:
        """Trashed files that are already gone, but not deleted by Lakewarden. They get a receipt that says
        so."""
        return self._settle(ids, FileState.MISSING, "it was gone already", run_id, owner, now)

    def keep(self, ids: Sequence[int], note: str, run_id: str, owner: Owner, now: datetime) -> int:
        """Keep these files: this batch never deletes them. `note` is the reason."""
        return self._settle(ids, FileState.KEPT, note, run_id, owner, now)

    def _settle(
        self, ids: Sequence[int], state: FileState, note: str, run_id: str, owner: Owner, now: datetime
    ) -> int:
        if not ids:
            return 0
        with self._state.write() as connection:
            fence(connection, run_id, owner, now)
            change = update(trashed).where(among(connection, ids), in_states(FileState.TRASHED))
            ending = {"state": state.value, "note": note, "purge_run_id": run_id, "ended_at": now}
            return connection.execute(change.values(ending)).rowcount

    def erasing(self, table_uuid: str) -> dict[str, dict[int, str]]:
        """Files that a run is deleting, or was deleting when its process stopped: by run, id and path."""
        mine = select(trash_batches.c.id).where(trash_batches.c.table_uuid == table_uuid)
        columns = (trashed.c.id, trashed.c.path, trashed.c.purge_run_id)
        wanted = select(*columns).where(trashed.c.batch_id.in_(mine), in_states(FileState.ERASING))
        found: dict[str, dict[int, str]] = {}
        with self._state.read() as connection:
            for row in connection.execute(wanted.order_by(trashed.c.id)):
                found.setdefault(row.purge_run_id, {})[row.id] = row.path
        return found

    def erasing_by(self, run_id: str) -> dict[int, str]:
        """Files that this run is deleting or was deleting, by id and path, even if the table changed since."""
        wanted = select(trashed.c.id, trashed.c.path).where(
            trashed.c.purge_run_id == run_id, in_states(FileState.ERASING)
        )
        with self._state.read() as connection:
            return {row.id: row.path for row in connection.execute(wanted.order_by(trashed.c.id))}

    def receipts_of(self, run_id: str) -> int:
        """How many files this run deleted."""
        wanted = select(func.count()).where(trashed.c.purge_run_id == run_id, in_states(*RECEIPTS))
        with self._state.read() as connection:
            return int(connection.execute(wanted).scalar_one())

    # ------------------------------------------------------------ restoring

    def restore(
        self,
        table: str,
        *,
        path: str | None = None,
        batch_id: str | None = None,
        table_uuid: str | None = None,
        operator: str = "",
        now: datetime,
    ) -> RestoreResult:
        """Restore the file at `path`, the files of a batch, or all files of the table, pending ones too.

        Files that a run is deleting right now, and deleted files, cannot be restored; they are counted.
        """
        with protecting(self._state) as connection:
            chosen = _chosen(connection, table, table_uuid, path, batch_id)
            totals = dict.fromkeys(FileState, Tally())
            for row in connection.execute(
                select(trashed.c.state, *_COUNTED).where(chosen).group_by(trashed.c.state)
            ):
                totals[FileState(row.state)] = as_tally(row)
            back = {"state": FileState.RESTORED.value, "ended_at": now, "note": f"restored by {operator}"}
            done = connection.execute(
                update(trashed).where(chosen, in_states(FileState.TRASHED)).values(back)
            ).rowcount
        gone = sum((totals[each].files for each in RECEIPTS), 0)
        return RestoreResult(
            files=done,
            bytes=totals[FileState.TRASHED].bytes,
            already=totals[FileState.RESTORED].files,
            erasing=totals[FileState.ERASING].files,
            gone=gone,
        )

    def restored_paths(self, table_uuid: str) -> Iterator[pa.Array]:
        """Paths of restored files as they were marked, in pages. A sweep skips them."""
        return self._paths(table_uuid, (FileState.RESTORED,), tuple(BatchState))

    def trashed_paths(self, table_uuid: str) -> Iterator[pa.Array]:
        """Paths that are in a batch already, as they were marked, in pages. A sweep does not mark them again."""
        return self._paths(table_uuid, LIVE, (BatchState.PENDING, BatchState.ACTIVE))

    def claimed(self, table_uuid: str) -> list[tuple[str, str]]:
        """Metadata files that an operator adopted with the table's folder, each with the table uuid in it;
        without restored ones."""
        wanted = (
            select(trashed.c.path, trash_batches.c.detail)
            .join(trash_batches)
            .where(
                trash_batches.c.table_uuid == table_uuid, trash_batches.c.cause == CLAIMED, in_states(*LIVE)
            )
            .where(trash_batches.c.state == BatchState.ACTIVE.value)
        )
        with self._state.read() as connection:
            return [(row.path, row.detail["uuids"].get(row.path, "")) for row in connection.execute(wanted)]

    def _paths(
        self, table_uuid: str, states: Sequence[FileState], of: Sequence[BatchState]
    ) -> Iterator[pa.Array]:
        import pyarrow as pa

        mine = select(trash_batches.c.id).where(
            trash_batches.c.table_uuid == table_uuid, trash_batches.c.state.in_([each.value for each in of])
        )
        wanted = select(trashed.c.id, trashed.c.path).where(trashed.c.batch_id.in_(mine), in_states(*states))
        for rows in pages(self._state.read, wanted, PAGE):
            yield pa.array([row.path for row in rows], pa.string())

    # ------------------------------------------------------------ looking

    def list(
        self, table: str, states: Sequence[FileState] = LIVE, limit: int = 50, table_uuid: str | None = None
    ) -> tuple[TrashedFile, ...]:
        """Files in these states, in the order they were marked."""
        wanted = _files(table, table_uuid, states).order_by(trashed.c.id)
        return self._fetch(wanted.limit(limit))

    def receipts(
        self,
        table: str,
        limit: int = 50,
        since: datetime | None = None,
        table_uuid: str | None = None,
        run_id: str | None = None,
    ) -> tuple[TrashedFile, ...]:
        """Receipts of deleted files, newest first; of this run, if one is given."""
        wanted = _files(table, table_uuid, RECEIPTS)
        if run_id is not None:
            wanted = wanted.where(trashed.c.purge_run_id == run_id)
        if since is not None:
            wanted = wanted.where(trashed.c.ended_at >= since)
        return self._fetch(wanted.order_by(trashed.c.ended_at.desc(), trashed.c.id).limit(limit))

    def _fetch(self, wanted: Select[Any]) -> tuple[TrashedFile, ...]:
        with self._state.read() as connection:
            return tuple(as_file(row) for row in connection.execute(wanted))


_COUNTED = (func.count().label("files"), func.coalesce(func.sum(trashed.c.size), 0).label("bytes"))


def _of(table: str, table_uuid: str | None) -> ColumnElement[bool]:
    named = trash_batches.c.table_name == str(table)
    return named if table_uuid is None else or_(named, trash_batches.c.table_uuid == table_uuid)


def _clear(connection: Connection, batch_id: str) -> None:
    """Delete what an earlier attempt of the run stored for this batch, except files that were restored since."""
    state = connection.execute(select(trash_batches.c.state).where(trash_batches.c.id == batch_id)).scalar()
    if state == BatchState.ACTIVE.value:
        raise Refused(
            action="change the files of", target=f"deletion batch {batch_id}", reason="it is active"
        )
    connection.execute(delete(trashed).where(trashed.c.batch_id == batch_id, in_states(FileState.TRASHED)))


def _batch_for_update(connection: Connection, batch_id: str) -> TrashBatch:
    wanted = select(trash_batches).where(trash_batches.c.id == batch_id).with_for_update()
    row = connection.execute(wanted).one_or_none()
    if row is None:
        raise Refused(
            action="change", target=f"deletion batch {batch_id}", reason="there is no such deletion batch"
        )
    return as_batch(row)


def _still_pending(connection: Connection, batch_id: str) -> None:
    """Refused if the batch is not pending any more: a process that took the run over may have ended it."""
    if (state := _batch_for_update(connection, batch_id).state) is not BatchState.PENDING:
        raise Refused(action="add files to", target=f"deletion batch {batch_id}", reason=f"it is {state}")


def _end(
    connection: Connection, run_id: str, ids: Sequence[int], state: FileState, note: str, now: datetime
) -> None:
    if ids:
        mine = [among(connection, ids), in_states(FileState.ERASING), trashed.c.purge_run_id == run_id]
        ending = {"state": state.value, "ended_at": now, "note": note}
        connection.execute(update(trashed).where(*mine).values(ending))


def _chosen(
    connection: Connection, table: str, table_uuid: str | None, path: str | None, batch_id: str | None
) -> ColumnElement[bool]:
    mine = select(trash_batches.c.id).where(
        _of(table, table_uuid), trash_batches.c.state != BatchState.VOID.value
    )
    if batch_id is not None:
        mine = mine.where(trash_batches.c.id == batch_id)
    chosen = trashed.c.batch_id.in_(mine)
    if path is None:
        return chosen
    from lakewarden.model.location import Location, name_of

    # All spellings of a path end in the same file name.
    place = Location.of(path)
    named = trashed.c.path.endswith(name_of(path), autoescape=True)
    alike = connection.execute(select(trashed.c.id, trashed.c.path).where(chosen, named))
    return among(connection, [row.id for row in alike if Location.of(row.path).may_be(place)])


def _tally(connection: Connection, batch_id: str, states: Sequence[FileState]) -> Tally:
    wanted = select(*_COUNTED).where(trashed.c.batch_id == batch_id, in_states(*states))
    return as_tally(connection.execute(wanted).one())


def _files(table: str, table_uuid: str | None, states: Sequence[FileState]) -> Select[Any]:
    """Select through the table's batches first; otherwise the files of every table would be read."""
    file_columns = [column.label(f"file_{column.name}") for column in trashed.columns]
    of_table = select(trash_batches.c.id).where(
        _of(table, table_uuid), trash_batches.c.state != BatchState.VOID.value
    )
    return (
        select(*file_columns, trash_batches)
        .join(trash_batches)
        .where(trashed.c.batch_id.in_(of_table), in_states(*states))
    )


def take_back(state: State, table_uuid: str, paths: Sequence[str], note: str, now: datetime) -> list[str]:
    """Remove these files, in the given spellings, from all batches. Returns those that a run is deleting
    right now.

    A row leaves `trash` by one conditional UPDATE, here and when deleting: one of the two gets the file, the
    other sees that.
    """
    mine = select(trash_batches.c.id).where(trash_batches.c.table_uuid == table_uuid)
    kept = {"state": FileState.KEPT.value, "note": note, "ended_at": now}
    going: list[str] = []
    with protecting(state) as connection:
        for start in range(0, len(paths), _AT_ONCE):
            these = (trashed.c.batch_id.in_(mine), trashed.c.path.in_(paths[start : start + _AT_ONCE]))
            connection.execute(
                update(trashed).where(*these, trashed.c.state == FileState.TRASHED.value).values(kept)
            )
            erasing = select(trashed.c.path).where(*these, trashed.c.state == FileState.ERASING.value)
            going += [row.path for row in connection.execute(erasing)]
    return going
