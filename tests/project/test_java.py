"""Which Java is chosen, on made-up homes that have a `release` file as real ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewarden.errors import NotSetUp
from lakewarden.spark.java import VECTOR_MODULE, find_java, inspect, use_java


def java_home(folder: Path, version: str, modules: str = f"java.base {VECTOR_MODULE}") -> Path:
    (folder / "bin").mkdir(parents=True)
    binary = folder / "bin" / "java"
    binary.write_text("#!/bin/sh\nexit 1\n")
    binary.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


def test_java_home_comes_before_path_and_folders(tmp_path: Path) -> None:
    named = java_home(tmp_path / "named", "21.0.2")
    on_path = java_home(tmp_path / "on-path", "17.0.15")
    java_home(tmp_path / "jvm" / "a", "17.0.1")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert find_java(environ, [tmp_path / "jvm"]).path == named


def test_an_unfit_java_is_passed_over_for_a_fit_one(tmp_path: Path) -> None:
    too_new = java_home(tmp_path / "jvm" / "a-25", "25.0.3")
    fit = java_home(tmp_path / "jvm" / "b-17", "17.0.15")
    found = find_java({"JAVA_HOME": str(too_new), "PATH": str(too_new / "bin")}, [tmp_path / "jvm"])
    assert (found.path, found.major) == (fit, 17)


def test_a_java_without_the_vector_module_is_named_in_the_refusal(tmp_path: Path) -> None:
    lacking = java_home(tmp_path / "small", "17.0.15", "java.base")
    with pytest.raises(NotSetUp, match=f"{lacking} lacks the module {VECTOR_MODULE}") as caught:
        find_java({"JAVA_HOME": str(lacking), "PATH": ""}, [])
    assert "openjdk-17" in caught.value.hint


def test_no_java_at_all_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotSetUp, match="no Java was found"):
        find_java({"PATH": str(tmp_path)}, [tmp_path / "absent"])


def test_a_link_on_path_leads_to_the_home(tmp_path: Path) -> None:
    home = java_home(tmp_path / "home", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, []).path == home


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_412", 8), ("21-ea", 21), ("25", 25), ("unknown", 0)]
)
def test_version_numbers_of_every_age(tmp_path: Path, version: str, major: int) -> None:
    java = inspect(java_home(tmp_path / "j", version))
    assert java is not None
    assert java.major == major


def test_without_a_release_file_the_java_itself_is_asked(tmp_path: Path) -> None:
    home = java_home(tmp_path / "j", "ignored")
    (home / "release").unlink()
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho java.base@17.0.9\necho {VECTOR_MODULE}@17.0.9\n")
    java = inspect(home)
    assert java is not None
    assert (java.major, java.has_vector) == (17, True)


def test_a_java_too_old_for_modules_is_unfit(tmp_path: Path) -> None:
    home = java_home(tmp_path / "j", "ignored")
    (home / "release").unlink()
    java = inspect(home)
    assert java is not None
    assert java.unfit


def test_a_folder_without_java_is_no_java(tmp_path: Path) -> None:
    assert inspect(tmp_path) is None


def test_use_java_names_it_for_the_processes_started_from_here(tmp_path: Path) -> None:
    too_new = java_home(tmp_path / "new", "25")
    fit = java_home(tmp_path / "fit", "21.0.1")
    environ = {"JAVA_HOME": str(too_new), "PATH": str(fit / "bin")}
    use_java(environ)
    assert environ["JAVA_HOME"] == str(fit)
