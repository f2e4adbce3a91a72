"""Real S3 servers on the loopback: versitygw, which checks signatures, and moto, which takes every key S3 takes.

versitygw keeps objects as files. So it cannot hold the keys `p` and `p/q` at once, it folds `a//b` and `a/./b` into `a/b`,
and a key's part is at most 255 bytes long. moto keeps them in memory, each key for itself, and believes every credential.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakewarden.storage.s3_client import connect
from tests.support.ports import answers, free_port, wait_until

VERSITYGW = "versitygw-v1.8.0"
REGION = "us-east-1"
MOTO_PAGE = 40


@dataclass
class S3:
    """The server; it can be killed and started again under the same address, versitygw with its objects intact."""

    folder: Path
    kind: str
    port: int = field(default_factory=free_port)
    access_key: str = field(default_factory=lambda: secrets.token_hex(8))
    secret_key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def checks_credentials(self) -> bool:
        return self.kind == "versitygw"

    def io(self, endpoint: str | None = None) -> dict[str, str]:
        """As the FileIO of a table would have it; few retries, so that a test of a dead server ends soon."""
        return {
            "s3.endpoint": endpoint or self.endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "client.region": REGION,
            "s3.path-style-access": "true",
            "s3.retry.num-retries": "2",
        }

    def start(self) -> None:
        log = self.folder / f"{self.kind}.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(), env=self._environment(), stdout=output, stderr=output
            )
        wait_until(lambda: answers(self.port), f"{self.kind} answers")

    def kill(self) -> None:
        """As a crash would: no answer to requests on their way."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def bucket(self) -> Bucket:
        """A new, empty one."""
        name = f"lake-{secrets.token_hex(4)}"
        client = connect(self.io())
        client.create_bucket(Bucket=name)
        return Bucket(self, name, client)

    def _command(self) -> Sequence[str]:
        if self.kind == "moto":
            return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        objects = self.folder / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        return [
            str(_built() or VERSITYGW),
            "--port",
            f"127.0.0.1:{self.port}",
            "--quiet",
            "posix",
            str(objects),
        ]

    def _environment(self) -> Mapping[str, str]:
        keys = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        # Short pages, so that a listing of many pages needs few objects.
        return {**os.environ, **keys, "MOTO_S3_DEFAULT_MAX_KEYS": str(MOTO_PAGE)}


@dataclass(frozen=True)
class Bucket:
    """One bucket, and a client of its own to put things there."""

    server: S3
    name: str
    client: Any = field(repr=False)

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, body: bytes = b"abc") -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)


@contextmanager
def s3_server(folder: Path, kind: str | None = None) -> Iterator[S3]:
    """Started on entering, ended on leaving: versitygw where it could be built, else moto."""
    folder.mkdir(parents=True, exist_ok=True)
    server = S3(folder, kind or ("versitygw" if _built() else "moto"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _built() -> Path | None:
    """Where scripts/versitygw.sh puts it."""
    if named := os.environ.get("LAKEWARDEN_CACHE"):
        cache = Path(named)
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakewarden"
    path = cache / "bin" / VERSITYGW
    return path if os.access(path, os.X_OK) else None
