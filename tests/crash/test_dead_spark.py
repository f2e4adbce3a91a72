"""A process whose JVM is killed under it leaves as one that did its work, and nothing of py4j's is on its screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

CHILD = """
import psutil, sys
from lakewarden import Lakewarden
from lakewarden.errors import LakewardenError
from tests.support.ports import wait_until

with Lakewarden({"spark": {"master": "local[1]"}, "state": {"url": "sqlite:///" + sys.argv[1] + "/state.db"}}) as lw:
    spark = lw.lake.spark
    (jvm,) = [each for each in psutil.Process().children(recursive=True) if each.name() == "java"]
    jvm.kill()
    wait_until(lambda: not lw.connections.lake_lives, "it is dead", 30)
    try:
        spark.range(1).count()
    except Exception as error:
        print("told:", type(error).__name__)
print("left")
"""


def test_a_process_leaves_in_order_when_its_spark_was_killed(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert child.returncode == 0, child.stderr
    told, left = child.stdout.splitlines()
    assert told.startswith("told: ") and left == "left"
    assert "Traceback" not in child.stderr
