"""Whose turn it is at a table, and for how long one waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lakewarden.errors import CommitLost
from lakewarden.gateway.commit_order import CommitOrder
from lakewarden.model.table import TableRef
from lakewarden.state.database import State
from lakewarden.state.locks import Locks
from lakewarden.state.process import current_owner

TABLE, ALIAS = TableRef("lake", ("a", "b"), "t"), TableRef("lake", ("a.b",), "t")


def test_one_commit_at_a_time_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    state = State.open(f"sqlite:///{tmp_path}/state.db")
    turns = CommitOrder(Locks(state, current_owner()), wait=0.05)

    async def run() -> None:
        async with turns.taken([(TABLE, "u")]):
            with pytest.raises(CommitLost, match="other commits were ahead of it"):
                async with turns.taken([(ALIAS, "u")]):
                    pytest.fail("two at once")
            async with turns.taken([(TABLE, "another")]):
                pass
        async with turns.taken([(TABLE, "u"), (ALIAS, "u")]) as both:
            assert len(both.locks) == 1, "a table with two names has one lock"

    try:
        asyncio.run(run())
    finally:
        turns.close()
        state.close()
