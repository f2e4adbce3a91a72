"""Leave to erase: only for what a run wrote itself and is in no snapshot, and for doomed files that nobody needs now."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from lakewarden import clock
from lakewarden.errors import Refused
from lakewarden.jobs.packing import output_name
from lakewarden.model import Hold, HoldKind, Owner, TableRef
from lakewarden.paths import hashes
from lakewarden.safety.holds import Holds
from lakewarden.safety.permit import (
    Condemned,
    Permit,
    for_doomed,
    for_native_outputs,
    for_replaced_history,
    for_uncommitted_outputs,
)
from lakewarden.safety.proof import Proof, Term
from lakewarden.safety.reached import Reached
from tests.support.tables import NOW, TABLE

RUN = "20240315-120000-abcdef"
OWN = f"/wh/db/t/data/day=1/{output_name(RUN, 0, 0, 128)}0.parquet"


def test_outputs_whose_commit_was_never_tried_or_is_lost_may_go() -> None:
    assert for_uncommitted_outputs(RUN, [OWN], commit_tried=False, commit_lost=False).paths == (OWN,)
    assert for_uncommitted_outputs(RUN, [OWN], commit_tried=True, commit_lost=True).paths == (OWN,)


def test_an_unknown_commit_gives_no_permit() -> None:
    with pytest.raises(Refused, match="their commit may have happened"):
        for_uncommitted_outputs(RUN, [OWN], commit_tried=True, commit_lost=False)
    with pytest.raises(Refused, match="their commit may have happened"):
        for_native_outputs(RUN, ["/wh/x.parquet"], commit_lost=False)


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
        for_uncommitted_outputs(RUN, [OWN, path], commit_tried=False, commit_lost=False)


def test_a_permit_cannot_be_made_by_hand() -> None:
    with pytest.raises(Refused, match="not granted"):
        Permit(("/wh/x",), "because", object())


# ------------------------------------------------------------ doomed files

OTHER = TableRef("cold", ("db",), "copy")
BATCH = [Condemned("s3://b/t/a", NOW - timedelta(days=9)), Condemned("s3://b/t/b", NOW - timedelta(days=9))]


def needs(*paths: str, table: TableRef = TABLE) -> Reached:
    return Reached(table, "u", "/m", (7, 8), np.unique(hashes(list(paths))))


def proof(*reached: Reached) -> Proof:
    return Proof(reached, clock.now())


def term(live: bool = True) -> Term:
    return Term(RUN, Owner("h", 1, 1.0), lambda: 60.0 if live else 0.0)


def test_doomed_files_that_nobody_needs_may_go() -> None:
    permit = for_doomed(BATCH, proof=proof(needs("s3://b/t/c")), holds=Holds(), term=term())
    assert permit.paths == ("s3://b/t/a", "s3://b/t/b")
    assert RUN in permit.why


@pytest.mark.parametrize("spelling", ["s3://b/t/b", "s3a://b/t/b", "s3://b//t/b"])
def test_a_file_any_table_names_is_refused_by_its_name(spelling: str) -> None:
    found = proof(needs("s3://b/t/c"), needs(spelling, table=OTHER))
    with pytest.raises(Refused, match=r"erase s3://b/t/b: cold\.db\.copy names it"):
        for_doomed(BATCH, proof=found, holds=Holds(), term=term())


def test_a_held_file_is_refused_with_its_hold() -> None:
    writer = Hold(HoldKind.WRITER, "etl", "host", prefixes=("s3://b/t/b",))
    with pytest.raises(Refused, match="writer etl holds it"):
        for_doomed(BATCH, proof=proof(needs("/x")), holds=Holds((writer,)), term=term())
    young = Hold(HoldKind.WRITER, "etl", "host", since=NOW - timedelta(days=1))
    assert for_doomed(BATCH, proof=proof(needs("/x")), holds=Holds((young,)), term=term())
    with pytest.raises(Refused, match="writer etl"):
        unknown_age = [Condemned("s3://b/t/a", None)]
        for_doomed(unknown_age, proof=proof(needs("/x")), holds=Holds((young,)), term=term())


def test_a_run_that_is_not_ours_any_more_gets_no_permit() -> None:
    with pytest.raises(Refused, match="another process"):
        for_doomed(BATCH, proof=proof(needs("/x")), holds=Holds(), term=term(live=False))


def test_a_proof_of_nothing_proves_nothing() -> None:
    with pytest.raises(Refused, match="no table was looked at"):
        for_doomed(BATCH, proof=proof(), holds=Holds(), term=term())


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
    stale = Proof(made.reached, clock.now() - timedelta(minutes=5))
    with pytest.raises(Refused, match="too long ago"):
        for_doomed(BATCH, proof=stale, holds=Holds(), term=term())


def test_a_detail_of_history_goes_only_once_the_index_names_it_no_more() -> None:
    old, new = (f"/wh/db/t/metadata/_lakewarden-history-{RUN}{each}-2024-01.parquet" for each in "12")
    assert for_replaced_history([old], named=[new]).paths == (old,)
    with pytest.raises(Refused, match="the index of the history names it"):
        for_replaced_history([old, new], named=[new])
    for other in (OWN, "/wh/db/t/metadata/v1.metadata.json", f"{old}/x"):
        with pytest.raises(Refused, match="no detail of a history"):
            for_replaced_history([other], named=[])
