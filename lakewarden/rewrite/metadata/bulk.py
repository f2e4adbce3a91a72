"""Reads very many small metadata files at once: in threads of the driver, or in Spark tasks if there are executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from lakewarden.model.location import is_local
from lakewarden.rewrite.metadata.read_manifests import MetadataFile, NamedFiles, What, read_metadata_files
from lakewarden.rewrite.read.store import Store
from lakewarden.spark.tasks import fan_out, on_one_machine, parallelism
from lakewarden.storage.objects import Objects

# At most this many decoded files, and this many entries, wait for the caller, whatever the table's size.
_WAVE = 256
_ENTRIES = 50_000
# Files per thread and step: enough to decode them together, few enough that all threads have work.
_AT_ONCE = 16
# Requests to an object store mostly wait for an answer.
_REMOTE_THREADS = 16
# With fewer files than this per core, reading here is faster than starting a Spark job.
_FEW_PER_CORE = 200


class MetadataFiles:
    """Reads lists and manifests in the order of the request.

    A file that cannot be read comes back as None with the reason: the caller decides, and names the file.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def lists(
        self, paths: Sequence[str], io: Mapping[str, str], lengths: Mapping[str, int]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """For each list, its manifests: manifest, length, live, encrypted. `lengths` are the known lengths of lists."""
        return self._told([MetadataFile(path, length=lengths.get(path, -1)) for path in paths], io)

    def manifests(
        self, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """For each (path, length, live count), the manifest's live files: path, size, kind."""
        return self._told([MetadataFile(path, "manifest", length, live) for path, length, live in wanted], io)

    def absent(self, paths: Sequence[str], io: Mapping[str, str]) -> list[str]:
        """Which of these files do not exist on the store."""
        stats = Objects(io).stat(paths)
        return [path for path, stat in zip(paths, stats, strict=True) if stat is None]

    def decode(
        self, what: What, wanted: Sequence[tuple[str, int, int]], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        """For each (path, length, live count), the files named in that file, with the columns of its kind."""
        return self._told([MetadataFile(path, what, length, live) for path, length, live in wanted], io)

    def _told(
        self, files: Sequence[MetadataFile], io: Mapping[str, str]
    ) -> Iterator[tuple[str, pa.Table | None, str]]:
        return ((each.path, each.table, each.trouble) for each in self._read(files, io))

    def _read(self, files: Sequence[MetadataFile], io: Mapping[str, str]) -> Iterator[NamedFiles]:
        cores = parallelism(self._spark)
        if on_one_machine(self._spark) or len(files) < _FEW_PER_CORE * cores:
            yield from _in_threads(files, io, cores)
            return
        for wave in _waves(files, cores):
            yield from self._in_tasks(wave, io, cores)

    def _in_tasks(
        self, files: Sequence[MetadataFile], io: Mapping[str, str], cores: int
    ) -> Iterator[NamedFiles]:
        share = -(-len(files) // cores)
        parts = [list(files[start : start + share]) for start in range(0, len(files), share)]
        settings = dict(io)

        def kernel(part: list[MetadataFile]) -> list[NamedFiles]:
            store = Store(settings)
            return read_metadata_files(part, store)

        for read in fan_out(self._spark, kernel, parts, "lakewarden-metadata", "reading manifests"):
            yield from read


def _in_threads(files: Sequence[MetadataFile], io: Mapping[str, str], cores: int) -> Iterator[NamedFiles]:
    if not files:
        return
    store = Store(io)
    threads = cores if is_local(files[0].path) else _REMOTE_THREADS
    with ThreadPoolExecutor(threads, thread_name_prefix="lakewarden-metadata") as pool:
        for wave in _waves(files, 1):
            parts = [wave[start : start + _AT_ONCE] for start in range(0, len(wave), _AT_ONCE)]
            for read in pool.map(lambda part: read_metadata_files(part, store), parts):
                yield from read


def _waves(files: Sequence[MetadataFile], cores: int) -> Iterator[list[MetadataFile]]:
    """As many files at once as memory allows: a manifest may have ten entries or a hundred thousand."""
    wave: list[MetadataFile] = []
    entries = 0
    for file in files:
        wave.append(file)
        entries += max(file.live, 0)
        if len(wave) >= _WAVE * cores or entries >= _ENTRIES * cores:
            yield wave
            wave, entries = [], 0
    if wave:
        yield wave
