"""The schedule as anybody may ask for it: from the state database alone, without Spark and without being the leader."""

from __future__ import annotations

from datetime import datetime

from lakewarden.client import Lakewarden
from lakewarden.state.schedule import PASS
from lakewarden.worker.schedule import Decision, Rules, decide
from lakewarden.worker.tables import RUNNING, Roster


def outlook(api: Lakewarden, now: datetime, roster: Roster | None = None) -> Decision:
    """Who is due and in which order, and of everybody else why not and when: as the leader would decide at this moment.

    A `roster` that is kept between calls knows the policies that have not changed since.
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
