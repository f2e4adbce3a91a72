"""The driver's JVM: compiles the Java helpers there, and describes Java exceptions. Also timeouts for
catalogs: some catalog clients have none and wait as long as the connection is open.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from lakewarden.redact import redact_text

_COMPILED = "lakewarden.bridges"
_SHIPPED = "lakewarden.shipped"


def bridge(spark: Any, source: Path, class_name: str, beside: Any = None) -> Any:
    """An instance of the Java class in `source`, compiled once per JVM by Janino.

    `beside` is an instance of another such class that the source uses.
    """
    jvm = spark._jvm
    # Kept as long as the JVM lives, which is longer than a session: py4j caches methods by class name, and would call
    # methods of the first compiled class on an instance of the second.
    known: dict[str, Any] = spark.sparkContext._gateway.__dict__.setdefault(_COMPILED, {})
    if class_name not in known:
        compiler = _compile(jvm, source, beside)
        known[class_name] = compiler.getClassLoader().loadClass(class_name).newInstance()
    return known[class_name]


def _compile(jvm: Any, source: Path, beside: Any = None) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    # Jars added to a running session live in the thread's context loader, not in Spark's own.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setParentClassLoader(loader if beside is None else beside.getClass().getClassLoader())
    compiler.setTargetVersion(8)
    compiler.setSourceVersion(8)
    compiler.cook(source.name, source.read_text("utf-8"))
    return compiler


def shipped(spark: Any, source: Path, class_name: str, cache: Path) -> Any:
    """Like `bridge`, and tasks can load the class too: its bytes go to every executor in a jar, once per Spark context.

    The jar stays in the cache, named by its content: executors that start later fetch it again.
    """
    instance, context = bridge(spark, source, class_name), spark.sparkContext
    known: set[str] = context.__dict__.setdefault(_SHIPPED, set())
    if class_name not in known:
        jar = _jar(dict(_compile(spark._jvm, source).getBytecodes()), source.stem, cache)
        context._jsc.sc().addJar(str(jar))
        known.add(class_name)
    return instance


def _jar(classes: dict[str, bytes], name: str, cache: Path) -> Path:
    digest = hashlib.sha256(b"".join(classes[each] for each in sorted(classes))).hexdigest()[:12]
    jar = cache / f"{name}-{digest}.jar"
    if not jar.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkstemp(dir=cache, suffix=".part")[1])
        with ZipFile(part, "w") as bundle:
            for each, content in classes.items():
                bundle.writestr(each.replace(".", "/") + ".class", bytes(content))
        part.replace(jar)
    return jar


def file_columns(spark: Any) -> Any:
    """The Java class with which each format's bridge writes its data files."""
    return bridge(spark, Path(__file__).parent / "FileColumns.java", "lakewarden.FileColumns")


def java_causes(error: BaseException) -> Iterator[tuple[str, str]]:
    """Class name and message of a Java exception and of each of its causes, outermost first."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    while cause is not None:
        yield cause.getClass().getName(), str(cause.getMessage() or "")
        cause = cause.getCause()


def is_java(error: BaseException, *class_names: str) -> bool:
    """Whether the exception or one of its causes is of one of these Java classes (simple or full names)."""
    return any(
        name == class_name or name.endswith(("." + class_name, "$" + class_name))
        for name, _ in java_causes(error)
        for class_name in class_names
    )


def java_reason(error: BaseException) -> str:
    """The most useful line of a Java exception: the first line of its root cause, with the class name if that helps."""
    causes = list(java_causes(error))
    if not causes:
        return redact_text(str(error).splitlines()[0]) if str(error) else type(error).__name__
    name, message = causes[-1]
    first = message.splitlines()[0] if message else ""
    short = name.rsplit(".", 1)[-1]
    return redact_text(f"{first} ({short})" if first else short)


# The last part of the name: pyspark replaces some Java classes by its own, e.g. IllegalArgumentException.
JavaError = (Py4JJavaError, Py4JError, CapturedException)


CONNECT_SECONDS = 10
ANSWER_SECONDS = 120

_MILLIS = 1000
# Units per second of each JDBC driver's timeout property.
_JDBC = {"jdbc:postgresql:": 1, "jdbc:mysql:": _MILLIS, "jdbc:mariadb:": _MILLIS}
# The Hive metastore client waits ten minutes by default, for each answer and again after a new connection.
_HIVE = "hive.metastore.client.socket.timeout"


def with_timeouts(properties: Mapping[str, str]) -> dict[str, str]:
    """The catalog's properties, with a timeout added if its client has none. Values that are already set stay."""
    return {**_limits(properties), **properties}


def _limits(properties: Mapping[str, str]) -> dict[str, str]:
    kind, made_by = properties.get("type", "").lower(), properties.get("catalog-impl", "")
    if kind == "rest" or made_by.endswith(".RESTCatalog"):
        return {
            "rest.client.connection-timeout-ms": str(CONNECT_SECONDS * _MILLIS),
            "rest.client.socket-timeout-ms": str(ANSWER_SECONDS * _MILLIS),
        }
    address = properties.get("uri", "")
    if properties.get("metastore", "").lower() == "hive":  # Paimon's property
        return {_HIVE: f"{ANSWER_SECONDS}s"}
    if kind == "hive" or made_by.endswith(".HiveCatalog") or address.startswith("thrift:"):
        return {
            f"hadoop.{_HIVE}": f"{ANSWER_SECONDS}s"
        }  # Iceberg passes properties with this prefix to the client
    unit = next((unit for driver, unit in _JDBC.items() if address.startswith(driver)), None)
    if unit is None:
        return {}
    limits = {"connectTimeout": CONNECT_SECONDS * unit, "socketTimeout": ANSWER_SECONDS * unit}
    # Not added if the URL has one already: which of the two counts depends on the driver.
    return {f"jdbc.{name}": str(value) for name, value in limits.items() if f"{name}=" not in address}
