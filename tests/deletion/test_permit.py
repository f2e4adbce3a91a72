"""Leave to erase: only for what a run wrote itself and is in no snapshot, and for trashed files that nobody needs now."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from lakewarden import clock
from lakewarden.deletion.holds import Holds
from lakewarden.deletion.permit import (
    Permit,
    TrashedObject,
    Unnamed,
    ask_table,
    for_native_outputs,
    for_replaced_history,
    for_trashed,
    for_uncommitted_outputs,
    never_sent,
)
from lakewarden.deletion.proof import Proof, Term
from lakewarden.errors import Refused
from lakewarden.jobs.compact.binpack import output_name
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.location import hashes
from lakewarden.model.run import Owner
from lakewarden.model.table import TableRef, TableView
from lakewarden.tables.reachability import ReachableFiles
from tests.support.tables import NOW, TABLE
from tests.support.tables import view as view_of_events

RUN = "20240315-120000-abcdef"
OWN = f"/wh/db/t/data/day=1/{output_name(RUN, 0, 0, 128)}0.parquet"


class Named:
    """A table's metadata that names these files."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def view(self, table: TableRef) -> TableView:
        return view_of_events()

    def reached(self, view: TableView) -> ReachableFiles:
        return needs(*self.paths)


def test_outputs_whose_commit_was_never_begun_may_go() -> None:
    assert for_uncommitted_outputs(RUN, [OWN], never_sent([OWN], [3], {1, 2})).paths == (OWN,)
    with pytest.raises(Refused, match="their commit may have happened"):
        never_sent([OWN], [3, 4], {4})


UUID = view_of_events().uuid


def test_a_table_of_another_uuid_says_nothing_about_outputs() -> None:
    """The name leads to another table since: the one that was committed to may name them."""
    with pytest.raises(Refused, match=rf"written for table before.*leads to {UUID} now"):
        ask_table(Named("/wh/other"), TABLE, "before", [OWN])


def test_outputs_that_the_table_does_not_name_may_go() -> None:
    unnamed, named = ask_table(Named("/wh/other"), TABLE, UUID, [OWN])
    assert not named and for_uncommitted_outputs(RUN, [OWN], unnamed).paths == (OWN,)


@pytest.mark.parametrize("spelling", [OWN, f"file:{OWN}", f"file://{OWN}", f"/{OWN}"])
def test_outputs_that_the_table_names_stay_in_whatever_spelling(spelling: str) -> None:
    unnamed, named = ask_table(Named(spelling), TABLE, UUID, [OWN])
    assert named == (OWN,)
    for permit in (for_uncommitted_outputs, for_native_outputs):
        with pytest.raises(Refused, match="their commit may have happened"):
            permit(RUN, [OWN], unnamed)


def test_evidence_cannot_be_made_by_hand() -> None:
    with pytest.raises(Refused, match="the table was not asked"):
        Unnamed(frozenset({OWN}), 0.0, object())


@pytest.mark.parametrize(
    "path",
    [
        "/wh/db/t/data/00000-1-part.parquet",
        f"/wh/db/t/data/{output_name('20240315-120000-other1', 0, 0, 128)}0.parquet",
        f"/wh/lakewarden-{RUN}-x/table-data.parquet",
        f"/wh/db/t/data/lakewarden-{RUN}-00000.metadata.json",
    ],
)
def test_a_file_the_run_did_not_write_is_refused(path: str) -> None:
    with pytest.raises(Refused, match="did not write it"):
        for_uncommitted_outputs(RUN, [OWN, path], never_sent([OWN, path], [0], set()))


def test_a_permit_cannot_be_made_by_hand() -> None:
    with pytest.raises(Refused, match="not granted"):
        Permit(("/wh/x",), "because", object())


# ------------------------------------------------------------ trashed files

OTHER = TableRef("cold", ("db",), "copy")
BATCH = [
    TrashedObject("s3://b/t/a", NOW - timedelta(days=9)),
    TrashedObject("s3://b/t/b", NOW - timedelta(days=9)),
]


def needs(*paths: str, table: TableRef = TABLE) -> ReachableFiles:
    return ReachableFiles(table, "u", "/m", (7, 8), np.unique(hashes(list(paths))))


def proof(*reached: ReachableFiles) -> Proof:
    return Proof(reached, {str(each.table): clock.now() for each in reached})


def term(live: bool = True) -> Term:
    return Term(RUN, Owner("h", 1, 1.0), lambda: 60.0 if live else 0.0)


def test_trashed_files_that_nobody_needs_may_go() -> None:
    permit = for_trashed(BATCH, proof=proof(needs("s3://b/t/c")), holds=Holds(), term=term())
    assert permit.paths == ("s3://b/t/a", "s3://b/t/b")
    assert RUN in permit.why


@pytest.mark.parametrize("spelling", ["s3://b/t/b", "s3a://b/t/b", "s3://b//t/b"])
def test_a_file_any_table_names_is_refused_by_its_name(spelling: str) -> None:
    found = proof(needs("s3://b/t/c"), needs(spelling, table=OTHER))
    with pytest.raises(Refused, match=r"erase s3://b/t/b: cold\.db\.copy names it"):
        for_trashed(BATCH, proof=found, holds=Holds(), term=term())


def test_a_held_file_is_refused_with_its_hold() -> None:
    writer = Hold(HoldKind.WRITER, "etl", "host", prefixes=("s3://b/t/b",))
    with pytest.raises(Refused, match="writer etl holds it"):
        for_trashed(BATCH, proof=proof(needs("/x")), holds=Holds((writer,)), term=term())
    young = Hold(HoldKind.WRITER, "etl", "host", since=NOW - timedelta(days=1))
    assert for_trashed(BATCH, proof=proof(needs("/x")), holds=Holds((young,)), term=term())
    with pytest.raises(Refused, match="writer etl"):
        unknown_age = [TrashedObject("s3://b/t/a", None)]
        for_trashed(unknown_age, proof=proof(needs("/x")), holds=Holds((young,)), term=term())


def test_a_run_that_is_not_ours_any_more_gets_no_permit() -> None:
    with pytest.raises(Refused, match="another process"):
        for_trashed(BATCH, proof=proof(needs("/x")), holds=Holds(), term=term(live=False))


def test_a_proof_of_nothing_proves_nothing() -> None:
    with pytest.raises(Refused, match="no table was looked at"):
        for_trashed(BATCH, proof=proof(), holds=Holds(), term=term())


def test_a_proof_tells_what_was_looked_at() -> None:
    told = proof(needs("/x"), needs("/y", "/z", table=OTHER)).to_dict()
    assert told["snapshot_ids"] == [7, 8]
    assert [(each["table"], each["snapshots"], each["files"]) for each in told["tables"]] == [
        (str(TABLE), 2, 1),
        (str(OTHER), 2, 2),
    ]


def test_a_proof_that_is_too_old_gives_no_permit() -> None:
    """A process that stood still between reading the tables and deleting by it."""
    made = proof(needs("s3://b/t/c"))
    for wrong in (timedelta(minutes=5), -timedelta(minutes=5)):
        stale = Proof(made.reached, {**made.read_at, str(OTHER): clock.now() - wrong})
        with pytest.raises(Refused, match=r"cold\.db\.copy was read at .*, too long ago"):
            for_trashed(BATCH, proof=stale, holds=Holds(), term=term())


def test_a_detail_of_history_goes_only_once_the_index_names_it_no_more() -> None:
    old, new = (f"/wh/db/t/metadata/_lakewarden-history-{RUN}{each}-2024-01.parquet" for each in "12")
    assert for_replaced_history([old], named=[new]).paths == (old,)
    with pytest.raises(Refused, match="the index of the history names it"):
        for_replaced_history([old, new], named=[new])
    for other in (OWN, "/wh/db/t/metadata/v1.metadata.json", f"{old}/x"):
        with pytest.raises(Refused, match="no detail of a history"):
            for_replaced_history([other], named=[])
