"""Starting Spark, with a `spark-submit` that fails as a real one does: it says why, and is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAILING_STARTS = """
from lakewarden.spark.session import _launch_jvm
from lakewarden.errors import NotSetUp

for _ in range(3):
    try:
        _launch_jvm({})
    except NotSetUp as error:
        print(error.message, error.hint, sep="|")
"""


def test_starts_that_fail_leave_one_log_the_newest(tmp_path: Path) -> None:
    """A worker tries every five seconds: with a log each, a day of that was ten thousand files."""
    submit, temporary = tmp_path / "bin" / "spark-submit", tmp_path / "tmp"
    submit.parent.mkdir()
    temporary.mkdir()
    submit.write_text('#!/bin/sh\necho "Error: no memory for try"\necho "$$"\nexit 1\n')
    submit.chmod(0o755)
    environ = {**os.environ, "SPARK_HOME": str(tmp_path), "TMPDIR": str(temporary)}
    child = subprocess.run(
        [sys.executable, "-c", FAILING_STARTS], env=environ, capture_output=True, text=True, check=True
    )
    told = child.stdout.splitlines()
    assert len(set(told)) == 3, "each told its own reason"
    (log,) = temporary.glob("lakewarden-spark-*")
    reason, hint = told[-1].split("|")
    assert hint == f"see {log}" and reason.endswith(log.read_text().split()[-1])
