"""Single moments that random histories seldom meet, played on a modelled table by the real jobs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from lakewarden.errors import Unreachable
from lakewarden.model.run import RunState
from lakewarden.storage.objects import Objects
from tests.histories.format import file_on_disk
from tests.histories.model import Table, plain
from tests.histories.play import EVERYTHING, Stage
from tests.histories.world import Settings, World


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="lakewarden-moments-") as folder:
        stage = Stage(Path(folder))
        with stage.set():
            yield stage
        stage.database.engine.dispose()


def replaced(stage: Stage) -> tuple[World, Table, str]:
    """A table of which one file was replaced, and the snapshot that named it expired: the file waits for purge."""
    rng = Random(1)
    world = stage.world = World(stage.folder, stage.database, rng)
    table = world.add_table("lake", "first", rng)
    table.append(table.new_files(2, rng), rng)
    head = table.meta.head()
    assert head is not None
    gone = plain(head.files[0].path)
    table.replace_files({gone}, table.new_files(1, rng), "overwrite", rng)
    world.committed()
    world.clock.moment += timedelta(hours=1)
    run(world, table, "expire")
    world.clock.moment += timedelta(hours=25)
    assert states(world)[gone] == "trashed"
    return world, table, gone


def run(world: World, table: Table, job: str) -> Any:
    world.settings = Settings(job, least=1)
    return world.process.lw.run(job, table.ref, EVERYTHING[job])


def states(world: World) -> dict[str, str]:
    return {plain(path): state for path, state in world.database.ask("SELECT path, state FROM trash")}


def test_a_store_that_shows_nothing_is_not_believed(stage: Stage) -> None:
    """The disk is unmounted after the table was read: its files are not gone, and none of them has a receipt."""
    world, table, gone = replaced(stage)
    before, away = states(world), Path(f"{table.folder}-away")
    real: Callable[[Objects, Sequence[str]], Any] = Objects.look

    def unmounted(objects: Objects, paths: Sequence[str]) -> Any:
        Path(table.folder).rename(away)
        return real(objects, paths)

    with (
        patch.object(Objects, "look", unmounted),
        pytest.raises(Unreachable, match="metadata file is not there"),
    ):
        run(world, table, "purge")
    assert states(world) == before
    away.rename(table.folder)
    assert run(world, table, "purge").state is RunState.DONE
    assert states(world)[gone] == "erased" and not Path(gone).exists()


def test_a_file_that_is_added_again_while_it_waits_is_kept(stage: Stage) -> None:
    world, table, gone = replaced(stage)
    rng = Random(2)
    table.append([file_on_disk(gone)], rng)
    world.committed()
    assert run(world, table, "purge").state is RunState.DONE
    assert states(world)[gone] == "kept" and Path(gone).exists()
