"""The interface that every kind of store implements. Paths go in and come out in the caller's spelling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeAlias

import pyarrow as pa

LISTING = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.timestamp("us", "UTC")),
        ("stamp", pa.string()),
    ]
)

# The same columns for files that were requested by name.
LOOKED = pa.schema([LISTING.field(name) for name in ("size", "modified", "stamp")])


@dataclass(frozen=True, slots=True)
class Stat:
    """One file as it is now. A rewritten file has another stamp: the etag on object stores, the time of change
    in ns on disks.
    """

    size: int
    modified: datetime
    stamp: str


# Defined here because inside the classes `list` is a method.
Stats: TypeAlias = list[Stat | None]


class FileStore(Protocol):
    """One store. Every failure that is not described here is raised as Unreachable."""

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Every file under the folder, at any depth. Complete, or raises; a missing folder is empty."""

    def stat(self, paths: Sequence[str]) -> Stats:
        """The stat results in the order of the paths; None for a missing file."""

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        """Returns only failures, path to reason. If the store does not answer, that is the reason for each. A
        missing file is a success.
        """

    def read(self, path: str, start: int, length: int | None) -> bytes:
        """The requested bytes, or FileNotFoundError."""

    def write(self, path: str, content: bytes) -> None:
        """Write a small file atomically, replacing any existing one."""

    def remove_empty_folders(self, folders: Iterable[str], root: str) -> int:
        """Remove empty folders and return how many; stores without folders return 0."""


def modified_at(nanos: int) -> datetime:
    """Exact to the microsecond, unlike a float of seconds."""
    seconds, rest = divmod(nanos, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
