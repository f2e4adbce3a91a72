"""Playing a history: made from its seed, judged after every operation, made shorter where it fails."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, partialmethod
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from lakewarden import Lakewarden
from lakewarden.errors import LakewardenError, Refused, Unreachable
from lakewarden.model.run import Owner
from lakewarden.state.runs import Journal
from lakewarden.storage.generation_file import WITNESS
from lakewarden.storage.local import LocalFiles
from tests.histories import own
from tests.histories.model import plain
from tests.histories.process import Database
from tests.histories.world import Violated, World
from tests.histories.writers import claim_folder, move_metadata_out

# The whole of a table expires, and everything that is left over is swept and purged.
EVERYTHING: Mapping[str, Mapping[str, object]] = {
    "expire": {"snapshot_retention_hours": 0, "snapshot_min_retained": 1},
    "sweep": {"orphan_grace_hours": 24, "orphan_max_percent": 100},
    "purge": {"delete_grace_hours": 24, "orphan_grace_hours": 24},
}
# Before it begins, a table has a past.
PROLOGUE = ["append", "remove", "rewrite", "rewrite", "row delta", "stage", "make ref", "stray", "statistics"]
PROLOGUE += ["load begin", "write along"]
# Ending a history takes longer than the history: one in so many is seen to its end.
SETTLED = 5


@dataclass(frozen=True)
class Step:
    """An operation and the seed of everything it draws."""

    name: str
    seed: int


@dataclass(frozen=True)
class History:
    seed: int
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int) -> History:
        rng = Random(seed)
        names, weights = list(own.ALL), [weight for _, weight in own.ALL.values()]
        # Each history has a liking of its own, so that what is rare meets itself sometimes.
        liked = set(rng.sample(names, 4))
        weights = [weight * (4 if name in liked else 1) for name, weight in zip(names, weights, strict=True)]
        chosen: list[str] = []
        for name in rng.choices(names, weights, k=rng.randrange(6, 14)):
            chosen.append(name)
            if name in ("expire", "sweep") and rng.random() < 0.7:
                # Marked, a grace later purged, and something in between.
                chosen += [rng.choice(own.MEANWHILE), "a day", rng.choice(own.MEANWHILE), "purge"]
        return cls(seed, tuple(Step(name, rng.getrandbits(32)) for name in chosen))

    def __str__(self) -> str:
        return f"seed {self.seed}: " + ", ".join(f"{each.name} ({each.seed})" for each in self.steps)


class Stage:
    """Where histories are played, one at a time: the clock, the store and the owner of runs are the current world's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database(folder)
        self.world: World | None = None
        self._real = {name: getattr(LocalFiles, name) for name in ("list", "stat", "look", "write", "delete")}
        self._right = Journal.right

    @contextmanager
    def set(self) -> Iterator[None]:
        replaced: list[tuple[str, Callable[..., Any]]] = [
            ("lakewarden.clock.now", self._now),
            ("lakewarden.clock.sleep", self._sleep),
            ("lakewarden.jobs.runner.current_owner", self._owner),
            ("lakewarden.jobs.loads.adopt.current_owner", self._owner),
        ]
        with ExitStack() as stack:
            for name, do in replaced:
                stack.enter_context(patch(name, do))
            stack.enter_context(patch.object(LocalFiles, "list", partialmethod(_of, self._list)))
            stack.enter_context(patch.object(LocalFiles, "stat", partialmethod(_of, self._looking("stat"))))
            stack.enter_context(patch.object(LocalFiles, "look", partialmethod(_of, self._looking("look"))))
            stack.enter_context(patch.object(LocalFiles, "delete", partialmethod(_of, self._delete)))
            stack.enter_context(patch.object(LocalFiles, "write", partialmethod(_of, self._write)))
            stack.enter_context(patch.object(Journal, "right", partialmethod(_of, self._asking)))
            stack.enter_context(patch("lakewarden.jobs.heartbeat.TICK_SECONDS", 3600.0))
            stack.enter_context(patch("lakewarden.jobs.purge.execute.LOCAL_BATCH", 6))
            yield

    def play(self, history: History) -> Counter[str]:
        """What happened, in numbers; Violated, or whatever exception should not have been."""
        folder = self.folder / f"history-{history.seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            rng = Random(history.seed)
            world = self.world = World(folder, self.database, rng)
            world.add_table("lake", "first", rng)
            world.add_table(rng.choice(["lake", "other"]), "second", rng)
            for name in ("append", "append", *rng.choices(PROLOGUE, k=6)):
                own.perform(world, name, rng)
                world.clock.moment += timedelta(hours=rng.choice([0, 1, 30]))
            for step in history.steps:
                own.perform(world, step.name, Random(step.seed))
                world.check()
            if history.seed % SETTLED == 0:
                settle(world, rng)
            world.check(thorough=True)
            return world.told
        finally:
            self.world = None
            shutil.rmtree(folder, ignore_errors=True)

    # ------------------------------------------------------------ in place of what is outside

    def _the(self) -> World:
        assert self.world is not None
        return self.world

    def _now(self) -> datetime:
        return self._the().clock.tick()

    def _sleep(self, seconds: float) -> None:
        self._the().clock.moment += timedelta(seconds=seconds)

    def _owner(self) -> Owner:
        return self._the().process.owner()

    def _asking(self, journal: Journal, *args: Any) -> float:
        """A run asks whether it is still its own, for the last time before it deletes."""
        gates = self._the().process.gates
        gates.at()
        gates.closed = True
        seconds = self._right(journal, *args)
        gates.closed = seconds > 0
        return seconds

    def _list(self, files: LocalFiles, folder: str) -> Iterator[pa.RecordBatch]:
        world = self._the()
        world.process.gates.at()
        for batch in self._real["list"](files, folder):
            short = world.short_listing
            if short is None:
                yield batch
            else:
                yield batch.filter(pa.array([short.random() < 0.9 for _ in range(batch.num_rows)]))

    def _looking(self, way: str) -> Callable[..., Any]:
        """Asking after files, which a store sometimes does not answer."""

        def look(files: LocalFiles, paths: Sequence[str]) -> Any:
            world = self._the()
            world.process.gates.at()
            if paths and world.fail_deletes is not None and world.fail_deletes.random() < 0.1:
                raise Unreachable(what=paths[0], reason="the model says so")
            return self._real[way](files, paths)

        return look

    def _write(self, files: LocalFiles, path: str, content: bytes) -> None:
        """Modified at the modelled moment."""
        world = self._the()
        world.process.gates.at(crash_only=True)
        self._real["write"](files, path, content)
        moment = world.clock.moment.timestamp()
        os.utime(plain(path), (moment, moment))

    def _delete(self, files: LocalFiles, paths: Sequence[str]) -> dict[str, str]:
        """File by file: a process may die between two. Some cannot be deleted; of some the answer is lost."""
        world, failed = self._the(), {}
        for path in paths:
            world.process.gates.at(crash_only=True)
            fate = 1.0 if world.fail_deletes is None else world.fail_deletes.random()
            if fate >= 0.2:
                world.delete(path, partial(self._real["delete"], files, [path]))
            if fate < 0.4:
                failed[path] = "the model says so"
        world.process.gates.closed = False
        return failed


def _of(owner: Any, do: Callable[..., Any], *args: Any) -> Any:
    """A method of the stage in place of one of `owner`."""
    return do(owner, *args)


# ------------------------------------------------------------ the end of a history


def settle(world: World, rng: Random) -> None:
    """Everyone leaves, time passes, and all jobs run undisturbed: what nobody needs is gone in the end."""
    world.process = world.new_process()
    release(world, rng)
    for _ in range(3):
        world.clock.moment += timedelta(days=8)
        for job in ("purge", "expire", "sweep", "purge"):
            if job == "purge":
                world.clock.moment += timedelta(hours=25)
            for table in world.tables:
                finish(world, rng, job, table)
                world.check()
        if not leftovers(world):
            break
    check_end(world)


def finish(world: World, rng: Random, job: str, table: Any) -> None:
    """A job that nothing disturbs does not fail."""
    try:
        own.run_job(world, rng, job, table, EVERYTHING[job])
    except LakewardenError as error:
        raise Violated(
            f"undisturbed {job} of {table.ref}: {type(error).__name__}: {error.message}"
        ) from error


def release(world: World, rng: Random) -> None:
    """Pins are taken away, writers stop, loads are given up."""
    world.clock.moment += timedelta(hours=1)
    world.arrive(rng)
    world.catalog.in_flight = None
    lw = world.process.lw
    for pin in lw.holds.pins():
        lw.holds.unpin(pin.id)
    world.pins.clear()
    world.lost_pins.clear()
    for name, writer in world.writers.items():
        lw.holds.stop_heartbeat(writer.table.ref, name)
    world.writers.clear()
    for load_id in list(world.loads):
        if world.loads[load_id].until is None:
            give_up(lw, load_id)
    world.loads.clear()
    for table in world.tables:
        if not claim_folder(world, table):
            move_metadata_out(world, table)
            claim_folder(world, table)


def give_up(lw: Lakewarden, load_id: str) -> None:
    """A load that a process was adopting when it died may turn out to be adopted."""
    try:
        lw.holds.stage_fail(load_id)
    except Refused as error:
        if "was adopted already" not in error.message:
            raise


def leftovers(world: World) -> list[str]:
    """Files that nobody needs, nobody restored, and that are a table's. What Lakewarden leaves beside the metadata is its own."""
    needed = world.needed()
    back = {name for _, name in world.restored}
    found = [f"{top}/{name}" for top, _, names in os.walk(world.folder / "lake") for name in names]
    own = (WITNESS, f"{WITNESS}.part")
    return [
        each for each in found if each not in needed | back | world.untouchable and not each.endswith(own)
    ]


def check_end(world: World) -> None:
    left = leftovers(world)
    if left:
        raise Violated(f"{len(left)} files that nobody needs are never deleted, the first is {left[0]}")
    ask = world.database.ask
    if ask("SELECT id FROM runs WHERE ended_at IS NULL AND job != 'adopt'"):
        raise Violated("a run is open though every job ran to its end")
    if ask("SELECT path FROM trash WHERE state = 'erasing'"):
        raise Violated("a file is being deleted by nobody")
    if ask("SELECT id FROM trash_batches WHERE state = 'pending' AND cause = 'expire'"):
        raise Violated("a deletion batch was never settled")
    rows = ask("SELECT batch_id, path, state, note FROM trash")
    ended = {(batch, plain(path)): (state, note) for batch, path, state, note in rows}
    if len(ended) != len(rows):
        raise Violated("a file is twice under one deletion batch")
    check_receipts(world, ended)


def check_receipts(world: World, ended: Mapping[tuple[str, str], tuple[str, str]]) -> None:
    """What was deleted has a receipt: under its deletion batch, or under one that took the file over when its answer was lost."""
    told = {name for (_, name), (state, _) in ended.items() if state in ("erased", "missing")}
    for batch, name in world.deletions:
        state, note = ended.get((batch, name), ("nothing", ""))
        # A file that came back under its name, or was restored while nobody knew that it is gone, has another story.
        if name not in told and world.disk.writes[name] == 1 and state != "restored":
            raise Violated(f"{name} was deleted by {batch} and has no receipt: {state} {note}")
    unreal = [key for key, (state, _) in ended.items() if state == "erased" and key not in world.deletions]
    if unreal:
        raise Violated(f"{unreal[0]} has a receipt and was not deleted")


# ------------------------------------------------------------ shorter


def shortened(stage: Stage, history: History) -> tuple[History, Exception]:
    """The same failure with fewer operations: each is left out if it still fails without it."""
    failure = failing(stage, history)
    assert failure is not None
    again = True
    while again:
        again = False
        for place in reversed(range(len(history.steps))):
            fewer = History(history.seed, history.steps[:place] + history.steps[place + 1 :])
            found = failing(stage, fewer)
            if found is not None:
                history, failure, again = fewer, found, True
    return history, failure


def failing(stage: Stage, history: History, told: Counter[str] | None = None) -> Exception | None:
    try:
        found = stage.play(history)
    except Exception as error:
        return error
    if told is not None:
        told.update(found)
    return None
