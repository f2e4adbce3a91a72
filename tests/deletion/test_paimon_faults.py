"""expire and purge of a Paimon table when any one call fails: of the store, of Paimon's library, of the state database.

The n-th call fails, for n = 1, 2, 3 … until a run meets no fault any more; each before it did anything, and after it did
and could not say so. Then the same jobs run again until they are through: every snapshot, tag and branch that is kept
reads the same by Paimon's own reader, and the files are exactly those of a run that nothing disturbed. Every so
many calls are taken always, each by `make crash`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from lakewarden.errors import LakewardenError, Unreachable
from lakewarden.jobs.purge import execute
from lakewarden.model.run import RunState
from lakewarden.model.table import TableRef
from lakewarden.rewrite.metadata.bulk import MetadataFiles
from lakewarden.state.database import State
from lakewarden.state.runs import Journal
from lakewarden.storage.objects import Objects
from lakewarden.tables.jvm import JavaError, bridge
from lakewarden.tables.paimon.catalog import PaimonCatalogs
from lakewarden.tables.paimon.errors import catalog_error
from tests.support.paimon import PaimonLab, paimon_lab
from tests.support.undisturbed import EXPIRE, PURGE, Original, both
from tests.support.witness import later

pytestmark = pytest.mark.services

# A case takes every `apart`th call from the `first` on. All the nightly cases together take each call.
CASES = [(1, 41), *(pytest.param(first, 10, marks=pytest.mark.nightly) for first in range(1, 11))]
MOST = 500
FAULTY = Path(__file__).parents[1] / "support" / "PaimonFaults.java"


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    with paimon_lab(spark, tmp_path_factory.mktemp("faults")) as lab:
        yield Original.make(lab)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "LOCAL_BATCH", 12)


def disturbed(lab: PaimonLab, table: str) -> None:
    """Both jobs, among calls that fail: what they raise is told to a user, or is the fault itself."""
    for job, policy in (("expire", EXPIRE), ("purge", PURGE)):
        try:
            run = lab.lw.run(job, table, policy)
        except LakewardenError as error:
            assert error.message
        except (OSError, Py4JError) as error:
            assert "injected" in str(error)
        else:
            assert run.reason or run.state in (RunState.DONE, RunState.NOTHING_TO_DO)


def every_fault(
    original: Original, first: int, apart: int, failing: Callable[[int], Any], calls: Callable[[], int]
) -> int:
    """A fault at the first call, and so on until no run meets one; how many there were."""
    lab = original.lab
    for faults, nth in enumerate(range(first, MOST, apart)):
        with original.copied() as copy:
            with failing(nth):
                disturbed(lab, copy)
            if calls() < nth:
                original.intact(copy)
                return faults
            original.nothing_lost(copy)
            # What was unknown is decided after a while, and a lock that could not be given back is over by then.
            with later(minutes=11):
                both(lab, copy)
            original.intact(copy)
            undecided = {run.state for run in lab.lw.runs(copy)} & {RunState.UNKNOWN, RunState.RUNNING}
            assert not undecided
    raise AssertionError(f"there are more than {MOST} calls")


# ------------------------------------------------------------ calls from Python


@dataclass
class Calls:
    """Counts calls, and lets the n-th fail."""

    nth: int = 0
    after: bool = False
    made: int = 0
    names: list[str] = field(default_factory=list)

    def around(
        self, name: str, real: Callable[..., Any], error: Callable[[str], Exception]
    ) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            self.made += 1
            self.names.append(name)
            fails = self.made == self.nth
            if fails and not self.after:
                raise error(f"injected before {name}")
            done = real(*given, **named)
            if fails:
                raise error(f"injected after {name}")
            return done

        return called

    @contextmanager
    def write(self, real: Any, state: State) -> Iterator[Connection]:
        self.made += 1
        self.names.append("state")
        fails = self.made == self.nth
        if fails and not self.after:
            raise Unreachable(what="the state database", reason="injected before a write")
        with real(state) as connection:
            yield connection
        if fails:
            raise Unreachable(what="the state database", reason="injected after a write")


class Counted:
    """A Java helper whose calls are counted."""

    def __init__(self, real: Any, calls: Calls) -> None:
        self._real, self._calls = real, calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.around(f"bridge {name}", getattr(self._real, name), Py4JError)


@contextmanager
def counted(lab: PaimonLab, calls: Calls) -> Iterator[None]:
    """Every call to the store, to Paimon's library, and every write of the state. Beats are of their own time and stay out."""
    catalogs = lab.lw.lake.format_of(lab.catalog)._catalogs  # type: ignore[attr-defined]
    real_write = State.write
    with ExitStack() as patches:
        for name in ("list", "stat", "look", "delete", "read", "remove_empty_folders"):
            real = getattr(Objects, name)
            patches.enter_context(patch.object(Objects, name, calls.around(f"store {name}", real, OSError)))
        decode = calls.around("store decode", MetadataFiles.decode, OSError)
        patches.enter_context(patch.object(MetadataFiles, "decode", decode))
        patches.enter_context(patch.object(catalogs, "bridge", Counted(catalogs.bridge, calls)))
        patches.enter_context(patch.object(State, "write", lambda state: calls.write(real_write, state)))
        patches.enter_context(patch.object(Journal, "beat", lambda *_: True))
        yield


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("first", "apart"), CASES)
def test_every_call_may_fail(original: Original, first: int, apart: int, after: bool) -> None:
    calls = Calls()

    @contextmanager
    def failing(nth: int) -> Iterator[None]:
        calls.nth, calls.after, calls.made = nth, after, 0
        with counted(original.lab, calls):
            yield

    faults = every_fault(original, first, apart, failing, lambda: calls.made)
    kinds = {name.split()[0] for name in calls.names}
    assert kinds == {"store", "bridge", "state"}
    assert faults > 1
    print(f"{faults} faults of {calls.made} calls")


# ------------------------------------------------------------ calls of Paimon's library to the store


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("first", "apart"), CASES)
def test_every_call_of_the_library_to_its_store_may_fail(
    original: Original, first: int, apart: int, after: bool
) -> None:
    """In the middle of dropping snapshots, too: what is gone is gone from the oldest on, and the rest is without a gap."""
    faults = bridge(original.lab.spark, FAULTY, "lakewarden.tests.PaimonFaults")
    real = PaimonCatalogs.load

    def load(self: PaimonCatalogs, table: TableRef) -> Any:
        loaded = real(self, table)
        try:
            return faults.on(loaded)
        except JavaError as error:  # it reads the schema, as a catalog does
            raise catalog_error(error, f"catalog {table.catalog}") from error

    @contextmanager
    def failing(nth: int) -> Iterator[None]:
        faults.set(nth, after)
        with patch.object(PaimonCatalogs, "load", load):
            yield

    found = every_fault(original, first, apart, failing, faults.calls)
    assert found > 1
    print(f"{found} faults of {faults.calls()} calls")
