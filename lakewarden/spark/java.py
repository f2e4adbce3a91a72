"""Find the Java that Spark can run on.

Spark 4.1 runs on Java 17 and 21, and does not start without the module `jdk.incubator.vector`. The first `java`
on PATH is often another version, so candidates are checked in the order that a user expects: JAVA_HOME, then
PATH, then the folders where systems install Java.

`python -m lakewarden.spark.java` prints the home that was found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from lakewarden.errors import NotSetUp

SUPPORTED = (17, 21)
VECTOR_MODULE = "jdk.incubator.vector"
SYSTEM_FOLDERS = (Path("/usr/lib/jvm"), Path("/opt/java"), Path("/Library/Java/JavaVirtualMachines"))
HINT = "install Java 17 (on Debian: apt-get install openjdk-17-jre-headless), or point JAVA_HOME at a Java 17 or 21"


@dataclass(frozen=True)
class JavaHome:
    """One installed Java."""

    path: Path
    major: int
    has_vector: bool

    @property
    def unfit(self) -> str:
        """Why Spark cannot run on it; empty if it can."""
        if self.major not in SUPPORTED:
            return f"{self.path} is Java {self.major}"
        if not self.has_vector:
            return f"{self.path} lacks the module {VECTOR_MODULE}"
        return ""


def find_java(environ: Mapping[str, str], folders: Iterable[Path] = SYSTEM_FOLDERS) -> JavaHome:
    """The first Java that Spark can run on, or NotSetUp with the rejected ones."""
    passed_over = []
    for home in _candidates(environ, folders):
        java = inspect(home)
        if java is None:
            continue
        if not java.unfit:
            return java
        passed_over.append(java.unfit)
    raise NotSetUp(what="Java 17 or 21", reason="; ".join(passed_over) or "no Java was found", hint=HINT)


def use_java(environ: MutableMapping[str, str]) -> JavaHome:
    """Find Java and set JAVA_HOME to it, which decides the Java of the JVMs that pyspark launches."""
    java = find_java(environ)
    environ["JAVA_HOME"] = str(java.path)
    return java


def inspect(home: Path) -> JavaHome | None:
    """The Java in this folder; None if there is none."""
    if not (home / "bin" / "java").is_file():
        return None
    return _from_release_file(home) or _from_asking(home)


def _candidates(environ: Mapping[str, str], folders: Iterable[Path]) -> Iterator[Path]:
    """Every place where a Java may be, each real folder once, best first."""
    seen: set[Path] = set()
    for place in _places(environ, folders):
        home = place.resolve()
        if home not in seen:
            seen.add(home)
            yield home


def _places(environ: Mapping[str, str], folders: Iterable[Path]) -> Iterator[Path]:
    if named := environ.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path).resolve().parent.parent
    for folder in folders:
        if folder.is_dir():
            for home in sorted(folder.iterdir()):
                yield home
                yield home / "Contents" / "Home"  # macOS


def _from_release_file(home: Path) -> JavaHome | None:
    """Read the release file if possible: starting a JVM takes noticeable time."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    entries = dict(re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE))
    if "JAVA_VERSION" not in entries or "MODULES" not in entries:
        return None
    return JavaHome(home, _major(entries["JAVA_VERSION"]), VECTOR_MODULE in entries["MODULES"].split())


def _from_asking(home: Path) -> JavaHome | None:
    command = [str(home / "bin" / "java"), "--list-modules"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    base = re.search(r"^java\.base@(\S+)", answer.stdout, re.MULTILINE)
    if base is None:
        # Java 8 and older have no modules: this Java is too old to identify itself this way.
        return JavaHome(home, 8, False)
    return JavaHome(home, _major(base.group(1)), f"{VECTOR_MODULE}@" in answer.stdout)


def _major(version: str) -> int:
    """17 of "17.0.15", 8 of "1.8.0_412", 21 of "21-ea"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def main() -> int:
    try:
        print(find_java(os.environ).path)
    except NotSetUp as error:
        print(f"{error}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
