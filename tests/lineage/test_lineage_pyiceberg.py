"""Python writers: PyIceberg's own catalogs, which ask every commit for its lineage before the pointer moves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

import lakewarden
from lakewarden import Lakewarden, clock
from lakewarden.errors import ConfigError, LineageRejected, UsageError
from lakewarden.lineage import writing
from lakewarden.state.audit_log import Rejections
from lakewarden.state.policies import StoredPolicies

pytestmark = [pytest.mark.services, pytest.mark.main]

IMPL = "lakewarden.lineage.pyiceberg.catalog"
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
SAID = {"writer_id": "ingest", "commit_hash": "ab12cd", "invocation_id": "run-7"}


@pytest.fixture
def lake(tmp_path: Path) -> Lakewarden:
    """Its configuration, as the writers' catalogs name it."""
    (tmp_path / "lakewarden.toml").write_text(
        '[[policy.tables]]\npattern = "lake.free.*"\nlineage_required_keys = "none"\n'
    )
    return Lakewarden.open(tmp_path / "lakewarden.toml")


@pytest.fixture
def catalog(tmp_path: Path, lake: Lakewarden) -> Catalog:
    properties = {
        "py-catalog-impl": IMPL,
        "lakewarden.type": "sql",
        "lakewarden.config": str(tmp_path / "lakewarden.toml"),
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": str(tmp_path / "warehouse"),
    }
    made = load_catalog("lake", **properties)
    made.create_namespace("db")
    made.create_namespace("free")
    return made


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    yield
    writing._of_process = {}


def pointer(catalog: Catalog) -> Any:
    return catalog.load_table("db.events").metadata_location


def test_a_commit_without_lineage_is_turned_away(catalog: Catalog, lake: Lakewarden) -> None:
    table = catalog.create_table("db.events", ROWS.schema)
    before = pointer(catalog)
    with pytest.raises(LineageRejected) as caught:
        table.append(ROWS)
    assert pointer(catalog) == before
    assert catalog.load_table("db.events").current_snapshot() is None
    assert "refusing to commit to lake.db.events" in str(caught.value)
    for key in ("writer.id", "writer.commit_hash", "writer.invocation_id", "lineage.operation"):
        assert f"{key} is missing" in str(caught.value)
    (counted,) = Rejections(lake.state).list()
    assert (counted.table, counted.door, counted.count) == ("lake.db.events", "pyiceberg", 1)
    assert counted.to_dict()["lineage_validation_failures_total"] == 1


def test_what_is_said_once_is_in_every_commit(catalog: Catalog) -> None:
    table = catalog.create_table("db.events", ROWS.schema)
    with lakewarden.lineage(**SAID, inputs=[7, "lake.db.raw@8"]):
        table.append(ROWS)
        with lakewarden.lineage(**SAID, operation="erasure", operator="ana", ticket="GDPR-1"):
            table.delete("id = 2")
    found = [each.summary for each in catalog.load_table("db.events").snapshots()]
    assert [each["lineage.operation"] for each in found if each] == ["append", "erasure"]
    for each in found:
        assert each and each["writer.id"] == "ingest" and each["writer.commit_hash"] == "ab12cd"
        assert each["writer.invocation_id"] == "run-7" and each["input.snapshot_ids"] == "7,lake.db.raw@8"
    with pytest.raises(LineageRejected):
        table.append(ROWS)


def test_an_overwrite_needs_an_operator_and_a_ticket(catalog: Catalog, lake: Lakewarden) -> None:
    table = catalog.create_table("db.events", ROWS.schema)
    with lakewarden.lineage(**SAID):
        table.append(ROWS)
    StoredPolicies(lake.state).set(
        "lake.db.events", {"lineage_overwrite_operators": ["ana"]}, "test", clock.now()
    )
    before = pointer(catalog)
    with (
        lakewarden.lineage(**SAID, operation="overwrite", operator="ben"),
        pytest.raises(LineageRejected) as caught,
    ):
        table.overwrite(ROWS)
    assert "overwrites are allowed only for ana" in str(caught.value) and "trigger.ticket is missing" in str(
        caught.value
    )
    assert pointer(catalog) == before
    with lakewarden.lineage(**SAID, operation="overwrite", operator="ana", ticket="INC-1"):
        table.overwrite(ROWS)
    assert pointer(catalog) != before


def test_an_overwrite_by_another_word_is_one(catalog: Catalog) -> None:
    """PyIceberg's overwrite is a delete and an append in one commit: together they are what they are."""
    table = catalog.create_table("db.events", ROWS.schema)
    with lakewarden.lineage(**SAID):
        table.append(ROWS)
        before = pointer(catalog)
        with pytest.raises(LineageRejected, match="an overwrite names who triggered it"):
            table.overwrite(ROWS)
    for word in ("backfill", "Overwrite", "overwrite "):
        with (
            lakewarden.lineage(**SAID, operation=word),
            pytest.raises(LineageRejected, match="an overwrite names its ticket"),
        ):
            table.delete("id = 2")
    assert pointer(catalog) == before
    with table.transaction() as change:
        change.set_properties({"lakewarden.lineage_allowed_operations": "append, merge"})
    with lakewarden.lineage(**SAID, operation="merge"):
        catalog.load_table("db.events").delete("id = 2")  # the table says that its pipelines merge
    assert pointer(catalog) != before


def test_what_the_table_asks_for_now_counts(catalog: Catalog) -> None:
    old = catalog.create_table("db.events", ROWS.schema)
    with catalog.load_table("db.events").transaction() as change:
        change.set_properties({"lakewarden.lineage_required_keys": "lineage.team"})
    with lakewarden.lineage(**SAID), pytest.raises(LineageRejected, match=r"lineage\.team is missing"):
        old.append(ROWS)


def test_values_that_are_no_text_are_nobodys_lineage(catalog: Catalog) -> None:
    table = catalog.create_table("db.events", ROWS.schema)
    odd: dict[str, Any] = {"writer.id": ["x"], "trigger.type": {"a": 1}}
    with (
        lakewarden.lineage(**SAID),
        pytest.raises(LineageRejected, match=r"writer\.id is .*: it is not text"),
    ):
        table.append(ROWS, snapshot_properties=odd)


def test_one_lineage_entered_twice_and_in_several_places() -> None:
    said = lakewarden.lineage(**SAID)
    with said, said:
        pass
    assert writing.said({}) == {}
    found: list[dict[str, str]] = []

    async def task() -> None:
        with said:
            await asyncio.sleep(0.01)
            found.append(writing.said({}))

    async def both() -> None:
        await asyncio.gather(task(), task())

    asyncio.run(both())
    assert [each["writer.id"] for each in found] == ["ingest", "ingest"] and writing.said({}) == {}
    with pytest.raises(UsageError, match="it is a single string"):
        lakewarden.lineage("w", inputs="123")


def test_a_process_says_it_for_its_threads_and_a_with_for_its_own(catalog: Catalog) -> None:
    lakewarden.lineage(**SAID).for_process()
    table = catalog.create_table("db.events", ROWS.schema)
    with lakewarden.lineage(writer_id="repair", commit_hash="ff00"):
        thread = threading.Thread(target=lambda: catalog.load_table("db.events").append(ROWS))
        thread.start()
        thread.join()
        table = catalog.load_table("db.events")
        table.append(ROWS)
    writers = [
        each.summary["writer.id"] for each in catalog.load_table("db.events").snapshots() if each.summary
    ]
    assert writers == ["ingest", "repair"]


def test_what_the_commit_says_itself_stays(catalog: Catalog) -> None:
    table = catalog.create_table("db.events", ROWS.schema)
    with lakewarden.lineage(**SAID):
        table.append(ROWS, snapshot_properties={"writer.id": "by-hand", "mine": "1"})
    summary = catalog.load_table("db.events").current_snapshot().summary  # type: ignore[union-attr]
    assert summary and summary["writer.id"] == "by-hand" and summary["mine"] == "1"


def test_policy_decides_by_table(catalog: Catalog) -> None:
    catalog.create_table("free.events", ROWS.schema).append(ROWS)
    own = catalog.create_table(
        "db.events", ROWS.schema, properties={"lakewarden.lineage_required_keys": "writer.id, lineage.team"}
    )
    with lakewarden.lineage(**SAID), pytest.raises(LineageRejected, match=r"lineage\.team is missing"):
        own.append(ROWS)
    with lakewarden.lineage(**SAID, team="core"):
        own.append(ROWS)


def test_a_table_that_is_created_with_rows_is_asked_too(catalog: Catalog) -> None:
    with (
        pytest.raises(LineageRejected),
        catalog.create_table_transaction("db.events", ROWS.schema) as creating,
    ):
        creating.append(ROWS)
    assert not catalog.table_exists("db.events")
    with lakewarden.lineage(**SAID), catalog.create_table_transaction("db.events", ROWS.schema) as creating:
        creating.append(ROWS)
    assert catalog.load_table("db.events").scan().to_arrow().num_rows == 3


def test_without_a_configuration_the_defaults_hold(tmp_path: Path) -> None:
    made = load_catalog(
        "lake",
        **{"py-catalog-impl": IMPL, "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path / "w")},
    )
    made.create_namespace("db")
    table = made.create_table("db.events", ROWS.schema)
    with pytest.raises(LineageRejected):
        table.append(ROWS)
    with lakewarden.lineage(**SAID):
        table.append(ROWS)


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"lakewarden\.type in the PyIceberg catalog lake: found 'sqll'; allowed: rest"
    ):
        load_catalog("lake", **{"py-catalog-impl": IMPL, "lakewarden.type": "sqll"})
    with pytest.raises(ConfigError, match="there is no such file"):
        load_catalog(
            "lake",
            **{
                "py-catalog-impl": IMPL,
                "lakewarden.type": "in-memory",
                "lakewarden.config": str(tmp_path / "no.toml"),
            },
        )
    with pytest.raises(ConfigError, match="neither a type nor a uri is given"):
        load_catalog("lake", **{"py-catalog-impl": IMPL})
    with pytest.raises(UsageError, match="needs a ticket"):
        lakewarden.lineage("w", trigger="incident-response")


def test_the_commit_of_the_build_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SHA", "0123abc")
    assert lakewarden.lineage("w").keys["writer.commit_hash"] == "0123abc"


def test_pyicebergs_own_configuration_is_read(tmp_path: Path) -> None:
    """In a process of its own: PyIceberg reads its file once."""
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lake:\n    type: sql\n    uri: sqlite:///{tmp_path}/c.db\n    warehouse: {tmp_path}/w\n"
    )
    code = (
        "from lakewarden.lineage.pyiceberg import load_catalog\n"
        "import pyarrow as pa\n"
        "made = load_catalog('lake')\n"
        "made.create_namespace('db')\n"
        "made.create_table('db.t', pa.schema([('a', pa.int64())])).append(pa.table({'a': pa.array([1], pa.int64())}))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYICEBERG_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "LineageRejected: refusing to commit to lake.db.t: writer.id is missing" in ran.stderr
    assert "add the lineage that the table requires to the commit" in ran.stderr, (
        "a traceback shows the next step"
    )
