"""Storage classes of the colder tier on S3: copies age into an archive, cannot be read there, are recalled, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from lakewarden.cli import main
from lakewarden.errors import LakewardenError
from lakewarden.jobs.cold import recall as recalling
from lakewarden.model.prices import GIB, PRICES
from lakewarden.model.run import RunState
from lakewarden.storage import archive as archive_module
from lakewarden.storage import s3_copy
from lakewarden.storage.archive import ObjectArchive
from tests.cold.test_cold_retention import handed_off, later
from tests.cold.test_s3_handoff import POLICY, classes
from tests.support.lab import Lab, lakewarden
from tests.support.s3 import S3, Bucket
from tests.support.spark import add_catalog
from tests.tables.test_s3_tables import catalog_properties

pytestmark = pytest.mark.services

MONTH = {"handoff_retention_hours": "30d"}


@pytest.fixture
def lab(spark: SparkSession, exact_s3: S3, tmp_path: Path) -> Iterator[Lab]:
    catalog = add_catalog(spark, catalog_properties(exact_s3.bucket(), tmp_path))
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, tmp_path / "no-local-warehouse", lw)


@pytest.fixture
def frost(exact_s3: S3) -> Bucket:
    return exact_s3.bucket()


@pytest.fixture
def cold(lab: Lab, frost: Bucket, tmp_path: Path) -> str:
    (tmp_path / "cold").mkdir()
    return add_catalog(lab.spark, catalog_properties(frost, tmp_path / "cold"))


def data(bucket: Bucket) -> dict[str, str]:
    return {key: kind for key, kind in classes(bucket).items() if "/data/" in key}


def rows_of(lab: Lab, table: str) -> dict[int, list[Any]]:
    return {
        row.snapshot_id: lab.rows(table, f"version as of {row.snapshot_id}") for row in lab.snapshots(table)
    }


def asking(lab: Lab, tmp_path: Path, policy: dict[str, object]) -> Any:
    of_lake = {key: value for key, value in policy.items() if key != "delete_grace_hours"}
    return lakewarden(lab.spark, f"sqlite:///{tmp_path}/state.db", of_lake)


def test_from_cold_to_deep_and_back_to_be_read(lab: Lab, cold: str, frost: Bucket, tmp_path: Path) -> None:
    table = lab.messy(files=3, days=1)
    policy = {**POLICY, **MONTH, "handoff_catalog": cold}
    rows = rows_of(lab, table)
    head = lab.lw.view(table).current_snapshot_id
    old = next(each for each in rows if each != head)
    frozen = f"{cold}.db.events"
    handed_off(lab, table, policy)
    assert lab.lw.plan("handoff", table, policy).empty
    lab.rows(frozen, f"version as of {old}")
    with later(31):
        (action,) = lab.lw.plan("handoff", table, policy).to_dict()["actions"]
        count = len(data(frost))
        assert (action["action"], action["files"], action["storage_class"]) == (
            "age-files",
            count,
            "DEEP_ARCHIVE",
        )
        assert action["unread_bytes"] == action["bytes"], "nobody has read the copies since"
        run = lab.lw.run("handoff", table, policy)
        assert run.state is RunState.DONE and run.counters["files_aged"] == count, run.reason
        again = lab.lw.run("handoff", table, policy)
        assert again.state is RunState.NOTHING_TO_DO
    assert set(data(frost).values()) == {"DEEP_ARCHIVE"}
    assert {kind for key, kind in classes(frost).items() if "/metadata/" in key} == {"STANDARD"}
    lab.spark.catalog.clearCache()
    with pytest.raises(Exception, match=r"InvalidObjectState|not valid for the object's storage class"):
        lab.rows(frozen, f"version as of {old}")
    with asking(lab, tmp_path, policy) as lw:
        found = lw.tiers.where(table, snapshot_id=old)
        assert found.tier == "deep" and f"lakewarden recall {table} --snapshot {old}" in found.reason
        done = lw.tiers.recall(table, snapshot_id=old, days=3, wait=True)
        assert done.ready and done.asked == done.archived > 0 and done.until is not None
        assert done.dollars == pytest.approx(done.asked * 0.10 / 1000 + done.bytes / GIB * 0.02)
        assert done.where.tier == "recalled" and done.where.query.endswith(f"VERSION AS OF {old}")
        assert lw.tiers.recall(table, snapshot_id=old, days=3).asked == 0, "asked for once"
        assert lw.tiers.recall(table, snapshot_id=old, days=9).asked == done.asked, "for longer"
        assert lw.tiers.where(table, snapshot_id=old).tier == "recalled"
        live = lw.tiers.recall(table, snapshot_id=head)
        assert live.ready and live.archived == 0
    assert lab.rows(frozen, f"version as of {old}") == rows[old]


def test_live_files_go_although_their_copies_lie_in_the_archive(lab: Lab, cold: str, frost: Bucket) -> None:
    table = lab.messy(files=3, days=1)
    policy = {**POLICY, **MONTH, "handoff_catalog": cold, "delete_grace_hours": 0}
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    handed_off(lab, table, policy)
    with later(31):
        assert lab.lw.run("handoff", table, policy).counters["files_aged"] > 2
        victim, other, *_ = sorted(data(frost))
        frost.client.put_object(Bucket=frost.name, Key=victim, Body=b"else", StorageClass="DEEP_ARCHIVE")
        frost.client.delete_object(Bucket=frost.name, Key=other)
        run = lab.lw.run("purge", table, policy)
        assert run.counters["files_erased"] > 0 and run.counters["files_held"] == 2, run.reason
        assert "differs from what was copied" in run.reason and "does not exist" in run.reason
        assert data(frost)[other] == "GLACIER_IR", "made again from the live file, where it can be read"
        assert data(frost)[victim] == "DEEP_ARCHIVE", "nobody can say what that is: it is left alone"
        run = lab.lw.run("purge", table, policy)
        assert (run.counters["files_erased"], run.counters["files_held"]) == (1, 1), run.reason
        assert lab.lw.run("handoff", table, policy).counters["files_aged"] == 1, "it goes down once more"
        assert set(data(frost).values()) == {"DEEP_ARCHIVE"}


def test_a_file_ages_with_the_newest_snapshot_that_needs_it(lab: Lab, cold: str, frost: Bucket) -> None:
    table = lab.create()
    policy = {**POLICY, **MONTH, "handoff_catalog": cold}
    lab.append(table, 1)
    lab.append(table, 1, start=100)
    handed_off(lab, table, policy)
    shared = set(data(frost))
    lab.lw.run("compact", table, {"rewrite_min_input_files": 2})
    with later(20):
        lab.append(table, 1, start=200)
        handed_off(lab, table, policy)
    with later(31):
        plan = lab.lw.plan("handoff", table, policy)
        assert plan.empty
        told = {each.reason: each.count for each in plan.skipped}
        assert told["a younger cold snapshot needs it too"] == len(shared)
    with later(51):
        assert lab.lw.run("handoff", table, policy).state is RunState.DONE
    assert set(data(frost).values()) == {"DEEP_ARCHIVE"} and shared < set(data(frost))


def test_an_archived_copy_that_was_let_go_and_is_needed_again(lab: Lab, cold: str, frost: Bucket) -> None:
    """It cannot be read to compare it: it counts again because it is what went there."""
    table = lab.create()
    policy = {**POLICY, "handoff_catalog": cold}
    deeper = {"handoff_retention_hours": 0, "snapshot_retention_hours": "1000d"}
    lab.append(table, 1)
    lab.append(table, 1, start=100)
    handed_off(lab, table, policy)
    assert lab.lw.run("handoff", table, {**policy, **deeper}).counters["files_aged"] == len(data(frost))
    first = data(frost)
    with later(8):
        run = lab.lw.run("handoff", table, {**policy, **deeper, "cold_retention_hours": "7d"})
        assert run.counters["snapshots_released"] == 1
        lab.append(table, 1, start=200)
        again = lab.lw.run("handoff", table, policy)
        assert again.state is RunState.DONE, again.reason
        assert again.counters["files_present"] == len(first) + 1, "and the manifest that names them"
        assert set(first.values()) == {"DEEP_ARCHIVE"}
        assert {key: kind for key, kind in data(frost).items() if key in first} == first
    with later(10):
        lab.lw.run("purge", f"{cold}.db.events", {"delete_grace_hours": 0})
    assert set(first) < set(data(frost)), "none of them went"


def test_a_damaged_copy_does_not_age(lab: Lab, cold: str, frost: Bucket) -> None:
    table = lab.messy(files=3, days=1)
    policy = {**POLICY, **MONTH, "handoff_catalog": cold}
    handed_off(lab, table, policy)
    victim = min(data(frost))
    body = bytearray(frost.client.get_object(Bucket=frost.name, Key=victim)["Body"].read())
    body[len(body) // 2] ^= 1
    frost.client.put_object(Bucket=frost.name, Key=victim, Body=bytes(body), StorageClass="GLACIER_IR")
    with later(31), pytest.raises(LakewardenError, match="it differs from what was copied"):
        lab.lw.run("handoff", table, policy)
    found = data(frost)
    assert found.pop(victim) == "GLACIER_IR" and set(found.values()) == {"DEEP_ARCHIVE"}
    assert lab.lw.runs(table, 1)[0].state is RunState.FAILED


def test_what_it_costs_by_hand(lab: Lab, cold: str, frost: Bucket, tmp_path: Path) -> None:
    table = lab.messy(files=3, days=1)
    policy = {**POLICY, **MONTH, "handoff_catalog": cold}
    handed_off(lab, table, policy)
    with later(31):
        lab.lw.run("handoff", table, policy)
    sizes = {
        key: frost.client.head_object(Bucket=frost.name, Key=key)["ContentLength"] for key in data(frost)
    }
    deep_bytes, count = sum(sizes.values()), len(sizes)
    with asking(lab, tmp_path, policy) as lw, later(41):
        cost = lw.tiers.cost(table)
    tiers = {(each.tier, each.storage_class): each for each in cost.tiers}
    assert set(tiers) == {("live", "STANDARD"), ("cold", "STANDARD"), ("deep", "DEEP_ARCHIVE")}
    deep = tiers["deep", "DEEP_ARCHIVE"]
    # 40 KiB more for each object, 0.00099 a GiB and month; ten of 180 days are over.
    billed = deep_bytes + count * 40 * 1024
    assert (deep.files, deep.bytes, deep.billed_bytes) == (count, deep_bytes, billed)
    month = billed / (1 << 30) * 0.00099
    assert deep.month == pytest.approx(month)
    assert deep.leave_early == pytest.approx(month * 170 / (365.25 / 12), rel=1e-3)
    assert deep.read_once == pytest.approx(deep_bytes / (1 << 30) * 0.02 + count / 1000 * (0.0004 + 0.10))
    assert json.dumps(cost.to_dict())


def test_the_command_line(
    lab: Lab,
    cold: str,
    frost: Bucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # names of classes are cut on a narrow screen
    table = lab.messy(files=3, days=1)
    policy = {**POLICY, "handoff_catalog": cold, "handoff_retention_hours": 0}
    handed_off(lab, table, policy)
    assert lab.lw.run("handoff", table, policy).counters["files_aged"] == len(data(frost))
    config = tmp_path / "lakewarden.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
    config.write_text(
        "\n".join([f'[state]\nurl = "sqlite:///{tmp_path}/state.db"', "[policy]", *lines]), "utf-8"
    )
    snapshot = str(min(lab.lw.view(f"{cold}.db.events").snapshots, key=lambda each: each.committed_at).id)

    def asked(*words: str) -> tuple[int, str]:
        code = main(["--config", str(config), *words], spark=lab.spark)
        return code, capsys.readouterr().out

    assert json.loads(asked("where", table, "--snapshot", snapshot, "--json")[1])["tier"] == "deep"
    code, told = asked("recall", table, "--snapshot", snapshot, "--days", "2", "--wait", "--json")
    found = json.loads(told)
    assert code == 0 and found["ready"] and found["files_asked_for"] == found["archived_files"] > 0
    assert f"VERSION AS OF {snapshot}" in found["query"] and found["told"].startswith("it can be read now")
    assert "recalled" in asked("recall", table, "--snapshot", snapshot)[1]
    assert asked("recall", table, "--snapshot", "12345")[0] == 1
    code, told = asked("cost", table)
    assert code == 0 and "DEEP_ARCHIVE" in told and "to delete it now" in told


# ------------------------------------------------------------ the archive itself


def test_moving_is_checked_before_and_after(exact_s3: S3, monkeypatch: Any) -> None:
    bucket = exact_s3.bucket()
    bucket.put("a", b"abc" * 100)
    bucket.client.put_object(Bucket=bucket.name, Key="g", Body=b"abc", StorageClass="GLACIER")
    archive = ObjectArchive(exact_s3.io())
    moved = archive.move(
        [(f"{bucket.url}/a", 300), (f"{bucket.url}/g", 3), (f"{bucket.url}/none", 1)], "DEEP_ARCHIVE"
    )
    assert [each.written for each in moved] == [True, False, False]
    assert "recall it first" in moved[1].trouble and moved[2].trouble == "it does not exist"
    (again,) = archive.move([(f"{bucket.url}/a", 300)], "DEEP_ARCHIVE")
    assert (again.written, again.etag, again.trouble) == (False, moved[0].etag, "")
    bucket.put("b", b"xyz")
    assert (
        "has 3 bytes, and 4 were copied" in archive.move([(f"{bucket.url}/b", 4)], "DEEP_ARCHIVE")[0].trouble
    )
    monkeypatch.setattr(archive_module, "copy_object", lambda *_: None)
    assert "left it in STANDARD" in archive.move([(f"{bucket.url}/b", 3)], "DEEP_ARCHIVE")[0].trouble


def test_what_is_too_large_for_one_request_goes_in_parts(exact_s3: S3, monkeypatch: Any) -> None:
    bucket = exact_s3.bucket()
    body = bytes(range(256)) * (17 << 12)
    bucket.put("large", body)
    monkeypatch.setattr(s3_copy, "_WHOLE", 6 << 20)
    monkeypatch.setattr(s3_copy, "_PART", 5 << 20)
    (moved,) = ObjectArchive(exact_s3.io()).move([(f"{bucket.url}/large", len(body))], "STANDARD_IA")
    assert moved.written and moved.etag.endswith("-4")
    assert bucket.client.get_object(Bucket=bucket.name, Key="large")["Body"].read() == body
    assert classes(bucket) == {"large": "STANDARD_IA"}


def test_a_recall_that_takes_its_time_is_waited_for(exact_s3: S3) -> None:
    """The store says twice that it is still at it; only then it lends the copy."""
    from lakewarden.jobs.cold.locate import COLD, SnapshotLocation, SnapshotQuestion
    from lakewarden.jobs.cold.recall import ArchivedFiles, recall
    from lakewarden.model.run import Silent
    from lakewarden.model.table import TableRef

    bucket = exact_s3.bucket()
    bucket.client.put_object(Bucket=bucket.name, Key="d", Body=b"abc", StorageClass="DEEP_ARCHIVE")
    archive, slept = ObjectArchive(exact_s3.io()), []
    path = f"{bucket.url}/d"

    def look() -> ArchivedFiles:
        (found,) = archive.look([path])
        assert found is not None
        if found.until is not None and len(slept) < 2:
            found = archive_module.StoredObject(path, 3, found.etag, found.storage_class, restoring=True)
        return ArchivedFiles(1, (found,))

    asked = SnapshotLocation(
        SnapshotQuestion(snapshot_id=1), COLD, TableRef.parse("cold.db.t"), 1, None, "handed off"
    )
    options: dict[str, Any] = {"table": "lake.db.t", "days": 2, "speed": "Bulk"}
    soon = recall(asked, look, lambda: archive, PRICES, Silent(), wait=False, **options)
    assert not soon.ready and soon.restoring == 1 and soon.where.tier == "deep" and soon.ready_by is not None
    assert "being made readable" in soon.where.reason
    with patch.object(recalling.clock, "sleep", slept.append):
        done = recall(asked, look, lambda: archive, PRICES, Silent(), wait=True, **options)
    assert done.ready and done.asked == 0 and len(slept) == 2
