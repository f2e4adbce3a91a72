"""What a table needs according to PyIceberg, which shares no code with us or with Iceberg's Java library."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import StaticTable


def files_needed(metadata_location: str) -> set[str]:
    """Every file that any snapshot of the metadata reaches, in the spelling of the metadata."""
    return set(_files(StaticTable.from_metadata(metadata_location)))


def _files(table: StaticTable) -> Iterator[str]:
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path
