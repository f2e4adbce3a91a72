"""Paimon tables in other catalogs than a plain folder: in a database with its lock, and behind servers that do not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.cli import main
from lakewarden.errors import Unreachable
from lakewarden.model.run import RunState
from tests.support.paimon import PaimonLab, lakewarden, paimon_lab
from tests.support.paimon_s3 import bucket_lab
from tests.support.ports import free_port, wait_until
from tests.support.postgres import Database
from tests.support.s3 import Bucket

pytestmark = pytest.mark.services

JOBS: dict[str, dict[str, object]] = {
    "compact": {"rewrite_min_input_files": 2},
    "rewrite-manifests": {"manifest_rewrite_min_manifests": 2},
    "expire": {"snapshot_retention_hours": 0, "snapshot_min_retained": 1},
    "purge": {"delete_grace_hours": 0},
}


def in_postgres(database: Database) -> dict[str, str]:
    return {
        "metastore": "jdbc",
        "uri": database.jdbc_url,
        "jdbc.user": database.user,
        "jdbc.password": database.password,
        "jdbc.ApplicationName": "lakewarden",
        "client-pool-size": "1",
    }


def connections(database: Database) -> int:
    with database.connect() as connection:
        asked = "select count(*) from pg_stat_activity where application_name = 'lakewarden' and datname = %s"
        (row,) = connection.execute(asked, [database.name]).fetchall()
        return int(str(row[0]))


def writer(lab: PaimonLab) -> PaimonLab:
    """The same catalog as its writers open it: connections of theirs are not ours."""
    lab._opened.close()
    own = {**lab.properties, "jdbc.ApplicationName": "writer"}
    lab._opened = lab.maker.open({"warehouse": str(lab.warehouse), **own})
    return lab


def through_every_job(lab: PaimonLab, table: str) -> None:
    rows = lab.rows(table)
    for job, policy in JOBS.items():
        run = lab.lw.run(job, table, policy)
        assert run.state is RunState.DONE, f"{job}: {run.reason}"
        assert lab.rows(table) == rows
    assert lab.lw.run("sweep", table).state is RunState.NOTHING_TO_DO
    assert len(lab.lw.view(table).snapshots) == 1


def test_in_postgresql_on_s3(
    spark: SparkSession, pg_database: Database, s3_bucket: Bucket, tmp_path: Path
) -> None:
    """Where files are on S3 the catalog's lock is on by itself. Paimon's own code never closes what it opens for it."""
    with bucket_lab(spark, s3_bucket, tmp_path, **in_postgres(pg_database)) as lab:
        writer(lab)
        table = lab.create()
        lab.append(table, 3, days=1)
        assert [str(each) for each in lab.lw.tables("pm")] == [table]
        through_every_job(lab, table)
        # The server sees a moment later that one was closed.
        wait_until(lambda: connections(pg_database) == 1, "only the catalog's own connection is left")
    wait_until(lambda: connections(pg_database) == 0, "that one is closed as well")
    with pg_database.connect() as connection:
        assert connection.execute("select * from paimon_distributed_locks").fetchall() == []


def test_whoever_has_the_catalogs_lock_goes_first(
    spark: SparkSession, pg_database: Database, tmp_path: Path
) -> None:
    lock = {"lock.enabled": "true", "lock-acquire-timeout": "1 s"}
    with paimon_lab(spark, tmp_path, **in_postgres(pg_database), **lock) as lab:
        table = writer(lab).create(**{"commit.max-retries": "0"})
        lab.append(table, 2, days=1)
        rows, files = lab.rows(table), lab.on_disk(table)
        with pg_database.connect() as connection:
            held = "insert into paimon_distributed_locks (lock_id, expire_time_seconds) values ('jdbc.db.events', 99)"
            connection.execute(held)
        run = lab.lw.run("compact", table, JOBS["compact"])
        assert run.state is RunState.UNKNOWN
        assert "Acquire lock failed" in run.reason
        assert lab.rows(table) == rows and files < lab.on_disk(table), "what it may have added stays"
        with pg_database.connect() as connection:
            connection.execute("delete from paimon_distributed_locks")
        run = lab.lw.run("compact", table, JOBS["compact"])
        assert run.state is RunState.DONE, run.reason
        assert lab.rows(table) == rows


def test_in_sqlite_and_what_the_doctor_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "client-pool-size": "1"}
    with paimon_lab(spark, tmp_path, **own) as lab:
        table = lab.create()
        lab.append(table, 3, days=1)
        rows = lab.rows(table)
        for job in ("expire", "purge"):
            assert lab.lw.run(job, table, JOBS[job]).state is RunState.DONE
        assert lab.rows(table) == rows
    config = tmp_path / "lakewarden.toml"
    for lock, risks in (("true", 0), ("false", 1)):
        told = {"format": "paimon", "warehouse": f"{tmp_path}/paimon", **own, "lock.enabled": lock}
        lines = "".join(f'"{key}" = "{value}"\n' for key, value in told.items())
        config.write_text(f'[state]\nurl = "sqlite:///state.db"\n[catalogs.pm]\n{lines}')
        assert main(["--config", str(config), "doctor", "--json"], spark=spark) == 0
        checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
        assert checks["catalog pm"]["found"] == "1 table"
        assert len([name for name in checks if name.startswith("writers of")]) == risks


# ------------------------------------------------------------ servers that do not answer


SILENT = f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (
            {"metastore": "jdbc", "uri": f"jdbc:postgresql://{SILENT}/lake", "jdbc.password": "hush"},
            "Connection refused",
        ),
        (
            {"metastore": "rest", "uri": f"http://{SILENT}", "token.provider": "bear", "token": "hush"},
            "Connection refused",
        ),
        (
            {
                "metastore": "hive",
                "uri": f"thrift://{SILENT}",
                "hive.metastore.connect.retries": "1",
                "hive.metastore.client.connect.retry.delay": "0s",
            },
            "metastore client",
        ),
        ({"metastore": "rest", "uri": f"http://{SILENT}"}, "token.provider is not set"),
        ({"metastore": "hvie", "uri": f"http://{SILENT}"}, "hvie"),
    ],
    ids=["jdbc", "rest", "hive", "rest without a token", "no such metastore"],
)
def test_a_catalog_that_does_not_answer(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], reason: str
) -> None:
    warehouse = tmp_path / "paimon"
    with lakewarden(spark, tmp_path, warehouse=str(warehouse), **properties) as lw:
        with pytest.raises(Unreachable) as error:
            lw.run("compact", "pm.db.events")
        said = f"{error.value.message} {error.value.hint}"
    assert error.value.message.startswith("cannot reach catalog pm (")
    assert reason in said
    assert (properties["uri"] in said) or "`metastore` is filesystem" in said
    assert "hush" not in said


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A server that knows nobody, and remembers what was asked with which authority."""
    asked: list[tuple[str, str]] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization", "")))
            body = json.dumps({"message": "nobody here knows you", "code": 401}).encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_every_property_reaches_paimon(
    spark: SparkSession, tmp_path: Path, refusing: tuple[str, list[tuple[str, str]]]
) -> None:
    uri, asked = refusing
    own = {"metastore": "rest", "uri": uri, "token.provider": "bear", "token": "the-token"}
    with lakewarden(spark, tmp_path, warehouse="lake", **own) as lw, pytest.raises(Unreachable) as error:
        lw.tables("pm")
    assert asked == [("/v1/config?warehouse=lake", "Bearer the-token")]
    assert error.value.message.startswith(f"cannot reach catalog pm ({uri}, lake): ")
    assert "nobody here knows you" in error.value.message
    assert "the-token" not in error.value.message


def test_a_catalog_that_was_open_when_its_mount_went_away(spark: SparkSession, tmp_path: Path) -> None:
    """Paimon would make the folder anew, and find no tables in it."""
    with paimon_lab(spark, tmp_path) as lab:
        table = lab.create()
        assert lab.lw.tables("pm")
        lab.warehouse.rename(tmp_path / "away")
        for ask in (lambda: lab.lw.tables("pm"), lambda: lab.lw.run("compact", table)):
            with pytest.raises(
                Unreachable, match=f"reach catalog pm: its warehouse {lab.warehouse} does not exist"
            ) as error:
                ask()
            assert f"check that {lab.warehouse} is mounted" in error.value.hint
        assert not lab.warehouse.exists()
