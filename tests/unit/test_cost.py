"""What tiers cost, against figures worked out by hand."""

from __future__ import annotations

import pytest

from lakewarden.config import Config
from lakewarden.errors import ConfigError
from lakewarden.jobs.cost import hand_off_cost, tier_cost
from lakewarden.prices import GIB, PRICES

KIB, MIB = 1 << 10, 1 << 20


def test_a_tier_of_large_files() -> None:
    """A thousand of 512 MiB are 500 GiB: 500 x 0.004 a month, 500 x 0.03 and 1000 requests to read, three months at least."""
    found = tier_cost("cold", [512 * MIB] * 1000, "GLACIER_IR", PRICES)
    assert (found.files, found.bytes, found.billed_bytes) == (1000, 500 * GIB, 500 * GIB)
    assert found.month == pytest.approx(2.00)
    assert found.padding_month == 0
    assert found.read_once == pytest.approx(15.00 + 0.01)
    assert found.leave_early == pytest.approx(2.00 * 90 / 30.4375)


def test_small_objects_are_billed_as_128_kib() -> None:
    """1,048,576 files of 8 KiB are 8 GiB, billed as 128 GiB: 0.512 a month, 15/16 of it for nothing."""
    found = tier_cost("cold", [8 * KIB] * (1 << 20), "GLACIER_IR", PRICES)
    assert (found.bytes, found.billed_bytes) == (8 * GIB, 128 * GIB)
    assert found.month == pytest.approx(0.512)
    assert found.padding_month == pytest.approx(0.48)


def test_a_hand_off() -> None:
    """100 GiB in 800 files: 2.30 a month where it is, 0.40 after; 800 writes at 0.02 and reads at 0.0004 a thousand."""
    found = hand_off_cost([128 * MIB] * 800, None, "GLACIER_IR", PRICES)
    assert found.month == pytest.approx(0.40)
    assert found.saved_month == pytest.approx(1.90)
    assert found.requests == pytest.approx(0.8 * 0.0204)
    small = hand_off_cost([1 * KIB] * 1000, None, "GLACIER_IR", PRICES)
    assert small.saved_month < 0, "very small files cost more in the colder class"


def test_nothing_costs_nothing() -> None:
    assert tier_cost("live", [], None, PRICES).month == 0
    assert hand_off_cost([], None, "DEEP_ARCHIVE", PRICES).requests == 0


def test_prices_are_settings() -> None:
    config = Config.from_dict(
        {"prices": {"GLACIER_IR": {"storage_gb_month": 0.005}, "OURS": {"storage_gb_month": 1}}}
    )
    assert config.prices["GLACIER_IR"].storage_gb_month == 0.005
    assert config.prices["GLACIER_IR"].minimum_bytes == 128 * KIB
    assert tier_cost("cold", [GIB], "OURS", config.prices).month == 1
    with pytest.raises(ConfigError, match=r"prices\.OTHER.*no prices for it; known: DEEP_ARCHIVE"):
        tier_cost("cold", [GIB], "OTHER", config.prices)
    for wrong, told in (
        ({"storage": 1}, "no such price"),
        ({"put_per_1000": -1}, "at least 0"),
        ({"get_per_1000": "x"}, "a number"),
    ):
        with pytest.raises(ConfigError, match=told):
            Config.from_dict({"prices": {"GLACIER_IR": wrong}})
