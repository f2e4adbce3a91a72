"""Lineage of writers other than Lakewarden: set once, then added to every commit they make.

  with lakewarden.lineage(writer_id="ingest", commit_hash=SHA):           PyIceberg, in this thread
      table.append(rows)

  lakewarden.lineage(writer_id="ingest", commit_hash=SHA).for_process()   PyIceberg, everywhere in this process
  lakewarden.lineage(writer_id="ingest", commit_hash=SHA).on(spark)       every write of a Spark session
  df.writeTo(name).options(**lakewarden.lineage(...).options()).append()  one write of Spark's

`Hook` checks a commit against the table's policy, and rejects a commit without the required lineage.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from sqlalchemy.exc import SQLAlchemyError

from lakewarden import clock
from lakewarden.errors import LineageRejected, Unreachable, UsageError
from lakewarden.lineage.summary import checked
from lakewarden.lineage.validate import Requirements, Violation, validate_all
from lakewarden.model.run import Trigger
from lakewarden.policy.resolve import Policy
from lakewarden.state.audit_log import Rejections
from lakewarden.state.database import State

# Variables in which build systems store the commit of the running code.
_COMMIT_VARIABLES = ("LAKEWARDEN_COMMIT_HASH", "GIT_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA")
_OPTION, _SESSION = "snapshot-property.", "spark.sql.iceberg.snapshot-property."
_OPERATION = "lineage.operation"
_METADATA_OF_COMMITS = "org.apache.iceberg.spark.CommitMetadata"
# The operation for the library's word, if the writer does not name one. A `replace` must be named by the writer.
_BY_LIBRARY = {"append": "append", "overwrite": "overwrite", "delete": "delete"}

# The lineage of each active `with`, the innermost last. A context variable: threads and tasks have their own.
_ambient: ContextVar[tuple[Mapping[str, str], ...]] = ContextVar("lakewarden_lineage", default=())
_of_process: Mapping[str, str] = {}

log = logging.getLogger(__name__)


def lineage(
    writer_id: str,
    *,
    commit_hash: str | None = None,
    invocation_id: str | None = None,
    operation: str | None = None,
    inputs: Sequence[str | int] = (),
    trigger: str | None = None,
    operator: str | None = None,
    ticket: str | None = None,
    **more: str,
) -> WriterLineage:
    """The lineage of a writer's commits.

    `commit_hash` defaults to GIT_COMMIT, GITHUB_SHA or CI_COMMIT_SHA; `invocation_id` defaults to a new id.
    `inputs` are snapshots that the writer read: ids, or `catalog.namespace.table@id` for those of another
    table. `more` are further keys of `lineage.`, such as `load="2024-03-11"`.
    """
    if isinstance(inputs, str):
        raise UsageError(
            reason=f"read inputs {inputs!r}: it is a single string", hint="write a list, as inputs=[42]"
        )
    why = _trigger(trigger, operator, ticket)
    keys: dict[str, str | None] = {
        "writer.id": writer_id,
        "writer.host": socket.gethostname(),
        "writer.commit_hash": commit_hash or _commit_of_build(),
        "writer.invocation_id": invocation_id or uuid.uuid4().hex,
        "input.snapshot_ids": ",".join(str(each) for each in inputs),
        "trigger.type": why.type if why else None,
        "trigger.operator": operator,
        "trigger.ticket": ticket,
        _OPERATION: operation,
        **{f"lineage.{name}": value for name, value in more.items()},
    }
    return WriterLineage({key: str(value) for key, value in keys.items() if value})


def _trigger(kind: str | None, operator: str | None, ticket: str | None) -> Trigger | None:
    if kind is None and not operator and not ticket:
        return None
    return checked(Trigger(kind or ("manual" if operator else "incident-response"), operator, ticket))


def _commit_of_build() -> str | None:
    return next((os.environ[name] for name in _COMMIT_VARIABLES if os.environ.get(name)), None)


@dataclass(frozen=True)
class WriterLineage:
    """Summary keys ready to be written, and the ways to write them."""

    keys: Mapping[str, str]

    def __enter__(self) -> Self:
        _ambient.set((*_ambient.get(), self.keys))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ambient.set(_ambient.get()[:-1])

    def for_process(self) -> Self:
        """Add the keys to every later commit of this process; a `with` inside it adds to them or overrides them."""
        global _of_process
        _of_process = dict(self.keys)  # one assignment: a commit of another thread sees all of it or nothing
        return self

    def on(self, spark: Any) -> SessionLineage:
        """For every later Iceberg write of the session; in a `with`, until its end."""
        return SessionLineage(spark, self._named())

    def options(self) -> dict[str, str]:
        """For one write: `df.writeTo(name).options(**...)` or `df.write.options(**...)`."""
        return {f"{_OPTION}{key}": value for key, value in self._named().items()}

    def _named(self) -> Mapping[str, str]:
        """The keys with an operation: Spark needs it before the write, so an unnamed operation becomes the most common one."""
        return {_OPERATION: "append", **self.keys}


class SessionLineage:
    """Sets the keys when it is created; the earlier settings come back at the end of a `with`."""

    def __init__(self, spark: Any, keys: Mapping[str, str]) -> None:
        self._spark = spark
        # Keys that an earlier session lineage set, and this one does not, must not stay.
        set_before = {name: value for name, value in spark.conf.getAll.items() if name.startswith(_SESSION)}
        self._before = set_before
        self._replace(set_before, {f"{_SESSION}{key}": value for key, value in keys.items()})
        self._in_thread = _say_in_thread(spark, keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = {name: "" for name in self._spark.conf.getAll if name.startswith(_SESSION)}
        self._replace(mine, self._before)
        if self._in_thread is not None:
            self._in_thread()

    def _replace(self, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        for name in old:
            if name not in new:
                self._spark.conf.unset(name)
        for name, value in new.items():
            self._spark.conf.set(name, value)


def _say_in_thread(spark: Any, keys: Mapping[str, str]) -> Callable[[], None] | None:
    """Set the keys in this thread: a DELETE of whole partitions runs no job, and Iceberg reads only a value of
    the thread for it.

    Returns a function that restores the old value, or None if there is no JVM in this process (a Connect
    session).
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    field = loader.loadClass(_METADATA_OF_COMMITS).getDeclaredField("COMMIT_PROPERTIES")
    field.setAccessible(True)
    of_thread = field.get(None)
    before = of_thread.get()
    properties = jvm.java.util.HashMap()
    for key, value in keys.items():
        properties.put(key, value)
    of_thread.set(properties)
    return lambda: of_thread.set(before)


def said(summary: Mapping[str, str]) -> dict[str, str]:
    """The summary with the lineage of the process and this thread added; the commit's own values stay."""
    ambient = dict(_of_process)
    for each in _ambient.get():
        ambient |= each
    by_library = _BY_LIBRARY.get(str(summary.get("operation", "")))
    if ambient and by_library and _OPERATION not in ambient:
        ambient[_OPERATION] = by_library
    return {**ambient, **summary}


_KEYS, _OPERATIONS, _OPERATORS = (
    "lineage_required_keys",
    "lineage_allowed_operations",
    "lineage_overwrite_operators",
)


def requirements(policy: Policy) -> Requirements:
    """The requirements of a table's policy for every commit."""
    return Requirements(policy.columns(_KEYS), _names(policy, _OPERATIONS), _names(policy, _OPERATORS))


def asked_by(policy: Policy) -> tuple[str, ...]:
    """The same in words, each with its origin, so that a user can see who made a rule."""
    return tuple(
        str(policy.values[key]) for key in (_KEYS, _OPERATIONS, _OPERATORS) if policy[key] is not None
    )


def expiry_reserved(policy: Policy) -> bool:
    """Whether only Lakewarden may expire the table's snapshots."""
    return policy.bool("snapshot_expiry_reserved")


def _names(policy: Policy, key: str) -> frozenset[str] | None:
    return None if policy[key] is None else frozenset(policy.columns(key))


def rejection(table: object, violations: tuple[Violation, ...]) -> LineageRejected:
    """All violations of a commit, in one error."""
    return LineageRejected(
        target=table, reason="; ".join(str(violation) for violation in violations), violations=violations
    )


@dataclass(frozen=True, slots=True)
class Hook:
    """Checks commits that arrive one way, e.g. through the gateway; `door` is its label in the counts. Counts
    need a state database.

    Callers run `check` right before the commit: it either passes, or it is counted and LineageRejected
    lists everything that is wrong.
    """

    door: str
    state: State | None = None

    def check(self, table: object, asked: Requirements, *summaries: Mapping[str, str]) -> None:
        """Check all snapshots of one commit together."""
        violations = validate_all(summaries, asked)
        if not violations:
            return
        error = rejection(table, violations)
        self._count(str(table), error.message)
        raise error

    def _count(self, table: str, reason: str) -> None:
        if self.state is None:
            return
        try:
            Rejections(self.state).add(table, self.door, reason, clock.now())
        except (Unreachable, SQLAlchemyError) as error:
            # A commit is rejected whether or not the rejection can be counted.
            log.warning("a rejected commit to %s was not counted: %s", table, type(error).__name__)
