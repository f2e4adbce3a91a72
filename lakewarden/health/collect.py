"""Collects every table's health from metadata alone: lists no files, changes nothing, and one bad table does
not stop the others. `Sweep` is the result of one look at the whole fleet.

A table with unchanged metadata, policy and pins costs one call to its catalog. A changed table is read: its
files and manifests, as the format's library reports them. Changes by time alone (a window that ends) are found
when the details of an unchanged table are built again, about once an hour, each table at its own minute.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from lakewarden import clock
from lakewarden.config.schema import HealthConfig, PolicyConfig
from lakewarden.deletion.holds import Holds, gather
from lakewarden.errors import message_of
from lakewarden.health import warnings
from lakewarden.health.build_table_details import TableInputs, build_details, with_score
from lakewarden.health.hold_costs import HoldCosts, is_main
from lakewarden.health.numbers import count_files, of_table
from lakewarden.health.score import MaintenanceProblems, judge
from lakewarden.health.table_details import TableDetails
from lakewarden.jobs.expire import plan
from lakewarden.model.hold import Hold
from lakewarden.model.plain import Plain
from lakewarden.model.table import TableRef, TableView
from lakewarden.policy.graces import due_at
from lakewarden.policy.resolve import Layers, Policy, resolve
from lakewarden.redact import redact_url
from lakewarden.state.database import State
from lakewarden.state.fleet import ORPHANED, Fleet, WaitingBatch
from lakewarden.state.health import HealthRecords, Numbers, TableHealth
from lakewarden.state.policies import StoredPolicies
from lakewarden.state.retention import tidy
from lakewarden.state.tables import SeenTables
from lakewarden.tables.interface import AllCatalogs, TableFormat


@dataclass(frozen=True, slots=True)
class Sweep(Plain):
    """One look at the whole fleet. `behind` is the age of the oldest earlier look at any table."""

    tables: int
    changed: int
    failed: int
    forgotten: int
    raised: int
    cleared: int
    seconds: float
    behind: float

    JSON_KEYS = (
        "tables changed failed forgotten warnings_raised=raised warnings_cleared=cleared seconds:3 "
        "behind_seconds=behind:1"
    )


log = logging.getLogger(__name__)

THREADS = 8
_BATCH = 100
_REBUILD = 3600.0
# A table that is slow to look at takes at most this share of the time.
_SHARE = 0.02
# A catalog that failed only after this many seconds is asked again after this many times as long, because other tables wait.
_WAITED, _PATIENCE = 1.0, 10
_TIDYING = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Known:
    """The state database's knowledge of all tables, read once per sweep."""

    health: Mapping[str, TableHealth]
    stored: Mapping[str, Mapping[str, object]]
    pinned: Mapping[str, Sequence[str]]
    waiting: Mapping[str, Sequence[WaitingBatch]]
    failures: Mapping[str, int]
    suspended: Mapping[str, str]
    warned: Mapping[str, Collection[str]]
    silent: Mapping[str, str] = field(default_factory=dict)  # catalogs that could not be listed, and why


@dataclass(frozen=True, slots=True)
class _Looked:
    """One table after a look. `view` is set if the table was read again, `same` if nothing of it changed."""

    health: TableHealth
    view: TableView | None = None
    same: bool = False
    rebuild: bool = False


@dataclass(slots=True)
class _Memory:
    """What one process remembers of a table between looks."""

    built: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Silent:
    """A catalog that could not be listed: the reason, and when it may be asked again."""

    reason: str
    until: float


@dataclass
class Collector:
    """Created once and kept: its memory makes the next sweep cheap. `lake` gives access to every table."""

    state: State
    lake: AllCatalogs
    policy: PolicyConfig
    limits: HealthConfig
    threads: int = THREADS
    _memory: dict[str, _Memory] = field(default_factory=dict, repr=False)
    _silent: dict[str, _Silent] = field(default_factory=dict, repr=False)
    _tidied: datetime | None = None

    def __post_init__(self) -> None:
        self._held = HoldCosts(self.state)

    def sweep(
        self,
        tables: Sequence[TableRef] | None = None,
        stop: Callable[[], bool] = lambda: False,
        *,
        routine: bool | None = None,
    ) -> Sweep:
        """Look at these tables, or at all tables; the one with the oldest look comes first.

        Without `tables`, tables that their catalogs no longer list are forgotten. `stop` is checked between
        tables. In a `routine` sweep (the default for a sweep of all tables) slow tables are skipped at times.
        """
        spare = tables is None if routine is None else routine
        started, now = clock.monotonic(), clock.now()
        known = self._ask()
        chosen, dropped = (tables, []) if tables is not None else self._discover(known.health)
        if tables is None:
            known = replace(known, silent={name: each.reason for name, each in self._silent.items()})
        self._forget(dropped)
        ordered = sorted(chosen, key=lambda ref: _last(known.health.get(str(ref)), now), reverse=True)
        waited = (_last(known.health[str(ref)], now) for ref in chosen if str(ref) in known.health)
        tally = _Tally(behind=max(waited, default=0.0))
        batch: list[_Looked] = []
        for looked in self._look_at_all(ordered, known, stop, spare):
            batch.append(looked)
            if len(batch) >= _BATCH:
                self._write(batch, known, tally)
                batch = []
        self._write(batch, known, tally)
        self._tidy(now)
        done = Sweep(
            tally.tables, tally.changed, tally.failed, len(dropped), tally.raised, tally.cleared,
            clock.monotonic() - started, tally.behind,
        )  # fmt: skip
        log.debug(  # once a minute, for months
            "looked at %d tables in %.1f s: %d had changed, %d cannot be read",
            done.tables, done.seconds, done.changed, done.failed,
        )  # fmt: skip
        return done

    # ------------------------------------------------------------ which tables

    def _ask(self) -> _Known:
        fleet, records = Fleet(self.state), HealthRecords(self.state)
        return _Known(
            {each.table: each for each in records.all()},
            StoredPolicies(self.state).all(),
            fleet.pinned(),
            fleet.waiting(),
            fleet.failures(),
            fleet.suspended(),
            records.open_kinds(),
        )

    def _discover(self, known: Mapping[str, TableHealth]) -> tuple[list[TableRef], list[str]]:
        """Every table, and the tables that no longer exist. If a catalog cannot be listed, its known tables
        stay, marked as failed.
        """
        refs: list[TableRef] = []
        for catalog in self.lake.catalogs():
            listed = self._list(catalog)
            if listed is None:
                listed = [each for each in map(TableRef.parse, known) if each.catalog == catalog]
            refs += listed
        names = {str(each) for each in refs}
        return refs, [name for name in known if name not in names]

    def _list(self, catalog: str) -> Sequence[TableRef] | None:
        """None if it cannot be listed: logged when that begins and when it ends."""
        silent, started = self._silent.get(catalog), clock.monotonic()
        if silent is not None and started < silent.until:
            return None
        try:
            refs = self.lake.format_of(catalog).tables(catalog)
        except Exception as error:  # whatever one catalog raises, the others are asked too
            reason, now = _sentence(error), clock.monotonic()
            waited = now - started
            self._silent[catalog] = _Silent(reason, now + (_PATIENCE * waited if waited >= _WAITED else 0.0))
            if silent is None:
                log.warning("the tables of catalog %s cannot be listed: %s", catalog, reason)
            return None
        if self._silent.pop(catalog, None) is not None:
            log.info("the tables of catalog %s can be listed again", catalog)
        return refs

    def _forget(self, tables: Sequence[str]) -> None:
        if tables:
            HealthRecords(self.state).forget(tables)
            for each in tables:
                self._memory.pop(each, None)
                self._held.forget(each)

    # ------------------------------------------------------------ looking

    def _look_at_all(
        self, tables: Sequence[TableRef], known: _Known, stop: Callable[[], bool], spare: bool
    ) -> Iterator[_Looked]:
        """Results as they finish. Few wait at a time, so that a stop works at once and no sweep holds thousands of views."""
        formats: dict[str, TableFormat] = {}
        with ThreadPoolExecutor(self.threads, "lakewarden-health") as pool:
            waiting: set[Future[_Looked | None]] = set()
            for ref in tables:
                if stop():
                    break
                if len(waiting) >= 2 * self.threads:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (looked for each in done if (looked := each.result()) is not None)
                waiting.add(pool.submit(self._look, ref, formats, known, spare))
            yield from (looked for each in wait(waiting).done if (looked := each.result()) is not None)

    def _look(
        self, ref: TableRef, formats: dict[str, TableFormat], known: _Known, spare: bool
    ) -> _Looked | None:
        """None if the table is left for a later sweep, because looking at it is slow or keeps failing."""
        name, started = str(ref), clock.monotonic()
        before = known.health.get(name)
        if ref.catalog in known.silent:  # asking for each table would delay all others each time
            return self._failed(
                ref, before, f"its catalog cannot be listed: {known.silent[ref.catalog]}", known
            )
        failing = before is not None and bool(before.error)
        if (
            spare
            and failing
            and warnings.WarningKind.UNREADABLE in known.warned.get(name, ())
            and self._is_dear(name)
        ):
            return None
        try:
            format_ = formats.get(ref.catalog) or formats.setdefault(
                ref.catalog, self.lake.format_of(ref.catalog)
            )
            version = f"{self._mark(name, known)} {format_.version(ref)}"
            if before is not None and self._is_same(name, before, version):
                return self._again(before, known)
            if spare and not failing and self._is_dear(name):
                return None
            looked = self._read(ref, format_, version, known)
            self._memory[name] = _Memory(clock.monotonic(), clock.monotonic() - started)
            return looked
        except Exception as error:  # whatever is wrong with one table, the others are looked at; the table's record says what is wrong
            log.debug("%s cannot be looked at", name, exc_info=True)
            took = min(
                clock.monotonic() - started, _REBUILD * _SHARE
            )  # a recovery is noticed within the hour
            self._memory[name] = _Memory(clock.monotonic(), took)
            return self._failed(ref, before, _sentence(error), known)

    def _mark(self, name: str, known: _Known) -> str:
        """A hash of the inputs other than metadata: the policy as configured and stored, and pins."""
        inputs = [
            self.policy.environment,
            self.policy.file,
            [[pattern, dict(settings)] for pattern, settings in self.policy.patterns],
            known.stored.get(name, {}),
            known.pinned.get(name, ()),
        ]
        return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:8]

    def _is_same(self, name: str, before: TableHealth, version: str) -> bool:
        if before.error or before.version != version:
            return False
        memory = self._memory.get(name)
        if memory is None:  # looked at by an earlier process: its details are built again within the hour
            self._memory[name] = _Memory(clock.monotonic() - _REBUILD * _spread(name))
            return True
        return clock.monotonic() - memory.built < _REBUILD

    def _is_dear(self, name: str) -> bool:
        memory = self._memory.get(name)
        return memory is not None and clock.monotonic() - memory.built < memory.seconds / _SHARE

    def _again(self, before: TableHealth, known: _Known) -> _Looked:
        """The table is unchanged; its records in the state database may have changed."""
        seen = (
            SeenTables(self.state).get(TableRef.parse(before.table))
            if before.table in known.waiting
            else None
        )
        numbers = before.numbers
        if known.waiting.get(before.table) or numbers.trashed_files:
            policy = self._policy(TableRef.parse(before.table), seen.properties if seen else {}, known)
            numbers = _with_trashed(numbers, known.waiting.get(before.table, ()), policy, clock.now())
        score = judge(numbers, self.limits, _trouble(before.table, "", known))
        after = replace(before, at=clock.now(), numbers=numbers, score=score.score, debt=score.debt.amount)
        same = (after.numbers, after.score, after.debt) == (before.numbers, before.score, before.debt)
        return _Looked(after, same=same, rebuild=not same)

    def _read(self, ref: TableRef, format_: TableFormat, version: str, known: _Known) -> _Looked:
        now, view = clock.now(), format_.view(ref)
        policy = self._policy(ref, view.properties, known)
        holds = gather(view, self.state, now, policy.hours("snapshot_restart_hours"))
        head = view.current_snapshot_id
        files = count_files(None if head is None else format_.files(ref, head, None), policy)
        manifests = () if head is None else tuple(format_.manifests(ref, head))
        kept = plan.reasons(view, policy, holds, now)
        costs = self._held.costs(format_, view, policy, holds, now)
        overdue = sum(each.id not in kept for each in view.snapshots)
        numbers = of_table(view, files, manifests, overdue, policy, now)
        numbers = _with_holds(numbers, holds, costs)
        numbers = _with_trashed(numbers, known.waiting.get(str(ref), ()), policy, now)
        score = judge(numbers, self.limits, _trouble(str(ref), "", known))
        inputs = TableInputs(view, policy, holds, files, manifests, kept, costs, now)
        portrait = with_score(build_details(inputs, numbers), score, numbers)
        health = TableHealth(
            str(ref), view.uuid, now, version, score.score, score.debt.amount, numbers, "", portrait.to_dict()
        )
        return _Looked(health, view)

    def _failed(self, ref: TableRef, before: TableHealth | None, error: str, known: _Known) -> _Looked:
        """Keep the last known numbers, but forget the version, so that the table is read as soon as possible."""
        numbers = before.numbers if before else Numbers()
        score = judge(numbers, self.limits, _trouble(str(ref), error, known))
        health = TableHealth(
            str(ref), before.uuid if before else "", clock.now(), "", score.score, score.debt.amount, numbers, error
        )  # fmt: skip
        same = before is not None and replace(health, at=before.at) == before
        return _Looked(health, same=same, rebuild=before is not None)

    def _policy(self, ref: TableRef, properties: Mapping[str, str], known: _Known) -> Policy:
        stored = known.stored.get(str(ref), {})
        return resolve(ref, Layers.of(self.policy, table_properties=properties, stored=stored))

    # ------------------------------------------------------------ writing down

    def _write(self, batch: Sequence[_Looked], known: _Known, tally: _Tally) -> None:
        """Write the results in a few transactions: a process that stops between two of them loses a look, nothing else."""
        if not batch:
            return
        records, now = HealthRecords(self.state), clock.now()
        views = [each.view for each in batch if each.view is not None]
        if views:
            SeenTables(self.state).saw_all(views, now)
        records.touch([each.health.table for each in batch if each.same], now)
        records.put([self._complete(each, records, known) for each in batch if not each.same])
        alarms = {each.health.table: self._alarms(each.health, known) for each in batch}
        raised, cleared = warnings.record(records, alarms, known.warned, now)
        tally.tables += len(batch)
        tally.changed += len(views)
        tally.failed += sum(bool(each.health.error) for each in batch)
        tally.raised, tally.cleared = tally.raised + raised, tally.cleared + cleared

    def _complete(self, looked: _Looked, records: HealthRecords, known: _Known) -> TableHealth:
        """With its portrait: if only numbers changed, the existing one with the parts of the new score."""
        if not looked.rebuild:
            return looked.health
        stored = records.get(looked.health.table)
        portrait = TableDetails.read(stored.portrait) if stored else None
        if portrait is None:
            return looked.health
        trouble = _trouble(looked.health.table, looked.health.error, known)
        score = judge(looked.health.numbers, self.limits, trouble)
        return replace(looked.health, portrait=with_score(portrait, score, looked.health.numbers).to_dict())

    def _alarms(self, health: TableHealth, known: _Known) -> tuple[warnings.Alarm, ...]:
        trouble = _trouble(health.table, health.error, known)
        before = known.health.get(health.table)
        return warnings.decide(
            health.numbers,
            self.limits,
            trouble,
            known.warned.get(health.table, ()),
            failed_before=before is not None and bool(before.error),
        )

    def _tidy(self, now: datetime) -> None:
        """Thin out the numbers: keep all of two days, one an hour for two weeks, then four a day, and one a day
        once they are older than the setting. Closed warnings and removed tables of that age are deleted.
        """
        if self._tidied is not None and now - self._tidied < _TIDYING:
            return
        self._tidied, old = now, now - timedelta(days=self.limits.keep_days)
        tiers = (
            (now - timedelta(days=2), timedelta(hours=1)),
            (now - timedelta(days=14), timedelta(hours=6)),
            (old, timedelta(days=1)),
        )
        HealthRecords(self.state).thin(tiers)
        tidy(self.state, old)


@dataclass(slots=True)
class _Tally:
    behind: float
    tables: int = 0
    changed: int = 0
    failed: int = 0
    raised: int = 0
    cleared: int = 0


def _last(health: TableHealth | None, now: datetime) -> float:
    """Seconds since the last look; a table that was never looked at comes before all others."""
    return float("inf") if health is None else (now - health.at).total_seconds()


def _spread(name: str) -> float:
    """From 0 to 1, constant for a table: spreads the work, so that not all tables are built in the same minute."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 0x100000000


def _trouble(name: str, error: str, known: _Known) -> MaintenanceProblems:
    return MaintenanceProblems(error, known.suspended.get(name, ""), known.failures.get(name, 0))


def _with_trashed(
    numbers: Numbers, waiting: Sequence[WaitingBatch], policy: Policy, now: datetime
) -> Numbers:
    due = [each for each in waiting if (at := due_at(each.batch, policy)) is not None and at <= now]
    orphans = [each for each in waiting if each.batch.cause in ORPHANED]
    return replace(
        numbers,
        trashed_files=sum(each.live.files for each in waiting),
        trashed_bytes=sum(each.live.bytes for each in waiting),
        due_trashed_files=sum(each.live.files for each in due),
        due_trashed_bytes=sum(each.live.bytes for each in due),
        orphan_files=sum(each.live.files for each in orphans),
        orphan_bytes=sum(each.live.bytes for each in orphans),
    )


def _with_holds(numbers: Numbers, holds: Holds, costs: Mapping[Hold, int | None]) -> Numbers:
    known = {hold: cost for hold, cost in costs.items() if cost}
    return replace(
        numbers,
        holds=sum(not is_main(each) for each in holds.holds),
        held_bytes=sum(known.values()),
        held_forever_bytes=sum(cost for hold, cost in known.items() if hold.until is None),
    )


def _sentence(error: Exception) -> str:
    return redact_url((message_of(error).splitlines() or [type(error).__name__])[0])[:500]
