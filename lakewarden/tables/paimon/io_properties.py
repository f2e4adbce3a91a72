"""From a Paimon catalog's properties: its address for messages, and the settings for Lakewarden's own stores."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden.model.location import S3, scheme_of
from lakewarden.redact import redact_url

# Paimon accepts S3 properties with each of these prefixes.
_PREFIXES = ("s3.", "s3a.", "fs.s3a.")
# Maps the key after the prefix to its name in Lakewarden's stores.
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
# Credential providers that use the configured keys. With any other provider the keys are not used.
_OWN_KEYS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
# Properties that the stores do not get: S3 settings are passed under other names, and they need no catalog password.
_STORES = ("s3.", "client.", "gcs.", "adls.", "hdfs.")


def io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties to access the files without Paimon's library."""
    s3 = {_plain(key): value for key, value in properties.items() if _plain(key)}
    io = {_S3[key]: value for key, value in s3.items() if key in _S3}
    if "s3.endpoint" in io:
        io["s3.endpoint"] = _with_scheme(io["s3.endpoint"], s3.get("connection.ssl.enabled", ""))
    provider = s3.get("aws.credentials.provider", "")
    if provider and not provider.endswith(_OWN_KEYS):
        io = {key: value for key, value in io.items() if key not in _KEYS}
    if provider.endswith("AnonymousAWSCredentialsProvider"):
        io["s3.anonymous"] = "true"
    return io | {
        key: value for key, value in properties.items() if key.startswith(_STORES) and _plain(key) not in _S3
    }


def address(properties: Mapping[str, str]) -> str:
    """The address of the catalog and of its files, for messages; empty if the properties have none."""
    server = properties.get("uri", "") if properties.get("metastore", "filesystem") != "filesystem" else ""
    warehouse, endpoint = properties.get("warehouse", ""), io_properties(properties).get("s3.endpoint", "")
    files = f"{warehouse} at {endpoint}" if scheme_of(warehouse) in S3 and endpoint else warehouse
    return ", ".join(redact_url(each) for each in (server, files) if each)


def on_s3(properties: Mapping[str, str]) -> bool:
    """Whether its files are or may be on S3: a REST server announces the location only later."""
    return any(map(_plain, properties)) or scheme_of(properties.get("warehouse", "")) in S3


def _plain(key: str) -> str:
    """The name of an S3 property without its prefix; empty for other properties."""
    return next((key.removeprefix(each) for each in _PREFIXES if key.startswith(each)), "")


def _with_scheme(endpoint: str, encrypted: str) -> str:
    """The endpoint with a scheme. Paimon accepts a plain host, with TLS as a separate property."""
    if "://" in endpoint:
        return endpoint
    return f"{'http' if encrypted.lower() == 'false' else 'https'}://{endpoint}"
