"""Location is not ownership: who shares a place is refused, whose files they are is never guessed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from lakewarden import clock
from lakewarden.config.aliases import Aliases
from lakewarden.deletion.foreign_metadata import refuse_foreign, refuse_other_formats, settled, unclaimed
from lakewarden.deletion.ownership import check_ownership, shared
from lakewarden.errors import Refused
from lakewarden.jobs.cold.table import refuse_frozen
from lakewarden.model.table import Snapshot, TableRef, TableView
from lakewarden.state.cold import ColdFile, ColdFiles, ColdTables
from lakewarden.state.database import State
from lakewarden.state.tables import FirstSeen, SeenTables
from lakewarden.state.trash import TrashedFiles
from lakewarden.state.trash_batches import CLAIMED
from lakewarden.storage.objects import Objects
from lakewarden.tables.metadata_files import ForeignMetadataCache, forks, metadata_folders, read_strays, whose
from lakewarden.tables.places import ELSEWHERE, Places, TableMetadataFile, led_out
from tests.support.tables import NOW, TABLE
from tests.support.tables import view as made

MINE = replace(
    made(),
    uuid="mine",
    location="s3://lake/db/events",
    metadata_location="s3://lake/db/events/metadata/3.metadata.json",
)


def other(
    location: str, uuid: str = "theirs", metadata: str = "", properties: Mapping[str, str] | None = None
) -> TableView:
    return replace(
        MINE,
        ref=TableRef("cold", ("db",), "copy"),
        uuid=uuid,
        location=location,
        metadata_location=metadata or f"{location}/metadata/1.metadata.json",
        properties=properties or {},
    )


@pytest.mark.parametrize(
    "location",
    [
        "s3://lake/db/events",
        "s3a://lake/db/events/",
        "s3n://lake/db//events",
        "s3://lake/db",
        "s3://lake",
        "s3://lake/db/events/data/nested",
    ],
)
def test_the_same_an_enclosing_and_a_nested_location_are_refused(location: str) -> None:
    with pytest.raises(Refused) as refused:
        check_ownership("purge", MINE, [MINE, other(location)])
    assert refused.value.exit_code == 12
    for words in (str(TABLE), "cold.db.copy", MINE.location, location):
        assert words in refused.value.message
    assert "folder of its own" in refused.value.hint


@pytest.mark.parametrize(
    "location", ["s3://lake/db/events2", "s3://lake/db/event", "s3://other/db/events", "/lake/db/events"]
)
def test_neighbours_with_places_of_their_own_are_fine(location: str) -> None:
    check_ownership("purge", MINE, [MINE, other(location)])


@pytest.mark.parametrize(
    "key",
    ["write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"],
)
def test_every_place_a_table_writes_to_counts(key: str) -> None:
    mine = replace(MINE, properties={key: "s3://far/copy/x"})
    with pytest.raises(Refused, match=key):
        check_ownership(
            "purge", mine, [other("s3://far/copy")], places=Places(confirmed=("s3://far/copy/x",))
        )
    check_ownership("purge", mine, [other("s3://far/copy")])  # where nothing of it is listed or deleted


@pytest.mark.parametrize(
    "key",
    ["write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"],
)
def test_a_property_that_names_a_folder_around_others_stops_none_of_them(key: str) -> None:
    check_ownership("purge", MINE, [other("s3://far/copy", properties={key: "s3://lake"})])
    moved = other("s3://lake")
    with pytest.raises(Refused, match="shares a place"):
        check_ownership("purge", MINE, [moved])
    check_ownership("purge", MINE, [moved], places=Places({moved.uuid: "s3://far/copy"}))
    assert shared(MINE, [moved], Places({moved.uuid: "s3://far/copy"})) == {}


@pytest.mark.parametrize("key", [*ELSEWHERE, "data-file.external-paths", "location"])
def test_a_folder_inside_that_only_a_writer_names_is_left_alone_and_stops_nothing(key: str) -> None:
    """One property would otherwise stop the deletion of as many tables as it lists."""
    inner = "s3a://lake/db/events/data/inner"
    if key == "location":
        evil, places = other(inner), Places({"theirs": "s3://far/copy"})
    elif key == "data-file.external-paths":
        evil = replace(other("s3://far/copy", properties={key: f"s3://lake/x, {inner}"}), format="paimon")
        places = Places()
    else:
        evil, places = other("s3://far/copy", properties={key: inner}), Places()
    for action in ("sweep", "purge"):
        check_ownership(action, MINE, [MINE, evil], places=places)
    found = shared(MINE, [MINE, evil], places)
    assert list(found) == [inner] and "cold.db.copy" in found[inner] and key in found[inner]
    with pytest.raises(Refused, match="shares a place"):  # the table that names it may not clean it
        check_ownership("sweep", evil, [MINE], places=replace(places, confirmed=(inner,)))


def test_a_place_that_is_inside_only_by_another_name_makes_the_whole_folder_shared(tmp_path: Path) -> None:
    """What is listed is not spelled as the other table spells it, so which files lie in it cannot be told."""
    (tmp_path / "events" / "data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "events" / "data")
    mine = replace(MINE, location=str(tmp_path / "events"))
    evil = other("s3://far/copy", properties={"write.data.path": f"{tmp_path}/link"})
    assert list(shared(mine, [evil], Places())) == [mine.location]


def test_external_paths_are_paimons() -> None:
    """In an Iceberg table the option means nothing."""
    named = {"data-file.external-paths": f"{MINE.location}/x, s3://lake/db/orders/x"}
    view = other("s3://far/copy", properties=named)
    assert shared(MINE, [view], Places()) == {}
    assert list(shared(MINE, [replace(view, format="paimon")], Places())) == [f"{MINE.location}/x"]


def test_a_place_is_the_tables_own_by_its_first_location_or_by_the_operators_word() -> None:
    view = replace(
        MINE,
        location="s3://victim",
        properties={"write.data.path": "s3a://lake/db/events/d", "write.metadata.path": "s3://far/m"},
    )
    homes = {MINE.uuid: MINE.location}
    assert Places(homes).own(view) == {"write.data.path": "s3a://lake/db/events/d"}
    assert Places(homes).not_own(view) == {"location": "s3://victim", "write.metadata.path": "s3://far/m"}
    assert "location" in Places(homes, ("s3n://victim/",)).own(view)
    assert "location" in Places().own(view), "a table that is seen for the first time lies where it lies"
    paimon = replace(view, format="paimon")
    assert "location" in Places(homes).own(paimon), "Paimon's locations do not change but by a rename"


def test_the_first_location_is_remembered(tmp_path: Path) -> None:
    with closing(State.open(f"sqlite:///{tmp_path}/state.db")) as state:
        seen = SeenTables(state)
        seen.saw_all([MINE, replace(MINE, uuid="another", location="s3://lake/db/b")], NOW)
        seen.saw(replace(MINE, location="s3://victim"), NOW)
        seen.saw(replace(MINE, ref=TableRef.parse("lake.db.renamed"), location="s3://victim"), NOW)
        found = {each.uuid: each.location for each in seen.first_seen()}
        assert found == {MINE.uuid: MINE.location, "another": "s3://lake/db/b"}


def later(location: str, uuid: str = "new", ref: str = str(TABLE), days: int = 1) -> FirstSeen:
    return FirstSeen(uuid, ref, location, NOW + timedelta(days=days))


# As Trino and Iceberg's own catalogs set a table's folder apart; Nessie does it with an underscore and a uuid.
HEX = "0f9e2d4c8b7a46559433221100ffeedd"
FIRST = later(MINE.location, MINE.uuid, days=0)


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize(
    "place",
    [
        "s3://victim", "s3://lake", "s3://lake/db", "s3://lake/other/payroll", "s3://lake/db/payroll",
        "s3://lake/db/events_archive", "s3://lake/db/events-old", "s3://lake/db/events.bak", "s3://lake/db/events-2024",
        f"s3://lake/db/events_archive-{HEX}", f"s3://lake/db/events-{HEX}-old", f"s3://lake/db/events{HEX}",
    ],
)  # fmt: skip
def test_a_new_uuid_does_not_make_another_folder_the_tables_own(place: str, seen: bool) -> None:
    """One commit can change both. Before it is recorded that the table was seen, and after that."""
    view = replace(MINE, uuid="new", location=place)
    rows = [FIRST, *([later(place)] if seen else [])]
    places = Places.of(rows)
    assert places.home(view) == MINE.location and not places.own(view)
    assert Places.of(rows, (place,)).is_own(view, place), "the operator may say that it is"
    third = replace(view, uuid="third")
    assert not Places.of([*rows, later(place, "third", days=2)]).own(third)
    check_ownership("purge", other("s3://victim/t"), [view], places=places)
    check_ownership("purge", other("s3://lake/db/orders"), [view], places=places)


@pytest.mark.parametrize(
    "place",
    [
        MINE.location, "s3a://lake/db/events/", "s3://lake/db/events/v2", f"s3://lake/db/events-{HEX}",
        "s3://lake/db/events_0f9e2d4c-8b7a-4655-9433-221100ffeedd", f"s3://lake/db/events__dbt_tmp-{HEX}",
    ],
)  # fmt: skip
def test_a_table_that_was_dropped_and_created_again_lies_where_it_lies(place: str) -> None:
    """At the same place, or, where the catalog names a folder after each table, beside it: dbt does so every day."""
    view = replace(MINE, uuid="new", location=place)
    for rows in ([FIRST], [FIRST, later(place)]):
        assert "location" in Places.of(rows).own(view)
    again = replace(view, uuid="again", location=f"s3://lake/db/events-{HEX[::-1]}")
    assert "location" in Places.of([FIRST, later(place), later(again.location, "again", days=2)]).own(again)


def test_a_table_that_was_renamed_keeps_its_place_though_another_has_its_name() -> None:
    """`RENAME t TO t_old; CREATE TABLE t` in another bucket: neither of the two stops the other's upkeep."""
    old = replace(MINE, ref=TableRef.parse("lake.db.old"))
    fresh = replace(MINE, uuid="new", location="s3://another-bucket/events")
    for rows in ([FIRST], [FIRST, later(fresh.location)]):
        check_ownership("purge", old, [fresh], places=Places.of(rows))
        confirmed = Places.of(rows, (fresh.location,))
        check_ownership("purge", fresh, [old], places=confirmed)
        assert confirmed.is_own(fresh, fresh.location) and not Places.of(rows).own(fresh)
    with pytest.raises(Refused, match="shares a place"):
        check_ownership(
            "purge", old, [replace(fresh, location=f"{old.location}/in")], places=Places.of([FIRST])
        )


def test_a_table_of_another_name_or_of_a_known_uuid_is_not_asked_for_the_earlier_one() -> None:
    fresh = replace(MINE, ref=TableRef.parse("lake.db.fresh"), uuid="new", location="s3://elsewhere/fresh")
    assert "location" in Places.of([FIRST]).own(fresh)
    renamed = replace(MINE, ref=TableRef.parse("lake.db.old"))
    rows = [FIRST, later("s3://lake/db/old", "old", "lake.db.old")]
    assert Places.of(rows).home(renamed) == MINE.location


def test_a_link_that_leads_out_of_the_tables_places(tmp_path: Path) -> None:
    """Whoever may write to the table's folder can leave a link there, and name files through it."""
    (tmp_path / "real/t/data/day=1").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real/t/data/evil").symlink_to("../../../etc")
    (tmp_path / "real/t/data/day=01").symlink_to("day=1")
    for root in (f"{tmp_path}/link/t", f"file:{tmp_path}/real/t"):
        names = ("data/day=1/a", "metadata/b", "data/day=01/c", "data/evil/secret.conf", "data/evil/../d")
        paths = pa.chunked_array([[f"{root}/{each}" for each in names]])
        out = [False, False, False, True, True]
        assert led_out(paths, [root], Aliases()).to_pylist() == out
        assert not any(led_out(paths, [root, str(tmp_path)], Aliases()).to_pylist()), "the operator's word"
        known = Aliases.of([f"{tmp_path}/etc = {tmp_path}/real/t/x"])
        assert led_out(paths, [root], known).to_pylist() == [False, False, False, False, True]
    remote = pa.chunked_array([["s3://lake/db/events/data/x", "s3://other/x"]])
    assert led_out(remote, [MINE.location], Aliases()).to_pylist() == [False, False]


def test_one_table_under_two_names_is_one_table() -> None:
    check_ownership(
        "purge",
        MINE,
        [other("s3a://lake/db/events", "mine", "s3a://lake/db/events/metadata/3.metadata.json")],
    )


def test_two_catalogs_that_move_one_table_apart_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        check_ownership("sweep", MINE, [other(MINE.location, "mine", f"{MINE.location}/metadata/2.json")])
    for words in (str(TABLE), "cold.db.copy", "3.metadata.json", "2.json"):
        assert words in refused.value.message


def test_a_name_that_leads_to_another_table_now_is_compared_like_any_other() -> None:
    """Dropped and made anew at the same place between two looks: the ref is ours, the uuid is not."""
    with pytest.raises(Refused, match="shares a place"):
        check_ownership("purge", MINE, [replace(MINE, uuid="new")])


def test_metadata_of_another_table_inside_the_location() -> None:
    own = TableMetadataFile(f"{MINE.location}/metadata/1.metadata.json", "mine", updated_ms=0)
    check_ownership("purge", MINE, [], [own])
    foreign = TableMetadataFile(f"{MINE.location}/metadata/9.metadata.json", "theirs", "s3://lake/db/old")
    with pytest.raises(Refused) as refused:
        check_ownership("purge", MINE, [], [own, foreign])
    for words in (foreign.path, "theirs", "mine", "s3://lake/db/old", MINE.location):
        assert words in refused.value.message
    check_ownership(
        "purge", MINE, [], [TableMetadataFile("s3://lake/db/other/metadata/1.metadata.json", "theirs")]
    )


def test_newer_metadata_of_this_table_that_its_catalog_does_not_lead_to() -> None:
    """Another catalog moves the table too. By its time or by its sequence number: clocks of two writers differ."""
    view = replace(
        MINE, updated_ms=1000, sequence_number=4, metadata_log=(f"{MINE.location}/metadata/2.json",)
    )
    path = f"{MINE.location}/metadata/8.metadata.json"
    for updated, sequence in ((1001, 4), (900, 5), (None, 0)):
        newer = TableMetadataFile(path, "mine", MINE.location, updated_ms=updated, sequence_number=sequence)
        with pytest.raises(
            Refused, match=r"8\.metadata\.json is newer metadata of this very table"
        ) as refused:
            check_ownership("purge", view, [], [newer])
        assert "remove the table from one of the two catalogs" in refused.value.hint
        assert "--adopt-folder" in refused.value.hint and "next commit" not in refused.value.hint
        check_ownership("purge", view, [], [replace(newer, path="s3a://lake/db/events/metadata/2.json")])
    lost = TableMetadataFile(path, "mine", MINE.location, updated_ms=1000, sequence_number=4)
    check_ownership("purge", view, [], [lost])


def a_metadata_file(
    folder: Path,
    name: str,
    at: int,
    log: Sequence[tuple[str, int]] = (),
    snapshots: Mapping[int, Path] | None = None,
) -> str:
    """A metadata file of the table `mine`; its newest snapshot is the current one."""
    path, lists = folder / "metadata" / f"{name}.metadata.json", snapshots or {}
    path.parent.mkdir(exist_ok=True)
    told = {"table-uuid": "mine", "location": str(folder), "last-updated-ms": at, "last-sequence-number": 1}
    logged = [
        {"metadata-file": str(path.parent / f"{each}.metadata.json"), "timestamp-ms": then}
        for each, then in log
    ]
    named = [{"snapshot-id": id_, "manifest-list": str(place)} for id_, place in lists.items()]
    current = max(lists) if lists else None
    rest = {"metadata-log": logged, "snapshots": named, "current-snapshot-id": current}
    path.write_text(json.dumps({"format-version": 2, **told, **rest}))
    return str(path)


def forked_away(folder: Path, *, whole: bool = True, **changes: object) -> list[str]:
    """Names of the metadata files that stop a deletion, of a table at `now`, whose log goes back to `two`."""
    metadata = folder / "metadata"
    log = tuple(f"{metadata}/{each}.metadata.json" for each in ("two", "three"))
    view = replace(
        MINE,
        location=str(folder),
        metadata_location=f"{metadata}/now.metadata.json",
        metadata_log=log,
        log_since_ms=200,
        updated_ms=400,
        sequence_number=9,
        **changes,
    )
    objects = Objects({})
    stamps = {str(each): "1" for each in metadata.glob("*.metadata.json")}
    with patch("lakewarden.clock.sleep"):
        found = settled(objects, view, read_strays(objects, view, stamps), lambda: view, whole=whole)
    return [Path(each.path).name.removesuffix(".metadata.json") for each in forks(view, found)]


def test_a_fork_is_seen_after_our_own_catalog_committed_again(tmp_path: Path) -> None:
    """Not newer than the pointer any more, and not an earlier state of it. What is older than all logs is not known."""
    a_metadata_file(tmp_path, "zero", 50)
    a_metadata_file(tmp_path, "one", 100)
    a_metadata_file(tmp_path, "two", 200, [("one", 100)])
    a_metadata_file(tmp_path, "three", 300)
    a_metadata_file(tmp_path, "now", 400)
    assert forked_away(tmp_path) == [], "the log of the oldest file that ours names goes back further"
    path = a_metadata_file(tmp_path, "fork", 250)
    assert forked_away(tmp_path) == ["fork"]
    view = replace(MINE, location=str(tmp_path), log_since_ms=200, updated_ms=400)
    with pytest.raises(Refused, match=r"fork\.metadata\.json is metadata of this very table") as refused:
        check_ownership("purge", view, [], [TableMetadataFile(path, "mine", updated_ms=250)])
    for words in ("remove the table from one of the two catalogs", "--adopt-folder", "--yes"):
        assert words in refused.value.hint
    check_ownership("purge", view, [], [TableMetadataFile(path, "mine", updated_ms=199)])


def test_a_fork_that_is_older_than_our_log_is_seen_by_the_logs_of_our_ancestors(tmp_path: Path) -> None:
    """A hundred commits of a streaming writer are an hour."""
    a_metadata_file(tmp_path, "one", 100)
    a_metadata_file(tmp_path, "two", 200, [("one", 100)])
    path = a_metadata_file(tmp_path, "fork", 150)
    assert forked_away(tmp_path) == ["fork"]
    assert forked_away(tmp_path, whole=False) == [], "what only marks files looks no further than the log"
    Path(path).unlink()
    # A writer whose clock is behind: an ancestor that the log no longer names says to be newer than what it does.
    a_metadata_file(tmp_path, "one", 201)
    assert forked_away(tmp_path) == forked_away(tmp_path, whole=False) == []
    (tmp_path / "metadata" / "two.metadata.json").unlink()
    assert forked_away(tmp_path) == ["one"], "in doubt it is refused"


def test_what_a_failed_commit_left_is_dead_once_its_manifest_list_is_gone(tmp_path: Path) -> None:
    """A fork that was committed to once looks the same, but for that: whoever cleans up after a failure deletes the list."""
    known, lost = tmp_path / "metadata" / "snap-1.avro", tmp_path / "metadata" / "snap-2.avro"
    a_metadata_file(tmp_path, "left", 250, snapshots={1: known, 2: lost})
    known.touch()
    lost.touch()
    ours = (Snapshot(1, None, 1, NOW, "append", {}, str(known)),)
    assert forked_away(tmp_path, snapshots=ours) == ["left"]
    lost.unlink()
    assert forked_away(tmp_path, snapshots=ours) == []
    assert forked_away(tmp_path, snapshots=()) == ["left"], "it has another snapshot that only it names"
    a_metadata_file(tmp_path, "left", 250, snapshots={1: known})
    assert forked_away(tmp_path, snapshots=ours) == ["left"], "with its newest snapshot there it can be read"
    retried = tmp_path / "metadata" / "snap-1-first-try.avro"
    a_metadata_file(tmp_path, "left", 250, snapshots={1: retried})
    assert forked_away(tmp_path, snapshots=ours) == [], "a try that was repeated under the same id"
    # Snapshots that our table had when the commit was tried have expired since; purge has yet to delete their lists.
    a_metadata_file(tmp_path, "three", 300, snapshots={1: known})
    a_metadata_file(tmp_path, "left", 310, [("two", 200), ("three", 300)], snapshots={1: known, 2: lost})
    assert forked_away(tmp_path, snapshots=()) == []
    a_metadata_file(tmp_path, "left", 310, [("strange", 300)], snapshots={1: known, 2: lost})
    assert forked_away(tmp_path, snapshots=()) == ["left"], "it was built on what our table never was"
    lost.touch()
    a_metadata_file(tmp_path, "left", 310, [("two", 200), ("three", 300)], snapshots={1: known, 2: lost})
    assert forked_away(tmp_path, snapshots=()) == ["left"], "what it added is there"
    # The same commit was tried again and is an earlier state of the table, which has let go of it since.
    a_metadata_file(tmp_path, "now", 400, [("two", 200), ("three", 300)], snapshots={1: known, 2: lost})
    assert forked_away(tmp_path, snapshots=()) == []
    # A commit that adds nothing, such as an expiry, and lost a race: the table's own next state is of the same minutes.
    a_metadata_file(tmp_path, "now", 400)
    a_metadata_file(tmp_path, "left", 310, [("two", 200), ("three", 300)], snapshots={1: known})
    assert forked_away(tmp_path, snapshots=()) == []
    a_metadata_file(tmp_path, "left", 3_600_400, [("two", 200), ("three", 300)], snapshots={1: known})
    assert forked_away(tmp_path, snapshots=()) == ["left"], "an hour later: another catalog's table"
    lost.unlink()
    (tmp_path / "metadata" / "three.metadata.json").unlink()
    outside = tmp_path.parent / "elsewhere" / "snap-2.avro"
    a_metadata_file(tmp_path, "left", 250, snapshots={1: known, 2: outside})
    assert forked_away(tmp_path, snapshots=ours) == ["left"], "of a place outside it is not known"


def test_a_metadata_file_that_is_being_written_is_read_again(tmp_path: Path) -> None:
    """On a disk a commit that is under way shows half of its file."""
    a_metadata_file(tmp_path, "three", 300)
    path = Path(a_metadata_file(tmp_path, "now", 400))
    whole = Path(a_metadata_file(tmp_path, "left", 310, [("two", 200), ("three", 300)])).read_text()
    objects, left = Objects({}), path.with_name("left.metadata.json")
    log = tuple(str(path.with_name(f"{each}.metadata.json")) for each in ("two", "three"))
    view = replace(
        MINE,
        location=str(tmp_path),
        metadata_location=str(path),
        metadata_log=log,
        log_since_ms=200,
        updated_ms=400,
    )
    for rest, expected in ((whole, []), ("", [None])):
        left.write_text(whole[:20])
        strays = read_strays(objects, view, {str(left): "1"})
        assert [each.uuid for each in strays] == [None]
        with patch("lakewarden.clock.sleep", lambda _, rest=rest: left.write_text(rest or whole[:20])):
            found = settled(objects, view, strays, lambda: view)
        assert [each.uuid for each in found] == expected


def test_how_new_a_metadata_file_is(tmp_path: Path) -> None:
    """At its beginning where Iceberg's library wrote it; other writers have another order of keys."""
    path = tmp_path / "1.metadata.json"
    told = {"table-uuid": "mine", "location": "/l", "last-updated-ms": 7}
    for document, sequence in (
        ({"format-version": 1, **told}, 0),
        ({"format-version": 2, **told, "last-sequence-number": 3}, 3),
        ({"format-version": 2, **told, "schemas": "x" * 5000, "last-sequence-number": 4}, 4),
        ({"format-version": 2, "table-uuid": "mine", "x": "x" * 5000, **told, "last-sequence-number": 5}, 5),
    ):
        path.write_text(json.dumps(document))
        found = whose(str(path), Objects({}).read)
        assert found == TableMetadataFile(str(path), "mine", "/l", updated_ms=7, sequence_number=sequence)
    path.write_text(json.dumps({"table-uuid": "mine"}))
    found = whose(str(path), Objects({}).read)
    assert found is not None and found.updated_ms is None


def test_a_commit_that_was_under_way_and_failed_is_no_newer_metadata(tmp_path: Path) -> None:
    view = replace(MINE, location=str(tmp_path), updated_ms=1000)
    left = TableMetadataFile(str(tmp_path / "left.metadata.json"), "mine", updated_ms=1001)
    Path(left.path).write_text("{}")
    lost = replace(left, path=str(tmp_path / "lost.metadata.json"))
    with patch("lakewarden.clock.sleep"):
        assert settled(Objects({}), view, [left, lost], lambda: view) == [left]


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("schema/schema-0", "Apache Paimon"),
        ("schema/schema-12", "Apache Paimon"),
        ("_delta_log/00000000000000000007.json", "Delta Lake"),
        ("_delta_log/00000000000000000010.checkpoint.parquet", "Delta Lake"),
        (".hoodie/hoodie.properties", "Apache Hudi"),
        (".hoodie/timeline/20240311.commit", "Apache Hudi"),
    ],
)
@pytest.mark.parametrize("below", [".", "data"])
def test_metadata_of_another_format_in_the_folder_is_foreign(
    tmp_path: Path, name: str, tool: str, below: str
) -> None:
    """Whichever way it is found: by the short look before a rewrite, or in the listing of a sweep. XTable writes to data/."""
    view = replace(MINE, location=str(tmp_path), metadata_location=f"{tmp_path}/metadata/3.metadata.json")
    refuse_other_formats("compact", view)
    path = tmp_path / below / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(Refused, match=tool) as refused:
        refuse_other_formats("compact", view)
    assert tool in refused.value.hint
    listed = read_strays(Objects({}), view, {str(path): "1"})
    with pytest.raises(Refused, match=tool):
        check_ownership("sweep", view, [], listed)


def test_other_formats_are_looked_for_in_every_folder_of_the_table(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "_delta_log").mkdir(parents=True)
    (data / "_delta_log" / "0.json").touch()
    view = replace(MINE, location=f"{tmp_path}/t", properties={"write.data.path": f"file://{data}"})
    with pytest.raises(Refused, match="Delta Lake"):
        refuse_other_formats("expire", view)


def test_iceberg_metadata_in_the_folder_of_a_paimon_table_stops_every_job(tmp_path: Path) -> None:
    """Unless the table publishes it itself, or an operator has claimed it."""
    path = tmp_path / "metadata" / "v1.metadata.json"
    path.parent.mkdir()
    told = {"format-version": 2, "table-uuid": "old", "location": str(tmp_path)}
    path.write_text(json.dumps({**told, "last-sequence-number": 1, "last-updated-ms": 1}))
    view = replace(
        MINE,
        format="paimon",
        location=str(tmp_path),
        metadata_location=f"{tmp_path}/snapshot/snapshot-1",
        properties={},
    )
    with closing(State.open(f"sqlite:///{tmp_path}/state.db")) as state:
        with pytest.raises(Refused, match="Apache Iceberg") as refused:
            refuse_foreign("compact", view, state, ForeignMetadataCache())
        assert "--adopt-folder" in refused.value.hint
        publishing = {"metadata.iceberg.storage": "table-location"}
        refuse_foreign("compact", replace(view, properties=publishing), state, ForeignMetadataCache())
        refuse_other_formats("adopt the folder of", view)
        files = pa.table({"path": [str(path)], "kind": ["metadata"], "size": [1], "stamp": ["x"]})
        detail = {"operator": "ana", "uuids": {str(path): "old"}}
        trashed = TrashedFiles(state)
        trashed.trash("claim", str(view.ref), view.uuid, CLAIMED, "left", files, detail, NOW)
        trashed.enforce("claim", NOW)
        refuse_foreign("compact", view, state, ForeignMetadataCache())


def test_a_paimon_table_owns_the_iceberg_metadata_it_publishes_and_no_other() -> None:
    paimon = replace(MINE, format="paimon")
    publishing = replace(paimon, properties={"metadata.iceberg.storage": "table-location"})
    published = TableMetadataFile(f"{MINE.location}/metadata/v4.metadata.json", "theirs", MINE.location)
    mirror = replace(other(MINE.location), format="iceberg")
    check_ownership("purge", publishing, [mirror], [published])
    for view in (paimon, replace(paimon, properties={"metadata.iceberg.storage": "disabled"})):
        with pytest.raises(Refused, match="Apache Iceberg"):
            check_ownership("purge", view, [], [published])
        with pytest.raises(Refused, match="shares a place"):
            check_ownership("purge", view, [mirror])
    moved = replace(published, location="s3://lake/db/old")
    with pytest.raises(Refused, match="Apache Iceberg"):
        check_ownership("purge", publishing, [], [moved])


def test_metadata_that_does_not_say_whose_it_is() -> None:
    path = f"{MINE.location}/metadata/0.metadata.json"
    check_ownership("purge", MINE, [], [TableMetadataFile(path, None, "s3a://lake/db/events")])
    for unknown in (TableMetadataFile(path, None, "s3://lake/db/old"), TableMetadataFile(path, None, None)):
        with pytest.raises(Refused, match="its owner is not known"):
            check_ownership("purge", MINE, [], [unknown])


# ------------------------------------------------------------ reading whose a metadata file is


class Bytes:
    """A file by its content, and what was read of it."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.reads: list[tuple[int, int | None]] = []

    def __call__(self, path: str, start: int, length: int | None) -> bytes:
        self.reads.append((start, length))
        if self.content is None:
            raise FileNotFoundError(path)
        return self.content[start:] if length is None else self.content[start : start + length]


def document(**first: object) -> bytes:
    new = {"last-sequence-number": 3, "last-updated-ms": 7}
    body = {"format-version": 2, **first, **new, "snapshots": [{"n": n} for n in range(2000)]}
    return json.dumps(body, indent=1).encode()


def test_the_beginning_of_a_metadata_file_tells_whose_it_is() -> None:
    file = Bytes(document(**{"table-uuid": "u-1", "location": "s3://b/t"}))
    assert whose("m", file) == TableMetadataFile("m", "u-1", "s3://b/t", updated_ms=7, sequence_number=3)
    assert file.reads == [(0, 4096)], "the rest may be megabytes"


def test_a_uuid_further_down_is_found_in_the_whole_file() -> None:
    content = json.dumps({"padding": "x" * 9000, "table-uuid": "u-1", "location": "/t"}).encode()
    assert whose("m", Bytes(content)) == TableMetadataFile("m", "u-1", "/t")


def test_a_packed_metadata_file() -> None:
    packed = gzip.compress(document(**{"table-uuid": "u-1", "location": "/t"}))
    told = TableMetadataFile("m.gz.metadata.json", "u-1", "/t", updated_ms=7, sequence_number=3)
    assert whose("m.gz.metadata.json", Bytes(packed)) == told


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\x1f\x8bbroken", gzip.compress(b"{}", mtime=0)[:-4], b'{"location": 1'],
    ids=repr,
)
def test_a_broken_metadata_file_is_nobodys(content: bytes) -> None:
    assert whose("m", Bytes(content)) == TableMetadataFile("m", None, None)


def test_a_first_version_file_without_uuid() -> None:
    assert whose("m", Bytes(b'{"format-version": 1, "location": "/t"}')) == TableMetadataFile("m", None, "/t")


def test_a_metadata_file_that_is_gone_is_left_out() -> None:
    assert whose("m", Bytes(None)) is None


def test_where_metadata_is_looked_for() -> None:
    assert metadata_folders(MINE, Places()) == ["s3://lake/db/events/metadata"]
    moved = replace(MINE, properties={"write.metadata.path": "s3://meta/events"})
    assert metadata_folders(moved, Places()) == ["s3://lake/db/events/metadata"]
    named = Places(confirmed=("s3://meta",))
    assert metadata_folders(moved, named) == ["s3://lake/db/events/metadata", "s3://meta/events"]


def test_whose_a_metadata_file_is_is_read_once_and_forgotten_when_it_is_gone(tmp_path: Path) -> None:
    folder, read, known = tmp_path / "metadata", list[str](), ForeignMetadataCache()
    folder.mkdir()
    objects = Objects({})
    view = replace(MINE, location=str(tmp_path), metadata_location=f"{folder}/0.metadata.json")

    def look() -> list[str]:
        stamps = {str(each): str(each.stat().st_mtime_ns) for each in folder.iterdir()}
        with patch.object(
            objects, "read", lambda *what: read.append(what[0]) or Objects.read(objects, *what)
        ):
            return sorted(Path(each.path).name for each in read_strays(objects, view, stamps, known))

    for day in range(5):
        for old in folder.iterdir():
            old.unlink()
        for number in range(3):
            (folder / f"{day}-{number}.metadata.json").write_text(
                '{"format-version": 1, "table-uuid": "mine", "last-updated-ms": 0}'
            )
        assert look() == look() == [f"{day}-{number}.metadata.json" for number in range(3)]
        assert len(read) == 3 * (day + 1) and len(known) == 3


def test_of_many_tables_those_looked_at_longest_ago_are_forgotten_first() -> None:
    def files(table: str, count: int) -> dict[tuple[str, str], TableMetadataFile]:
        return {
            (f"{table}{number}", "1"): TableMetadataFile(f"{table}{number}", table) for number in range(count)
        }

    known = ForeignMetadataCache(most=10)
    for table in ("a", "b", "a", "c"):
        known.keep(table, files(table, 4))
    assert len(known) == 8 and not known.of("b") and known.of("a") and known.of("c")
    known.keep("large", files("large", 50))
    assert len(known) == 50 == len(known.of("large")), "what was looked at last always stays"


def test_a_claim_is_for_that_very_file(tmp_path: Path) -> None:
    """A table that is created there later may name its metadata files alike."""
    state = State.open(f"sqlite:///{tmp_path}/state.db")
    trashed, now = TrashedFiles(state), clock.now()
    path = f"{MINE.location}/metadata/v1.metadata.json"
    files = pa.table({"path": [path], "kind": ["metadata"], "size": [1], "stamp": ["x"]})
    detail = {"operator": "ana", "uuids": {path: "old"}}
    trashed.trash("claim", str(MINE.ref), MINE.uuid, CLAIMED, "left", files, detail, now)
    old = TableMetadataFile(path, "old")
    assert unclaimed(state, MINE, [old]) == [old], "it is not in force yet"
    trashed.enforce("claim", now)
    assert unclaimed(state, MINE, [old]) == []
    newer, elsewhere = (
        replace(old, uuid="newer"),
        replace(old, path=f"{MINE.location}/metadata/v2.metadata.json"),
    )
    assert unclaimed(state, MINE, [newer, elsewhere]) == [newer, elsewhere]
    assert unclaimed(state, replace(MINE, uuid="another"), [old]) == [old]


# ------------------------------------------------------------ whose colder tier a table is


COLD = {"cold-tier.source": "live.db.events", "cold-tier.source-uuid": "live"}


def test_only_what_hand_off_recorded_freezes_a_table(tmp_path: Path) -> None:
    """Whoever writes a table can set its properties. Paimon's view shows them only where hand-off made the table."""
    cold = replace(MINE, properties=COLD)
    with closing(State.open(f"sqlite:///{tmp_path}/state.db")) as state:
        refuse_frozen("compact", cold, state)
        with pytest.raises(Refused, match="colder tier"):
            refuse_frozen("compact", replace(cold, format="paimon"), state)
        ColdFiles(state).add("live", [ColdFile("s3://lake/a", f"{MINE.location}2/a", 1, "x")], "run", NOW)
        refuse_frozen("compact", cold, state)
        ColdFiles(state).add("live", [ColdFile("s3://lake/a", f"{MINE.location}/data/a", 1, "x")], "run", NOW)
        with pytest.raises(Refused, match=r"colder tier of live\.db\.events"):
            refuse_frozen("compact", cold, state)
        ColdFiles(state).let_go("live", [f"{MINE.location}/data/a"], NOW)
        with pytest.raises(Refused, match="colder tier"):
            refuse_frozen("compact", cold, state)
        refuse_frozen("compact", replace(cold, properties={}), state)


def test_a_cold_table_is_known_by_its_first_location_and_by_either_property(tmp_path: Path) -> None:
    with closing(State.open(f"sqlite:///{tmp_path}/state.db")) as state:
        live = replace(other("s3://lake/db/live", "live"), ref=TableRef.parse("live.db.events"))
        SeenTables(state).saw_all([MINE, live], NOW)
        ColdFiles(state).add("live", [ColdFile("s3://lake/a", f"{MINE.location}/data/a", 1, "x")], "run", NOW)
        tables = ColdTables(state)
        assert tables.source(COLD, MINE.uuid, "s3://moved/by/its/writer") == "live.db.events"
        for name, value in COLD.items():
            assert ColdTables(state).source({name: value}, MINE.uuid) == value
        assert ColdTables(state).source(COLD, "another") == ""
        spelled = MINE.location.replace("s3://", "s3a://")
        assert ColdTables(state).source(COLD, "another", f"{spelled}/") == "live.db.events"
        around = [ColdFile(f"s3://lake/{each}{each}", f"s3://{each}/x", 1, "x") for each in ("a", "z")]
        ColdFiles(state).add("live", around, "run", NOW)
        assert ColdTables(state).source(COLD, MINE.uuid) == "live.db.events", (
            "it was handed off to others too"
        )
        assert ColdTables(state).source({}, MINE.uuid) == ""
