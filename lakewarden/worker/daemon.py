"""The worker: it leads or waits as standby, finds tables, starts their turns when they are due, and runs
requests.

Jobs run on threads of one Spark session, inside the shared budgets. This loop never waits for them: it
looks around every `poll_seconds`, starts what may start, and otherwise only notices what has ended. Without
the lease nothing is started. A leader also does periodic tasks beside the turns of tables. The first
SIGTERM or Ctrl-C drains the worker, and the second one stops it now.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from types import FrameType
from typing import Protocol

from lakewarden import clock
from lakewarden.client import Lakewarden
from lakewarden.errors import LakewardenError, Unreachable, message_of
from lakewarden.model.table import TableRef
from lakewarden.state.database import State
from lakewarden.state.locks import Leases
from lakewarden.state.process import current_owner
from lakewarden.state.requests import PassRequest, Requests, RequestState
from lakewarden.state.schedule import Suspension, TableSchedules
from lakewarden.version import build
from lakewarden.worker import passes
from lakewarden.worker.leader import Leadership
from lakewarden.worker.log import LoggedState, tell, warn
from lakewarden.worker.passes import Pass, PassResult
from lakewarden.worker.schedule import INTERVAL, DueTable, ScheduleRules, decide, places_for_requests
from lakewarden.worker.spark_session import Session
from lakewarden.worker.tables import LEFT_OPEN, NOT_KEPT, Tables

# How long the worker waits for runs it told to stop: a commit that has begun is seen to its end.
ABORT_SECONDS = 60.0
# And for chores, which heard it when the drain began.
CHORE_SECONDS = 10.0
# Between two looks at what others may have changed: policies, suspensions, debts.
_REFRESH_SECONDS = 10.0
# Between two tries to keep what ended while the database was away.
_RETRY_SECONDS = 1.0
_SLICE_SECONDS = 0.1
# A turn that lasts longer than this is worth a word.
_LONG = timedelta(hours=6)


class WorkerServer(Protocol):
    """What lives as long as the worker, leading or not: a server. Neither call blocks."""

    def start(self) -> object: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Working:
    """A turn under way."""

    turn: Pass
    began: datetime
    thread: threading.Thread


class Worker:
    """One process's worker. `run` returns when it was told to stop and has."""

    def __init__(
        self,
        api: Lakewarden,
        chores: Sequence[PeriodicTask] = (),
        attendants: Sequence[WorkerServer] = (),
        address: str | None = None,
    ) -> None:
        """`address` is where its console is, for those who ask who leads."""
        self._api, self._config = api, api.config.worker
        self._rules = ScheduleRules(api.config.schedule, api.config.worker, api.config.budgets)
        self._attendants = attendants
        self._note = {"version": build(), **({"console": address} if address else {})}
        self._wish = WorkerSignal.GO_ON
        self._lead: Leadership | None = None
        self._tables: Tables | None = None
        self._term: int | None = None
        self._at_work: dict[str, _Working] = {}
        self._asked_last = False  # whether the turn that began last was asked for
        self._not_kept: dict[
            str, datetime
        ] = {}  # turns that ended while the database was away: when they began
        finding = PeriodicTask("discover", float(self._config.discover_seconds), self._discover)
        self._chores = PeriodicTasks([finding, *chores])
        self._unlisted: dict[str, LoggedState] = {}
        self._refreshed = float("-inf")
        self._lock = threading.RLock()  # of the tables, between this loop and the threads of turns
        self._outage, self._amiss = LoggedState("database-away"), LoggedState("look-failed")
        self._session = Session(api)
        self._long: frozenset[threading.Thread] = frozenset()

    # ------------------------------------------------------------ from outside

    def drain(self) -> None:
        """Start nothing new, finish what runs within drain_seconds, let a standby take over."""
        self._wish = max(self._wish, WorkerSignal.DRAIN)

    def abort(self) -> None:
        """Stop what runs, cleanly and now."""
        self._wish = WorkerSignal.ABORT

    @property
    def leading(self) -> bool:
        return self._lead is not None and self._lead.term is not None

    def at_work(self) -> tuple[str, ...]:
        """Tables that have their turn at this moment."""
        return tuple(each.turn.table for each in self._alive())

    def busy(self) -> bool:
        """Whether any thread of its is still at something."""
        return bool(self._alive()) or self._chores.at_work()

    def revive_spark(self) -> None:
        """For its console, before that reads a table: while the worker stands by, a Spark that died makes way for another.

        A leader sees to that itself, and says when it cannot.
        """
        if not self.leading and not self.busy():
            self._session.revive()

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        state = self._opened()
        if state is None:
            return
        self._lead = Leadership(Leases(state), current_owner(), self._config.lease_seconds, self._note)
        self._tables = Tables(state, self._api.config)
        tell("started", version=build(), tables=self._config.tables)
        with ExitStack() as stack:
            stack.enter_context(self._attended())
            stack.enter_context(handle_signals(self._wished))
            stack.enter_context(self._lead.kept())
            while self._wish is WorkerSignal.GO_ON:
                self._look_around()
                self._pause(self._config.poll_seconds)
            self._leave(self._lead)
        tell("stopped")

    def _opened(self) -> State | None:
        """The state database; while it does not answer the worker waits for it, and does not end."""
        while self._wish is WorkerSignal.GO_ON:
            try:
                state = self._api.state
                self._outage.is_over()
                return state
            except Unreachable as error:
                self._outage.is_so(error.message)
                clock.sleep(1.0)
        return None

    @contextmanager
    def _attended(self) -> Iterator[None]:
        started: list[WorkerServer] = []
        try:
            for each in self._attendants:
                each.start()
                started.append(each)
            yield
        finally:
            for each in reversed(started):
                each.stop()

    def _wished(self) -> None:
        """Called from a signal handler: it only takes note."""
        self._wish = WorkerSignal.DRAIN if self._wish is WorkerSignal.GO_ON else WorkerSignal.ABORT

    def _pause(self, seconds: float) -> None:
        """Until the next look; a wish to stop, a turn that ended or a Spark that has started is seen at once."""
        until, before = clock.monotonic() + seconds, self._signs()
        while clock.monotonic() < until and self._signs() == before:
            clock.sleep(_SLICE_SECONDS)

    def _signs(self) -> tuple[WorkerSignal, int, bool]:
        return self._wish, len(self._alive()), self._session.starting

    def _look_around(self) -> None:
        self._notice_ended()
        try:
            lead = self._leading_now()
            if lead is None:
                self._session.watch()  # its console may have calls on it
                return
            if self._ready():
                self._refresh()
                self._chores.do(self._until_the_term_ends())
                self._start_turns(lead)
            elif why := self._session.despaired():
                lead.step_down(why)
            self._outage.is_over()
            self._amiss.is_over()
        except Unreachable as error:
            # The database is away, or a catalog; nothing is begun, and the next look tries again.
            self._outage.is_so(error.message)
        except Exception as error:  # one table's oddity must not end what looks after all the others
            self._amiss.is_so(message_of(error))

    # ------------------------------------------------------------ leading

    def _leading_now(self) -> Leadership | None:
        """The lead, once everything that a new term needs has been read."""
        assert self._lead is not None and self._tables is not None
        term = self._lead.term
        if term is None:
            self._term = None
            return None
        if term != self._term:
            with self._lock:
                self._tables.load()
                left = self._tables.end_left_open(self._at_work, clock.now(), term, self._not_kept)
            for table in left:
                excused = self._not_kept.pop(table, None) is not None
                warn("pass-left-open", table=table, reason=NOT_KEPT if excused else LEFT_OPEN)
            self._give_up(term)
            self._term, self._refreshed = term, clock.monotonic()
            self._chores.begin_anew()
            self._session.begin_term()
        return self._lead

    def _give_up(self, term: int) -> None:
        """Tables whose passes were left in the middle too often are suspended, and what was asked for them has failed.

        By how they stand and not by what this look found: who died before this was written down has left it to the next.
        """
        assert self._tables is not None
        found = {each.table: passes.given_up(each) for each in self._tables.too_often_left()}
        if not found:
            return
        for suspension in found.values():
            self._suspend(suspension)
        requests = Requests(self._api.state)
        for each in requests.waiting(term):
            why = found.get(each.table)
            begun = each.state is RequestState.CLAIMED and each.table not in self._at_work
            if why is not None and begun and requests.claim(each.id, term, clock.now()):
                requests.end(each.id, term, RequestState.FAILED, (), why.reason, clock.now())

    def _suspend(self, suspension: Suspension) -> None:
        """One that somebody else has said stays as it was said."""
        assert self._tables is not None
        if suspension.table in self._tables.book().suspended:
            return
        TableSchedules(self._api.state).suspend(suspension)
        with self._lock:
            self._tables.refresh()
        warn("suspended", table=suspension.table, reason=suspension.reason)

    def _refresh(self) -> None:
        assert self._tables is not None
        if clock.monotonic() - self._refreshed >= _REFRESH_SECONDS:
            with self._lock:
                self._tables.refresh()
            self._refreshed = clock.monotonic()

    def _ready(self) -> bool:
        return self._session.ready(self.busy)

    # ------------------------------------------------------------ turns

    def _start_turns(self, lead: Leadership) -> None:
        """Requests first, the oldest first, as far as they leave a place to who is due. A table at work is waited for."""
        term = lead.term
        if term is None or not self._free():
            return
        requests = Requests(self._api.state)
        asked = [each for each in requests.waiting(term) if self._may_begin(each)]
        due = self._due({each.table for each in asked})
        places = places_for_requests(
            self._config.parallel_tables, somebody_due=bool(due), asked_last=self._asked_last
        )
        for each in asked:
            if not self._has_room(each.table):
                return
            if sum(one.turn.request is not None for one in self._at_work.values()) >= places:
                break
            if each.table not in self._at_work and requests.claim(each.id, term, clock.now()):
                # Somebody may have refreshed it since we looked; from the claim on it stays as it is.
                claimed = requests.get(each.id) or each
                self._start(lead, Pass(each.table, request=claimed, reason=f"request {each.id}"), term)
        for turn in due:
            if not self._has_room(turn.table):
                return
            self._start(lead, Pass(turn.table, turn.jobs, reason=turn.reason), term)

    def _may_begin(self, request: PassRequest) -> bool:
        """Not while its table is at work. One that was begun and could not be ended is tried again when the table is: by whom
        it was begun does not matter, since a pass that brings the worker down is always another leader's by then. Who asks
        anew for such a table waits as well."""
        assert self._tables is not None
        if request.table in self._at_work:
            return False
        last = self._tables.of(request.table)
        if last is None or last.retry_at is None:
            return True
        tried = request.state is RequestState.CLAIMED or last.left_open > 0
        return not tried or last.retry_at <= clock.now()

    def _due(self, asked: Collection[str]) -> Sequence[DueTable]:
        """Who is due, in order. Tables that somebody asked for come by their requests, which do all that is due and more."""
        assert self._tables is not None
        with self._lock:
            book = self._tables.book({name: each.began for name, each in self._at_work.items()})
            decision = decide(self._tables.tracked_tables, book, self._rules, clock.now())
        return [each for each in decision.due if each.table not in asked]

    def _free(self) -> int:
        return self._config.parallel_tables - len(self._at_work)

    def _has_room(self, table: str) -> bool:
        """A free place, and company that both can bear. Who has to be alone is waited for: nothing is begun before it."""
        assert self._tables is not None
        alone = any(map(self._tables.needs_to_be_alone, (table, *self._at_work)))
        return self._free() > 0 and not (alone and self._at_work)

    def _start(self, lead: Leadership, turn: Pass, term: int) -> None:
        assert self._tables is not None
        now, stop = clock.now(), lead.stop
        with self._lock:
            if not self._tables.change(turn.table, lambda last: [passes.begin(turn, last, now)], term):
                return  # another leads by now; the watch tells us in a moment
        tell("pass-begins", table=turn.table, jobs=turn.jobs, why=turn.reason)

        def work() -> None:
            staged = self._rules.schedule.mode != INTERVAL
            ended = passes.do(self._api, turn, term, stop, staged=staged)
            if not self._keep(lead, ended, term):
                self._not_kept[turn.table] = now

        thread = threading.Thread(target=work, name=f"lakewarden-pass-{turn.table}", daemon=True)
        self._at_work[turn.table] = _Working(turn, now, thread)
        self._asked_last = turn.request is not None
        thread.start()

    def _keep(self, lead: Leadership, ended: PassResult, term: int) -> bool:
        """Written down, if need be once the database is back; no longer than the term lasts: then the next leader finds it open.

        False where the database was away for that long.
        """
        away = odd = False
        while True:
            try:
                self._write_down(ended, term)
                return True
            except Unreachable:
                if away and lead.term != term:
                    warn("pass-not-kept", table=ended.turn.table, state=str(ended.state))
                    return False
                away = True
                clock.sleep(_RETRY_SECONDS)
            except Exception as error:
                # The database does not take it. In other words then: a table that does not back off would come again at once.
                warn(
                    "pass-not-kept", table=ended.turn.table, state=str(ended.state), reason=message_of(error)
                )
                if odd:
                    return True
                odd, reason = True, f"what came of it cannot be written down ({type(error).__name__})"
                ended = replace(ended, jobs=(), trouble=LakewardenError(reason=reason))

    def _write_down(self, ended: PassResult, term: int) -> None:
        assert self._tables is not None
        table = ended.turn.table
        with self._lock:
            slots = self._tables.change(table, lambda last: passes.standings(ended, last, self._config), term)
        failures = slots[0].failures if slots else 0  # none: another leads by now
        suspended = passes.suspension(ended, failures, self._config)
        if suspended is not None:
            self._suspend(suspended)
        self._answer(ended, term)
        say = warn if ended.failed else tell
        say(
            "pass-ended",
            table=table,
            state=str(ended.state),
            seconds=round((ended.at - ended.began).total_seconds(), 1),
            runs=ended.run_ids,
            failures=failures or None,
            reason=ended.reason,
        )

    def _answer(self, ended: PassResult, term: int) -> None:
        request, said = ended.turn.request, passes.answer(ended)
        if request is not None and said is not None:
            state, reason = said
            Requests(self._api.state).end(request.id, term, state, ended.run_ids, reason, ended.at)

    def _alive(self) -> list[_Working]:
        return [each for each in tuple(self._at_work.values()) if each.thread.is_alive()]

    def _notice_ended(self) -> None:
        self._at_work = {each.turn.table: each for each in self._alive()}
        long = [each for each in self._at_work.values() if clock.now() - each.began >= _LONG]
        for each in long:
            if each.thread not in self._long:  # it may hang in a call that nobody answers: told once
                warn("pass-takes-long", table=each.turn.table, since=f"{each.began:%Y-%m-%d %H:%M} UTC")
        self._long = frozenset(each.thread for each in long)

    # ------------------------------------------------------------ chores

    def _until_the_term_ends(self) -> Callable[[], bool]:
        """What a chore of this term asks now and then: whether it should end."""
        term = self._term
        asked, lives = float("-inf"), True

        def over() -> bool:
            """Asked for every one of thousands of tables; Spark is asked once a second."""
            nonlocal asked, lives
            if clock.monotonic() - asked >= 1.0:
                asked, lives = clock.monotonic(), self._session.lives()
            return self._wish is not WorkerSignal.GO_ON or self._term != term or not lives

        return over

    def _discover(self, over: Callable[[], bool]) -> None:
        """Every table of every catalog. Those of a catalog that does not answer stay as they are known."""
        assert self._tables is not None
        term, found, silent = self._term, list[str](), list[str]()
        if term is None:  # the lease was lost before this thread came to it
            return
        for catalog in self._api.lake.catalogs():
            self._unlisted.setdefault(catalog, LoggedState("catalog-unreadable", catalog=catalog))
            try:
                found += [str(each) for each in self._api.tables(catalog)]
            except Exception as error:  # whatever one catalog says, the others are asked too
                if over():
                    return
                silent.append(catalog)
                self._unlisted[catalog].is_so(message_of(error))
                continue
            self._unlisted[catalog].is_over()
        with self._lock:
            known = [each.table for each in self._tables.tracked_tables]
            found += [each for each in known if TableRef.parse(each).catalog in silent]
            new, gone = self._tables.discovered(found, clock.now(), term)
        if new or gone:
            tell("tables", known=len(self._tables.tracked_tables), new=new, gone=gone)

    # ------------------------------------------------------------ leaving

    def _leave(self, lead: Leadership) -> None:
        """Finish what runs or, when time is over or somebody insists, stop it cleanly; then let a standby take over."""
        tell("draining", at_work=self.at_work(), seconds=self._config.drain_seconds)
        until = clock.monotonic() + self._config.drain_seconds
        while self._alive() and self._wish is not WorkerSignal.ABORT and clock.monotonic() < until:
            clock.sleep(_SLICE_SECONDS)
        if self._alive():
            self._stop_runs(lead)
        lead.release()
        self._session.leave()
        until = clock.monotonic() + CHORE_SECONDS
        while (
            self._chores.at_work() and clock.monotonic() < until
        ):  # what they stand on goes when this returns
            clock.sleep(_SLICE_SECONDS)

    def _stop_runs(self, lead: Leadership) -> None:
        warn("stopping-runs", at_work=self.at_work())
        lead.stop.ask("the worker is shutting down")
        until = clock.monotonic() + ABORT_SECONDS
        while self._alive() and clock.monotonic() < until:
            clock.sleep(_SLICE_SECONDS)
        if self._alive():
            # Their runs stay open, and can do nothing more once another leads, who settles them.
            warn("left-running", at_work=self.at_work())


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """Something to do every so often while this worker leads, on a thread of its own, one at a time.

    `do` is handed what it asks now and then: whether it should end, because the worker leaves, leads no more or has no Spark.
    """

    name: str
    seconds: float
    do: Callable[[Callable[[], bool]], None]


class PeriodicTasks:
    def __init__(self, chores: Sequence[PeriodicTask]) -> None:
        self._chores = chores
        self._next: dict[str, float] = {}
        self._running: dict[str, threading.Thread] = {}

    def begin_anew(self) -> None:
        """Who leads anew does all of them at once."""
        self._next.clear()

    def do(self, over: Callable[[], bool]) -> None:
        """Begin those whose time has come, each on a thread of its own; one that is still at it is left to it."""
        for chore in self._chores:
            running = self._running.get(chore.name)
            due = clock.monotonic() >= self._next.get(chore.name, float("-inf"))
            if due and (running is None or not running.is_alive()):
                self._next[chore.name] = clock.monotonic() + chore.seconds
                self._begin(chore, over)

    def at_work(self) -> bool:
        return any(each.is_alive() for each in self._running.values())

    def _begin(self, chore: PeriodicTask, over: Callable[[], bool]) -> None:
        def work() -> None:
            try:
                chore.do(over)
            except Exception as error:  # not worth the worker's life: told, and done again when it is due
                warn("chore-failed", chore=chore.name, reason=f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=work, name=f"lakewarden-{chore.name}", daemon=True)
        self._running[chore.name] = thread
        thread.start()


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WorkerSignal(IntEnum):
    GO_ON = 0
    DRAIN = 1
    ABORT = 2


@contextmanager
def handle_signals(wished: Callable[[], None]) -> Iterator[None]:
    """While the body runs, each signal is handed over. Only the main thread can hear them; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(signum: int, frame: FrameType | None) -> None:
        wished()

    before = {each: signal.getsignal(each) for each in _SIGNALS}
    for each in _SIGNALS:
        signal.signal(each, hear)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
