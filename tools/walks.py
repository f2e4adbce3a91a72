"""Five walks through the code, measured: each runs once on a tiny table, and the calls between files are counted.

A hop is the first call of a function from another file, if that function calls further functions of lakewarden: a reader
opens each function once, and reads past leaves (a value, the clock, a query), past special methods and past lambdas. Code of
libraries between caller and callee is skipped, and a thread continues the call that started it. A hop leads back when its
file has been left before. Python code that Spark runs in its own processes is not seen.

Every walk also says what is new in it beside `compact`, which shows the frame of every run; and it says `pairs`, all pairs of
caller and callee in two files, leaves and repeated visits too.

The rule was set on commit 767950c, by the numbers that were counted by hand there: 128 calls over 63 files for a compaction,
51 of them back into a file left before; 99 for one deletion end to end. It gives 115 over 56 with 51 back, and for expire to
purge 118 that are new beside compact: a tenth less, and a fifth more.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_COMPREHENSION = re.compile(r"((\.<locals>)?\.<(list|set|dict)comp>|(\.<locals>)?\.<genexpr>)+$")
_OPTIMIZED = 1  # of co_flags: a function, not the body of a module or a class
_LONG_AGO = 1_577_836_800  # 2020
EXPIRE = {"snapshot_retention_hours": 0, "snapshot_min_retained": 1}
PURGE = {"delete_grace_hours": 0}
SWEEP = {"orphan_max_percent": 100, "orphan_grace_hours": 24}
COMPACT = {"rewrite_min_input_files": 2}
# Since which the pass of a worker is counted; the daemon's own rounds are not part of it. Older names too.
PASS_FILES = ("worker/passes.py", "worker/pass_.py")


@dataclass(frozen=True)
class Place:
    """A function: its file below the package, and its qualified name."""

    file: str
    name: str


@dataclass
class Recorder:
    """Notes calls while `recording`. `inside`: only below a function of one of these files."""

    package: Path
    pairs: dict[tuple[Place, Place], bool] = field(default_factory=dict)  # whether it leads back
    entered: dict[Place, Place | None] = field(default_factory=dict)  # each function, by whom first; in order
    files: set[str] = field(default_factory=set)
    calling: set[Place] = field(default_factory=set)
    known: set[Place] = field(default_factory=set)  # functions of the compact walk
    inside: tuple[str, ...] = ()
    active: bool = False
    _places: dict[CodeType, Place | None] = field(default_factory=dict)
    _seen: set[tuple[CodeType, CodeType | None]] = field(default_factory=set)

    def install(self) -> None:
        """For threads too: each remembers the functions that started it."""
        recorder, start = self, threading.Thread.start

        def remembering(thread: threading.Thread) -> None:
            if recorder.active:
                thread.__dict__["_started_by"] = recorder.chain(sys._getframe(1))
            start(thread)

        threading.Thread.start = remembering  # type: ignore[assignment, method-assign]
        threading.setprofile(self.profile)

    @contextmanager
    def recording(self, inside: tuple[str, ...] = ()) -> Iterator[None]:
        self.pairs, self.entered, self.files, self.calling = {}, {}, set(), set()
        self.inside, self._seen = inside, set()
        self.active = True
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            self.active = False

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self.active:
            return
        code = frame.f_code
        callee = self.place(code)
        if callee is None or code.co_name == "<genexpr>" or not code.co_flags & _OPTIMIZED:
            return
        parent = frame.f_back
        key = (code, None if parent is None else parent.f_code)
        if key in self._seen:
            return
        callers = self.chain(parent)
        if callers is None or not self._counts(callee, callers):
            return
        if callers and self.place(key[1]) is not None:
            self._seen.add(key)  # the same two functions are one hop, whatever stands above them
        if callers and callers[0] != callee:
            self.calling.add(callers[0])
        if callers and callers[0].file != callee.file:
            self.pairs.setdefault((callers[0], callee), callee.file in self.files)
        self.entered.setdefault(callee, callers[0] if callers else None)
        self.files.add(callee.file)

    def _counts(self, callee: Place, callers: list[Place]) -> bool:
        return not self.inside or any(each.file in self.inside for each in (callee, *callers))

    def chain(self, frame: FrameType | None) -> list[Place] | None:
        """Functions of the package on the stack, the nearest first; None while a module is being imported."""
        found = []
        while frame is not None:
            place = self.place(frame.f_code)
            if place is not None:
                if not frame.f_code.co_flags & _OPTIMIZED:
                    return None
                found.append(place)
            frame = frame.f_back
        started = threading.current_thread().__dict__.get("_started_by")
        return [*found, *(started or ())]

    def place(self, code: CodeType | None) -> Place | None:
        """None outside the package. A comprehension belongs to the function around it."""
        if code is None:
            return None
        if code not in self._places:
            self._places[code] = self._place(code)
        return self._places[code]

    def _place(self, code: CodeType) -> Place | None:
        path = Path(code.co_filename)
        if not path.is_relative_to(self.package):
            return None
        return Place(str(path.relative_to(self.package)), _COMPREHENSION.sub("", code.co_qualname))

    def result(self) -> dict[str, Any]:
        hops = self.hops()
        new = [hop for hop in hops if hop[1] not in self.known]
        return {
            "hops": len(hops),
            "files": len({place.file for hop in hops for place in hop}),
            "back": self._back(hops),
            "new": {"hops": len(new), "files": len({callee.file for _, callee in new})},
            "pairs": {
                "hops": len(self.pairs),
                "files": len(self.files),
                "back": sum(self.pairs.values()),
            },
            "calls": [_arrow(hop) for hop in hops],
            "all_calls": [
                f"{'step' if self._is_step(pair[1]) else 'leaf'} {_arrow(pair)}" for pair in self.pairs
            ],
        }

    def hops(self) -> list[tuple[Place, Place]]:
        """In the order of the walk."""
        return [
            (caller, callee)
            for callee, caller in self.entered.items()
            if caller is not None and caller.file != callee.file and self._is_step(callee)
        ]

    def _back(self, hops: list[tuple[Place, Place]]) -> int:
        """Hops into a file that has been read before, and is not the one that was read last."""
        called = {callee for _, callee in hops}
        seen: set[str] = set()
        last, found = "", 0
        for place in self.entered:
            if not self._is_step(place):
                continue
            found += place in called and place.file in seen and place.file != last
            seen.add(place.file)
            last = place.file
        return found

    def _is_step(self, callee: Place) -> bool:
        """Not a leaf, not a special method and not a lambda: what a reader of the walk opens next."""
        name = callee.name.rsplit(".", 1)[-1]
        return callee in self.calling and not name.startswith("__") and name != "<lambda>"


def _arrow(hop: tuple[Place, Place]) -> str:
    return f"{hop[0].file}:{hop[0].name} -> {hop[1].file}:{hop[1].name}"


def measure(tree: Path, only: str | None = None) -> dict[str, Any]:
    """Each walk by its name, or only this one. One that cannot run in this checkout says why instead."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    support = importlib.import_module("tests.support.spark")
    recorder = Recorder(tree / "lakewarden")
    recorder.install()
    session = support.shared_session()
    measured = {}
    try:
        for name in WALKS if only is None else dict.fromkeys(("compact", only)):
            with tempfile.TemporaryDirectory(prefix="house-") as folder, ExitStack() as stack:
                try:
                    WALKS[name](session.newSession(), Path(folder), recorder, stack)
                    measured[name] = recorder.result()
                except (
                    Exception
                ) as error:  # an older checkout has other names: the other walks are still measured
                    measured[name] = {"error": f"{type(error).__name__}: {error}"}
                if name == "compact":
                    recorder.known = set(recorder.entered)
    finally:
        threading.setprofile(None)
        session.stop()
    return measured if only is None else {only: measured[only]}


def compact(spark: Any, folder: Path, recorder: Recorder, stack: ExitStack) -> None:
    lab = _iceberg(spark, folder, stack)
    table = lab.messy(files=4, rows=20, days=1)
    with recorder.recording():
        _done(lab.lw.run("compact", table, COMPACT))


def expire_to_purge(spark: Any, folder: Path, recorder: Recorder, stack: ExitStack) -> None:
    """One deletion from end to end: expire puts the files of old snapshots into the trash, purge deletes them."""
    lab = _iceberg(spark, folder, stack)
    table = lab.messy(files=2, rows=20, days=1)
    lab.sql(f"insert overwrite {table} select id + 1000, s, d from {table}")
    with recorder.recording():
        _done(lab.lw.run("expire", table, EXPIRE))
        _done(lab.lw.run(_purge_name(), table, PURGE))


def paimon_sweep(spark: Any, folder: Path, recorder: Recorder, stack: ExitStack) -> None:
    lab = stack.enter_context(importlib.import_module("tests.support.paimon").paimon_lab(spark, folder))
    table = lab.create()
    lab.append(table, 3)
    # Only a name that Paimon itself would give a file is an orphan.
    name = "data-11111111-1111-1111-1111-111111111111-0.parquet"
    orphan = next(lab.folder(table).rglob("data-*.parquet")).with_name(name)
    orphan.write_bytes(b"left behind")
    for path in lab.folder(table).rglob("*"):
        os.utime(path, (_LONG_AGO, _LONG_AGO))
    with recorder.recording():
        _done(lab.lw.run("sweep", table, SWEEP))


def worker_pass(spark: Any, folder: Path, recorder: Recorder, stack: ExitStack) -> None:
    """From the pass on, not the daemon's rounds between passes."""
    lab, workers = _watched(spark, folder, stack)
    table = lab.messy(files=3, rows=20, days=1)
    with recorder.recording(inside=PASS_FILES), workers.working(lab.lw):
        workers.passed(lab.lw, table)
    if not recorder.pairs:
        raise LookupError(f"no function of {' or '.join(PASS_FILES)} ran")


def table_page(spark: Any, folder: Path, recorder: Recorder, stack: ExitStack) -> None:
    """The page of a table that a worker has looked after, from a server that has already shown another page."""
    import httpx

    lab, workers = _watched(spark, folder, stack)
    table = lab.messy(files=3, rows=20, days=1)
    with workers.working(lab.lw):
        workers.passed(lab.lw, table)
    server = importlib.import_module("lakewarden.console.server").ConsoleServer(lab.lw, port=0)
    stack.callback(server.stop)
    threading.setprofile(recorder.profile)
    client = stack.enter_context(httpx.Client(base_url=server.start().address, timeout=120))
    client.get("/runs", headers={"Accept": "text/html"}).raise_for_status()
    with recorder.recording():
        page = client.get(f"/tables/{table}", headers={"Accept": "text/html"})
    page.raise_for_status()
    if table not in page.text:
        raise LookupError(f"the page does not show {table}")


WALKS: dict[str, Callable[[Any, Path, Recorder, ExitStack], None]] = {
    "compact": compact,
    "expire to purge": expire_to_purge,
    "Paimon sweep": paimon_sweep,
    "worker pass": worker_pass,
    "table page": table_page,
}


def _iceberg(spark: Any, folder: Path, stack: ExitStack) -> Any:
    """A lab on a catalog of its own; jobs that delete ask every table of every catalog."""
    lab, catalogs = (importlib.import_module(f"tests.support.{name}") for name in ("lab", "spark"))
    catalog = catalogs.add_catalog(spark, {"type": "hadoop", "warehouse": str(folder / "warehouse")})
    lw = stack.enter_context(lab.lakewarden(spark, f"sqlite:///{folder}/state.db"))
    return lab.Lab(spark, catalog, folder / "warehouse", lw)


def _watched(spark: Any, folder: Path, stack: ExitStack) -> tuple[Any, Any]:
    """A lab whose worker looks after its catalog, and the helpers that run the worker."""
    lab, catalogs, workers = (
        importlib.import_module(f"tests.support.{name}") for name in ("lab", "spark", "workers")
    )
    catalog = catalogs.add_catalog(spark, {"type": "hadoop", "warehouse": str(folder / "warehouse")})
    lw = stack.enter_context(workers.with_worker(spark, f"sqlite:///{folder}/state.db", catalog))
    return lab.Lab(spark, catalog, folder / "warehouse", lw), workers


def _purge_name() -> str:
    """The job that deletes was called `reap` before."""
    for module in ("lakewarden.model.run", "lakewarden.model"):
        with contextlib.suppress(ImportError, AttributeError):
            names = {str(job) for job in importlib.import_module(module).Job}
            return "purge" if "purge" in names else "reap"
    return "purge"


def _done(run: Any) -> None:
    if str(run.state) != "done":
        raise RuntimeError(f"{run.job} of {run.table} ended {run.state}: {run.reason}")
