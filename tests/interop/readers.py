"""The small readers as judges: each is a process of its own environment that answers one question a line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop import parts
from tests.interop.places import Place

READERS = ("pyiceberg", "duckdb", "polars", "datafusion", "chdb", "daft")
CHILD = Path(__file__).with_name("reader_child.py")


class CannotRead(Exception):
    """What a reader said instead of an answer."""


@dataclass(frozen=True)
class Reader:
    name: str
    process: subprocess.Popen[str]

    def digest(self, where: Place, table: str) -> tuple[int, str]:
        """Count and digest of every value, or CannotRead."""
        catalog = {"type": "rest", "uri": where.uri, **_as_pyiceberg(where)}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"catalog": catalog, "table": table}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise CannotRead("the reader's process died")
        answer = json.loads(line)
        if "error" in answer:
            raise CannotRead(answer["error"])
        return answer["count"], answer["digest"]


def _as_pyiceberg(where: Place) -> dict[str, str]:
    return {key: value for key, value in where.io.items() if key.startswith("s3.")}


@contextmanager
def reader(name: str, folder: Path) -> Iterator[Reader]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.log").open("a") as log:
        process = subprocess.Popen(
            [str(parts.readers_python()), str(CHILD), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
        )
    try:
        yield Reader(name, process)
    finally:
        process.kill()
        process.wait()
