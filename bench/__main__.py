"""`python -m bench CASE ...` runs these cases; without a name, all cases that compare with Iceberg's own
procedures.

Each turn is printed when it ends. All tools start from the same snapshot of the same table. After each turn
every row is read back and compared. The first round warms up the JVM and the workers; only later rounds
count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.cases import CASES, Case
from bench.findings import Report
from bench.lab import Lab, add_catalog
from bench.report import chart, markdown, text, to_json, with_figures
from bench.scale import Scale
from lakewarden.spark.jars import ensure_jars
from lakewarden.spark.session import close_session, open_session


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.chart and not options.out:
        parser.error("--chart draws what is in the folder of --out: name it")
    chosen = [case for case in CASES if (case.name in options.cases if options.cases else case.compares)]
    with _folder(os.environ.get("BENCH_DIR")) as folder:
        if len(chosen) == 1:
            report = _measure(chosen[0], folder, Scale.from_environment(os.environ))
            _publish(report, options)
        else:
            _each_alone(chosen, folder, options)
    if options.chart:
        reports = [options.out / f"{case.name}.json" for case in CASES]
        _write(options.chart, chart([path.read_text("utf-8") for path in reports if path.exists()]))
    return 0


def _each_alone(chosen: Sequence[Case], folder: Path, options: argparse.Namespace) -> None:
    """One process per case, so that no case inherits the heap, workers or compiled code of another."""
    flags = [f"--{name}={value}" for name in ("out", "page") if (value := getattr(options, name))]
    for case in chosen:
        command = [sys.executable, "-m", "bench", case.name, *flags]
        subprocess.run(command, check=True, env={**os.environ, "BENCH_DIR": str(folder)})


def _measure(case: Case, folder: Path, scale: Scale) -> Report:
    spark = open_session(case.master, {}, ensure_jars(case.jars))
    try:
        add_catalog(spark, folder)
        return case.run(Lab(spark, folder, scale, partial(print, flush=True)))
    finally:
        close_session(spark)


def _publish(report: Report, options: argparse.Namespace) -> None:
    print(text(report), flush=True)
    if options.out:
        _write(options.out / f"{report.case}.json", to_json(report))
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        _write(options.page, with_figures(page, report.case, markdown(report)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=_listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [case.name for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[*names, []], help="see below")
    parser.add_argument("--out", type=Path, help="write each case's results to this folder, as CASE.json")
    parser.add_argument("--chart", type=Path, help="draw the wall times of every case in that folder, as SVG")
    parser.add_argument(
        "--page", type=Path, help="write each case's results between its markers in this page"
    )
    return parser


def _listing() -> str:
    lines = []
    for title, compares in (("against Iceberg", True), ("Lakewarden alone", False)):
        lines += [
            f"{title}:",
            *(f"  {each.name:<18}{each.sentence}" for each in CASES if each.compares is compares),
            "",
        ]
    return "\n".join(lines)


@contextmanager
def _folder(named: str | None) -> Iterator[Path]:
    """The given folder, which is kept; otherwise a temporary one."""
    if named:
        yield Path(named).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="lakewarden-bench-") as folder:
        yield Path(folder)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
