"""The folder of the demo's lake: created again each time, and never a folder that something else created."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakewarden.errors import Refused

CATALOG = "lake"
TABLE = f"{CATALOG}.demo.events"
_MARK = ".made-by-lakewarden-demo"

_CONFIG = """\
# Written by `lakewarden demo`. Change any value and run the commands again.

[state]
url = "sqlite:///state.db"        # runs, steps and policies; beside this file

[catalogs.{catalog}]
type = "hadoop"                   # Iceberg's simplest catalog: a folder
warehouse = "{warehouse}"

[policy]
rewrite_min_input_files = 8       # small files a partition needs before it is compacted
"""


def make_folder(folder: Path) -> Path:
    """Create a new, empty lake in the folder and return its configuration file. The lake of an earlier demo
    is removed."""
    place = folder.absolute()
    if place.is_symlink() or (place.exists() and not (place / _MARK).is_file()):
        raise Refused(
            action="overwrite",
            target=str(folder),
            reason="it was not made by the demo",
            hint="name another folder: `lakewarden demo FOLDER`, or move this one away",
        )
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    (place / _MARK).write_text("`lakewarden demo` deletes this folder and creates it again\n", "utf-8")
    config = place / "lakewarden.toml"
    config.write_text(_CONFIG.format(catalog=CATALOG, warehouse=_quoted(place / "warehouse")), "utf-8")
    return config


def _quoted(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')
