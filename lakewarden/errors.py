"""Every error a user can see, as one tree.

    LakewardenError                 1    something failed
    ├── UsageError                  2    the call itself is wrong; nothing was done
    │   ├── ConfigError             2    a setting is missing or wrong
    │   └── PolicyError             2    a policy key or value is wrong
    ├── Unreachable                 2    a configured catalog, store or database does not answer
    ├── NoSuchTable                10    no catalog has that table
    ├── Busy                       11    another run of this job is in progress on the table
    ├── RunTaken                   11    the run ended, or another process took it over
    ├── Refused                    12    a safety rule says no
    │   ├── LineageRejected        12    a commit lacks the lineage that the table requires
    │   └── StateTooNew            12    the state database was written by a newer Lakewarden
    ├── CommitLost                 13    another writer changed the same files first; nothing changed
    │   ├── CommitRefused           1    the commit is not allowed; nothing changed
    │   │   └── CommitDeclined      1    the catalog rejected a commit that was sent; nothing is removed
    │   └── CommitNotSent           1    something failed before the commit was sent; nothing changed
    │       └── CommitForbidden    12    the catalog's library would delete a file that is not the table's; nothing changed
    ├── CommitUnknown              14    the catalog did not say whether the commit happened
    ├── Stopped                   130    the run was asked to stop, and did
    └── NotSetUp                    1    Java, jars or Spark are not ready on this machine

The docstring of a class is its message template, filled from the keyword arguments; `hint` is the next step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar


class LakewardenError(Exception):
    """{reason}"""

    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False
    hint: str = ""

    def __init__(self, *, hint: str | None = None, **parts: Any) -> None:
        self.parts = parts
        template = type(self).__doc__ or "{reason}"
        super().__init__(template.format_map(parts))
        self.hint = (type(self).hint if hint is None else hint).format_map(_Blank(parts))
        if self.hint:
            self.add_note(self.hint)  # so that a traceback in a user's program shows the next step too

    @property
    def message(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "error": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
            "retry": self.retry,
        }


class _Blank(dict[str, Any]):
    """A hint may use a part that the raiser did not pass: then the placeholder's name is shown."""

    def __missing__(self, key: str) -> str:
        return key.upper()


class UsageError(LakewardenError):
    """{reason}"""

    exit_code = 2
    hint = "see `lakewarden --help`"


class ConfigError(UsageError):
    """cannot read {key} in {where}: {reason}"""

    hint = "see docs/configuration.md for every setting, or run `lakewarden doctor`"


class PolicyError(UsageError):
    """cannot set policy key {key}: {reason}"""

    hint = "see `lakewarden policy TABLE` for every key with its value and origin"


class NoSuchTable(LakewardenError):
    """cannot find table {table}: {reason}"""

    exit_code = 10
    hint = "see `lakewarden tables` for every table of the configured catalogs"


class Busy(LakewardenError):
    """cannot start {job} on {table}: run {run_id} is in progress ({owner}, since {since})"""

    exit_code = 11
    retry = True
    hint = "wait for it, or see `lakewarden run-show {run_id}`"


class NoWorker(LakewardenError):
    """cannot wait for request {request}: no worker has been running for {seconds} s"""

    exit_code = 11
    retry = True
    hint = "the request stays filed until a worker runs it: start one with `lakewarden worker`, and see the request with `lakewarden requests {table}`"


class RunTaken(LakewardenError):
    """cannot continue run {run_id}: {reason}"""

    exit_code = 11
    hint = "this process stopped acting on it; see `lakewarden run-show {run_id}`"


class Refused(LakewardenError):
    """refusing to {action} {target}: {reason}"""

    exit_code = 12


class LineageRejected(Refused):
    """refusing to commit to {target}: {reason}"""

    hint = "add the lineage that the table requires to the commit: see `lakewarden policy {target}`, keys lineage_*"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "violations": [each.to_dict() for each in self.parts["violations"]]}


class StateTooNew(Refused):
    """refusing to open {target}: it has schema {found}, this Lakewarden supports up to {known}"""

    hint = "upgrade Lakewarden to the version that wrote it; an older version must not write to it"


class CommitLost(LakewardenError):
    """cannot commit to {table}: {reason}"""

    exit_code = 13
    retry = True
    hint = "nothing changed; run the job again"


class CommitRefused(CommitLost):
    """cannot commit to {table}: the catalog refused it ({reason})"""

    exit_code = 1
    retry = False
    hint = "nothing changed; check what the credentials in the configuration may do"


class CommitDeclined(CommitRefused):
    """cannot commit to {table}: the catalog refused it ({reason})"""

    hint = (
        "check what the credentials in the configuration may do; the written files are kept, because a proxy may have sent the "
        "request twice and the first copy may still arrive; if it does not, a sweep finds them"
    )


class CommitNotSent(CommitLost):
    """cannot commit to {table}: it failed before it was sent ({reason})"""

    exit_code = 1
    hint = "nothing changed; `lakewarden fsck {table}` checks the table's metadata"


class CommitForbidden(CommitNotSent):
    """cannot commit to {table}: {reason}"""

    exit_code = 12
    retry = False
    hint = (
        "nothing changed; ALTER TABLE {table} SET TBLPROPERTIES ('write.metadata.delete-after-commit.enabled'='false'), and find out who "
        "wrote that log; if the file belongs to the table, add its folder to policy key own_places"
    )


class CommitUnknown(LakewardenError):
    """unknown outcome of a commit to {table}: the catalog did not say whether it happened ({reason})"""

    exit_code = 14
    hint = "nothing was removed; the next run reads the table to find out whether the commit happened"


class Outage(StrEnum):
    """The outside system that does not answer."""

    STATE = "state-database"
    CATALOG = "catalog"
    STORE = "store"


class Unreachable(LakewardenError):
    """cannot reach {what}: {reason}"""

    exit_code = 2
    retry = True
    hint = "check that it is up and that the address and credentials in the configuration are right: `lakewarden doctor`"

    def __init__(
        self, *, what: str, reason: str, kind: Outage = Outage.STORE, hint: str | None = None
    ) -> None:
        super().__init__(hint=hint, what=what, reason=reason)
        self.kind = kind

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "kind": str(self.kind)}


class Stopped(LakewardenError):
    """stopped: {reason}"""

    exit_code = 130
    hint = "no table is left half changed: commits already made stay, and the next run continues; see `lakewarden runs`"


class NotSetUp(LakewardenError):
    """{what} is not set up: {reason}"""

    hint = "run `lakewarden doctor`"


def message_of(error: Exception) -> str:
    """The message of an error of Lakewarden; of any other error, its class too."""
    return error.message if isinstance(error, LakewardenError) else f"{type(error).__name__}: {error}"
