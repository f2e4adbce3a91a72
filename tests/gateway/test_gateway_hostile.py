"""Ways around the gateway that somebody could try, each against the real catalog; and a state database that fails at the worst moment."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from pyiceberg.exceptions import ForbiddenError

from lakewarden import clock
from lakewarden.gateway.metrics import NEW
from lakewarden.state.audit_log import Rejections
from lakewarden.state.cold import ColdFile, ColdFiles
from lakewarden.state.holds import Pin, Pins
from lakewarden.state.policies import StoredPolicies
from tests.gateway.test_gateway import ROWS, TABLES, Site, drop, ids, remove, site_in, tag
from tests.support.gateway import LINEAGE, gateway, wire
from tests.support.ports import wait_until
from tests.support.postgres import Database, Postgres

pytestmark = pytest.mark.services

REF_AGE = "history.expire.max-ref-age-ms"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("hostile"), policy={"protected_tags": ["audit-*"]}) as made:
        yield made


def setting(**properties: str) -> dict[str, Any]:
    return {"action": "set-properties", "updates": properties}


def unsetting(*names: str) -> dict[str, Any]:
    return {"action": "remove-properties", "removals": list(names)}


def told(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def test_a_table_does_not_slip_away_from_its_pins_by_another_uuid(site: Site) -> None:
    site.table("named", 2)
    was = site.load("named")
    first, uuid = ids(was)[0], was["table-uuid"]
    with site.running.state() as state:
        Pins(state).add(Pin("p-1", f"{site.name}.db.named", uuid, first, "ana", "", clock.now()))
    other = {"action": "assign-uuid", "uuid": "11111111-2222-3333-4444-555555555555"}
    change = {"identifier": {"namespace": ["db"], "name": "named"}, "requirements": [], "updates": [other]}
    whole = httpx.post(f"{site.running.uri}/v1/transactions/commit", json={"table-changes": [change]})
    assert "another uuid" in told(whole, 403)
    assert "another uuid" in told(site.commit("named", other), 403)
    assert "pinned by ana" in told(site.commit("named", remove(first)), 403)
    assert site.load("named") == was
    assert site.commit("named", {"action": "assign-uuid", "uuid": uuid}).status_code == 200


def test_a_cold_table_takes_no_commit_of_any_kind(site: Site) -> None:
    """As a catalog shows it that fronts the database the cold tables are in."""
    source = {"cold-tier.source": "lake.db.live", "cold-tier.source-uuid": "u-1"}
    site.table("frozen", 2, properties=source)
    was = site.load("frozen")
    with site.running.state() as state:
        copy = ColdFile("s3://lake/db/live/a", f"{was['location']}/data/a", 1, "x")
        ColdFiles(state).add("u-1", [copy], "run", clock.now())
    first, last = ids(was)
    column = {"id": 1, "name": "b", "required": False, "type": "long"}
    tries: list[dict[str, Any]] = [
        remove(first),
        tag("mine", last),
        drop("main"),
        setting(owner="me"),
        setting(**{"cold-tier.source": ""}),
        unsetting(*source),
        setting(**{"lakewarden.snapshot_min_retained": "9"}),
        {"action": "set-location", "location": f"{was['location']}-elsewhere"},
        {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": [column]}},
        {"action": "upgrade-format-version", "format-version": 3},
    ]
    for each in tries:
        assert "colder tier of lake.db.live, and read only" in told(site.commit("frozen", each), 403), each
    change = {
        "identifier": {"namespace": ["db"], "name": "frozen"},
        "requirements": [],
        "updates": tries[3:4],
    }
    whole = httpx.post(f"{site.running.uri}/v1/transactions/commit", json={"table-changes": [change]})
    assert "read only" in told(whole, 403)
    with pytest.raises(ForbiddenError, match="read only"):
        site.python().load_table("db.frozen").append(ROWS, snapshot_properties=LINEAGE)
    assert site.load("frozen") == was
    # A property that no policy can read does not open it either.
    assert (
        site.commit("frozen", setting(**{"lakewarden.nonsense": "1"}), uri=site.rest.uri).status_code == 200
    )
    assert "read only" in told(site.commit("frozen", setting(owner="me")), 403)
    assert "read only" in told(site.commit("frozen", unsetting("lakewarden.nonsense")), 403)


def test_a_property_alone_makes_no_table_a_cold_one(site: Site) -> None:
    """Hand-off recorded nothing of it: its writers go on, and may take the property away again."""
    site.table("posing", 2, properties={"cold-tier.source": "lake.db.live", "cold-tier.source-uuid": "u-2"})
    assert site.commit("posing", setting(owner="me")).status_code == 200
    assert site.commit("posing", unsetting("cold-tier.source", "cold-tier.source-uuid")).status_code == 200


def test_a_plus_in_a_path_is_the_space_that_the_catalog_reads(site: Site) -> None:
    site.table("my table", 2)
    first = ids(site.load("my%20table"))[0]
    with site.running.state() as state:
        reserved = {"snapshot_expiry_reserved": True}
        StoredPolicies(state).set(f"{site.name}.db.my table", reserved, None, clock.now())
    for name in ("my%20table", "my+table"):
        assert "db.my table: only Lakewarden expires" in told(site.commit(name, remove(first)), 403)
    assert first in ids(site.load("my%20table"))


def test_a_protected_tag_is_not_let_run_out(site: Site) -> None:
    site.table("tagged", 2)
    first = ids(site.load("tagged"))[0]
    assert site.commit("tagged", tag("audit-1", first)).status_code == 200
    was = site.load("tagged")
    shorter = {**tag("audit-1", first), "max-ref-age-ms": 1}
    assert "shortens the life of tag audit-1" in told(site.commit("tagged", shorter), 403)
    assert REF_AGE in told(site.commit("tagged", setting(**{REF_AGE: "1"})), 403)
    assert site.load("tagged") == was
    assert site.commit("tagged", tag("audit-1", first)).status_code == 200


def test_a_table_named_twice_by_two_spellings_is_one_table(site: Site) -> None:
    catalog = site.python(site.rest.uri)
    catalog.create_namespace(("a", "b"))
    made = catalog.create_table(("a", "b", "t"), ROWS.schema)
    for _ in range(2):
        made.append(ROWS, snapshot_properties=LINEAGE)
    first = made.snapshots()[0].snapshot_id
    changes = [
        {"identifier": {"namespace": levels, "name": "t"}, "requirements": [], "updates": [update]}
        for levels, update in ((["a", "b"], tag("kept", first)), (["a.b"], remove(first)))
    ]
    sent = httpx.post(f"{site.running.uri}/v1/transactions/commit", json={"table-changes": changes})
    assert "are the same table" in told(sent, 400)
    after = made.refresh()
    assert "kept" not in after.refs() and first in [each.snapshot_id for each in after.snapshots()]
    path = f"{site.running.uri}/v1/namespaces/a%1Fb/tables/t"
    assert httpx.post(path, json={"updates": [tag("kept", first)]}).status_code == 200, "its turn is free"


def test_rules_that_were_made_elsewhere_are_not_switched_off_by_a_property(site: Site) -> None:
    site.table("switched", 2)
    first = ids(site.load("switched"))[0]
    assert site.commit("switched", tag("audit-1", first)).status_code == 200
    key = "lakewarden.protected_tags"
    assert key in told(site.commit("switched", setting(**{key: "nothing"})), 403)
    assert "audit-1" in told(site.commit("switched", drop("audit-1")), 403)
    # Nobody said anything about this one but the table itself.
    keys = "lakewarden.lineage_required_keys"
    assert site.commit("switched", setting(**{keys: "team"})).status_code == 200
    with site.running.state() as state:
        stored = {"lineage_required_keys": ["desk"]}
        StoredPolicies(state).set(f"{site.name}.db.switched", stored, None, clock.now())
    assert keys in told(site.commit("switched", unsetting(keys)), 403)
    assert site.load("switched")["properties"][keys] == "team"


def test_a_property_that_cannot_be_read_does_not_get_into_the_table(site: Site) -> None:
    site.table("typo")
    for wrong in ({"lakewarden.typo": "1"}, {"lakewarden.snapshot_expiry_reserved": "perhaps"}):
        assert next(iter(wrong)) in told(site.commit("typo", setting(**wrong)), 403)
    python = site.python().load_table("db.typo")
    python.append(ROWS, snapshot_properties=LINEAGE)
    # One that came by another way is told with every commit, and can be taken out.
    assert site.commit("typo", setting(**{"lakewarden.typo": "1"}), uri=site.rest.uri).status_code == 200
    assert site.commit("typo", setting(**{"lakewarden.cost_tier": "x"})).status_code == 403
    assert site.commit("typo", setting(comment="x")).status_code == 200
    assert "lakewarden.typo" in told(site.commit("typo", tag("t", ids(site.load("typo"))[0])), 403)
    assert site.commit("typo", unsetting("lakewarden.typo")).status_code == 200
    python.refresh().append(ROWS, snapshot_properties=LINEAGE)


def test_what_a_refused_create_said_is_not_remembered(site: Site) -> None:
    free = setting(**{"lakewarden.lineage_required_keys": "none"})

    def create(*updates: dict[str, Any], **summary: str) -> httpx.Response:
        snapshot = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "x"}
        adds = {
            "action": "add-snapshot",
            "snapshot": {**snapshot, "summary": {"operation": "append", **summary}},
        }
        body = {"requirements": [{"type": "assert-create"}], "updates": [*updates, adds]}
        return httpx.post(f"{site.running.uri}{TABLES}/never", json=body)

    assert "trigger.type" in told(create(free, **{"trigger.type": "bogus"}), 403)
    assert "writer.id is missing" in told(create(), 403)
    # A name that a client made up is no label and no row: it can send as many as it likes.
    assert "db.never" not in httpx.get(f"{site.running.uri}/metrics").text
    with site.running.state() as state:
        wait_until(lambda: any(each.table == NEW for each in Rejections(state).list()), "it is counted", 5)
        assert f"{site.name}.db.never" not in {each.table for each in Rejections(state).list()}


def test_what_is_very_large_holds_nobody_up_and_is_not_told_in_full(site: Site) -> None:
    site.table("large")
    path = f"{site.running.uri}{TABLES}/large"
    packed = gzip.compress(b'{"updates": [], "x": "' + b" " * (17 << 20) + b'"}')
    assert "too large" in told(httpx.post(path, content=packed, headers={"content-encoding": "gzip"}), 400)
    assert "16 MiB" in told(httpx.post(path, content=b" " * ((16 << 20) + 1), timeout=30), 413)
    snapshot = {
        "snapshot-id": 1,
        "summary": {**LINEAGE, "operation": "append", "trigger.type": "\u00e9" * (1 << 20)},
    }
    sent = site.commit("large", {"action": "add-snapshot", "snapshot": snapshot})
    assert "trigger.type is" in told(sent, 403) and "it is one of schedule" in told(sent, 403)
    assert len(sent.content) < 2000
    many = [tag(f"audit-{each}", ids(site.load("large"))[0]) for each in range(30)]
    assert site.commit("large", *many).status_code == 200
    dropped = told(site.commit("large", *(drop(each["ref-name"]) for each in many)), 403)
    assert "audit-0" in dropped and "and 10 more" in dropped

    def stored() -> list[str]:
        with site.running.state() as state:
            return [each.reason for each in Rejections(state).list(f"{site.name}.db.large")]

    wait_until(lambda: len(stored()) == 1, "the refusal is written down", 5)
    assert len(stored()[0]) < 500


def test_answers_without_a_body_pass_whatever_length_they_tell(tmp_path: Path) -> None:
    """A catalog may say how long the answer is that it does not send."""
    unchanged = b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 20\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(unchanged)

        with gateway(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as running:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(answer)
                found = httpx.get(f"{running.uri}{TABLES}/t", headers={"if-none-match": "x"})
            assert (found.status_code, found.headers["etag"], found.content) == (304, "x", b"")
        assert "Traceback" not in (tmp_path / "gateway.log").read_text("utf-8")


def test_a_state_database_that_can_only_be_read_changes_no_answer_and_tells_nothing_of_itself(
    site: Site, pg_database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    site.table("failover", 3)
    first, second, _ = ids(site.load("failover"))
    with (
        wire(site.rest.port) as line,
        gateway(tmp_path, line.uri, pg_database.url, catalog=site.name) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        line.hold_at = b"remove-snapshots"
        removal = pool.submit(site.commit, "failover", remove(first), uri=running.uri)
        assert line.holding.wait(20)
        with psycopg.connect(postgres._admin_dsn(), autocommit=True) as admin:
            admin.execute(f'alter database "{pg_database.name}" set default_transaction_read_only = on')
            backends = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
            admin.execute(backends, (pg_database.name,))
        line.go_on.set()
        assert removal.result().status_code == 200, "it happened, and that is what is told"
        assert first not in ids(site.load("failover"))
        answer = told(site.commit("failover", remove(second), uri=running.uri), 503)
        assert "nothing was forwarded" in answer
        assert not any(word in answer.lower() for word in ("insert", "sqlalche", "token", "commit_locks"))
        assert second in ids(site.load("failover"))
