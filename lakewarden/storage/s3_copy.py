"""Objects brought to S3 in a storage class of their own: by the store itself where it has the source too, else in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lakewarden.model.location import S3, is_local, split_url
from lakewarden.storage.s3_connection import connect

# What one request copies at most, and how much each does of what is larger.
_WHOLE, _PART = 5 << 30, 1 << 30
# One request for less, parts for more: a part has at least 5 MiB.
_SMALL = 8 << 20


def on_s3(path: str) -> bool:
    return not is_local(path) and split_url(path)[0] in S3


def within(source: str, source_io: Mapping[str, str], target: str, target_io: Mapping[str, str]) -> bool:
    """Whether one store has both, and one key opens both."""
    same = ("s3.endpoint", "s3.access-key-id")
    return on_s3(source) and on_s3(target) and all(source_io.get(key) == target_io.get(key) for key in same)


def copy_within(source: str, target: str, io: Mapping[str, str], storage_class: str | None) -> None:
    """Not a byte of it passes through here."""
    client = connect(io)
    (_, from_bucket, from_key) = split_url(source)
    size = int(client.head_object(Bucket=from_bucket, Key=from_key)["ContentLength"])
    copy_object(client, source, target, size, storage_class)


def copy_object(
    client: Any, source: str, target: str, size: int, storage_class: str | None, etag: str | None = None
) -> None:
    """In one request, or in parts where that is too large for one. With an etag only what still has it is copied."""
    (_, from_bucket, from_key), (_, bucket, key) = split_url(source), split_url(target)
    asked = {"StorageClass": storage_class} if storage_class else {}
    place = {"Bucket": from_bucket, "Key": from_key}
    only = {"CopySourceIfMatch": etag} if etag else {}
    if size <= _WHOLE:
        client.copy_object(Bucket=bucket, Key=key, CopySource=place, **asked, **only)
        return
    with _upload(client, bucket, key, asked) as (upload, parts):
        for number, start in enumerate(range(0, size, _PART), 1):
            span = f"bytes={start}-{min(start + _PART, size) - 1}"
            found = client.upload_part_copy(
                Bucket=bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                CopySource=place,
                CopySourceRange=span,
                **only,
            )
            parts.append({"PartNumber": number, "ETag": found["CopyPartResult"]["ETag"]})


def upload(pieces: Iterator[Any], target: str, io: Mapping[str, str], storage_class: str | None) -> None:
    """Streamed: never more than two pieces in memory."""
    client = connect(io)
    _, bucket, key = split_url(target)
    asked = {"StorageClass": storage_class} if storage_class else {}
    first = next(pieces, b"")
    second = next(pieces, None)
    if second is None and len(first) <= _SMALL:
        client.put_object(Bucket=bucket, Key=key, Body=bytes(first), **asked)
        return
    with _upload(client, bucket, key, asked) as (upload_id, parts):
        number, piece = 1, first
        while piece is not None:
            found = client.upload_part(
                Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=bytes(piece)
            )
            parts.append({"PartNumber": number, "ETag": found["ETag"]})
            number, piece, second = number + 1, second, next(pieces, None) if second is not None else None


class _upload:
    """A multipart upload that is completed on leaving, or given up: parts that are left behind cost money, unseen."""

    def __init__(self, client: Any, bucket: str, key: str, asked: Mapping[str, str]) -> None:
        self._client, self._place, self._asked = client, {"Bucket": bucket, "Key": key}, asked
        self._parts: list[dict[str, Any]] = []

    def __enter__(self) -> tuple[str, list[dict[str, Any]]]:
        self._id = str(self._client.create_multipart_upload(**self._place, **self._asked)["UploadId"])
        return self._id, self._parts

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._client.complete_multipart_upload(
                **self._place, UploadId=self._id, MultipartUpload={"Parts": self._parts}
            )
        else:
            self._client.abort_multipart_upload(**self._place, UploadId=self._id)
