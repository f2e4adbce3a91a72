"""The schedule for any process: only the state database is read. Needs no Spark and no lease."""

from __future__ import annotations

from datetime import datetime

from lakewarden.client import Lakewarden
from lakewarden.state.schedule import PASS
from lakewarden.worker.schedule import Decision, Rules, decide
from lakewarden.worker.tables import RUNNING, Roster


def outlook(api: Lakewarden, now: datetime, roster: Roster | None = None) -> Decision:
    """The decision that the leader would make now.

    A `roster` that is kept between calls resolves only the policies that changed.
    """
    roster = roster or Roster(api.state, api.config)
    roster.load()
    at_work = {
        name: slots[PASS].began_at or now
        for name, slots in roster.book().standings.items()
        if PASS in slots and slots[PASS].state == RUNNING
    }
    rules = Rules(api.config.schedule, api.config.worker, api.config.budgets)
    return decide(roster.charges, roster.book(at_work), rules, now)
