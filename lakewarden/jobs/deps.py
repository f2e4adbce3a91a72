"""What jobs that mark and delete stand on, beside the table itself: what is remembered, and every other table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakewarden.config.aliases import Aliases
from lakewarden.model.prices import PRICES, Price
from lakewarden.policy.resolve import Policy
from lakewarden.state.database import State
from lakewarden.state.tables import SeenTables
from lakewarden.tables.every_table import Catalogs
from lakewarden.tables.metadata_files import KnownStrays
from lakewarden.tables.places import Places


class Surroundings(Catalogs, Protocol):
    strays: KnownStrays  # whose metadata files are, as far as they were read before
    aliases: Aliases  # what the operator says about places with two names
    # Catalogs that do not list every table: what those tables need is in no proof.
    incomplete: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grounds:
    state: State
    lake: Surroundings
    deletes_per_s: float | None = None
    # Where details of folded history go: `state` or `table`.
    history: str = "state"
    prices: Mapping[str, Price] = field(default_factory=lambda: PRICES)


def places_of(grounds: Grounds, policy: Policy | None = None) -> Places:
    """Where tables lay when they were first seen, and the places that the operator names for the policy's table."""
    return Places.of(
        SeenTables(grounds.state).first_seen(),
        policy.columns("own_places") if policy else (),
        grounds.lake.aliases,
    )
