"""Two names of one place: stores, folders of a disk and ends of paths are compared, and the operator has the last word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakewarden.config.aliases import Aliases, Disk
from lakewarden.config.schema import Config
from lakewarden.deletion.holds import Holds
from lakewarden.deletion.ownership import check_ownership, shared
from lakewarden.deletion.proof import Proof
from lakewarden.deletion.spelling import Spellings
from lakewarden.errors import ConfigError, Refused
from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.location import Location, hashes, without_common_end
from lakewarden.model.table import TableView
from lakewarden.tables.places import NO_HOMES, Places
from lakewarden.tables.reachability import ReachableFiles, ReachableFilesBuilder
from tests.support.tables import TABLE
from tests.support.tables import view as made


def table(location: str, **properties: str) -> TableView:
    return replace(made(), uuid="mine", location=location, properties=properties)


def check(view: TableView, named: Sequence[str], candidates: Sequence[str], *aliases: str) -> None:
    paths = pa.array(named, pa.string())
    made = Spellings("sweep", view, lambda: [paths.slice(0, 1), paths.slice(1)], Aliases.of(aliases))
    made.check(pa.array(candidates, pa.string()))


def other(location: str, *named: str, **properties: str) -> ReachableFiles:
    """What was read of another table at this location, which names these files."""
    view = replace(
        table(location, **properties), uuid="theirs", ref=replace(TABLE, name="other"), metadata_location=""
    )
    found = ReachableFilesBuilder(view)
    found.add(pa.array(named[:1], pa.string()))
    found.add(pa.chunked_array([named[1:]], pa.string()))
    return found.reached((7,))


def doubtful(
    view: TableView, others: Sequence[ReachableFiles], candidates: Sequence[str], *aliases: str
) -> dict[str, str]:
    made = Spellings("purge", view, list, Aliases.of(aliases))
    paths = pa.array(candidates, pa.string())
    made.check(paths)
    return made.doubtful(paths, others)


def goes(view: TableView, others: Sequence[ReachableFiles], candidates: Sequence[str], *aliases: str) -> None:
    assert doubtful(view, others, candidates, *aliases) == {}


def stays(view: TableView, others: Sequence[ReachableFiles], candidates: Sequence[str], *aliases: str) -> str:
    """Why the first of these files stays."""
    found = doubtful(view, others, candidates, *aliases)
    assert candidates[0] in found
    reason = found[candidates[0]]
    assert str(replace(TABLE, name="other")) in reason
    return reason


def refused(view: TableView, named: Sequence[str], candidates: Sequence[str], *aliases: str) -> Refused:
    with pytest.raises(Refused) as found:
        check(view, named, candidates, *aliases)
    assert found.value.exit_code == 12
    return found.value


# ------------------------------------------------------------ stores


@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("viewfs://c/lake/t", "hdfs://node/lake/t/data/x.parquet"),
        ("s3://point/lake/t", "s3://bucket/lake/t/data/x.parquet"),
        ("s3://bucket/t", "/mnt/bucket/t/data/x.parquet"),
        ("/mnt/bucket/t", "s3a://bucket/t/data/x.parquet"),
        ("abfss://c@one.dfs.core.windows.net/t", "abfss://c@two.dfs.core.windows.net/t/data/x.parquet"),
    ],
)
def test_a_table_on_two_stores_is_refused_unless_the_operator_knows_them(location: str, named: str) -> None:
    view, home = table(location), f"{location}/data/live.parquet"
    error = refused(view, [home, named], [])
    assert location in error.message and named in error.message
    assert f"`{Location.of(location).store} != {Location.of(named).store}`" in error.hint
    check(view, [home, named], [], f"{Location.of(location).store} != {Location.of(named).store}")
    one, other = without_common_end(location, named.removesuffix("/data/x.parquet"))
    for sign in ("=", "!="):
        check(view, [home, named], [f"{location}/data/orphan.parquet"], f"{one} {sign} {other}")
        check(view, [home, named], [f"{location}/data/orphan.parquet"], f"{other} {sign} {one}")
    refused(view, [home, named], [], "s3://else = s3://where", "s3://else != hdfs://where")
    refused(view, [home], [named])


def test_an_alias_of_one_folder_says_nothing_about_another() -> None:
    view = table("hdfs://node/lake/t")
    known, unknown = "viewfs://c/lake/t/data/x.parquet", "viewfs://c/other/data/y.parquet"
    for sign in ("=", "!="):
        check(view, [known], [], f"viewfs://c/lake {sign} hdfs://node/lake")
        error = refused(view, [known, unknown], [], f"viewfs://c/lake {sign} hdfs://node/lake")
        assert unknown in error.message


def test_spellings_of_one_store_are_one() -> None:
    check(
        table("s3://b/t"), ["s3a://b/t/data/x.parquet", "s3n://b/old/y.parquet"], ["s3://b/t/data/z.parquet"]
    )
    check(table("hdfs:///t"), ["hdfs://node:8020/t/x.parquet"], ["hdfs:///t/z.parquet"])
    check(table("/t"), ["file:///t/x.parquet", "file:/old/y.parquet"], ["/t/z.parquet"])


def test_a_property_that_names_another_store() -> None:
    view = table("s3://one/t", **{"write.data.path": "s3://two/t"})
    assert "s3://two/t" in refused(view, [], []).message
    check(view, [], [], "s3://one != s3://two")


# ------------------------------------------------------------ how paths end


def test_a_candidate_that_ends_like_a_file_elsewhere() -> None:
    view, live = table("s3://b/new/t"), "s3://b/old/t/data/day=1/x.parquet"
    candidate = "s3://b/new/t/data/day=1/x.parquet"
    error = refused(view, ["s3://b/new/t/data/y.parquet", live], [candidate])
    assert candidate in error.message and live in error.message
    assert "`s3://b/new != s3://b/old`" in error.hint
    check(view, [live], [candidate], "s3://b/new != s3://b/old")
    check(view, [live], ["s3://b/new/t/data/day=2/x.parquet", "s3://b/new/t/data/day=1/z.parquet"])
    # In the same folder of the table, where one name is one file, equal ends say nothing.
    check(view, ["s3://b/new/t/a=1/day=1/x.parquet"], ["s3://b/new/t/a=2/day=1/x.parquet"])


def test_a_candidate_right_in_a_folder_is_known_by_its_name() -> None:
    view = table("s3://b/t", **{"write.data.path": "s3://b/files"})
    error = refused(view, ["s3://b/t/data/x.parquet"], ["s3://b/files/x.parquet"])
    assert "s3://b/t/data/x.parquet" in error.message
    check(view, ["s3://b/t/data/x.parquet"], ["s3://b/files/deeper/x.parquet"])


MADE = "00000-0-ff4a69aa-9332-4c6e-80d4-6a8bfcc1bdc5-0-00001.parquet"


@pytest.mark.parametrize(
    ("location", "named", "properties"),
    [
        ("viewfs://c/lake/t", "viewfs://c/tdata", {}),  # a link of viewfs to t/data
        ("viewfs://c/lake/t", "viewfs://c/tdata", {"write.data.path": "viewfs://c/tdata"}),
        ("/lake/t", "/mnt/x", {}),  # a second mount of t/data
    ],
)
def test_a_named_file_right_in_a_folder_with_another_name(
    location: str, named: str, properties: dict[str, str]
) -> None:
    """Its folder is called otherwise than the candidate's, so only the file's own name can tell."""
    view, candidate = table(location, **properties), f"{location}/data/{MADE}"
    error = refused(view, [f"{named}/{MADE}"], [candidate])
    assert candidate in error.message and f"{named}/{MADE}" in error.message
    assert f"`{location}/data != {named}`" in error.hint
    check(view, [f"{named}/{MADE}"], [candidate], f"{location}/data != {named}")
    check(view, [f"{named}/{MADE}"], [candidate.replace("ff4a", "ff4b")])
    refused(table(location), [candidate], [f"{named}/{MADE}"])


@pytest.mark.parametrize(
    "name",
    [
        "part-0.parquet",
        "v1.metadata.json",
        "snapshot-1",
        "schema-0",
        "000000_0",
        "version-hint.text",
        "LATEST",
    ],
)
def test_names_that_may_be_in_any_folder_say_nothing_alone(name: str) -> None:
    check(table("s3://b/t"), [f"s3://b/old/day=1/{name}"], [f"s3://b/t/data/{name}"])
    goes(table("s3://b/t"), [other("s3://b/o", f"s3://b/x/{name}")], [f"s3://b/t/data/{name}"])


@pytest.mark.parametrize(
    "name",
    [
        MADE,
        "snap-1172352310232912359-1-ff4a69aa-9332-4c6e-80d4-6a8bfcc1bdc5.avro",
        "manifest-list-ff4a69aa-9332-4c6e-80d4-6a8bfcc1bdc5-0",
        "data-FF4A69AA-9332-4c6e-80d4-6a8bfcc1bdc5-0.orc",
        "ff4a69aa93324c6e80d46a8bfcc1bdc5",
        "lakewarden-20261118-00001-00001-t134217728-z",
    ],
)
def test_generated_names_say_everything(name: str) -> None:
    refused(table("s3://b/t"), [f"s3://b/x/{name}"], [f"s3://b/t/data/{name}"])


# ------------------------------------------------------------ files that another table names


@pytest.mark.parametrize(
    "path",
    [f"/{'x' * 300}/f.parquet", "/a\0b/f.parquet", "/proc/1/map_files/f.parquet", "s3://b/\0/f.parquet"],
)
def test_no_path_that_another_table_names_stops_a_proof(path: str, tmp_path: Path) -> None:
    """Whoever writes a table chooses the paths in it: one that nobody can open is no reason to delete nothing in the lake."""
    theirs = other("s3://b/o", path)
    assert theirs.names([path]).all()
    goes(table(f"{tmp_path}/t"), [theirs], [f"{tmp_path}/t/data/orphan.parquet"])
    named = replace(table("s3://b/o", **{"write.data.path": path}), uuid="theirs")
    check_ownership("sweep", table(f"{tmp_path}/t"), [named])
    assert shared(table(f"{tmp_path}/t"), [named], NO_HOMES) == {}


def test_one_name_keeps_one_file_and_the_others_go() -> None:
    view, name = table("s3://b/t"), "metadata/v1.metadata.json"
    theirs = other("s3://b/o", f"s3://nowhere/{name}")
    both = [f"s3://b/t/{name}", f"s3://b/t/data/{MADE}"]
    assert list(doubtful(view, [theirs], both)) == both[:1]


def test_a_path_through_the_root_of_a_process_keeps_that_folder_only(linked: tuple[Path, Path]) -> None:
    real, _ = linked
    (real / "t/data/day=1").mkdir()
    theirs = other("/lake/o", f"/proc/self/root{real}/x")
    goes(table(f"{real}/t"), [theirs], [f"{real}/t/data/day=1/orphan.parquet"])


def test_another_table_that_names_the_file_on_another_path() -> None:
    view, candidate = table("s3://b/a"), f"s3://b/a/data/{MADE}"
    theirs = other("s3://b/o", f"s3://b/o/data/{MADE}", f"s3://b/access/{MADE}")
    reason = stays(view, [other("s3://b/p"), theirs], [candidate])
    assert f"s3://b/access/{MADE}" in reason
    assert "`s3://b/a/data != s3://b/access`" in reason and "`s3://b/a/data = s3://b/access`" in reason
    for sign in ("=", "!="):  # with `=` the proof knows both names, and keeps what is needed
        goes(view, [theirs], [candidate], f"s3://b/a/data {sign} s3://b/access")
    goes(view, [theirs], [candidate.replace("ff4a", "ff4b")])
    # Another store is no other place: mounts and access points show the files of one on another.
    stays(view, [other("s3://b/o", f"/mnt/b/data/{MADE}")], [candidate])


def test_another_table_s_own_folder_is_not_compared_by_name() -> None:
    """Copies keep their names: those of the colder tier, and those of `rewrite_table_path`."""
    copy = other("s3://cold/a", f"s3://cold/a/data/{MADE}")
    goes(table("s3://b/a"), [copy], [f"s3://b/a/data/{MADE}"])


def test_a_place_that_another_table_s_properties_name_is_compared_by_name() -> None:
    """It may be this table's folder by another name, such as an access point."""
    view, candidate = table("s3://b/a"), f"s3://b/a/data/{MADE}"
    theirs = other("s3://b/o", f"s3://point/a/data/{MADE}", **{"write.data.path": "s3://point/a/data"})  # fmt: skip
    assert f"s3://point/a/data/{MADE}" in stays(view, [theirs], [candidate])
    goes(view, [theirs], [candidate.replace("ff4a", "ff4b")])
    goes(view, [theirs], [candidate], "s3://b != s3://point")


def test_a_place_that_another_table_s_properties_name_through_a_link(linked: tuple[Path, Path]) -> None:
    real, link = linked
    place = f"{link}/t/data"
    theirs = other("/lake/o", f"{place}/live.parquet", **{"write.data.path": place})
    assert place in stays(table(f"{real}/t"), [theirs], [f"{real}/t/data/orphan.parquet"])


def test_another_table_that_names_files_here_by_the_same_path() -> None:
    """It is compared file by file in the proof: which of them it needs is known for sure."""
    theirs = other("s3://b/o", f"s3a://b/a/data/day=1/{MADE}")
    goes(table("s3://b/a"), [theirs], [f"s3://b/a/data/day=2/{MADE}"])


def test_names_without_a_uuid_need_the_same_folder() -> None:
    theirs = other("s3://b/o", "s3://b/hive/day=1/part-0.parquet")
    stays(table("s3://b/a"), [theirs], ["s3://b/a/data/day=1/part-0.parquet"])
    goes(table("s3://b/a"), [theirs], ["s3://b/a/data/day=2/part-0.parquet"])
    stays(table("s3://b/a"), [theirs], ["s3://b/a/part-0.parquet"])


def test_a_candidate_outside_of_the_table_that_another_table_names() -> None:
    name = "part-00000-ff4a69aa-9332-4c6e-80d4-6a8bfcc1bdc5.c000.snappy.parquet"
    view, theirs = table("s3://b/a"), other("s3://b/o", f"s3://b/hive/t/day=1/{name}")
    stays(view, [theirs], [f"s3://b/old/t/day=1/{name}"])
    goes(view, [theirs], [f"s3://b/old/t/day=1/{name}"], "s3://b/hive != s3://b/old")
    # One write of Spark has one name in many partitions.
    goes(view, [theirs], [f"s3://b/hive/t/day=2/{name}", f"s3://b/hive/t/day=1/{name}"])


def test_a_candidate_outside_of_the_table() -> None:
    view = table("s3://b/t")
    refused(view, ["s3://b/t/data/x.parquet"], ["s3://b/old/data/x.parquet"])
    check(view, ["s3://b/t/data/x.parquet"], ["s3://b/old/data/y.parquet"])


# ------------------------------------------------------------ folders of a disk


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path]:
    """A table's folder, and a link to what it lies in."""
    (tmp_path / "real/t/data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    return tmp_path / "real", tmp_path / "link"


def test_folders_are_one_by_device_and_inode(linked: tuple[Path, Path]) -> None:
    real, link = linked
    disk = Disk()
    assert disk.identity(f"file://{link}/t") == disk.identity(f"{real}/t") != disk.identity(f"{real}/t/data")
    assert disk.overlap(f"{real}/t", f"{link}/t/data") and disk.overlap(f"{link}/t/data", f"{real}/t")
    assert not disk.overlap(f"{real}/t", f"{real}/other") and not disk.overlap(f"{real}/t", "s3://b/t")
    (real / "u").mkdir()
    assert not disk.overlap(f"{real}/t", f"{link}/u")


def test_a_folder_under_two_names_is_refused_whatever_its_files_are_called(linked: tuple[Path, Path]) -> None:
    for home, other in (linked, linked[::-1]):
        view, live = table(f"{home}/t"), f"file:{other}/t/data/live.parquet"
        error = refused(view, [live], [f"{home}/t/data/orphan.parquet"])
        assert (
            f"{home}/t" in error.message and f"{other}/t/data" in error.message and "inode" in error.message
        )
        assert f"`{home} = {other}`" in error.hint
        check(view, [live], [f"{home}/t/data/orphan.parquet"], f"{home} = {other}")
        # That the operator takes them for two does not make them two.
        refused(view, [live], [], f"{home} != {other}")


def test_the_hint_says_which_folder_is_which(linked: tuple[Path, Path], tmp_path: Path) -> None:
    """A link right into the table: the pair that is told must lead from one name of a file to the other."""
    real, _ = linked
    (tmp_path / "short").symlink_to(real / "t/data")
    (real / "t/data/d=1").mkdir()
    error = refused(table(f"{real}/t"), [f"{tmp_path}/short/d=1/live.parquet"], [])
    assert f"`{real}/t/data = {tmp_path}/short`" in error.hint


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("/a/t/x", "/b/t/x", ("/a", "/b")),
        ("/t/x", "/mnt/t/x", ("/t", "/mnt/t")),
        ("s3://one/t/x", "s3://two/t/x", ("s3://one/t", "s3://two/t")),
        ("/mnt/b/t/x", "s3://b/t/x", ("/mnt/b/t", "s3://b/t")),
    ],
)
def test_what_differs_of_two_paths(one: str, other: str, told: tuple[str, str]) -> None:
    assert without_common_end(one, other) == told and Aliases.of([" = ".join(told)]).same


def test_a_link_inside_a_table(linked: tuple[Path, Path], tmp_path: Path) -> None:
    """It leads out of the table, to a folder whose files the metadata names by that folder."""
    real, _ = linked
    (tmp_path / "more").mkdir()
    (real / "t/data/more").symlink_to(tmp_path / "more")
    candidate = f"{real}/t/data/more/orphan.parquet"
    refused(table(f"{real}/t"), [f"{tmp_path}/more/live.parquet"], [candidate])
    check(table(f"{real}/t"), [f"{tmp_path}/more/live.parquet"], [f"{real}/t/data/orphan.parquet"])


@pytest.mark.parametrize(("link", "folder"), [("data", "data-2025"), ("data/day=1", "data/day=01")])
def test_a_link_inside_a_table_to_a_folder_inside_it(link: str, folder: str, tmp_path: Path) -> None:
    """An administrator renamed a folder and left a link: the metadata names its files through that."""
    root = tmp_path / "t"
    (root / folder).mkdir(parents=True)
    (root / link).symlink_to(root / folder)
    view, live, listed = table(f"{root}"), f"file:{root}/{link}/{MADE}", f"{root}/{folder}/{MADE}"
    for one, other in (
        (live, listed),
        (listed, live),
    ):  # sweep lists the folder; purge may have the link's name
        error = refused(view, [f"{root}/metadata/m.avro", one], [other])
        assert f"{root}/{link}" in error.message and f"{root}/{folder}" in error.message
        refused(view, [one], [f"{other}2"])
    assert f"`{root}/{folder} = " in refused(view, [live], [listed]).hint
    check(view, [live], [listed], f"{root}/{folder} = {root}/{link}")
    check(view, [live], [f"{root}/metadata/orphan.avro"])
    # A link that the metadata names nothing through is none of its names.
    check(view, [f"{root}/{folder}/live.parquet"], [listed])


def test_a_table_below_a_linked_warehouse_has_one_name(linked: tuple[Path, Path]) -> None:
    _, link = linked
    view, folder = table(f"{link}/t"), f"{link}/t/data"
    check(
        view, [f"{folder}/live.parquet", f"file:{folder}/more.parquet"], [f"file://{folder}/orphan.parquet"]
    )
    goes(view, [], [f"{folder}/orphan.parquet"])


def test_a_link_inside_a_table_to_a_file_in_it_keeps_that_file(tmp_path: Path) -> None:
    data = tmp_path / "t/data"
    data.mkdir(parents=True)
    for name in ("real.parquet", "orphan.parquet"):
        (data / name).write_bytes(b"x")
    (data / "link.parquet").symlink_to("real.parquet")
    view = table(f"{tmp_path}/t")
    both = pa.array([f"{data}/real.parquet", f"{data}/orphan.parquet", f"{data}/link.parquet"])
    swept = Spellings("sweep", view, list, Aliases(), [str(data)])
    purged = Spellings("purge", view, lambda: [pa.array([f"{data}/link.parquet"])], Aliases())
    for each in (swept, purged):
        each.check(both)
        assert list(each.doubtful(both, [])) == [f"{data}/real.parquet"]
        assert f"{data}/link.parquet" in each.doubtful(both, [])[f"{data}/real.parquet"]


def test_another_table_that_names_files_through_a_link(linked: tuple[Path, Path]) -> None:
    """Whatever the files are called: one folder is enough."""
    real, link = linked
    view, theirs = table(f"{real}/t"), other("/lake/o", f"file:{link}/t/data/live.parquet")
    candidate = f"{real}/t/data/orphan.parquet"
    reason = stays(view, [theirs], [candidate])
    assert f"{real}/t" in reason and f"{link}/t/data" in reason and f"`{real} = {link}`" in reason
    goes(view, [theirs], [candidate], f"{real} = {link}")
    stays(view, [theirs], [candidate], f"{real} != {link}")


def test_a_location_that_is_a_link_to_files_that_another_table_names(tmp_path: Path) -> None:
    """Every proof knows both names of this table's folders: what the other table needs stays."""
    (tmp_path / "real/data").mkdir(parents=True)
    (tmp_path / "t").symlink_to(tmp_path / "real")
    theirs = other("/lake/o", f"{tmp_path}/real/data/{MADE}")
    names = Aliases().and_links([f"{tmp_path}/t"])
    assert Proof((theirs,), {}, names).names([f"{tmp_path}/t/data/{MADE}"]).all()
    goes(table(f"{tmp_path}/t"), [theirs], [f"{tmp_path}/t/data/orphan.parquet"])


def test_a_link_inside_a_table_to_files_of_another_one(linked: tuple[Path, Path], tmp_path: Path) -> None:
    real, _ = linked
    (tmp_path / "more").mkdir()
    (real / "t/data/more").symlink_to(tmp_path / "more")
    candidate = f"{real}/t/data/more/orphan.parquet"
    outside = other("/lake/o", f"{tmp_path}/more/live.parquet")
    for theirs in (outside, other(f"{tmp_path}/more")):
        stays(table(f"{real}/t"), [theirs], [candidate])
    goes(table(f"{real}/t"), [outside], [f"{real}/t/data/orphan.parquet"])
    goes(table(f"{real}/t"), [other(f"{tmp_path}/more")], [f"{real}/t/data/orphan.parquet"])


def test_a_candidate_outside_of_the_table_in_another_table_s_folder(linked: tuple[Path, Path]) -> None:
    """Files that were taken in through a link, and are to be deleted."""
    real, link = linked
    reason = stays(table("/lake/a"), [other(f"{real}/t")], [f"{link}/t/data/x.parquet"])
    assert f"{real}/t" in reason and f"{link}/t/data" in reason and f"`{real} = {link}`" in reason
    goes(table("/lake/a"), [other(f"{real}/t")], [f"{link}/t/data/x.parquet"], f"{real} = {link}")
    goes(table("/lake/a"), [other(f"{real}/t")], [f"{real}/t/data/x.parquet"])


def test_another_table_whose_data_folder_is_a_link(linked: tuple[Path, Path], tmp_path: Path) -> None:
    """It names its files in its own folder, and they are in this table's."""
    real, _ = linked
    (tmp_path / "o").mkdir()
    (tmp_path / "o/data").symlink_to(real / "t/data")
    theirs = other(f"{tmp_path}/o", f"{tmp_path}/o/data/x.parquet")
    stays(table(f"{real}/t"), [theirs], [f"{real}/t/data/orphan.parquet"])
    (tmp_path / "linked").symlink_to(tmp_path / "p")
    (tmp_path / "p/data").mkdir(parents=True)
    assert not other(f"{tmp_path}/linked").linked, "a location that is a link is no link in it"


def test_a_link_to_one_file(linked: tuple[Path, Path], tmp_path: Path) -> None:
    """Another table names the link; what is behind it is needed under its own name."""
    real, _ = linked
    file, link = real / "t/data/x.parquet", tmp_path / "files/y.parquet"
    file.write_bytes(b"x")
    link.parent.mkdir()
    link.symlink_to(file)
    theirs = other("/lake/o", str(link))
    assert theirs.names([str(file), str(link), f"{file}2"]).tolist() == [True, True, False]


def test_what_lies_in_a_table_s_own_folders_is_not_kept_twice() -> None:
    assert not other("s3://b/o", "s3a://b/o/data/x.parquet", "s3://b//o/metadata/m.avro").outside.folders
    files = other("s3://b/o", *(f"s3://b/x/{number % 3}/{number}" for number in range(100))).outside
    assert len(files.names) == 100 and len(files.folders) == 3


def test_another_table_in_this_one_s_folder_by_another_name(linked: tuple[Path, Path]) -> None:
    real, link = linked
    mine, theirs = (
        table(f"{real}/t"),
        replace(table(f"{link}/t/data"), uuid="theirs", ref=replace(TABLE, name="o")),
    )
    with pytest.raises(Refused, match="shares a place"):
        check_ownership("sweep", mine, [theirs])
    remote, other = table("viewfs://c/t"), replace(theirs, location="hdfs://node/lake/t/data")
    check_ownership("sweep", remote, [other])
    with pytest.raises(Refused, match="shares a place"):
        check_ownership(
            "sweep", remote, [other], places=Places(aliases=Aliases.of(["hdfs://node/lake = viewfs://c"]))
        )


# ------------------------------------------------------------ what the operator says


def test_all_names_of_a_path() -> None:
    aliases = Aliases.of(["/mnt/a = /mnt/b", "hdfs://n/x = /mnt/b/deep", "s3://old != s3://new"])
    assert aliases.spellings("/mnt/a/deep/f")[0] == "/mnt/a/deep/f"
    assert set(aliases.spellings("/mnt/a/deep/f")) == {"/mnt/a/deep/f", "/mnt/b/deep/f", "hdfs://n/x/f"}
    assert aliases.spellings("/mnt/ab/f") == ("/mnt/ab/f",)
    assert Location.of("hdfs://n/x") in aliases.covering("/mnt/a")
    assert aliases.apart_from("s3a://new/t") == [Location.of("s3://old")]
    assert Aliases.of(aliases.texts()) == aliases


def test_a_file_is_needed_under_any_of_its_names() -> None:
    reached = ReachableFiles(TABLE, "u", "m", (), np.unique(hashes(["/mnt/b/x", "/mnt/b/y"])))
    proof = Proof((reached,), {}, Aliases.of(["/mnt/a = /mnt/b"]))
    asked = ["/mnt/a/x", "/mnt/b/y", "/mnt/a/z"]
    for paths in (asked, pa.array(asked), pa.chunked_array([asked[:1], asked[1:]])):
        assert proof.names(paths).tolist() == [True, True, False]
    assert proof.named_by("/mnt/a/x") == str(TABLE) and proof.named_by("/mnt/a/z") is None
    assert replace(proof, aliases=Aliases()).names(asked).tolist() == [False, True, False]


def test_a_hold_covers_a_file_under_any_of_its_names() -> None:
    hold = Hold(HoldKind.LOAD, "load", "ana", paths=("/mnt/b/x",))
    holds = Holds((hold,), Aliases.of(["/mnt/a = /mnt/b"]))
    assert holds.covering("/mnt/a/x", None) == hold and holds.covering("/mnt/a/y", None) is None


@pytest.mark.parametrize(
    "text", ["/mnt/a", "/mnt/a = data", "/mnt/a = /mnt/a/b", "/mnt/a == /mnt/b", "/a < /b"]
)
def test_what_is_no_alias_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"paths\.aliases"):
        Config.from_dict({"paths": {"aliases": [text]}})


def test_aliases_are_a_setting() -> None:
    config = Config.from_dict({"paths": {"aliases": ["/mnt/a = file:///mnt/b", "s3://x != s3a://y"]}})
    assert config.to_dict()["paths"] == {"aliases": ["/mnt/a = /mnt/b", "s3://x != s3://y"]}
    assert Config.from_dict({}).paths.aliases == Aliases()
