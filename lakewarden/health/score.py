"""Scores a table's health: 100 less the cost of each part, each with a reason. Also its debt: how much work it
needs.

Pure. A worse number never raises a score and never lowers a debt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakewarden.config.schema import HealthConfig
from lakewarden.state.health import Numbers

BEST = 100
_OVERDUE, _TRASHED, _GAPS = 100, 50_000, 10  # values at which half of a part's points are lost
_FAILURE, _FAILURES_MOST = 10, 50
_SUSPENDED, _UNREADABLE = 60, 100
# The size of one unit of debt: about the work of one short run.
_SMALL, _DELETES, _MANIFESTS, _SNAPSHOTS, _FILES, _BYTES = 100, 20, 100, 100, 10_000, 10_000_000_000


@dataclass(frozen=True, slots=True)
class MaintenanceProblems:
    """Problems of the maintenance itself: why the table cannot be read, why it is suspended, failures in a row."""

    error: str = ""
    suspended: str = ""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class ScorePart:
    """`cost` points of at most `weight` are lost, and why; `value` is the number it is based on."""

    name: str
    weight: int
    value: float
    cost: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Debt:
    """`amount` 0: nothing to do. In units of about one short run."""

    amount: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Score:
    score: int
    parts: tuple[ScorePart, ...]
    debt: Debt


def judge(numbers: Numbers, limits: HealthConfig, trouble: MaintenanceProblems | None = None) -> Score:
    """Half of a part's points are lost at the threshold of a warning, all of them at twice that."""
    parts = (
        _small(numbers, limits),
        _deletes(numbers, limits),
        _manifests(numbers, limits),
        _snapshots(numbers),
        _trashed(numbers),
        _lineage(numbers),
        _trouble(trouble or MaintenanceProblems()),
    )
    left = BEST - sum(each.cost for each in parts)
    return Score(max(0, int(left)), parts, debt(numbers))


def debt(numbers: Numbers) -> Debt:
    """The number by which the worker orders tables. Lineage and trouble are excluded: no run improves them."""
    shares = (
        (numbers.small_files / _SMALL, f"{numbers.small_files:,} small files"),
        (numbers.delete_files / _DELETES, f"{numbers.delete_files:,} delete files"),
        (max(0, numbers.manifests - 1) / _MANIFESTS, f"{numbers.manifests:,} manifests"),
        (numbers.overdue_snapshots / _SNAPSHOTS, f"{numbers.overdue_snapshots:,} snapshots free to expire"),
        (
            numbers.due_trashed_files / _FILES + numbers.due_trashed_bytes / _BYTES,
            f"{numbers.due_trashed_files:,} trashed files past their grace",
        ),
    )
    return Debt(sum(amount for amount, _ in shares), _made_up_of(shares))


def _made_up_of(shares: Sequence[tuple[float, str]]) -> str:
    """The largest first; shares that round to zero are left out."""
    parts = [f"{what} ({amount:.2f})" for amount, what in sorted(shares, reverse=True) if amount >= 0.005]
    return ", ".join(parts) or "nothing to do"


def _small(numbers: Numbers, limits: HealthConfig) -> ScorePart:
    return _part("small-files", 30, numbers.small_files, limits.small_files, f"{numbers.small_files:,} of {numbers.files:,} files are small")  # fmt: skip


def _deletes(numbers: Numbers, limits: HealthConfig) -> ScorePart:
    """A few files with deletes are no debt: below the least number of files, the ratio counts in proportion."""
    counts = min(1.0, numbers.files / limits.delete_ratio_files)
    text = f"{numbers.delete_files:,} delete files for {numbers.files:,} data files, {numbers.deleted_rows:,} rows deleted"
    return _part("deletes", 20, numbers.delete_ratio * counts, limits.delete_ratio, text)


def _manifests(numbers: Numbers, limits: HealthConfig) -> ScorePart:
    return _part("manifests", 15, numbers.manifests, limits.manifests, f"{numbers.manifests:,} manifests")


def _snapshots(numbers: Numbers) -> ScorePart:
    text = f"{numbers.overdue_snapshots:,} of {numbers.snapshots:,} snapshots could have expired"
    return _part("snapshots", 15, numbers.overdue_snapshots, _OVERDUE, text)


def _trashed(numbers: Numbers) -> ScorePart:
    text = f"{numbers.due_trashed_files:,} trashed files are past their grace"
    return _part("trashed", 10, numbers.due_trashed_files, _TRASHED, text)


def _lineage(numbers: Numbers) -> ScorePart:
    gaps = numbers.lineage_gaps if numbers.lineage_asked else 0
    text = f"{numbers.lineage_gaps:,} snapshots do not say where they come from"
    text += "" if numbers.lineage_asked else ", which nobody asked for"
    return _part("lineage", 10, gaps, _GAPS, text)


def _trouble(trouble: MaintenanceProblems) -> ScorePart:
    cost = float(min(_FAILURES_MOST, trouble.failures * _FAILURE))
    text = f"{trouble.failures:,} failures in a row" if trouble.failures else "no failures"
    if trouble.suspended:
        cost, text = max(cost, _SUSPENDED), f"suspended: {trouble.suspended}"
    if trouble.error:
        cost, text = _UNREADABLE, f"it cannot be looked at: {trouble.error}"
    return ScorePart("trouble", _UNREADABLE, trouble.failures, cost, text)


def _part(name: str, weight: int, value: float, half: float, sentence: str) -> ScorePart:
    return ScorePart(name, weight, value, round(weight * min(1.0, value / (2 * half)), 2), sentence)
