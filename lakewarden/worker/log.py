"""What the worker says in its log: one line per event, a name and its facts, never one per look."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("lakewarden.worker")


def tell(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """`pass-ended table=lake.db.events state=done`; who writes JSON finds the same in `record.event` and `record.facts`."""
    known = {name: value for name, value in facts.items() if value not in (None, "", ())}
    words = " ".join(f"{name}={_word(value)}" for name, value in known.items())
    log.log(level, "%s", f"{event} {words}".rstrip(), extra={"event": event, "facts": known})


def warn(event: str, **facts: Any) -> None:
    tell(event, logging.WARNING, **facts)


def _word(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return f'"{text}"' if " " in text else text


class LoggedState:
    """A state of things that is told when it comes and when it goes, and not in between."""

    def __init__(self, event: str, **facts: Any) -> None:
        self._event, self._facts, self._reason = event, facts, ""

    @property
    def reason(self) -> str:
        """Of what is so now; else nothing."""
        return self._reason

    def is_so(self, reason: str) -> None:
        if not self._reason:
            warn(self._event, **self._facts, reason=reason)
        self._reason = reason

    def is_over(self) -> None:
        if self._reason:
            tell(f"{self._event}-over", **self._facts)
        self._reason = ""
