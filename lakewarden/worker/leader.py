"""Leading: the lease is taken when nobody has it, renewed while this process lives, and given up before it could be another's.

A leader that cannot renew, because the database does not answer or the process stood still, stops its work while its lease still
has a third of its time. What it might do after that is fenced: see `state/runs`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from lakewarden import clock
from lakewarden.errors import Unreachable
from lakewarden.jobs.run_context import Stop
from lakewarden.model.run import Owner
from lakewarden.state.locks import Lease, Leases
from lakewarden.worker.log import LoggedState, tell, warn

_WATCH_SECONDS = 0.2


class Leadership:
    """One process's part in who leads. `stop` is that of the present term: it is asked when the term is over for us."""

    def __init__(
        self, leases: Leases, owner: Owner, seconds: float, note: Mapping[str, Any] | None = None
    ) -> None:
        self._leases, self._owner, self._note = leases, owner, dict(note or {})
        self._ttl = timedelta(seconds=seconds)
        self._seconds = float(seconds)
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._left = False  # for good: it takes no other lease
        self._away_until = 0.0  # before that it takes no lease
        self._until = 0.0  # by this process's own clock: no longer than the database's
        self._outage, self._followed = LoggedState("database-unreachable"), ""
        self.stop = Stop()

    @property
    def term(self) -> int | None:
        """The term under which this process leads; None where it does not."""
        with self._lock:
            if self._lease is None or clock.monotonic() >= self._until:
                return None
            return self._lease.term

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While the body runs, this process leads or stands by."""
        over = threading.Event()
        threads = [
            threading.Thread(target=self._keep, args=(over,), name="lakewarden-lease", daemon=True),
            threading.Thread(target=self._watch, args=(over,), name="lakewarden-lease-watch", daemon=True),
        ]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            over.set()
            for each in threads:
                each.join(self._seconds)  # one that hangs in a call to the database ends with the process

    def release(self) -> None:
        """Lead no more, for good, and let a standby take over at once."""
        with self._lock:
            lease, self._lease, self._left = self._lease, None, True
        if lease is None:
            return
        try:
            self._leases.release(lease)
            tell("released", term=lease.term)
        except Unreachable as error:
            warn("not-released", term=lease.term, reason=error.message)  # it ends by itself

    def step_down(self, reason: str) -> None:
        """Lead no more for a while. The lease is renewed no more, so that what was allowed under it is over before another
        leads; by the time this process tries again, one that stands by has taken it. Where none does, this one leads again."""
        with self._lock:
            lease, self._away_until = self._lease, clock.monotonic() + 2 * self._seconds
        if lease is not None:
            self._lose(lease, reason)

    # ------------------------------------------------------------ the two threads

    def _keep(self, over: threading.Event) -> None:
        wait = 0.0
        while not over.wait(wait):
            wait = self._step()

    def _step(self) -> float:
        """Take, renew or look; answers with the seconds until the next time."""
        try:
            with self._lock:
                lease, left = self._lease, self._left
                away = clock.monotonic() < self._away_until
            if left:
                return self._seconds
            if lease is None and away:
                return min(1.0, self._seconds / 5)
            wait = self._try() if lease is None else self._renew(lease)
            self._outage.is_over()
            return wait
        except (
            Exception
        ) as error:  # whatever it is: without this thread nobody would lead again in this process
            self._outage.is_so(str(error))
            return min(1.0, self._seconds / 10)

    def _try(self) -> float:
        asked_at = clock.monotonic()
        current = self._leases.current()
        taken = (
            None
            if current is not None and current.live
            else self._leases.take(self._owner, self._ttl, self._note)
        )
        if taken is not None:
            self._lead(taken, asked_at)
            return self._seconds / 3
        holder = "" if current is None else current.holder
        if holder != self._followed:
            tell("standing-by", leader=holder, term=current.term if current else None)
            self._followed = holder
        return min(1.0, self._seconds / 5)

    def _lead(self, lease: Lease, asked_at: float) -> None:
        with self._lock:
            left = self._left
            if not left:
                self._lease, self._until, self.stop = lease, self._deadline(asked_at), Stop()
        if left:  # it left while it was asking
            self._leases.release(lease)
            return
        self._followed = ""
        tell("leading", term=lease.term)

    def _renew(self, lease: Lease) -> float:
        asked_at = clock.monotonic()
        if not self._leases.renew(lease, self._ttl, self._note):
            self._lose(lease, "its lease is over, or another worker's")
            return 0.0
        with self._lock:
            self._until = self._deadline(asked_at)
        return self._seconds / 3

    def _deadline(self, asked_at: float) -> float:
        """Counted from before the question: the database's answer may have taken its time."""
        return asked_at + self._seconds * 2 / 3

    def _watch(self, over: threading.Event) -> None:
        """Asks nobody but the clock, so nothing can hold it up."""
        while not over.wait(min(_WATCH_SECONDS, self._seconds / 10)):
            with self._lock:
                lease, late = self._lease, clock.monotonic() >= self._until
            if lease is not None and late:
                self._lose(lease, f"its lease could not be renewed for {self._seconds * 2 / 3:g} seconds")

    def _lose(self, lease: Lease, reason: str) -> None:
        with self._lock:
            if self._lease is not lease:
                return
            self._lease = None
            stop = self.stop
        warn("leading-no-more", term=lease.term, reason=reason)
        stop.ask(f"this worker leads no more: {reason}")
