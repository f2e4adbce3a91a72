"""The three ways a commit can end, and runs that find another one open or abandoned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from py4j.protocol import Py4JJavaError

from lakewarden import clock
from lakewarden.errors import Busy, Outage, Unreachable, UsageError
from lakewarden.model.location import normal
from lakewarden.model.run import Owner, RunState, Trigger
from lakewarden.model.table import TableRef
from lakewarden.state.process import current_owner
from lakewarden.tables.iceberg.catalog import IcebergCatalogs
from lakewarden.tables.iceberg.commit import commit
from lakewarden.tables.iceberg.format import Iceberg
from lakewarden.tables.jvm import bridge
from tests.support.lab import Lab
from tests.support.witness import EXPIRE


@contextmanager
def answer_lost(
    lab: Lab,
    *,
    after_commit: bool,
    exception: str = "CommitStateUnknownException",
    then: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """The catalog's answer never arrives: Iceberg's own exception for it, raised after (or instead of) the real commit.

    `then` is what others do right after the first commit.
    """
    jvm = lab.spark._jvm
    real = IcebergCatalogs.__init__

    def init(self: IcebergCatalogs, spark: Any) -> None:
        real(self, spark)
        self.bridge = _Losing(self.bridge, jvm, after_commit, exception, then)

    with patch.object(IcebergCatalogs, "__init__", init):
        lab.lw.close()  # the next call builds its catalogs anew
        yield
    lab.lw.close()


def _none(jvm: Any) -> Any:
    from pyspark import SparkContext

    return SparkContext._active_spark_context._gateway.new_array(jvm.java.lang.Object, 0)


class _Losing:
    def __init__(
        self, bridge: Any, jvm: Any, after_commit: bool, exception: str, then: Callable[[], None]
    ) -> None:
        self._then = then
        self._bridge, self._jvm, self._after, self._exception = bridge, jvm, after_commit, exception

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bridge, name)

    def rewrite(self, *args: Any) -> None:
        if self._after:
            self._bridge.rewrite(*args)
            self._then()
        cause = self._jvm.java.lang.RuntimeException("connection reset")
        kind = getattr(self._jvm.org.apache.iceberg.exceptions, self._exception)
        raise Py4JJavaError(
            "commit", kind(cause) if "Unknown" in self._exception else kind(cause, "taken", _none(self._jvm))
        )


@pytest.mark.main
def test_an_answer_that_got_lost_after_the_commit_is_found_by_run_id(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with answer_lost(lab, after_commit=True):
        run = lab.lw.run("compact", table)
    assert run.state is RunState.DONE
    assert run.snapshot_ids == (lab.snapshots(table)[-1].snapshot_id,)
    assert lab.rows(table) == before
    assert lab.strays(table) == set()


@pytest.mark.main
def test_an_unknown_commit_removes_nothing_and_the_next_run_goes_on(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with answer_lost(lab, after_commit=False):
        run = lab.lw.run("compact", table)
    assert run.state is RunState.UNKNOWN
    assert run.state.exit_code == 14
    assert "connection reset" in run.reason
    assert len(lab.strays(table)) == 1, "the output may be part of the table: it stays"
    assert lab.rows(table) == before
    again = lab.lw.run("compact", table)
    assert again.state is RunState.DONE
    assert lab.rows(table) == before
    assert lab.lw.runs(table)[-1].state is RunState.UNKNOWN, "a slow catalog may still bring it"


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_run_gets_its_real_ending_from_a_later_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    table = lab.messy(files=8, days=1)
    with answer_lost(lab, after_commit=happened), monkeypatch.context() as blind:
        blind.setattr("lakewarden.tables.iceberg.commit.find_commit", lambda *_: None)
        assert lab.lw.run("compact", table).state is RunState.UNKNOWN
    later = clock.now() + timedelta(minutes=11)
    monkeypatch.setattr(clock, "now", lambda: later)
    lab.lw.run("compact", table)
    first = min(lab.lw.runs(table), key=lambda run: run.id)
    assert first.state is (RunState.DONE if happened else RunState.FAILED)
    assert first.reason.startswith("its outcome was unknown; read from the table later")
    assert len(first.snapshot_ids) == int(happened)


def test_conflicts_are_retried_sixteen_times_and_then_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(clock, "sleep", waits.append)
    tries: list[int] = []

    def conflict(_: object) -> bool:
        tries.append(1)
        text = lab.spark.sparkContext._gateway.new_array(lab.spark._jvm.java.lang.Object, 0)
        raise Py4JJavaError(
            "c", lab.spark._jvm.org.apache.iceberg.exceptions.CommitFailedException("taken", text)
        )

    from lakewarden.errors import CommitLost

    with pytest.raises(CommitLost, match="16 times"):
        keys = {"lineage.run_id": "nobody", "lineage.group": "0"}
        commit(IcebergCatalogs(lab.spark), TableRef.parse(lab.create()), keys, conflict, 16)
    assert len(tries) == 16
    assert 0.025 <= waits[0] <= 0.075
    assert waits[3] > waits[0]


@pytest.mark.main
def test_one_run_per_table_and_job(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    lab.lw.journal.start(
        run_id="other",
        table=table,
        job="compact",
        owner=Owner("elsewhere", 1, 1.0),
        trigger=Trigger("schedule"),
        plan={},
        policy={},
        now=clock.now(),
    )
    before = lab.on_disk()
    with pytest.raises(Busy, match="run other is in progress") as caught:
        lab.lw.run("compact", table)
    assert caught.value.exit_code == 11
    assert lab.on_disk() == before
    assert lab.lw.run("rewrite-manifests", table).state is RunState.NOTHING_TO_DO, "another job may run"


@pytest.mark.main
@pytest.mark.parametrize("taker", [Owner("elsewhere", 1, 1.0), None])
def test_a_run_that_was_taken_over_stops_before_its_commit(lab: Lab, taker: Owner | None) -> None:
    """By another process, or by this very one: a new driver has a new token."""
    from lakewarden.errors import RunTaken

    table = lab.messy(files=8, days=1)
    count = len(lab.snapshots(table))
    journal = lab.lw.journal
    real = type(journal).step

    def step(self: Any, run_id: str, owner: Owner, name: str, *rest: Any) -> None:
        if name == "committing":
            run = journal.get(run_id)
            assert run is not None
            assert journal.take_over(run, taker or current_owner(), clock.now())
        real(self, run_id, owner, name, *rest)

    with patch.object(type(journal), "step", step), pytest.raises(RunTaken):
        lab.lw.run("compact", table)
    assert len(lab.snapshots(table)) == count


@pytest.mark.main
def test_a_journal_that_fails_after_the_commit_never_costs_a_committed_file(lab: Lab) -> None:
    """The worst moment for the database to go away: the snapshot is there, and nobody could write it down."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    journal = lab.lw.journal
    real = type(journal).step

    def step(self: Any, run_id: str, owner: Owner, name: str, *rest: Any) -> None:
        if name == "committed":
            raise Unreachable(what="the state database", reason="gone")
        real(self, run_id, owner, name, *rest)

    with patch.object(type(journal), "step", step), pytest.raises(Unreachable):
        lab.lw.run("compact", table)
    assert lab.rows(table) == before
    again = lab.lw.run("compact", table)
    assert again.state is RunState.NOTHING_TO_DO, "the same process settles what it had to leave open"
    first = lab.lw.runs(table)[-1]
    assert (first.state, len(first.snapshot_ids)) == (RunState.DONE, 1)


def test_a_commit_that_was_told_lost_but_happened_is_believed_by_the_table_alone(lab: Lab) -> None:
    """A catalog that commits and then reports a conflict makes the retry find its own sources gone."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with answer_lost(lab, after_commit=True, exception="CommitFailedException"):
        run = lab.lw.run("compact", table)
    assert run.state is RunState.DONE, run.reason
    assert lab.rows(table) == before
    assert lab.strays(table) == set()


def test_a_task_that_dies_skips_its_partition_and_leaves_no_file(lab: Lab) -> None:
    table = lab.messy(files=8, days=2)
    before = lab.rows(table)

    def no_room(task: Any) -> None:
        raise MemoryError("no room for it")

    with patch("lakewarden.rewrite.arrow.rewrite", no_room):
        run = lab.lw.run("compact", table)
    assert run.state is RunState.FAILED
    assert "MemoryError: no room for it" in run.reason
    assert lab.rows(table) == before
    assert lab.strays(table) == set()


def test_a_manual_run_needs_an_operator_and_an_incident_a_ticket(lab: Lab) -> None:
    for trigger in ({"type": "manual"}, {"type": "incident-response"}, {"type": "whim"}, {"who": "me"}):
        with pytest.raises(UsageError):
            lab.lw.run("compact", lab.table(), trigger=trigger)


def test_files_of_a_commit_that_was_told_lost_stay_though_its_snapshot_is_gone(lab: Lab) -> None:
    """The catalog committed, we heard a conflict, and another tool appended and expired our snapshot: the head names our files."""
    table = lab.messy(files=8, days=1)
    before = len(lab.rows(table))
    with answer_lost(
        lab,
        after_commit=True,
        exception="CommitFailedException",
        then=lambda: _others_expire(lab, table),
    ):
        run = lab.lw.run("compact", table)
    assert len(lab.rows(table)) == before + 10
    assert run.state is RunState.DONE, run.reason
    assert run.counters["files_compacted"] == 8
    assert lab.strays(table) == set()


def test_outputs_stay_where_the_table_cannot_be_asked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told lost, and the metadata cannot be read at that moment: unknown, and everything stays."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)

    with (
        answer_lost(lab, after_commit=False, exception="ValidationException"),
        monkeypatch.context() as away,
    ):
        away.setattr(Iceberg, "reached", _unreadable)
        run = lab.lw.run("compact", table)
    assert run.state is RunState.UNKNOWN, run.reason
    assert len(lab.strays(table)) == 1
    assert lab.rows(table) == before


MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.delete.granularity": "partition",
    "write.distribution-mode": "none",
}
# Delete files are merged, and no data file is rewritten.
MERGE_ONLY = {
    "delete_compaction_min_deletes": 1000,
    "delete_compaction_ratio": 1,
    "rewrite_min_input_files": 2,
}


@contextmanager
def lying_catalog(
    lab: Lab, status: int, *, passed: str = "first", others: str = "", answers_after_ms: int = 0
) -> Iterator[Any]:
    """The catalog answers the first commit with this HTTP status, whatever becomes of it: see LyingOperations.java."""
    lies = bridge(
        lab.spark, Path("tests/support/LyingOperations.java").resolve(), "lakewarden.tests.LyingOperations"
    )
    lies.reset(1, status, passed, others, answers_after_ms)
    real = IcebergCatalogs.sought
    with patch.object(IcebergCatalogs, "sought", lambda self, table: lies.lying(real(self, table))):
        yield lies


def assert_whole(lab: Lab, table: str, before: list[Any]) -> None:
    """Every snapshot can be read, and the head has these rows."""
    assert lab.rows(table) == before
    for snapshot in lab.snapshots(table):
        lab.rows(table, f"version as of {snapshot.snapshot_id}")
    assert lab.lw.fsck(table).healthy


@pytest.mark.parametrize("status", [409, 401, 403, 404, 400, 422, 503])
@pytest.mark.parametrize("job", ["compact", "rewrite-manifests"])
def test_manifests_of_a_commit_that_was_told_lost_stay(lab: Lab, job: str, status: int) -> None:
    """Iceberg's library removes the manifests of a commit that the catalog says it refused, in whichever words."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with lying_catalog(lab, status):
        run = lab.lw.run(job, table, {"manifest_rewrite_min_manifests": 2})
    assert_whole(lab, table, before)
    assert run.state is RunState.DONE, run.reason
    assert lab.strays(table) == set()


@pytest.mark.parametrize("others", ["expire", "rewrite"])
@pytest.mark.parametrize("job", ["compact", "rewrite-manifests"])
def test_manifests_stay_that_another_snapshot_took_over(lab: Lab, job: str, others: str) -> None:
    """Another tool expired our snapshot before we asked. A later snapshot names our manifests, and it need not be a head."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with lying_catalog(lab, 409, others=others):
        run = lab.lw.run(job, table, {"manifest_rewrite_min_manifests": 2})
    assert_whole(lab, table, before)
    assert run.state is RunState.DONE, run.reason
    assert lab.strays(table) == set()


@pytest.mark.parametrize("others", ["", "expire", "rewrite", "merge"])
def test_delete_files_stay_that_were_merged_by_a_commit_that_was_told_lost(lab: Lab, others: str) -> None:
    """Iceberg's own action erases the delete files it wrote. Another tool merged their manifests, and expired our snapshot."""
    table = lab.create("id bigint, s string", "", **{"format-version": "2", **MERGE_ON_READ})
    lab.sql(f"insert into {table} select id, 'x' from range(0, 80, 1, 1)")
    for key in (0, 2, 4):
        lab.sql(f"delete from {table} where id in ({key}, {key + 41})")
    before = lab.rows(table)
    with lying_catalog(lab, 409, others=others):
        run = lab.lw.run("compact-deletes", table, MERGE_ONLY)
    assert_whole(lab, table, before)
    assert run.state is RunState.DONE, run.reason


def test_delete_files_of_a_merge_that_really_lost_are_written_again(lab: Lab) -> None:
    table = lab.create("id bigint, s string", "", **{"format-version": "2", **MERGE_ON_READ})
    lab.sql(f"insert into {table} select id, 'x' from range(0, 80, 1, 1)")
    for key in (0, 2, 4):
        lab.sql(f"delete from {table} where id in ({key}, {key + 41})")
    before = lab.rows(table)
    with lying_catalog(lab, 409, passed="never"):
        run = lab.lw.run("compact-deletes", table, MERGE_ONLY)
    assert run.state is RunState.DONE, run.reason
    assert_whole(lab, table, before)
    assert len(lab.strays(table)) == 1, "what the lost try wrote stays until a sweep"


@pytest.mark.parametrize("status", [409, 403, 400])
def test_an_expiry_that_was_told_refused_is_believed_by_the_table_alone(lab: Lab, status: int) -> None:
    table = lab.messy(files=3, days=1)
    before = lab.rows(table)
    with lying_catalog(lab, status):
        run = lab.lw.run("expire", table, EXPIRE)
    assert len(lab.snapshots(table)) == 1
    assert run.state is RunState.DONE, run.reason
    assert_whole(lab, table, before)


@pytest.mark.parametrize("status", [401, 403, 404, 400, 422])
def test_a_plain_refusal_fails_and_removes_nothing(lab: Lab, status: int) -> None:
    """A proxy repeats a request after milliseconds: the copy that was refused need not be the only one."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with lying_catalog(lab, status, passed="never"):
        run = lab.lw.run("compact", table)
    assert run.state is RunState.FAILED, run.reason
    assert f"the catalog refused it (answer {status}" in run.reason
    assert len(lab.strays(table)) == 1 and "stays until a sweep" in run.reason
    assert_whole(lab, table, before)
    assert lab.lw.run("compact", table).state is RunState.DONE


@pytest.mark.parametrize(
    ("status", "answers_after_ms", "state"),
    [
        (503, 0, RunState.UNKNOWN),
        (403, 1100, RunState.UNKNOWN),
        (401, 1100, RunState.UNKNOWN),
        (403, 0, RunState.FAILED),
        (400, 300, RunState.FAILED),
    ],
)
def test_a_commit_that_comes_after_the_answer_finds_its_files(
    lab: Lab, status: int, answers_after_ms: int, state: RunState
) -> None:
    """A refusal may be the answer to a repeated request, while the first copy is still on its way."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with lying_catalog(lab, status, passed="late", answers_after_ms=answers_after_ms) as lies:
        run = lab.lw.run("compact", table)
        assert run.state is state, run.reason
        assert f"answer {status}" in run.reason
        assert len(lab.strays(table)) == 1
        assert lies.arrive()
    assert_whole(lab, table, before)
    assert lab.strays(table) == set()
    lab.lw.run("compact", table)
    if state is RunState.UNKNOWN:  # a run that is over stays as it was told
        assert lab.lw.runs(table)[-1].state is RunState.DONE


@pytest.mark.parametrize("passed", ["read", "tried"])
def test_a_commit_that_comes_during_the_next_try_of_the_library_stays(lab: Lab, passed: str) -> None:
    """The library tries again after a conflict, and would remove the manifests of the first try, which was taken after all."""
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with lying_catalog(lab, 409, passed=passed):
        run = lab.lw.run("compact", table)
    assert_whole(lab, table, before)
    assert run.state is RunState.DONE, run.reason
    assert lab.strays(table) == set()


def test_a_try_that_really_lost_leaves_no_manifest_list(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    before = lab.rows(table)
    with lying_catalog(lab, 409, passed="never"):
        run = lab.lw.run("compact", table)
    assert run.state is RunState.DONE, run.reason
    assert_whole(lab, table, before)
    lists = [path for path in lab.on_disk() if Path(path).match("metadata/snap-*.avro")]
    assert len(lists) == len(lab.snapshots(table))


def _others_expire(lab: Lab, table: str) -> None:
    """Another tool appends, and expires every snapshot but its own."""
    lab.append(table, 1, rows=10, days=1, start=100_000)
    name = table.split(".", 1)[1]
    lab.sql(
        f"call {lab.catalog}.system.expire_snapshots("
        f"table => '{name}', older_than => current_timestamp(), retain_last => 1)"
    )


def test_an_outage_while_planning_is_journaled_as_a_failed_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no mistake of the call: the table's history shows that the job did not run, and why."""
    table = lab.messy(files=4, days=1)

    def away(*_: Any) -> Any:
        raise Unreachable(what="catalog lake", reason="connection refused", kind=Outage.CATALOG)

    with monkeypatch.context() as broken, pytest.raises(Unreachable):
        broken.setattr(Iceberg, "files", away)
        lab.lw.run("compact", table)
    (run,) = lab.lw.runs(table)
    assert (run.state, run.reason) == (RunState.FAILED, "cannot reach catalog lake: connection refused")
    with pytest.raises(UsageError):
        lab.lw.run("compact", table, {"rewrite_branch": "nowhere"})
    assert len(lab.lw.runs(table)) == 1, "a call that is wrong is nothing about the table"


def _unreadable(*_: Any) -> Any:
    raise Unreachable(what="a manifest", reason="the store is away")


def test_an_unknown_run_stays_unknown_while_the_table_cannot_be_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lab.messy(files=8, days=1)
    with (
        answer_lost(lab, after_commit=True, then=lambda: _others_expire(lab, table)),
        monkeypatch.context() as blind,
    ):
        blind.setattr("lakewarden.tables.iceberg.commit.find_commit", lambda *_: None)
        first = lab.lw.run("compact", table)
    assert first.state is RunState.UNKNOWN
    later = clock.now() + timedelta(minutes=11)
    monkeypatch.setattr(clock, "now", lambda: later)
    with monkeypatch.context() as away:
        away.setattr(Iceberg, "reached", _unreadable)
        lab.lw.run("compact", table)
    found = lab.lw.journal.get(first.id)
    assert found is not None and found.state is RunState.UNKNOWN, found
    lab.lw.run("compact", table)
    found = lab.lw.journal.get(first.id)
    assert found is not None and found.state is RunState.DONE, found


def test_an_abandoned_run_is_unknown_while_the_table_cannot_be_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lab.messy(files=8, days=1)
    journal = lab.lw.journal
    real = type(journal).step

    def step(self: Any, run_id: str, owner: Owner, name: str, *rest: Any) -> None:
        if name == "committed":
            _others_expire(lab, table)
            raise Unreachable(what="the state database", reason="gone")
        real(self, run_id, owner, name, *rest)

    with patch.object(type(journal), "step", step), pytest.raises(Unreachable):
        lab.lw.run("compact", table)
    with monkeypatch.context() as away:
        away.setattr(Iceberg, "reached", _unreadable)
        lab.lw.run("compact", table)
    first = min(lab.lw.runs(table), key=lambda run: run.id)
    assert first.state is RunState.UNKNOWN, first.reason
    assert "because the table cannot be read" in first.reason
    lab.lw.run("compact", table)
    first = min(lab.lw.runs(table), key=lambda run: run.id)
    assert first.state is RunState.DONE, first.reason


def test_an_expiry_that_was_not_sent_is_no_unknown_outcome(lab: Lab) -> None:
    table = lab.messy(files=4, days=1)

    class Fails:
        def expire(self, *_: Any) -> str:
            return str(lab.spark._jvm.java.lang.Long.parseLong("the answer is not JSON"))

    with patch.object(IcebergCatalogs, "expiry", Fails()):
        run = lab.lw.run("expire", table, EXPIRE)
    assert run.state is RunState.FAILED, run.reason
    assert "before it was sent" in run.reason and len(lab.snapshots(table)) == 4


def test_an_error_before_the_commit_was_sent_is_no_unknown_outcome(lab: Lab) -> None:
    table = lab.messy(files=8, days=1)
    manifest = Path(normal(lab.sql(f"select path from {table}.manifests")[0].path))
    away = manifest.with_suffix(".away")
    with lab.before_commit(lambda: manifest.rename(away)):
        run = lab.lw.run("compact", table)
    away.rename(manifest)
    assert run.state is RunState.FAILED, run.reason
    assert "before it was sent" in run.reason and manifest.name in run.reason
    assert lab.lw.run("compact", table).state is RunState.DONE
