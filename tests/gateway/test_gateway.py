"""The gateway in front of the real REST catalog: as if it were not there, until a commit breaks a rule."""

from __future__ import annotations

import gzip
import json
import os
import secrets
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog as PyCatalog
from pyiceberg.exceptions import CommitStateUnknownException, ForbiddenError, NoSuchTableError
from pyiceberg.types import StringType
from pyspark.sql import SparkSession
from sqlalchemy import select

import bench.gateway
from lakewarden import Lakewarden, clock
from lakewarden.errors import Refused
from lakewarden.model.run import RunState
from lakewarden.state.audit_log import Rejections
from lakewarden.state.locks import removal
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.schema import commit_locks
from tests.support.gateway import LINEAGE, Running, gateway, wire
from tests.support.ports import wait_until
from tests.support.postgres import Database
from tests.support.rest_catalog import RestCatalog, rest_catalog
from tests.support.spark import add_catalog, rest_catalog_properties

pytestmark = pytest.mark.services

ROWS = pa.table({"a": pa.array([1, 2], pa.int64())})
NOW = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
TABLES = "/v1/namespaces/db/tables"


@dataclass(frozen=True)
class Site:
    """One catalog, known to Lakewarden as `name`, with a gateway before it."""

    rest: RestCatalog
    running: Running
    name: str
    folder: Path

    def python(self, uri: str | None = None) -> PyCatalog:
        io = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
        return PyCatalog("any", uri=uri or self.running.uri, **io)

    def lakewarden(self, spark: SparkSession, uri: str) -> Lakewarden:
        """One that reaches the catalog at this address; it has the gateway's state and the gateway's name for the catalog."""
        add_catalog(spark, rest_catalog_properties(uri), self.name)
        return Lakewarden({"state": self.running.config["state"]}, spark=spark, environ={})

    def table(self, name: str, commits: int = 1, **more: Any) -> Any:
        """Made directly, with so many snapshots."""
        catalog = self.python(self.rest.uri)
        catalog.create_namespace_if_not_exists("db")
        table = catalog.create_table(("db", name), ROWS.schema, **more)
        for _ in range(commits):
            table.append(ROWS, snapshot_properties=LINEAGE)
        return table

    def load(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.rest.uri}{TABLES}/{name}").json()["metadata"]
        return found

    def commit(self, name: str, *updates: dict[str, Any], uri: str | None = None) -> httpx.Response:
        body = {"requirements": [], "updates": list(updates)}
        return httpx.post(f"{uri or self.running.uri}{TABLES}/{name}", json=body, timeout=60)

    def counted(self, name: str) -> float:
        line = f'lineage_validation_failures_total{{door="gateway",table="{self.name}.db.{name}"}} '
        told = httpx.get(f"{self.running.uri}/metrics").text.splitlines()
        return next((float(each.removeprefix(line)) for each in told if each.startswith(line)), 0.0)


@contextmanager
def site_in(folder: Path, **settings: Any) -> Iterator[Site]:
    name = f"lake_{secrets.token_hex(4)}"
    with (
        rest_catalog(folder / "rest") as rest,
        gateway(folder / "gateway", rest.uri, catalog=name, **settings) as running,
    ):
        yield Site(rest, running, name, folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
def own_site(site: Site, tmp_path: Path) -> Iterator[Site]:
    """The same catalog under a name of its own: Spark never forgets where a name it has used leads."""
    name = f"lake_{secrets.token_hex(4)}"
    with gateway(tmp_path / "gateway", site.rest.uri, catalog=name) as running:
        yield Site(site.rest, running, name, tmp_path)


def ids(metadata: dict[str, Any]) -> list[int]:
    return [each["snapshot-id"] for each in metadata.get("snapshots", [])]


def remove(*snapshots: int) -> dict[str, Any]:
    return {"action": "remove-snapshots", "snapshot-ids": list(snapshots)}


def tag(name: str, snapshot_id: int) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": "tag", "snapshot-id": snapshot_id}


def drop(name: str) -> dict[str, Any]:
    return {"action": "remove-snapshot-ref", "ref-name": name}


@contextmanager
def saying(spark: SparkSession, **lineage: str) -> Iterator[None]:
    """Every commit of the session tells this, as a Spark job sets it once."""
    told = {f"spark.sql.iceberg.snapshot-property.{key}": value for key, value in lineage.items()}
    for key, value in told.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in told:
            spark.conf.unset(key)


# ------------------------------------------------------------ as if it were not there


def spark_flow(spark: SparkSession, lake: str) -> list[Any]:
    """What an engine does with a catalog, and what it saw of it on the way."""
    seen: list[Any] = []

    def sql(text: str) -> list[Any]:
        return spark.sql(text.format(t=f"{lake}.flow.t", lake=lake)).collect()

    def look() -> None:
        seen.append(sorted(tuple(row) for row in sql("select * from {t}")))
        seen.append(
            [row.operation for row in sql("select operation from {t}.snapshots order by committed_at")]
        )
        seen.append(sorted((row.name, row.type) for row in sql("select name, type from {t}.refs")))

    sql("create namespace {lake}.flow")
    with saying(spark, **LINEAGE):
        # One file: a delete of whole files is committed without the session's snapshot properties.
        sql("create table {t} using iceberg as select cast(id as int) a, 'x' b from range(0, 4, 1, 1)")
        sql("alter table {t} create branch dev")
        sql("insert into {t}.branch_dev values (8, 'z')")
        sql("alter table {t} create tag q1")
    fixing = {"lineage.operation": "overwrite", "trigger.operator": "ana", "trigger.ticket": "T-1"}
    with saying(spark, **{**LINEAGE, **fixing, "lineage.operation": "delete"}):
        sql("delete from {t} where a = 1")
    look()
    with saying(spark, **{**LINEAGE, **fixing}):
        sql("create or replace table {t} using iceberg as select 5 as a, 'n' as b")
    with saying(spark, **LINEAGE), ThreadPoolExecutor(3) as writers:
        list(writers.map(lambda each: sql(f"insert into {{t}} values ({each}, 'c')"), range(10, 13)))
    sql("alter table {t} add column c int")
    sql("alter table {t} set tblproperties ('comment'='hello')")
    sql("alter table {t} drop tag q1")
    sql("alter table {t} drop branch dev")
    sql("call {lake}.system.expire_snapshots(table => 'flow.t', older_than => timestamp '2100-01-01')")
    look()
    sql("create view {lake}.flow.v as select a from {t} where a > 5")
    seen.append(sorted(row.a for row in sql("select a from {lake}.flow.v")))
    sql("drop view {lake}.flow.v")
    sql("alter table {t} rename to flow.u")
    seen.append(sorted(row.tableName for row in sql("show tables in {lake}.flow")))
    sql("drop table {lake}.flow.u purge")
    seen.append(sql("show tables in {lake}.flow"))
    sql("drop namespace {lake}.flow")
    return seen


def python_flow(catalog: PyCatalog) -> list[Any]:
    seen: list[Any] = []
    catalog.create_namespace("python")
    table = catalog.create_table("python.p", ROWS.schema)
    table.append(ROWS, snapshot_properties=LINEAGE)
    fixing = {"lineage.operation": "overwrite", "trigger.operator": "ana", "trigger.ticket": "T-1"}
    table.delete("a = 1", snapshot_properties={**LINEAGE, **fixing, "lineage.operation": "delete"})
    table.overwrite(ROWS, snapshot_properties={**LINEAGE, **fixing})
    current = table.current_snapshot()
    assert current is not None
    table.manage_snapshots().create_tag(current.snapshot_id, "q1").create_branch(
        current.snapshot_id, "dev"
    ).commit()
    table.append(ROWS, snapshot_properties=LINEAGE, branch="dev")
    with table.update_schema() as update:
        update.add_column("b", StringType())
    table.append(pa.table({"a": pa.array([9], pa.int64())}), snapshot_properties=LINEAGE)
    seen.append(sorted(table.scan().to_arrow()["a"].to_pylist()))
    seen.append(sorted((name, ref.snapshot_ref_type.value) for name, ref in table.refs().items()))
    seen.append([each.summary.operation.value for each in table.snapshots() if each.summary])
    table.manage_snapshots().remove_tag("q1").remove_branch("dev").commit()
    first = table.snapshots()[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    seen.append(first in [each.snapshot_id for each in table.refresh().snapshots()])
    catalog.rename_table("python.p", "python.q")
    seen.append(catalog.list_tables("python"))
    catalog.drop_table("python.q")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("python.q")
    catalog.drop_namespace("python")
    return seen


def test_an_engines_whole_day_is_as_without_it(spark: SparkSession, site: Site) -> None:
    direct = add_catalog(spark, rest_catalog_properties(site.rest.uri))
    through = add_catalog(spark, rest_catalog_properties(site.running.uri))
    expected = spark_flow(spark, direct)
    assert spark_flow(spark, through) == expected
    assert len(expected) == 9


@pytest.mark.main
def test_pyiceberg_is_as_without_it(site: Site) -> None:
    expected = python_flow(site.python(site.rest.uri))
    assert python_flow(site.python()) == expected


# ------------------------------------------------------------ lineage


@pytest.mark.main
def test_a_commit_without_lineage_is_turned_away_in_words_its_user_reads(
    spark: SparkSession, site: Site
) -> None:
    site.table("refused")
    before = site.load("refused")
    table = site.python().load_table("db.refused")
    with pytest.raises(ForbiddenError, match=r"refusing to commit to .*db.refused: writer.id is missing"):
        table.append(ROWS)
    lake = add_catalog(spark, rest_catalog_properties(site.running.uri))
    with pytest.raises(Exception, match=r"writer.id is missing.*lineage.operation is missing") as caught:
        spark.sql(f"insert into {lake}.db.refused values (1)")
    assert "ForbiddenException" in str(caught.value)
    with pytest.raises(Exception, match=r"writer.id is missing"):
        spark.sql(f"create table {lake}.db.never using iceberg as select 1 as a")
    assert site.load("refused") == before, "the pointer did not move"
    with pytest.raises(NoSuchTableError):
        site.python(site.rest.uri).load_table("db.never")
    assert site.counted("refused") == 2

    def written() -> dict[str, int]:
        with site.running.state() as state:
            return {each.table: each.count for each in Rejections(state).list() if each.door == "gateway"}

    wait_until(lambda: written().get(f"{site.name}.db.refused") == 2, "the counts are written down", 5)
    table.refresh().append(ROWS, snapshot_properties=LINEAGE)
    assert len(ids(site.load("refused"))) == 2


def test_many_refusals_are_each_answered_at_once_and_counted(site: Site) -> None:
    site.table("busy")
    body = {"updates": [{"action": "add-snapshot", "snapshot": {"snapshot-id": 1, "summary": {}}}]}

    def refusals(count: int) -> list[float]:
        with httpx.Client(base_url=site.running.uri) as client:
            answers = [client.post(f"{TABLES}/busy", json=body) for _ in range(count)]
        assert {each.status_code for each in answers} == {403}
        return [each.elapsed.total_seconds() for each in answers]

    assert median(refusals(50)) < 0.03, "an answer that waits for its other half takes 0.04"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(refusals, [50] * 8))
    assert site.counted("busy") == 450


def test_what_it_costs_can_be_measured(site: Site) -> None:
    site.table("measured", 0)
    uuid = site.load("measured")["table-uuid"]
    where = bench.gateway.Site(site.rest.uri, site.running.uri, uuid, f"{TABLES}/measured")
    found = {each.name: each for each in bench.gateway.measure(where, commits=30, seconds=0.5, rate=50)}
    assert found["a commit directly, p50"].found > 0
    assert found["answers that were no refusal"].met and found["refusals a second, as fast as they go"].met


@pytest.mark.main
def test_a_transaction_is_judged_table_by_table_and_passes_whole_or_not_at_all(site: Site) -> None:
    for name in ("one", "two"):
        site.table(name, 0)

    def change(name: str, **summary: str) -> dict[str, Any]:
        number = secrets.randbits(60)
        snapshot = {
            "snapshot-id": number,
            "sequence-number": 1,
            "timestamp-ms": 1_900_000_000_000,
            "manifest-list": "file:///x",
            "summary": {"operation": "append", **summary},
            "schema-id": 0,
        }
        named = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        updates = [{"action": "add-snapshot", "snapshot": snapshot}, named]
        return {"identifier": {"namespace": ["db"], "name": name}, "requirements": [], "updates": updates}

    def post(*changes: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{site.running.uri}/v1/transactions/commit", json={"table-changes": list(changes)})

    refused = post(change("one", **LINEAGE), change("two"))
    assert refused.status_code == 403 and "db.two" in refused.json()["error"]["message"]
    assert ids(site.load("one")) == ids(site.load("two")) == []
    assert post(change("one", **LINEAGE), change("two", **LINEAGE)).is_success
    assert len(ids(site.load("one"))) == len(ids(site.load("two"))) == 1


def test_policies_of_the_table_and_of_the_state_count(site: Site) -> None:
    table = site.table("ruled")
    python = site.python().load_table("db.ruled")
    with python.transaction() as change:
        change.set_properties({"lakewarden.lineage_required_keys": "team"})
    with pytest.raises(ForbiddenError, match="team is missing"):
        python.append(ROWS, snapshot_properties=LINEAGE)
    python.append(ROWS, snapshot_properties={**LINEAGE, "team": "a"})
    with site.running.state() as state:
        StoredPolicies(state).set(
            f"{site.name}.db.ruled", {"lineage_required_keys": ["desk"]}, None, clock.now()
        )

    def asks_for_desk() -> bool:
        try:
            python.refresh().append(ROWS, snapshot_properties={"team": "a"})
        except ForbiddenError as error:
            return "desk is missing" in str(error)
        return False

    wait_until(asks_for_desk, "the stored policy counts", 5)
    assert table is not None


# ------------------------------------------------------------ snapshots that are held


@pytest.mark.main
def test_an_engine_expires_nothing_a_pin_keeps_until_it_is_taken_away(
    spark: SparkSession, own_site: Site
) -> None:
    site = own_site
    site.table("pinned", 3)
    first, second, last = ids(site.load("pinned"))
    through = add_catalog(spark, rest_catalog_properties(site.running.uri))
    expire = f"call {through}.system.expire_snapshots(table => 'db.pinned', older_than => timestamp '2100-01-01', retain_last => 1)"
    with site.lakewarden(spark, site.rest.uri) as lw:
        pin = lw.pin(f"{site.name}.db.pinned", first, holder="month-end")
        with pytest.raises(Exception, match=f"snapshot {first} is pinned by month-end"):
            spark.sql(expire)
        assert ids(site.load("pinned")) == [first, second, last]
        pin.unpin()
        spark.sql(expire)
    assert ids(site.load("pinned")) == [last]


def test_what_a_ref_names_now_is_not_removed(site: Site) -> None:
    site.table("named", 3)
    first, second, last = ids(site.load("named"))
    assert site.commit("named", tag("q1", first)).status_code == 200
    refused = site.commit("named", remove(first, second, last))
    assert refused.status_code == 403
    told = refused.json()["error"]
    assert "tag q1 names" in told["message"] and "branch main names" in told["message"]
    assert (told["type"], told["code"]) == ("ForbiddenException", 403)
    assert ids(site.load("named")) == [first, second, last]
    assert site.commit("named", drop("q1"), remove(first)).status_code == 200
    assert ids(site.load("named")) == [second, last]


@pytest.mark.main
def test_lakewardens_own_work_passes_and_others_do_not_undo_it(spark: SparkSession, own_site: Site) -> None:
    """A Lakewarden that itself goes through the gateway: mirrors, tags, and expiry that is reserved for it."""
    site = own_site
    site.table("own", 3)
    first, _, last = ids(site.load("own"))
    name = f"{site.name}.db.own"
    with site.running.state() as state:
        values = {"snapshot_expiry_reserved": True, "protected_tags": ["audit-*"]}
        StoredPolicies(state).set(name, values, None, clock.now())
    other = add_catalog(spark, rest_catalog_properties(site.running.uri))
    with site.lakewarden(spark, site.running.uri) as lw:
        pin = lw.pin(name, first, holder="report", mirror=True, ttl="1h")
        lw.holds.tag(name, "audit-1", first, forever=True)
        for held in (f"lakewarden-pin-{pin.id}", "audit-1"):
            with pytest.raises(Exception, match=f"drops tag {held}"):
                spark.sql(f"alter table {other}.db.own drop tag `{held}`")
            with pytest.raises(Exception, match=f"moves tag {held}"):
                spark.sql(f"alter table {other}.db.own replace tag `{held}` as of version {last}")
        pin.renew("2h")
        pin.unpin()
        assert set(site.load("own")["refs"]) == {"main", "audit-1"}
        with pytest.raises(Exception, match="only Lakewarden expires"):
            spark.sql(
                f"call {other}.system.expire_snapshots(table => 'db.own', older_than => timestamp '2100-01-01', retain_last => 1)"
            )
        run = lw.run("expire", name, policy=NOW)
        assert run.state is RunState.DONE, run.reason
        assert ids(site.load("own")) == [first, last]
        run = lw.run("compact", name, policy={"rewrite_min_input_files": 2})
        assert run.state is RunState.DONE, run.reason
        assert site.load("own")["current-snapshot-id"] == run.snapshot_ids[-1]


def test_of_a_tag_and_a_removal_that_meet_at_two_gateways_never_both_happen(
    site: Site, pg_database: Database, tmp_path: Path
) -> None:
    """Without the turns a catalog takes the tag, and then drops it together with its snapshot."""
    count = 12
    site.table("meeting", count + 1)
    trashed = ids(site.load("meeting"))[:count]
    with (
        gateway(tmp_path / "one", site.rest.uri, pg_database.url, catalog=site.name) as one,
        gateway(tmp_path / "two", site.rest.uri, pg_database.url, catalog=site.name) as two,
        ThreadPoolExecutor(8) as pool,
    ):

        def removals(some: list[int]) -> list[Future[httpx.Response]]:
            return [pool.submit(site.commit, "meeting", remove(each), uri=one.uri) for each in some]

        removed = removals(trashed[::2])
        tags = {
            each: pool.submit(site.commit, "meeting", tag(f"t{each}", each), uri=two.uri) for each in trashed
        }
        removed += removals(trashed)
        answered = {each: future.result().status_code for each, future in tags.items()}
        assert {future.result().status_code for future in removed} <= {200, 400, 403, 404, 409}
    left = site.load("meeting")
    kept = {each for each in trashed if answered[each] == 200}
    assert kept, "some tag was made"
    assert {left["refs"][f"t{each}"]["snapshot-id"] for each in kept} == kept
    assert kept <= set(ids(left))


def test_a_pin_asked_for_while_a_removal_is_on_its_way_is_not_granted(
    spark: SparkSession, own_site: Site, tmp_path: Path
) -> None:
    """The removal was judged before the pin was there. Granted by a look at the table now, the pin would be broken."""
    site = own_site
    site.table("contested", 2)
    first, last = ids(site.load("contested"))
    name, url = f"{site.name}.db.contested", site.running.config["state"]["url"]
    with (
        wire(site.rest.port) as line,
        gateway(tmp_path / "held", line.uri, url, catalog=site.name) as running,
        site.lakewarden(spark, site.rest.uri) as lw,
        ThreadPoolExecutor(2) as pool,
    ):
        lw.view(name)  # Spark learns the catalog on this thread, which has its settings
        line.hold_at = b"remove-snapshots"
        removal = pool.submit(site.commit, "contested", remove(first), uri=running.uri)
        assert line.holding.wait(10)
        pin = pool.submit(lw.pin, name, first, holder="reader")
        wait_until(lambda: len(lw.holds.pins(name)) == 1, "the pin is written down")
        wait([pin], timeout=1)
        assert not pin.done(), "the pin waits for the removal's end"
        line.go_on.set()
        assert removal.result().status_code == 200
        with pytest.raises(Refused, match="does not have it"):
            pin.result()
        assert lw.holds.pins(name) == () and ids(site.load("contested")) == [last]


# ------------------------------------------------------------ when something breaks


def test_a_commit_whose_answer_is_lost_is_unknown_and_not_failed(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    # Short, because the catalog stays away while the client asks it what became of the commit.
    patience = {"commit.status-check.num-retries": "1", "commit.status-check.min-wait-ms": "10"}
    site.table("lost", properties=patience)
    url = site.running.config["state"]["url"]
    with wire(site.rest.port) as line, gateway(tmp_path, line.uri, url, catalog=site.name) as running:
        python = site.python(running.uri).load_table("db.lost")
        line.cut_at = b"POST /v1/namespaces/db/tables/lost "
        with pytest.raises(CommitStateUnknownException, match="did not say whether the commit happened"):
            python.append(ROWS, snapshot_properties=LINEAGE)
        assert line.was_cut.is_set()
        wait_until(lambda: len(ids(site.load("lost"))) == 2, "it had happened")
        line.cut_at = b""
        line.was_cut.clear()
        once = {"rest.client.max-retries": "1"}
        lake = add_catalog(spark, {**rest_catalog_properties(running.uri), **once})
        spark.sql(f"select * from {lake}.db.lost").collect()
        line.cut_at = b"POST /v1/namespaces/db/tables/lost "
        with saying(spark, **LINEAGE), pytest.raises(Exception, match="CommitStateUnknownException"):
            spark.sql(f"insert into {lake}.db.lost values (7)")
        line.cut_at = b""
        line.was_cut.clear()
        wait_until(lambda: len(ids(site.load("lost"))) == 3, "it had happened, once")
        assert sorted(row.a for row in spark.sql(f"select a from {lake}.db.lost").collect()) == [
            1,
            1,
            2,
            2,
            7,
        ]


def test_after_a_removal_whose_outcome_is_unknown_nobody_is_told_that_a_snapshot_is_safe(
    site: Site, tmp_path: Path
) -> None:
    site.table("open", 2)
    first, _ = ids(site.load("open"))
    with wire(site.rest.port) as line, gateway(tmp_path, line.uri, catalog=site.name) as running:
        line.cut_at = b"remove-snapshots"
        lost = site.commit("open", remove(first), uri=running.uri)
        assert (lost.status_code, lost.json()["error"]["type"]) == (500, "CommitStateUnknownException")
        with running.state() as state, state.read() as connection:
            left = connection.execute(select(commit_locks)).one()
        assert left.place == removal(site.load("open")["table-uuid"]) and left.until > clock.now()


def test_a_catalog_that_stands_still_or_is_gone(tmp_path: Path) -> None:
    with site_in(tmp_path, settings={"timeout_seconds": 1}) as site:
        site.table("still")
        python = site.python().load_table("db.still")
        python.append(ROWS, snapshot_properties=LINEAGE)
        os.kill(site.rest.pid, signal.SIGSTOP)
        try:
            with pytest.raises(CommitStateUnknownException, match="ReadTimeout"):
                python.append(ROWS, snapshot_properties=LINEAGE)
        finally:
            os.kill(site.rest.pid, signal.SIGCONT)
        # Killed while it has the commit: nobody can say what became of it.
        os.kill(site.rest.pid, signal.SIGSTOP)
        death = threading.Timer(0.4, site.rest.kill)
        death.start()
        with pytest.raises(CommitStateUnknownException, match="did not say whether the commit happened"):
            python.append(ROWS, snapshot_properties=LINEAGE)
        death.join()
        refused = site.commit("still", {"action": "set-properties", "updates": {"a": "b"}})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "the commit was not forwarded" in refused.json()["error"]["message"]


def test_without_its_state_nothing_that_must_be_judged_passes(tmp_path: Path) -> None:
    with site_in(tmp_path) as site:
        site.table("blind", 2)
        first, last = ids(site.load("blind"))
        for file in (tmp_path / "gateway").glob("state.db*"):
            file.write_bytes(b"no database" * 1000)
        health = httpx.get(f"{site.running.uri}/health")
        assert (health.status_code, health.json()["status"], health.json()["state"]) == (200, "up", "down")
        refused = site.commit("blind", remove(first))
        assert refused.status_code == 503 and "cannot judge" in refused.json()["error"]["message"]
        assert ids(site.load("blind")) == [first, last]
        assert site.commit("blind", {"action": "set-properties", "updates": {"a": "b"}}).status_code == 200


# ------------------------------------------------------------ the protocol


def test_what_it_cannot_judge_does_not_pass(site: Site) -> None:
    site.table("odd", 2)
    first, last = ids(site.load("odd"))
    path = f"{site.running.uri}{TABLES}/odd"
    body = json.dumps({"requirements": [], "updates": [remove(first)]})
    twice = body[:-1] + ', "updates": []}'
    for sent in (
        httpx.post(path, content=twice),
        httpx.post(path, content=body.encode("utf-16")),
        httpx.post(path + "/", content=body),
        httpx.post(path.replace("/tables", "//tables"), content=body),
        httpx.post(path.replace("tables/odd", "tables%2Fodd"), content=body),
        httpx.post(path, content=body, headers={"content-encoding": "br"}),
        httpx.post(path, content=body, headers={"x-http-method-override": "PUT"}),
    ):
        assert sent.status_code == 400, sent.text
        assert sent.json()["error"]["type"] == "BadRequestException"
    assert ids(site.load("odd")) == [first, last]
    packed = httpx.post(
        path,
        content=gzip.compress(json.dumps({"updates": [remove(last)]}).encode()),
        headers={"content-encoding": "gzip"},
    )
    assert packed.status_code == 403 and "branch main" in packed.text


def test_answers_and_errors_of_the_catalog_come_back_as_they_are(site: Site) -> None:
    site.table("same")
    for path in ("/v1/config", "/v1/namespaces", f"{TABLES}/same", f"{TABLES}/none", "/v1/nowhere"):
        direct, through = (httpx.get(f"{uri}{path}") for uri in (site.rest.uri, site.running.uri))
        assert (
            (through.status_code, through.json()) == (direct.status_code, direct.json())
            if direct.content
            else True
        )
        assert through.headers.get("content-type") == direct.headers.get("content-type")
    unmet = [{"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}]
    body = {"requirements": unmet, "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
    conflict = httpx.post(f"{site.running.uri}{TABLES}/same", json=body)
    assert conflict.status_code == 409 and conflict.json()["error"]["type"] == "CommitFailedException"
    assert httpx.head(f"{site.running.uri}{TABLES}/same").is_success
    assert site.commit("none", remove(1)).status_code == 404


def test_headers_are_the_clients_own_on_both_requests_and_the_body_has_one_length(
    site: Site, tmp_path: Path
) -> None:
    site.table("headers", 2)
    last = ids(site.load("headers"))[-1]
    body = json.dumps({"updates": [tag("q1", last)]}).encode()
    sent = {
        "authorization": "Bearer secret",
        "x-client-version": "7",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
    }
    with wire(site.rest.port) as line, gateway(tmp_path, line.uri, catalog=site.name) as running:
        parts = (body[:9], body[9:])  # sent in chunks, without a length
        answer = httpx.post(f"{running.uri}{TABLES}/headers?a=%2F", content=iter(parts), headers=sent)
        assert answer.status_code == 200, answer.text
        carried = b"".join(line.carried).lower()
    looks, commits = carried.count(b"get /v1/"), carried.count(b"post /v1/")
    assert (looks, commits) == (3, 1), "its properties, whose turn it is, and how it is now; and one commit"
    assert carried.count(b"authorization: bearer secret") == carried.count(b"x-client-version: 7") == 4
    assert b"x-hop" not in carried and b"transfer-encoding" not in carried
    assert b"post /v1/namespaces/db/tables/headers?a=%2f " in carried
    assert carried.count(b"content-length: %d" % len(body)) == 1 and carried.endswith(body)


def test_it_serves_https_and_says_how_it_is(site: Site, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(made.split(), check=True, capture_output=True)
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with gateway(tmp_path, site.rest.uri, settings=tls, catalog=site.name) as running:
        assert running.uri.startswith("https")
        with httpx.Client(verify=ssl.create_default_context(cafile=certificate)) as client:
            healthy = {"status": "up", "state": "up", "catalog": site.name}
            assert client.get(f"{running.uri}/health").json() == healthy
            assert "namespaces" in client.get(f"{running.uri}/v1/namespaces").json()
