"""The one place that starts a Spark session.

What the user's configuration says wins on every key; the defaults here make the embedded mode start fast,
stay quiet and listen on no interface but the loopback. The JVM's own chatter goes to a log file, never to
the terminal, and is shown only when the start fails.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lakewarden.engine.java import use_java
from lakewarden.errors import NotSetUp

ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG_PREFIX = "spark.sql.catalog."
STARTED_BY_US = "spark.lakewarden.started"

# Spark's own pattern of what it never prints (spark.redaction.regex).
SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|credential")


def open_session(master: str, conf: Mapping[str, str], jars: Sequence[Path]) -> SparkSession:
    """The session of this process.

    Where one is active already (a notebook's, a job's), it is used as it is and only learns the catalogs in
    `conf`; a catalog that session has already used keeps the settings it was loaded with.
    """
    active = active_session()
    if active is not None:
        _add_catalogs(active, conf)
        return active
    return _start(defaults(master, jars) | dict(conf))


def close_session(spark: SparkSession) -> None:
    """Stop a session that `open_session` started; leave anyone else's running."""
    if spark.sparkContext.getConf().get(STARTED_BY_US) is not None:
        spark.stop()


def active_session() -> SparkSession | None:
    """This process's session, whichever thread asks."""
    if SparkContext._active_spark_context is None:
        return None
    # Without options getOrCreate changes nothing on the session it finds.
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def defaults(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """What a session has when the user says nothing."""
    conf = {
        "spark.master": master,
        "spark.app.name": "lakewarden",
        STARTED_BY_US: str(os.getpid()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.python.worker.reuse": "true",
        "spark.sql.extensions": ICEBERG_EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": _driver_memory(psutil.virtual_memory().total),
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    }
    if jars:
        conf["spark.jars"] = ",".join(str(jar) for jar in jars)
    if master.startswith("local"):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The default of 200 is made for clusters: on one machine it is 200 tasks of no work.
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 4),
        }
    return conf


def _driver_memory(total_bytes: int) -> str:
    """A quarter of the machine, 1 to 4 GB: rows move in Python workers, the JVM holds metadata."""
    quarter = total_bytes // 4 // 2**20
    return f"{min(max(quarter, 1024), 4096)}m"


def _add_catalogs(spark: SparkSession, conf: Mapping[str, str]) -> None:
    for key, value in conf.items():
        if key.startswith(CATALOG_PREFIX):
            spark.conf.set(key, value)


def _start(conf: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:
        _launch_jvm(conf)
    else:
        # A session that has been stopped leaves its JVM behind; it may lack our jars.
        _add_to_class_path(conf.get("spark.jars", "").split(","))
    return SparkSession.builder.config(map=dict(conf)).getOrCreate()


def _launch_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM with its output in a file that is removed when this process ends well."""
    use_java(os.environ)
    descriptor, name = tempfile.mkstemp(prefix="lakewarden-spark-", suffix=".log")
    log = Path(name)
    try:
        # launch_gateway keeps Ctrl-C from the JVM, so that Python can cancel its jobs in order.
        gateway = launch_gateway(_command_line(conf), {"stdout": descriptor, "stderr": descriptor})
    except PySparkRuntimeError as error:
        raise NotSetUp(what="Spark", reason=_last_line(log) or str(error), hint=f"see {log}") from error
    finally:
        os.close(descriptor)
    atexit.register(log.unlink, missing_ok=True)
    SparkContext._ensure_initialized(gateway=gateway)


def _command_line(conf: Mapping[str, str]) -> SparkConf:
    """What spark-submit must know before the JVM runs. Everyone on the machine can read a command line:
    catalogs (whose addresses may hold a password) and secrets are set afterwards, inside the JVM."""
    public = {
        key: value
        for key, value in conf.items()
        if not key.startswith(CATALOG_PREFIX) and not SECRET.search(key)
    }
    return SparkConf(loadDefaults=False).setAll(list(public.items()))


def _add_to_class_path(jars: Iterable[str]) -> None:
    jvm = SparkContext._jvm
    assert jvm is not None  # set together with the gateway
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    known = {str(url.getPath()) for url in loader.getURLs()}
    for jar in jars:
        if jar and jar not in known:
            loader.addURL(jvm.java.io.File(jar).toURI().toURL())


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
