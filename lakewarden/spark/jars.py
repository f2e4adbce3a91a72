"""The jars that Spark needs: pinned, downloaded once into a cache folder, then used offline.

They are downloaded by Ivy, which ships inside pyspark, so neither Maven nor an address is needed here: Ivy asks
the local Maven and Ivy folders first, then the default central repository. To use another repository, set
LAKEWARDEN_IVY_SETTINGS to an Ivy settings file.

`python -m lakewarden.spark.jars [group ...]` downloads the jars and prints their paths.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lakewarden.errors import LakewardenError, NotSetUp
from lakewarden.spark.java import use_java

Group = Literal["base", "jdbc", "s3", "paimon", "paimon-s3", "rest-server"]
GROUPS: tuple[Group, ...] = get_args(Group)
IVY_SETTINGS = "LAKEWARDEN_IVY_SETTINGS"


@dataclass(frozen=True)
class Jar:
    """One pinned jar: its coordinates and its purpose."""

    group: Group
    organisation: str
    name: str
    version: str
    purpose: str

    @property
    def coordinate(self) -> str:
        return f"{self.organisation}:{self.name}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


ICEBERG = "org.apache.iceberg"
PAIMON = "org.apache.paimon"

PINNED = (
    Jar("base", ICEBERG, "iceberg-spark-runtime-4.1_2.13", "1.12.0", "Iceberg itself, for Spark 4.1"),
    Jar("jdbc", "org.xerial", "sqlite-jdbc", "3.53.4.0", "Iceberg catalogs in a SQLite file"),
    Jar("jdbc", "org.postgresql", "postgresql", "42.7.14", "Iceberg catalogs in PostgreSQL"),
    Jar("s3", ICEBERG, "iceberg-aws-bundle", "1.12.0", "tables on S3"),
    Jar("paimon", PAIMON, "paimon-bundle", "1.4.2", "Paimon itself"),
    Jar("paimon-s3", PAIMON, "paimon-s3", "1.4.2", "Paimon tables on S3"),
    Jar("rest-server", ICEBERG, "iceberg-open-api", "1.10.1", "tests only: a real REST catalog"),
)


def pinned(groups: Iterable[Group]) -> tuple[Jar, ...]:
    """The jars of these groups, in the table's order."""
    names = set(groups)
    return tuple(jar for jar in PINNED if jar.group in names)


def default_cache(environ: Mapping[str, str]) -> Path:
    """$LAKEWARDEN_CACHE/jars, else ~/.cache/lakewarden/jars."""
    if named := environ.get("LAKEWARDEN_CACHE"):
        return Path(named) / "jars"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakewarden" / "jars"


def ensure_jars(groups: Iterable[Group], cache_dir: Path | None = None) -> list[Path]:
    """The jars of these groups as files in the cache. Downloads missing ones. Complete, or raises NotSetUp."""
    cache = cache_dir or default_cache(os.environ)
    jars = pinned(groups)
    if missing_from(jars, cache):
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / ".lock"):
            # Another process may have downloaded them while this one waited for the lock.
            _fetch(missing_from(jars, cache), cache)
    return [cache / jar.file_name for jar in jars]


def missing_from(jars: Iterable[Jar], cache: Path) -> list[Jar]:
    """The jars whose file is missing or incomplete."""
    return [jar for jar in jars if not is_complete(cache / jar.file_name)]


def is_complete(path: Path) -> bool:
    """A zip's directory is at its end, so a truncated file has none."""
    return path.is_file() and zipfile.is_zipfile(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time. The lock ends with the process, so a killed process leaves none behind."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(jars: Sequence[Jar], cache: Path) -> None:
    if not jars:
        return
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch, _ivy(Path(scratch)) as ivy:
        for jar in jars:
            _install(ivy.resolve(jar), jar, cache)


def _install(fetched: Path, jar: Jar, cache: Path) -> None:
    """Put the jar in place with one rename: a reader sees the whole jar or none."""
    if not is_complete(fetched):
        raise _unavailable(jar, cache, f"{fetched} is not a complete jar")
    partial = cache / f".{jar.file_name}.partial"
    # Copied, not moved: Ivy may return a file of the user's own Maven folder.
    shutil.copyfile(fetched, partial)
    partial.replace(cache / jar.file_name)


def _unavailable(jar: Jar, cache: Path, reason: str) -> NotSetUp:
    return NotSetUp(
        what=f"jar {jar.coordinate} ({jar.purpose})",
        reason=reason,
        hint=f"connect once, or put {jar.file_name} into {cache}, or name your own jars as `jars` under [spark]",
    )


@dataclass(frozen=True)
class _Ivy:
    """The resolver inside pyspark's JVM."""

    jvm: Any
    scratch: Path
    log: Path

    def resolve(self, jar: Jar) -> Path:
        """The file that Ivy found or downloaded, in the scratch folder or the user's own caches."""
        from py4j.protocol import Py4JJavaError

        maven = self.jvm.org.apache.spark.util.MavenUtils
        quiet = self.jvm.java.io.PrintStream(str(self.log))
        try:
            report = maven.resolveMavenCoordinates(
                jar.coordinate,
                self._settings(quiet),
                self.jvm.scala.Option.empty(),
                False,  # not transitive: each pinned jar is complete by itself
                getattr(self.jvm.scala.collection.immutable, "Nil$").__getattr__("MODULE$"),
                False,
                quiet,
            )
        except Py4JJavaError as error:
            raise _unavailable(jar, self.scratch.parent, self._reason(error)) from None
        return Path(report.head())

    def _settings(self, quiet: Any) -> Any:
        maven, option = self.jvm.org.apache.spark.util.MavenUtils, self.jvm.scala.Option
        folder = option.apply(str(self.scratch / "ivy"))
        if named := os.environ.get(IVY_SETTINGS):
            return maven.loadIvySettings(named, option.empty(), folder, quiet)
        settings = maven.buildIvySettings(option.empty(), folder, False, quiet)
        _only_central(settings.getDefaultResolver())
        return settings

    def _reason(self, error: Any) -> str:
        """The first sentence of Ivy's own message: the exception only says that something is unresolved."""
        output = self.log.read_text(errors="replace") if self.log.is_file() else ""
        for line in output.splitlines():
            if "SERVER ERROR" in line or "Exception" in line:
                return line.strip()
        return str(error.java_exception.getMessage())


def _only_central(chain: Any) -> None:
    """Remove the second public repository that Spark adds: it has none of these jars and answers slowly."""
    for resolver in list(chain.getResolvers()):
        if resolver.getName() == "spark-packages":
            chain.getResolvers().remove(resolver)


@contextmanager
def _ivy(scratch: Path) -> Iterator[_Ivy]:
    """A JVM that runs during the download, separate from any session of this process."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    use_java(os.environ)
    log = scratch / "jvm.log"
    with log.open("w") as output:
        gateway = launch_gateway(SparkConf(loadDefaults=False), {"stdout": output, "stderr": output})
    try:
        yield _Ivy(gateway.jvm, scratch, scratch / "ivy.log")
    finally:
        gateway.shutdown()
        # The gateway's JVM ends when its standard input is closed.
        gateway.proc.stdin.close()
        gateway.proc.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lakewarden.spark.jars", description="Fetch the pinned jars once.")
    parser.add_argument(
        "groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}; default: base jdbc"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the downloads")
    options = parser.parse_args(arguments)
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    groups: list[Group] = options.groups or ["base", "jdbc"]
    cache = default_cache(os.environ)
    for jar in missing_from(pinned(groups), cache):
        print(f"fetching {jar.coordinate} ({jar.purpose}) ...", flush=True)
    try:
        jars = ensure_jars(groups, cache)
    except LakewardenError as error:
        print(f"{error}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    if not options.quiet:
        print("\n".join(map(str, jars)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
