"""The tables that a worker maintains, and their standings. Only the leader writes them, in memory and in the database.

Reading every standing of thousands of tables takes longer than the decision. So the leader reads them when its term begins, and
later only what others may change: policies, suspensions and debts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from lakewarden.config.schema import Config, WorkerConfig
from lakewarden.model.run import RunState
from lakewarden.policy.fleet import FleetJobs
from lakewarden.policy.origin import matches
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.schedule import GONE, PASS, SEEN, TableSchedule, TableSchedules
from lakewarden.state.tables import SeenTable, SeenTables
from lakewarden.worker.schedule import ScheduleSnapshot, TrackedTable, backoff

RUNNING = "running"
_FAILED = RunState.FAILED.value
_TWICE = 2
LEFT_OPEN = "the worker stopped in the middle of it"
NOT_KEPT = "the state database was away when it ended"


def is_tracked(table: str, patterns: Sequence[str]) -> bool:
    """Whether a worker with these patterns maintains the table. A pattern that begins with ! excludes tables."""
    out = [each[1:].strip() for each in patterns if each.startswith("!")]
    in_ = [each for each in patterns if not each.startswith("!")] or ["*"]
    return any(matches(table, each) for each in in_) and not any(matches(table, each) for each in out)


class Tables:
    """The tables as of the last `load` or `refresh`."""

    def __init__(self, state: State, config: Config) -> None:
        self._schedules, self._policies, self._seen = (
            TableSchedules(state),
            StoredPolicies(state),
            SeenTables(state),
        )
        self._cold = ColdTables(state)
        self._config = config
        self._slots: dict[str, dict[str, TableSchedule]] = {}
        self._book = ScheduleSnapshot()
        self._jobs = FleetJobs(config.policy)
        self._tracked_tables: tuple[TrackedTable, ...] = ()

    @property
    def tracked_tables(self) -> tuple[TrackedTable, ...]:
        return self._tracked_tables

    def book(self, at_work: Mapping[str, datetime] | None = None) -> ScheduleSnapshot:
        return replace(self._book, standings=self._slots, at_work=dict(at_work or {}))

    def of(self, table: str, slot: str = PASS) -> TableSchedule | None:
        return self._slots.get(table, {}).get(slot)

    def load(self) -> None:
        """Read everything."""
        self._slots = self._schedules.by_table()
        self.refresh()

    def refresh(self) -> None:
        """Read what others may have changed. The standings of a table that was resumed are read again."""
        suspended = self._schedules.suspended()
        forgiven = {each for each in self._schedules.forgiven() if self._fails(each)}
        for table in (set(self._book.suspended) - set(suspended)) | forgiven:
            self._slots[table] = {each.slot: each for each in self._schedules.of(table)}
        self._book = ScheduleSnapshot(suspended=suspended, debts=self._schedules.debts())
        stored, seen = self._policies.all(), self._seen.all()
        tables = [name for name in self._slots if self._present(name)]
        self._tracked_tables = tuple(
            self._track(name, stored.get(name, {}), seen.get(name)) for name in sorted(tables)
        )
        self._jobs.keep({each.table for each in self._tracked_tables})

    def _fails(self, table: str) -> bool:
        last = self.of(table)
        return last is not None and last.failures > 0

    def _present(self, table: str) -> bool:
        seen = self._slots[table].get(SEEN)
        return seen is not None and seen.state != GONE and is_tracked(table, self._config.worker.tables)

    def discovered(self, tables: Iterable[str], now: datetime, lease_term: int | None) -> tuple[int, int]:
        """`tables` are all that exist now. Returns how many are new and how many are gone."""
        there = {each for each in tables if is_tracked(each, self._config.worker.tables)}
        new = [TableSchedule(each, SEEN, now) for each in sorted(there) if not self._is_known(each)]
        gone = [
            replace(slots[SEEN], state=GONE, ended_at=now)
            for name, slots in self._slots.items()
            if SEEN in slots and slots[SEEN].state != GONE and name not in there
        ]
        if new or gone:
            self.put([*new, *gone], lease_term)
            self.refresh()
        return len(new), len(gone)

    def _is_known(self, table: str) -> bool:
        seen = self.of(table, SEEN)
        return seen is not None and seen.state != GONE

    def put(self, standings: Sequence[TableSchedule], lease_term: int | None) -> bool:
        """Write to the database and to memory. False, and neither is written, if another worker leads now."""
        if not self._schedules.put_all(standings, lease_term):
            return False
        self._note(standings)
        return True

    def change(
        self,
        table: str,
        into: Callable[[TableSchedule | None], Sequence[TableSchedule]],
        lease_term: int | None,
    ) -> Sequence[TableSchedule] | None:
        """Write what `into` makes of the table's pass in the database, to both. None, and neither is written, if another worker leads."""
        made = self._schedules.change(table, into, lease_term)
        self._note(made or ())
        return made

    def _note(self, standings: Sequence[TableSchedule]) -> None:
        for each in standings:
            self._slots.setdefault(each.table, {})[each.slot] = each

    def end_left_open(
        self,
        at_work: Iterable[str],
        now: datetime,
        lease_term: int | None,
        excused: Mapping[str, datetime] | None = None,
    ) -> tuple[str, ...]:
        """End the passes that an earlier leader left open, and return their tables. Each counts as a failure and is tried again.

        `excused` has the passes that ended in this process and could not be written to the database, with their begin. They do
        not count as failures.
        """
        busy, known = set(at_work), excused or {}
        left = [
            name
            for name, each in self._slots.items()
            if PASS in each and each[PASS].state == RUNNING and name not in busy
        ]

        def ended(last: TableSchedule | None) -> Sequence[TableSchedule]:
            if last is None or last.state != RUNNING:
                return ()
            if last.began_at is not None and known.get(last.table) == last.began_at:
                return (_not_kept(last, now),)
            return (_left_open(last, self._config.worker, now),)

        return tuple(name for name in left if self.change(name, ended, lease_term))

    def too_often_left(self) -> tuple[TableSchedule, ...]:
        """Passes that were left open so often in a row that an operator has to look."""
        passes = [each[PASS] for each in self._slots.values() if PASS in each]
        most = self._config.worker.max_failures
        return tuple(each for each in passes if each.left_open >= most and each.state == _FAILED)

    def needs_to_be_alone(self, table: str) -> bool:
        """The worker died twice during its turn. A table whose turn runs beside it would be blamed too the next time."""
        last = self.of(table)
        return last is not None and last.left_open >= _TWICE

    # ------------------------------------------------------------ the jobs of a table

    def _track(self, table: str, stored: Mapping[str, object], seen: SeenTable | None) -> TrackedTable:
        since = self._slots[table][SEEN].began_at
        properties = seen.properties if seen else {}
        # Asked each time: a cold table is made before the first copy in it is recorded.
        live = self._cold.source(properties, seen.uuid) if seen else ""
        assert since is not None, "a table that is seen is seen at some time"
        found = self._jobs.of(table, properties, stored, live)
        return TrackedTable(table, since, found.jobs, found.off)


def _not_kept(last: TableSchedule, now: datetime) -> TableSchedule:
    """Not a failure of the table. The result of the pass is lost, so it is tried again at once."""
    return replace(last, state="interrupted", reason=NOT_KEPT, ended_at=now, retry_at=now, left_open=0)


def _left_open(last: TableSchedule, config: WorkerConfig, now: datetime) -> TableSchedule:
    """The first time may have been chance: the pass is tried again at once."""
    left = last.left_open + 1
    return replace(
        last,
        state=_FAILED,
        reason=LEFT_OPEN,
        ended_at=now,
        failures=last.failures + 1,
        retry_at=now if left == 1 else now + backoff(left, config),
        left_open=left,
    )
