"""A real Trino on the loopback; its Iceberg catalogs are made and dropped by SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.interop import parts
from tests.interop.process import Server
from tests.support.ports import free_port


@dataclass
class Trino:
    server: Server
    port: int
    _http: httpx.Client = field(
        default_factory=lambda: httpx.Client(timeout=120, headers={"X-Trino-User": "interop"})
    )

    def start(self) -> None:
        self.server.start(self._ready, seconds=240)

    def stop(self) -> None:
        self.server.kill()
        self._http.close()

    def sql(self, text: str) -> list[list[Any]]:
        """Every row of the answer; an error is raised with Trino's message."""
        answer = self._http.post(f"{self._url}/v1/statement", content=text).raise_for_status().json()
        rows: list[list[Any]] = []
        while True:
            if "error" in answer:
                raise RuntimeError(f"Trino: {answer['error']['message']}")
            rows += answer.get("data", [])
            if "nextUri" not in answer:
                return rows
            answer = self._http.get(answer["nextUri"]).raise_for_status().json()

    def create_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        listed = ", ".join(f"\"{key}\" = '{value}'" for key, value in properties.items())
        self.sql(f"create catalog {name} using iceberg with ({listed})")

    def digest(self, table: str, columns: list[str]) -> tuple[Any, ...]:
        """Count, and a checksum of every column."""
        sums = ", ".join(f"to_hex(checksum({column}))" for column in columns)
        (row,) = self.sql(f"select count(*), {sums} from {table}")
        return tuple(row)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _ready(self) -> bool:
        try:
            return self._http.get(f"{self._url}/v1/info").json().get("starting") is False and bool(
                self.sql("select 1")
            )
        except (httpx.HTTPError, ValueError, RuntimeError):
            return False


@contextmanager
def trino(folder: Path) -> Iterator[Trino]:
    """Started on entering (about 40 s), killed on leaving."""
    (archive,) = parts.artifacts(parts.TRINO)
    home = parts.unpacked(archive, "trino-server-476") / "trino-server-476"
    plugins = folder / "plugins"
    plugins.mkdir(parents=True)
    (plugins / "iceberg").symlink_to(home / "plugin" / "iceberg")  # the other fifty would double its start
    port = free_port()
    config = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": port,
        "discovery.uri": f"http://127.0.0.1:{port}",
        "plugin.dir": plugins,
        "catalog.management": "dynamic",
        "catalog.store": "memory",
        "query.max-memory-per-node": "512MB",
        "node.environment": "interop",
        "node.id": "interop",
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
    }
    (folder / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    command = [
        str(parts.java_25() / "bin" / "java"),
        "-Xmx2g",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djdk.attach.allowAttachSelf=true",
        "--add-modules=jdk.incubator.vector",
        "--enable-native-access=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
        f"-Dconfig={folder / 'config.properties'}",
        "-cp",
        f"{home / 'lib'}/*",
        "io.trino.server.TrinoServer",
    ]
    running = Trino(Server("trino", command, folder), port)
    try:
        running.start()
        yield running
    finally:
        running.stop()
