"""Arguments and options that several commands share, and their shell completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from lakewarden.errors import UsageError
from lakewarden.model.run import Job, Trigger
from lakewarden.model.table import TableRef

TriggerType = Literal["manual", "schedule", "incident-response"]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """`KEY=` for every policy key; after the `=`, the values of a key that has choices."""
    from lakewarden.policy.keys import KEYS

    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [(f"{key.name}=", key.sentence) for key in KEYS]
    choices = next((key.choices for key in KEYS if key.name == name), ())
    return [(f"{name}={choice}", "") for choice in choices]


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    from lakewarden.policy.keys import KEYS

    return [(key.name, key.sentence) for key in KEYS if key.name.startswith(incomplete)]


AtSnapshot = Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="Use this snapshot.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Use the snapshot that was current at this time (UTC, such as 2026-01-31T12:00) or age (such as 90d).",
    ),
]
AtTag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="Use the snapshot of this tag.")]
JsonFlag = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON document instead of text.")
]
JobName = Annotated[Job, typer.Argument(metavar="JOB", help=f"One of: {', '.join(Job)}.", show_choices=False)]
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="CATALOG.NAMESPACE.TABLE, for example lake.db.events.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a policy key for this call only; `lakewarden policy TABLE` lists the keys. May be repeated.",
        autocompletion=complete_setting,
    ),
]
Branch = Annotated[
    str | None,
    typer.Option(
        "--branch", metavar="NAME", help="Branch to work on; the same as --set rewrite_branch=NAME."
    ),
]
Operator = Annotated[
    str | None,
    typer.Option("--operator", metavar="NAME", help="Who requests it (default: the current user)."),
]
Ticket = Annotated[
    str | None,
    typer.Option("--ticket", metavar="ID", help="Ticket number; required for incident-response."),
]
TriggerOption = Annotated[
    TriggerType, typer.Option("--trigger", help="Why it runs; written into every commit.")
]


def table_ref(name: str) -> TableRef:
    return TableRef.parse(name)


def settings(pairs: Sequence[str] | None, branch: str | None = None) -> dict[str, str]:
    """`KEY=VALUE` pairs, checked before anything slow starts. The last value of a repeated key wins."""
    from lakewarden.policy.origin import Layer, Origin
    from lakewarden.policy.resolve import read_layer

    found = dict(_pair(each) for each in pairs or ())
    if branch is not None:
        found["rewrite_branch"] = branch
    read_layer(found, Origin(Layer.CALL))
    return found


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(
            reason=f"cannot read --set {text!r}: it is not KEY=VALUE",
            hint="for example --set rewrite_target_bytes=256MiB",
        )
    return key.strip(), value


def current_trigger() -> Trigger:
    """A manual run by the current user."""
    return trigger("manual", None, None)


def trigger(kind: TriggerType, operator: str | None, ticket: str | None) -> Trigger:
    """The trigger, checked before anything slow starts. A manual run belongs to the current user unless an
    operator is given."""
    from lakewarden.lineage.summary import checked
    from lakewarden.services.deps import current_user

    return checked(Trigger(kind, operator or (current_user() if kind == "manual" else None), ticket))
