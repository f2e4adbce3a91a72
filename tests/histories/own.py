"""What is asked of Lakewarden: its jobs, each with what may go wrong meanwhile, and everything that holds and restores."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from random import Random
from typing import Any

from lakewarden.errors import LakewardenError, Refused
from lakewarden.jobs.pins import PinJobs
from tests.histories import writers
from tests.histories.format import file_on_disk
from tests.histories.model import Table, generated, plain, respelled
from tests.histories.process import Crash
from tests.histories.world import Promise, Settings, World
from tests.histories.writers import a_snapshot, a_table

HOURS = [0, 1, 24]


# ------------------------------------------------------------ jobs


def expire(world: World, rng: Random, faults: bool = True) -> None:
    table = a_table(world, rng)
    policy: dict[str, object] = {
        "snapshot_retention_hours": rng.choice([0, 0, 0, 3, 24]),
        "snapshot_min_retained": rng.randrange(1, 4),
    }
    if rng.random() < 0.2:
        policy["snapshot_expire_limit"] = rng.randrange(1, 4)
    if rng.random() < 0.1 and table.meta.snapshots:
        some = rng.sample(table.meta.snapshots, rng.randrange(1, len(table.meta.snapshots) + 1))
        policy["snapshot_ids"] = [each.id for each in some]
    if faults and rng.random() < 0.2:
        world.catalog.answer = rng.choice(["lost", "unknown, not done", "unknown, done", "unknown, late"])
    run_job(world, rng, "expire", table, policy, faults)


def sweep(world: World, rng: Random, faults: bool = True) -> None:
    policy = {
        "orphan_grace_hours": rng.choice([24, 24, 168]),
        "orphan_max_percent": rng.choice([100, 100, 100, 25]),
    }
    if faults and rng.random() < 0.2:
        world.short_listing = Random(rng.random())
    run_job(world, rng, "sweep", a_table(world, rng), policy, faults)


def purge(world: World, rng: Random, faults: bool = True) -> None:
    policy = {"delete_grace_hours": rng.choice(HOURS), "orphan_grace_hours": 24}
    if faults and rng.random() < 0.2:
        world.fail_deletes = Random(rng.random())
    run_job(world, rng, "purge", a_table(world, rng), policy, faults)


JOBS = {"expire": expire, "sweep": sweep, "purge": purge}
# So many gates a run that does something passes, about.
MOMENTS = {"expire": 46, "sweep": 42, "purge": 110}


def settings_of(job: str, policy: Mapping[str, Any]) -> Settings:
    return Settings(
        job,
        timedelta(hours=policy.get("snapshot_retention_hours", 720)),
        policy.get("snapshot_min_retained", 5),
        "snapshot_ids" in policy,
        timedelta(hours=policy.get("delete_grace_hours", 24)),
        timedelta(hours=policy.get("orphan_grace_hours", 168)),
    )


def run_job(
    world: World, rng: Random, job: str, table: Table, policy: Mapping[str, object], faults: bool = False
) -> None:
    """The real job. On its way the process may die, or wait while others act."""
    process, gates = world.process, world.process.gates
    world.settings = settings_of(job, policy)
    gates.count = 0
    if faults and rng.random() < 0.3:
        gates.crash_at = rng.randrange(1, MOMENTS[job])
    elif faults and rng.random() < 0.5:
        gates.turn_at = rng.randrange(1, MOMENTS[job])
        gates.turn = turn(world, rng, job, table)
    world.disturbed = gates.turn is not None
    try:
        run = process.lw.run(job, table.ref, policy)
        world.told[f"{job} {run.state}"] += 1
    finally:
        world.told["runs"] += 1
        world.settings, world.proving, world.disturbed = Settings(), False, False
        world.catalog.answer, world.fail_deletes, world.short_listing = "", None, None
        gates.crash_at, gates.turn, gates.closed = 0, None, False


def turn(world: World, rng: Random, job: str, table: Table) -> Any:
    """What someone else does while a process waits at a gate."""
    chosen, seed = rng.choice([*TURNS, *OFTEN[job]]), rng.random()

    def act() -> None:
        with world.as_process(world.new_process()):
            world.told["turns"] += 1
            if chosen == "take over":
                take_over(world, Random(seed), job, table)
            elif not (world.proving and chosen in LATE):
                perform(world, chosen, Random(seed), nested=True)

    return act


def take_over(world: World, rng: Random, job: str, table: Table) -> None:
    """The process is silent for so long that another host takes its run, and does it."""
    world.clock.moment += timedelta(minutes=2)
    policy: dict[str, object] = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
    if job != "expire":
        policy = {
            "orphan_grace_hours": 24,
            "orphan_max_percent": 100,
            "delete_grace_hours": rng.choice(HOURS),
        }
    try:
        run_job(world, rng, job, table, policy)
    except LakewardenError as error:
        world.told[type(error).__name__] += 1
    if rng.random() < 0.5:
        perform(world, "restore", rng, nested=True)


def restart(world: World, rng: Random) -> None:
    """A new process, on another host or as another part of the same one."""
    world.process = world.new_process(world.process.host if rng.random() < 0.5 else None)


# ------------------------------------------------------------ holds


def pin(world: World, rng: Random) -> None:
    table = a_table(world, rng)
    snap = a_snapshot(table, rng)
    if snap is None:
        return
    length = timedelta(hours=rng.choice([1, 30, 300]))
    granted = world.process.lw.pin(table.ref, snap.id, holder="reader", ttl=length, mirror=rng.random() < 0.2)
    world.pins[granted.id] = Promise(table, granted.expires_at, snap.id)
    world.told["pins"] += 1


def renew(world: World, rng: Random) -> None:
    if world.pins:
        pin_id = rng.choice(list(world.pins))
        now, known = world.clock.tick(), world.pins[pin_id]
        lw = world.process.lw
        found = next((each for each in lw.holds.pins() if each.id == pin_id), None)
        if found is not None and known.live(now):
            try:
                known.until = (
                    PinJobs(lw.state, lw.lake.format_for).renew(found, timedelta(hours=48)).expires_at
                )
            except Refused:
                del world.pins[pin_id]  # the reader was told that it is gone
                raise


def unpin(world: World, rng: Random) -> None:
    if world.pins:
        pin_id = rng.choice(list(world.pins))
        del world.pins[pin_id]
        world.process.lw.holds.unpin(pin_id)


def write_along(world: World, rng: Random) -> None:
    """A writer says that it is at work, and writes; later it says so again and writes more."""
    table = a_table(world, rng)
    number = rng.randrange(3)
    name, folder = f"{table.ref}-writer-{number}", f"{table.folder}/data/w{number}/"
    prefixes = (folder,) if rng.random() < 0.5 else ()
    spelled = [respelled(each.rstrip("/"), rng) + "/" for each in prefixes]
    beat = world.process.lw.holds.heartbeat(
        table.ref, name, prefixes=spelled, ttl=timedelta(hours=rng.choice([1, 30, 400]))
    )
    known = world.writers.get(name)
    if known is None or not known.live(beat.beat_at):
        known = world.writers[name] = Promise(table, None)
    known.until, known.prefixes = beat.until, prefixes
    path = f"{folder}{generated(rng.getrandbits(40))}.parquet"
    world.disk.write(path, b"w" * rng.randrange(1, 9))
    if prefixes:
        known.files = set()
    else:
        known.files.add(path)


def write_done(world: World, rng: Random) -> None:
    """What a writer wrote becomes part of the table, whatever is still there of it."""
    if not world.writers:
        return
    name = rng.choice(list(world.writers))
    promise = world.writers.pop(name)
    here = {plain(each.path) for each in writers.live(promise.table)}
    mine = [
        each
        for each in world.disk.written
        if promise.covers(each) and world.disk.has(each) and each not in here
    ]
    if mine:
        promise.table.append([file_on_disk(each) for each in mine], rng)
    world.process.lw.holds.stop_heartbeat(promise.table.ref, name)


def load_begin(world: World, rng: Random) -> None:
    """Files wait to be adopted; they are registered before or after they are written, by name or by prefix."""
    table = a_table(world, rng)
    # Where they lie says nothing about which table they are for.
    first = rng.getrandbits(40)
    folder = f"{a_table(world, rng).folder}/data/load-{first:x}/"
    names = [f"{folder}{generated(first + number)}.parquet" for number in range(rng.randrange(1, 3))]
    early = rng.random() < 0.5
    for name in names if early else ():
        world.disk.write(name, b"a" * rng.randrange(1, 9))
    by_prefix = rng.random() < 0.4
    length = rng.choice([None, timedelta(hours=30)])
    paths = [] if by_prefix else [respelled(each, rng) for each in names]
    load = world.process.lw.holds.stage_begin(
        table.ref, "loader", paths=paths, prefixes=[folder] if by_prefix else [], ttl=length
    )
    until = None if length is None else load.expires_at
    world.loads[load.id] = Promise(table, until, files=set(names), prefixes=(folder,) if by_prefix else ())
    for name in names if not early else ():
        world.disk.write(name, b"a" * rng.randrange(1, 9))


def load_dead(world: World, rng: Random) -> None:
    """Files that left a table are to come back as a load; they may be in the trash already."""
    table = a_table(world, rng)
    dead = [each for each in writers.dead(world) if each.endswith(".parquet")]
    if dead:
        name = rng.choice(writers.rather_trashed(world, dead, rng))
        load = world.process.lw.holds.stage_begin(table.ref, "loader", paths=[respelled(name, rng)])
        world.loads[load.id] = Promise(table, None, files={name})


def load_adopt(world: World, rng: Random, faults: bool = True) -> None:
    if not world.loads:
        return
    load_id = rng.choice(list(world.loads))
    gates = world.process.gates
    gates.count = 0
    gates.crash_at = rng.randrange(1, 30) if faults and rng.random() < 0.3 else 0
    try:
        run = world.process.lw.holds.stage_adopt(load_id, sorted(world.loads[load_id].files))
        world.told[f"adopt {run.state}"] += 1
    finally:
        gates.crash_at = 0
        _sync_loads(world)


def load_fail(world: World, rng: Random) -> None:
    if world.loads:
        try:
            world.process.lw.holds.stage_fail(rng.choice(list(world.loads)))
        finally:
            _sync_loads(world)


def _sync_loads(world: World) -> None:
    """A load that is adopted or failed holds nothing any more."""
    for load_id, state in world.database.ask("SELECT id, state FROM loads"):
        if state != "open":
            world.loads.pop(load_id, None)


def restore(world: World, rng: Random) -> None:
    """One file, what one run trashed, or everything."""
    table = a_table(world, rng)
    lw = world.process.lw
    found = lw.trash(table.ref)
    way = rng.randrange(4)
    try:
        if way <= 1 and found.files:
            lw.restore(table.ref, respelled(rng.choice(found.files).path, rng), operator="ana")
        elif way == 2 and found.batches:
            lw.restore(table.ref, run=rng.choice(found.batches)[0].batch.id, operator="ana")
        elif way == 3:
            lw.restore(table.ref, everything=True, operator="ana")
    finally:
        note_restored(world)


def note_restored(world: World) -> None:
    rows = world.database.ask("SELECT batch_id, path FROM trash WHERE state = 'restored'")
    world.restored.update((batch, plain(path)) for batch, path in rows)
    world.told["files restored"] = len(world.restored)


def forget(world: World, rng: Random) -> None:
    """The cache of what manifests name is damaged or gone."""
    for each in sorted((world.folder / "cache").rglob("*.arrow")):
        if rng.random() < 0.5:
            each.write_bytes(each.read_bytes()[: rng.randrange(40)])
        elif rng.random() < 0.5:
            each.unlink()


# ------------------------------------------------------------ all of them

OTHERS = {
    "append": (writers.append, 10),
    "remove": (writers.remove, 6),
    "rewrite": (writers.rewrite, 6),
    "row delta": (writers.row_delta, 3),
    "rewrite manifests": (writers.rewrite_manifests, 2),
    "orphaned parent": (writers.orphaned_parent, 1),
    "stage": (writers.stage, 2),
    "cherry-pick": (writers.cherry_pick, 3),
    "rollback": (writers.rollback, 3),
    "borrow": (writers.borrow, 2),
    "re-add": (writers.re_add, 4),
    "overwrite": (writers.overwrite, 2),
    "statistics": (writers.statistics, 2),
    "make ref": (writers.make_ref, 4),
    "drop ref": (writers.drop_ref, 3),
    "other tool expires": (writers.other_tool_expires, 2),
    "revert": (writers.revert, 1),
    "stray": (writers.stray, 3),
    "time": (writers.time_passes, 6),
    "a day": (writers.a_day, 3),
}
OURS = {
    "restart": (restart, 1),
    "pin": (pin, 4),
    "renew": (renew, 1),
    "unpin": (unpin, 2),
    "write along": (write_along, 4),
    "write done": (write_done, 2),
    "load begin": (load_begin, 3),
    "load dead": (load_dead, 2),
    "load adopt": (load_adopt, 2),
    "load fail": (load_fail, 1),
    "restore": (restore, 3),
    "forget": (forget, 1),
    "expire": (expire, 16),
    "sweep": (sweep, 8),
    "purge": (purge, 14),
}
ALL = {**OTHERS, **OURS}
# Commits that make a trashed file needed again: too late once a deletion has read the tables, as documented.
LATE = {"re-add", "overwrite", "revert", "write done", "borrow", "load dead"}
TURNS = [each for each in ALL if each not in ("restart", "forget")]
# Between a mark and its deletion.
MEANWHILE = [
    "overwrite",
    "overwrite",
    "re-add",
    "re-add",
    "restore",
    "revert",
    "pin",
    "borrow",
    "load begin",
    *TURNS,
]
# What meets a job at its weakest moment.
OFTEN = {
    "expire": ["pin"] * 12 + ["make ref"] * 4 + ["rollback"] * 4 + ["re-add"] * 3 + ["take over"] * 6,
    "sweep": ["re-add"] * 4 + ["write along"] * 4 + ["load begin"] * 4 + ["take over"] * 4,
    "purge": ["restore"] * 10 + ["re-add"] * 4 + ["take over"] * 10,
}


def perform(world: World, name: str, rng: Random, nested: bool = False) -> None:
    """One operation. Errors that tell the user no are part of life; any other exception is a mistake."""
    world.told["operations"] += 1
    world.arrive(rng)
    do: Any = ALL[name][0]
    try:
        if nested and name in ("expire", "sweep", "purge", "load adopt"):
            do(world, rng, faults=False)
        else:
            do(world, rng)
    except LakewardenError as error:
        world.told[type(error).__name__] += 1
    except Crash:
        world.told["crashes"] += 1
        restart(world, rng)
    if name in OTHERS:
        world.committed()
