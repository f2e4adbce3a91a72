"""What others do to the tables: writers, other tools, people with refs. Each is one function of the world and a Random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random

from lakewarden.errors import Refused
from lakewarden.model.table import Ref
from tests.histories.format import file_on_disk
from tests.histories.model import DATA, EQUALITY, MAIN, POSITIONS, File, Snap, Table, plain, respelled
from tests.histories.world import Promise, World

Operation = Callable[[World, Random], None]


def a_table(world: World, rng: Random) -> Table:
    """Mostly the first one: what is long makes more of a history than what is wide."""
    return world.tables[0] if rng.random() < 0.8 else rng.choice(world.tables)


def a_snapshot(table: Table, rng: Random) -> Snap | None:
    return rng.choice(table.meta.snapshots) if table.meta.snapshots else None


def a_branch(table: Table, rng: Random) -> str:
    names = [ref.name for ref in table.meta.refs if ref.kind == "branch"]
    return rng.choice(names) if names and rng.random() < 0.3 else MAIN


def live(table: Table, branch: str = MAIN) -> list[File]:
    head = table.meta.head(branch)
    return [] if head is None else list(head.files)


# ------------------------------------------------------------ commits


def append(world: World, rng: Random) -> None:
    table = a_table(world, rng)
    flink = {"flink.job-id": f"job-{rng.randrange(2)}", "flink.max-committed-checkpoint-id": "7"}
    table.append(
        table.new_files(rng.randrange(1, 4), rng),
        rng,
        a_branch(table, rng),
        flink if rng.random() < 0.15 else {},
    )


def remove(world: World, rng: Random) -> None:
    table = a_table(world, rng)
    branch = a_branch(table, rng)
    files = live(table, branch)
    if files:
        gone = rng.sample(files, rng.randrange(1, len(files) + 1))
        table.replace_files({plain(each.path) for each in gone}, [], "delete", rng, branch)


def rewrite(world: World, rng: Random) -> None:
    """A compaction: many become one."""
    table = a_table(world, rng)
    files = live(table)
    if len(files) > 1:
        gone = rng.sample(files, rng.randrange(2, len(files) + 1))
        table.replace_files({plain(each.path) for each in gone}, table.new_files(1, rng), "replace", rng)


def row_delta(world: World, rng: Random) -> None:
    """Delete files; of deletion vectors two live in one file."""
    table = a_table(world, rng)
    if not live(table):
        return
    made = table.new_files(1, rng, rng.choice([POSITIONS, EQUALITY]))
    twice = [replace(made[0], path=respelled(made[0].path, rng))] if made[0].kind == POSITIONS else []
    table.append([*made, *twice], rng)


def rewrite_manifests(world: World, rng: Random) -> None:
    table = a_table(world, rng)
    if live(table):
        table.rewrite_manifests(rng)


def orphaned_parent(world: World, rng: Random) -> None:
    """The chain of parents is broken: what is older is no ancestor any more."""
    table = a_table(world, rng)
    made = table.manifest([(1, each) for each in table.new_files(1, rng)], rng)
    table.add_snapshot([*table.carried(MAIN), made], "append", rng, parent=rng.randrange(10**9))


def stage(world: World, rng: Random) -> None:
    """Written, audited, perhaps published later: no ref names it."""
    table = a_table(world, rng)
    table.append(table.new_files(1, rng), rng, branch=None, summary={"wap.id": "w"})


def cherry_pick(world: World, rng: Random) -> None:
    table = a_table(world, rng)
    snap = a_snapshot(table, rng)
    here = {plain(each.path) for each in live(table)}
    if snap is not None:
        new = [each for each in snap.files if each.kind == DATA and plain(each.path) not in here]
        table.append([replace(each, path=respelled(each.path, rng)) for each in new], rng)


def rollback(world: World, rng: Random) -> None:
    table = a_table(world, rng)
    snap, main = a_snapshot(table, rng), table.meta.ref(MAIN)
    if snap is not None and main is not None:
        table.set_ref(replace(main, snapshot_id=snap.id))


def borrow(world: World, rng: Random) -> None:
    """A table names files that lie in another's folder, as `add_files` makes it do."""
    mine, theirs = rng.sample(world.tables, 2)
    snap = a_snapshot(theirs, rng)
    here = {plain(each.path) for each in live(mine)}
    if snap is not None:
        found = [each for each in snap.files if plain(each.path) not in here]
        mine.append([replace(each, path=respelled(each.path, rng)) for each in found[:2]], rng)


def re_add(world: World, rng: Random) -> None:
    """A path that left the table comes back: as it was, or written anew, even after it was deleted."""
    table = a_table(world, rng)
    here = {plain(each.path) for each in live(table)}
    known = [
        name for name in world.disk.written if f"{table.folder}/data/" in name and name.endswith(".parquet")
    ]
    gone = [name for name in known if name not in here and name not in world.untouchable]
    if not gone:
        return
    name = rng.choice(rather_trashed(world, gone, rng))
    needed = name in world.needed()
    if not world.disk.has(name) or (not needed and rng.random() < 0.3):
        world.disk.write(name, b"y" * rng.randrange(1, 9))
    table.append([replace(file_on_disk(name), path=respelled(name, rng))], rng)


def overwrite(world: World, rng: Random) -> None:
    """A file that nobody needs is written anew under its name, and not committed."""
    found = dead(world)
    if found:
        world.disk.write(rng.choice(rather_trashed(world, found, rng)), b"z" * rng.randrange(1, 9))


def dead(world: World) -> list[str]:
    """Data files on disk that nobody needs."""
    needed = world.needed()
    unneeded = [each for each in world.disk.written if "/data/" in each and each not in needed]
    return [each for each in unneeded if each not in world.untouchable and world.disk.has(each)]


def rather_trashed(world: World, names: list[str], rng: Random) -> list[str]:
    """Those among the names that wait for their deletion: there a change matters most."""
    waiting = {
        plain(path) for (path,) in world.database.ask("SELECT path FROM trash WHERE state = 'trashed'")
    }
    found = [each for each in names if each in waiting]
    return found if found and rng.random() < 0.7 else names


def statistics(world: World, rng: Random) -> None:
    """Of a snapshot; sometimes it takes over the file of another one."""
    table = a_table(world, rng)
    snap = a_snapshot(table, rng)
    if snap is None:
        return
    known = [path for _, path in table.meta.statistics]
    path = f"{table.folder}/metadata/{rng.getrandbits(40):x}.stats"
    if known and rng.random() < 0.2:
        path = respelled(rng.choice(known), rng)
    else:
        world.disk.write(path, b"s")
    table.set_statistics(snap.id, path)


# ------------------------------------------------------------ refs


def make_ref(world: World, rng: Random) -> None:
    """A tag or a branch, with or without a retention of its own; one that is there is moved."""
    table = a_table(world, rng)
    snap = a_snapshot(table, rng)
    if snap is None:
        return
    kind = rng.choice(["tag", "branch"])
    ages = [None, None, 3_600_000, 86_400_000]
    history = (rng.choice([None, 1, 3]), rng.choice(ages)) if kind == "branch" else (None, None)
    table.set_ref(Ref(f"{kind}-{rng.randrange(3)}", kind, snap.id, rng.choice(ages), *history))


def drop_ref(world: World, rng: Random) -> None:
    table = a_table(world, rng)
    names = [ref.name for ref in table.meta.refs if ref.name != MAIN]
    if names:
        table.drop_ref(rng.choice(names))


# ------------------------------------------------------------ other tools


def other_tool_expires(world: World, rng: Random) -> None:
    """It knows refs and no pins; sometimes it deletes what nobody needs any more at once."""
    table = a_table(world, rng)
    named = {ref.snapshot_id for ref in table.meta.refs}
    free = [each.id for each in table.meta.snapshots if each.id not in named]
    if not free:
        return
    gone = set(rng.sample(free, rng.randrange(1, len(free) + 1)))
    before = world.needed()
    lose_pins(world, table, gone)
    table.commit(table.without(gone))
    if rng.random() < 0.4:
        held = [*world.loads.values(), *world.writers.values()]
        for name in sorted(before - world.needed()):
            if world.disk.has(name) and not any(each.covers(name) for each in held):
                world.disk.remove(name)


def revert(world: World, rng: Random) -> None:
    """Someone points the catalog at an earlier metadata file; only where everything it needs is still there."""
    table = a_table(world, rng)
    whole = [meta for meta in table.earlier[-6:] if all(world.disk.has(each) for each in meta.needed)]
    if whole:
        meta = rng.choice(whole)
        kept = {each.id for each in meta.snapshots}
        lose_pins(world, table, {each.id for each in table.meta.snapshots} - kept)
        table.move(meta)
        if rng.random() < 0.7:
            claim_folder(world, table)


def claim_folder(world: World, table: Table) -> bool:
    """An operator says that newer metadata than the table's is no longer used; refused for a file that somebody restored."""
    try:
        world.process.lw.holds.adopt_folder(table.ref, operator="ana", confirm=True)
    except Refused:
        world.told["claims refused"] += 1
        return False
    world.told["folders claimed"] += 1
    return True


def move_metadata_out(world: World, table: Table) -> None:
    """By hand, as the refusal of a claim advises: metadata files that somebody restored and no table names."""
    for _, name in sorted(world.restored):
        is_metadata = name.startswith(f"{table.folder}/metadata/") and name.endswith(".metadata.json")
        if is_metadata and name not in world.needed() and world.disk.has(name):
            world.disk.remove(name)


def lose_pins(world: World, table: Table, gone: set[int]) -> None:
    """Snapshots that others drop take the pin's promise with them, but for what lies around and nobody knows."""
    for pin_id, pin in list(world.pins.items()):
        if pin.table is table and pin.snapshot_id in gone:
            snap = table.meta.snapshot(pin.snapshot_id)
            assert snap is not None
            world.lost_pins.append(Promise(table, pin.until, files=set(snap.needs)))
            del world.pins[pin_id]


def stray(world: World, rng: Random) -> None:
    """What a writer left that died; or a file that no writer of tables leaves."""
    table = a_table(world, rng)
    if rng.random() < 0.6:
        table.new_files(rng.randrange(1, 3), rng, stem="stray-")
        return
    number = rng.getrandbits(40)
    name = rng.choice(
        [f".{number:x}.parquet", f"_tmp/{number:x}.parquet", f"{number:x}.txt", f"_SUCCESS-{number:x}"]
    )
    path = f"{table.folder}/data/{name}"
    world.disk.write(path, b"o")
    world.untouchable.add(path)


def time_passes(world: World, rng: Random) -> None:
    lengths = [
        timedelta(minutes=2),
        timedelta(minutes=15),
        timedelta(hours=3),
        timedelta(hours=25),
        timedelta(days=8),
    ]
    world.clock.moment += rng.choice(lengths)


def a_day(world: World, rng: Random) -> None:
    """A little more than a day: every grace of the histories is over."""
    world.clock.moment += timedelta(hours=25)
