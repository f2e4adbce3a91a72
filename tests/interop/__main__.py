"""`python -m tests.interop [ENGINE ...]`: run the cases of these engines, of all by default. Exit 1 if one is red."""

from __future__ import annotations

import argparse
import importlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.interop import parts
from tests.interop.report import Report

ENGINES = ("flink", "trino", "readers", "hive", "nessie")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.interop", description="Lakewarden beside real engines.")
    parser.add_argument("engines", nargs="*", metavar="engine", help=f"of {', '.join(ENGINES)}; default: all")
    parser.add_argument("--keep", action="store_true", help="keep the folder with tables and logs")
    options = parser.parse_args(arguments)
    if unknown := set(options.engines) - set(ENGINES):
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")
    # So that the engines end too: each is killed on leaving its `with`.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="interop-"))
    report = Report(folder / "red-cases.txt")
    _run_all(report, folder, options.engines or ENGINES)
    print(f"\n{report.table()}")
    if report.red or options.keep:
        print(f"tables, logs and stack traces: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(report.red)


def _run_all(report: Report, folder: Path, engines: Sequence[str]) -> None:
    from lakewarden.spark.session import close_session
    from tests.support.spark import shared_session

    spark = shared_session()
    try:
        for engine in engines:
            try:
                parts.FETCHERS[engine]()
            except parts.NotToBeHad as error:
                report.absent(engine, str(error))
                continue
            cases = importlib.import_module(f"tests.interop.{engine}_cases")
            cases.run(report, spark, folder / engine)
    finally:
        close_session(spark)


if __name__ == "__main__":
    sys.exit(main())
