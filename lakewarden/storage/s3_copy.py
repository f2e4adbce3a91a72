"""Copies objects to S3 in a given storage class: by the store itself if it also has the source, otherwise as an
upload in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lakewarden.model.location import S3, is_local, split_url
from lakewarden.storage.s3_connection import connect

# The largest object that one request copies, and the size of the parts of a larger one.
_WHOLE, _PART = 5 << 30, 1 << 30
# One request for smaller files, parts for larger ones: a part has at least 5 MiB.
_SMALL = 8 << 20


def on_s3(path: str) -> bool:
    return not is_local(path) and split_url(path)[0] in S3


def within(source: str, source_io: Mapping[str, str], target: str, target_io: Mapping[str, str]) -> bool:
    """Whether one store has both, and the same credentials open both."""
    same = ("s3.endpoint", "s3.access-key-id")
    return on_s3(source) and on_s3(target) and all(source_io.get(key) == target_io.get(key) for key in same)


def copy_within(source: str, target: str, io: Mapping[str, str], storage_class: str | None) -> None:
    """Copy inside the store: no byte passes through this machine."""
    client = connect(io)
    (_, from_bucket, from_key) = split_url(source)
    size = int(client.head_object(Bucket=from_bucket, Key=from_key)["ContentLength"])
    copy_object(client, source, target, size, storage_class)


def copy_object(
    client: Any, source: str, target: str, size: int, storage_class: str | None, etag: str | None = None
) -> None:
    """Copy in one request, or in parts if the object is too large. With an etag, only an object that still has it is copied."""
    (_, from_bucket, from_key), (_, bucket, key) = split_url(source), split_url(target)
    arguments = {"StorageClass": storage_class} if storage_class else {}
    place = {"Bucket": from_bucket, "Key": from_key}
    only = {"CopySourceIfMatch": etag} if etag else {}
    if size <= _WHOLE:
        client.copy_object(Bucket=bucket, Key=key, CopySource=place, **arguments, **only)
        return
    with _upload(client, bucket, key, arguments) as (upload, parts):
        for number, start in enumerate(range(0, size, _PART), 1):
            span = f"bytes={start}-{min(start + _PART, size) - 1}"
            answer = client.upload_part_copy(
                Bucket=bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                CopySource=place,
                CopySourceRange=span,
                **only,
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})


def upload(pieces: Iterator[Any], target: str, io: Mapping[str, str], storage_class: str | None) -> None:
    """Upload as a stream, with at most two pieces in memory."""
    client = connect(io)
    _, bucket, key = split_url(target)
    arguments = {"StorageClass": storage_class} if storage_class else {}
    first = next(pieces, b"")
    second = next(pieces, None)
    if second is None and len(first) <= _SMALL:
        client.put_object(Bucket=bucket, Key=key, Body=bytes(first), **arguments)
        return
    with _upload(client, bucket, key, arguments) as (upload_id, parts):
        number, piece = 1, first
        while piece is not None:
            answer = client.upload_part(
                Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=bytes(piece)
            )
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            number, piece, second = number + 1, second, next(pieces, None) if second is not None else None


class _upload:
    """A multipart upload that is completed or aborted on leaving: leftover parts cost money and are not visible."""

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
