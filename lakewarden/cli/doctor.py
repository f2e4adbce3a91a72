"""`lakewarden doctor`: check that everything a run needs is in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from lakewarden.cli.invocation import Invocation, invocation
from lakewarden.cli.options import JsonFlag
from lakewarden.cli.screen import Screen
from lakewarden.errors import LakewardenError
from lakewarden.model.plain import Plain
from lakewarden.report import look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakewarden.client import Lakewarden
    from lakewarden.config.schema import CatalogConfig, Config


OLDEST_PYTHON = (3, 11)


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(ctx: typer.Context, as_json: JsonFlag = False) -> int:
    """Check that this machine and the configuration are ready: Java, jars, database, Spark, catalogs.

    Never changes a table. Missing jars are downloaded, as the first run would do. Works without a
    configuration too.

    Example: `lakewarden doctor`
    """
    screen, examination = Screen(as_json), DoctorChecks(invocation(ctx))
    checks = []
    with examination:
        for check in examination.checks():
            checks.append(check)
            screen.say(check.render())
    report = DoctorReport(tuple(checks))
    if as_json:
        screen.show(report)
    screen.say(report.summary())
    return 0 if report.healthy else 1


@dataclass
class DoctorChecks:
    """The checks in order; each may use results of earlier ones."""

    call: Invocation
    config: Config | None = None
    lakewarden: Lakewarden | None = None
    failed: set[str] = field(default_factory=set)

    def __enter__(self) -> DoctorChecks:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lakewarden is not None:
            self.lakewarden.close()

    def checks(self) -> Iterator[Check]:
        yield self._check("python", self._python)
        yield self._check("java", self._java)
        yield self._check("configuration", self._configuration)
        yield self._check("jars", self._jars, needs=("java", "configuration"))
        if self.config is not None:
            yield self._check("state database", self._state)
        yield self._check("spark", self._spark, needs=("java", "jars", "configuration"))
        for name in self.config.catalogs if self.config else ():
            yield self._check(f"catalog {name}", partial(self._catalog, name), needs=("spark",))
            yield from _writers(self.config.catalogs[name]) if self.config else ()
            yield from _proof(self.config.catalogs[name]) if self.config else ()

    def _check(self, name: str, look: Callable[[], str], needs: tuple[str, ...] = ()) -> Check:
        missing = [each for each in needs if each in self.failed]
        if missing:
            self.failed.add(name)
            return Check(name, "skipped", f"needs {' and '.join(missing)}")
        try:
            return Check(name, "ok", look())
        except LakewardenError as error:
            self.failed.add(name)
            return Check(name, "fail", error.message, error.hint)
        except Exception as error:  # any error is reported as a failed check, and the other checks still run
            self.failed.add(name)
            first = (str(error).strip().splitlines() or [""])[0]
            return Check(
                name,
                "fail",
                f"{type(error).__name__}: {first}",
                "run it again with LAKEWARDEN_DEBUG=1 for the traceback",
            )

    def _python(self) -> str:
        found = ".".join(map(str, sys.version_info[:3]))
        if sys.version_info[:2] < OLDEST_PYTHON:
            oldest = ".".join(map(str, OLDEST_PYTHON))
            raise LakewardenError(reason=f"{found} is too old", hint=f"use Python {oldest} or newer")
        return f"{found}, {sys.executable}"

    def _java(self) -> str:
        from lakewarden.spark.java import find_java

        java = find_java(os.environ)
        return f"{java.major}, {java.path}"

    def _configuration(self) -> str:
        from lakewarden.client import Lakewarden

        path = self.call.config_file()
        if path is None:
            self.lakewarden = Lakewarden({}, spark=self.call.spark)
            return "no configuration here: only the machine is checked"
        self.lakewarden = Lakewarden.open(path, spark=self.call.spark)
        self.config = self.lakewarden.config
        catalogs = ", ".join(self.config.catalogs) or "none"
        return f"{path}, catalogs: {catalogs}"

    def _jars(self) -> str:
        from lakewarden.lake import jar_groups
        from lakewarden.spark.jars import default_cache, ensure_jars, missing_from, pinned

        if self.config is not None and self.config.spark.jars:
            return _own_jars(self.config.spark.jars)
        groups = jar_groups(self._opened().config)
        cache = default_cache(os.environ)
        missing = len(missing_from(pinned(groups), cache))
        found = ensure_jars(groups, cache)
        return f"{len(found)} in {cache}" + (f", {missing} of them downloaded now" if missing else "")

    def _state(self) -> str:
        from lakewarden.state.schema import HEAD

        state = self._opened().state
        _try_writing(state)
        return f"{state.name}, schema {HEAD}, writable"

    def _spark(self) -> str:
        spark = self._opened().lake.spark

        def arrow_version(_: int) -> str:
            import pyarrow

            return str(pyarrow.__version__)

        found = spark.sparkContext.parallelize([0], 1).map(arrow_version).collect()[0]
        return f"{spark.version} on {spark.sparkContext.master}; a task ran Python with pyarrow {found}"

    def _catalog(self, name: str) -> str:
        from lakewarden.formatting import counted

        return counted(len(self._opened().tables(name)), "table")

    def _opened(self) -> Lakewarden:
        if self.lakewarden is None:
            raise LakewardenError(reason="no configuration to check", hint="")
        return self.lakewarden


def _writers(catalog: CatalogConfig) -> Iterator[Check]:
    """Warns that this catalog has no lock: with several writers, commits can be lost."""
    from lakewarden.tables.paimon.commit import commit_risk

    risk = commit_risk(catalog.properties) if catalog.format == "paimon" else ""
    if risk:
        advice = (
            "Lakewarden processes that share this state database wait for each other, other writers do not: "
            "use one writer at a time, or a catalog with a lock (jdbc or hive with lock.enabled=true, rest)"
        )
        yield Check(f"writers of {catalog.name}", "ok", risk, advice)


def _proof(catalog: CatalogConfig) -> Iterator[Check]:
    """Whether the catalog lists every table. The proof that no table uses a file depends on it."""

    name = f"completeness of {catalog.name}"
    if not catalog.complete:
        yield Check(
            name, "ok", "complete=false: nothing outside a table's own folders is deleted, in any catalog"
        )
        return
    listed = _LISTED.get(catalog.properties.get("type", "") or catalog.properties.get("metastore", ""))
    yield Check(
        name,
        "ok",
        f"before deleting, Lakewarden trusts that {listed or _LISTED_TO_US}",
        f"files of a table that the catalog does not list are not protected: if there are such tables, set complete = false under [catalogs.{catalog.name}]",
    )


# What a catalog of each type lists. Other types hide tables that the principal may not see.
_LISTED = {
    "hadoop": "every folder of the warehouse can be listed",
    "filesystem": "every folder of the warehouse can be listed",
    "jdbc": "every table is in its database under this very catalog name",
}
_LISTED_TO_US = "the catalog lists every table to this principal"


def _own_jars(jars: tuple[str, ...]) -> str:
    missing = [jar for jar in jars if ":" not in jar and not Path(jar).is_file()]
    if missing:
        raise LakewardenError(
            reason=f"there is no {', '.join(missing)}", hint="copy it there, or correct `jars` under [spark]"
        )
    return f"{len(jars)} named by the configuration"


def _try_writing(state: Any) -> None:
    """A write that changes nothing, but needs write permission."""
    from sqlalchemy import delete, false

    from lakewarden.state.schema import seen_tables

    with state.write() as connection:
        connection.execute(delete(seen_tables).where(false()))


_STYLES = {"ok": "bold green", "fail": "bold red", "skipped": "dim"}


@dataclass(frozen=True, slots=True)
class Check(Plain):
    """`state` is ok, fail or skipped (a check it needs failed); `found` is the result, `advice` the next
    step."""

    name: str
    state: str
    found: str
    advice: str = ""

    def render(self) -> RenderableType:
        rows: list[tuple[str | Text, ...]] = [
            (Text(f"{self.state:7}", style=_STYLES[self.state]), f"{self.name:18}", self.found)
        ]
        if self.advice:
            rows.append(("", "", Text(f"→ {self.advice}", style="yellow")))
        return look.lines(rows, look.left(3), indent=0)


@dataclass(frozen=True, slots=True)
class DoctorReport(Plain):
    checks: tuple[Check, ...]

    JSON_KEYS = "healthy checks"

    @property
    def healthy(self) -> bool:
        return all(check.state != "fail" for check in self.checks)

    def render(self, width: int) -> RenderableType:
        return look.stack(*(check.render() for check in self.checks), self.summary())

    def summary(self) -> Text:
        failed = [check.name for check in self.checks if check.state == "fail"]
        if not failed:
            return Text("everything is ready", style="bold green")
        return Text(f"not ready: {', '.join(failed)}", style="bold red")
