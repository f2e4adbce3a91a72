"""The age of a proof counts per table: a lake that takes longer to read than a reading counts can be cleaned, and safely."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from lakewarden import clock
from lakewarden.deletion.holds import Holds
from lakewarden.deletion.lake_index import Neighbours
from lakewarden.deletion.permit import PROOF_AGE, TrashedObject, for_trashed
from lakewarden.deletion.proof import Proof, Term
from lakewarden.errors import NoSuchTable, Refused, Unreachable
from lakewarden.model.location import hashes
from lakewarden.model.run import Owner
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.reachability import ReachableFiles
from tests.support.tables import NOW
from tests.support.tables import view as made

OWN = TableRef("lake", ("db",), "t0")
TRASHED = TrashedObject("s3://b/t0/data/a", NOW - timedelta(days=9))


@dataclass
class Lake:
    """Tables whose catalog takes its time, by a clock that moves only here. One call after another: as slow as it can be."""

    tables_: int
    view_seconds: float
    pointer_seconds: float
    reach_seconds: float = 0.0
    now: datetime = NOW
    moved: dict[TableRef, int] = field(default_factory=dict)
    names: dict[TableRef, str] = field(default_factory=dict)
    gone: set[TableRef] = field(default_factory=set)
    dropped: set[TableRef] = field(default_factory=set)
    views: list[TableRef] = field(default_factory=list)
    pointers: list[TableRef] = field(default_factory=list)
    reads: list[TableRef] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def _pass(self, seconds: float) -> None:
        with self._lock:
            self.now += timedelta(seconds=seconds)

    def catalogs(self) -> list[str]:
        return ["lake"]

    def format_of(self, catalog: str) -> Any:
        return self

    def format_for(self, table: TableRef) -> Any:
        return self

    def tables(self, catalog: str) -> list[TableRef]:
        every = (TableRef("lake", ("db",), f"t{number}") for number in range(self.tables_))
        return [each for each in every if each not in self.dropped]

    def view(self, table: TableRef) -> TableView:
        self.views.append(table)
        self._pass(self.view_seconds)
        return self._view(table)

    def version(self, table: TableRef) -> str:
        self.pointers.append(table)
        self._pass(self.pointer_seconds)
        return self._view(table).state_version

    def _view(self, table: TableRef) -> TableView:
        if table in self.gone:
            raise Unreachable(what=f"catalog {table.catalog}", reason="it does not answer")
        if table in self.dropped:
            raise NoSuchTable(table=table, reason="catalog lake has no such table")
        place = f"s3://b/{table.name}"
        metadata = f"{place}/metadata/{self.moved.get(table, 0)}.metadata.json"
        return replace(made(), ref=table, uuid=table.name, location=place, metadata_location=metadata)

    def reached(self, view: TableView, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        self.reads.append(view.ref)
        self._pass(self.reach_seconds)
        numbers = np.unique(hashes([self.names.get(view.ref, f"{view.location}/data/live")]))
        return ReachableFiles(view.ref, view.uuid, view.metadata_location, (1,), numbers)


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """2,000 tables; reading all of them takes 200 seconds, and their pointers 40."""
    slow = Lake(2_000, 0.1, 0.02)
    monkeypatch.setattr(clock, "now", lambda: slow.now)
    monkeypatch.setattr(clock, "monotonic", lambda: slow.now.timestamp())
    yield slow


def around(lake: Lake) -> Neighbours:
    return Neighbours("purge", lake, lake._view(OWN))


def permitted(proof: Proof) -> tuple[str, ...]:
    term = Term("run", Owner("h", 1, 1.0), lambda: 60.0)
    return for_trashed([TRASHED], proof=proof, holds=Holds(), term=term).paths


def test_a_lake_that_takes_longer_than_a_reading_counts_can_be_cleaned(lake: Lake) -> None:
    _, proof = around(lake).prove()
    assert lake.now - NOW > PROOF_AGE, "the lake was read within the time that a reading counts"
    assert permitted(proof) == (TRASHED.path,)
    assert len(proof.reached) == len(lake.reads) == 2_000
    assert len(lake.views) < 2_010 and lake.pointers, "only pointers are asked again"


def test_reading_what_tables_need_may_take_longer_than_a_reading_counts(lake: Lake) -> None:
    lake.view_seconds, lake.reach_seconds = 0.01, 0.5
    _, proof = around(lake).prove()
    assert permitted(proof) == (TRASHED.path,)
    assert len(lake.reads) == 2_000, "what did not move is not read again"


def test_a_table_that_moved_while_the_others_were_read_counts_as_it_is_now(lake: Lake) -> None:
    other = TableRef("lake", ("db",), "t1")
    around_own = around(lake)
    real = lake.reached

    def reached(view: TableView, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        found = real(view)
        if view.ref.name == "t1999" and not lake.moved:
            lake.moved[other], lake.names[other] = 1, TRASHED.path
        return found

    lake.reached = reached  # type: ignore[method-assign]
    _, proof = around_own.prove()
    with pytest.raises(Refused, match=r"lake\.db\.t1 names it"):
        permitted(proof)
    assert lake.reads.count(other) == 2 and len(lake.reads) == 2_001


def test_a_pointer_that_cannot_be_read_again_stops_the_deletion(lake: Lake) -> None:
    neighbours = around(lake)
    neighbours.prove()
    lake.gone.add(TableRef("lake", ("db",), "t7"))
    lake.now += PROOF_AGE
    with pytest.raises(Refused, match=r"lake\.db\.t7 cannot be read, and may need the same files"):
        neighbours.prove()


def test_a_table_dropped_in_between_needs_nothing_any_more(lake: Lake) -> None:
    neighbours = around(lake)
    neighbours.prove()
    lake.dropped.add(TableRef("lake", ("db",), "t7"))
    lake.now += PROOF_AGE
    assert len(neighbours.prove()[1].reached) == 1_999


def test_a_lake_whose_pointers_alone_take_longer_is_refused_by_name(lake: Lake) -> None:
    lake.pointer_seconds = 0.2
    _, proof = around(lake).prove()
    with pytest.raises(
        Refused, match=r"(lake\.db\.t\d+|the list of catalog lake) was read at .*, too long ago"
    ):
        permitted(proof)


def test_a_second_batch_does_not_ask_the_whole_lake_again(lake: Lake) -> None:
    neighbours = around(lake)
    neighbours.prove()
    asked = len(lake.pointers)
    neighbours.prove()
    assert len(lake.pointers) - asked < 1_000


def test_a_commit_to_another_table_after_the_listing_began_counts(lake: Lake) -> None:
    """paimon#3074: sweep checks whose places they are, lists them, and only then may believe what it reads."""
    lake.tables_, other = 3, TableRef("lake", ("db",), "t1")
    neighbours, real = around(lake), lake.reached

    def reached(view: TableView, snapshot_ids: Collection[int] | None = None) -> ReachableFiles:
        lake.names[other] = TRASHED.path if "/1.metadata" in view.metadata_location else "s3://b/t1/data/live"
        return real(view)

    lake.reached = reached  # type: ignore[method-assign]
    neighbours.check()
    lake.moved[other] = 1
    _, proof = neighbours.prove()
    with pytest.raises(Refused, match=r"lake\.db\.t1 names it"):
        permitted(proof)


def test_the_table_itself_is_read_again_for_every_batch(lake: Lake) -> None:
    """iceberg#15487: a commit that came after the first batch was proven names a file of the second one."""
    lake.tables_ = 3
    neighbours = around(lake)
    neighbours.prove()
    lake.moved[OWN], lake.names[OWN] = 1, TRASHED.path
    _, proof = neighbours.prove()
    with pytest.raises(Refused, match=r"lake\.db\.t0 names it"):
        permitted(proof)
