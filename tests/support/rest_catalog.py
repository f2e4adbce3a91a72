"""A real Iceberg REST catalog on the loopback, in a JVM of its own.

Iceberg publishes its reference server as one large jar. The server's own `main` listens on every interface,
so the same parts (a JDBC catalog on SQLite, Iceberg's servlet, Jetty) are put together here through py4j.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from lakewarden.spark.jars import ensure_jars
from lakewarden.spark.java import find_java
from tests.support.ports import answers, free_port, wait_until


@dataclass
class RestCatalog:
    """The server; it can be killed and started again under the same address, with its tables intact."""

    folder: Path
    warehouse: str
    properties: Mapping[str, str]
    port: int = field(default_factory=free_port)
    _gateway: JavaGateway | None = None
    _process: Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the catalog is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        gateway_port, token, self._process = _launch_jvm(self.folder / "rest-catalog.log")
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=gateway_port, auth_token=token, auto_convert=True)
        )
        _serve(self._gateway.jvm, self.port, self._catalog_properties())
        wait_until(lambda: answers(self.port), "the REST catalog answers")

    def stop(self) -> None:
        """End the JVM; it has nothing to save, every commit is in SQLite already."""
        self.kill()

    def kill(self) -> None:
        """As a crash would: no answer to requests on their way."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._gateway is not None:
            self._gateway.close()
        self._gateway = self._process = None

    def _catalog_properties(self) -> dict[str, str]:
        return {
            "uri": f"jdbc:sqlite:{self.folder / 'rest-catalog.db'}",
            "warehouse": self.warehouse,
            "jdbc.schema-version": "V1",
            # SQLite takes one writer: a second connection would answer "database is locked" to a commit.
            "clients": "1",
            **self.properties,
        }


@contextmanager
def rest_catalog(
    folder: Path, warehouse: str | None = None, properties: Mapping[str, str] | None = None
) -> Iterator[RestCatalog]:
    """Started on entering (a few seconds), ended on leaving. `properties` are the catalog's, such as io-impl."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = RestCatalog(folder, warehouse or str(folder / "warehouse"), properties or {})
    try:
        catalog.start()
        yield catalog
    finally:
        catalog.stop()


def _launch_jvm(log: Path) -> tuple[int, str, Popen[bytes]]:
    """A bare py4j gateway with the server's jar on its class path; ends when our end of its stdin closes."""
    (fat_jar,) = ensure_jars(["rest-server"])
    (py4j_jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    with log.open("ab") as output:
        port, token, process = launch_gateway(
            jarpath=str(py4j_jar),
            classpath=str(fat_jar),
            javaopts=["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
            java_path=str(find_java(os.environ).path / "bin" / "java"),
            die_on_exit=True,
            redirect_stdout=output,
            redirect_stderr=output,
            create_new_process_group=True,
            enable_auth=True,
            return_proc=True,
        )
    return port, token, process


def _serve(jvm: Any, port: int, properties: Mapping[str, str]) -> None:
    iceberg, jetty = jvm.org.apache.iceberg, jvm.org.eclipse.jetty
    backend = iceberg.jdbc.JdbcCatalog()
    backend.setConf(jvm.org.apache.hadoop.conf.Configuration())
    backend.initialize("rest_backend", dict(properties))
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(backend))
    context = jetty.servlet.ServletContextHandler()
    context.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", port))
    server.setHandler(context)
    server.start()
