"""The pinned jars and their cache: everything but the download itself."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lakewarden.errors import NotSetUp
from lakewarden.spark import jars
from lakewarden.spark.jars import (
    GROUPS,
    PINNED,
    default_cache,
    ensure_jars,
    is_complete,
    missing_from,
    pinned,
)


def make_jar(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n" * 100)
    return path


def test_every_group_has_jars_and_every_jar_is_pinned_exactly() -> None:
    assert {jar.group for jar in PINNED} == set(GROUPS)
    for jar in PINNED:
        assert jar.purpose
        assert jar.version[0].isdigit()
        assert not set(jar.version) & set("+[](),")


def test_iceberg_jars_of_one_session_have_one_version() -> None:
    together = {jar.version for jar in pinned(["base", "s3"]) if jar.organisation == "org.apache.iceberg"}
    assert len(together) == 1


def test_a_full_cache_is_used_without_fetching(tmp_path: Path) -> None:
    files = [make_jar(tmp_path / jar.file_name) for jar in pinned(["base", "jdbc"])]
    before = set(tmp_path.iterdir())
    assert ensure_jars(["jdbc", "base"], tmp_path) == files
    assert set(tmp_path.iterdir()) == before


def test_a_jar_cut_short_counts_as_missing(tmp_path: Path) -> None:
    (jar,) = pinned(["base"])
    whole = make_jar(tmp_path / jar.file_name)
    assert missing_from([jar], tmp_path) == []
    whole.write_bytes(whole.read_bytes()[:-30])
    assert missing_from([jar], tmp_path) == [jar]


def test_an_empty_file_and_no_file_are_no_jars(tmp_path: Path) -> None:
    (tmp_path / "empty.jar").touch()
    assert not is_complete(tmp_path / "empty.jar")
    assert not is_complete(tmp_path / "absent.jar")


def test_installing_leaves_the_source_and_no_partial_file(tmp_path: Path) -> None:
    (jar,) = pinned(["base"])
    cache = tmp_path / "cache"
    cache.mkdir()
    source = make_jar(tmp_path / "from-maven.jar")
    jars._install(source, jar, cache)
    assert [path.name for path in cache.iterdir()] == [jar.file_name]
    assert source.is_file()


def test_a_broken_download_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (jar,) = pinned(["base"])
    broken = tmp_path / "broken.jar"
    broken.write_text("not a zip")
    with pytest.raises(NotSetUp, match=jar.coordinate) as caught:
        jars._install(broken, jar, tmp_path / "cache")
    assert jar.file_name in caught.value.hint
    assert "[spark]" in caught.value.hint


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"LAKEWARDEN_CACHE": "/c"}, "/c/jars"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/lakewarden/jars"),
        ({"LAKEWARDEN_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c/jars"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], cache: str) -> None:
    assert default_cache(environ) == Path(cache)


def test_the_command_names_an_unknown_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        jars.main(["nonsense"])
    assert "no such group: nonsense" in capsys.readouterr().err
