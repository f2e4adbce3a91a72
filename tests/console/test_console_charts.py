"""Pictures: what they show, that nothing in them can break out of them, and that hostile shapes end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from lakewarden.console.charts import (
    Box,
    Line,
    Mark,
    Span,
    Tick,
    graph,
    layered,
    line_chart,
    spark,
    timeline,
    week,
)

NOW = datetime(2026, 11, 17, 3, tzinfo=UTC)
DAY = timedelta(days=1)
EVIL = "</title><script>alert('1')</script>\" onload=\"x"


def tree(svg: str) -> ElementTree.Element:
    """Only well-formed markup comes through."""
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in tree(svg).iter("text")]


def places(svg: str) -> list[tuple[float, float]]:
    line = next(each for each in tree(svg).iter("polyline"))
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def test_a_number_counts_until_the_next_one_and_the_last_until_now() -> None:
    points = ((NOW - DAY, 10.0), (NOW - DAY / 2, 20.0))
    drawn = places(line_chart(Line("files", points, str), NOW - DAY, NOW))
    first, corner, second, end = drawn
    assert first[1] == corner[1] > second[1] == end[1]
    assert corner[0] == second[0] < end[0] == 312


def test_a_point_before_the_time_that_is_shown_still_counts_in_it() -> None:
    drawn = places(line_chart(Line("files", ((NOW - 9 * DAY, 5.0),), str), NOW - DAY, NOW))
    assert drawn[0][0] == 46 and drawn[-1][0] == 312


def test_the_bound_of_a_warning_is_drawn_where_the_scale_reaches_it() -> None:
    low = line_chart(Line("small files", ((NOW, 10.0),), str, bound=1000), NOW - DAY, NOW)
    high = line_chart(Line("small files", ((NOW, 1500.0),), str, bound=1000), NOW - DAY, NOW)
    assert 'class="bound"' not in low and 'class="bound"' in high


def test_no_numbers_are_said_in_words() -> None:
    assert "no numbers yet" in texts(line_chart(Line("files", (), str), NOW - DAY, NOW))
    assert spark([1], "one is no line") == ""


def test_words_of_others_stay_words() -> None:
    svgs = [
        line_chart(Line(EVIL, ((NOW, 1.0),), lambda _: EVIL), NOW - DAY, NOW),
        timeline([Mark(NOW, "held", EVIL, EVIL)], NOW - DAY, NOW, None),
        graph([Box("a", EVIL, EVIL, "/tables/a"), Box("b", "b")], [("a", "b")], EVIL),
        week(NOW - DAY, NOW, [Span(NOW, NOW + DAY, "expiry", EVIL)], [Tick(NOW, "purge", EVIL)]),
    ]
    for svg in svgs:
        assert not list(tree(svg).iter("script"))
        assert all("onload" not in each.attrib for each in tree(svg).iter())


def test_every_picture_has_a_name_and_a_description() -> None:
    svg = tree(timeline([Mark(NOW, "window", "one")], NOW - DAY, NOW, NOW - DAY / 2))
    assert svg.attrib["role"] == "img" and svg.attrib["aria-label"] == "snapshots over time"
    assert "1 snapshots" in (svg.findtext("desc") or "")


def test_a_name_that_would_cover_another_is_left_to_the_list() -> None:
    marks = [Mark(NOW - timedelta(minutes=n), "held", str(n), f"a-rather-long-tag-{n}") for n in range(5)]
    labels = [
        each
        for each in tree(timeline(marks, NOW - DAY, NOW, None)).iter("text")
        if each.attrib["class"] == "label"
    ]
    assert len(labels) == 2  # one on each of the two lines


def test_layers_put_each_after_all_it_comes_from() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")]
    assert layered(["d", "c", "b", "a"], edges) == [["a"], ["b"], ["c"], ["d"]]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_layers_hold_every_name_once_whatever_the_edges(pairs: list[tuple[int, int]]) -> None:
    names = [str(each) for each in range(8)]
    edges = [(str(one), str(other)) for one, other in pairs]
    found = [name for layer in layered(names, edges) for name in layer]
    assert sorted(found) == names  # circles included: this ends
    tree(graph([Box(name, name) for name in names], edges, "any"))


def test_a_window_over_midnight_is_drawn_on_both_days() -> None:
    first = datetime(2026, 11, 16, tzinfo=UTC)
    night = Span(first + timedelta(hours=22), first + timedelta(hours=30), "compaction", "quiet")
    drawn = [
        each for each in tree(week(first, NOW, [night], [])).iter("rect") if "span" in each.attrib["class"]
    ]
    assert [round(float(each.attrib["width"])) for each in drawn] == [72, 214]
