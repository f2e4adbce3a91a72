"""Looks up many keys: by listing pages if a page shows many of them, otherwise one by one.

A page of a thousand keys costs as much as thirty HEAD requests, so listing is far cheaper for files of one
folder. A listing proves only that a key exists. A key that it does not show is requested alone: so no key
counts as missing because a listing was short, had the store's own order, or spelled the key differently.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import groupby
from os.path import commonprefix
from typing import Any, TypeVar
from urllib.parse import unquote_plus

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from lakewarden.storage.interface import Stat
from lakewarden.storage.s3_client import code, unreachable
from lakewarden.storage.s3_listing import stamp

PARALLEL = 16
# How many keys a page must show: it costs 12 to 30 times as much as requesting one key, in money and in time.
WORTH_A_PAGE = 20
# This many keys are looked up page after page; other stretches run in parallel.
STRETCH = 1000

_MISSING = {"404", "NoSuchKey"}
# No permission to list, or a store that cannot begin a listing in the middle: keys are requested one by one.
_NOT_LISTED = {"403", "AccessDenied", "400", "InvalidArgument", "InvalidRequest", "501", "NotImplemented", "405", "MethodNotAllowed"}  # fmt: skip
# Stores differ in whether they encode these characters in a listing.
_AMBIGUOUS = re.compile(r"[+% \ufffd]")

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Lookup:
    """The work of one call."""

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
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="stat-s3") as pool:
        return [*pool.map(ask, all_of)]
