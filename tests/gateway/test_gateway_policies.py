"""What the gateway remembers about a table's policy, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from lakewarden.config.schema import PolicyConfig
from lakewarden.errors import PolicyError
from lakewarden.gateway.judge import CommitRules, PolicyCache
from lakewarden.model.table import TableRef

TABLE = TableRef("lake", ("db",), "t")
KEY = "lakewarden.lineage_required_keys"
USUAL = ("writer.id", "writer.commit_hash", "writer.invocation_id", "lineage.operation")


def policies(stored: Mapping[str, object] | None = None, config: PolicyConfig | None = None) -> PolicyCache:
    async def found(_table: str) -> Mapping[str, object]:
        return stored or {}

    return PolicyCache(config or PolicyConfig(), found)


async def asked(where: PolicyCache, *properties: Mapping[str, str]) -> list[tuple[str, ...]]:
    """What the table adds to what each commit is asked for, one after the other, where the catalog would show these properties."""
    return [added(await _rules(where, each)) for each in properties]


def added(rules: CommitRules) -> tuple[str, ...]:
    return rules.requirements.keys[len(USUAL) :]


async def _rules(where: PolicyCache, properties: Mapping[str, str]) -> CommitRules:
    async def shown() -> Mapping[str, str]:
        return properties

    return await where.rules(TABLE, shown)


def test_what_is_known_is_used_until_it_is_forgotten() -> None:
    async def run() -> None:
        where = policies()
        assert await asked(where, {KEY: "a"}, {KEY: "b"}) == [("a",), ("a",)]
        where.forget(TABLE)
        assert await asked(where, {KEY: "b"}) == [("b",)]

    asyncio.run(run())


@pytest.mark.parametrize("all_tables", [False, True])
def test_who_was_looking_while_it_was_forgotten_does_not_bring_it_back(all_tables: bool) -> None:
    async def run() -> None:
        where, looking, changed = policies(), asyncio.Event(), asyncio.Event()

        async def slowly() -> Mapping[str, str]:
            looking.set()
            await changed.wait()
            return {KEY: "old"}

        late = asyncio.create_task(where.rules(TABLE, slowly))
        await looking.wait()
        where.forget(None if all_tables else TABLE)
        changed.set()
        assert added(await late) == ("old",)
        assert await asked(where, {KEY: "new"}) == [("new",)]

    asyncio.run(run())


def test_what_a_table_that_is_not_there_would_say_is_not_remembered() -> None:
    async def run() -> None:
        where = policies()
        assert added(await where.once(TABLE, {KEY: "never"})) == ("never",)
        assert await asked(where, {KEY: "b"}) == [("b",)]

    asyncio.run(run())


def test_what_the_operator_said_is_settled() -> None:
    config = PolicyConfig(
        file={"protected_tags": ["a"], "snapshot_min_retained": 3},
        tables=[
            {"pattern": "lake.db.*", "snapshot_expiry_reserved": True},
            {"pattern": "lake.other.*", "lineage_required_keys": []},
        ],
    )
    found = asyncio.run(policies({"lineage_allowed_operations": ["append"]}, config).once(TABLE, {}))
    assert found.settled == {"protected_tags", "snapshot_expiry_reserved", "lineage_allowed_operations"}


def test_a_property_that_cannot_be_read_is_told_before_it_is_there() -> None:
    async def run() -> None:
        where = policies()
        for wrong in ({"lakewarden.typo": "1"}, {"lakewarden.snapshot_expiry_reserved": "perhaps"}):
            with pytest.raises(PolicyError, match=next(iter(wrong)).removeprefix("lakewarden.")):
                await where.check(TABLE, {}, wrong)
            await where.check(TABLE, wrong, {**wrong, KEY: "a"})
            await where.check(TABLE, wrong, {})
        await where.check(TABLE, {}, {KEY: "a", "comment": "x"})

    asyncio.run(run())
