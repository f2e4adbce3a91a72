"""A whole run in a process of its own, on a Spark master of its own: what `tests/clusters/one_run.py` prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).parents[1] / "clusters" / "one_run.py"


def one_run(
    master: str, folder: Path, conf: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), master, str(folder), json.dumps(conf or {})],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **(environ or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def expected_of(master: str, where: str) -> dict[str, Any]:
    """Eight files on each of two days became one each, and no row changed."""
    return {
        "master": master,
        "state": "done",
        "rows": 8000,
        "equal": True,
        "files_compacted": 16,
        "files_added": 2,
        "where": where,
    }
