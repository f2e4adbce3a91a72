"""Where tables of the cases are: a REST catalog of Iceberg whose warehouse is spelled in one of the three ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.rest_catalog import rest_catalog
from tests.support.s3 import REGION, s3_server

FILE, BARE, S3 = "file:///", "/", "s3://"
EVERYWHERE = (FILE, BARE, S3)


@dataclass(frozen=True)
class Place:
    """One warehouse, and how the clients of its catalog reach it."""

    label: str
    folder: Path
    uri: str
    warehouse: str
    io: Mapping[str, str]

    @property
    def on_s3(self) -> bool:
        return self.label == S3

    @property
    def catalog_properties(self) -> dict[str, str]:
        """As Iceberg's own library takes them."""
        return {"type": "rest", "uri": self.uri, **self.io}


@contextmanager
def place(label: str, folder: Path) -> Iterator[Place]:
    """A catalog of its own for the time of the block, and a store for it where it is on S3."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        io: dict[str, str] = {}
        if label == S3:
            server = stack.enter_context(s3_server(folder / "s3"))
            io = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **server.io(), "s3.region": REGION}
            warehouse = f"{server.bucket().url}/wh"
        else:
            (folder / "wh").mkdir()
            warehouse = f"file://{folder}/wh" if label == FILE else f"{folder}/wh"
        catalog = stack.enter_context(rest_catalog(folder / "rest", warehouse, io))
        yield Place(label, folder, catalog.uri, warehouse, io)
