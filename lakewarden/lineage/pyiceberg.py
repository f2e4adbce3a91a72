"""A PyIceberg catalog that checks the lineage of every commit before the table is updated.

    from lakewarden.lineage.pyiceberg import load_catalog     # instead of: from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake")

It is PyIceberg's own catalog, configured as usual (`.pyiceberg.yaml`, the environment or the call), with a check
before each commit. The catalog has three more properties:

    lakewarden.config    the path of `lakewarden.toml`: its policy is applied, and its state database counts rejected
                         commits. Without it, the tables' own `lakewarden.*` properties and the defaults apply.
    lakewarden.catalog   the catalog's name in that file, if it is another one
    lakewarden.type      the catalog's type, if `type` cannot be set because `py-catalog-impl` names this module
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import _ENV_CONFIG, AVAILABLE_CATALOGS, Catalog, CatalogType, infer_catalog_type
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.snapshots import Summary
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate

from lakewarden.config.schema import Config
from lakewarden.errors import ConfigError, UsageError
from lakewarden.lineage.writing import Hook, requirements, said
from lakewarden.model.table import TableRef
from lakewarden.policy.resolve import Layers, resolve
from lakewarden.state.database import State
from lakewarden.state.policies import StoredPolicies

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse, Table

DOOR = "pyiceberg"
_TYPE, _CONFIG, _NAME = "lakewarden.type", "lakewarden.config", "lakewarden.catalog"


def load_catalog(name: str, **properties: str) -> Catalog:
    """Like PyIceberg's function of that name: the call overrides the environment, which overrides `.pyiceberg.yaml`."""
    return catalog(name, **properties)


def catalog(name: str, **properties: str) -> Catalog:
    """For `py-catalog-impl`. PyIceberg passes only the call's properties, so its configuration is read here."""
    configured: Any = _ENV_CONFIG.get_catalog_config(name) or {}
    every = {**{key: str(value) for key, value in configured.items()}, **properties}
    own = (_TYPE, _CONFIG, _NAME, "py-catalog-impl")
    base_catalog = _plain(
        name,
        every.get(_TYPE) or every.get("type"),
        {key: value for key, value in every.items() if key not in own},
    )
    base_catalog.__class__ = _with_lineage(type(base_catalog))
    keeper: Any = base_catalog
    keeper.lakewarden_door = _Door(every.get(_NAME, name), *_configured(every.get(_CONFIG)))
    return base_catalog


def _plain(name: str, kind: str | None, properties: dict[str, str]) -> Catalog:
    known = ", ".join(each.value for each in AVAILABLE_CATALOGS)
    try:
        type_ = CatalogType(kind.lower()) if kind else infer_catalog_type(name, {**properties})
    except ValueError:
        type_ = None
    if type_ is not None and type_ in AVAILABLE_CATALOGS:
        return AVAILABLE_CATALOGS[type_](name, properties)
    reason = f"found {kind!r}; allowed: {known}"
    if kind is None:
        reason = f"neither a type nor a uri is given, in the call or in .pyiceberg.yaml; types are: {known}"
    raise ConfigError(key=_TYPE, where=f"the PyIceberg catalog {name}", reason=reason)


def _configured(path: str | None) -> tuple[Config, State | None]:
    if path is None:
        return Config.from_dict({}, os.environ), None
    config = Config.load(Path(path), os.environ)
    return config, State.open(config.state.url)


@cache
def _with_lineage(kind: type[Catalog]) -> type[Catalog]:
    """The catalog's class with a check before each commit: its tables commit through it."""

    def commit_table(
        self: Any, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        self.lakewarden_door.pass_through(table, updates)
        return kind.commit_table(self, table, requirements, updates)

    return type(f"Lineage{kind.__name__}", (kind,), {"commit_table": commit_table})


@dataclass(frozen=True, slots=True)
class _Door:
    catalog: str
    config: Config
    state: State | None

    def pass_through(self, table: Table, updates: tuple[TableUpdate, ...]) -> None:
        """Add the writer's lineage to every new snapshot, then check them: all of the commit passes, or nothing."""
        new = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
        if not new:
            return
        ref = self._ref(table)
        required = requirements(resolve(ref, self._layers(ref, _properties_now(table))))
        summaries = []
        for snapshot in new:
            if snapshot.summary is None:
                raise UsageError(
                    reason=f"commit to {ref}: snapshot {snapshot.snapshot_id} has no summary at all",
                    hint="create the snapshot with PyIceberg's own table operations",
                )
            summary = said(_texts(snapshot.summary))
            for key, value in summary.items():
                if key != "operation":
                    snapshot.summary[key] = value
            summaries.append(summary)
        Hook(DOOR, self.state).check(ref, required, *summaries)

    def _ref(self, table: Table) -> TableRef:
        *namespace, name = table.name()
        return TableRef(self.catalog, tuple(namespace), name)

    def _layers(self, ref: TableRef, properties: Mapping[str, str]) -> Layers:
        stored = StoredPolicies(self.state).get(str(ref)) if self.state is not None else {}
        return Layers.of(self.config.policy, table_properties=properties, stored=stored)


def _properties_now(table: Table) -> Mapping[str, str]:
    """The table's current properties: the writer's copy may be as old as its process, but the current requirements count."""
    try:
        return table.catalog.load_table(table.name()).metadata.properties
    except NoSuchTableError:  # the table is being created
        return table.metadata.properties


def _texts(summary: Summary) -> dict[str, str]:
    return {"operation": summary.operation.value, **summary.additional_properties}
