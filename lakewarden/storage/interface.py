"""What every kind of store offers, in the same words. Paths go in and come out as the caller spells them."""

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

# The same of files that were asked for by name.
LOOKED = pa.schema([LISTING.field(name) for name in ("size", "modified", "stamp")])


@dataclass(frozen=True, slots=True)
class Stat:
    """One file as it is now. A file written anew has another stamp: the etag on object stores, the time of change in ns on disks."""

    size: int
    modified: datetime
    stamp: str


# Spelled here because inside the classes `list` is a method.
Stats: TypeAlias = list[Stat | None]


class Files(Protocol):
    """One store. Whatever is not said here and goes wrong is raised as Unreachable."""

    def list(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Every file under the folder, at any depth. Complete, or raises; a folder that is not there is empty."""

    def stat(self, paths: Sequence[str]) -> Stats:
        """In order; None for what is not there."""

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        """Failures only, path to reason; a store that does not answer is the reason of each. Not found is success."""

    def read(self, path: str, start: int, length: int | None) -> bytes:
        """Those bytes, or FileNotFoundError."""

    def write(self, path: str, content: bytes) -> None:
        """A small file, whole under its name, in place of what was there."""

    def remove_empty_folders(self, folders: Iterable[str], root: str) -> int:
        """How many folders went because nothing was left in them; stores without folders have none to remove."""


def modified_at(nanos: int) -> datetime:
    """Exact to the microsecond, which a float of seconds is not."""
    seconds, rest = divmod(nanos, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
