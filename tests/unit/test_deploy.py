"""What `deploy/` says has to fit the program: its settings are read, and nobody is killed while it lets go."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from lakewarden.config import Config
from lakewarden.engine.jars import GROUPS
from lakewarden.serving import WorkerConfig
from lakewarden.worker.daemon import ABORT_SECONDS, CHORE_SECONDS

DEPLOY = Path(__file__).parents[2] / "deploy"
# The console's last answers and the lease's threads: what follows when runs and chores have ended.
REST = 40


def number(name: str, pattern: str) -> int:
    found = re.search(pattern, (DEPLOY / name).read_text("utf-8"))
    assert found is not None, f"{name} says nothing about {pattern}"
    return int(found[1])


def kubernetes() -> Config:
    text = (DEPLOY / "kubernetes/worker.yaml").read_text("utf-8")
    found = re.search(r"lakewarden\.toml: \|\n((?:    .*\n|\n)+)", text)
    assert found is not None
    return Config.from_dict(tomllib.loads(found[1].replace("\n    ", "\n").removeprefix("    ")), {})


def test_nobody_is_killed_before_it_could_have_left() -> None:
    leaving = ABORT_SECONDS + CHORE_SECONDS + REST
    whole = WorkerConfig().drain_seconds + leaving
    assert number("lakewarden-worker.service", r"TimeoutStopSec=(\d+)") >= whole
    assert number("compose.yaml", r"stop_grace_period: (\d+)m") * 60 >= whole
    given = number("kubernetes/worker.yaml", r"terminationGracePeriodSeconds: (\d+)")
    assert given >= kubernetes().worker.drain_seconds + leaving


def test_nothing_listens_beyond_the_loopback_and_the_probe_asks_where_it_does() -> None:
    console = kubernetes().console
    assert console.loopback and not console.tokens
    probe = (DEPLOY / "kubernetes/worker.yaml").read_text("utf-8")
    assert f"http://{console.host}:{console.port}/health" in probe
    assert f"EXPOSE {console.port}" in (DEPLOY / "Dockerfile").read_text("utf-8")


def test_the_image_has_all_jars() -> None:
    said = re.search(r'python -c "(.*)"', (DEPLOY / "Dockerfile").read_text("utf-8"))
    assert said is not None and "ensure_jars(GROUPS)" in said[1]
    names: dict[str, object] = {}
    exec(said[1].partition(";")[0], names)  # the import: those names are there
    assert names["GROUPS"] == GROUPS
