"""What `deploy/` says has to fit the program: its settings are read, and nobody is killed while it lets go."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakewarden import Lakewarden
from lakewarden.cli import main
from lakewarden.config.schema import SETTINGS, Config, ConsoleConfig, WorkerConfig
from lakewarden.console.server import ConsoleServer
from lakewarden.spark.jars import GROUPS
from lakewarden.worker.daemon import ABORT_SECONDS, CHORE_SECONDS
from tests.support.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
# The console's last answers and the lease's threads: what follows when runs and chores have ended.
REST = 40
SECRET = "0123456789abcdef"


@pytest.fixture
def unused_port() -> int:
    return free_port()


def number(name: str, pattern: str) -> int:
    found = re.search(pattern, (DEPLOY / name).read_text("utf-8"))
    assert found is not None, f"{name} says nothing about {pattern}"
    return int(found[1])


def manifests(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text("utf-8")))


def deployment(name: str) -> Any:
    [found] = [each for each in manifests(name) if each["kind"] == "Deployment"]
    [container] = found["spec"]["template"]["spec"]["containers"]
    return container


def environ(container: Any) -> dict[str, str]:
    """As the container has it, with a made-up secret for each that comes from one."""
    made = {"LAKEWARDEN_STATE__URL": f"postgresql://somebody:{SECRET}@somewhere/lakewarden"}
    named = {each["name"]: each.get("value") for each in container["env"]}
    return {name: value or made.get(name, f"{name}-{SECRET}") for name, value in named.items()}


def kubernetes(name: str = "worker.yaml") -> Config:
    """The settings of what runs in that file."""
    [config] = [each for each in manifests("worker.yaml") if each["kind"] == "ConfigMap"]
    return Config.from_dict(tomllib.loads(config["data"]["lakewarden.toml"]), environ(deployment(name)))


def composed() -> dict[str, Any]:
    """The services, with what compose itself fills in."""
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    filled = re.sub(r"\$\{(\w+)(?::[?-][^}]*)?\}", lambda found: f"{found[1].lower()}-{SECRET}", text)
    services: dict[str, Any] = yaml.safe_load(filled)["services"]
    return services


def test_nobody_is_killed_before_it_could_have_left() -> None:
    leaving = ABORT_SECONDS + CHORE_SECONDS + REST
    whole = WorkerConfig().drain_seconds + leaving
    assert number("lakewarden-worker.service", r"TimeoutStopSec=(\d+)") >= whole
    assert number("compose.yaml", r"stop_grace_period: (\d+)m") * 60 >= whole
    given = number("kubernetes/worker.yaml", r"terminationGracePeriodSeconds: (\d+)")
    assert given >= kubernetes().worker.drain_seconds + leaving


def test_workers_listen_on_the_loopback_and_the_probe_asks_where_they_do() -> None:
    console = kubernetes().console
    assert console.loopback and not console.tokens
    probe = (DEPLOY / "kubernetes/worker.yaml").read_text("utf-8")
    assert f"http://{console.host}:{console.port}/health" in probe
    assert f"EXPOSE {console.port}" in (DEPLOY / "Dockerfile").read_text("utf-8")


def test_the_console_of_kubernetes_can_be_reached_and_asks_for_tokens(
    unused_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings in a real server, asked as its probe and as Prometheus do."""
    config, container = kubernetes("console.yaml"), deployment("console.yaml")
    assert not config.console.loopback
    assert [(each.name, each.role) for each in config.console.tokens] == [("reader", "read"), ("operator", "operate")]  # fmt: skip
    [service] = [each for each in manifests("console.yaml") if each["kind"] == "Service"]
    assert [each["port"] for each in service["spec"]["ports"]] == [config.console.port]
    assert [(each["name"], each["containerPort"]) for each in container["ports"]] == [("http", config.console.port)]  # fmt: skip
    assert f"lakewarden-console.NAMESPACE.svc:{config.console.port}" in (DEPLOY / "prometheus/prometheus.yml").read_text("utf-8")  # fmt: skip

    tokens = {f"{role}_tokens": [f"{each.name}={each.secret}" for each in config.console.tokens if each.role == role] for role in ("read", "operate")}  # fmt: skip
    settings = {
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "console": {"port": unused_port, **tokens},
    }
    interpreter, option, code = container["readinessProbe"]["exec"]["command"]
    assert (interpreter, option) == ("python", "-c")
    asks = code.replace(f":{config.console.port}/", f":{unused_port}/")
    assert asks != code
    with Lakewarden(settings, environ={}) as warden:
        # On the loopback, where tests listen, with the rule of every other address: no token, no answer.
        server = ConsoleServer(warden, host="127.0.0.1")
        monkeypatch.setattr(ConsoleConfig, "loopback", False)
        server.start()
        try:
            monkeypatch.setenv("READ_TOKEN", environ(container)["READ_TOKEN"])
            exec(asks, {})
            monkeypatch.setenv("READ_TOKEN", "a-token-of-somebody-else")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                exec(asks, {})
            scrape = urllib.request.Request(f"http://127.0.0.1:{unused_port}/metrics")
            scrape.add_header("Authorization", f"Bearer {environ(container)['READ_TOKEN']}")
            assert b"lakewarden_build_info" in urllib.request.urlopen(scrape, timeout=10).read()
        finally:
            server.stop()


def test_of_compose_the_console_alone_is_published_and_once() -> None:
    services = composed()
    published = {name: each["ports"] for name, each in services.items() if "ports" in each}
    port = ConsoleConfig().port
    assert published == {"console": [f"127.0.0.1:{port}:{port}"]}
    assert services["worker"]["deploy"]["replicas"] == 2 and "deploy" not in services["console"]
    worker = Config.from_dict({}, services["worker"]["environment"])
    console = Config.from_dict({}, services["console"]["environment"]).console
    assert not worker.worker.console
    assert not console.loopback and console.port == port
    assert {each.role for each in console.tokens} == {"read", "operate"}
    for each in (services["worker"], services["console"]):
        assert each["image"] == "lakewarden" and "lakewarden.toml:/etc/lakewarden/lakewarden.toml:ro" in each["volumes"][0]  # fmt: skip


def commands() -> list[list[str]]:
    """Every call of the program that `deploy/` makes or tells to make."""
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    unit = (DEPLOY / "lakewarden-worker.service").read_text("utf-8")
    [image_command] = re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)
    [unit_command] = re.findall(r"^ExecStart=\S+/lakewarden (.*)$", unit, re.MULTILINE)
    compose = (DEPLOY / "compose.yaml").read_text("utf-8")
    [told] = re.findall(r"run --rm worker (.*)$", compose, re.MULTILINE)
    return [
        json.loads(image_command),
        shlex.split(unit_command),
        shlex.split(told),
        composed()["console"]["command"],
        deployment("worker.yaml")["args"],
        deployment("console.yaml")["args"],
    ]


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_is_one_of_the_program(arguments: list[str]) -> None:
    assert main([*arguments, "--help"]) == 0
    assert (
        main([*arguments, "--no-such-option", "--help"]) != 0
    )  # what is asked for is looked at before help is given


def test_every_variable_is_a_setting_and_every_secret_is_told_how_to_make() -> None:
    settings = {f"LAKEWARDEN_{each.section}__{each.name}".upper() for each in SETTINGS}
    named = {
        variable
        for path in DEPLOY.rglob("*")
        if path.is_file()
        for variable in re.findall(r"\bLAKEWARDEN_[A-Z]+__[A-Z_]+\b", path.read_text("utf-8"))
    }
    assert named and named <= settings
    told = (DEPLOY / "kubernetes/worker.yaml").read_text("utf-8")
    for file in ("worker.yaml", "console.yaml"):
        for each in deployment(file)["env"]:
            if "valueFrom" in each:
                assert f"--from-literal={each['valueFrom']['secretKeyRef']['key']}=" in told


def test_the_image_has_all_jars() -> None:
    said = re.search(r'python -c "(.*)"', (DEPLOY / "Dockerfile").read_text("utf-8"))
    assert said is not None and "ensure_jars(GROUPS)" in said[1]
    names: dict[str, object] = {}
    exec(said[1].partition(";")[0], names)  # the import: those names are there
    assert names["GROUPS"] == GROUPS
