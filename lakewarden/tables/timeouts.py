"""Timeouts for catalogs. Some catalog clients have none and wait as long as the connection is open, which blocks a pass."""

from __future__ import annotations

from collections.abc import Mapping

CONNECT_SECONDS = 10
ANSWER_SECONDS = 120

_MILLIS = 1000
# Units per second of each JDBC driver's timeout property.
_JDBC = {"jdbc:postgresql:": 1, "jdbc:mysql:": _MILLIS, "jdbc:mariadb:": _MILLIS}
# The Hive metastore client waits ten minutes by default, for each answer and again after a new connection.
_HIVE = "hive.metastore.client.socket.timeout"


def with_timeouts(properties: Mapping[str, str]) -> dict[str, str]:
    """The catalog's properties, with a timeout added if its client has none. Values that are already set stay."""
    return {**_limits(properties), **properties}


def _limits(properties: Mapping[str, str]) -> dict[str, str]:
    kind, made_by = properties.get("type", "").lower(), properties.get("catalog-impl", "")
    if kind == "rest" or made_by.endswith(".RESTCatalog"):
        return {
            "rest.client.connection-timeout-ms": str(CONNECT_SECONDS * _MILLIS),
            "rest.client.socket-timeout-ms": str(ANSWER_SECONDS * _MILLIS),
        }
    address = properties.get("uri", "")
    if properties.get("metastore", "").lower() == "hive":  # Paimon's property
        return {_HIVE: f"{ANSWER_SECONDS}s"}
    if kind == "hive" or made_by.endswith(".HiveCatalog") or address.startswith("thrift:"):
        return {
            f"hadoop.{_HIVE}": f"{ANSWER_SECONDS}s"
        }  # Iceberg passes properties with this prefix to the client
    unit = next((unit for driver, unit in _JDBC.items() if address.startswith(driver)), None)
    if unit is None:
        return {}
    limits = {"connectTimeout": CONNECT_SECONDS * unit, "socketTimeout": ANSWER_SECONDS * unit}
    # Not added if the URL has one already: which of the two counts depends on the driver.
    return {f"jdbc.{name}": str(value) for name, value in limits.items() if f"{name}=" not in address}
