"""A Spark standalone cluster on the loopback: a master and workers, each a process of its own, from pyspark's own package."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

import pyspark

from lakewarden.spark.java import find_java
from tests.support.ports import answers, free_port, wait_until


@contextmanager
def standalone(folder: Path, python: Path, workers: int = 2, memory: str = "1g") -> Iterator[str]:
    """The master's address. `python` is what executors run kernels with."""
    port = free_port()
    with ExitStack() as ending:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        ending.enter_context(_process(folder, "master", python, [*master, "--webui-port", "0"]))
        wait_until(lambda: answers(port), "the master listens", 60)
        for number in range(workers):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            worker += ["--cores", "1", "--memory", memory, "--work-dir", str(folder / f"work-{number}")]
            name = f"worker-{number}"
            ending.enter_context(_process(folder, name, python, [*worker, f"spark://127.0.0.1:{port}"]))
            wait_until(lambda name=name: _registered(folder / f"{name}.log"), f"{name} is registered", 60)
        yield f"spark://127.0.0.1:{port}"


def python_without_us(folder: Path) -> Path:
    """A Python that has every package we need and not ours: what an executor on another machine has.

    Names that a `.pth` file adds are not searched for further `.pth` files, so the installation of this project is not found.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    found = next((folder / "lib").glob("python*/site-packages"))
    packages = Path(pyspark.__file__).parents[1]
    (found / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    python = folder / "bin" / "python"
    checked = subprocess.run(
        [str(python), "-c", "import pyarrow\nimport lakewarden"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        check=False,
    )
    assert "No module named 'lakewarden'" in checked.stderr, checked.stderr or "it has Lakewarden"
    return python


def _registered(log: Path) -> bool:
    return "Successfully registered with master" in log.read_text("utf-8", errors="replace")


@contextmanager
def _process(folder: Path, name: str, python: Path, words: list[str]) -> Iterator[Popen[bytes]]:
    home = Path(pyspark.__file__).parent
    environ = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java(os.environ).path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": "",
    }
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        started = Popen(
            [str(home / "bin" / "spark-class"), *words], stdout=out, stderr=out, env=environ, cwd=folder
        )
    try:
        yield started
    finally:
        # spark-class becomes the JVM (exec), so this is the daemon itself; it ends its executors.
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
