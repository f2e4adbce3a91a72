"""Which lists, index manifests and statistics a snapshot, tag or changelog of a Paimon table names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from lakewarden.formats.paimon.metadata import MAIN, Metadata, Root

# Which of these paths are there.
Existing = Callable[[Sequence[str]], set[str]]


@dataclass(frozen=True, slots=True)
class Named:
    """`merged` are lists whose entries add up to what is live. Of `changes` and of `changelog` every added file is needed."""

    merged: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    changelog: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()

    @property
    def lists(self) -> tuple[str, ...]:
        return *self.merged, *self.changes, *self.changelog


def named_by(metadata: Metadata, root: Root, kept: Collection[str]) -> Named:
    """What the root needs. `kept` are those of the lists it may do without that are there.

    A tag keeps rows, not how they came about: Paimon's own expiry deletes the changelog of a snapshot that has a tag.
    """
    paths = _lists(metadata, root)
    changelog: tuple[str, ...] = (paths["changelog"],) if "changelog" in paths else ()
    if root.kind == "changelog":
        return Named(changes=tuple({paths.get("delta", "")} & set(kept)), changelog=changelog)
    if root.kind == "tag" or root.branch != MAIN:
        changelog = () if root.kind == "tag" else tuple(set(changelog) & set(kept))
    index, statistics = root.content.get("indexManifest"), root.content.get("statistics")
    return Named(
        (paths["base"], paths["delta"]),
        changelog=changelog,
        index=(metadata.manifest(index),) if index else (),
        statistics=(f"{metadata.location}/statistics/{statistics}",) if statistics else (),
    )


def kept_lists(metadata: Metadata, roots: Sequence[Root], existing: Existing) -> set[str]:
    """Of the lists that go with a snapshot of main though others name them, those that did not go.

    Changelogs that outlive their snapshots name the list of its changes, and a branch's first snapshot, which it shares with
    main, the list of its changelog.
    """
    named = set()
    for root in roots:
        paths = _lists(metadata, root)
        if root.kind == "changelog":
            named.add(paths.get("delta", ""))
        elif root.kind == "snapshot" and root.branch != MAIN:
            named.add(paths.get("changelog", ""))
    named.discard("")
    return existing(sorted(named)) if named else set()


def _lists(metadata: Metadata, root: Root) -> dict[str, str]:
    told = {name: root.content.get(f"{name}ManifestList") for name in ("base", "delta", "changelog")}
    return {name: metadata.manifest(each) for name, each in told.items() if each}


def list_lengths(metadata: Metadata, roots: Sequence[Root]) -> dict[str, int]:
    """A list that was cut short at the end of a block reads like a shorter one: snapshots tell how long each is."""
    return {
        metadata.manifest(root.content[f"{name}ManifestList"]): int(root.content[f"{name}ManifestListSize"])
        for root in roots
        for name in ("base", "delta", "changelog")
        if root.content.get(f"{name}ManifestList") and root.content.get(f"{name}ManifestListSize")
    }
