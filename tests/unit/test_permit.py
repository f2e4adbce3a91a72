"""Leave to erase: only for what a run wrote itself and what certainly is in no snapshot."""

from __future__ import annotations

import pytest

from lakewarden.errors import Refused
from lakewarden.jobs.packing import output_name
from lakewarden.safety.permit import Permit, for_native_outputs, for_uncommitted_outputs

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
