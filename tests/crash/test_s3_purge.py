"""kill -9 in the middle of a batch of deletions on S3; the next run finishes, and the books are right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.purge_s3 import AT_ONCE, CATALOG, site, trashed_table
from lakewarden.model.run import RunState
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import FileState
from tests.support.s3 import Bucket

pytestmark = [pytest.mark.crash, pytest.mark.services]

CHILD = Path(__file__).with_name("s3_child.py")
OBJECTS, BATCH = 1500, 400


def test_every_object_has_one_receipt(spark: SparkSession, s3_bucket: Bucket) -> None:
    with site(spark, s3_bucket) as where:
        table = trashed_table(where, OBJECTS)
        config = {
            **where.config(deletes_per_s=BATCH),
            "catalogs": {CATALOG: where.properties},
            "spark": {"master": "local[2]"},
        }
        died = subprocess.run(
            [sys.executable, str(CHILD)],
            input=json.dumps({"config": config, "table": table.name, "batch": 2}),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL, f"{died.stdout}{died.stderr}"
        assert len(table.trashed & where.objects()) == len(table.trashed) - BATCH - BATCH // 2

        with where.warden() as lw:
            files = TrashedFiles(lw.state)
            assert len(lw.receipts(table.name, 10_000)) == BATCH, "the second batch was never told"
            run = lw.run("purge", table.name, AT_ONCE)
            assert run.state is RunState.DONE, run.reason
            table.check(lw)
            states = Counter(each.state for each in files.list(table.name, tuple(FileState), 10_000))
            assert states == {
                FileState.ERASED: len(table.trashed) - BATCH // 2,
                FileState.MISSING: BATCH // 2,
            }
            dead = lw.runs(table.name)[1]
            assert dead.ended_at is not None and "stopped before the run was over" in dead.reason
            assert lw.fsck(table.name).healthy
            assert lw.run("purge", table.name, AT_ONCE).state is RunState.NOTHING_TO_DO
            assert len(lw.receipts(table.name, 10_000)) == len(table.trashed)
