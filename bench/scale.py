"""The size of a benchmark, from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

DAYS = 5


def default_outputs(rows: int) -> int:
    """Four per day at full scale; below that one, or the outputs would be small files again."""
    return 4 * DAYS if rows >= 10_000_000 else DAYS


@dataclass(frozen=True, slots=True)
class Scale:
    """Rows and files are those of the table before compaction; `outputs` is the number of files that every
    tool is asked for.

    `patience` is how long, in seconds, a turn waits for the JVM's compiler to finish after the turn before.
    """

    rows: int = 20_000_000
    files: int = 500
    outputs: int = 20
    rounds: int = 3
    small_repeats: int = 7
    peer: bool = True
    delete_bytes: int = 3_000_000_000
    rate_mb: float = 20.0
    patience: float = 10.0
    commits: int = 1_000
    objects: int = 50_000

    def __post_init__(self) -> None:
        counts = (self.rows, self.files, self.outputs, self.rounds, self.small_repeats, self.delete_bytes)
        if min(counts) < 1 or self.rate_mb <= 0:
            raise ValueError(
                "rows, files, outputs, rounds, repeats and bytes are at least 1, and the rate above 0"
            )
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

    def of_files(self, files: int, outputs: int) -> Scale:
        """The same file size with more or fewer files."""
        return replace(self, rows=files * self.rows_per_file, files=files, outputs=outputs)

    def twice(self) -> Scale:
        return self.of_files(2 * self.files, 2 * self.outputs)

    def growth(self) -> dict[int, Scale]:
        """A quarter, a half and all of it, as closely as whole files of every day allow; keyed by the factor
        to the first."""
        files = max(2 * DAYS, self.files // 4 // DAYS * DAYS)
        outputs = max(DAYS, self.outputs // 4 // DAYS * DAYS)
        return {times: self.of_files(times * files, times * outputs) for times in (1, 2, 4)}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Scale:
        """BENCH_ROWS, BENCH_FILES, BENCH_OUTPUTS, BENCH_ROUNDS, BENCH_PEER, BENCH_DELETE_BYTES, BENCH_RATE_MB, BENCH_COMMITS, BENCH_OBJECTS."""
        default = cls()
        rows = int(environ.get("BENCH_ROWS", default.rows))
        return cls(
            rows=rows,
            files=int(environ.get("BENCH_FILES", default.files)),
            outputs=int(environ.get("BENCH_OUTPUTS", default_outputs(rows))),
            rounds=int(environ.get("BENCH_ROUNDS", default.rounds)),
            peer=environ.get("BENCH_PEER", "yes") != "no",
            delete_bytes=int(environ.get("BENCH_DELETE_BYTES", default.delete_bytes)),
            rate_mb=float(environ.get("BENCH_RATE_MB", default.rate_mb)),
            commits=int(environ.get("BENCH_COMMITS", default.commits)),
            objects=int(environ.get("BENCH_OBJECTS", default.objects)),
        )
