"""File names that a format's writers use. Only a file with such a name may be an orphan."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakewarden.model.table import TableView


@dataclass(frozen=True, slots=True)
class Names:
    """Patterns that a path in normal form is matched against.

    `ours`: files of this format; the purpose of any other file is unknown. `metadata`: the metadata files among them.
    `signed`: files whose name only writers of this format produce. A name like `part-0.parquet` can come from any tool.
    """

    ours: re.Pattern[str]
    metadata: re.Pattern[str]
    signed: re.Pattern[str]
    temporary: re.Pattern[str] | None = None  # hidden files that a writer left half written


_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_OUR_RUN = r"lakewarden-\d{8}-\d{6}-[0-9a-f]{6}-[^/.]*"
_ICEBERG = Names(
    ours=re.compile(r"\.(parquet|orc|avro|puffin|stats|metadata\.json|metadata\.json\.gz)$"),
    metadata=re.compile(r"(\.metadata\.json|\.metadata\.json\.gz|\.avro|\.stats)$"),
    # Names from Iceberg's library (Spark, Flink, Hive, Kafka Connect), PyIceberg, Trino, Lakewarden; metadata of any writer.
    signed=re.compile(
        rf"/\d{{5,}}-\d+-[^/]*{_UUID}[^/]*$"
        rf"|/\d{{8}}_\d{{6}}_\d{{5}}_\w{{5}}-{_UUID}\.\w+$"
        rf"|/[^/]*{_OUR_RUN}[^/]*$"
        rf"|/{_UUID}-m\d+\.avro$|/snap-\d+-[^/]*{_UUID}\.avro$"
        r"|\.metadata\.json(\.gz)?$|\.stats$|\.puffin$"
    ),
)

_PAIMON_METADATA = (
    rf"/manifest/(manifest|manifest-list|index-manifest)-{_UUID}-\d+(\.\w+)?$"
    rf"|/index/index-{_UUID}-\d+$|/statistics/stat-{_UUID}-\d+$"
)
# A table may set a prefix for its data files. A uuid and a number, or the id of a Lakewarden run, always follow.
_PAIMON_DATA = rf"/bucket-(\d+|postpone)/[^/]*({_UUID}-\d+|{_OUR_RUN})(\.[\w.]+)?$"
# Paimon writes small files under such a name and then renames them. A writer that stops in between leaves the file.
_PAIMON_TEMPORARY = re.compile(
    rf"/(?:snapshot|changelog|tag|consumer|schema|manifest|statistics)/\.[^/]+\.{_UUID}\.tmp$"
)
_PAIMON_OURS = re.compile(f"{_PAIMON_METADATA}|{_PAIMON_DATA}")
_PAIMON = Names(
    _PAIMON_OURS,
    re.compile(_PAIMON_METADATA),
    re.compile(f"{_PAIMON_OURS.pattern}|{_PAIMON_TEMPORARY.pattern}"),
    _PAIMON_TEMPORARY,
)

_BY_FORMAT = {"iceberg": _ICEBERG, "paimon": _PAIMON}


def names_of(view: TableView) -> Names:
    return _BY_FORMAT[view.format]
