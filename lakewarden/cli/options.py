"""Arguments and options that several commands share, and what the shell completes for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from lakewarden.errors import UsageError
from lakewarden.model.run import Job, Trigger
from lakewarden.model.table_name import TableRef

TriggerType = Literal["manual", "schedule", "incident-response"]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """`KEY=` for every policy key; once a key with choices is typed, its values."""
    from lakewarden.policy.keys import KEYS

    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [(f"{key.name}=", key.sentence) for key in KEYS]
    choices = next((key.choices for key in KEYS if key.name == name), ())
    return [(f"{name}={choice}", "") for choice in choices]


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    from lakewarden.policy.keys import KEYS

    return [(key.name, key.sentence) for key in KEYS if key.name.startswith(incomplete)]


AtSnapshot = Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="That snapshot.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="The table at that time: 2026-01-31T12:00 (UTC), or how long ago: 90d.",
    ),
]
AtTag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="What the tag names.")]
JsonFlag = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document instead.")]
JobName = Annotated[Job, typer.Argument(metavar="JOB", help=f"One of: {', '.join(Job)}.", show_choices=False)]
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="CATALOG.NAMESPACE.TABLE, as lake.db.events.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A policy key for this call only; may be repeated.",
        autocompletion=complete_setting,
    ),
]
Branch = Annotated[
    str | None,
    typer.Option(
        "--branch", metavar="NAME", help="The branch to work on; the same as --set rewrite_branch=NAME."
    ),
]
Operator = Annotated[
    str | None, typer.Option("--operator", metavar="NAME", help="Who asks for it; you, when not said.")
]
Ticket = Annotated[
    str | None,
    typer.Option("--ticket", metavar="ID", help="The ticket behind it; incident-response needs one."),
]
TriggerOption = Annotated[
    TriggerType, typer.Option("--trigger", help="Why it runs; written into every commit it makes.")
]


def table_ref(name: str) -> TableRef:
    return TableRef.parse(name)


def settings(pairs: Sequence[str] | None, branch: str | None = None) -> dict[str, str]:
    """`k=v` pairs, checked before anything slow starts; of a repeated key the last one counts."""
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
            reason=f"read --set {text!r}: it is not KEY=VALUE",
            hint="for example --set rewrite_target_bytes=256MiB",
        )
    return key.strip(), value


def current_trigger() -> Trigger:
    """A manual run of whoever sits here."""
    return trigger("manual", None, None)


def trigger(kind: TriggerType, operator: str | None, ticket: str | None) -> Trigger:
    """Checked before anything slow starts; a manual run is its user's unless it names someone else."""
    from lakewarden.lineage.summary import checked
    from lakewarden.services.trigger import current_user

    return checked(Trigger(kind, operator or (current_user() if kind == "manual" else None), ticket))
