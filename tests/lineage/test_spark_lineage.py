"""Spark writers say their lineage once: for a session, or for one write."""

from __future__ import annotations

from typing import Any

import pytest

import lakewarden
from lakewarden.lineage.validate import Requirements, validate
from lakewarden.policy.keys import key
from tests.support.lab import Lab

pytestmark = pytest.mark.main

ASKED = Requirements(key("lineage_required_keys").default, frozenset({"append", "merge"}))
SAID = {"writer_id": "ingest", "commit_hash": "ab12cd", "invocation_id": "run-7"}


def summaries(lab: Lab, table: str) -> list[dict[str, Any]]:
    return [{**row.summary, "operation": row.operation} for row in lab.snapshots(table)]


def test_every_write_of_the_session_carries_it(lab: Lab) -> None:
    table = lab.create(partition="d")
    with lakewarden.lineage(**SAID, operation="merge", inputs=[42]).on(lab.spark):
        lab.append(table, 2)
        lab.sql(f"delete from {table} where id = 3")
        lab.sql(f"delete from {table} where d = date'2024-03-01'")
        lab.sql(f"update {table} set s = 'x' where id = 5")
        lab.sql(
            f"merge into {table} t using (select 7L as id) u on t.id = u.id when matched then update set s = 'y'"
        )
        lab.sql(f"insert overwrite {table} select * from {table} where id < 100")
    found = summaries(lab, table)
    assert {each["operation"] for each in found} >= {"append", "overwrite", "delete"}
    for each in found:
        assert validate(each, ASKED) == (), each
        assert (each["writer.id"], each["input.snapshot_ids"], each["lineage.operation"]) == (
            "ingest",
            "42",
            "merge",
        )
    lab.append(table, 1, start=10_000)
    assert "writer.id" not in summaries(lab, table)[-1], "after the `with` the session says nothing"


def test_one_write_carries_it(lab: Lab) -> None:
    table = lab.create(columns="id bigint", partition="")
    rows = lab.spark.range(5).toDF("id")
    rows.writeTo(table).options(**lakewarden.lineage(**SAID).options()).append()
    rows.writeTo(table).append()
    first, second = summaries(lab, table)
    assert validate(first, ASKED) == () and first["lineage.operation"] == "append"
    assert "writer.id" not in second


def test_a_session_that_says_something_else_forgets_what_it_said(lab: Lab) -> None:
    table = lab.create(columns="id bigint", partition="")
    with lakewarden.lineage(**SAID, ticket="INC-1").on(lab.spark):
        with lakewarden.lineage(**{**SAID, "writer_id": "repair"}).on(lab.spark):
            lab.sql(f"insert into {table} values (1)")
        lab.sql(f"insert into {table} values (2)")
    inner, outer = summaries(lab, table)
    assert inner["writer.id"] == "repair" and "trigger.ticket" not in inner
    assert outer["writer.id"] == "ingest" and outer["trigger.ticket"] == "INC-1"
