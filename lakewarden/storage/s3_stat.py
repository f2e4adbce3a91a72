"""Asking after many keys: by pages of a listing where a page shows many of them, one by one elsewhere.

A page of a thousand keys costs what thirty HEAD requests cost, so files of one folder are far cheaper to list. A listing is
believed only for what it shows. A key it does not show is asked for alone: no key counts as gone because a listing was short,
came in an order of the store's own, or spelled the key in another way.
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
# Keys a page has to show to be worth it: it costs twelve to thirty times what asking for one key does, in money and in time.
WORTH_A_PAGE = 20
# So many keys are looked for one page after the other; others meanwhile, side by side.
STRETCH = 1000

_MISSING = {"404", "NoSuchKey"}
# Whoever may not list, or a store that cannot begin a listing in the middle: keys are asked for one by one.
_NOT_LISTED = {"403", "AccessDenied", "400", "InvalidArgument", "InvalidRequest", "501", "NotImplemented", "405", "MethodNotAllowed"}  # fmt: skip
# Stores differ in whether they encode these in a listing.
_AMBIGUOUS = re.compile(r"[+% \ufffd]")

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Lookup:
    """One call's worth."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def run(self, keys: Sequence[str]) -> dict[str, Stat]:
        """Of these keys those that are there, each as it is now."""
        found: dict[str, Stat] = {}
        for each in _side_by_side(self._walk, [*_stretches(keys)]):
            found |= each
        alone = [key for key in keys if key not in found]
        stats = zip(alone, _side_by_side(self._head, alone), strict=True)
        return found | {key: stat for key, stat in stats if stat is not None}

    def _walk(self, keys: Sequence[str]) -> dict[str, Stat]:
        """Page by page along these keys, which are in order and of one folder, while the pages are worth it."""
        prefix = commonprefix(keys)  # noqa: RUF071 by character, as S3 takes it: the fewer others a page shows
        found, at = dict[str, Stat](), 0
        while len(keys) - at >= WORTH_A_PAGE:
            # To begin right after a key without its last character is to begin before that key.
            answer = self._page(prefix, keys[at][:-1])
            rows = _rows(prefix, answer)
            shown = {key: _stat(rows[key]) for key in keys[at:] if key in rows}
            found |= shown
            if not answer.get("IsTruncated") or len(shown) < WORTH_A_PAGE:
                break
            at = max(at + WORTH_A_PAGE, bisect_right(keys, max(rows)))
        return found

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
            found = self._client.head_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if code(error) in _MISSING:
                return None
            raise unreachable(self._bucket, self._with_reason(key, error)) from error
        except BotoCoreError as error:
            raise unreachable(self._bucket, error) from error
        return Stat(found["ContentLength"], parsedate_to_datetime(found["LastModified"]), stamp(found))

    def _with_reason(self, key: str, error: ClientError) -> ClientError:
        """An answer to HEAD has no body, so it does not say why it failed. The answer to GET does."""
        try:
            self._client.get_object(Bucket=self._bucket, Key=key, Range="bytes=0-0")["Body"].close()
        except ClientError as said:
            return said
        except BotoCoreError:
            pass  # the first answer is reported
        return error


def _stretches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Keys of one folder together, in order, where there are enough of them."""
    for _, group in groupby(sorted(set(keys)), lambda key: key.rpartition("/")[0]):
        near = [*group]
        for start in range(0, len(near), STRETCH):
            if len(near) - start >= WORTH_A_PAGE:
                yield near[start : start + STRETCH]


def _rows(prefix: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows by names that can only mean themselves. What begins otherwise was decoded wrongly."""
    decode: Callable[[str], str] = unquote_plus if answer.get("EncodingType") == "url" else str
    named = ((decode(row["Key"]), row) for row in answer.get("Contents", ()))
    return {
        key: row for key, row in named
        if key.startswith(prefix) and not _AMBIGUOUS.search(key, len(prefix))
    }  # fmt: skip


def _stat(row: Mapping[str, Any]) -> Stat:
    """To the second, which is all that a HEAD request tells: the same object is the same in both."""
    modified = datetime.fromisoformat(row["LastModified"]).replace(microsecond=0)
    return Stat(int(row["Size"]), modified, stamp(row))


def _side_by_side(ask: Callable[[Asked], Answer], all_of: Sequence[Asked]) -> list[Answer]:
    """In order. The first that fails is raised, and what had not begun by then is not asked."""
    if not all_of:
        return []
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="stat-s3") as pool:
        return [*pool.map(ask, all_of)]
