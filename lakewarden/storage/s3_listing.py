"""Lists a bucket: sequentially, or folder by folder in parallel if folders hold enough keys.

S3 returns a thousand keys per request, one request after the other. Listing each folder separately allows
parallel requests, but costs one request per folder, however few keys it has. The first page of a folder shows
which method is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from lakewarden.errors import Unreachable
from lakewarden.storage.interface import LISTING
from lakewarden.storage.s3_client import unreachable

PARALLEL = 16
# For an answer without a body; botocore itself retries other failures.
ATTEMPTS = 3
# If a full first page shows more folders than this, each holds too little to be worth its own request.
MOST_FOLDERS = 10


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: keys that begin with the prefix, from the token on."""

    prefix: str
    token: str = ""
    one_level: bool = False


@dataclass(frozen=True, slots=True)
class S3Page:
    """The answer to a request, and the requests that follow from it."""

    rows: Sequence[Any]
    more: Sequence[Ask] = ()


class BucketListing:
    """Every key of one bucket that begins with a prefix."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def pages(self, prefix: str) -> Iterator[Sequence[Any]]:
        """Pages as they arrive, with a limited number of parallel requests and no more answers in memory than that."""
        pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="list-s3")
        waiting, running = [Ask(prefix)], set[Future[S3Page]]()
        try:
            while waiting or running:
                while waiting and len(running) < PARALLEL:
                    running.add(pool.submit(self._page, waiting.pop()))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for page in [each.result() for each in done]:
                    waiting.extend(page.more)
                    yield page.rows
        finally:
            pool.shutdown(cancel_futures=True)

    def _page(self, ask: Ask) -> S3Page:
        answer = self._answer(ask)
        rows, folders = self._decoded(ask, answer)
        token = answer.get("NextContinuationToken", "")
        if answer["IsTruncated"] and not token:
            raise self._garbled("it is truncated but has no continuation token")
        following = [replace(ask, token=token)] if answer["IsTruncated"] else []
        if ask.one_level:
            return S3Page(rows, [*following, *map(Ask, folders)])
        if following and not ask.token and _splits_well(ask.prefix, rows):
            # The keys of this page come again, as part of the folders.
            return S3Page((), [replace(ask, one_level=True)])
        return S3Page(rows, following)

    def _decoded(self, ask: Ask, answer: Any) -> tuple[list[Any], list[str]]:
        """Objects and folders by their own names. Some stores ignore the request to encode keys; decoding would
        then change the names.
        """
        encoded = answer.get("EncodingType") == "url"
        decode = unquote_plus if encoded else str
        rows = [{**row, "Key": decode(row["Key"])} for row in answer.get("Contents", ())]
        folders = [decode(each["Prefix"]) for each in answer.get("CommonPrefixes", ())]
        for name in [*(row["Key"] for row in rows), *folders]:
            if not name.startswith(ask.prefix):
                raise self._garbled(f"{name!r} does not begin with {ask.prefix!r}")
            if not encoded and "\ufffd" in name:
                raise self._garbled(f"XML cannot carry the key {name!r}, and the store does not encode keys")
        return rows, folders

    def _garbled(self, why: str) -> Unreachable:
        return Unreachable(what=f"bucket {self._bucket}", reason=f"its listing cannot be trusted: {why}")

    def _answer(self, ask: Ask) -> Any:
        options = {"Delimiter": "/"} if ask.one_level else {}
        if ask.token:
            options["ContinuationToken"] = ask.token
        for _ in range(ATTEMPTS):
            try:
                # Encoded, because XML cannot contain every key.
                answer = self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=ask.prefix, EncodingType="url", **options
                )
            except (ClientError, BotoCoreError, ResponseParserError) as error:
                raise unreachable(self._bucket, error) from error
            # botocore reads an answer that was cut off before its first byte as an empty listing.
            if "IsTruncated" in answer:
                return answer
        raise self._garbled("it is empty, without saying that it is complete")


def _splits_well(prefix: str, rows: Sequence[Any]) -> bool:
    """Whether this first of many pages shows folders that each hold a good part of a page."""
    rests = [row["Key"][len(prefix) :] for row in rows]
    folders = {rest.partition("/")[0] for rest in rests if "/" in rest}
    return 0 < len(folders) <= MOST_FOLDERS


def batch(start: str, rows: Sequence[Any]) -> pa.RecordBatch:
    """The objects of S3's answer as rows of a listing. Their paths are `start` plus the key."""
    times = pa.array([row["LastModified"] for row in rows], pa.string())
    modified = pc.cast(times, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([start + row["Key"] for row in rows], pa.string()),
            pa.array([int(row["Size"]) for row in rows], pa.int64()),
            # To the second, the precision of a HEAD request: so both give the same object the same time.
            pc.floor_temporal(modified, unit="second"),
            pa.array([stamp(row) for row in rows], pa.string()),
        ],
        schema=LISTING,
    )


def stamp(answer: Any) -> str:
    """The etag without its quotes, which some stores omit."""
    return str(answer.get("ETag", "")).strip('"')
