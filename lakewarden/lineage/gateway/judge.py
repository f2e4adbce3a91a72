"""What speaks against a commit. Pure: the rules, and the table as it is now, are handed in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from lakewarden.lineage.gateway.commits import Change
from lakewarden.lineage.validate import Requirements, validate
from lakewarden.state.expiries import Going
from lakewarden.state.pins import MIRROR, Pin

_SHOWN = 5
MAIN = "main"


class Rule(StrEnum):
    """Why a commit is turned away; the label of the count."""

    LINEAGE = "lineage"
    PIN = "pin"
    REF = "ref"
    RESERVED = "reserved"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the table's policy asks of everybody's commits."""

    requirements: Requirements
    expiry_reserved: bool = False
    protected_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ref:
    kind: str
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Now:
    """The table at this moment. `expiring` is what Lakewarden's own expiry said it is about to remove."""

    refs: Mapping[str, Ref] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    expiring: Going = field(default_factory=Going)


@dataclass(frozen=True, slots=True)
class Objection:
    rule: Rule
    reason: str


def looks_at_table(change: Change, rules: Rules) -> bool:
    """Whether it can only be judged by the table as it is now. An append to a branch can do without."""
    return change.takes_turn or any(_guarded(ref.name, rules) for ref in change.refs)


def judge(change: Change, rules: Rules, now: Now) -> tuple[Objection, ...]:
    """Everything that speaks against it, at once; nothing where it may go on to the catalog."""
    return (*_lineage(change, rules), *_removal(change, rules, now), *_tags(change, rules, now))


def _lineage(change: Change, rules: Rules) -> Iterator[Objection]:
    found = (each for summary in change.summaries for each in validate(summary, rules.requirements))
    yield from (Objection(Rule.LINEAGE, str(each)) for each in dict.fromkeys(found))


def _removal(change: Change, rules: Rules, now: Now) -> Iterator[Objection]:
    for pin in now.pins:
        if pin.snapshot_id in change.removed:
            until = "" if pin.expires_at is None else f" until {pin.expires_at:%Y-%m-%d %H:%M} UTC"
            yield Objection(
                Rule.PIN, f"snapshot {pin.snapshot_id} is pinned by {pin.holder}{until} (pin {pin.id})"
            )
    for name, ref in sorted(_afterwards(change, now).items()):
        if ref.snapshot_id in change.removed:
            yield Objection(Rule.REF, f"{ref.kind} {name} names snapshot {ref.snapshot_id}")
    foreign = change.removed - now.expiring.snapshots
    if rules.expiry_reserved and foreign:
        yield Objection(
            Rule.RESERVED,
            f"only Lakewarden expires this table's snapshots (snapshot_expiry_reserved), and it is not expiring {_ids(foreign)} now",
        )


def _afterwards(change: Change, now: Now) -> dict[str, Ref]:
    """The refs the commit would leave: one that it drops itself protects nothing, unless the tag is protected."""
    refs = dict(now.refs)
    for each in change.refs:
        if each.kind is None or each.snapshot_id is None:
            refs.pop(each.name, None)
        else:
            refs[each.name] = Ref(each.kind, each.snapshot_id)
    return refs


def _tags(change: Change, rules: Rules, now: Now) -> Iterator[Objection]:
    mirrors = {pin.tag: pin for pin in now.pins if pin.tag is not None}
    for each in change.refs:
        there = now.refs.get(each.name)
        if (
            there is None
            or there.kind != "tag"
            or (each.kind, each.snapshot_id) == ("tag", there.snapshot_id)
        ):
            continue
        does = "drops" if each.kind is None else "moves"
        if each.name in mirrors:
            pin = mirrors[each.name]
            yield Objection(
                Rule.TAG, f"it {does} tag {each.name}, which mirrors the pin of {pin.holder} (pin {pin.id})"
            )
        elif _matches(each.name, rules) and not (each.kind is None and each.name in now.expiring.refs):
            # One whose own age is over goes with Lakewarden's expiry.
            yield Objection(Rule.TAG, f"it {does} tag {each.name}, which is protected (protected_tags)")


def _guarded(name: str, rules: Rules) -> bool:
    """Whether it can be a protected tag. The branch main cannot be one, whatever the patterns say."""
    return name != MAIN and (name.startswith(MIRROR) or _matches(name, rules))


def _matches(name: str, rules: Rules) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in rules.protected_tags)


def _ids(ids: Iterable[int]) -> str:
    every = sorted(ids)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(str(each) for each in every[:_SHOWN]) + more
