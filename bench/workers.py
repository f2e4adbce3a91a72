"""Workers as separate processes, for benchmarks that run, stop and kill them beside writers and readers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.findings import Check
from lakewarden import Lakewarden
from tests.support.ports import wait_until


@dataclass
class Worker:
    """One `lakewarden worker` process with its log and its configuration."""

    config: Path
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def jvm(self) -> psutil.Process | None:
        """The Spark JVM of the worker, if it has started one."""
        family = psutil.Process(self.pid).children(recursive=True)
        return next((each for each in family if each.name() == "java"), None)

    def live_heap(self) -> int | None:
        """Bytes of reachable objects in the worker's JVM after a garbage collection; None without a JDK or a
        JVM."""
        spark, jcmd = self.jvm(), shutil.which("jcmd")
        if spark is None or jcmd is None:
            return None
        asked = [jcmd, str(spark.pid), "GC.class_histogram"]
        told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
        return int(told[-1])  # the last line: Total, instances, bytes

    def python_rss(self) -> int:
        """Resident bytes of the worker without its JVM."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def rss(self) -> int:
        """Resident bytes of the process and its children."""
        own = psutil.Process(self.pid)
        return sum(
            each.memory_info().rss for each in (own, *own.children(recursive=True)) if each.is_running()
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 120) -> int:
        """Stop as an operator would: SIGTERM, then wait for the process to end. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def settings(values: Mapping[str, Mapping[str, Any]]) -> str:
    """The values as TOML: sections of plain values, with one level of sections below them."""
    lines: list[str] = []
    for section, body in values.items():
        plain = {key: value for key, value in body.items() if not isinstance(value, Mapping)}
        lines += [f"[{section}]", *(f'"{key}" = {json.dumps(value)}' for key, value in plain.items())]
        for name, inner in body.items():
            if isinstance(inner, Mapping):
                lines += [f"[{section}.{name}]"]
                lines += [f'"{key}" = {json.dumps(value)}' for key, value in inner.items()]
    return "\n".join(lines) + "\n"


def start(config: Path, name: str, nice: int = 0) -> Worker:
    log = config.with_name(f"{name}.log")
    command = [sys.executable, "-m", "lakewarden.cli", "--config", str(config), "worker"]
    with log.open("ab") as out:
        started = subprocess.Popen(
            ["nice", "-n", str(nice), *command], stdout=out, stderr=out, env={**os.environ}, cwd=config.parent
        )
    return Worker(config, log, started)


@contextmanager
def leading(config: Path, name: str = "worker", nice: int = 0) -> Iterator[Worker]:
    """A worker that leads; stopped as an operator would stop it."""
    worker = start(config, name, nice)
    try:
        with Lakewarden.open(config) as warden:
            wait_until(lambda: leads(warden, worker.pid), f"{name} leads", 120)
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.stop()


def leads(warden: Lakewarden, pid: int) -> bool:
    found = warden.schedule.leader()
    return found is not None and found.live and found.pid == pid


def tell(found: Sequence[Check], out: Path | None, more: Mapping[str, Any] | None = None) -> None:
    """Print the results and, if a file is given, write them as JSON."""
    for each in found:
        goal = "" if each.least is None and each.most is None else "   met" if each.met else "   NOT MET"
        print(f"{each.name:<55} {each.found:10.2f}{each.unit}{goal}")
    if out is not None:
        told = {"checks": [{**asdict(each), "met": each.met} for each in found], **(more or {})}
        out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


@contextmanager
def lake_folder(named: Path | None) -> Iterator[Path]:
    """The given folder, which is kept; otherwise a new one that is deleted at the end."""
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="lw-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)
