"""The audit's questions on plain entries: the blast radius against a brute-force oracle, inputs in every spelling, gaps."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakewarden.jobs.loads.ingested import IngestedLookup
from lakewarden.lineage.audit import Downstream, Node, downstream, gaps, inputs_of, recorded_origins
from lakewarden.lineage.history import Entry, EntrySource
from lakewarden.lineage.validate import Requirements
from lakewarden.model.table import Snapshot
from lakewarden.report.audit import dot, mermaid

START = datetime(2024, 1, 1, tzinfo=UTC)
BIG = 1 << 40


def entry(table: str, id_: int, inputs: str = "", **summary: str) -> Entry:
    told = {key.replace("_", ".", 1): value for key, value in summary.items()}
    if inputs:
        told["input.snapshot_ids"] = inputs
    at = START + timedelta(minutes=id_ % 100_000)
    return Entry(table, Snapshot(id_, None, 0, at, "append", told), EntrySource.LIVE)


def steps(found: Downstream) -> dict[str, int]:
    return {str(each.node): each.depth for each in found.affected}


def tangle(tables: int, snapshots: int, seed: int) -> list[Entry]:
    """Tables that feed each other: chains, diamonds, inputs of later commits (cycles), plain and qualified names."""
    dice = random.Random(seed)
    names = [f"lake{number % 2}.db.t{number}" for number in range(tables)]
    nodes = [(names[number % tables], BIG + number) for number in range(snapshots)]
    made = []
    for place, (table, id_) in enumerate(nodes):
        chosen = set()
        if place and place % 3:
            near = nodes[max(0, place - 40) : place]
            chosen |= set(dice.sample(near, min(len(near), dice.randint(1, 3))))
        if place % 500 == 7:
            chosen.add(nodes[min(place + dice.randint(0, 300), snapshots - 1)])
        told = [str(i) if name == table else f"{name}@{i}" for name, i in sorted(chosen)]
        made.append(entry(table, id_, ",".join(told)))
    return made


def brute_force(entries: list[Entry], start: Node) -> dict[str, int]:
    """Rounds over every commit until none is added; nothing of the code under test is used."""
    parents: dict[str, list[str]] = {}
    for each in entries:
        told = each.snapshot.summary.get("input.snapshot_ids", "")
        parents[f"{each.table}@{each.snapshot.id}"] = [
            part if "@" in part else f"{each.table}@{part}" for part in told.split(",") if part
        ]
    children = defaultdict(set)
    for child, named in parents.items():
        for parent in named:
            children[parent].add(child)
    depths, edge, depth = {str(start): 0}, {str(start)}, 0
    while edge:
        depth += 1
        edge = {child for parent in edge for child in children[parent]} - set(depths)
        depths.update(dict.fromkeys(edge, depth))
    return {node: depth for node, depth in depths.items() if depth}


def test_the_blast_radius_is_that_of_a_brute_force_search() -> None:
    entries = tangle(5, 10_000, seed=4)
    for each in entries[::1_237]:
        start = Node(each.table, each.snapshot.id)
        found = downstream(entries, start)
        assert steps(found) == brute_force(entries, start)
        assert all(by.via == start or str(by.via) in steps(found) for by in found.affected)
        reached = {str(node) for edge in found.edges for node in edge}
        assert reached == ({str(start), *steps(found)} if found.affected else set())


def carried(entries: list[Entry], start: Node) -> dict[str, int]:
    """The same by brute force, where whatever read a later snapshot of a table is below every earlier one."""
    by_node = {f"{each.table}@{each.snapshot.id}": each for each in entries}
    depths, edge, depth = {str(start): 0}, [by_node[str(start)]], 0
    while edge:
        depth += 1
        found = []
        for each in entries:
            told = each.snapshot.summary.get("input.snapshot_ids", "").split(",")
            inputs = [part if "@" in part else f"{each.table}@{part}" for part in told if part]
            name = f"{each.table}@{each.snapshot.id}"
            read = [by_node[one].snapshot.committed_at for one in inputs]
            tables = [one.split("@")[0] for one in inputs]
            below = any(
                parent.table == table and parent.snapshot.committed_at <= at
                for parent in edge
                for table, at in zip(tables, read, strict=True)
            )
            if below and name not in depths and name not in inputs:
                depths[name] = depth
                found.append(each)
        edge = found
    return {node: depth for node, depth in depths.items() if depth}


def test_rows_are_carried_by_later_snapshots_where_that_is_asked() -> None:
    entries = tangle(5, 300, seed=9)
    for each in entries[::37]:
        start = Node(each.table, each.snapshot.id)
        found = downstream(entries, start, carried=True)
        assert steps(found) == carried(entries, start)
        assert set(steps(downstream(entries, start))) <= set(steps(found))

    one = "lake.db.a"
    compaction = entry(one, BIG + 2, f"{BIG + 1}", lineage_operation="compaction")
    table = [entry(one, BIG), entry(one, BIG + 1), compaction, entry("lake.db.b", BIG, f"{one}@{BIG + 2}")]
    assert steps(downstream(table, Node(one, BIG))) == {}
    assert steps(downstream(table, Node(one, BIG), carried=True)) == {
        f"{one}@{BIG + 2}": 1,
        f"lake.db.b@{BIG}": 1,
    }


def test_a_cycle_ends_and_a_diamond_is_told_once() -> None:
    one = "lake.db.a"
    entries = [
        entry(one, BIG, f"{BIG + 3}"),
        entry(one, BIG + 1, f"{BIG}"),
        entry(one, BIG + 2, f"{BIG}, {BIG}"),
        entry(one, BIG + 3, f"{BIG + 1},{BIG + 2}"),
    ]
    found = downstream(entries, Node(one, BIG))
    assert steps(found) == {f"{one}@{BIG + 1}": 1, f"{one}@{BIG + 2}": 1, f"{one}@{BIG + 3}": 2}
    assert len(found.edges) == 5


def test_plain_ids_are_the_tables_own_unless_it_never_had_them() -> None:
    entries = [
        entry("lake.db.a", BIG),
        entry("lake.db.b", BIG + 1, f"{BIG}"),  # b never had it, and only a has: it is a's
        entry("pm.db.x", 7),
        entry("pm.db.y", 8, "7"),  # counted ids say nothing of other tables
        entry("lake.db.c", BIG, f"{BIG}"),  # named by itself: its own, whatever that means
    ]
    assert steps(downstream(entries[:4], Node("lake.db.a", BIG))) == {f"lake.db.b@{BIG + 1}": 1}
    assert steps(downstream(entries, Node("pm.db.x", 7))) == {}
    assert steps(downstream(entries, Node("pm.db.y", 7))) == {"pm.db.y@8": 1}
    assert steps(downstream(entries, Node("lake.db.c", BIG))) == {}


def test_formats_and_catalogs_are_crossed_by_qualified_names() -> None:
    entries = [
        entry("pm.db.x", 7),
        entry("lake.db.a", BIG, "pm.db.x@7"),
        entry("pm.db.z", 3, f" lake.db.a@{BIG} , nonsense,, pm.db.x@x"),
    ]
    found = downstream(entries, Node("pm.db.x", 7), unread=[("other.*", "down")])
    assert steps(found) == {f"lake.db.a@{BIG}": 1, "pm.db.z@3": 2}
    assert [text for _, text in found.unreadable] == ["nonsense", "pm.db.x@x"]
    assert found.to_dict()["unread"] == [{"table": "other.*", "reason": "down"}]


def test_a_snapshot_nobody_knows_any_more_still_has_its_radius() -> None:
    found = downstream([entry("lake.db.a", BIG + 1, f"{BIG}")], Node("lake.db.a", BIG))
    assert found.entry is None and len(found.affected) == 1


@given(st.text())
def test_any_text_may_stand_where_inputs_do(text: str) -> None:
    found, unreadable = inputs_of(text)
    assert len(found) + len(unreadable) == sum(bool(each.strip()) for each in text.split(","))


def test_graphs_have_every_node_and_edge() -> None:
    entries = [entry('lake.db.a"b', BIG), entry("lake.db.c", BIG + 1, f'lake.db.a"b@{BIG}')]
    found = downstream(entries, Node('lake.db.a"b', BIG))
    assert dot(found).splitlines() == [
        "digraph downstream {",
        "  rankdir=LR;",
        "  node [shape=box];",
        f'  "lake.db.a\\"b@{BIG}" [label="lake.db.a\\"b@{BIG} append"];',
        f'  "lake.db.c@{BIG + 1}" [label="lake.db.c@{BIG + 1} append"];',
        f'  "lake.db.a\\"b@{BIG}" -> "lake.db.c@{BIG + 1}";',
        "}",
    ]
    assert mermaid(found).splitlines() == [
        "flowchart LR",
        f'  n0["lake.db.a#quot;b@{BIG} append"]',
        f'  n1["lake.db.c@{BIG + 1} append"]',
        "  n0 --> n1",
    ]


def test_nothing_a_writer_says_becomes_part_of_a_graph() -> None:
    said = 'x"]\n  click n0 "javascript:alert(1)"\u2028 `#quot;<b>\\\ud800'
    entries = [entry("lake.db.a", BIG), entry("lake.db.a", BIG + 1, f"{BIG}", lineage_operation=said)]
    found = downstream(entries, Node("lake.db.a", BIG))
    drawn = mermaid(found).splitlines()
    assert len(drawn) == 4
    label = "x#quot;]\\n  click n0 #quot;javascript:alert(1)#quot;\\u2028 #96;#35;quot;#lt;b#gt;\\\\ud800"
    assert drawn[2] == f'  n1["lake.db.a@{BIG + 1} {label}"]'
    lines = dot(found).splitlines()
    assert len(lines) == 7
    assert r'x\"]\\n  click n0 \"javascript:alert(1)\"\\u2028 `#quot;<b>\\\\ud800"];' in lines[4]


def test_ids_are_plain_numbers_of_64_bits() -> None:
    good = f"7, lake.db.t@ 5,a@b@5,{(1 << 63) - 1}"
    bad = ["1_000", "\u0663", "0x5", "+7", "-1", "1e3", "@5", "lake.db.t@", str(1 << 63), "1" * 5000]
    found, unreadable = inputs_of(",".join([good, *bad]))
    assert found == [(None, 7), ("lake.db.t", 5), ("a@b", 5), (None, (1 << 63) - 1)]
    assert unreadable == bad


def test_what_a_commit_says_it_was_made_from() -> None:
    own, other = entry("lake.db.a", BIG), entry("lake.db.a", BIG + 1, f"{BIG},pm.db.x@7,{BIG + 9}")
    found = recorded_origins(other, {BIG: own})
    assert [(str(each.node), each.entry) for each in found] == [
        (f"lake.db.a@{BIG}", own),
        ("pm.db.x@7", None),
        (f"lake.db.a@{BIG + 9}", None),
    ]


def test_what_a_rewrite_only_read_is_not_followed() -> None:
    """It read at a compaction of other rows: those that one rewrote are not where these came from."""
    earlier = entry("lake.db.a", BIG + 1, f"{BIG}", lineage_operation="compaction")
    later = entry("lake.db.a", BIG + 2, f"{BIG + 1}", lineage_operation="compaction")
    known = {each.snapshot.id: each for each in (entry("lake.db.a", BIG), earlier, later)}
    asking = IngestedLookup("lake.db.a", lambda ids: {id_: known[id_] for id_ in ids})
    found = asking.snapshot(BIG + 2)
    assert [(each.node.snapshot_id, each.only_read) for each in found.origins] == [(BIG + 1, True)]


def test_gaps_are_what_the_hook_would_turn_away() -> None:
    whole = entry("lake.db.a", 1, writer_id="etl", lineage_operation="append")
    silent = entry("lake.db.a", 2)
    unsigned = entry("lake.db.a", 3, writer_id="etl", lineage_operation="overwrite")
    found = gaps([whole, silent, unsigned], Requirements(keys=("writer.id", "lineage.operation")))
    assert [each.entry for each in found] == [silent, unsigned]
    assert [violation.key for violation in found[0].violations] == ["writer.id", "lineage.operation"]
    assert {violation.key for violation in found[1].violations} == {"trigger.operator", "trigger.ticket"}
    assert found[0].told == "missing: writer.id, lineage.operation"
    assert "trigger.ticket is missing: an overwrite names its ticket" in found[1].told, (
        "not asked of every commit"
    )
