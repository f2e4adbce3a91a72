"""Hides secrets in output: property values by name, and passwords inside addresses."""

from __future__ import annotations

import re

MASK = "***"

_SECRET = re.compile(
    "secret|password|passwd|passphrase|pwd|token|credential|authorization|signature|connection-string|cookie"
    "|(access|account|shared|private|api|sse)-?key"
    "|^header-|-header-|(^|-)sas(-|$)"  # any header may contain a secret; Azure names its shared access signatures by container
)
_NOT_SECRET = re.compile("key-?id$")
_USER_INFO = re.compile(r"(://[^:/?#@]*):(.*)@", re.DOTALL)
_WORDS = "(?:password|passwd|passphrase|pwd|secret|token|credential|signature|sig|key)"
_PARAMETER = re.compile(rf"(?i)([?&;][^=&;?]*{_WORDS}[^=&;?]*=)[^&;#]*")
_JAVA_OPTION = re.compile(rf"(?i)(-D[^=\s]*{_WORDS}[^=\s]*=)(?:\"[^\"]*\"|'[^']*'|\S+)")


def is_secret(name: str) -> bool:
    """Whether the value of a property with this name is a secret. The id of an access key is not."""
    plain = re.sub(r"[._\s]", "-", name.lower())
    return bool(_SECRET.search(plain)) and not ("secret" not in plain and _NOT_SECRET.search(plain))


def redact(name: str, value: object) -> str:
    """The value, or a mask if the name says it is a secret."""
    return MASK if is_secret(name) else redact_url(str(value))


def redact_text(text: str) -> str:
    """A message from a driver or server without the passwords of the addresses in it."""
    return " ".join(redact_url(word) for word in text.split(" "))


def redact_url(url: str) -> str:
    """The address without its password. If unsure, more is masked."""
    masked = _JAVA_OPTION.sub(rf"\1{MASK}", _USER_INFO.sub(rf"\1:{MASK}@", url))
    return _PARAMETER.sub(rf"\1{MASK}", masked)
