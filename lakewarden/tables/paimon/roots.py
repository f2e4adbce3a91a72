"""The lists, index manifests and statistics that a snapshot, tag or changelog of a Paimon table names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakewarden.tables.paimon.metadata import MAIN, PaimonMetadata, PaimonRoot
from lakewarden.tables.paimon.view import Handle

# Returns those of the paths that exist.
Existing = Callable[[Sequence[str]], set[str]]

_COMPACTED = "COMPACT"


@dataclass(frozen=True, slots=True)
class RootLists:
    """The lists of a root. `merged`: the live files are the sum of their entries. `changes`, `changelog`: every added file is needed.

    `unread`: only the list itself is kept; the files it names are not needed.
    """

    merged: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    changelog: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()

    @property
    def lists(self) -> tuple[str, ...]:
        return *self.merged, *self.changes, *self.changelog, *self.unread


@dataclass(frozen=True, slots=True)
class Kept:
    """Lists that may have been deleted with a snapshot although other roots name them, and those of them that exist."""

    doubtful: frozenset[str]
    there: frozenset[str]

    def needs(self, path: str) -> bool:
        return path not in self.doubtful or path in self.there


def named_by(handle: Handle, root: PaimonRoot, kept: Kept) -> RootLists:
    """The lists that the root needs.

    A tag keeps the rows of its snapshot, but not the changelog: Paimon's own expiry deletes the changelog too.
    """
    metadata, paths = handle.metadata, _lists(handle.metadata, root)
    if root.kind == "changelog":
        return _of_changelog(handle, root, kept)
    optional = "changelog" not in paths or root.kind == "tag" or not kept.needs(paths["changelog"])
    index, statistics = root.content.get("indexManifest"), root.content.get("statistics")
    return RootLists(
        (paths["base"], paths["delta"]),
        changelog=() if optional else (paths["changelog"],),
        index=(metadata.manifest(index),) if index else (),
        statistics=(f"{metadata.location}/statistics/{statistics}",) if statistics else (),
    )


def _of_changelog(handle: Handle, root: PaimonRoot, kept: Kept) -> RootLists:
    """The lists of a changelog. Without a changelog producer, readers use the delta list of a commit as its changelog.

    The delta list of a compaction is never read; it stays because Paimon's own expiry needs it to find replaced files.
    """
    paths = _lists(handle.metadata, root)
    changelog = (paths["changelog"],) if "changelog" in paths else ()
    wanted = "delta" in paths and not _produced(handle, root) and kept.needs(paths["delta"])
    delta = (paths["delta"],) if wanted else ()
    if root.content["commitKind"] == _COMPACTED:
        return RootLists(changelog=changelog, unread=delta)
    return RootLists(changes=delta, changelog=changelog)


def _produced(handle: Handle, root: PaimonRoot) -> bool:
    """Whether a writer produced a separate changelog, which readers use."""
    then = root.branch == MAIN and root.content.get("schemaId") in handle.metadata.producing
    return bool(then and handle.produces_changelogs)


def kept_lists(handle: Handle, roots: Sequence[PaimonRoot], existing: Existing) -> Kept:
    """Lists that expire with a snapshot of main although other roots name them: returns those that still exist.

    There are three cases. A changelog that outlives its snapshot names the snapshot's delta list (if writers produce
    changelogs, readers use these instead, and Paimon deletes the deltas). The first snapshot of a branch shares its changelog
    list with main. And main itself may have been rolled back to a tag, or fast-forwarded to a branch, whose snapshot
    had expired.
    """
    metadata = handle.metadata
    copied = {
        _lists(metadata, root).get("changelog", "")
        for root in metadata.roots
        if root.kind == "tag" or root.branch != MAIN
    }
    doubtful = set()
    for root in roots:
        paths = _lists(metadata, root)
        if root.kind == "changelog":
            doubtful.add("" if _produced(handle, root) else paths.get("delta", ""))
        elif root.kind == "snapshot":
            doubtful |= {paths.get("changelog", "")} & copied
    doubtful.discard("")
    return Kept(frozenset(doubtful), frozenset(existing(sorted(doubtful)) if doubtful else ()))


def _lists(metadata: PaimonMetadata, root: PaimonRoot) -> dict[str, str]:
    names = {name: root.content.get(f"{name}ManifestList") for name in ("base", "delta", "changelog")}
    return {name: metadata.manifest(each) for name, each in names.items() if each}


def list_lengths(metadata: PaimonMetadata, roots: Sequence[PaimonRoot]) -> dict[str, int]:
    """The lengths of lists as recorded in snapshots. A list truncated at the end of a block would otherwise look complete."""
    return {
        metadata.manifest(root.content[f"{name}ManifestList"]): int(root.content[f"{name}ManifestListSize"])
        for root in roots
        for name in ("base", "delta", "changelog")
        if root.content.get(f"{name}ManifestList") and root.content.get(f"{name}ManifestListSize")
    }
