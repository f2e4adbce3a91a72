"""Access to Google Cloud Storage and Azure, through obstore.

obstore splits a key at its slashes: a key that begins or ends with a slash would become another key, so such
keys are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore

from lakewarden.errors import Unreachable
from lakewarden.model.location import split_url
from lakewarden.redact import redact_text
from lakewarden.storage.interface import LISTING, Stat, Stats

PARALLEL = 16
CHUNK = 10_000

_RETRIES = {
    "max_retries": 6,
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=15), "base": 2},
    "retry_timeout": timedelta(seconds=60),
}
_CLIENT = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)}
_OPTIONS: dict[str, Any] = {"retry_config": _RETRIES, "client_options": _CLIENT}

_AZURE = {
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_key",
    "adls.tenant-id": "tenant_id",
    "adls.client-id": "client_id",
    "adls.client-secret": "client_secret",
}


def google(bucket: str, io: Mapping[str, str]) -> CloudFiles:
    """A Google bucket. Credentials come from the environment: a token in the properties cannot be renewed."""
    return CloudFiles(GCSStore(bucket, **_OPTIONS), bucket)


def azure(container: str, io: Mapping[str, str]) -> CloudFiles:
    """An Azure container, written as container@account.host in a path."""
    name, _, host = container.partition("@")
    config: Any = {ours: io[theirs] for theirs, ours in _AZURE.items() if io.get(theirs)}
    if host:
        config["account_name"] = host.partition(".")[0]
    return CloudFiles(AzureStore(name, config=config, **_OPTIONS), container)


class CloudFiles:
    """One bucket or container."""

    def __init__(self, store: Any, bucket: str) -> None:
        self._store, self._bucket = store, bucket

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        scheme, bucket, key = split_url(folder)
        if key.rstrip("/"):
            _check(folder, key.rstrip("/"))
        stream = obstore.list(self._store, key.rstrip("/") or None, chunk_size=CHUNK, return_arrow=True)
        try:
            for chunk in stream:
                if chunk.num_rows:
                    yield _batch(f"{scheme}://{bucket}/", pa.record_batch(chunk))
        except BaseError as error:
            raise self._unreachable(error) from error

    def stat(self, paths: Sequence[str]) -> Stats:
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="stat") as pool:
            return [*pool.map(self._head, paths)]

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="delete") as pool:
            reasons = [*pool.map(self._delete, paths)]
        return {path: reason for path, reason in zip(paths, reasons, strict=True) if reason}

    def read(self, path: str, start: int, length: int | None) -> bytes:
        key = _key(path)
        try:
            size = obstore.head(self._store, key)["size"]
            end = size if length is None else min(size, start + length)
            if start >= end:
                return b""
            return bytes(obstore.get_range(self._store, key, start=start, end=end))
        except FileNotFoundError:
            raise FileNotFoundError(path) from None
        except BaseError as error:
            raise self._unreachable(error) from error

    def write(self, path: str, content: bytes) -> None:
        try:
            obstore.put(self._store, _key(path), content)
        except BaseError as error:
            raise self._unreachable(error) from error

    def remove_empty_folders(self, folders: Iterable[str], root: str) -> int:
        return 0

    def _head(self, path: str) -> Stat | None:
        try:
            head = obstore.head(self._store, _key(path))
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise self._unreachable(error) from error
        modified = head["last_modified"]
        return Stat(head["size"], modified.replace(microsecond=0), head["e_tag"] or "")

    def _delete(self, path: str) -> str | None:
        """Delete one file. Returns why it may still exist, or None if it is gone. Not in bulk: a bulk request of obstore
        does not say which key failed.
        """
        try:
            obstore.delete(self._store, _key(path))
        except FileNotFoundError:
            return None
        except Unreachable as error:
            return str(error.parts["reason"])
        except BaseError as error:
            return _reason(error)
        return None

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(what=f"bucket {self._bucket}", reason=_reason(error))


def _reason(error: Exception) -> str:
    """The first line of the error; the rest is a dump of the request."""
    return redact_text(str(error).partition("\n")[0])


def _key(path: str) -> str:
    key = split_url(path)[2]
    _check(path, key)
    return key


def _check(path: str, key: str) -> None:
    if any(part in ("", ".", "..") for part in key.split("/")) or any(char < " " for char in key):
        raise Unreachable(
            what=path,
            reason="a key with an empty or dotted part, or a control character, cannot be named on this store",
        )


def _batch(start: str, found: pa.RecordBatch) -> pa.RecordBatch:
    paths = pc.binary_join_element_wise(start, found.column("path").cast(pa.string()), "")
    modified = pc.floor_temporal(found.column("last_modified").cast(pa.timestamp("us", "UTC")), unit="second")
    stamps = pc.fill_null(found.column("e_tag").cast(pa.string()), "")
    return pa.RecordBatch.from_arrays(
        [paths, found.column("size").cast(pa.int64()), modified, stamps], schema=LISTING
    )
