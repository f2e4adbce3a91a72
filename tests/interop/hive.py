"""A real Hive Metastore on the loopback, on Java 11 and Derby, in a JVM of its own.

The metastore's own `main` listens on every interface, so its parts (handler, Thrift server) are put together here
through py4j.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from tests.interop import parts
from tests.support.ports import answers, free_port, wait_until


@dataclass(frozen=True)
class Hive:
    uri: str
    warehouse: str


@contextmanager
def hive(folder: Path) -> Iterator[Hive]:
    """Started on entering (about 10 s), killed on leaving."""
    folder.mkdir(parents=True)
    archive, *others = parts.artifacts(parts.HIVE)
    own = parts.unpacked(archive, "hive-metastore-3.1.3") / "apache-hive-metastore-3.1.3-bin" / "lib"
    # Derby 10.10 does not start on Java 11: the newer one of `others` takes its place.
    jars = [*(each for each in sorted(own.glob("*.jar")) if not each.name.startswith("derby")), *others]
    (py4j_jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, warehouse = free_port(), f"file://{folder}/wh"
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "metastore.schema.verification": "false",
        "metastore.warehouse.dir": warehouse,
        "metastore.event.db.notification.api.auth": "false",
        # The default names a task whose class is not in the standalone package.
        "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
        "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
    }
    # Open until the JVM is dead: py4j copies what the JVM says into it.
    with (folder / "hive.log").open("a") as log:
        gateway_port, token, process = launch_gateway(
            jarpath=str(py4j_jar),
            classpath=":".join(map(str, jars)),
            javaopts=["-Xmx768m", "-XX:+UseSerialGC", f"-Dderby.stream.error.file={folder}/derby.log"],
            java_path=str(parts.java_11() / "bin" / "java"),
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            create_new_process_group=True,
            enable_auth=True,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port, auth_token=token))
        try:
            try:
                server = _server(gateway.jvm, port, settings)
            except Py4JJavaError as error:
                # Asked for while the JVM lives: afterwards the error cannot say what it was.
                raise RuntimeError(
                    f"the Hive Metastore does not start: {_deepest(error.java_exception)}"
                ) from None
            threading.Thread(target=_serve, args=(server,), daemon=True).start()
            wait_until(lambda: answers(port), "the Hive Metastore answers", 60)
            yield Hive(f"thrift://127.0.0.1:{port}", warehouse)
        finally:
            # py4j reports the call that serves as broken, at length; it is meant to break.
            logging.getLogger("py4j").setLevel(logging.CRITICAL)
            process.kill()
            process.wait()
            gateway.close()


def _server(jvm: Any, port: int, settings: Mapping[str, str]) -> Any:
    metastore, thrift = jvm.org.apache.hadoop.hive.metastore, jvm.org.apache.thrift
    conf = metastore.conf.MetastoreConf.newMetastoreConf()
    for key, value in settings.items():
        conf.set(key, value)
    # The schema that is made by itself has no tables for locks, and Iceberg locks at each commit.
    metastore.txn.TxnDbUtil.prepDb(conf)
    base = metastore.HiveMetaStore.HMSHandler("interop", conf, False)
    handler = metastore.RetryingHMSHandler.getProxy(conf, base, True)
    socket = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress("127.0.0.1", port))
    arguments = thrift.server.TThreadPoolServer.Args(socket)
    arguments.processor(metastore.TSetIpAddressProcessor(handler))
    return thrift.server.TThreadPoolServer(arguments)


def _deepest(error: Any) -> str:
    while (cause := error.getCause()) is not None:
        error = cause
    return str(error.toString())


def _serve(server: Any) -> None:
    # Blocks until the JVM is killed, which is its regular end.
    with suppress(Py4JError, OSError):
        server.serve()
