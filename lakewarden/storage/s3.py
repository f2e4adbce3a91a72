"""Access to S3 and compatible stores, through botocore: keys are used exactly as they are.

obstore, which is used for the other clouds, drops slashes at both ends of a key and refuses empty segments:
it lists the folder marker `a/` as `a`, and a request to delete `/a` would delete `a`. If a bulk deletion
fails for one key, obstore fails all of it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import groupby
from os.path import commonprefix
from typing import Any, TypeVar
from urllib.parse import unquote_plus

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.parsers import ResponseParserError

from lakewarden import clock
from lakewarden.model.location import split_url
from lakewarden.storage.interface import Stat, Stats
from lakewarden.storage.s3_client import code, reason, unreachable
from lakewarden.storage.s3_listing import BucketListing, batch, stamp

STATS_AT_ONCE = 16
# How many keys a page must show: it costs 12 to 30 times as much as requesting one key, in money and in time.
WORTH_A_PAGE = 20
# This many keys are looked up page after page; other stretches run in parallel.
STRETCH = 1000

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

# The most keys per request, and the most parallel requests: more would only cause SlowDown.
BULK, DELETES_AT_ONCE, PARALLEL_SINGLE = 1000, 4, 16
# Seconds before a retry for keys that a busy store refused in an accepted request; botocore retries only whole requests.
PAUSES = (0.2, 0.5, 1.0, 2.0)


class S3Files:
    """One bucket."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        scheme, bucket, key = split_url(folder)
        prefix = key if not key or key.endswith("/") else f"{key}/"
        for rows in BucketListing(self._client, self._bucket).pages(prefix):
            if rows:
                yield batch(f"{scheme}://{bucket}/", rows)

    def stat(self, paths: Sequence[str]) -> Stats:
        keys = [split_url(path)[2] for path in paths]
        stats = Lookup(self._client, self._bucket).run(tuple(dict.fromkeys(keys)))
        if not stats and keys:
            self._see_bucket()
        return [stats.get(key) for key in keys]

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        keys = {path: split_url(path)[2] for path in paths}
        failed = Deletion(self._client, self._bucket).run(tuple(dict.fromkeys(keys.values())))
        return {path: failed[key] for path, key in keys.items() if key in failed}

    def read(self, path: str, start: int, length: int | None) -> bytes:
        if length == 0:
            return b""
        end = "" if length is None else start + length - 1
        span = {"Range": f"bytes={start}-{end}"} if start or length is not None else {}
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=split_url(path)[2], **span)
            body: bytes = answer["Body"].read()
        except ClientError as error:
            if code(error) == "InvalidRange":
                return b""  # begins at the end or after it
            if code(error) in _MISSING:
                raise FileNotFoundError(path) from None
            raise unreachable(self._bucket, error) from error
        except BotoCoreError as error:
            raise unreachable(self._bucket, error) from error
        return body

    def write(self, path: str, content: bytes) -> None:
        try:
            self._client.put_object(Bucket=self._bucket, Key=split_url(path)[2], Body=content)
        except (ClientError, BotoCoreError) as error:
            raise unreachable(self._bucket, error) from error

    def remove_empty_folders(self, folders: Iterable[str], root: str) -> int:
        return 0

    def _see_bucket(self) -> None:
        """Check that the bucket exists. A HEAD answer has no body: a missing bucket looks like one without these keys."""
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            if code(error) != "403":  # it exists; these credentials may use only keys in it
                raise unreachable(self._bucket, error) from error
        except BotoCoreError as error:
            raise unreachable(self._bucket, error) from error


_MISSING = {"404", "NoSuchKey"}
# No permission to list, or a store that cannot begin a listing in the middle: keys are requested one by one.
_NOT_LISTED = {"403", "AccessDenied", "400", "InvalidArgument", "InvalidRequest", "501", "NotImplemented", "405", "MethodNotAllowed"}  # fmt: skip
# Stores differ in whether they encode these characters in a listing.
_AMBIGUOUS = re.compile(r"[+% \ufffd]")


class Lookup:
    """Looks up many keys, in one call: by listing pages if a page shows many of them, otherwise one by one.

    A page of a thousand keys costs as much as thirty HEAD requests, so listing is far cheaper for files of
    one folder. A listing proves only that a key exists. A key that it does not show is requested alone: so
    no key counts as missing because a listing was short, had the store's own order, or spelled the key
    differently.
    """

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def run(self, keys: Sequence[str]) -> dict[str, Stat]:
        """The keys that exist, each with its current state."""
        by_key: dict[str, Stat] = {}
        for each in _side_by_side(self._walk, [*_stretches(keys)]):
            by_key |= each
        alone = [key for key in keys if key not in by_key]
        stats = zip(alone, _side_by_side(self._head, alone), strict=True)
        return by_key | {key: stat for key, stat in stats if stat is not None}

    def _walk(self, keys: Sequence[str]) -> dict[str, Stat]:
        """Look up keys by listing pages. The keys are sorted and in one folder. Stops when a page shows too few of them."""
        prefix = commonprefix(keys)  # noqa: RUF071 by character, as S3 takes it: the fewer others a page shows
        stats, at = dict[str, Stat](), 0
        while len(keys) - at >= WORTH_A_PAGE:
            # To begin right after a key without its last character is to begin before that key.
            answer = self._page(prefix, keys[at][:-1])
            rows = _rows(prefix, answer)
            shown = {key: _stat(rows[key]) for key in keys[at:] if key in rows}
            stats |= shown
            if not answer.get("IsTruncated") or len(shown) < WORTH_A_PAGE:
                break
            at = max(at + WORTH_A_PAGE, bisect_right(keys, max(rows)))
        return stats

    def _page(self, prefix: str, after: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, StartAfter=after, Delimiter="/", EncodingType="url"
            )
        except ClientError as error:
            if code(error) in _NOT_LISTED:
                return {}
            raise unreachable(self._bucket, error) from error
        except ResponseParserError:
            return {}
        except BotoCoreError as error:
            raise unreachable(self._bucket, error) from error
        return answer

    def _head(self, key: str) -> Stat | None:
        try:
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if code(error) in _MISSING:
                return None
            raise unreachable(self._bucket, self._with_reason(key, error)) from error
        except BotoCoreError as error:
            raise unreachable(self._bucket, error) from error
        return Stat(answer["ContentLength"], parsedate_to_datetime(answer["LastModified"]), stamp(answer))

    def _with_reason(self, key: str, error: ClientError) -> ClientError:
        """The error with its reason: a HEAD answer has no body, so it does not say why it failed. The answer to GET does."""
        try:
            self._client.get_object(Bucket=self._bucket, Key=key, Range="bytes=0-0")["Body"].close()
        except ClientError as said:
            return said
        except BotoCoreError:
            pass  # the first answer is reported
        return error


def _stretches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Keys of one folder together, in order, if there are enough of them."""
    for _, group in groupby(sorted(set(keys)), lambda key: key.rpartition("/")[0]):
        near = [*group]
        for start in range(0, len(near), STRETCH):
            if len(near) - start >= WORTH_A_PAGE:
                yield near[start : start + STRETCH]


def _rows(prefix: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a page whose names are unambiguous. Names with another prefix were decoded wrongly."""
    decode: Callable[[str], str] = unquote_plus if answer.get("EncodingType") == "url" else str
    named = ((decode(row["Key"]), row) for row in answer.get("Contents", ()))
    return {
        key: row for key, row in named
        if key.startswith(prefix) and not _AMBIGUOUS.search(key, len(prefix))
    }  # fmt: skip


def _stat(row: Mapping[str, Any]) -> Stat:
    """To the second, the precision of a HEAD request: so both give the same object the same time."""
    modified = datetime.fromisoformat(row["LastModified"]).replace(microsecond=0)
    return Stat(int(row["Size"]), modified, stamp(row))


def _side_by_side(ask: Callable[[Asked], Answer], all_of: Sequence[Asked]) -> list[Answer]:
    """Results in order. The first failure is raised, and requests that have not begun by then are not sent."""
    if not all_of:
        return []
    with ThreadPoolExecutor(STATS_AT_ONCE, thread_name_prefix="stat-s3") as pool:
        return [*pool.map(ask, all_of)]


_BUSY = {"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "OperationAborted"}
# Stores without the bulk request, or with another signature for it.
_NO_BULK = {"501", "NotImplemented", "405", "MethodNotAllowed", "MissingContentMD5", "InvalidDigest"}
# XML cannot contain these characters: such a key gets its own request.
_UNFIT_FOR_XML = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a key may still exist, and whether to retry: in its own request if the store's bulk answer does not
    mention the key.
    """

    reason: str
    again: bool = False
    alone: bool = False


class Deletion:
    """Deletes many keys of one bucket, in one call, and reports the result of each. A key counts as deleted
    only if the store says so; deleting it twice is harmless."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket
        self._down: Failure | None = None

    def run(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete the keys. Returns the keys that may still exist, with the reason."""
        alone = {key for key in keys if _UNFIT_FOR_XML.search(key)}
        failed = self._round(keys, alone)
        for pause in PAUSES:
            again = [key for key, failure in failed.items() if failure.again]
            if not again:
                break
            clock.sleep(pause)
            alone |= {key for key in again if failed[key].alone}
            failed = {key: each for key, each in failed.items() if not each.again} | self._round(again, alone)
        return {key: failed[key].reason for key in keys if key in failed}

    def _round(self, keys: Sequence[str], alone: Set[str]) -> dict[str, Failure]:
        together = [key for key in keys if key not in alone]
        failed = self._one_by_one([key for key in keys if key in alone])
        with ThreadPoolExecutor(DELETES_AT_ONCE, thread_name_prefix="delete-s3") as pool:
            for each in pool.map(self._bulk, _chunks(together)):
                failed |= each
        return failed

    def _bulk(self, keys: Sequence[str]) -> dict[str, Failure]:
        if self._down:
            return dict.fromkeys(keys, self._down)
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": False}
            )
        except ClientError as error:
            if code(error) in _NO_BULK:
                return self._one_by_one(keys)
            return dict.fromkeys(keys, Failure(reason(error)))
        except (BotoCoreError, ResponseParserError) as error:
            return dict.fromkeys(keys, self._unanswered(error))
        return _failures(keys, answer)

    def _one_by_one(self, keys: Sequence[str]) -> dict[str, Failure]:
        if not keys:
            return {}
        with ThreadPoolExecutor(PARALLEL_SINGLE, thread_name_prefix="delete-s3") as pool:
            answers = list(pool.map(self._single, keys))
        return {key: failure for key, failure in zip(keys, answers, strict=True) if failure}

    def _single(self, key: str) -> Failure | None:
        if self._down:
            return self._down
        try:
            self._client.delete_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            return None if code(error) in _MISSING else Failure(reason(error))
        except (BotoCoreError, ResponseParserError) as error:
            return self._unanswered(error)
        return None

    def _unanswered(self, error: Exception) -> Failure:
        """The failure for an answer that cannot be used. An unreadable answer is retried. If all attempts of
        botocore got no answer, the remaining keys are skipped.
        """
        if isinstance(error, HTTPClientError):
            self._down = Failure(f"no answer from the store: {reason(error)}")
            return self._down
        return Failure(f"no readable answer from the store: {reason(error)}", again=True)


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + BULK] for start in range(0, len(keys), BULK))


def _failures(keys: Sequence[str], answer: Mapping[str, Any]) -> dict[str, Failure]:
    gone = {each["Key"] for each in answer.get("Deleted", ())}
    refused = {each["Key"]: each for each in answer.get("Errors", ()) if "Key" in each}
    failed = {key: _refusal(refused.get(key)) for key in keys if key not in gone}
    return {key: failure for key, failure in failed.items() if failure}


def _refusal(answer: Mapping[str, Any] | None) -> Failure | None:
    if answer is None:
        return Failure("the store's answer does not mention it", again=True, alone=True)
    name, message = answer.get("Code", "refused"), answer.get("Message", "")
    if name in _MISSING:
        return None
    return Failure(f"{name}: {message}" if message else name, again=name in _BUSY)
