"""Purges a table on S3 and kills itself, hard, in the middle of deleting a batch: told through a pipe, for it holds credentials."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from lakewarden import Lakewarden
from lakewarden.storage.s3 import S3Files


def die_in_the_middle_of(batch: int) -> None:
    """Half of the batch is gone from the store, and nothing about it is written down."""
    real, calls = S3Files.delete, []

    def delete(self: S3Files, paths: Sequence[str]) -> dict[str, str]:
        calls.append(paths)
        if len(calls) < batch:
            return real(self, paths)
        real(self, paths[: len(paths) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives that")

    S3Files.delete = delete  # type: ignore[method-assign]


def main() -> None:
    told = json.load(sys.stdin)
    with Lakewarden(told["config"], environ={}) as lw:
        _ = lw.lake
        die_in_the_middle_of(told["batch"])
        run = lw.run("purge", told["table"], {"delete_grace_hours": 0})
    print(f"survived: {run.state} {run.reason}")


if __name__ == "__main__":
    main()
