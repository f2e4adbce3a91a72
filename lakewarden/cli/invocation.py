"""One call of the program: its configuration, and Lakewarden opened from it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lakewarden.errors import UsageError

if TYPE_CHECKING:  # imported when a command opens it: `--help` needs no database
    from lakewarden.cli.screen import Screen
    from lakewarden.client import Lakewarden

DEFAULT_FILE = Path("lakewarden.toml")
VARIABLE = "LAKEWARDEN_CONFIG"

EXAMPLE = """\
write a lakewarden.toml here, or give one with --config or LAKEWARDEN_CONFIG. For example:

    [state]
    url = "sqlite:///lakewarden.db"

    [catalogs.lake]
    type = "hadoop"
    warehouse = "/data/warehouse"

    [policy]
    rewrite_target_bytes = "128MiB"

  or try it first without any set-up: `lakewarden demo`"""


@dataclass(frozen=True, slots=True)
class Invocation:
    config: Path | None = None
    spark: Any = None

    def config_file(self) -> Path | None:
        """The file given by --config or the environment, else ./lakewarden.toml, else None."""
        if self.config is not None:
            return self.config
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None

    @contextmanager
    def open(self, screen: Screen, *, spark: bool) -> Iterator[Lakewarden]:
        """A `Lakewarden` from the configuration file, closed after the command. `spark=True` starts Spark at once."""
        from lakewarden.client import Lakewarden

        path = self.config_file()
        if path is None:
            raise UsageError(
                reason="cannot find the configuration: there is no lakewarden.toml in this folder",
                hint=EXAMPLE,
            )
        with Lakewarden.open(path, spark=self.spark) as lakewarden:
            if not spark:
                yield lakewarden
                return
            with self.started(screen, lakewarden):
                yield lakewarden

    @contextmanager
    def started(self, screen: Screen, lakewarden: Lakewarden) -> Iterator[None]:
        """Starts the Spark session of this Lakewarden."""
        with screen.waiting("starting Spark"):
            _ = lakewarden.lake
        with quiet_spark():
            yield

    def command(
        self, *words: str, settings: Mapping[str, str] | None = None, program: str = "lakewarden"
    ) -> str:
        """The command line to suggest for a command on the same configuration."""
        named = (
            ["--config", str(self.config)] if self.config is not None and VARIABLE not in os.environ else []
        )
        sets = [part for key, value in (settings or {}).items() for part in ("--set", f"{key}={value}")]
        return shlex.join([program, *named, *words, *sets])


@contextmanager
def quiet_spark() -> Iterator[None]:
    """Silences pyspark, which logs a page of JSON about every rejected query; the raised error has the same
    information."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def invocation(ctx: typer.Context) -> Invocation:
    found = ctx.obj
    return found if isinstance(found, Invocation) else Invocation()
