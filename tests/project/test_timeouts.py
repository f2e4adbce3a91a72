"""REST, JDBC (PostgreSQL, MySQL, MariaDB) and Hive catalogs have a limit for their answers, and what the operator says stays.

Others (Glue, Nessie, classes of one's own) have the limits of their clients.
"""

from __future__ import annotations

import pytest

from lakewarden.tables.jvm import with_timeouts

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
        ({"type": "hive", "uri": "thrift://h:9083"}, {"hadoop.hive.metastore.client.socket.timeout": "120s"}),
        (
            {"catalog-impl": "org.apache.iceberg.hive.HiveCatalog"},
            {"hadoop.hive.metastore.client.socket.timeout": "120s"},
        ),
        ({"type": "hive", "hadoop.hive.metastore.client.socket.timeout": "9s"}, {}),
        (
            {"metastore": "hive", "uri": "thrift://h:9083"},
            {"hive.metastore.client.socket.timeout": "120s"},
        ),
        ({"uri": "thrift://h:9083"}, {"hadoop.hive.metastore.client.socket.timeout": "120s"}),
        ({"type": "nessie", "uri": "http://h"}, {}),
    ],
)
def test_limits_are_added_where_there_are_none(properties: dict[str, str], added: dict[str, str]) -> None:
    assert with_timeouts(properties) == {**properties, **added}
