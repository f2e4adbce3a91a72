"""What a Paimon catalog's properties say about its files, in Paimon's many spellings."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewarden.config.schema import Config
from lakewarden.lake import jar_groups
from lakewarden.tables.paimon.io_properties import address, io_properties

ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
BY_ROLE = "software.amazon.awssdk.auth.credentials.InstanceProfileCredentialsProvider"
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"


@pytest.mark.parametrize("prefix", ["s3", "s3a", "fs.s3a"])
@pytest.mark.parametrize("key", ["{}-key", "{}.key"])
def test_every_spelling_of_the_keys(prefix: str, key: str) -> None:
    own = {f"{prefix}.{key.format(name)}": name for name in ("access", "secret")}
    assert io_properties(own) == {"s3.access-key-id": "access", "s3.secret-access-key": "secret"}


def test_the_region_and_where_the_bucket_is_written() -> None:
    own = {"fs.s3a.endpoint.region": "eu-north-1", "s3.path-style-access": "true", "s3.session.token": "t"}
    assert io_properties(own) == {
        "client.region": "eu-north-1",
        "s3.path-style-access": "true",
        "s3.session-token": "t",
    }


@pytest.mark.parametrize(
    ("endpoint", "encrypted", "expected"),
    [
        ("http://store:9000", "", "http://store:9000"),
        ("store:9000", "false", "http://store:9000"),
        ("store:9000", "true", "https://store:9000"),
        ("s3.eu-north-1.amazonaws.com", "", "https://s3.eu-north-1.amazonaws.com"),
    ],
)
def test_an_endpoint_without_a_scheme(endpoint: str, encrypted: str, expected: str) -> None:
    own = {"s3.endpoint": endpoint} | ({"s3.connection.ssl.enabled": encrypted} if encrypted else {})
    assert io_properties(own)["s3.endpoint"] == expected


@pytest.mark.parametrize(
    ("provider", "keys", "anonymous"), [(SIMPLE, 2, False), (BY_ROLE, 0, False), (ANONYMOUS, 0, True)]
)
def test_keys_that_only_fill_their_place(provider: str, keys: int, anonymous: bool) -> None:
    """Paimon wants both to be set, also where another provider hands out the real ones."""
    own = {"s3.access-key": "-", "s3.secret-key": "-", "s3.aws.credentials.provider": provider}
    found = io_properties(own)
    assert len([each for each in found.values() if each == "-"]) == keys
    assert (found.get("s3.anonymous") == "true") is anonymous


def test_stores_hear_what_is_said_in_their_own_words_and_no_password_of_the_catalog() -> None:
    own = {"gcs.project-id": "p", "s3.request-timeout": "9", "jdbc.password": "hush", "token": "hush"}
    assert io_properties(own) == {"gcs.project-id": "p", "s3.request-timeout": "9"}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ""),
        ({"warehouse": "/lake"}, "/lake"),
        ({"warehouse": "s3://b/wh", "s3.endpoint": "store:9"}, "s3://b/wh at https://store:9"),
        (
            {"metastore": "jdbc", "uri": "jdbc:postgresql://u:hush@h/db?password=hush", "warehouse": "/lake"},
            "jdbc:postgresql://u:***@h/db?password=***, /lake",
        ),
    ],
)
def test_an_address_without_secrets(properties: dict[str, str], expected: str) -> None:
    assert address(properties) == expected


@pytest.mark.parametrize(
    ("catalogs", "groups"),
    [
        ({"p": {"format": "paimon", "warehouse": "/lake"}}, ["base", "paimon"]),
        ({"p": {"format": "paimon", "warehouse": "s3://b/wh"}}, ["base", "paimon", "paimon-s3"]),
        (
            {"p": {"format": "paimon", "metastore": "rest", "warehouse": "lake", "s3.endpoint": "http://h"}},
            ["base", "paimon", "paimon-s3"],
        ),
        (
            {"p": {"format": "paimon", "metastore": "jdbc", "uri": "jdbc:sqlite:c.db", "warehouse": "/lake"}},
            ["base", "jdbc", "paimon"],
        ),
        (
            {"p": {"format": "paimon", "warehouse": "/lake"}, "i": {"type": "hadoop", "warehouse": "s3://b"}},
            ["base", "s3", "paimon"],
        ),
    ],
)
def test_jars_by_what_the_catalogs_are(
    catalogs: dict[str, dict[str, str]], groups: list[str], tmp_path: Path
) -> None:
    assert jar_groups(Config.from_dict({"catalogs": catalogs}, base=tmp_path)) == groups
