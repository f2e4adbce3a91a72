"""What a piece of work costs this process and everything it started: time, CPU, memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

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
    """Do the work once and say what it cost. Garbage and unwritten pages of what ran before are cleared first."""
    spark._jvm.System.gc()
    os.sync()
    heap = _Heap(spark)
    with _sampling() as peaks:
        before = tree_cpu()
        started = time.perf_counter()
        result = work()
        wall = time.perf_counter() - started
        cpu = tree_cpu() - before
    return result, Cost(wall, cpu, heap.peak(), peaks.jvm, peaks.workers)


def tree_cpu() -> float:
    """CPU seconds of this process and all below it; processes that have ended count through the parent that reaped them."""
    total = 0.0
    for process in _tree():
        with suppress(psutil.Error):  # it ended meanwhile, and its parent counts it
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


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


@dataclass(slots=True)
class _Peaks:
    jvm: int = 0
    workers: int = 0

    def look(self) -> None:
        jvm, workers = 0, 0
        for process in _tree()[1:]:
            with suppress(psutil.Error):
                name, size = process.name(), process.memory_info().rss
                if "java" in name:
                    # The JVM forks to run a command: for a moment its memory is there twice, by name only.
                    jvm = max(jvm, size)
                elif "python" in name:
                    workers += size
        self.jvm, self.workers = max(self.jvm, jvm), max(self.workers, workers)


@contextmanager
def _sampling(every: float = 0.2) -> Iterator[_Peaks]:
    peaks, stop = _Peaks(), threading.Event()

    def loop() -> None:
        while not stop.wait(every):
            peaks.look()

    thread = threading.Thread(target=loop, name="bench-sampling", daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()
        peaks.look()
