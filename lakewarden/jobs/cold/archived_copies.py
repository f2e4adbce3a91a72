"""Copies that lie in an archive, where nobody can read them: whether each still is what it was when it went there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakewarden.model.prices import ARCHIVED
from lakewarden.state.cold import ColdFile
from lakewarden.storage.archive import Archive


def in_archive(record: ColdFile) -> bool:
    """Whether it can only be asked after. It was read, every byte, before it went there, and its etag was written down."""
    return record.storage_class in ARCHIVED and record.etag is not None and record.proven_at is not None


def changed(records: Sequence[ColdFile], io: Mapping[str, str]) -> dict[str, str]:
    """By the path of its live file, what is wrong with a copy. Size and etag are all that an archive tells, and they are enough:
    an object does not change without them."""
    if not records:
        return {}
    found = Archive(io).look([each.cold_path for each in records])
    wrong: dict[str, str] = {}
    for record, now in zip(records, found, strict=True):
        if now is None:
            wrong[record.path] = f"its copy {record.cold_path} is not there"
        elif (now.size, now.etag) != (record.size, record.etag):
            wrong[record.path] = f"its copy {record.cold_path} is not what was copied"
    return wrong
