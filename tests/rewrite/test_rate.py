"""So many deletions a second: the average holds from the first batch on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakewarden import clock
from lakewarden.jobs.purge.execute import Rate


class Time:
    """A clock that moves when someone sleeps or works."""

    def __init__(self) -> None:
        self.now = 100.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    made = Time()
    monkeypatch.setattr(clock, "monotonic", lambda: made.now)
    monkeypatch.setattr(clock, "sleep", made.pass_by)
    yield made


@pytest.mark.parametrize(
    ("per_second", "batch", "work"), [(100, 1000, 0), (100, 30, 0.2), (5000, 1000, 0.19), (0.5, 1, 1)]
)
def test_the_average_holds_at_every_moment(time: Time, per_second: float, batch: int, work: float) -> None:
    start, rate, done = time.now, Rate(per_second), 0
    for _ in range(50):
        rate.wait(batch)
        done += batch
        assert done <= per_second * (time.now - start) * 1.0001, "never ahead, not even with the first batch"
        time.pass_by(work)
    assert done >= 0.95 * per_second * (time.now - work - start), (
        "nor behind, though the work itself takes time"
    )


def test_idle_time_is_not_saved_up(time: Time) -> None:
    rate = Rate(10)
    rate.wait(10)
    time.pass_by(3600)
    before = time.now
    for _ in range(10):
        rate.wait(10)
    assert time.now - before == pytest.approx(7), "of an hour, two seconds are made good for"


def test_a_slow_batch_is_caught_up_with(time: Time) -> None:
    rate, start, done = Rate(100), time.now, 0
    for number in range(40):
        rate.wait(100)
        done += 100
        time.pass_by(2.5 if number == 10 else 0.4)
    assert done >= 0.98 * 100 * (time.now - 0.4 - start)


def test_no_limit_never_waits(time: Time) -> None:
    Rate(None).wait(10**9)
    assert time.now == 100.0


@pytest.mark.parametrize("per_second", [0, -1])
def test_a_rate_that_never_ends_is_refused(per_second: float) -> None:
    with pytest.raises(ValueError, match="never ends"):
        Rate(per_second)
