"""Where a Paimon catalog's files lie, by its properties: in words for a message, and for the stores of this project."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden.model.location import S3, scheme_of
from lakewarden.redact import redact_url

# Paimon takes its S3 properties under each of these.
_PREFIXES = ("s3.", "s3a.", "fs.s3a.")
# By what follows the prefix, the name the stores of this project know it by.
_S3 = {
    "endpoint": "s3.endpoint",
    "access-key": "s3.access-key-id",
    "access.key": "s3.access-key-id",
    "secret-key": "s3.secret-access-key",
    "secret.key": "s3.secret-access-key",
    "session.token": "s3.session-token",
    "path.style.access": "s3.path-style-access",
    "path-style-access": "s3.path-style-access",
    "endpoint.region": "client.region",
    "region": "client.region",
}
_KEYS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
# Providers that hand out the configured keys. Of any other the keys are of no use.
_OWN_KEYS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
# What the stores here are told in words of their own; a catalog's password is none of their business.
_STORES = ("s3.", "client.", "gcs.", "adls.", "hdfs.")


def io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """How files are reached from outside of Paimon's library."""
    said = {_plain(key): value for key, value in properties.items() if _plain(key)}
    io = {_S3[key]: value for key, value in said.items() if key in _S3}
    if "s3.endpoint" in io:
        io["s3.endpoint"] = _with_scheme(io["s3.endpoint"], said.get("connection.ssl.enabled", ""))
    provider = said.get("aws.credentials.provider", "")
    if provider and not provider.endswith(_OWN_KEYS):
        io = {key: value for key, value in io.items() if key not in _KEYS}
    if provider.endswith("AnonymousAWSCredentialsProvider"):
        io["s3.anonymous"] = "true"
    return io | {
        key: value for key, value in properties.items() if key.startswith(_STORES) and _plain(key) not in _S3
    }


def address(properties: Mapping[str, str]) -> str:
    """Where the catalog is and where its files are, as a message may say it; empty where nothing tells."""
    server = properties.get("uri", "") if properties.get("metastore", "filesystem") != "filesystem" else ""
    warehouse, endpoint = properties.get("warehouse", ""), io_properties(properties).get("s3.endpoint", "")
    files = f"{warehouse} at {endpoint}" if scheme_of(warehouse) in S3 and endpoint else warehouse
    return ", ".join(redact_url(each) for each in (server, files) if each)


def on_s3(properties: Mapping[str, str]) -> bool:
    """Whether its files are on S3, or may be: a server may say so itself later."""
    return any(map(_plain, properties)) or scheme_of(properties.get("warehouse", "")) in S3


def _plain(key: str) -> str:
    """An S3 property without its prefix; empty for any other."""
    return next((key.removeprefix(each) for each in _PREFIXES if key.startswith(each)), "")


def _with_scheme(endpoint: str, encrypted: str) -> str:
    """Paimon takes a host alone, and another property says whether it speaks TLS."""
    if "://" in endpoint:
        return endpoint
    return f"{'http' if encrypted.lower() == 'false' else 'https'}://{endpoint}"
