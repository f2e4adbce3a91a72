"""What a piece of work costs this process and everything it started: time, CPU, memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from lakewarden import clock

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cost:
    """`wall` is from call to return. Memory is the peak: the JVM's heap in use, its resident size, and of all Python workers together."""

    wall: float
    cpu: float
    jvm_heap: int
    jvm_rss: int
    workers_rss: int


def measure(spark: Any, work: Callable[[], Result]) -> tuple[Result, Cost]:
    """Do the work once and say what it cost. What ran before leaves garbage, unwritten pages and code to compile: not our cost."""
    spark._jvm.System.gc()
    os.sync()
    _await_compiler(spark)
    heap, watched = _Heap(spark), _Watched()
    with _looking(watched):
        started = time.perf_counter()
        result = work()
        wall = time.perf_counter() - started
    return result, Cost(wall, watched.cpu(), heap.peak(), watched.jvm, watched.workers)


def _await_compiler(spark: Any, quiet: float = 0.5, at_most: float = 10.0) -> None:
    """Until Java's compiler has had nothing to do for a while."""
    compiler = spark._jvm.java.lang.management.ManagementFactory.getCompilationMXBean()
    deadline = time.monotonic() + at_most
    seen = -1
    while (now := int(compiler.getTotalCompilationTime())) != seen and time.monotonic() < deadline:
        seen = now
        time.sleep(quiet)


class _Heap:
    """The JVM's own count of heap in use. Its resident size never shrinks, so it shows the hungriest work so far."""

    def __init__(self, spark: Any) -> None:
        factory = spark._jvm.java.lang.management.ManagementFactory
        self._pools = [
            pool for pool in factory.getMemoryPoolMXBeans() if str(pool.getType()) == "Heap memory"
        ]
        for pool in self._pools:
            pool.resetPeakUsage()

    def peak(self) -> int:
        return sum(int(pool.getPeakUsage().getUsed()) for pool in self._pools)


class _Watched:
    """This process and all below it, as last seen.

    Each process is followed by itself: one that ends keeps what it had used, and what it had used before we
    began is not counted. (A parent's own count of its ended children starts when it reaps them, if it does.)
    """

    def __init__(self) -> None:
        self.jvm = 0
        self.workers = 0
        self._began: dict[psutil.Process, float] = {}
        self._used: dict[psutil.Process, float] = {}
        self.look()
        self._began = dict(self._used)

    def cpu(self) -> float:
        return sum(used - self._began.get(process, 0.0) for process, used in self._used.items())

    def look(self) -> None:
        me, jvm, workers = psutil.Process(), 0, 0
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):  # it ended meanwhile
                times, name, size = process.cpu_times(), process.name(), process.memory_info().rss
                self._used[process] = times.user + times.system
                if "java" in name:
                    # The JVM forks to run a command: for a moment its memory is there twice, by name only.
                    jvm = max(jvm, size)
                elif "python" in name and process != me:
                    workers += size
        self.jvm, self.workers = max(self.jvm, jvm), max(self.workers, workers)


@contextmanager
def _looking(watched: _Watched, every: float = 0.25) -> Iterator[None]:
    try:
        with clock.repeating(watched.look, every, "bench-looking"):
            yield
    finally:
        watched.look()
