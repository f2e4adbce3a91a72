"""The state database, in each of the two that it may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewarden.state.database import State


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    address: str = request.getfixturevalue("pg_database").url
    return address.replace("postgresql+psycopg://", "postgresql://")


@pytest.fixture
def state(url: str) -> Iterator[State]:
    opened = State.open(url)
    yield opened
    opened.close()
