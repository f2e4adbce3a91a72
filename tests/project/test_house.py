"""The script that measures the shape of the code, on a package of four small modules."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

from tools import house
from tools.house import is_forwarder, shape
from tools.walks import Recorder

SOURCES = {
    "__init__.py": "",
    "store.py": (
        "class Store:\n    def get(self, key):\n        return self._find(key)\n\n    def _find(self, key):\n"
        "        found = key * 2\n        return found\n\n\nclass Row:\n    pass\n"
    ),
    "client.py": (
        "from lakewarden.store import Store\n\n\nclass Client(Store):\n    @property\n    def name(self):\n"
        "        return 'x'\n\n    def put(self, key):\n        pass\n\n\nclass Row:\n    pass\n"
    ),
    "jobs/__init__.py": "",
    "jobs/run.py": (
        "from lakewarden import client\n\n\ndef run(key):\n    return [each for each in (client.Client().get(key),)]\n"
    ),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, source in SOURCES.items():
        path = tmp_path / "lakewarden" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def test_the_shape_of_a_package(tree: Path) -> None:
    found = shape(tree)
    assert found["modules"] == 5
    assert found["lines"] == sum(source.count("\n") for source in SOURCES.values())
    assert found["functions"] == 5
    assert found["median_function_lines"] == 2
    assert found["largest_function"] == {"name": "lakewarden.store._find", "lines": 3}
    assert found["largest_folder"] == {"lakewarden": 3}
    assert found["folders_over_limit"] == {}
    # `get` comes from the base class; `_find` is not public.
    assert found["largest_classes"]["lakewarden.client.Client"] == 3
    assert found["repeated_class_names"] == {"Row": ["lakewarden.client", "lakewarden.store"]}
    assert found["forwarders"] == ["lakewarden.store.get"]
    assert found["one_importer"] == ["lakewarden.client", "lakewarden.store"]


@pytest.mark.parametrize(
    ("source", "forwards"),
    [
        ("def f(a, b):\n    return g(a, b)", True),
        ("def f(self, a, *rest, **more):\n    '''Says why.'''\n    self._other.g(a, *rest, **more)", True),
        ("async def f(a):\n    return await g(a=a)", True),
        ("def f(self, a):\n    return g(self, a)", True),
        ("def f(a, b):\n    return g(a)", False),
        ("def f(a):\n    return g(a, 1)", False),
        ("def f(a):\n    return Made(a)", False),
        ("def f(a):\n    return g().h(a)", False),
        ("def f(a):\n    b = g(a)\n    return b", False),
    ],
)
def test_forwarders(source: str, forwards: bool) -> None:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert is_forwarder(function) is forwards


def test_the_script_prints_one_line_a_measure_or_json(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--tree", str(tree), "--no-walks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["modules", "5"]
    assert house.main(["--tree", str(tree), "--no-walks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shape(tree)


def test_a_hop_is_a_call_into_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "walked_house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text(
        "from walked_house import two\n\n\ndef start():\n    return [two.middle(n) for n in range(3)]\n\n\n"
        "def end(n):\n    return n\n"
    )
    (package / "two.py").write_text(
        "def middle(n):\n    from walked_house import one\n    return inner(n) + one.end(n)\n\n\n"
        "def inner(n):\n    return n\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    one = importlib.import_module("walked_house.one")
    recorder = Recorder(package)
    with recorder.recording():
        one.start()
    assert recorder.result() == {
        "hops": 1,
        "files": 2,
        "back": 0,
        "new": {"hops": 1, "files": 1},
        "pairs": {"hops": 2, "files": 2, "back": 1},
        "calls": ["one.py:start -> two.py:middle"],
        "all_calls": ["step one.py:start -> two.py:middle", "leaf two.py:middle -> one.py:end"],
    }


def test_a_function_is_opened_once_and_a_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "opened_house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text(
        "from opened_house import two\n\n\ndef start():\n    two.middle()\n    two.middle()\n    two.last()\n\n\n"
        "def again():\n    return leaf()\n\n\ndef leaf():\n    return 1\n"
    )
    (package / "two.py").write_text(
        "def middle():\n    from opened_house import one\n    return one.again() + leaf()\n\n\n"
        "def last():\n    return middle()\n\n\ndef leaf():\n    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    one = importlib.import_module("opened_house.one")
    recorder = Recorder(package)
    with recorder.recording():
        one.start()
    found = recorder.result()
    assert found["calls"] == [
        "one.py:start -> two.py:middle",
        "two.py:middle -> one.py:again",
        "one.py:start -> two.py:last",
    ]
    # Into one.py, which was left for two.py, and into two.py, which was left for one.py.
    assert (found["hops"], found["files"], found["back"]) == (3, 2, 2)
    assert found["pairs"]["hops"] == 3
    recorder.known = {callee for _, callee in recorder.hops() if callee.file == "two.py"}
    assert recorder.result()["new"] == {"hops": 1, "files": 1}
