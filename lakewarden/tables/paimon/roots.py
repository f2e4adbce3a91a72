"""Which lists, index manifests and statistics a snapshot, tag or changelog of a Paimon table names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakewarden.tables.paimon.metadata import MAIN, Metadata, Root
from lakewarden.tables.paimon.view import Handle

# Which of these paths are there.
Existing = Callable[[Sequence[str]], set[str]]

_COMPACTED = "COMPACT"


@dataclass(frozen=True, slots=True)
class Named:
    """`merged` are lists whose entries add up to what is live. Of `changes` and of `changelog` every added file is needed.

    `unread` just stay: nobody reads what they name.
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
    """Lists that may have gone with a snapshot though others name them, and which of these are there."""

    doubtful: frozenset[str]
    there: frozenset[str]

    def needs(self, path: str) -> bool:
        return path not in self.doubtful or path in self.there


def named_by(handle: Handle, root: Root, kept: Kept) -> Named:
    """What the root needs.

    A tag keeps rows, not how they came about: Paimon's own expiry deletes the changelog of a snapshot that has a tag.
    """
    metadata, paths = handle.metadata, _lists(handle.metadata, root)
    if root.kind == "changelog":
        return _of_changelog(handle, root, kept)
    optional = "changelog" not in paths or root.kind == "tag" or not kept.needs(paths["changelog"])
    index, statistics = root.content.get("indexManifest"), root.content.get("statistics")
    return Named(
        (paths["base"], paths["delta"]),
        changelog=() if optional else (paths["changelog"],),
        index=(metadata.manifest(index),) if index else (),
        statistics=(f"{metadata.location}/statistics/{statistics}",) if statistics else (),
    )


def _of_changelog(handle: Handle, root: Root, kept: Kept) -> Named:
    """Without a producer of changelogs it is the delta that is read as one: what a commit of new rows added.

    Of a compaction it is never read, and stays because Paimon's own expiry learns from it what was replaced.
    """
    paths = _lists(handle.metadata, root)
    changelog = (paths["changelog"],) if "changelog" in paths else ()
    wanted = "delta" in paths and not _produced(handle, root) and kept.needs(paths["delta"])
    delta = (paths["delta"],) if wanted else ()
    if root.content["commitKind"] == _COMPACTED:
        return Named(changelog=changelog, unread=delta)
    return Named(changes=delta, changelog=changelog)


def _produced(handle: Handle, root: Root) -> bool:
    """Whether a changelog was made by a writer, beside the rows, and is read as such."""
    then = root.branch == MAIN and root.content.get("schemaId") in handle.metadata.producing
    return bool(then and handle.produces_changelogs)


def kept_lists(handle: Handle, roots: Sequence[Root], existing: Existing) -> Kept:
    """Of the lists that go with a snapshot of main though others name them, those that did not go.

    Changelogs that outlive their snapshots name the list of its changes, but not where writers produced changelogs, and do so
    now: these are read instead, and Paimon lets go of the deltas. A branch's first snapshot shares the list of its changelog
    with main. And main itself, where it was rolled back to a tag, or forward to a branch, whose snapshot had expired.
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
