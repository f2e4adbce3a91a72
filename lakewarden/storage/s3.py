"""Access to S3 and compatible stores, through botocore: keys are used exactly as they are.

obstore, which is used for the other clouds, drops slashes at both ends of a key and refuses empty segments: it
lists the folder marker `a/` as `a`, and a request to delete `/a` would delete `a`. If a bulk deletion fails for
one key, obstore fails all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from lakewarden.model.location import split_url
from lakewarden.storage.interface import Stats
from lakewarden.storage.s3_client import code, unreachable
from lakewarden.storage.s3_delete import Deletion
from lakewarden.storage.s3_listing import BucketListing, batch
from lakewarden.storage.s3_stat import Lookup

_MISSING = {"404", "NoSuchKey"}


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
