"""The console of a worker that stands by, whose JVM is killed: what reads a table starts another."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import psutil
import pytest

from lakewarden import Lakewarden
from lakewarden.model.run import Owner
from lakewarden.state.locks import Leases
from tests.support.ports import answers, free_port, wait_until

pytestmark = pytest.mark.crash


@pytest.mark.nightly
def test_a_standbys_console_reads_tables_again_after_its_spark_was_killed(tmp_path: Path) -> None:
    port, config = free_port(), tmp_path / "lakewarden.toml"
    (tmp_path / "warehouse").mkdir()
    config.write_text(
        f'[state]\nurl = "sqlite:///{tmp_path}/state.db"\n[console]\nport = {port}\n[spark]\nmaster = "local[1]"\n'
        f'[catalogs.lake]\ntype = "hadoop"\nwarehouse = "{tmp_path}/warehouse"\n'
    )
    command = [sys.executable, "-m", "lakewarden.cli", "--config", str(config), "worker"]
    with Lakewarden({"state": {"url": f"sqlite:///{tmp_path}/state.db"}}, environ={}) as lw:
        assert Leases(lw.state).take(Owner("elsewhere", 1, 1.0), timedelta(hours=1)) is not None
        process = subprocess.Popen(command)
        try:
            wait_until(lambda: answers(port), "its console answers", 60)

            def shown() -> tuple[int, str]:
                """Only a Spark that lives can tell that there is no such table."""
                answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/tables/lake.db.none/show", timeout=180)
                return answer.status_code, answer.json()["error"]

            assert shown() == (404, "NoSuchTable")
            started = [
                each for each in psutil.Process(process.pid).children(recursive=True) if "java" in each.name()
            ]
            for each in started:
                each.kill()
            over = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)  # who started it need not have noticed
            wait_until(
                lambda: all(not each.is_running() or each.status() in over for each in started), "it is dead"
            )
            assert started and shown() == (404, "NoSuchTable")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
