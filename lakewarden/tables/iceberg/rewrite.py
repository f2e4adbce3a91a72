"""Committing a rewrite while others write: deletes that arrive are taken in, and deletes nobody needs leave.

The library refuses a rewrite when a delete arrived for one of its sources. Then the new deletes are found by planning the
head, carried over to the outputs as position deletes (vectors in format version 3), and committed together with them,
validated from the snapshot they were found on.

Where the table has no equality deletes, and no delete file of the sources stays, the outputs of a table of format version 2
keep the newest sequence number of their sources: after an upgrade to version 3 it tells when a row was last updated. The library does not look for equality deletes
then, so such a commit holds only on top of the very snapshot that was seen to have none. Elsewhere the outputs get a new
sequence number, and an equality delete that is not carried over makes the commit fail (iceberg#10312).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lakewarden.tables.iceberg.catalog import Catalogs
from lakewarden.tables.iceberg.commit import Sending, commit
from lakewarden.tables.iceberg.view import read_delete
from lakewarden.tables.interface import Arrived, Incorporate, Rewrite

# After this many attempts that others were faster than, delete files that are no longer needed stay for another run.
_DROP_ATTEMPTS = 5
# Version 1 numbers no files; version 3 says in each row when it was updated, and a rewrite carries that over.
_WITH_NUMBERS_ONLY = 2


class RewriteCommit:
    """One atomic `replace` snapshot. Conflicts are retried on the new head with the outputs already written."""

    def __init__(self, catalogs: Catalogs, rewrite: Rewrite, incorporate: Incorporate | None) -> None:
        self._catalogs = catalogs
        self._rewrite = rewrite
        self._incorporate = incorporate
        self._from_snapshot = rewrite.bounds.base_snapshot_id
        self._attempts = 0
        self._candidates = list(rewrite.deletes)
        self._names_one = {each.key: each.referenced for each in rewrite.files.deletes if each.referenced}
        self._added: list[dict[str, Any]] = []
        self._arrived: list[Mapping[str, Any]] = []
        self._copy: dict[str, Any] | None = None

    def run(self) -> int | None:
        """The snapshot's id; None when there turned out to be nothing to commit (delete files only, all still needed)."""
        rewrite = self._rewrite
        attempts = rewrite.bounds.commit_attempts
        return commit(self._catalogs, rewrite.table, rewrite.summary, self._attempt, attempts, self._take_in)

    def _attempt(self, sending: Sending) -> bool:
        self._attempts += 1
        table = self._catalogs.load(self._rewrite.table)
        dropped, parent = self._unneeded(table)
        added = self._added
        if added and not dropped:
            dropped, added = self._make_room(table)
        # A delete file that other sources still need goes by number: it would be read for the outputs too, and call for a rewrite.
        shared = set(self._candidates) - set(dropped)
        free = None if shared else self._free_of_equality_deletes(table)
        if not (self._rewrite.removed or dropped):
            return False
        if self._incorporate is not None:
            # Kept over attempts: one that was told it failed may have committed, and then the table names its files.
            self._incorporate.used += [each["path"] for each in added]
        request = {
            "from_snapshot": self._from_snapshot,
            "branch": self._rewrite.bounds.branch,
            "removed": list(self._rewrite.removed),
            "added": [file.path for file in self._rewrite.added],
            "removed_deletes": dropped,
            "added_deletes": added,
            "parent": parent if free is None else free,
            "keep_number": free is not None,
            "summary": dict(self._rewrite.summary),
        }
        self._catalogs.bridge.rewrite(sending.watched(table), self._rewrite.files.handle, json.dumps(request))
        return True

    def _unneeded(self, table: Any) -> tuple[list[str], int | None]:
        """Delete files that leave with the sources, and the snapshot on which that was judged.

        One that names a single data file goes with it: no planning, and no other commit can make it needed again.
        """
        removed = set(self._rewrite.removed)
        alone = [key for key in self._candidates if self._names_one.get(key) in removed]
        others = [key for key in self._candidates if self._names_one.get(key) not in removed]
        if not others or self._attempts > _DROP_ATTEMPTS:
            return alone, None
        answer = json.loads(
            self._catalogs.deletes.unneeded(
                table,
                self._rewrite.files.handle,
                self._rewrite.bounds.branch,
                json.dumps(list(self._rewrite.removed)),
                json.dumps(others),
            )
        )
        dropped = sorted(answer["unneeded"])
        return [*alone, *dropped], answer["head"] if dropped else None

    def _free_of_equality_deletes(self, table: Any) -> int | None:
        """The head on top of which the outputs may keep their sources' number; None where they get a new one.

        A writer that never rests makes such a commit fail again and again: after some attempts the number is given up.
        """
        rewrite = self._rewrite
        if not (rewrite.removed and rewrite.added) or self._attempts > _DROP_ATTEMPTS:
            return None
        if self._catalogs.bridge.formatVersion(table) != _WITH_NUMBERS_ONLY:
            return None
        head: int = self._catalogs.deletes.headWithoutEqualityDeletes(table, rewrite.bounds.branch)
        return None if head == -1 else head

    def _take_in(self) -> bool:
        """Carry over what arrived since the scan; False when a source is gone, or nothing happened that explains it.

        The library refuses for an equality delete anywhere in the partition; planning finds those that can strike a source.
        So it may be that none has to be carried over, and the next attempt is validated from here.
        """
        if self._incorporate is None:
            return False
        rewrite = self._rewrite
        table = self._catalogs.load(rewrite.table)
        answer = json.loads(
            self._catalogs.deletes.arrived(
                table,
                rewrite.files.handle,
                rewrite.files.snapshot_id,
                rewrite.bounds.branch,
                json.dumps(list(rewrite.removed)),
            )
        )
        if answer["gone"] or answer["head"] == self._from_snapshot:
            return False
        # The sources are live, so no attempt so far has committed: what those wrote is nobody's.
        self._incorporate.used = []
        self._copy = None
        self._arrived = answer["deletes"]
        arrived = [Arrived(read_delete(row), tuple(row["applies_to"])) for row in self._arrived]
        positions = self._incorporate.positions(arrived) if arrived else {}
        self._added = self._write(table, positions)
        # What applied before may be gone: a writer that adds to a vector replaces it.
        self._candidates = answer["attached"]
        self._names_one |= {row["key"]: row["referenced"] for row in self._arrived if row["referenced"]}
        self._from_snapshot = answer["head"]
        return True

    def _write(self, table: Any, positions: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Position deletes on the outputs, by the library's own writers."""
        assert self._incorporate is not None
        partitions = {file.path: file.partition_id for file in self._rewrite.added}
        kind = "puffin" if self._catalogs.bridge.formatVersion(table) >= 3 else "parquet"
        rows, start = [], 0
        for path, found in positions.items():
            place = self._incorporate.place(path, kind)
            rows.append(
                {
                    "path": path,
                    "partition": partitions[path],
                    "location": place,
                    "from": start,
                    "rows": len(found),
                }
            )
            start += len(found)
        if not rows:
            return []
        with tempfile.TemporaryDirectory(prefix="lakewarden-") as folder:
            longs = Path(folder) / "positions"
            longs.write_bytes(np.concatenate(list(positions.values())).astype("<i8").tobytes())
            written = self._catalogs.deletes.writeDeletes(
                table, self._rewrite.files.handle, json.dumps(rows), str(longs)
            )
        return [
            {"key": row["key"], "path": row["path"], "sequence_number": None} for row in json.loads(written)
        ]

    def _make_room(self, table: Any) -> tuple[list[str], list[dict[str, Any]]]:
        """The library lets a rewrite add deletes only where it removes one.

        A vector goes with its data file, which leaves. Any other may be needed by other files: it is replaced by a copy
        with the same sequence number.
        """
        vectors = [row["key"] for row in self._arrived if row["kind"] == "vector"]
        if vectors:
            return vectors, self._added
        assert self._incorporate is not None
        original = self._arrived[0]
        if self._copy is None:
            place = self._incorporate.place(self._rewrite.added[0].path, original["format"])
            key = self._catalogs.deletes.copyDelete(table, self._rewrite.files.handle, original["key"], place)
            self._copy = {"key": key, "path": place, "sequence_number": original["sequence_number"]}
        return [original["key"]], [*self._added, self._copy]
