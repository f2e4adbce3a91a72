"""Rewrites of Iceberg tables: which files they may touch, how and where new files are written, and the commit
while other writers commit. New deletes are carried over to the outputs.

The library refuses a rewrite if a delete arrived for one of its sources. Then the new deletes are found by planning the
head, carried over to the outputs as position deletes (vectors in format version 3), and committed together with them,
validated from the snapshot they were found on.

In format version 2, outputs keep the newest sequence number of their sources if the table has no equality deletes and no
delete file of the sources stays: after an upgrade to version 3 the number shows when a row was last updated. The library
does not check for equality deletes then, so such a commit must build on exactly the snapshot that was seen without any.
In all other cases the outputs get a new sequence number, and an equality delete that is not carried over makes the commit
fail (iceberg#10312).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import Sending, commit, prepare_rewrite
from lakewarden.tables.iceberg.view import read_delete
from lakewarden.tables.interface import BucketEngine, ConcurrentDelete, Incorporate, OutputFile, Rewrite


class IcebergRewrites:
    """Implements RewriteSupport for Iceberg."""

    def __init__(self, spark: Any, catalogs: IcebergCatalogs) -> None:
        self._spark, self._catalogs = spark, catalogs

    def left_alone(self, view: TableView) -> str | None:
        return None

    def unfit(self, view: TableView) -> str | None:
        return unfit_types(view)

    def parquet_properties(self, view: TableView) -> Mapping[str, str]:
        return view.properties

    def arrow_schema(self, view: TableView) -> bytes:
        return bytes(arrow_schema(view).serialize())

    def clustering(
        self, table: TableRef, files: FileSet, columns: Sequence[str]
    ) -> Mapping[int, Mapping[str, float]]:
        by_partition = self._catalogs.deletes.clustering(
            self._catalogs.load(table), files.handle, json.dumps(list(columns))
        )
        return {int(partition): shares for partition, shares in json.loads(by_partition).items()}

    def clustering_of_outputs(
        self, table: TableRef, files: FileSet, paths: Sequence[str], columns: Sequence[str]
    ) -> Mapping[str, float]:
        loaded, names = self._catalogs.load(table), json.dumps(list(columns))
        shares: Mapping[str, float] = json.loads(
            self._catalogs.deletes.clusteringOfOutputs(loaded, files.handle, json.dumps(list(paths)), names)
        )
        return shares

    def dangling(self, table: TableRef, files: FileSet, branch: str) -> list[str]:
        answer = json.loads(
            self._catalogs.deletes.unneeded(self._catalogs.load(table), files.handle, branch, "[]", "[]")
        )
        return sorted(answer["unneeded"])

    def retain(self, files: FileSet, paths: Sequence[str]) -> None:
        files.handle.retain(json.dumps(list(paths)))

    def output_locations(
        self, table: TableRef, files: FileSet, names: Sequence[tuple[int, str]]
    ) -> list[str]:
        loaded = self._catalogs.load(table)
        paths: list[str] = json.loads(
            self._catalogs.bridge.locations(loaded, files.handle, json.dumps(names))
        )
        return paths

    def rewrite_natively(
        self,
        table: TableRef,
        files: FileSet,
        group: RewriteGroup,
        strategy: str,
        columns: Sequence[str],
        target_bytes: int,
    ) -> list[OutputFile]:
        request = {
            "number": group.number,
            "partition": group.partition_id,
            "sources": list(group.paths()),
            "output_spec_id": group.output_spec_id,
            # Iceberg lets a file exceed its target by half, so that a small rest fits into it.
            "max_file_bytes": target_bytes + target_bytes // 2,
            "split_bytes": target_bytes,
            "expected_files": group.outputs,
            "strategy": strategy,
            "columns": list(columns),
        }
        written = self._catalogs.bridge.rewriteNatively(
            self._spark._jsparkSession, self._catalogs.load(table), files.handle, json.dumps(request)
        )
        return [
            OutputFile(row["path"], row["bytes"], row["rows"], group.partition_id)
            for row in json.loads(written)
        ]

    def prepare_rewrite(self, rewrite: Rewrite) -> None:
        prepare_rewrite(self._catalogs, rewrite)

    def bucket_engine(self) -> BucketEngine:
        raise AssertionError("no table of this format merges rows by primary keys")


# After this many lost attempts, delete files that are no longer needed are left for a later run.
_DROP_ATTEMPTS = 5
# Version 1 has no sequence numbers; version 3 stores in each row when it was updated, and a rewrite keeps that.
_WITH_NUMBERS_ONLY = 2


class RewriteCommit:
    """Commits one atomic `replace` snapshot. After a conflict it tries again on the new head, with the same outputs."""

    def __init__(self, catalogs: IcebergCatalogs, rewrite: Rewrite, incorporate: Incorporate | None) -> None:
        self._catalogs = catalogs
        self._rewrite = rewrite
        self._incorporate = incorporate
        self._from_snapshot = rewrite.bounds.base_snapshot_id
        self._attempts = 0
        self._candidates = list(rewrite.deletes)
        self._names_one = {
            delete.key: delete.referenced for delete in rewrite.files.deletes if delete.referenced
        }
        self._added: list[dict[str, Any]] = []
        self._arrived: list[Mapping[str, Any]] = []
        self._copy: dict[str, Any] | None = None

    def run(self) -> int | None:
        """The snapshot's id. None if there was nothing to commit (only delete files to remove, and all are still needed)."""
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
        # A delete file that stays for other files applies by sequence number: with the old number, readers would apply it to the
        # outputs too, and the outputs would need another rewrite.
        shared = set(self._candidates) - set(dropped)
        free = None if shared else self._free_of_equality_deletes(table)
        if not (self._rewrite.removed or dropped):
            return False
        if self._incorporate is not None:
            # Kept over all attempts: an attempt that was reported as failed may have committed, and then the table names its files.
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
        """The delete files that can be removed with the sources, and the snapshot on which that was decided.

        A delete file for a single data file is removed with it without planning: no other commit can make it needed again.
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
        """The head on which the outputs may keep the sequence number of their sources; None if they get a new one.

        With a busy writer such a commit fails repeatedly; after some attempts the outputs get a new number instead.
        """
        rewrite = self._rewrite
        if not (rewrite.removed and rewrite.added) or self._attempts > _DROP_ATTEMPTS:
            return None
        if self._catalogs.bridge.formatVersion(table) != _WITH_NUMBERS_ONLY:
            return None
        head: int = self._catalogs.deletes.headWithoutEqualityDeletes(table, rewrite.bounds.branch)
        return None if head == -1 else head

    def _take_in(self) -> bool:
        """Carry over the deletes that arrived since the scan. False if a source is gone, or if no change explains the conflict.

        The library refuses because of any equality delete in the partition; planning finds only those that can affect a
        source. So there may be no delete to carry over; the next attempt is then validated from this snapshot.
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
        # The sources are live, so no attempt has committed: no snapshot names the files of earlier attempts.
        self._incorporate.used = []
        self._copy = None
        self._arrived = answer["deletes"]
        arrived = [ConcurrentDelete(read_delete(row), tuple(row["applies_to"])) for row in self._arrived]
        positions = self._incorporate.positions(arrived) if arrived else {}
        self._added = self._write(table, positions)
        # Delete files that applied before may be gone: a writer that adds to a deletion vector replaces it.
        self._candidates = answer["attached"]
        self._names_one |= {row["key"]: row["referenced"] for row in self._arrived if row["referenced"]}
        self._from_snapshot = answer["head"]
        return True

    def _write(self, table: Any, positions: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Writes position deletes for the outputs with the library's own writers."""
        assert self._incorporate is not None
        partitions = {file.path: file.partition_id for file in self._rewrite.added}
        kind = "puffin" if self._catalogs.bridge.formatVersion(table) >= 3 else "parquet"
        rows, start = [], 0
        for path, deleted in positions.items():
            place = self._incorporate.place(path, kind)
            rows.append(
                {
                    "path": path,
                    "partition": partitions[path],
                    "location": place,
                    "from": start,
                    "rows": len(deleted),
                }
            )
            start += len(deleted)
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
        """Chooses a delete file to remove, because the library lets a rewrite add deletes only if it also removes one.

        A deletion vector is removed with its data file. Any other delete file may be needed by other files, so it is
        replaced by a copy with the same sequence number.
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


# In Parquet these types have annotations that Arrow would lose.
_SPECIAL = re.compile(r'"type": ?"(geometry|geography|variant|unknown)\b')


def arrow_schema(view: TableView) -> pa.Schema:
    return _parse(view.schema_json)


def unfit_types(view: TableView) -> str | None:
    """Why Arrow cannot represent this schema, so that Iceberg's own writer is used; None if it can."""
    special = _SPECIAL.search(view.schema_json)
    if special:
        return f"the schema has a {special.group(1)} column"
    try:
        arrow_schema(view)
    except Exception as error:  # the kernel must not write a schema that the parser cannot read
        return f"the schema has a type the Arrow kernel does not know ({str(error).splitlines()[0]})"
    return None


@lru_cache(maxsize=64)
def _parse(schema_json: str) -> pa.Schema:
    # The import takes half a second, so it happens only for a rewrite.
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    return schema_to_pyarrow(Schema.model_validate_json(schema_json), include_field_ids=True)
