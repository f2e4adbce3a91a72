"""expire: which snapshots leave the table's metadata, and why every other one stays. A pure planner.

A snapshot stays for the first of these reasons that holds: a tag or branch names it, a reader pinned it, a
streaming writer restarts from it, it is inside the window, a branch keeps it as history, it is one of the
few that are always kept. Reasons are a set over all snapshots: none of them is found by walking a chain
that may be broken.

Changelogs expire after their snapshots, by their own retention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from math import inf

from lakewarden.deletion.holds import Holds
from lakewarden.errors import Refused
from lakewarden.model.actions import ExpireChangelogs, ExpireRefs, ExpireSnapshots
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.plan import Bounds, Plan, count_skipped
from lakewarden.model.reason import HELD, Reason, ReasonKind
from lakewarden.model.run import Job
from lakewarden.model.table import Ref, Snapshot, TableView
from lakewarden.policy.resolve import Policy
from lakewarden.policy.values import REF_AGE
from lakewarden.rewrite.write.encoding import INT, LONG, OddProperty, whole_number

# If the newest commit is further in the future than this, the writer's clock disagrees with ours.
_CLOCKS_AGREE = timedelta(minutes=5)
_MAIN = "main"
_GC = "gc.enabled"
_NESSIE = "nessie.commit.id"  # Nessie's catalog adds it to the properties of each table it loads
# Snapshots that these properties of the table keep stay, even if the policy would drop them.
_MIN_KEPT = "history.expire.min-snapshots-to-keep"
_MAX_AGE = "history.expire.max-snapshot-age-ms"
# The allowed values. A ref age of zero would drop every tag.
_RETENTION = {_MIN_KEPT: (0, INT), _MAX_AGE: (0, LONG), REF_AGE: (1, LONG)}
# Longer than the age of any table, and short enough to be subtracted from now.
_LONGEST = timedelta(days=365 * 2000)
_MILLISECOND = timedelta(milliseconds=1)


def plan(
    view: TableView,
    policy: Policy,
    holds: Holds,
    now: datetime,
    handed_off: Collection[int] | None = None,
) -> Plan:
    """Expire snapshots past the window that nothing holds. Every other snapshot is skipped, with its reason.

    If `handed_off` is given (the snapshots in the colder tier), no other snapshot expires, and no tag of another is dropped.
    """
    empty = Plan(
        job=Job.EXPIRE,
        table=view.ref,
        made_at=now,
        bounds=Bounds(view.current_snapshot_id, _MAIN, 0),
        policy_hash=policy.hash(),
        reason="",
    )
    if not policy.bool("snapshot_expiry_enabled"):
        return replace(empty, reason=f"switched off: {policy.explain('snapshot_expiry_enabled')}", off=True)
    until = holds.complete_from(policy.hours("delete_grace_hours"))
    if until is not None and until > now:
        return replace(empty, reason=waits_for_pins(until).text)
    refs, outlived = _split_refs(view, policy, holds, now)
    kept = _reasons(view, refs, policy, holds, now, handed_off)
    waiting: list[Ref] = []
    if handed_off is not None:
        stays = {*handed_off, *_reasons(view, refs, policy, holds, now, None)}
        # The tag is dropped together with its snapshot: it may have the last copy of it.
        waiting = [each for each in outlived if each.kind == "tag" and each.snapshot_id not in stays]
        outlived = [each for each in outlived if each not in waiting]
    order = _number if view.in_order else _age
    free = sorted((each for each in view.snapshots if each.id not in kept), key=order)
    limit = policy.maybe_int("snapshot_expire_limit")
    chosen, rest = free[:limit], free[len(free[:limit]) :]
    left = policy.explain("snapshot_expire_limit")
    kept |= dict.fromkeys(
        (each.id for each in rest), Reason(ReasonKind.LIMIT, f"left for the next run: {left}")
    )
    changelogs = Outlived() if policy.ids("snapshot_ids") else outlived_changelogs(view, chosen, now)
    return replace(
        empty,
        actions=_actions(policy, outlived, chosen, changelogs),
        skipped=count_skipped(
            [
                *(("snapshot", 1, 0, kept[each.id]) for each in view.snapshots if each.id in kept),
                *(("changelog", 1, 0, changelogs.kept) for _ in changelogs.stay if changelogs.kept),
                *(("tag", 1, 0, _waits(policy)) for _ in waiting),
            ]
        ),
        reason=_summary(chosen, outlived, len(view.snapshots), changelogs.gone),
        cut_short=f"{len(rest)} more would expire: {left}" if rest else "",
    )


def _actions(
    policy: Policy, outlived: Sequence[Ref], chosen: Sequence[Snapshot], changelogs: Outlived
) -> tuple[ExpireRefs | ExpireSnapshots | ExpireChangelogs, ...]:
    actions: list[ExpireRefs | ExpireSnapshots | ExpireChangelogs] = []
    if outlived:
        actions.append(ExpireRefs(tuple(ref.name for ref in outlived), _why_dropped(outlived, policy)))
    if chosen:
        why = f"older than {policy.explain('snapshot_retention_hours')}"
        if policy.ids("snapshot_ids"):
            why = "asked for by id"
        actions.append(ExpireSnapshots(tuple(each.id for each in chosen), why))
    if changelogs.gone:
        actions.append(ExpireChangelogs(changelogs.gone, changelogs.why))
    return tuple(actions)


def _why_dropped(outlived: Sequence[Ref], policy: Policy) -> str:
    own = all(ref.max_age_ms is not None or ref.ends_at is not None for ref in outlived)
    other = "" if own else f", or than {policy.explain('snapshot_ref_retention_hours')}"
    return f"older than the ref's own retention{other}"


def check(view: TableView, now: datetime) -> None:
    """Refuses tables that no policy may allow to expire."""
    refuse_without_gc("expire", view)
    refuse_odd_retention("expire", view)
    refuse_other_clock("expire snapshots of", view, now)


def refuse_odd_retention(action: str, view: TableView) -> None:
    """Refuses a table whose own retention properties cannot be read."""
    for key in _RETENTION:
        try:
            _retention(view, key)
        except OddProperty as odd:
            raise Refused(
                action=action,
                target=view.ref,
                reason=f"its property {key} must be {odd.allowed}; got {odd.text!r}",
                hint=f"ALTER TABLE {view.ref} SET TBLPROPERTIES ('{key}'='…'), or UNSET TBLPROPERTIES ('{key}')",
            ) from odd


def _retention(view: TableView, key: str) -> int | None:
    """The property's value, or None if it is not set. Raises OddProperty if it cannot be read."""
    return whole_number(view.properties, key, *_RETENTION[key])


def _at_least(view: TableView, key: str) -> float:
    """How much the table asks to keep; everything, if its property cannot be read."""
    try:
        return _retention(view, key) or 0
    except OddProperty:
        return inf


def own_window(view: TableView) -> timedelta:
    """How long the table itself asks to keep snapshots."""
    asked = _at_least(view, _MAX_AGE)
    return timedelta(milliseconds=asked) if asked < _LONGEST / _MILLISECOND else _LONGEST


def refuse_other_clock(action: str, view: TableView, now: datetime) -> None:
    """Refuses if this machine's clock disagrees with the newest commit: then the ages of snapshots are not known."""
    newest = max((each.committed_at for each in view.snapshots), default=now)
    if newest > now + _CLOCKS_AGREE:
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"its newest snapshot is of {newest:%Y-%m-%d %H:%M:%S} UTC, this machine's clock says {now:%Y-%m-%d %H:%M:%S} UTC",
            hint="set the clock right; ages are not known while the two disagree",
        )


def refuse_without_gc(action: str, view: TableView) -> None:
    """With gc.enabled=false the table shares its files with another one: only rewrites are allowed."""
    found = view.properties.get(_GC, "true")
    if found.lower() != "true":  # as Iceberg reads it: every value except true means no
        if _NESSIE in view.properties:
            raise Refused(
                action=action,
                target=view.ref,
                reason=f"it is in Nessie (gc.enabled is {found}), whose branches and tags may need any of its files",
                hint="Nessie collects its garbage itself: run its GC tool; compact and rewrite-manifests work here",
            )
        raise Refused(
            action=action,
            target=view.ref,
            reason=f"its property gc.enabled is {found}: its files may belong to another table too",
            hint="only if no other table uses its files: ALTER TABLE … SET TBLPROPERTIES ('gc.enabled'='true')",
        )


def waits_for_pins(until: datetime) -> Reason:
    return Reason(
        ReasonKind.STATE_RESTORED,
        f"waits until {until:%Y-%m-%d %H:%M} UTC (delete_grace_hours): the state database was restored from a backup, "
        "and pins made since that backup have to be made again",
    )


def reasons(view: TableView, policy: Policy, holds: Holds, now: datetime) -> dict[int, Reason]:
    """For each snapshot that stays, the reason. All others may expire, whether or not expiry is switched on."""
    refs, _ = _split_refs(view, policy, holds, now)
    return _reasons(view, refs, policy, holds, now, None)


def _reasons(
    view: TableView,
    refs: Sequence[Ref],
    policy: Policy,
    holds: Holds,
    now: datetime,
    handed_off: Collection[int] | None,
) -> dict[int, Reason]:
    kept = _kept(view, refs, policy, holds, now)
    if handed_off is not None:
        waits = _waits(policy)
        kept = {each.id: waits for each in view.snapshots if each.id not in handed_off} | kept
    return _behind_the_first_kept(view, kept) if view.in_order else kept


def _waits(policy: Policy) -> Reason:
    return Reason(
        ReasonKind.HANDOFF,
        f"waits for its hand-off to the colder tier: {policy.explain('handoff_enabled')}",
    )


def refs_to_drop(made: Plan, view: TableView) -> dict[str, int]:
    """The refs that a plan drops, each with the snapshot that it named at planning time."""
    names = {name for action in made.actions if isinstance(action, ExpireRefs) for name in action.names}
    return {ref.name: ref.snapshot_id for ref in view.refs if ref.name in names}


def snapshots_to_drop(made: Plan) -> tuple[int, ...]:
    found = (action.snapshot_ids for action in made.actions if isinstance(action, ExpireSnapshots))
    return tuple(each for ids in found for each in ids)


def changelogs_to_drop(made: Plan) -> tuple[int, ...]:
    return tuple(
        each for action in made.actions if isinstance(action, ExpireChangelogs) for each in action.ids
    )


def _kept(
    view: TableView, refs: Sequence[Ref], policy: Policy, holds: Holds, now: datetime
) -> dict[int, Reason]:
    """The first reason of each snapshot to stay. Later assignments win, so the reasons come in reverse order."""
    kept: dict[int, Reason] = {}
    kept |= _not_asked_for(view, policy)
    few = Reason(ReasonKind.MIN_RETAINED, policy.explain("snapshot_min_retained"))
    kept |= dict.fromkeys(_newest_of_main(view, policy), few)
    for ref in refs:
        past = Reason(ReasonKind.HISTORY, f"history of {ref.kind} {ref.name}")
        kept |= dict.fromkeys(_history_of(view, ref, now), past)
    kept |= _in_window(view, policy, now)
    kept |= {snapshot: why for snapshot, each in holds.snapshots().items() if (why := _held(each, snapshot))}
    kept |= {_named_by(ref, view): _by_ref(ref) for ref in refs if not ref.has_copy}
    if view.current_snapshot_id is not None:
        kept[view.current_snapshot_id] = Reason(ReasonKind.CURRENT, "the current snapshot")
    return kept


def _by_ref(ref: Ref) -> Reason:
    return Reason(ReasonKind(ref.kind), f"{ref.kind} {ref.name}")


def _named_by(ref: Ref, view: TableView) -> int:
    """The snapshot that a ref keeps. A consumer continues from its snapshot, or from the oldest one if that is gone."""
    oldest = min((each.id for each in view.snapshots), default=ref.snapshot_id)
    return max(ref.snapshot_id, oldest) if ref.kind == "consumer" else ref.snapshot_id


def _behind_the_first_kept(view: TableView, kept: dict[int, Reason]) -> dict[int, Reason]:
    """Where snapshots expire from the oldest on, the first one that stays keeps all later ones."""
    first = min((each.id for each in view.snapshots if each.id in kept), default=None)
    if first is None:
        return kept
    kind = ReasonKind.AFTER_HELD if kept[first].kind in HELD else ReasonKind.AFTER_KEPT
    why = Reason(kind, f"after snapshot {first}, which stays: {kept[first].text}")
    return {each.id: kept.get(each.id, why) for each in view.snapshots if each.id >= first}


def _split_refs(view: TableView, policy: Policy, holds: Holds, now: datetime) -> tuple[list[Ref], list[Ref]]:
    """Refs that stay, and refs whose retention is over. Iceberg counts it from the commit of the snapshot.

    Iceberg's property for refs without their own retention could drop every tag. So it counts only through the
    policy, which the operator decides. A protected tag stays at any age: every writer of the table could shorten it.
    """
    protected = policy.columns("protected_tags")
    ages = {each.id: now - each.committed_at for each in view.snapshots}
    default = policy.maybe_hours("snapshot_ref_retention_hours") if view.format == "iceberg" else None
    # The copy of a tag may be the last copy of a pinned snapshot.
    pinned = {hold.snapshot_id for hold in holds.holds if hold.kind is HoldKind.PIN}
    stay: list[Ref] = []
    outlived: list[Ref] = []
    for ref in view.refs:
        age = ages.get(ref.snapshot_id)
        over = age is not None and _outlived(ref, age, default)
        over = over or (ref.ends_at is not None and now > ref.ends_at)
        over = over and not (ref.has_copy and ref.snapshot_id in pinned)
        over = over and not (ref.kind == "tag" and any(fnmatchcase(ref.name, each) for each in protected))
        (outlived if over and ref.name != _MAIN else stay).append(ref)
    return stay, outlived


def _outlived(ref: Ref, age: timedelta, default: timedelta | None) -> bool:
    if ref.max_age_ms is None:
        return default is not None and age > default
    return age.total_seconds() * 1000 > ref.max_age_ms


def _not_asked_for(view: TableView, policy: Policy) -> dict[int, Reason]:
    asked = policy.ids("snapshot_ids")
    if not asked:
        return {}
    why = Reason(ReasonKind.NOT_ASKED, "not asked for: snapshot_ids")
    return {each.id: why for each in view.snapshots if each.id not in asked}


def _in_window(view: TableView, policy: Policy, now: datetime) -> dict[int, Reason]:
    """Snapshots inside the window. A call that names snapshots means them, at any age."""
    if policy.ids("snapshot_ids"):
        return {}
    since = now - policy.hours("snapshot_retention_hours")
    why = Reason(ReasonKind.WINDOW, f"inside the window: {policy.explain('snapshot_retention_hours')}")
    own = Reason(ReasonKind.WINDOW, f"{_MAX_AGE} of the table")
    few = _at_most(view, policy)
    asked = own_window(view)
    kept = {each.id: own for each in view.snapshots if asked and now - each.committed_at < asked}
    return kept | {each.id: why for each in few if each.committed_at > since}


def _at_most(view: TableView, policy: Policy) -> Sequence[Snapshot]:
    """The newest snapshots, as many as may stay because of their age alone."""
    most = policy.maybe_int("snapshot_max_retained")
    newest = sorted(view.snapshots, key=_age, reverse=True)
    return newest if most is None else newest[:most]


def _newest_of_main(view: TableView, policy: Policy) -> list[int]:
    """The newest snapshots of main, along its ancestry. If the chain is broken or short, the newest of all are added."""
    wanted = int(
        min(max(policy.int("snapshot_min_retained"), _at_least(view, _MIN_KEPT)), len(view.snapshots))
    )
    if policy.ids("snapshot_ids"):
        return []
    chain = [each.id for each in _ancestry(view, view.head(_MAIN))][:wanted]
    others = [each.id for each in sorted(view.snapshots, key=_age, reverse=True) if each.id not in chain]
    return chain + others[: max(0, wanted - len(chain))]


def _history_of(view: TableView, ref: Ref, now: datetime) -> Iterator[int]:
    """Snapshots that a branch's own settings keep; a tag keeps its snapshot only.

    All snapshots from the head to the last kept one stay, because clocks of writers differ: if an older one in
    between expired, the chain would be broken, and the next run would expire what this one kept.
    """
    if ref.kind != "branch":
        return
    passed: list[int] = []
    for place, snapshot in enumerate(_ancestry(view, ref.snapshot_id)):
        passed.append(snapshot.id)
        few = ref.min_snapshots is not None and place < ref.min_snapshots
        age = (now - snapshot.committed_at).total_seconds() * 1000
        young = ref.max_snapshot_age_ms is not None and age <= ref.max_snapshot_age_ms
        if few or young:
            yield from passed
            passed.clear()


def _ancestry(view: TableView, head: int | None) -> Iterator[Snapshot]:
    by_id = {each.id: each for each in view.snapshots}
    seen: set[int] = set()
    while head is not None and head in by_id and head not in seen:
        seen.add(head)
        yield by_id[head]
        head = by_id[head].parent_id


def _held(holds: Sequence[Hold], snapshot_id: int) -> Reason | None:
    """The hold on a snapshot. Refs are handled separately, because their own retention may be over."""
    for hold in holds:
        if hold.kind is HoldKind.PIN:
            until = f" until {hold.until:%Y-%m-%d %H:%M} UTC" if hold.until else ""
            return Reason(ReasonKind.PIN, f"pinned by {hold.holder}{until}")
        if hold.kind is HoldKind.STREAM:
            does = (
                "restarts from it"
                if hold.snapshot_id == snapshot_id
                else "finds its newest commit through it"
            )
            return Reason(ReasonKind.STREAM, f"{hold.holder} {hold.name} {does}")
    return None


def _number(snapshot: Snapshot) -> tuple[datetime, int]:
    """Expiry without gaps goes by number, not by the clocks of the writers."""
    return datetime.min, snapshot.id


def _age(snapshot: Snapshot) -> tuple[datetime, int]:
    return snapshot.committed_at, snapshot.sequence_number


def _summary(
    chosen: Sequence[Snapshot], outlived: Sequence[Ref], total: int, changelogs: Sequence[int]
) -> str:
    if not chosen and not outlived and not changelogs:
        return f"none of {total} snapshots may expire" if total else "the table has no snapshots"
    parts = [f"{len(chosen)} of {total} snapshots expire"] if chosen else []
    parts += [f"{len(outlived)} refs have outlived their retention"] if outlived else []
    parts += [f"{len(changelogs)} changelogs expire"] if changelogs else []
    return ", ".join(parts)


_OVER = "older than the table's changelog.time-retained, or more than its changelog.num-retained.max"


@dataclass(frozen=True, slots=True)
class Outlived:
    """The changelogs that expire, with the reason, and those that stay, with the reason of the first."""

    gone: tuple[int, ...] = ()
    stay: tuple[int, ...] = ()
    kept: Reason | None = None  # None if none stays
    why: str = _OVER


def outlived_changelogs(view: TableView, expiring: Sequence[Snapshot], now: datetime) -> Outlived:
    """Decide for the existing changelogs and those that the expiring snapshots leave behind.

    Changelogs expire as Paimon counts it: from the oldest on and without gaps, by the table's own options,
    which are those of its snapshots where they are not set. The newest changelog always stays.
    """
    changelogs, newest = view.changelogs, view.current_snapshot_id
    if changelogs is None or newest is None:
        return Outlived()
    made_at = dict(changelogs.made_at)
    if changelogs.decoupled:
        made_at |= {each.id: each.committed_at for each in expiring}
    if not made_at:
        return Outlived()
    ids = sorted(made_at)
    few = f"changelog.num-retained.min={changelogs.at_least} of the table"
    limit = "left for the next run: snapshot.expire.limit of the table"
    # Each keeps its changelog and all later ones. If several keep the same one, the first is reported.
    bounds = [
        *(
            (ref.snapshot_id, Reason(ReasonKind.CONSUMER, f"consumer {ref.name} reads on from it"))
            for ref in view.refs
            if ref.kind == "consumer"
        ),
        (newest - changelogs.at_least + 1, Reason(ReasonKind.MIN_RETAINED, few)),
        (ids[0] + changelogs.at_once, Reason(ReasonKind.LIMIT, limit)),
        (ids[-1], Reason(ReasonKind.CURRENT, "the newest changelog")),
    ]
    end, kept = min(bounds, key=lambda bound: bound[0])
    first = max(newest - changelogs.at_most + 1, ids[0])
    young = [each for each in ids if first <= each <= end and made_at[each] >= now - changelogs.retention]
    if young:
        window = f"inside the window: changelog.time-retained={changelogs.retention} of the table"
        end, kept = young[0], Reason(ReasonKind.WINDOW, window)
    stay = tuple(each for each in ids if each >= end)
    return Outlived(tuple(each for each in ids if each < end), stay, kept)
