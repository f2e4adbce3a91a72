"""Starts the Spark session: the only module that does.

The user's configuration overrides every key; the defaults here make the embedded mode start fast, print little
and listen only on the loopback interface. The JVM's own output goes to a log file, never to the terminal, and
is shown only if the start fails.

Half of a start is Java loading classes. `python -m lakewarden.spark.session` makes an archive of the classes
once (170 MB in the cache folder), and every later start on this machine loads them from it.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lakewarden.errors import LakewardenError, NotSetUp
from lakewarden.spark.jars import default_cache, ensure_jars
from lakewarden.spark.java import JavaHome, use_java

ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG_PREFIX = "spark.sql.catalog."
CANCEL_SECONDS = 5.0
STARTED_BY_US = "spark.lakewarden.started"

Handler = Callable[[int, FrameType | None], Any] | int | None

# Spark's own pattern of values that it never prints (spark.redaction.regex).
SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|credential")


def open_session(master: str, conf: Mapping[str, str], jars: Sequence[Path]) -> SparkSession:
    """The session of this process.

    If a session is already active (of a notebook or a job), it is used unchanged and only gets the catalogs in
    `conf`; a catalog that the session has already used keeps its settings.
    """
    active = active_session()
    if active is not None:
        _add_catalogs(active, conf)
        return active
    archive = class_archive(use_java(os.environ), os.environ)
    return _start(defaults(master, jars, archive if archive.is_file() else None) | dict(conf))


def close_session(spark: SparkSession) -> None:
    """Stop a session that `open_session` started; leave other sessions running. A session whose JVM is gone is forgotten."""
    if not is_alive(spark):
        if _our_jvm() is not None:
            abandon_session()
        return
    if spark.sparkContext.getConf().get(STARTED_BY_US) is not None:
        spark.stop()


_THREAD = threading.local()
_OURS: dict[str, int] = {}  # the JVM that this module launched
_LOGS: list[Path] = []  # of JVMs that ran, the newest last
_LOGS_OF_FAILED: list[Path] = []  # of a failed start


def use_in_this_thread(spark: SparkSession) -> None:
    """Make it this thread's active session in the JVM, if the thread has none.

    Spark looks up settings by thread: on a thread without a session, a catalog that was never used is not
    found.
    """
    if getattr(_THREAD, "session", None) is spark:
        return
    sessions: Any = SparkSession._get_j_spark_session_class(spark._jvm)
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(spark._jsparkSession)
    _THREAD.session = spark


def is_alive(spark: SparkSession) -> bool:
    """Whether its JVM exists and its context has not ended. Never raises."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or (process is not None and process.poll() is not None):
        return False
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j reports a missing JVM in many ways: all of them mean the same
        return False


def end_jvm() -> None:
    """End the JVM that this process started, at once: calls that wait for its answers fail. Other JVMs are not affected."""
    process = _our_jvm()
    if process is not None and process.poll() is None:
        process.kill()


def _our_jvm() -> Any:
    """The process of PySpark's JVM if this module launched it; else None."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process if process is not None and process.pid == _OURS.get("pid") else None


def abandon_session() -> None:
    """Forget this process's session and its JVM, so that the next `open_session` starts again. Ends the parts
    that still run.
    """
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
    with SparkContext._lock:
        SparkContext._active_spark_context, SparkContext._gateway, SparkContext._jvm = None, None, None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def active_session() -> SparkSession | None:
    """This process's session, from any thread."""
    if SparkContext._active_spark_context is None:
        return None
    # Without options getOrCreate changes nothing on the session it finds.
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def defaults(master: str, jars: Sequence[Path], archive: Path | None = None) -> dict[str, str]:
    """The settings of a session without user settings."""
    java_options = ["-XX:+UseParallelGC"]
    if archive is not None:
        java_options.append(f"-XX:SharedArchiveFile={archive}")
    conf = {
        "spark.master": master,
        "spark.app.name": "lakewarden",
        STARTED_BY_US: str(os.getpid()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.python.worker.reuse": "true",
        # A cancelled task ends at once: its partial output is removed, so waiting has no use.
        "spark.python.task.killTimeout": "200ms",
        "spark.sql.extensions": ICEBERG_EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": _driver_memory(psutil.virtual_memory().total),
        "spark.driver.extraJavaOptions": " ".join(java_options),
    }
    if jars:
        conf["spark.jars"] = ",".join(str(jar) for jar in jars)
    if master.startswith("local"):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The default of 200 is for clusters: on one machine it means 200 tasks without work.
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 4),
        }
        # Over TCP every task waits for a delayed acknowledgement: 100 empty tasks on two cores took 2.7 s
        # instead of 1.3. On other machines, the executors' temporary folders may have names too long for a
        # socket.
        if _has_unix_sockets():
            conf |= {
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.python.unix.domain.socket.dir": tempfile.gettempdir(),
            }
    return conf


def _has_unix_sockets() -> bool:
    """Whether Unix sockets exist, and the path of one in the temporary folder is not too long."""
    return hasattr(socket, "AF_UNIX") and len(tempfile.gettempdir()) < 60


def _driver_memory(total_bytes: int) -> str:
    """A quarter of the machine, 1 to 4 GB: Python workers move rows, the JVM holds only metadata."""
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
        # A stopped session leaves its JVM running; that JVM may not have our jars.
        _add_to_class_path(conf.get("spark.jars", "").split(","))
    before = signal.getsignal(signal.SIGINT)
    spark = SparkSession.builder.config(map=dict(conf)).getOrCreate()
    if threading.current_thread() is threading.main_thread():
        _cancel_on_interrupt(spark, before)
    logging.root.addFilter(_not_py4j)
    return spark


def _not_py4j(record: logging.LogRecord) -> bool:
    """Drops py4j's log records: it logs a traceback if Ctrl-C interrupts a call or the JVM ends; its exception
    already says so.
    """
    return record.msg not in (
        "KeyboardInterrupt while sending command.",
        "Exception while sending command.",
    )


def _cancel_on_interrupt(spark: SparkSession, before: Handler) -> None:
    """On Ctrl-C, cancel the Spark jobs, then do what Ctrl-C did before the session started.

    pyspark's own handler calls the JVM from inside the interrupted call, which corrupts that connection and
    ends in tracebacks instead of KeyboardInterrupt. So cancel on another thread, and drop the interrupted
    connection: its late answer would be read as the answer to the next call.
    """
    context = spark.sparkContext

    def interrupted(signum: int, frame: FrameType | None) -> None:
        cancel = threading.Thread(target=context.cancelAllJobs, daemon=True)
        cancel.start()
        cancel.join(CANCEL_SECONDS)
        _drop_connection()
        if callable(before):
            before(signum, frame)

    signal.signal(signal.SIGINT, before if before == signal.SIG_IGN else interrupted)


def _drop_connection() -> None:
    """Drop this thread's connection to the JVM; py4j opens a new one for the next call."""
    gateway = SparkContext._gateway
    connection = gateway._gateway_client.get_thread_connection() if gateway else None
    if connection is not None:
        connection.close()


def _launch_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM with its output in a file that is removed if this process ends without error."""
    descriptor, name = tempfile.mkstemp(prefix="lakewarden-spark-", suffix=".log")
    log = Path(name)
    try:
        # launch_gateway hides Ctrl-C from the JVM, so that Python can cancel its jobs first.
        gateway = launch_gateway(_command_line(conf), {"stdout": descriptor, "stderr": descriptor})
    except PySparkRuntimeError as error:
        _keep(log, _LOGS_OF_FAILED, 1)  # the error's hint names it
        raise NotSetUp(what="Spark", reason=_last_line(log) or str(error), hint=f"see {log}") from error
    finally:
        os.close(descriptor)
    _keep(log, _LOGS, 2)  # its own log and the previous one, which may show why that JVM died
    _OURS["pid"] = gateway.proc.pid
    SparkContext._ensure_initialized(gateway=gateway)


def _keep(log: Path, logs: list[Path], most: int) -> None:
    """Keep this log and the latest ones before it. A worker whose Spark cannot start tries every few seconds, for days."""
    logs.append(log)
    while len(logs) > most:
        logs.pop(0).unlink(missing_ok=True)


@atexit.register
def _remove_logs() -> None:
    while _LOGS:
        _LOGS.pop().unlink(missing_ok=True)


def _command_line(conf: Mapping[str, str]) -> SparkConf:
    """The settings that spark-submit needs before the JVM runs. Every user of the machine can read a command
    line, so catalogs (whose addresses may hold a password) and secrets are set afterwards, inside the JVM.
    """
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


def class_archive(java: JavaHome, environ: Mapping[str, str]) -> Path:
    """The path of the archive for this Java and this Spark, whether it exists or not. A JVM ignores any other archive."""
    made_by = f"{java.path} {(java.path / 'lib' / 'modules').stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
    key = hashlib.sha256(made_by.encode()).hexdigest()[:12]
    return default_cache(environ).parent / "classes" / f"spark-{pyspark.__version__}-{key}.jsa"


def make_class_archive(archive: Path, jars: Sequence[Path]) -> None:
    """Run a little of everything in a separate JVM, which writes the list of loaded classes when it ends."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}.partial")
    with tempfile.TemporaryDirectory(prefix="lakewarden-") as folder:
        conf = {
            "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -XX:ArchiveClassesAtExit={partial}",
            f"{CATALOG_PREFIX}warm": "org.apache.iceberg.spark.SparkCatalog",
            f"{CATALOG_PREFIX}warm.type": "hadoop",
            f"{CATALOG_PREFIX}warm.warehouse": folder,
        }
        spark = _start(defaults("local[2]", jars) | conf)
        spark.sql("create table warm.db.t (a int) using iceberg")
        spark.sql("insert into warm.db.t values (1)")
        spark.table("warm.db.t.files").toArrow()
        spark.stop()
    _end_jvm()
    # Missing if this Java cannot make archives: starts stay slow, and nothing else changes.
    if partial.is_file():
        partial.replace(archive)


def _end_jvm() -> None:
    gateway = SparkContext._gateway
    assert gateway is not None  # only called after a session
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def main() -> int:
    try:
        archive = class_archive(use_java(os.environ), os.environ)
        if not archive.is_file():
            print("preparing Spark for fast starts ...", flush=True)
            make_class_archive(archive, ensure_jars(["base", "jdbc"]))
    except LakewardenError as error:
        print(f"{error}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
