"""Fixtures every test may use. Heavy ones are made once per run and only when a test asks."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# Tables of tests are tiny, and every query is new: on two cores two fifths of the time went into Java's second compiler and
# into Spark writing a program for each query. Without them both do the same, row by row.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1"
_NO_PROGRAMS = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{_QUICK_JAVA} {_NO_PROGRAMS}")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", f"{_QUICK_JAVA} -XX:+UseSerialGC")
# Tables of tests are small: for polars, to wake a second thread takes longer than the work.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

# Databases and tables of tests are thrown away, yet each of their many small writes waits for the disk: in memory, where there
# is room for them. `TMPDIR` names another place.
_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# Imported inside the fixtures: the pure tests start in an instant, without pyspark.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakewarden.state.database import State
    from tests.support.lab import Lab
    from tests.support.paimon import PaimonLab
    from tests.support.postgres import Database, Postgres
    from tests.support.rest_catalog import RestCatalog
    from tests.support.s3 import S3, Bucket
    from tests.support.spark import Warehouse


_SERVICES = {"postgres", "rest_catalog", "s3", "exact_s3"}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what each test needs, by its fixtures and its folder; other tests say `services` themselves."""
    for item in items:
        folder, fixtures = item.path.parent.name, set(getattr(item, "fixturenames", ()))
        if "spark" in fixtures:
            item.add_marker("spark")
        if fixtures & _SERVICES:
            item.add_marker("services")
        if folder == "crash":
            item.add_marker("crash")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One real Spark session for the whole run."""
    from lakewarden.spark.session import close_session
    from tests.support.spark import shared_session

    session = shared_session()
    yield session
    close_session(session)


def _catalogs() -> set[str]:
    """Those of the shared session, if it has been started."""
    if "tests.support.spark" not in sys.modules:
        return set()
    from tests.support.spark import catalogs_of_the_session

    return catalogs_of_the_session()


@contextmanager
def _without_new_catalogs() -> Iterator[None]:
    before = _catalogs()
    yield
    if new := _catalogs() - before:
        from pyspark.sql import SparkSession

        from tests.support.spark import remove_catalog

        for each in new:
            remove_catalog(SparkSession._instantiatedSession, each)


# Jobs that delete ask every table of every catalog: one that a test left behind, of a server that is gone, would stop them.


@pytest.fixture(autouse=True, scope="module")
def _catalogs_of_a_module() -> Iterator[None]:
    with _without_new_catalogs():
        yield


@pytest.fixture(autouse=True)
def _catalogs_of_a_test(request: pytest.FixtureRequest) -> Iterator[None]:
    if "spark" not in request.fixturenames:
        yield
        return
    with _without_new_catalogs():
        yield


@pytest.fixture
def tmp_warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """A new, empty Iceberg catalog of its own for one test."""
    from tests.support.spark import jdbc_warehouse

    return jdbc_warehouse(spark, tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One real PostgreSQL server for the whole run; take a `pg_database` of it."""
    from tests.support.postgres import postgres as running

    with running() as server:
        yield server


@pytest.fixture
def pg_database(postgres: Postgres) -> Database:
    """A new, empty PostgreSQL database for one test."""
    return postgres.fresh_database()


@pytest.fixture
def rest_catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    """A real REST catalog for one test, which may kill and restart it."""
    from tests.support.rest_catalog import rest_catalog as running

    with running(tmp_path / "rest") as catalog:
        yield catalog


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """One real S3 server for the whole run; take an `s3_bucket` of it."""
    from tests.support.s3 import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_bucket(s3: S3) -> Bucket:
    """A new, empty bucket for one test."""
    return s3.bucket()


@pytest.fixture(scope="session")
def exact_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 that takes every key as it is, as Amazon's does; it believes every credential."""
    from tests.support.s3 import s3_server

    with s3_server(tmp_path_factory.mktemp("exact-s3"), "moto") as server:
        yield server


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    from tests.support.lab import Lab, lakewarden
    from tests.support.spark import add_catalog, remove_catalog

    warehouse = tmp_path / "warehouse"
    catalog = add_catalog(spark, {"type": "hadoop", "warehouse": str(warehouse)})
    with lakewarden(spark, f"sqlite:///{tmp_path}/state.db") as lw:
        yield Lab(spark, catalog, warehouse, lw)
    remove_catalog(spark, catalog)


@pytest.fixture
def paimon(spark: SparkSession, tmp_path: Path) -> Iterator[PaimonLab]:
    from tests.support.paimon import paimon_lab

    with paimon_lab(spark, tmp_path) as lab:
        yield lab


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    address: str = request.getfixturevalue("pg_database").url
    return address.replace("postgresql+psycopg://", "postgresql://")


@pytest.fixture
def state(url: str) -> Iterator[State]:
    from lakewarden.state.database import State

    opened = State.open(url)
    yield opened
    opened.close()
