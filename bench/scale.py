"""How large a benchmark is, from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DAYS = 5


def default_outputs(rows: int) -> int:
    """Four a day at full scale; below, one, or the outputs would be small files again."""
    return 4 * DAYS if rows >= 10_000_000 else DAYS


@dataclass(frozen=True, slots=True)
class Scale:
    """Rows and files are those of the table before compaction; `outputs` is what both tools are asked for."""

    rows: int = 20_000_000
    files: int = 500
    outputs: int = 20
    rounds: int = 3
    small_repeats: int = 7

    def __post_init__(self) -> None:
        if min(self.rows, self.files, self.outputs, self.rounds, self.small_repeats) < 1:
            raise ValueError("rows, files, outputs, rounds and repeats are at least 1")
        if self.files % DAYS or self.rows % self.files:
            raise ValueError(
                f"{self.files} files must divide over {DAYS} days, and {self.rows} rows over the files"
            )
        if self.outputs % DAYS or self.outputs >= self.files:
            raise ValueError(
                f"{self.outputs} outputs must divide over {DAYS} days and be fewer than the files"
            )

    @property
    def rows_per_file(self) -> int:
        return self.rows // self.files

    @property
    def name(self) -> str:
        return f"{self.rows}-{self.files}"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Scale:
        """BENCH_ROWS, BENCH_FILES, BENCH_OUTPUTS, BENCH_ROUNDS."""
        default = cls()
        rows = int(environ.get("BENCH_ROWS", default.rows))
        return cls(
            rows=rows,
            files=int(environ.get("BENCH_FILES", default.files)),
            outputs=int(environ.get("BENCH_OUTPUTS", default_outputs(rows))),
            rounds=int(environ.get("BENCH_ROUNDS", default.rounds)),
        )
