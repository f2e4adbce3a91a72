"""What must never be printed: secret values by their name, passwords inside addresses."""

from __future__ import annotations

import re

MASK = "***"

_SECRET = re.compile(
    "secret|password|passwd|passphrase|pwd|token|credential|authorization|signature|connection-string|cookie"
    "|(access|account|shared|private|api|sse)-?key"
    "|^header-|-header-|(^|-)sas(-|$)"  # any header may carry one; Azure's shared access signatures are named by container
)
_NOT_SECRET = re.compile("key-?id$")
_USER_INFO = re.compile(r"(://[^:/?#@]*):(.*)@", re.DOTALL)
_WORDS = "(?:password|passwd|passphrase|pwd|secret|token|credential|signature|sig|key)"
_PARAMETER = re.compile(rf"(?i)([?&;][^=&;?]*{_WORDS}[^=&;?]*=)[^&;#]*")
_JAVA_OPTION = re.compile(rf"(?i)(-D[^=\s]*{_WORDS}[^=\s]*=)(?:\"[^\"]*\"|'[^']*'|\S+)")


def is_secret(name: str) -> bool:
    """Whether a property's name says that its value is a secret; an access key's id is not one."""
    plain = re.sub(r"[._\s]", "-", name.lower())
    return bool(_SECRET.search(plain)) and not ("secret" not in plain and _NOT_SECRET.search(plain))


def redact(name: str, value: object) -> str:
    """The value as it may be shown."""
    return MASK if is_secret(name) else redact_url(str(value))


def redact_text(text: str) -> str:
    """A sentence from a driver or a server, which may quote the address it was given."""
    return " ".join(redact_url(word) for word in text.split(" "))


def redact_url(url: str) -> str:
    """The address without the password; rather too much is masked than too little."""
    masked = _JAVA_OPTION.sub(rf"\1{MASK}", _USER_INFO.sub(rf"\1:{MASK}@", url))
    return _PARAMETER.sub(rf"\1{MASK}", masked)
