"""The driver's connection to S3, and the meaning of its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lakewarden.errors import Unreachable
from lakewarden.redact import redact_text
from lakewarden.storage import s3_connection as s3


def connect(io: Mapping[str, str]) -> Any:
    """A client that any thread may use. Sends no request to the store yet."""
    try:
        return s3.connect(io)
    except (BotoCoreError, ValueError) as error:
        where = io.get("s3.endpoint") or "AWS"
        raise Unreachable(what=f"S3 at {redact_text(where)}", reason=redact_text(str(error))) from error


def code(error: ClientError) -> str:
    """S3's error code, or the HTTP status if the answer has no body."""
    return str(error.response.get("Error", {}).get("Code", ""))


def reason(error: Exception) -> str:
    """S3's message, without the request."""
    if not isinstance(error, ClientError):
        return redact_text(str(error))
    message = str(error.response.get("Error", {}).get("Message", ""))
    return redact_text(f"{code(error)}: {message}" if message else code(error))


def unreachable(bucket: str, error: Exception) -> Unreachable:
    return Unreachable(what=f"bucket {bucket}", reason=reason(error))
