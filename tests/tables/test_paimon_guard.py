"""Which Paimon catalogs leave their writers at risk, and that a lost lock stops a commit before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lakewarden.cli.doctor import _proof, _writers
from lakewarden.config.schema import CatalogConfig
from lakewarden.errors import CommitLost, CommitUnknown
from lakewarden.model.table import TableRef
from lakewarden.tables.paimon.commit import HeldLock, commit, commit_risk

TABLE = TableRef("pm", ("db",), "events")


@pytest.mark.parametrize(
    ("at_risk", "properties"),
    [
        (True, {"warehouse": "/lake"}),
        (True, {"warehouse": "file:/lake"}),
        (True, {"warehouse": "s3://lake"}),
        (
            True,
            {"warehouse": "s3://lake", "lock.enabled": "true"},
        ),  # a plain filesystem catalog has none to take
        (True, {"warehouse": "/lake", "metastore": "jdbc"}),  # off by itself on a disk
        (True, {"warehouse": "s3://lake", "metastore": "jdbc", "lock.enabled": "false"}),
        (False, {"warehouse": "/lake", "metastore": "jdbc", "lock.enabled": "true"}),
        (False, {"warehouse": "s3://lake", "metastore": "jdbc"}),
        (False, {"warehouse": "s3://lake", "metastore": "hive"}),
        (False, {"warehouse": "s3://lake", "lock.type": "jdbc"}),
        (False, {"warehouse": "lake", "metastore": "rest"}),
        (False, {"warehouse": "hdfs://node/lake"}),
    ],
)
def test_catalogs_without_a_lock_are_known(at_risk: bool, properties: dict[str, str]) -> None:
    assert bool(commit_risk(properties)) is at_risk
    told = list(_writers(CatalogConfig(name="pm", format="paimon", properties=properties)))
    assert [each.name for each in told] == (["writers of pm"] if at_risk else [])
    assert not list(_writers(CatalogConfig(name="lake", format="iceberg", properties=properties)))


def test_a_lost_lock_stops_the_commit_before_it_begins() -> None:
    class Lost:
        def check(self) -> None:
            raise CommitLost(table=TABLE, reason="its lock ran out")

        def lasts(self) -> bool:
            return False

    @contextmanager
    def lock() -> Iterator[HeldLock]:
        yield Lost()

    with pytest.raises(CommitLost, match="ran out"):
        commit(TABLE, {}, lambda: pytest.fail("it committed"), lambda _: 1, lock())


@pytest.mark.parametrize("found", [7, None])
def test_a_commit_whose_lock_did_not_last_is_believed_only_if_the_table_shows_it(found: int | None) -> None:
    class RanOut:
        def check(self) -> None:
            return None

        def lasts(self) -> bool:
            return False

    @contextmanager
    def lock() -> Iterator[HeldLock]:
        yield RanOut()

    if found is not None:
        assert commit(TABLE, {}, lambda: 6, lambda _: found, lock()) == found
        return
    with pytest.raises(CommitUnknown, match="its lock could not be renewed during the commit"):
        commit(TABLE, {}, lambda: 6, lambda _: found, lock())


def test_the_doctor_says_what_the_proof_of_every_table_rests_on() -> None:
    (folder,) = _proof(CatalogConfig(name="lake", format="iceberg", properties={"type": "hadoop"}))
    assert "every folder of the warehouse" in folder.found and "complete = false" in folder.advice
    (rest,) = _proof(CatalogConfig(name="lake", format="iceberg", properties={"type": "rest"}))
    assert "to this principal" in rest.found
    (less,) = _proof(
        CatalogConfig(name="lake", format="iceberg", properties={"type": "rest"}, complete=False)
    )
    assert "nothing outside a table's own folders is deleted" in less.found
