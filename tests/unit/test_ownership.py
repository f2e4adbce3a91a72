"""Location is not ownership: who shares a place is refused, whose files they are is never guessed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from lakewarden.engine.objects import Objects
from lakewarden.errors import Refused
from lakewarden.jobs.strays import KnownStrays, metadata_folders, read_strays, whose
from lakewarden.model import TableRef, TableView
from lakewarden.safety.ownership import MetadataFile, check_ownership
from tests.support.tables import TABLE
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
        check_ownership("reap", MINE, [MINE, other(location)])
    assert refused.value.exit_code == 12
    for words in (str(TABLE), "cold.db.copy", MINE.location, location):
        assert words in refused.value.message
    assert "folder of its own" in refused.value.hint


@pytest.mark.parametrize(
    "location", ["s3://lake/db/events2", "s3://lake/db/event", "s3://other/db/events", "/lake/db/events"]
)
def test_neighbours_with_places_of_their_own_are_fine(location: str) -> None:
    check_ownership("reap", MINE, [MINE, other(location)])


@pytest.mark.parametrize(
    "key",
    ["write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"],
)
def test_every_place_a_table_writes_to_counts(key: str) -> None:
    elsewhere = other("s3://far/copy", properties={key: "s3a://lake/db/events/data"})
    with pytest.raises(Refused, match=key):
        check_ownership("reap", MINE, [elsewhere])
    mine = replace(MINE, properties={key: "s3://far/copy/x"})
    with pytest.raises(Refused, match=key):
        check_ownership("reap", mine, [other("s3://far/copy")])


def test_one_table_under_two_names_is_one_table() -> None:
    check_ownership(
        "reap", MINE, [other("s3a://lake/db/events", "mine", "s3a://lake/db/events/metadata/3.metadata.json")]
    )


def test_two_catalogs_that_move_one_table_apart_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        check_ownership("sweep", MINE, [other(MINE.location, "mine", f"{MINE.location}/metadata/2.json")])
    for words in (str(TABLE), "cold.db.copy", "3.metadata.json", "2.json"):
        assert words in refused.value.message


def test_a_name_that_leads_to_another_table_now_is_compared_like_any_other() -> None:
    """Dropped and made anew at the same place between two looks: the ref is ours, the uuid is not."""
    with pytest.raises(Refused, match="shares a place"):
        check_ownership("reap", MINE, [replace(MINE, uuid="new")])


def test_metadata_of_another_table_inside_the_location() -> None:
    own = MetadataFile(f"{MINE.location}/metadata/1.metadata.json", "mine")
    check_ownership("reap", MINE, [], [own])
    foreign = MetadataFile(f"{MINE.location}/metadata/9.metadata.json", "theirs", "s3://lake/db/old")
    with pytest.raises(Refused) as refused:
        check_ownership("reap", MINE, [], [own, foreign])
    for words in (foreign.path, "theirs", "mine", "s3://lake/db/old", MINE.location):
        assert words in refused.value.message
    check_ownership("reap", MINE, [], [MetadataFile("s3://lake/db/other/metadata/1.metadata.json", "theirs")])


def test_metadata_that_does_not_say_whose_it_is() -> None:
    path = f"{MINE.location}/metadata/0.metadata.json"
    check_ownership("reap", MINE, [], [MetadataFile(path, None, "s3a://lake/db/events")])
    for unknown in (MetadataFile(path, None, "s3://lake/db/old"), MetadataFile(path, None, None)):
        with pytest.raises(Refused, match="cannot be told"):
            check_ownership("reap", MINE, [], [unknown])


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
    body = {"format-version": 2, **first, "snapshots": [{"n": n} for n in range(2000)]}
    return json.dumps(body, indent=1).encode()


def test_the_beginning_of_a_metadata_file_tells_whose_it_is() -> None:
    file = Bytes(document(**{"table-uuid": "u-1", "location": "s3://b/t"}))
    assert whose("m", file) == MetadataFile("m", "u-1", "s3://b/t")
    assert file.reads == [(0, 4096)], "the rest may be megabytes"


def test_a_uuid_further_down_is_found_in_the_whole_file() -> None:
    content = json.dumps({"padding": "x" * 9000, "table-uuid": "u-1", "location": "/t"}).encode()
    assert whose("m", Bytes(content)) == MetadataFile("m", "u-1", "/t")


def test_a_packed_metadata_file() -> None:
    packed = gzip.compress(document(**{"table-uuid": "u-1", "location": "/t"}))
    assert whose("m.gz.metadata.json", Bytes(packed)) == MetadataFile("m.gz.metadata.json", "u-1", "/t")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\x1f\x8bbroken", gzip.compress(b"{}", mtime=0)[:-4], b'{"location": 1'],
    ids=repr,
)
def test_a_broken_metadata_file_is_nobodys(content: bytes) -> None:
    assert whose("m", Bytes(content)) == MetadataFile("m", None, None)


def test_a_first_version_file_without_uuid() -> None:
    assert whose("m", Bytes(b'{"format-version": 1, "location": "/t"}')) == MetadataFile("m", None, "/t")


def test_a_metadata_file_that_is_gone_is_left_out() -> None:
    assert whose("m", Bytes(None)) is None


def test_where_metadata_is_looked_for() -> None:
    assert metadata_folders(MINE) == ["s3://lake/db/events/metadata"]
    moved = replace(MINE, properties={"write.metadata.path": "s3://meta/events"})
    assert metadata_folders(moved) == ["s3://lake/db/events/metadata", "s3://meta/events"]


def test_whose_a_metadata_file_is_is_read_once_and_forgotten_when_it_is_gone(tmp_path: Path) -> None:
    folder, read, known = tmp_path / "metadata", list[str](), KnownStrays()
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
            (folder / f"{day}-{number}.metadata.json").write_text('{"table-uuid": "mine"}')
        assert look() == look() == [f"{day}-{number}.metadata.json" for number in range(3)]
        assert len(read) == 3 * (day + 1) and len(known) == 3


def test_of_many_tables_those_looked_at_longest_ago_are_forgotten_first() -> None:
    def files(table: str, count: int) -> dict[tuple[str, str], MetadataFile]:
        return {(f"{table}{number}", "1"): MetadataFile(f"{table}{number}", table) for number in range(count)}

    known = KnownStrays(most=10)
    for table in ("a", "b", "a", "c"):
        known.keep(table, files(table, 4))
    assert len(known) == 8 and not known.of("b") and known.of("a") and known.of("c")
    known.keep("large", files("large", 50))
    assert len(known) == 50 == len(known.of("large")), "what was looked at last always stays"
