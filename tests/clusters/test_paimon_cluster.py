"""Merging buckets on executors that are processes of their own: our class reaches them, and Paimon's library is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.services


@pytest.mark.nightly  # test_standalone.py runs every time
def test_executors_of_their_own_merge_the_buckets(tmp_path: Path) -> None:
    master = "local-cluster[2,1,1024]"
    script = Path(__file__).with_name("one_merge.py")
    done = subprocess.run(
        [sys.executable, str(script), master, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "master": master,
        "state": "done",
        "reason": "",
        "rows": 150,
        "equal": True,
        "buckets": 6,
        "where": "executors",
    }
