"""The tables a worker looks after, and the book about them: kept in memory by the leader, who alone writes it, and in the database.

Reading every standing of thousands of tables takes longer than deciding who is due, so it is read when a term begins, and
what others may change (policies, suspensions, debts) from time to time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from lakewarden.config.schema import Config, WorkerConfig
from lakewarden.model.run import RunState
from lakewarden.policy.fleet import FleetJobs
from lakewarden.policy.patterns import matches
from lakewarden.state.cold import ColdTables
from lakewarden.state.database import State
from lakewarden.state.policies import Policies
from lakewarden.state.schedule import GONE, PASS, SEEN, Standing, Standings
from lakewarden.state.tables import Seen, SeenTables
from lakewarden.worker.schedule import Book, Charge, backoff

RUNNING = "running"
_FAILED = RunState.FAILED.value
_TWICE = 2
LEFT_OPEN = "the worker stopped in the middle of it"
NOT_KEPT = "the state database was away when it ended"


def wanted(table: str, patterns: Sequence[str]) -> bool:
    """Whether a worker with these patterns looks after the table; one that begins with ! leaves tables out."""
    out = [each[1:].strip() for each in patterns if each.startswith("!")]
    in_ = [each for each in patterns if not each.startswith("!")] or ["*"]
    return any(matches(table, each) for each in in_) and not any(matches(table, each) for each in out)


class Roster:
    """As of the last look."""

    def __init__(self, state: State, config: Config) -> None:
        self._standings, self._policies, self._seen = Standings(state), Policies(state), SeenTables(state)
        self._cold = ColdTables(state)
        self._config = config
        self._slots: dict[str, dict[str, Standing]] = {}
        self._book = Book()
        self._jobs = FleetJobs(config.policy)
        self._charges: tuple[Charge, ...] = ()

    @property
    def charges(self) -> tuple[Charge, ...]:
        return self._charges

    def book(self, at_work: Mapping[str, datetime] | None = None) -> Book:
        return replace(self._book, standings=self._slots, at_work=dict(at_work or {}))

    def of(self, table: str, slot: str = PASS) -> Standing | None:
        return self._slots.get(table, {}).get(slot)

    def load(self) -> None:
        """Everything, anew."""
        self._slots = self._standings.by_table()
        self.refresh()

    def refresh(self) -> None:
        """What others may have changed. A table that was resumed meanwhile is read again."""
        suspended = self._standings.suspended()
        forgiven = {each for each in self._standings.forgiven() if self._fails(each)}
        for table in (set(self._book.suspended) - set(suspended)) | forgiven:
            self._slots[table] = {each.slot: each for each in self._standings.of(table)}
        self._book = Book(suspended=suspended, debts=self._standings.debts())
        stored, seen = self._policies.all(), self._seen.all()
        tables = [name for name in self._slots if self._present(name)]
        self._charges = tuple(
            self._charge(name, stored.get(name, {}), seen.get(name)) for name in sorted(tables)
        )
        self._jobs.keep({each.table for each in self._charges})

    def _fails(self, table: str) -> bool:
        last = self.of(table)
        return last is not None and last.failures > 0

    def _present(self, table: str) -> bool:
        seen = self._slots[table].get(SEEN)
        return seen is not None and seen.state != GONE and wanted(table, self._config.worker.tables)

    def discovered(self, tables: Iterable[str], now: datetime, lease_term: int | None) -> tuple[int, int]:
        """These are all there are: how many came, and how many went."""
        there = {each for each in tables if wanted(each, self._config.worker.tables)}
        new = [Standing(each, SEEN, now) for each in sorted(there) if not self._is_known(each)]
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

    def put(self, standings: Sequence[Standing], lease_term: int | None) -> bool:
        """Into the database and the book; False, and neither, where another leads by now."""
        if not self._standings.put_all(standings, lease_term):
            return False
        self._note(standings)
        return True

    def change(
        self, table: str, into: Callable[[Standing | None], Sequence[Standing]], lease_term: int | None
    ) -> Sequence[Standing] | None:
        """What `into` makes of the table's pass as the database has it, into both; None, and neither, where another leads."""
        made = self._standings.change(table, into, lease_term)
        self._note(made or ())
        return made

    def _note(self, standings: Sequence[Standing]) -> None:
        for each in standings:
            self._slots.setdefault(each.table, {})[each.slot] = each

    def end_left_open(
        self,
        at_work: Iterable[str],
        now: datetime,
        lease_term: int | None,
        excused: Mapping[str, datetime] | None = None,
    ) -> tuple[str, ...]:
        """Passes that an earlier leader left in the middle: each counts as a failure, and is tried again; their tables.

        `excused` are those that ended in this process and could not be written down, and when they had begun: of the same
        passes nothing is counted.
        """
        busy, known = set(at_work), excused or {}
        left = [
            name
            for name, each in self._slots.items()
            if PASS in each and each[PASS].state == RUNNING and name not in busy
        ]

        def ended(last: Standing | None) -> Sequence[Standing]:
            if last is None or last.state != RUNNING:
                return ()
            if last.began_at is not None and known.get(last.table) == last.began_at:
                return (_not_kept(last, now),)
            return (_left_open(last, self._config.worker, now),)

        return tuple(name for name in left if self.change(name, ended, lease_term))

    def too_often_left(self) -> tuple[Standing, ...]:
        """Passes left in the middle after which somebody has to look: so many in a row no worker has lived to end."""
        passes = [each[PASS] for each in self._slots.values() if PASS in each]
        most = self._config.worker.max_failures
        return tuple(each for each in passes if each.left_open >= most and each.state == _FAILED)

    def needs_to_be_alone(self, table: str) -> bool:
        """The worker was gone twice while it had its turn: who has a turn beside it would be blamed with it the next time."""
        last = self.of(table)
        return last is not None and last.left_open >= _TWICE

    # ------------------------------------------------------------ what a table's policy asks for

    def _charge(self, table: str, stored: Mapping[str, object], seen: Seen | None) -> Charge:
        since = self._slots[table][SEEN].began_at
        properties = seen.properties if seen else {}
        # Asked each time: a cold table is made before the first copy in it is recorded.
        live = self._cold.source(properties, seen.uuid) if seen else ""
        assert since is not None, "a table that is seen is seen at some time"
        found = self._jobs.of(table, properties, stored, live)
        return Charge(table, since, found.jobs, found.off)


def _not_kept(last: Standing, now: datetime) -> Standing:
    """Nobody's failure. What it had done is not known any more: it is tried again at once."""
    return replace(last, state="interrupted", reason=NOT_KEPT, ended_at=now, retry_at=now, left_open=0)


def _left_open(last: Standing, config: WorkerConfig, now: datetime) -> Standing:
    """The first time it may have been chance, and is tried again at once."""
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
