"""Listing, asking after, reading and deleting files: the same promises on this machine's disk and on S3."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from lakewarden import clock
from lakewarden.errors import Unreachable
from lakewarden.storage.cloud import CloudFiles
from lakewarden.storage.objects import LISTING, Objects
from tests.support.s3 import MOTO_PAGE, S3, s3_server

pytestmark = pytest.mark.services

# One partition value each that someone has had; `=` is in all of them.
ODD = [
    "data/p=a%20b/x y+z#?.parquet",
    "data/p=ünï/日本.parquet",
    'data/p=[x]{y}^`~<>|*/back\\slash".parquet',
    "data/p=a&b;c,d@e:f$g!h'i(j)/x.parquet",
    "data/p=100%/x%2Fy%.parquet",
    "data/p= /.x.parquet",
    "data/p=a\tb/x.parquet",
]
# Names that mean another file on a disk, or cannot be there beside another one.
EXACT = [
    "data//double.parquet",
    "/lead.parquet",
    "//lead.parquet",
    "data/marker/",
    "data/marker",
    "data/./dot.parquet",
    "data/../up.parquet",
    "data/\x01control.parquet",
]


@dataclass(frozen=True)
class Place:
    """A store under test: where its files are, and how a test puts one there."""

    objects: Objects
    root: str
    put: Callable[[str, bytes], None]

    def path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def rows(self, folder: str = "") -> list[dict[str, Any]]:
        batches = list(self.objects.list(self.path(folder) if folder else self.root))
        assert all(each.schema.equals(LISTING) for each in batches)
        return sorted(pa.Table.from_batches(batches, LISTING).to_pylist(), key=lambda row: str(row["path"]))

    def paths(self, folder: str = "") -> list[str]:
        return [row["path"] for row in self.rows(folder)]


def on_disk(folder: Path, spelling: str = "") -> Place:
    def put(key: str, body: bytes) -> None:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    return Place(Objects({}), f"{spelling}{folder}", put)


def in_bucket(server: S3, scheme: str = "s3") -> Place:
    bucket = server.bucket()
    return Place(Objects(server.io()), f"{scheme}://{bucket.name}", bucket.put)


def in_memory() -> Place:
    """The code for Google and Azure, on a store of the same library that needs no account."""
    store, objects = MemoryStore(), Objects({})
    objects._stores["google", "lake"] = CloudFiles(store, "lake")
    return Place(objects, "gs://lake", lambda key, body: store.put(key, body) and None)


def fill(place: Place, keys: Iterable[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: place.put(key, b"x"), keys))


@pytest.fixture(params=["disk", "file:", "file://", "s3", "s3a", "exact-s3", "cloud"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "cloud":
        return in_memory()
    if request.param == "exact-s3":
        return in_bucket(request.getfixturevalue("exact_s3"))
    if request.param.startswith("s3"):
        return in_bucket(request.getfixturevalue("s3"), request.param)
    spelling = "" if request.param == "disk" else request.param
    return on_disk(tmp_path, spelling)


@pytest.mark.main
def test_a_listing_is_complete_and_spelled_as_its_folder(place: Place) -> None:
    for key in ("t/a.parquet", "t/data/b.parquet", "t/data/d=1/e=2/c.parquet", "t2/other", "u"):
        place.put(key, key.encode())
    expected = [place.path(key) for key in ("t/a.parquet", "t/data/b.parquet", "t/data/d=1/e=2/c.parquet")]
    assert place.paths("t") == expected
    assert place.paths("t/") == expected
    assert place.paths("t/data/d=1") == expected[-1:]
    assert len(place.paths()) == 5
    assert [row["size"] for row in place.rows("t/data")] == [
        len("t/data/b.parquet"),
        len("t/data/d=1/e=2/c.parquet"),
    ]


def test_a_folder_that_is_not_there_is_empty(place: Place) -> None:
    place.put("t/a", b"")
    assert place.paths("nowhere") == []
    assert place.paths("t/a/below") == []
    assert place.paths("t/a") == []


@pytest.mark.main
def test_stat_agrees_with_the_listing(place: Place) -> None:
    before = clock.now() - timedelta(seconds=2)
    place.put("t/a", b"12345")
    place.put("t/b", b"")
    rows = place.rows("t")
    found = place.objects.stat([row["path"] for row in rows])
    for row, stat in zip(rows, found, strict=True):
        assert stat is not None
        assert (stat.size, stat.modified, stat.stamp) == (row["size"], row["modified"], row["stamp"])
        assert before <= stat.modified <= clock.now() + timedelta(seconds=2)
        assert stat.stamp


def test_stat_answers_in_order_and_says_what_is_not_there(place: Place) -> None:
    place.put("t/a", b"1")
    place.put("t/b", b"22")
    wanted = ["t/b", "t/missing", "t/a", "t", "nowhere/x", "t/b"]
    found = place.objects.stat([place.path(key) for key in wanted])
    assert [each and each.size for each in found] == [2, None, 1, None, None, 2]


def test_a_file_written_anew_has_another_stamp(place: Place) -> None:
    place.put("t/a", b"1")
    (first,) = place.objects.stat([place.path("t/a")])
    place.put("t/a", b"2")
    (second,) = place.objects.stat([place.path("t/a")])
    assert first is not None and second is not None and first.stamp != second.stamp


def test_reads_the_whole_or_a_part(place: Place) -> None:
    place.put("t/a", b"0123456789")
    path = place.path("t/a")
    assert place.objects.read(path) == b"0123456789"
    assert place.objects.read(path, 3, 4) == b"3456"
    assert place.objects.read(path, 8, 100) == b"89"
    assert place.objects.read(path, 4) == b"456789"
    assert place.objects.read(path, 10, 5) == b""
    assert place.objects.read(path, 2, 0) == b""
    with pytest.raises(FileNotFoundError):
        place.objects.read(place.path("t/missing"))


@pytest.mark.main
def test_deletes_what_it_is_told_and_nothing_else(place: Place) -> None:
    for key in ("t/a", "t/b", "t/ab", "t/sub/a", "a"):
        place.put(key, b"x")
    assert (
        place.objects.delete([place.path(key) for key in ("t/a", "t/sub/a", "t/missing", "no/such/folder")])
        == {}
    )
    assert place.paths() == [place.path(key) for key in ("a", "t/ab", "t/b")]


@pytest.mark.parametrize("place", ["disk", "s3", "cloud"], indirect=True)
def test_three_thousand_objects(place: Place) -> None:
    keys = [f"t/d={number % 7}/{number:05}.parquet" for number in range(3000)]
    fill(place, [*keys, "t/stays"])
    assert place.paths("t/d=3") == sorted(place.path(key) for key in keys if "d=3" in key)
    found = place.paths("t")
    assert len(found) == 3001 and len(set(found)) == 3001
    assert place.objects.delete([place.path(key) for key in keys]) == {}
    assert place.paths() == [place.path("t/stays")]


@pytest.mark.parametrize("key", ODD)
def test_odd_names_are_themselves(place: Place, key: str) -> None:
    if place.root.startswith("gs:") and "\t" in key:
        pytest.skip("obstore takes no control character")
    place.put("data/neighbour", b"stays")
    place.put(key, b"abc")
    folder = key.rpartition("/")[0]
    assert place.paths(folder) == [place.path(key)]
    assert place.paths() == sorted([place.path("data/neighbour"), place.path(key)])
    (stat,) = place.objects.stat([place.path(key)])
    assert stat is not None and stat.size == 3
    assert place.objects.read(place.path(key)) == b"abc"
    assert place.objects.delete([place.path(key)]) == {}
    assert place.objects.stat([place.path(key)]) == [None]
    assert place.paths() == [place.path("data/neighbour")]


@pytest.mark.parametrize("key", EXACT)
def test_on_s3_every_key_is_only_itself(exact_s3: S3, key: str) -> None:
    place = in_bucket(exact_s3)
    alike = {"data/double.parquet", "lead.parquet", "data/dot.parquet", "up.parquet", "data/other"}
    for each in [*EXACT, *alike]:
        place.put(each, b"abc")
    everything = {place.path(each) for each in [*EXACT, *alike]}
    assert set(place.paths()) == everything
    (stat,) = place.objects.stat([place.path(key)])
    assert stat is not None and stat.size == 3
    assert place.objects.read(place.path(key)) == b"abc"
    assert place.objects.delete([place.path(key)]) == {}
    assert set(place.paths()) == everything - {place.path(key)}


def test_a_cloud_key_that_would_become_another_is_refused() -> None:
    place = in_memory()
    place.put("data/a", b"abc")
    for key in ("/data/a", "data/a/", "data//a", "data/./a"):
        failed = place.objects.delete([place.path(key)])
        assert list(failed) == [place.path(key)] and "cannot be named" in failed[place.path(key)]
        with pytest.raises(Unreachable, match="cannot be named"):
            place.objects.stat([place.path(key)])
    assert place.paths() == [place.path("data/a")]


def test_folders_that_hold_much_are_listed_side_by_side(exact_s3: S3) -> None:
    """Several pages, split at two levels; read straight through where folders are small; what lies between folders included."""
    place = in_bucket(exact_s3)
    large = [f"t/data/d={number % 3}/{number:03}" for number in range(6 * MOTO_PAGE)]
    small = [f"t/small/p={number}/x" for number in range(2 * MOTO_PAGE)]
    keys = [*large, *small, *(f"t/metadata/{number}" for number in range(5)), "t/loose", "t/data/loose"]
    fill(place, keys)
    found = place.paths("t")
    assert len(found) == len(keys)
    assert set(found) == {place.path(key) for key in keys}
    assert set(place.paths("t/small")) == {place.path(key) for key in small}
    assert set(place.paths("t/data/d=1")) == {place.path(key) for key in large if "d=1" in key}


def test_a_listing_may_be_left_half_way(exact_s3: S3) -> None:
    place = in_bucket(exact_s3)
    fill(place, [f"t/{number}" for number in range(4 * MOTO_PAGE)])
    before = threading.active_count()
    listing = place.objects.list(place.path("t"))
    assert next(listing).num_rows
    assert isinstance(listing, Iterator)
    listing.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_several_stores_in_one_call(s3: S3, tmp_path: Path) -> None:
    disk, first, second = on_disk(tmp_path), in_bucket(s3), in_bucket(s3)
    for number, place in enumerate((disk, first, second)):
        place.put("x", b"x" * number)
    paths = [second.path("x"), disk.path("x"), first.path("x"), first.path("y")]
    objects = Objects(s3.io())
    assert [each and each.size for each in objects.stat(paths)] == [2, 0, 1, None]
    assert objects.delete(paths) == {}
    assert objects.stat(paths) == [None] * 4
    assert (disk.paths(), first.paths(), second.paths()) == ([], [], [])


class TestDisk:
    def test_a_checksum_goes_with_its_file(self, tmp_path: Path) -> None:
        place = on_disk(tmp_path, "file:")
        for key in ("t/a.parquet", "t/.a.parquet.crc", "t/b.parquet", "t/.b.parquet.crc"):
            place.put(key, b"x")
        assert place.objects.delete([place.path("t/a.parquet")]) == {}
        assert place.paths() == [place.path("t/.b.parquet.crc"), place.path("t/b.parquet")]

    def test_links_to_files_are_listed_links_to_folders_are_not_followed(self, tmp_path: Path) -> None:
        place = on_disk(tmp_path)
        place.put("elsewhere/x", b"abc")
        place.put("t/a", b"")
        (tmp_path / "t/link").symlink_to(tmp_path / "elsewhere/x")
        (tmp_path / "t/folder").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "t/circle").symlink_to(tmp_path / "t")
        assert place.paths("t") == [place.path("t/a"), place.path("t/link")]
        assert place.objects.delete([place.path("t/link")]) == {}
        assert place.paths("elsewhere") == [place.path("elsewhere/x")]

    def test_what_cannot_be_deleted_is_told(self, tmp_path: Path) -> None:
        place = on_disk(tmp_path)
        place.put("folder/x", b"")
        place.put("y", b"")
        failed = place.objects.delete([place.path("folder"), place.path("y")])
        assert list(failed) == [place.path("folder")] and failed[place.path("folder")]
        assert place.paths() == [place.path("folder/x")]

    def test_a_name_that_is_no_text_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        Path(os.fsdecode(bytes(tmp_path / "t") + b"/bad\xff")).write_bytes(b"")
        with pytest.raises(Unreachable, match=r"bad\\.*not UTF-8"):
            on_disk(tmp_path).paths("t")

    def test_a_folder_that_cannot_be_read_is_told(self, tmp_path: Path) -> None:
        place = on_disk(tmp_path)
        (tmp_path / "t").symlink_to(tmp_path / "t")
        with pytest.raises(Unreachable, match="symbolic links"):
            place.paths("t")

    def test_empty_folders_go_upwards_and_never_beyond_the_root(self, tmp_path: Path) -> None:
        place = on_disk(tmp_path, "file:")
        for key in ("t/data/d=1/e=1/x", "t/data/d=1/e=2/x", "t/data/d=2/x", "t/data/d=2/y", "other/z/x"):
            place.put(key, b"")
        place.objects.delete(
            [place.path(k) for k in ("t/data/d=1/e=1/x", "t/data/d=1/e=2/x", "t/data/d=2/x", "other/z/x")]
        )
        (tmp_path / "t/data/out").symlink_to(tmp_path / "other")
        folders = [
            place.path(k)
            for k in (
                "t/data/d=1/e=1",
                "t/data/d=1/e=2",
                "t/data/d=2",
                "other/z",
                "t/data/out/z",
                "t/data/../../other/z",
            )
        ]
        assert place.objects.remove_empty_folders(folders, place.path("t")) == 3
        assert sorted(
            str(each.relative_to(tmp_path))
            for each in tmp_path.rglob("*")
            if each.is_dir() and not each.is_symlink()
        ) == [
            "other",
            "other/z",
            "t",
            "t/data",
            "t/data/d=2",
        ]

    def test_the_root_itself_stays(self, tmp_path: Path) -> None:
        place = on_disk(tmp_path)
        (tmp_path / "t/data").mkdir(parents=True)
        assert (
            place.objects.remove_empty_folders(
                [place.path("t/data"), place.path("t"), str(tmp_path)], place.path("t")
            )
            == 1
        )
        assert (tmp_path / "t").is_dir()


def test_object_stores_have_no_folders_to_remove(s3: S3) -> None:
    place = in_bucket(s3)
    assert place.objects.remove_empty_folders([place.path("t")], place.root) == 0


class TestTrouble:
    """Every question ends in an answer or in Unreachable, every deletion in success or a reason for each path."""

    def check(self, objects: Objects, bucket: str, reason: str) -> None:
        path = f"s3://{bucket}/t/x"
        with pytest.raises(Unreachable, match=f"reach bucket {bucket}: .*{reason}"):
            list(objects.list(f"s3://{bucket}/t"))
        with pytest.raises(Unreachable, match=f"reach bucket {bucket}: "):
            objects.stat([path])
        with pytest.raises(Unreachable, match=f"reach bucket {bucket}: .*{reason}"):
            objects.read(path)
        failed = objects.delete([path])
        assert list(failed) == [path] and failed[path]

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [("s3.secret-access-key", "SignatureDoesNotMatch"), ("s3.access-key-id", "access key")],
    )
    def test_wrong_credentials(self, s3: S3, wrong: str, reason: str) -> None:
        if not s3.checks_credentials:
            pytest.skip("moto checks no credentials")
        bucket = s3.bucket()
        bucket.put("t/x")
        self.check(Objects({**s3.io(), wrong: "wrong"}), bucket.name, reason)

    def test_a_bucket_that_is_not_there(self, s3: S3) -> None:
        self.check(Objects(s3.io()), "lake-nowhere", "NoSuchBucket")

    def test_nobody_answers(self, tmp_path: Path) -> None:
        server = S3(tmp_path, "versitygw")
        self.check(Objects({**server.io(), "s3.retry.num-retries": "1"}), "lake", "connect")

    def test_an_address_that_is_none(self) -> None:
        with pytest.raises(Unreachable, match="reach S3 at nonsense"):
            Objects({"s3.endpoint": "nonsense"}).stat(["s3://lake/x"])

    def test_the_server_dies_half_way(self, tmp_path: Path) -> None:
        with s3_server(tmp_path, "moto") as server:
            place = in_bucket(server)
            fill(place, [f"t/{number}" for number in range(3 * MOTO_PAGE)])
            listing = place.objects.list(place.path("t"))
            assert next(listing).num_rows == MOTO_PAGE
            server.kill()
            with pytest.raises(Unreachable):
                list(listing)
            paths = [place.path(f"t/{number}") for number in range(3 * MOTO_PAGE)]
            assert list(place.objects.delete(paths)) == paths
