"""The schedule for any process: only the state database is read. Needs no Spark and no lease."""

from __future__ import annotations

from datetime import datetime

from lakewarden.client import Lakewarden
from lakewarden.state.schedule import PASS
from lakewarden.worker.schedule import Decision, ScheduleRules, decide
from lakewarden.worker.tables import RUNNING, Tables


def current_decision(api: Lakewarden, now: datetime, tables: Tables | None = None) -> Decision:
    """The decision that the leader would make now.

    `tables`, if kept between calls, resolves only the policies that changed.
    """
    tables = tables or Tables(api.state, api.config)
    tables.load()
    at_work = {
        name: slots[PASS].began_at or now
        for name, slots in tables.book().standings.items()
        if PASS in slots and slots[PASS].state == RUNNING
    }
    rules = ScheduleRules(api.config.schedule, api.config.worker, api.config.budgets)
    return decide(tables.tracked_tables, tables.book(at_work), rules, now)
