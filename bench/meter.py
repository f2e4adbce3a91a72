"""Measures what work costs this process and its children: time, CPU, memory, bytes moved."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from lakewarden import clock

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cost:
    """`wall` is from call to return. Memory values are peaks: the JVM's heap in use, its resident size, that
    of all Python workers together, and of the largest worker. The last two are the bytes the workers asked
    the system to read and write."""

    wall: float
    cpu: float
    jvm_heap: int
    jvm_rss: int
    workers_rss: int
    worker_rss: int
    workers_read: int
    workers_written: int


def measure(spark: Any, work: Callable[[], Result], patience: float = 10.0) -> tuple[Result, Cost]:
    """Do the work once and measure it. `patience` is the longest wait, in seconds, for leftovers of earlier
    work; without it those count as cost too."""
    if patience:
        _settle(spark, patience)
    heap, watched = _Heap(spark), _Watched()
    with _looking(watched):
        started = time.perf_counter()
        result = work()
        wall = time.perf_counter() - started
    return result, watched.cost(wall, heap.peak())


def _settle(spark: Any, patience: float) -> None:
    """Wait until leftovers of earlier work are gone: garbage, unwritten pages and code to compile."""
    spark._jvm.System.gc()
    os.sync()
    _await_compiler(spark, patience)


def _await_compiler(spark: Any, at_most: float, quiet: float = 0.5) -> None:
    """Wait until the JVM's compiler has been idle for a while."""
    compiler = spark._jvm.java.lang.management.ManagementFactory.getCompilationMXBean()
    deadline = time.monotonic() + at_most
    seen = -1
    while (now := int(compiler.getTotalCompilationTime())) != seen and time.monotonic() < deadline:
        seen = now
        time.sleep(quiet)


class _Heap:
    """The JVM's own count of heap in use. Its resident size never shrinks, so that would show the largest
    work so far."""

    def __init__(self, spark: Any) -> None:
        factory = spark._jvm.java.lang.management.ManagementFactory
        self._pools = [
            pool for pool in factory.getMemoryPoolMXBeans() if str(pool.getType()) == "Heap memory"
        ]
        for pool in self._pools:
            pool.resetPeakUsage()

    def peak(self) -> int:
        return sum(int(pool.getPeakUsage().getUsed()) for pool in self._pools)


@dataclass(frozen=True, slots=True)
class _Used:
    """What one process has used since it started."""

    cpu: float = 0.0
    read: int = 0
    written: int = 0

    @classmethod
    def by(cls, process: psutil.Process) -> _Used:
        times, moved = process.cpu_times(), process.io_counters()
        return cls(times.user + times.system, moved.read_chars, moved.write_chars)


class _Watched:
    """This process and its descendants, as last seen.

    Each process is tracked separately: usage of a process that ends is kept, and usage before the measurement
    is not counted. (A parent counts its ended children only once it has waited for them.)
    """

    def __init__(self) -> None:
        self._jvm = self._workers = self._worker = 0
        self._began: dict[psutil.Process, _Used] = defaultdict(_Used)
        self._used: dict[psutil.Process, _Used] = {}
        self._python: set[psutil.Process] = set()
        self.look()
        self._began |= self._used

    def cost(self, wall: float, heap: int) -> Cost:
        used = [(process, self._began[process], last) for process, last in self._used.items()]
        moved = [(began, last) for process, began, last in used if process in self._python]
        return Cost(
            wall=wall,
            cpu=sum(last.cpu - began.cpu for _, began, last in used),
            jvm_heap=heap,
            jvm_rss=self._jvm,
            workers_rss=self._workers,
            worker_rss=self._worker,
            workers_read=sum(last.read - began.read for began, last in moved),
            workers_written=sum(last.written - began.written for began, last in moved),
        )

    def look(self) -> None:
        me, jvm, workers = psutil.Process(), 0, 0
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):  # the process has ended
                name, size = process.name(), process.memory_info().rss
                self._used[process] = _Used.by(process)
                if "java" in name:
                    # The JVM forks to run a command: for a moment its memory seems to exist twice.
                    jvm = max(jvm, size)
                elif "python" in name and process != me:
                    self._python.add(process)
                    workers += size
                    self._worker = max(self._worker, size)
        self._jvm, self._workers = max(self._jvm, jvm), max(self._workers, workers)


@contextmanager
def _looking(watched: _Watched, every: float = 0.25) -> Iterator[None]:
    try:
        with clock.repeating(watched.look, every, "bench-looking"):
            yield
    finally:
        watched.look()
