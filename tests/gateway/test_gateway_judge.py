"""What the gateway makes of a request's path and body, and what it holds against a commit. Pure, and fuzzed."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden import clock
from lakewarden.gateway import commit_request as commits
from lakewarden.gateway.commit_guard import Facts
from lakewarden.gateway.commit_request import REF_AGE, RefChange, TableChange
from lakewarden.gateway.judge import (
    CommitRules,
    CurrentRef,
    CurrentTable,
    Objection,
    Rule,
    judge,
    looks_at_table,
)
from lakewarden.gateway.request_kind import GatewayRoute, RouteKind, UnclearRequest, route, table_path
from lakewarden.gateway.upstream import table_in
from lakewarden.lineage.validate import Requirements
from lakewarden.model.table import Snapshot, TableRef
from lakewarden.state.cold import ColdFile, ColdFiles
from lakewarden.state.database import State
from lakewarden.state.holds import MIRROR, Pin
from lakewarden.state.run_queries import ExpiringSnapshots

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
TABLE = GatewayRoute(RouteKind.COMMIT, b"/v1/", ("db",), "t")
TRANSACTION = GatewayRoute(RouteKind.TRANSACTION, b"/v1/")
FREE = CommitRules(Requirements())
ASKING = CommitRules(Requirements(("writer.id",)))


def body(*updates: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"requirements": [], "updates": list(updates), **more}).encode()


def add(snapshot_id: int, **summary: str) -> dict[str, Any]:
    return {
        "action": "add-snapshot",
        "snapshot": {"snapshot-id": snapshot_id, "summary": {"operation": "append", **summary}},
    }


def name(ref: str, snapshot_id: int, kind: str = "branch") -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": ref, "type": kind, "snapshot-id": snapshot_id}


def drop(ref: str) -> dict[str, Any]:
    return {"action": "remove-snapshot-ref", "ref-name": ref}


def remove(*ids: int) -> dict[str, Any]:
    return {"action": "remove-snapshots", "snapshot-ids": list(ids)}


def read(*updates: dict[str, Any], **more: Any) -> TableChange:
    (change,) = commits.read(body(*updates, **more), TABLE)
    return change


def pin(snapshot_id: int, tag: str | None = None) -> Pin:
    return Pin("p1", "lake.db.t", "u", snapshot_id, "bi", "", MOMENT, tag=tag)


def rules_of(objections: tuple[Objection, ...]) -> list[Rule]:
    return [each.rule for each in objections]


# ------------------------------------------------------------ paths


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", b"/v1/namespaces/db/tables/t", RouteKind.COMMIT),
        ("POST", b"/v1/main/namespaces/a%1Fb/tables/t", RouteKind.COMMIT),
        ("POST", b"/v1/catalogs/x/namespaces/db/tables/t", RouteKind.COMMIT),
        ("POST", b"/v1/arn%3Aaws%3Abucket%2Fmine/namespaces/db/tables/t", RouteKind.COMMIT),
        ("POST", b"/v1/main%7Cs3%3A%2F%2Fb%2Fw/transactions/commit", RouteKind.TRANSACTION),
        ("POST", b"/v1/namespaces/a%2Fb/properties", RouteKind.OTHER),
        ("PUT", b"/v1/namespaces/db/tables/t", RouteKind.COMMIT),
        ("POST", b"/v1/namespaces/db/t%61bles/t", RouteKind.COMMIT),
        ("POST", b"/v1/transactions/commit", RouteKind.TRANSACTION),
        ("POST", b"/v1/main/transactions/commit", RouteKind.TRANSACTION),
        ("GET", b"/v1/namespaces/db/tables/t", RouteKind.OTHER),
        ("GET", b"/v1/config", RouteKind.CONFIG),
        ("GET", b"/v1/config/", RouteKind.CONFIG),
        ("GET", b"/v1/conf%69g", RouteKind.CONFIG),
        ("GET", b"/v1//config;x=1", RouteKind.CONFIG),
        ("GET", b"/v1/x/..%2Fconfig", RouteKind.CONFIG),
        ("GET", b"/v1/config/x", RouteKind.OTHER),
        ("HEAD", b"/v1/config", RouteKind.OTHER),
        ("DELETE", b"/v1/namespaces/db/tables/t", RouteKind.TABLES),
        ("POST", b"/v1/tables/rename", RouteKind.TABLES),
        ("POST", b"/v1/namespaces/db/tables", RouteKind.TABLES),
        ("POST", b"/v1/namespaces/db/register", RouteKind.TABLES),
        ("POST", b"/v1/namespaces/db/views/v", RouteKind.OTHER),
        ("POST", b"/v1/namespaces/db/tables/t/metrics", RouteKind.OTHER),
        ("POST", b"/v1/oauth/tokens", RouteKind.OTHER),
        ("POST", b"/", RouteKind.OTHER),
    ],
)
def test_a_request_is_known_by_its_path(method: str, path: bytes, kind: RouteKind) -> None:
    assert route(method, path).kind is kind


@pytest.mark.parametrize(
    "path",
    [
        b"/v1//namespaces/db/tables/t",
        b"/v1/namespaces/db/tables/t/",
        b"/v1/namespaces/db/tables/t;x=1",
        b"/v1/namespaces/db/views/../tables/t",
        b"/v1/namespaces/db/views/%2e%2E/tables/t",
        b"/v1/namespaces/db%2Ftables%2Ft",
        b"/v1/namespaces%2fdb/tables/t",
        b"/v1/namespaces/a%2Fb/tables/t",
        b"/v1/x/namespaces/db%2Ftables/t",
        b"/v1/x%2F../namespaces/db/tables/t",
        b"/v1/namespaces/db/tables/t%00",
        b"/v1/namespaces/db/tables\\t",
        b"/v1/namespaces/db/tables%5Ct",
        b"/v1/Namespaces/db/tables/t",
        b"/v1/namespaces/db/TABLES/t",
        b"/v1/transactions/Commit",
        b"/v1/namespaces/db/tables/%zz",
        b"/v1/namespaces/db/tables/%ff",
        b"/v1/namespaces/db/tables/\xc3\xa9",
        b"v1/namespaces/db/tables/t",
    ],
)
def test_a_path_that_can_be_read_in_two_ways_is_refused(path: bytes) -> None:
    with pytest.raises(UnclearRequest):
        route("POST", path)


def test_the_table_of_a_path_is_found_again_under_it() -> None:
    found = route("POST", b"/v1/main/namespaces/a%1Fb%20c/tables/t%C3%A9")
    assert (found.namespace, found.table) == (("a", "b c"), "té")
    assert table_path(found.before, found.namespace, found.table) == (
        b"/v1/main/namespaces/a%1Fb%20c/tables/t%C3%A9"
    )


def test_a_plus_in_a_name_is_a_space_as_icebergs_clients_write_it() -> None:
    found = route("POST", b"/v1/a+b/namespaces/my+db%1Fx/tables/my+t%2Bable")
    assert (found.namespace, found.table) == (("my db", "x"), "my t+able")
    assert found.before == b"/v1/a+b/"
    named = {"identifier": {"namespace": ["my db", "x"], "name": "my t+able"}}
    assert commits.read(body(**named), found)[0].table == "my t+able"


def test_a_body_that_names_other_levels_than_the_path_is_refused() -> None:
    """`a`.`b` and `a.b` are two namespaces, with two policies: the catalog goes by the path."""
    for path, levels in ((b"a.b", ["a", "b"]), (b"a%1Fb", ["a.b"])):
        found = route("POST", b"/v1/namespaces/" + path + b"/tables/t")
        with pytest.raises(UnclearRequest, match="the body is about"):
            commits.read(body(identifier={"namespace": levels, "name": "t"}), found)
    found = route("POST", b"/v1/namespaces/a%1Fb/tables/t")
    told = body(identifier={"namespace": ["prod", "a", "b"], "name": "t"})
    assert commits.read(told, found)[0].namespace == ("a", "b"), "some clients write their catalog first"


@given(st.sampled_from(["POST", "PUT", "DELETE", "GET"]), st.binary(max_size=80))
def test_any_path_is_read_or_refused(method: str, path: bytes) -> None:
    try:
        route(method, path)
    except UnclearRequest as error:
        assert str(error)


# ------------------------------------------------------------ bodies


def test_a_commit_is_read() -> None:
    change = read(
        add(7, **{"writer.id": "etl"}),
        name("main", 7),
        remove(1, 2),
        drop("old"),
        {"action": "SET-PROPERTIES", "updates": {"lakewarden.protected_tags": "a"}},
    )
    assert change.added == {7} and change.removed == {1, 2}
    assert change.summaries == ({"operation": "append", "writer.id": "etl"},)
    assert change.refs == (RefChange("main", "branch", 7), RefChange("old"))
    assert change.properties == {"lakewarden.protected_tags": "a"}


def test_properties_are_read_as_they_are_in_the_end() -> None:
    found = read(
        {"action": "set-properties", "updates": {"a": "1", "b": "1"}},
        {"action": "remove-properties", "removals": ["a", "c", "d"]},
        {"action": "set-properties", "updated": {"c": "2"}},
    )
    assert found.properties == {"b": "1", "c": "2"} and found.unset == {"a", "d"}
    assert found.afterwards({"a": "0", "d": "0", "e": "0"}) == {"b": "1", "c": "2", "e": "0"}
    with pytest.raises(UnclearRequest, match="another as updated"):
        read({"action": "set-properties", "updates": {"a": "1"}, "updated": {"a": "2"}})


def test_a_transaction_names_its_tables() -> None:
    changes = [
        {"identifier": {"namespace": ["db"], "name": each}, "requirements": [], "updates": [add(1)]}
        for each in ("a", "b")
    ]
    found = commits.read(json.dumps({"table-changes": changes}).encode(), TRANSACTION)
    assert [(each.namespace, each.table) for each in found] == [(("db",), "a"), (("db",), "b")]
    with pytest.raises(UnclearRequest, match="twice"):
        commits.read(json.dumps({"table-changes": [changes[0], changes[0]]}).encode(), TRANSACTION)
    for wrong in ("", "a/b", "..", "\x00", "\ud800", "n" * 1000):
        told = {"identifier": {"namespace": ["db"], "name": wrong}, "updates": []}
        with pytest.raises(UnclearRequest, match="named"):
            commits.read(json.dumps({"table-changes": [told]}).encode(), TRANSACTION)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"null",
        b"[]",
        b'{"updates": {}}',
        b'{"updates": [], "updates": []}',
        b'{"updates": [{"action": "add-snapshot", "snapshot": {"snapshot-id": 1, "summary": {"a": "1", "a": "2"}}}]}',
        b'{"updates": []} {"updates": []}',
        b'{"updates": [{"action": "remove-snapshots", "snapshot-ids": [1.0]}]}',
        b'{"updates": [{"action": "remove-snapshots", "snapshot-ids": [true]}]}',
        b'{"updates": [{"action": "remove-snapshots", "snapshot-ids": ["1"]}]}',
        b'{"updates": [{"action": "remove-snapshots"}]}',
        b'{"updates": [{"action": "add-snapshot"}]}',
        b'{"updates": [{"action": "add-snapshot", "snapshot": {"snapshot-id": 1, "summary": {"a": 1}}}]}',
        b'{"updates": [{"action": "forget-everything"}]}',
        b'{"updates": [{}]}',
        b'{"updates": [NaN]}',
        b'{"updates": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        '{"updates": []}'.encode("utf-16"),
        b"\xef\xbb\xbf" + b'{"updates": []}',
        b'{"identifier": {"namespace": ["other"], "name": "t"}, "updates": []}',
        b'{"identifier": {"namespace": ["db"], "name": "other"}, "updates": []}',
        b'{"updates": [], "x": [' + b"{}," * 250_000 + b"0]}",
    ],
)
def test_a_body_that_is_not_understood_is_refused(sent: bytes) -> None:
    with pytest.raises(UnclearRequest):
        commits.read(sent, TABLE)


def test_encodings_are_undone_and_what_is_more_is_refused() -> None:
    packed = gzip.compress(body(remove(1)))
    assert commits.read(packed, TABLE, "gzip")[0].removed == {1}
    for sent, encoding, charset in (
        (packed + packed, "gzip", ""),
        (packed[:-4], "gzip", ""),
        (packed, "", ""),
        (body(), "gzip", ""),
        (body(), "br", ""),
        (body(), "", "utf-16"),
        (gzip.compress(b" " * (commits.MAX_BYTES + 1)), "gzip", ""),
    ):
        with pytest.raises(UnclearRequest):
            commits.read(sent, TABLE, encoding, charset)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        "action",
        "snapshot",
        "snapshot-id",
        "snapshot-ids",
        "summary",
        "ref-name",
        "type",
        "updates",
        "namespace",
        "name",
    ]
)
UPDATE = st.dictionaries(
    KEYS, JSON | st.sampled_from(sorted(commits.KNOWN)) | st.dictionaries(KEYS, JSON, max_size=3), max_size=6
)


@given(
    st.one_of(st.binary(), JSON.map(lambda each: json.dumps(each).encode())), st.sampled_from(["", "gzip"])
)
def test_any_body_is_read_or_refused(sent: bytes, encoding: str) -> None:
    for where in (TABLE, TRANSACTION):
        try:
            commits.read(sent, where, encoding)
        except UnclearRequest as error:
            assert str(error)


@given(st.lists(UPDATE, max_size=4), JSON)
def test_any_updates_are_read_or_refused(updates: list[Any], requirements: Any) -> None:
    sent = {
        "identifier": {"namespace": ["db"], "name": "t"},
        "requirements": requirements,
        "updates": updates,
    }
    for where, document in ((TABLE, sent), (TRANSACTION, {"table-changes": [sent]})):
        try:
            commits.read(json.dumps(document).encode(), where)
        except UnclearRequest as error:
            assert str(error)


# ------------------------------------------------------------ judging


def test_every_violation_of_every_snapshot_is_told_at_once() -> None:
    change = read(add(1), add(2, **{"trigger.type": "manual"}))
    found = judge(change, CommitRules(Requirements(("writer.id", "writer.host"))), CurrentTable())
    assert rules_of(found) == [Rule.LINEAGE] * 3
    told = " ".join(each.reason for each in found)
    assert "writer.id is missing" in told and "writer.host is missing" in told and "trigger.operator" in told
    assert judge(read(add(1, **{"writer.id": "etl"})), ASKING, CurrentTable()) == ()


def test_what_a_pin_a_tag_or_a_branch_names_is_not_removed() -> None:
    now = CurrentTable(
        {"main": CurrentRef("branch", 9), "q1": CurrentRef("tag", 2), "dev": CurrentRef("branch", 3)},
        (pin(1),),
    )
    found = judge(read(remove(1, 2, 3, 4)), FREE, now)
    assert rules_of(found) == [Rule.PIN, Rule.REF, Rule.REF]
    assert "pinned by bi" in found[0].reason and "dev" in found[1].reason and "q1" in found[2].reason
    assert judge(read(remove(4)), FREE, now) == ()


def test_a_ref_the_commit_drops_or_moves_itself_protects_nothing() -> None:
    now = CurrentTable(
        {"main": CurrentRef("branch", 9), "q1": CurrentRef("tag", 2), "dev": CurrentRef("branch", 3)}
    )
    assert judge(read(drop("q1"), name("dev", 9), remove(2, 3)), FREE, now) == ()
    guarded = CommitRules(Requirements(), protected_tags=("q*",))
    assert rules_of(judge(read(drop("q1"), remove(2)), guarded, now)) == [Rule.TAG]
    assert rules_of(judge(read(name("new", 4, "tag"), remove(4)), FREE, now)) == [Rule.REF]


def test_where_expiry_is_reserved_only_what_lakewarden_is_expiring_goes() -> None:
    reserved = CommitRules(Requirements(), expiry_reserved=True)
    assert rules_of(
        judge(read(remove(1, 2)), reserved, CurrentTable(expiring=ExpiringSnapshots(frozenset({1}))))
    ) == [Rule.RESERVED]
    assert (
        judge(read(remove(1, 2)), reserved, CurrentTable(expiring=ExpiringSnapshots(frozenset({1, 2, 3}))))
        == ()
    )
    assert judge(read(remove(1, 2)), FREE, CurrentTable()) == ()


@pytest.mark.parametrize("tag", ["audit-2026", f"{MIRROR}p1"])
def test_a_protected_tag_is_neither_dropped_nor_moved_and_may_be_kept_longer(tag: str) -> None:
    rules = CommitRules(Requirements(), protected_tags=("audit-*",))
    now = CurrentTable({"main": CurrentRef("branch", 9), tag: CurrentRef("tag", 2)}, (pin(2, f"{MIRROR}p1"),))
    for changes in (
        [drop(tag)],
        [name(tag, 3, "tag")],
        [name(tag, 2, "branch")],
        [add(5), name(tag, 5, "tag")],
    ):
        assert looks_at_table(read(*changes), rules)
        assert rules_of(judge(read(*changes), rules, now)) == [Rule.TAG]
    assert judge(read(name(tag, 2, "tag")), rules, now) == ()
    assert judge(read(drop(tag)), rules, CurrentTable({"main": CurrentRef("branch", 9)})) == ()


@pytest.mark.parametrize("tag", ["audit-2026", f"{MIRROR}p1"])
def test_the_life_of_a_protected_tag_is_not_shortened(tag: str) -> None:
    rules = CommitRules(Requirements(), protected_tags=("audit-*",))

    def told(was: int | None, becomes: int | None, default: str | None = None) -> list[Rule]:
        properties = {} if default is None else {REF_AGE: default}
        now = CurrentTable(
            {tag: CurrentRef("tag", 2, was)}, (pin(2, f"{MIRROR}p1"),), uuid="u", properties=properties
        )
        return rules_of(judge(read({**name(tag, 2, "tag"), "max-ref-age-ms": becomes}), rules, now))

    for was, becomes, default in (
        (None, 1, None),
        (9, 8, None),
        (None, 4, "5"),
        (9, None, "5"),
        (9, 1, "no"),
    ):
        assert told(was, becomes, default) == [Rule.TAG]
    for was, becomes, default in ((None, None, None), (8, 9, None), (9, None, None), (None, 6, "5")):
        assert told(was, becomes, default) == []


def test_tags_are_not_let_go_earlier_by_a_property_where_some_are_protected() -> None:
    rules = CommitRules(Requirements(), protected_tags=("audit-*",))

    def told(rules: CommitRules, value: str, now: dict[str, str]) -> list[Rule]:
        change = read({"action": "set-properties", "updates": {REF_AGE: value}})
        assert change.judged and looks_at_table(change, rules)
        return rules_of(judge(change, rules, CurrentTable(uuid="u", properties=now)))

    assert told(rules, "1", {}) == told(rules, "1", {REF_AGE: "2"}) == told(rules, "x", {}) == [Rule.PROPERTY]
    assert told(rules, "3", {REF_AGE: "2"}) == told(FREE, "1", {}) == []


def test_a_table_keeps_its_uuid() -> None:
    other = read({"action": "assign-uuid", "uuid": "11111111-2222-3333-4444-555555555555"})
    assert looks_at_table(other, FREE)
    assert rules_of(judge(other, FREE, CurrentTable(uuid="u"))) == [Rule.UUID]
    assert judge(read({"action": "assign-uuid", "uuid": "U"}), FREE, CurrentTable(uuid="u")) == ()
    made = read({"action": "assign-uuid", "uuid": "new"}, requirements=[{"type": "assert-create"}])
    assert judge(made, FREE, CurrentTable()) == () and not looks_at_table(made, FREE)


def test_what_was_settled_elsewhere_is_not_changed_by_a_tables_own_property() -> None:
    rules = CommitRules(Requirements(), settled=frozenset({"protected_tags"}))
    key = "lakewarden.protected_tags"
    unset = {"action": "remove-properties", "removals": [key]}
    for update, was in (
        ({"action": "set-properties", "updates": {key: "x"}}, {}),
        ({"action": "set-properties", "updates": {key: "x"}}, {key: "y"}),
        (unset, {key: "y"}),
    ):
        assert looks_at_table(read(update), rules)
        assert rules_of(judge(read(update), rules, CurrentTable(uuid="u", properties=was))) == [Rule.PROPERTY]
        assert judge(read(update), FREE, CurrentTable(uuid="u", properties=was)) == ()
        assert judge(read(update), rules, CurrentTable()) == (), "a table that is not there yet"
    again = read({"action": "set-properties", "updates": {key: "y"}})
    assert judge(again, rules, CurrentTable(uuid="u", properties={key: "y"})) == ()


@pytest.mark.parametrize(
    "shown",
    [
        b"",
        b"[]",
        b'{"metadata": []}',
        b'{"metadata": {"table-uuid": null}}',
        b'{"metadata": {"table-uuid": "u", "refs": []}}',
        b'{"metadata": {"table-uuid": "u", "refs": {"a": {"type": "tag", "snapshot-id": null}}}}',
        b'{"metadata": {"table-uuid": "u", "properties": {"a": 1}}}',
        b'{"metadata": {"table-uuid": "u", "current-snapshot-id": "x"}}',
        b"[" * 200_000,
    ],
)
def test_a_table_that_does_not_look_like_one_is_not_judged_by_guesses(shown: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        table_in(shown)


def test_a_table_is_read() -> None:
    refs = {"q1": {"type": "tag", "snapshot-id": 3, "max-ref-age-ms": 7}}
    shown = {"metadata": {"table-uuid": "u", "current-snapshot-id": 5, "refs": refs}}
    assert table_in(json.dumps(shown).encode()).refs == {
        "q1": CurrentRef("tag", 3, 7),
        "main": CurrentRef("branch", 5),
    }


def test_a_table_is_read_with_its_history() -> None:
    snapshots = [
        {"snapshot-id": 5, "parent-snapshot-id": 3, "timestamp-ms": 0, "summary": {"flink.job-id": "j"}}
    ]
    shown = {"metadata": {"table-uuid": "u", "current-snapshot-id": 5, "snapshots": snapshots}}
    (found,) = table_in(json.dumps(shown).encode(), history=True).snapshots
    assert (found.id, found.parent_id, found.summary) == (5, 3, {"flink.job-id": "j"})
    assert table_in(json.dumps(shown).encode()).snapshots == ()
    snapshots[0]["summary"] = {"a": 1}
    with pytest.raises(ValueError, match="not text"):
        table_in(json.dumps(shown).encode(), history=True)


def test_the_chain_by_which_a_streaming_writer_finds_itself_is_not_cut() -> None:
    told = {"flink.job-id": "j1", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "7"}
    at = datetime(2026, 1, 2, tzinfo=UTC)
    chain = tuple(
        Snapshot(id_, id_ - 1 or None, id_, at - timedelta(hours=5 - id_), "append", told if id_ == 2 else {})
        for id_ in range(1, 5)
    )
    now = CurrentTable({"main": CurrentRef("branch", 4)}, snapshots=chain, at=at)
    found = judge(read(remove(1, 3)), FREE, now)
    assert rules_of(found) == [Rule.STREAM]
    assert (
        "Flink job o j1" in found[0].reason and "checkpoint 7" in found[0].reason and "3" in found[0].reason
    )
    assert rules_of(judge(read(remove(2)), FREE, now)) == [Rule.STREAM]
    assert judge(read(remove(1)), FREE, now) == ()
    assert judge(read(remove(3)), FREE, replace(now, expiring=ExpiringSnapshots(frozenset({3})))) == (), (
        "ours looked itself"
    )
    short = CommitRules(Requirements(), restarts=timedelta(hours=1))
    assert judge(read(remove(3)), short, now) == ()


def test_a_protected_tag_whose_age_is_over_goes_with_lakewardens_own_expiry() -> None:
    rules = CommitRules(Requirements(), protected_tags=("audit-*",))
    now = CurrentTable(
        {"audit-1": CurrentRef("tag", 2)}, expiring=ExpiringSnapshots(frozenset({2}), frozenset({"audit-1"}))
    )
    assert judge(read(drop("audit-1"), remove(2)), rules, now) == ()
    assert rules_of(judge(read(name("audit-1", 3, "tag")), rules, now)) == [Rule.TAG]


def test_an_append_needs_no_look_at_the_table_and_no_turn() -> None:
    everything = CommitRules(Requirements(), protected_tags=("*",))
    append = read(add(7), name("main", 7))
    assert not append.takes_turn and not looks_at_table(append, everything)
    for changes in ([remove(1)], [name("main", 1)], [add(7), name("main", 7), name("q1", 6, "tag")]):
        assert read(*changes).takes_turn and looks_at_table(read(*changes), FREE)
    assert not read({"action": "add-schema"}, drop("q1")).takes_turn


IDS = st.integers(1, 6)
NAMES = st.sampled_from(["main", "q1", "audit-1", f"{MIRROR}p1"])
CHANGES = st.builds(
    TableChange,
    namespace=st.just(("db",)),
    table=st.just("t"),
    added=st.frozensets(IDS),
    summaries=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), max_size=2).map(tuple),
    removed=st.frozensets(IDS),
    refs=st.lists(
        st.builds(RefChange, NAMES) | st.builds(RefChange, NAMES, st.sampled_from(["tag", "branch"]), IDS),
        max_size=3,
    ).map(tuple),
)
NOWS = st.builds(
    CurrentTable,
    refs=st.dictionaries(NAMES, st.builds(CurrentRef, st.sampled_from(["tag", "branch"]), IDS)),
    pins=st.lists(IDS.map(lambda each: pin(each, f"{MIRROR}p1")), max_size=2).map(tuple),
    expiring=st.builds(ExpiringSnapshots, st.frozensets(IDS), st.frozensets(NAMES)),
)


@given(CHANGES, NOWS, st.booleans())
def test_nothing_that_is_held_goes(change: TableChange, now: CurrentTable, reserved: bool) -> None:
    found = judge(change, CommitRules(Requirements(), reserved, ("audit-*",)), now)
    if found:
        assert all(each.reason for each in found)
        return
    assert not change.removed & {each.snapshot_id for each in now.pins}
    dropped = {each.name for each in change.refs}
    assert not change.removed & {ref.snapshot_id for name, ref in now.refs.items() if name not in dropped}
    assert not reserved or change.removed <= now.expiring.snapshots


# ------------------------------------------------------------ cold tables


COLD = {"cold-tier.source": "lake.db.t", "cold-tier.source-uuid": "u"}


@pytest.mark.parametrize(
    "update",
    [
        add(1),
        remove(1),
        name("t1", 1, "tag"),
        {"action": "add-schema", "schema": {}},
        {"action": "set-location", "location": "s3://elsewhere"},
        {"action": "set-properties", "updates": {"cold-tier.source": "x"}},
        {"action": "remove-properties", "removals": ["cold-tier.source", "cold-tier.source-uuid"]},
        {"action": "set-statistics", "statistics": {}},
    ],
    ids=lambda each: each["action"],
)
def test_no_commit_to_a_cold_table(update: dict[str, Any]) -> None:
    change = read(update)
    for rules, now in (
        (FREE, CurrentTable(uuid="c", properties=COLD)),
        (CommitRules(Requirements(), cold_of="a.b"), CurrentTable()),
    ):
        found = judge(change, rules, now)
        assert Rule.COLD in rules_of(found) and "read only" in found[0].reason
    assert Rule.COLD not in rules_of(judge(change, FREE, CurrentTable(uuid="c")))
    half = CurrentTable(uuid="c", properties={"cold-tier.source-uuid": "u"})
    assert Rule.COLD in rules_of(judge(change, FREE, half)), "one of the two properties is enough"


def test_only_what_hand_off_recorded_makes_a_table_a_cold_one(tmp_path: Path) -> None:
    """Else a writer's property would end all commits, the one that takes it away included."""
    told = {"table-uuid": "c", "location": "s3://cold/db/t", "properties": {**COLD, "owner": "me"}}
    seen = table_in(json.dumps({"metadata": told}).encode())
    taken_away = read({"action": "remove-properties", "removals": list(COLD)})

    async def objections() -> set[Rule]:
        believed = await facts.believed(seen)
        assert believed.properties["owner"] == "me"
        return set(rules_of(judge(taken_away, FREE, await facts.now(TableRef.parse("a.b.c"), believed))))

    with closing(State.open(f"sqlite:///{tmp_path}/state.db")) as state, closing(Facts(state)) as facts:
        assert Rule.COLD not in asyncio.run(objections())
        ColdFiles(state).add(
            "u", [ColdFile("s3://lake/a", "s3://cold/db/t/data/a", 1, "x")], "run", clock.now()
        )
        assert Rule.COLD in asyncio.run(objections())
