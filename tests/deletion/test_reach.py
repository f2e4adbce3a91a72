"""What a table needs, from metadata files on a disk: complete, or an error that names the file. And the cache of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakewarden.errors import LakewardenError
from lakewarden.model.table import Ref, Snapshot, TableView
from lakewarden.rewrite.metadata.manifests import LISTED, NAMED
from lakewarden.tables import metadata_cache
from lakewarden.tables.iceberg.reachability import IcebergReachability
from lakewarden.tables.metadata_cache import CachedMetadata, ReachCache, bound
from lakewarden.tables.paimon.metadata import PaimonMetadata, PaimonRoot
from lakewarden.tables.paimon.reachability import PaimonReachability as PaimonReach
from lakewarden.tables.paimon.view import Handle
from tests.support.tables import NOW, view


class Books:
    """Metadata files as a dictionary; counts what is opened."""

    def __init__(self, lists: Mapping[str, Sequence[str]], manifests: Mapping[str, Sequence[str]]) -> None:
        self._lists, self._manifests = dict(lists), dict(manifests)
        self.read: list[str] = []
        self.broken: set[str] = set()
        self.encrypted = False
        self.gone: set[str] = set()

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        return [path for path in paths if path in self.gone]

    def lists(self, paths: Sequence[str], io: Mapping[str, str], lengths: Mapping[str, int]) -> Any:
        for path in paths:
            self.read.append(path)
            rows = [
                {
                    "manifest": name,
                    "length": 100,
                    "live": len(self._manifests[name]),
                    "encrypted": self.encrypted,
                }
                for name in self._lists[path]
            ]
            broken = path in self.broken
            yield path, None if broken else pa.Table.from_pylist(rows, LISTED), "cut short" if broken else ""

    def manifests(self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]) -> Any:
        for path, _, _ in wanted:
            self.read.append(path)
            rows = [{"path": name, "size": 10, "kind": 0} for name in self._manifests[path]]
            broken = path in self.broken
            yield path, None if broken else pa.Table.from_pylist(rows, NAMED), "cut short" if broken else ""


def table(*lists: str, **more: Any) -> TableView:
    chain = tuple(
        Snapshot(number, number - 1 or None, number, NOW, "append", {}, path)
        for number, path in enumerate(lists, 1)
    )
    return replace(
        view(),
        snapshots=chain,
        current_snapshot_id=len(chain),
        refs=(Ref("main", "branch", len(chain)),),
        **more,
    )


def reach(books: Books, found: TableView, folder: Path) -> IcebergReachability:
    return IcebergReachability(found, CachedMetadata(found, books, {}, ReachCache(folder, found.uuid)))


def gone(made: IcebergReachability, *removed: int) -> set[str]:
    return set(made.unreached(set(removed))["path"].to_pylist())


BOOKS = {
    "lists": {"/l1": ["/m1"], "/l2": ["/m1", "/m2"], "/l3": ["/m2", "/m3"]},
    "manifests": {"/m1": ["/a", "/b"], "/m2": ["/c"], "/m3": ["/b", "/d"]},
}


def test_the_difference_of_two_sets(tmp_path: Path) -> None:
    books = Books(**BOOKS)
    made = reach(books, table("/l1", "/l2", "/l3"), tmp_path)
    assert gone(made, 1) == {"/l1"}
    assert gone(made, 1, 2) == {"/l1", "/l2", "/m1", "/a"}, "b is named again by another manifest"
    assert gone(made, 3) == {"/l3", "/m3", "/d"}
    assert gone(made) == set()


def test_each_file_is_read_once_ever(tmp_path: Path) -> None:
    books = Books(**BOOKS)
    found = table("/l1", "/l2", "/l3")
    first = reach(books, found, tmp_path).reached()
    assert sorted(books.read) == ["/l1", "/l2", "/l3", "/m1", "/m2", "/m3"]
    books.read.clear()
    again = reach(books, found, tmp_path).reached()
    assert books.read == [] and np.array_equal(first.numbers, again.numbers)
    assert all(again.names(["/a", "/b", "/c", "/d", "/m1", "/l3", found.metadata_location]))
    assert not any(again.names(["/e", "/m4"]))


def test_what_is_remembered_must_still_be_there(tmp_path: Path) -> None:
    books = Books(**BOOKS)
    found = table("/l1", "/l2", "/l3")
    reach(books, found, tmp_path).reached()
    for path in ("/l1", "/m2"):
        books.gone = {path}
        with pytest.raises(LakewardenError, match=f"{path} of .*it does not exist"):
            reach(books, found, tmp_path).reached()
        with pytest.raises(LakewardenError, match=f"{path} of .*it does not exist"):
            reach(books, found, tmp_path).unreached({1})


def test_manifests_without_live_files_are_not_opened(tmp_path: Path) -> None:
    books = Books({"/l1": ["/m1", "/m2"]}, {"/m1": ["/a"], "/m2": []})
    reach(books, table("/l1"), tmp_path).reached()
    assert "/m2" not in books.read


def test_appends_alone_need_nothing_of_what_stays(tmp_path: Path) -> None:
    """Expiring old appends frees lists only: the files that stay are not even looked at."""
    books = Books({"/l1": ["/m1"], "/l2": ["/m1", "/m2"]}, {"/m1": ["/a"], "/m2": ["/b"]})
    assert gone(reach(books, table("/l1", "/l2"), tmp_path), 1) == {"/l1"}
    assert not {"/m1", "/m2"} & set(books.read)


def test_two_spellings_are_one_file(tmp_path: Path) -> None:
    books = Books(
        {"/l1": ["/m1"], "/l2": ["file:///m1", "/m2"]},
        {"/m1": ["/a"], "file:///m1": ["/a"], "/m2": ["file:/b"]},
    )
    assert gone(reach(books, table("/l1", "/l2"), tmp_path), 1) == {"/l1"}
    moved = Books({"/l1": ["/m1"], "/l2": ["/m2"]}, {"/m1": ["s3://b/x"], "/m2": ["s3a://b/x"]})
    assert gone(reach(moved, table("/l1", "/l2"), tmp_path / "2"), 1) == {"/l1", "/m1"}


@pytest.mark.parametrize("broken", ["/l1", "/m1"])
def test_what_cannot_be_read_is_named(tmp_path: Path, broken: str) -> None:
    books = Books(**BOOKS)
    books.broken = {broken}
    with pytest.raises(LakewardenError, match=f"{broken} of .*cut short") as found:
        reach(books, table("/l1", "/l2", "/l3"), tmp_path).reached()
    assert "fsck" in found.value.hint


def test_encrypted_manifests_are_refused(tmp_path: Path) -> None:
    books = Books(**BOOKS)
    books.encrypted = True
    with pytest.raises(LakewardenError, match="encrypted"):
        reach(books, table("/l1"), tmp_path).reached()


def test_a_snapshot_without_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LakewardenError, match="first format version"):
        reach(Books({}, {}), table(""), tmp_path).reached()


def test_statistics_go_with_their_snapshot(tmp_path: Path) -> None:
    books = Books({"/l1": ["/m1"], "/l2": ["/m1"]}, {"/m1": ["/a"]})
    found = table("/l1", "/l2", statistics=((1, "/s1.stats"), (2, "/s2.stats"), (1, "/s2.stats")))
    assert gone(reach(books, found, tmp_path), 1) == {"/l1", "/s1.stats"}
    assert all(reach(books, found, tmp_path).reached().names(["/s1.stats", "/s2.stats"]))


def test_statistics_of_a_snapshot_that_is_gone_are_needed_while_the_metadata_names_them(
    tmp_path: Path,
) -> None:
    books = Books({"/l1": ["/m1"]}, {"/m1": ["/a"]})
    found = table("/l1", statistics=((99, "/s99.stats"),))
    assert reach(books, found, tmp_path).reached().names(["/s99.stats"])[0]


def test_an_empty_table_needs_its_metadata(tmp_path: Path) -> None:
    found = replace(table(), metadata_log=("/t/metadata/v0.json",), snapshots=())
    assert all(
        reach(Books({}, {}), found, tmp_path)
        .reached()
        .names([found.metadata_location, "/t/metadata/v0.json"])
    )


# ------------------------------------------------------------ the cache


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.arrow"))


def test_damage_is_noticed_and_read_again(tmp_path: Path) -> None:
    books = Books(**BOOKS)
    found = table("/l1", "/l2", "/l3")
    whole = reach(books, found, tmp_path).reached()
    for path in segments(tmp_path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(bytes(content))
    books.read.clear()
    assert np.array_equal(reach(books, found, tmp_path).reached().numbers, whole.numbers)
    assert len(books.read) == 6, "nothing damaged is believed"


def test_truncation_is_noticed(tmp_path: Path) -> None:
    books = Books(**BOOKS)
    found = table("/l1", "/l2", "/l3")
    whole = reach(books, found, tmp_path).reached()
    for path in segments(tmp_path):
        path.write_bytes(path.read_bytes()[:-40])
    assert np.array_equal(reach(books, found, tmp_path).reached().numbers, whole.numbers)


def test_a_manifest_of_another_length_is_another_manifest(tmp_path: Path) -> None:
    cache = ReachCache(tmp_path, "u")
    rows = pa.Table.from_pylist([{"path": "/a", "size": 1, "kind": 0}], NAMED)
    cache.add("manifest", ["/m1"], [100], [1], rows)
    assert cache.find("manifest", [("/m1", 100)])[1] == []
    assert cache.find("manifest", [("/m1", 101)])[1] == [0]


def test_many_segments_become_one_without_the_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "_MANY", 3)
    cache = ReachCache(tmp_path, "u")
    for number in range(5):
        rows = pa.Table.from_pylist([{"path": f"/f{number}", "size": 1, "kind": 0}] * (number + 1), NAMED)
        cache.add("manifest", [f"/m{number}"], [100], [number + 1], rows)
    assert cache.crowded("manifest") and not cache.crowded("list")
    cache.keep_only("manifest", {"/m1", "/m3", "/m4"})
    assert len(segments(tmp_path)) == 1
    found, missing = cache.find("manifest", [(f"/m{number}", 100) for number in range(5)])
    assert missing == [0, 2]
    ((segment, numbers),) = found
    kept = segment.rows(numbers)
    assert kept["of"].to_pylist() == [1] * 2 + [3] * 4 + [4] * 5
    assert kept["path"].to_pylist() == ["/f1"] * 2 + ["/f3"] * 4 + ["/f4"] * 5


def test_a_table_that_is_looked_at_every_day_keeps_few_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_cache, "_MANY", 3)
    lists = {f"/l{day}": [f"/m{each}" for each in range(day + 1)] for day in range(10)}
    books = Books(lists, {f"/m{day}": [f"/f{day}"] for day in range(10)})
    for day in range(10):
        made = reach(books, table(*list(lists)[: day + 1]), tmp_path).reached()
        assert all(made.names([f"/f{each}" for each in range(day + 1)]))
    assert len(segments(tmp_path)) <= 5
    assert len(books.read) == 20, "and still nothing was read twice"


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    books = Books(**BOOKS)
    assert gone(reach(books, table("/l1", "/l2", "/l3"), blocked), 1, 2) == {"/l1", "/l2", "/m1", "/a"}


def test_the_cache_is_bounded_by_forgetting_the_oldest_tables(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "old", "oldest"]):
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "manifest-x.arrow"
        file.write_bytes(b"x" * 1000)
        os.utime(file, (1_000_000 - age * 1000, 1_000_000 - age * 1000))
    bound(tmp_path, 2000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
    bound(tmp_path / "nowhere", 0)


def test_the_index_is_readable(tmp_path: Path) -> None:
    cache = ReachCache(tmp_path, "u")
    cache.add(
        "list",
        ["/l"],
        [-1],
        [1],
        pa.Table.from_pylist([{"manifest": "/m", "length": 1, "live": 1, "encrypted": False}], LISTED),
    )
    (path,) = segments(tmp_path)
    with pa.memory_map(str(path)) as source:
        index = json.loads(pa.ipc.open_file(source).schema.metadata[b"lakewarden.index"])
    assert index["names"] == ["/l"] and index["counts"] == [1]


# ------------------------------------------------------------ Paimon: main and its branches


class PaimonBooks(Books):
    """The same as Paimon's manifests have them: each entry adds a file (0) or deletes it (1)."""

    def manifests(self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]) -> Any:
        for path, _, _ in wanted:
            rows = [
                {"path": name.lstrip("-"), "size": 10, "kind": int(name.startswith("-"))}
                for name in self._manifests[path]
            ]
            yield path, pa.Table.from_pylist(rows, NAMED), ""


PAIMON = PaimonBooks(
    {f"/t/manifest/{name}": [f"/{name}"] for name in ("none", "d1", "d2")},
    {"/none": [], "/d1": ["/a"], "/d2": ["-/a", "/b"]},
)


def paimon_reach(folder: Path, *roots: tuple[str, str, str, int]) -> PaimonReach:
    """Of roots (kind, branch, name, id): snapshot 1 added /a, snapshot 2 put /b in its place."""
    made = tuple(
        PaimonRoot(
            kind,
            branch,
            name,
            f"/t/{branch}/{kind}-{name}",
            {
                "id": id_,
                "baseManifestList": "none" if id_ == 1 else "d1",
                "deltaManifestList": f"d{id_}",
                "commitKind": "APPEND",
                "timeMillis": id_,
            },
        )
        for kind, branch, name, id_ in roots
    )
    metadata = PaimonMetadata("/t", made, {}, (), {}, frozenset(), tuple(each.file for each in made), "1")
    found = replace(view(), handle=Handle(metadata, False, False, False))
    known = CachedMetadata(found, PAIMON, {}, ReachCache(folder, found.uuid))
    return PaimonReach(found, known, lambda paths: set(paths))


MAIN_PAST = (("snapshot", "main", "1", 1), ("snapshot", "main", "2", 2))


@pytest.mark.parametrize(
    "holder", [("tag", "side", "then", 1), ("snapshot", "side", "1", 1), ("tag", "main", "then", 1)]
)
def test_what_a_branch_or_its_tag_names_does_not_go_with_mains_snapshot(
    tmp_path: Path, holder: tuple[str, str, str, int]
) -> None:
    """paimon#9867, paimon-cpp#357: a branch has snapshots of the same numbers, and tags of its own."""
    free = paimon_reach(tmp_path / "free", *MAIN_PAST).unreached({1})
    assert "/a" in free["path"].to_pylist()
    kept = paimon_reach(tmp_path / "held", *MAIN_PAST, holder).unreached({1}, tags=["other"])
    assert "/a" not in kept["path"].to_pylist()


def test_a_tag_of_a_branch_stays_though_one_of_main_has_its_name(tmp_path: Path) -> None:
    roots = (*MAIN_PAST[1:], ("tag", "main", "then", 1), ("tag", "side", "then", 1))
    assert "/a" not in paimon_reach(tmp_path, *roots).unreached(set(), tags=["then"])["path"].to_pylist()


def test_a_manifest_that_only_a_snapshot_between_names_must_be_there(tmp_path: Path) -> None:
    """Its entries need not be read, for others tell the same. Whoever reads that snapshot needs the manifest."""
    names = {
        "none": [],
        "d1": ["d1"],
        "d2": ["d2"],
        "d3": ["d3"],
        "b3": ["m12"],
        "d4": ["d4"],
        "b4": ["m123"],
    }
    books = PaimonBooks(
        {f"/t/manifest/{name}": [f"/{each}" for each in named] for name, named in names.items()},
        {"/d1": ["/a"], "/d2": ["/b"], "/d3": ["/c"], "/d4": ["/d"], "/m12": ["/a", "/b"], "/m123": ["/a", "/b", "/c"]},
    )  # fmt: skip
    made = tuple(
        PaimonRoot(
            "snapshot",
            "main",
            str(id_),
            f"/t/snapshot/snapshot-{id_}",
            {
                "id": id_,
                "baseManifestList": base,
                "deltaManifestList": f"d{id_}",
                "commitKind": "APPEND",
                "timeMillis": id_,
            },
        )
        for id_, base in enumerate(("none", "d1", "b3", "b4"), 1)
    )
    metadata = PaimonMetadata("/t", made, {}, (), {}, frozenset(), tuple(each.file for each in made), "1")
    found = replace(view(), handle=Handle(metadata, False, False, False))

    def asked() -> PaimonReach:
        known = CachedMetadata(found, books, {}, ReachCache(tmp_path, found.uuid))
        return PaimonReach(found, known, lambda paths: set(paths))

    assert all(asked().reached().names(["/a", "/b", "/c", "/d", "/m12"]))
    assert "/m12" not in books.read
    books.gone = {"/m12"}
    with pytest.raises(LakewardenError, match=r"/m12 of .*it does not exist"):
        asked().reached()
    with pytest.raises(LakewardenError, match=r"/m12 of .*it does not exist"):
        asked().unreached({1})
