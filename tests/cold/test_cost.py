"""What tiers cost, against figures worked out by hand."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from lakewarden.config.schema import Config
from lakewarden.errors import ConfigError
from lakewarden.jobs.cold.cost import (
    ColdCopy,
    TableCost,
    age_cost,
    early_fees,
    hand_off_cost,
    tier_cost,
    tiers_of,
)
from lakewarden.model.prices import GIB, PRICES
from lakewarden.report.cost import CostReport, dollars

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


def test_an_archive_bills_40_kib_more_for_each() -> None:
    """1,048,576 objects of 88 KiB are 88 GiB, and 40 GiB more: 128 x 0.00099 a month.

    To read it all: 88 x 0.02, and of 1,048.576 thousand objects 0.10 for asking and 0.0004 for reading each thousand.
    """
    found = tier_cost("deep", [88 * KIB] * (1 << 20), "DEEP_ARCHIVE", PRICES)
    assert (found.bytes, found.billed_bytes) == (88 * GIB, 128 * GIB)
    assert found.month == pytest.approx(0.12672)
    assert found.padding_month == pytest.approx(40 * 0.00099)
    assert found.read_once == pytest.approx(1.76 + 1048.576 * 0.1004)
    assert found.leave_early == pytest.approx(0.12672 * 180 / 30.4375)


def test_ageing_a_copy() -> None:
    """100 GiB in 800 files, 30 days in GLACIER_IR, to DEEP_ARCHIVE.

    800 writes at 0.05 and reads at 0.01 a thousand are 0.048; 100 GiB out of GLACIER_IR at 0.03 are 3.00, and once more where
    they have to be read first; 60 of 90 days are left of 0.40 a month; then 0.40 less 0.00099 x (100 GiB + 800 x 40 KiB).
    """
    copies = [ColdCopy(128 * MIB, "GLACIER_IR", 30.0)] * 800
    found = age_cost(copies, "DEEP_ARCHIVE", 0, PRICES)
    assert found.requests == pytest.approx(0.8 * 0.06)
    assert found.retrieval == pytest.approx(3.00)
    assert found.early_fees == pytest.approx(0.40 * 60 / 30.4375)
    assert found.saved_month == pytest.approx(0.40 - 0.00099 * (100 + 800 * 40 / (1 << 20)))
    assert age_cost(copies, "DEEP_ARCHIVE", 100 * GIB, PRICES).retrieval == pytest.approx(6.00)
    assert age_cost(copies, "DEEP_ARCHIVE", 25 * GIB, PRICES).retrieval == pytest.approx(3.75)


def test_leaving_early() -> None:
    """1 GiB in each class for 100 days: GLACIER_IR's 90 are over, of DEEP_ARCHIVE's 180 there are 80 left; STANDARD asks for none."""
    for storage_class, fee in (
        ("GLACIER_IR", 0.0),
        ("DEEP_ARCHIVE", 0.00099 * (1 + 40 / (1 << 20)) * 80 / 30.4375),
        (None, 0.0),
    ):
        assert early_fees([ColdCopy(GIB, storage_class, 100.0)], PRICES) == pytest.approx(fee)
    assert early_fees([], PRICES) == 0


def test_tiers_by_class() -> None:
    copies = [
        ColdCopy(GIB, "GLACIER_IR", 0.0),
        ColdCopy(2 * GIB, "DEEP_ARCHIVE", 180.0),
        ColdCopy(MIB, None, 0.0),
        ColdCopy(MIB, "STANDARD", 0.0),
    ]
    found = tiers_of(copies, PRICES)
    assert [(each.tier, each.storage_class, each.files) for each in found] == [
        ("cold", "GLACIER_IR", 1),
        ("cold", "STANDARD", 2),
        ("deep", "DEEP_ARCHIVE", 1),
    ]
    assert found[2].leave_early == 0, "its 180 days are over"
    assert found[0].leave_early == pytest.approx(0.004 * 90 / 30.4375)


def test_what_compaction_before_the_hand_off_saves() -> None:
    """100,000 files of 28 KiB are billed as 128: 100 KiB each for nothing, 0.004 x 10,000,000 KiB a month."""
    found = hand_off_cost([28 * KIB] * 100_000, None, "GLACIER_IR", PRICES)
    assert found.padding_month == pytest.approx(0.004 * 10_000_000 / (1 << 20))
    assert found.read_once == pytest.approx(0.03 * 2_800_000 / (1 << 20) + 100 * 0.01)
    assert found.leave_early == pytest.approx(found.month * 90 / 30.4375)


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


def test_dollars_have_cents_and_never_an_exponent() -> None:
    told = [dollars(each) for each in (0, 1.6e-06, -1.6e-06, 0.0099, 0.01, 0.5, 1234.5, -2)]
    assert told == [
        "$0",
        "under $0.01",
        "under $0.01",
        "under $0.01",
        "$0.01",
        "$0.50",
        "$1,234.50",
        "-$2.00",
    ]


@pytest.mark.parametrize("in_folders", [True, False])
def test_the_report_has_headings_and_says_whose_prices_they_are(in_folders: bool) -> None:
    tiers = (
        tier_cost("live", [70 * KIB], None, PRICES),
        tier_cost("cold", [8 * KIB] * (1 << 20), "GLACIER_IR", PRICES),
    )
    found = TableCost("lake.db.t", tiers, hand_off_cost([], None, None, PRICES), 0, in_folders)
    output = StringIO()
    Console(file=output, width=140, highlight=False).print(CostReport(found).render(140))
    _, headings, live, cold, *_ = output.getvalue().splitlines()
    assert headings.split()[:4] == ["tier", "class", "files", "size"] and "a month" in headings
    assert live.split() == [
        "live",
        "STANDARD",
        "1",
        "71.7",
        "KB",
        "under",
        "$0.01",
        "–",
        "under",
        "$0.01",
        "–",
    ]
    assert "$0.51" in cold and "e-0" not in output.getvalue()
    assert ("the prices are those of S3" in output.getvalue()) is in_folders
