"""A real Flink on the loopback: JobManager, TaskManager and SQL gateway, each a process that can be killed.

The distribution comes without its start scripts, so the classes are started by hand, with the memory settings
that the scripts would compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyspark

from tests.interop import parts
from tests.interop.process import QUICK_JAVA, Server
from tests.support.ports import answers, free_port, wait_until

# What Flink's own scripts open to its serialisers.
OPENED = ("lang", "net", "io", "nio", "text", "time", "util", "util.concurrent", "util.concurrent.atomic")
RUNTIME = "org.apache.flink.runtime"
CHECKPOINT_EVERY = "1s"


@dataclass
class Flink:
    """The three processes. JobManager and TaskManager may die and come back; checkpoints are kept on the disk."""

    folder: Path
    manager: Server
    worker: Server
    gateway: Server
    web: int
    sql_port: int = 0
    _http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60))

    # ------------------------------------------------------------ processes

    def start(self) -> None:
        self.start_cluster()
        # Chosen last: ports that the cluster took by itself are then known to the system.
        self.sql_port = free_port()
        port = "-Dsql-gateway.endpoint.rest"
        self.gateway.command = [
            *self.gateway.command,
            f"{port}.port={self.sql_port}",
            f"{port}.bind-port={self.sql_port}",
        ]
        self.gateway.start(lambda: answers(self.sql_port))

    def start_cluster(self) -> None:
        self.manager.start(lambda: answers(self.web))
        self.start_worker()

    def start_worker(self) -> None:
        self.worker.start(lambda: self._ask("overview").get("slots-total", 0) > 0)

    def kill_cluster(self) -> None:
        self.worker.kill()
        self.manager.kill()

    def stop(self) -> None:
        for each in (self.gateway, self.worker, self.manager):
            each.kill()
        self._http.close()

    # ------------------------------------------------------------ SQL

    def session(self, settings: Mapping[str, str] | None = None) -> Session:
        answer = self._http.post(f"{self._sql}/sessions", json={"properties": dict(settings or {})})
        return Session(
            self._http, f"{self._sql}/sessions/{answer.raise_for_status().json()['sessionHandle']}"
        )

    @property
    def _sql(self) -> str:
        return f"http://127.0.0.1:{self.sql_port}/v1"

    # ------------------------------------------------------------ jobs

    def state(self, job: str) -> str:
        return str(self._ask(f"jobs/{job}").get("state", "GONE"))

    def wait_for(self, job: str, state: str, seconds: float = 180) -> None:
        def there() -> bool:
            found = self.state(job)
            if found == "FAILED" and state != "FAILED":
                raise RuntimeError(f"Flink's job failed: {self.failure(job)}")
            return found == state

        wait_until(there, f"Flink's job is {state}", seconds)

    def failure(self, job: str) -> str:
        """The deepest cause that Flink names."""
        history = self._ask(f"jobs/{job}/exceptions").get("exceptionHistory", {})
        said = "\n".join(str(each.get("stacktrace", "")) for each in history.get("entries", ())[:1])
        return _cause([said])

    def checkpoints(self, job: str) -> int:
        """How many completed since the job or the cluster was started."""
        counts: Mapping[str, int] = self._ask(f"jobs/{job}/checkpoints").get("counts", {})
        return counts.get("completed", 0)

    def wait_for_checkpoints(self, job: str, more: int, seconds: float = 120) -> None:
        wanted = self.checkpoints(job) + more

        def there() -> bool:
            if self.state(job) == "FAILED":
                raise RuntimeError(f"Flink's job failed: {self.failure(job)}")
            return self.checkpoints(job) >= wanted

        wait_until(there, f"{more} checkpoints of Flink complete", seconds)

    def newest_checkpoint(self, job: str) -> str:
        """Of a job whose cluster may be dead: what is complete on the disk."""
        complete = (self.folder / "checkpoints" / job).glob("chk-*/_metadata")
        newest = max(complete, key=lambda path: int(path.parent.name.removeprefix("chk-")))
        return f"file://{newest.parent}"

    def _ask(self, path: str) -> dict[str, Any]:
        try:
            answer = self._http.get(f"http://127.0.0.1:{self.web}/{path}")
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = answer.json() if answer.is_success else {}
        return found


@dataclass(frozen=True)
class Session:
    """One session of the SQL gateway."""

    http: httpx.Client
    url: str

    def run(self, statement: str, seconds: float = 120) -> list[list[Any]]:
        """Every row of the answer, after the statement ended. Streaming inserts end when they are submitted."""
        asked = self.http.post(f"{self.url}/statements", json={"statement": statement})
        operation = f"{self.url}/operations/{asked.raise_for_status().json()['operationHandle']}"

        def ended() -> bool:
            return self.http.get(f"{operation}/status").json()["status"] not in ("PENDING", "RUNNING")

        wait_until(ended, f"Flink ends {statement[:60]!r}", seconds)
        return list(self._rows(f"{operation}/result/0"))

    def submit(self, statement: str) -> str:
        """Of an insert: the id of its job."""
        ((job,),) = self.run(statement)
        return str(job)

    def _rows(self, page: str) -> Iterator[list[Any]]:
        base = self.url.split("/v1/")[0]
        while True:
            answer = self.http.get(page)
            if answer.is_error:
                raise RuntimeError(_cause(answer.json().get("errors", [])))
            found = answer.json()
            yield from (row["fields"] for row in found.get("results", {}).get("data", ()))
            if found.get("resultType") == "EOS" or not found.get("nextResultUri"):
                return
            page = f"{base}{found['nextResultUri']}"


def _cause(errors: list[str]) -> str:
    lines = [line for error in errors for line in error.splitlines()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1:] or lines[:1] or ["Flink gave no reason"])[0]


@contextmanager
def flink(folder: Path) -> Iterator[Flink]:
    """Started on entering (about 20 s), killed on leaving."""
    connectors = parts.artifacts(parts.FLINK)
    package = parts.python_folder(parts.FLINK_PACKAGE) / "pyflink"
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    jars = [*sorted((package / "lib").glob("*.jar")), *connectors, *hadoop]
    running = _cluster(folder, ":".join(map(str, jars)))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def _cluster(folder: Path, class_path: str) -> Flink:
    folder.mkdir(parents=True)
    web = free_port()
    settings = _settings(folder, web)
    (folder / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    (folder / "log4j2.properties").write_text(_LOGGING)

    def server(name: str, main: str, memory: str, *arguments: str) -> Server:
        opened = [f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in OPENED]
        logging = f"-Dlog4j.configurationFile={folder / 'log4j2.properties'}"
        java = [str(parts.java_17() / "bin" / "java"), f"-Xmx{memory}", *QUICK_JAVA, logging, *opened]
        environment = {"FLINK_CONF_DIR": str(folder), "AWS_REGION": "us-east-1"}
        return Server(name, [*java, "-cp", class_path, main, *arguments], folder, environment)

    where = ("--configDir", str(folder))
    return Flink(
        folder,
        server("job-manager", f"{RUNTIME}.entrypoint.StandaloneSessionClusterEntrypoint", "768m", *where),
        server("task-manager", f"{RUNTIME}.taskexecutor.TaskManagerRunner", "1g", *where),
        server("sql-gateway", "org.apache.flink.table.gateway.SqlGateway", "512m"),
        web,
    )


def _settings(folder: Path, web: int) -> dict[str, object]:
    return {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.rpc.port": free_port(),
        "blob.server.port": free_port(),
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": web,
        "sql-gateway.endpoint.rest.address": "127.0.0.1",
        "sql-gateway.endpoint.rest.bind-address": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": 8,
        "taskmanager.cpu.cores": 2,
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "192m",
        "taskmanager.memory.jvm-overhead.max": "192m",
        "taskmanager.memory.task.heap.size": "512m",
        "taskmanager.memory.task.off-heap.size": "64m",
        "taskmanager.memory.network.min": "64m",
        "taskmanager.memory.network.max": "64m",
        "taskmanager.memory.managed.size": "128m",
        "parallelism.default": 1,
        # A dead TaskManager is noticed soon, and a job tries again until there is another one.
        "heartbeat.interval": 1000,
        "heartbeat.timeout": 8000,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 8,
        "restart-strategy.fixed-delay.delay": "1s",
        "execution.checkpointing.interval": CHECKPOINT_EVERY,
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": 3,
        "io.tmp.dirs": str(folder),
    }


_LOGGING = """rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""
