"""Put each known loss back and run the test named for it: `python -m tests.mutants [WORD ...] [--docs]`.

The tree is copied, one text of the product is replaced in the copy, and the test must fail there. All the tests are run first
on a copy that was not changed: a test that is red anyway proves nothing. Prints one line a mutant; the exit code is 1 where
any of them survived.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalogue import PAGE, ROOT, Mutant, faults, filled, mutants

# A mutant may make a test wait for something that no longer happens.
_DEADLINE_SECONDS = 420
_WHOLE_SECONDS = 3600
# pytest's exit code where tests ran and some failed, and that of a process which read memory that is not its own, as a
# mutant may make it do. Any other means that the tests did not run.
_FAILED = (1, -signal.SIGSEGV)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants whose subject or name has one of these words")
    parser.add_argument("--docs", action="store_true", help="write the table in docs/safety.md and stop")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    asked = parser.parse_args()
    every = mutants()
    if asked.docs:
        PAGE.write_text(filled(PAGE.read_text("utf-8"), every), "utf-8")
        return 0
    chosen = [each for each in every if not asked.words or _is_named(each, asked.words)]
    if wrong := faults(chosen):
        print("\n".join(wrong), file=sys.stderr)
        return 2
    if not chosen:
        print("cannot run mutants: none has such a name", file=sys.stderr)
        return 2
    return _run(chosen, asked.jobs)


def _is_named(mutant: Mutant, words: list[str]) -> bool:
    return any(word in mutant.subject or word in mutant.name for word in words)


def _run(chosen: list[Mutant], jobs: int) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lakewarden-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(_copy(Path(folder) / str(number)))
        if not _green_before(chosen, copies):
            return 1

        def judge(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return _is_killed(mutant, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            killed = sum(pool.map(judge, chosen))
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s", flush=True)
    return 0 if killed == len(chosen) else 1


def _green_before(chosen: list[Mutant], copies: SimpleQueue[Path]) -> bool:
    """Whether all the tests pass on the product as it is."""
    wanted = list(dict.fromkeys(test for each in chosen for test in each.tests))
    copy, began = copies.get(), time.monotonic()
    ended = _pytest(copy, wanted, _WHOLE_SECONDS)
    copies.put(copy)
    if ended.returncode == 0:
        print(f"unchanged: {len(wanted)} tests are green in {time.monotonic() - began:.0f} s", flush=True)
        return True
    print(ended.stdout[-6000:], file=sys.stderr)
    print("cannot judge mutants: these tests are red on the product as it is", file=sys.stderr)
    return False


def _is_killed(mutant: Mutant, copy: Path) -> bool:
    file, began = copy / mutant.file, time.monotonic()
    whole = file.read_text("utf-8")
    file.write_text(mutant.applied(whole), "utf-8")
    try:
        code = _pytest(copy, mutant.tests, _DEADLINE_SECONDS).returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        file.write_text(whole, "utf-8")
    killed = code in _FAILED
    state = "killed" if killed else {0: "SURVIVED", None: "NO ANSWER"}.get(code, f"DID NOT RUN ({code})")
    seconds = f"{time.monotonic() - began:.0f} s"
    print(f"{state:9} {mutant.subject:10} {mutant.name}  [{mutant.test}]  {seconds}", flush=True)
    return killed


def _pytest(copy: Path, tests: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its Spark too
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def _copy(to: Path) -> Path:
    """The tracked files and the new ones; not the environment, not what was built."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


if __name__ == "__main__":
    sys.exit(main())
