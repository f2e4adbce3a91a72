"""Two names of one place: stores, folders of a disk and ends of paths are compared, and the operator has the last word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakewarden.aliases import Aliases, Disk
from lakewarden.config import Config
from lakewarden.errors import ConfigError, Refused
from lakewarden.location import Location, hashes, without_common_end
from lakewarden.model import Hold, HoldKind, TableView
from lakewarden.safety.holds import Holds
from lakewarden.safety.ownership import Places, check_ownership
from lakewarden.safety.proof import Proof
from lakewarden.safety.reached import Reached
from lakewarden.safety.spelling import Spellings
from tests.support.tables import TABLE
from tests.support.tables import view as made


def table(location: str, **properties: str) -> TableView:
    return replace(made(), uuid="mine", location=location, properties=properties)


def check(view: TableView, named: Sequence[str], candidates: Sequence[str], *aliases: str) -> None:
    paths = pa.array(named, pa.string())
    made = Spellings("sweep", view, lambda: [paths.slice(0, 1), paths.slice(1)], Aliases.of(aliases))
    made.check(pa.array(candidates, pa.string()))


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
    reached = Reached(TABLE, "u", "m", (), np.unique(hashes(["/mnt/b/x", "/mnt/b/y"])))
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
