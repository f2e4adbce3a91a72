"""Every error a user can meet, as one tree.

    LakewardenError                 1    something failed
    ├── UsageError                  2    the call itself is wrong; nothing was done
    │   ├── ConfigError             2    a setting is missing or wrong
    │   └── PolicyError             2    a policy key or value is wrong
    ├── Unreachable                 2    a catalog, store or database the settings name does not answer
    ├── NoSuchTable                10    no catalog has that table
    ├── Busy                       11    another run of this job holds the table
    ├── RunTaken                   11    the run ended, or another process drives it now
    ├── Refused                    12    a safety rule says no
    │   ├── LineageRejected        12    a commit does not say what the table asks every commit to say
    │   └── StateTooNew            12    the state database was written by a newer Lakewarden
    ├── CommitLost                 13    someone else changed the same files first; nothing changed
    │   ├── CommitRefused           1    it is not allowed; nothing changed
    │   │   └── CommitDeclined      1    the catalog said so of a commit that was sent; nothing is removed
    │   └── CommitNotSent           1    something failed before the commit was sent; nothing changed
    │       └── CommitForbidden    12    the catalog's own library would delete a file that is not the table's; nothing changed
    ├── CommitUnknown              14    the catalog did not say whether the commit happened
    ├── Stopped                   130    the run was told to stop, and did
    └── NotSetUp                    1    Java, jars or Spark are not ready on this machine

The docstring of a class is its message, filled from the keyword arguments; `hint` is the next thing to do.
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
            self.add_note(self.hint)  # a traceback in somebody's own program shows the next step too

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
    """Hints may name parts the raiser did not have; they print as the placeholder's name."""

    def __missing__(self, key: str) -> str:
        return key.upper()


class UsageError(LakewardenError):
    """{reason}"""

    exit_code = 2
    hint = "see `lakewarden --help`"


class ConfigError(UsageError):
    """read {key} in {where}: {reason}"""

    hint = "see docs/configuration.md for every setting, or run `lakewarden doctor`"


class PolicyError(UsageError):
    """set policy key {key}: {reason}"""

    hint = "see `lakewarden policy TABLE` for every key with its value and origin"


class NoSuchTable(LakewardenError):
    """find table {table}: {reason}"""

    exit_code = 10
    hint = "see `lakewarden tables` for every table of the configured catalogs"


class Busy(LakewardenError):
    """start {job} on {table}: run {run_id} is already at it ({owner}, since {since})"""

    exit_code = 11
    retry = True
    hint = "wait for it, or see `lakewarden run-show {run_id}`"


class NoWorker(LakewardenError):
    """wait for request {request}: no worker has led for {seconds} s"""

    exit_code = 11
    retry = True
    hint = "it stays filed, and the next worker takes it up: start one with `lakewarden worker`, see it with `lakewarden requests {table}`"


class RunTaken(LakewardenError):
    """go on with run {run_id}: {reason}"""

    exit_code = 11
    hint = "this process stopped acting on it; see `lakewarden run-show {run_id}`"


class Refused(LakewardenError):
    """refusing to {action} {target}: {reason}"""

    exit_code = 12


class LineageRejected(Refused):
    """refusing to commit to {target}: {reason}"""

    hint = "give the commit the lineage the table asks for: see `lakewarden policy {target}`, keys lineage_*"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "violations": [each.to_dict() for each in self.parts["violations"]]}


class StateTooNew(Refused):
    """refusing to open {target}: it has schema {found}, this Lakewarden knows up to {known}"""

    hint = "upgrade Lakewarden to the version that wrote it; an older one must not write there"


class CommitLost(LakewardenError):
    """commit to {table}: {reason}"""

    exit_code = 13
    retry = True
    hint = "nothing changed; plan again and run"


class CommitRefused(CommitLost):
    """commit to {table}: the catalog refused it ({reason})"""

    exit_code = 1
    retry = False
    hint = "nothing changed; check what the credentials in the configuration may do"


class CommitDeclined(CommitRefused):
    """commit to {table}: the catalog refused it ({reason})"""

    hint = (
        "check what the credentials in the configuration may do; files that were written stay, because a proxy may have sent the "
        "request twice and the first copy may still arrive; sweep finds them if it does not"
    )


class CommitNotSent(CommitLost):
    """commit to {table}: it failed before it was sent ({reason})"""

    exit_code = 1
    hint = "nothing changed; `lakewarden fsck {table}` tells whether the table's metadata is whole"


class CommitForbidden(CommitNotSent):
    """commit to {table}: {reason}"""

    exit_code = 12
    retry = False
    hint = (
        "nothing changed; ALTER TABLE {table} SET TBLPROPERTIES ('write.metadata.delete-after-commit.enabled'='false'), and ask who wrote "
        "that log; where the file is the table's, name its folder in policy key own_places"
    )


class CommitUnknown(LakewardenError):
    """commit to {table}: the catalog did not say whether it happened ({reason})"""

    exit_code = 14
    hint = "nothing was removed; the next run reads the table and settles it"


class Outage(StrEnum):
    """Which part of the surroundings does not answer."""

    STATE = "state-database"
    CATALOG = "catalog"
    STORE = "store"


class Unreachable(LakewardenError):
    """reach {what}: {reason}"""

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
    hint = "nothing is half done: what was committed stands, and the next run goes on; see `lakewarden runs`"


class NotSetUp(LakewardenError):
    """{what} is not set up: {reason}"""

    hint = "run `lakewarden doctor`"
