"""Checks copies in an archive. They cannot be read there, so their size and etag are compared with the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakewarden.model.prices import ARCHIVED
from lakewarden.state.cold import ColdFile
from lakewarden.storage.archive import ObjectArchive


def in_archive(record: ColdFile) -> bool:
    """Whether the copy cannot be read. Before the transition every byte was read and its etag was recorded."""
    return record.storage_class in ARCHIVED and record.etag is not None and record.proven_at is not None


def changed(records: Sequence[ColdFile], io: Mapping[str, str]) -> dict[str, str]:
    """For each damaged copy the reason, by the path of its live file. An archive gives only size and etag. That is enough: an
    object cannot change without one of them changing."""
    if not records:
        return {}
    states = ObjectArchive(io).look([record.cold_path for record in records])
    wrong: dict[str, str] = {}
    for record, now in zip(records, states, strict=True):
        if now is None:
            wrong[record.path] = f"its copy {record.cold_path} does not exist"
        elif (now.size, now.etag) != (record.size, record.etag):
            wrong[record.path] = f"its copy {record.cold_path} differs from what was copied"
    return wrong
