"""Every catalog that is asked over a network has a limit for its answers, and what the operator says stays."""

from __future__ import annotations

import pytest

from lakewarden.formats.timeouts import with_timeouts

ANSWER = "rest.client.socket-timeout-ms"


@pytest.mark.parametrize(
    ("properties", "added"),
    [
        (
            {"type": "rest", "uri": "http://x"},
            {ANSWER: "120000", "rest.client.connection-timeout-ms": "10000"},
        ),
        ({"type": "rest", "uri": "http://x", ANSWER: "5"}, {"rest.client.connection-timeout-ms": "10000"}),
        (
            {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog"},
            {ANSWER: "120000", "rest.client.connection-timeout-ms": "10000"},
        ),
        (
            {"type": "jdbc", "uri": "jdbc:postgresql://h/d"},
            {"jdbc.connectTimeout": "10", "jdbc.socketTimeout": "120"},
        ),
        (
            {"metastore": "jdbc", "uri": "jdbc:mysql://h/d"},
            {"jdbc.connectTimeout": "10000", "jdbc.socketTimeout": "120000"},
        ),
        (
            {"type": "jdbc", "uri": "jdbc:postgresql://h/d?socketTimeout=7"},
            {"jdbc.connectTimeout": "10"},
        ),
        ({"type": "jdbc", "uri": "jdbc:sqlite:/x.db"}, {}),
        ({"type": "hadoop", "warehouse": "/w"}, {}),
    ],
)
def test_limits_are_added_where_there_are_none(properties: dict[str, str], added: dict[str, str]) -> None:
    assert with_timeouts(properties) == {**properties, **added}
