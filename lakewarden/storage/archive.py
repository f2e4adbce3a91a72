"""Storage classes of S3 objects: reads them, moves objects to another class, and recalls objects from an
archive.

Every call asks the store a question or gives it an order that it carries out itself: no object's bytes pass
through here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from lakewarden.model.location import split_url
from lakewarden.model.prices import ARCHIVED, STANDARD
from lakewarden.storage.s3_client import code, connect, reason, unreachable
from lakewarden.storage.s3_copy import copy_object
from lakewarden.storage.s3_listing import stamp

PARALLEL = 16
_MISSING = {"404", "NoSuchKey"}
_EXPIRY = re.compile(r'expiry-date="([^"]+)"')

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The current state of an object. `restoring`: the archive is retrieving it; `until`: an archived object is
    readable until then.

    `sealed`: its etag changes with every copy, because of its encryption.
    """

    path: str
    size: int
    etag: str
    storage_class: str
    restoring: bool = False
    until: datetime | None = None
    sealed: bool = False

    @property
    def readable(self) -> bool:
        return self.storage_class not in ARCHIVED or self.until is not None


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The result of a move. `written` is false if the object already had the class. With `trouble`, it is
    unchanged as far as known.
    """

    path: str
    etag: str = ""
    written: bool = False
    trouble: str = ""


class ObjectArchive:
    """Many objects of one store at once."""

    def __init__(self, io: Mapping[str, str]) -> None:
        self._client = connect(io)

    def look(self, paths: Sequence[str]) -> list[StoredObject | None]:
        """The current state of each object, in order; None if it does not exist. Unreachable if the store does not answer."""
        return _side_by_side(self._head, paths)

    def move(self, objects: Sequence[tuple[str, int]], storage_class: str) -> list[MoveResult]:
        """Copy each path, with the size it must have, onto itself in the new class. Failures are returned, not raised."""
        return _side_by_side(lambda each: self._moved(each[0], each[1], storage_class), objects)

    def recall(self, paths: Sequence[str], days: int, speed: str) -> list[bool]:
        """Request that each object is readable for `days` days; False for an object that is already being recalled."""
        return _side_by_side(lambda path: self._asked(path, days, speed), paths)

    def _head(self, path: str) -> StoredObject | None:
        _, bucket, key = split_url(path)
        try:
            head = self._client.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if code(error) in _MISSING:
                return None
            raise unreachable(bucket, error) from error
        except BotoCoreError as error:
            raise unreachable(bucket, error) from error
        return _stored(path, head)

    def _moved(self, path: str, size: int, storage_class: str) -> MoveResult:
        before = self._head(path)
        if before is None:
            return MoveResult(path, trouble="it does not exist")
        if before.size != size:
            return MoveResult(path, trouble=f"it has {before.size:,} bytes, and {size:,} were copied")
        if before.storage_class == storage_class:
            return MoveResult(path, before.etag)
        if not before.readable:
            return MoveResult(path, trouble=f"it is in {before.storage_class}: recall it first")
        try:
            # Only the object that was read: a new object under this name does not belong to this run.
            copy_object(self._client, path, path, size, storage_class, before.etag)
        except (BotoCoreError, ClientError) as error:
            return MoveResult(path, trouble=reason(error))
        return _checked(before, self._head(path), storage_class)

    def _asked(self, path: str, days: int, speed: str) -> bool:
        _, bucket, key = split_url(path)
        request = {"Days": days, "GlacierJobParameters": {"Tier": speed}}
        try:
            self._client.restore_object(Bucket=bucket, Key=key, RestoreRequest=request)
        except ClientError as error:
            if code(error) == "RestoreAlreadyInProgress":
                return False
            raise unreachable(bucket, error) from error
        except BotoCoreError as error:
            raise unreachable(bucket, error) from error
        return True


def _stored(path: str, head: Mapping[str, Any]) -> StoredObject:
    restore = str(head.get("Restore", ""))
    until = _EXPIRY.search(restore)
    return StoredObject(
        path,
        int(head["ContentLength"]),
        stamp(head),
        str(head.get("StorageClass") or STANDARD),
        'ongoing-request="true"' in restore,
        parsedate_to_datetime(until[1]) if until else None,
        str(head.get("ServerSideEncryption", "")).startswith("aws:kms"),
    )


def _checked(before: StoredObject, after: StoredObject | None, storage_class: str) -> MoveResult:
    """Check the moved object. An etag depends only on the content if the object has one part and uses the store's key."""
    if after is None:
        return MoveResult(before.path, trouble="it is gone after it was moved")
    if after.storage_class != storage_class:
        return MoveResult(before.path, trouble=f"the store left it in {after.storage_class}")
    comparable = not (before.sealed or after.sealed or "-" in before.etag or "-" in after.etag)
    if after.size != before.size or (comparable and after.etag != before.etag):
        return MoveResult(before.path, trouble="it changed when it was moved")
    return MoveResult(before.path, after.etag, written=True)


def _side_by_side(ask: Callable[[Asked], Answer], all_of: Sequence[Asked]) -> list[Answer]:
    if not all_of:
        return []
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="archive-s3") as pool:
        return [*pool.map(ask, all_of)]
