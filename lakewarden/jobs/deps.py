"""Dependencies of the jobs beside the table itself: the state database, the other tables, the delete rate, prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakewarden.config.aliases import Aliases
from lakewarden.model.prices import PRICES, Price
from lakewarden.policy.resolve import Policy
from lakewarden.state.database import State
from lakewarden.state.tables import SeenTables
from lakewarden.tables.interface import AllCatalogs
from lakewarden.tables.metadata_files import ForeignMetadataCache
from lakewarden.tables.places import Places


class JobLake(AllCatalogs, Protocol):
    strays: ForeignMetadataCache  # the owners of metadata files that were read before
    aliases: Aliases  # the places that have two names, as declared by the operator
    # Catalogs that do not list every table: the files that the missing tables need are in no proof.
    incomplete: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobDeps:
    state: State
    lake: JobLake
    deletes_per_s: float | None = None
    # Where the details of folded history are stored: `state` or `table`.
    history: str = "state"
    prices: Mapping[str, Price] = field(default_factory=lambda: PRICES)


def places_of(deps: JobDeps, policy: Policy | None = None) -> Places:
    """Where tables were when they were first seen, and the places that the operator names for the policy's table."""
    return Places.of(
        SeenTables(deps.state).first_seen(),
        policy.columns("own_places") if policy else (),
        deps.lake.aliases,
    )
