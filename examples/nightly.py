"""Maintain every table of a lake, one after the other; exit with the first code that wants a look.

python examples/nightly.py lakewarden.toml
"""

from __future__ import annotations

import sys

from lakewarden import Lakewarden, LakewardenError, Run

# Settled by the next night: partial, another run has the table, lost the race.
HARMLESS = {0, 3, 11, 13}


def main(config: str) -> int:
    code = 0
    with Lakewarden.open(config) as lw:
        for table in lw.tables():
            if not lw.policy(table, refresh=True).bool("maintenance_enabled"):
                continue
            try:
                found = [_told(run) for run in lw.maintain(table, trigger={"type": "schedule"})]
            except LakewardenError as error:
                print(f"{table}: {error.message}\n  {error.hint}", file=sys.stderr)
                found = [error.exit_code]
            code = code or next((each for each in found if each not in HARMLESS), 0)
    return code


def _told(run: Run) -> int:
    print(f"{run.table} {run.job}: {run.state} {run.reason}".rstrip())
    return run.state.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
