"""Connects to S3 with the properties of a table's FileIO, under PyIceberg's names or Iceberg's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore import UNSIGNED
from botocore.config import Config
from botocore.session import Session

# Simultaneous requests of all threads together.
CONNECTIONS = 32
# Seconds. If a store sends nothing for this long, the request is lost.
CONNECT_TIMEOUT, REQUEST_TIMEOUT = 5.0, 30.0
# With growing pauses of up to 20 s each: together about a minute for a store that answers SlowDown.
RETRIES = 6


def connect(io: Mapping[str, str]) -> Any:
    """A client that any thread may use. Times in answers stay text: parsing them takes longer than the rest of a listing."""
    session = Session(profile=io.get("s3.profile-name") or io.get("client.profile-name"))
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    region = io.get("s3.region") or io.get("client.region") or session.get_config_variable("region")
    return session.create_client(
        "s3",
        # botocore follows AWS's answer if the bucket is in another region; other stores ignore the region.
        region_name=region or "us-east-1",
        endpoint_url=io.get("s3.endpoint"),
        aws_access_key_id=io.get("s3.access-key-id"),
        aws_secret_access_key=io.get("s3.secret-access-key"),
        aws_session_token=io.get("s3.session-token"),
        config=_config(io),
    )


def _config(io: Mapping[str, str]) -> Config:
    proxy = io.get("s3.proxy-uri")
    return Config(
        signature_version=UNSIGNED if _true(io.get("s3.anonymous")) else None,
        s3={"addressing_style": addressing(io)},
        connect_timeout=float(io.get("s3.connect-timeout") or CONNECT_TIMEOUT),
        read_timeout=float(io.get("s3.request-timeout") or REQUEST_TIMEOUT),
        retries={
            "mode": "standard",
            "total_max_attempts": 1 + int(io.get("s3.retry.num-retries") or RETRIES),
        },
        max_pool_connections=CONNECTIONS,
        proxies={"http": proxy, "https": proxy} if proxy else None,
        # Send checksums only where the protocol requires one; many stores do not know the newer ones.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def addressing(io: Mapping[str, str]) -> str:
    """Whether the bucket goes into the path or the host name. By default as in pyarrow: into the path for a custom endpoint."""
    if named := io.get("s3.path-style-access"):
        return "path" if _true(named) else "virtual"
    if named := io.get("s3.force-virtual-addressing"):
        return "virtual" if _true(named) else "path"
    return "path" if io.get("s3.endpoint") else "auto"


def _true(value: str | None) -> bool:
    return (value or "").strip().lower() in ("true", "1", "yes", "on")
